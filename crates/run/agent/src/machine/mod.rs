//! What programs see as the memory of the machine (`farpage run --memory`): `sysinfo`, and the files of /proc and
//! of memory cgroups that say how much there is. A program that opens one gets a memory file, which has the
//! text of that moment with other figures in it.

mod texts;

use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use farpage_object::{Control, PAGE_BYTES, TaskSlot};
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, limits, syscall};

use crate::program::{self, HERE, Reader};
use crate::{sandbox, start};
use texts::{Memory, Text};

/// Flags of files that are opened for something else than to be read.
const NOT_TO_READ: u32 = g::O_ACCMODE | g::O_CREAT | g::O_TRUNC | g::O_PATH | g::O_DIRECTORY;
/// Where `struct sysinfo` has how much memory there is, what of it is free, shared and in buffers, and
/// the same of swap.
const SYSINFO_MEMORY: core::ops::Range<usize> = 4..10;
/// Where it has high memory, and the unit of all that.
const SYSINFO_REST: core::ops::Range<usize> = 11..14;

/// True in a tree that is told how much memory the machine has.
pub(crate) fn is_said() -> bool {
    said().is_some()
}

fn said() -> Option<(&'static Control, u64)> {
    let control = start::control()?;
    let total = control.machine_bytes.load(Relaxed);
    (total != 0).then_some((control, total))
}

/// A call that was trapped, if it asks how much memory there is.
pub(crate) fn call(number: u32, args: [usize; 6]) -> Option<Result<usize>> {
    let (control, total) = said()?;
    let memory = || Memory {
        total,
        taken: used(control),
    };
    if number == g::__NR_sysinfo {
        return Some(sysinfo(args[0], memory()));
    }
    // What a program has forbidden itself may be needed for the others.
    if sandbox::is_on() {
        return None;
    }
    let opening = Opening::meant(number, args).filter(Opening::is_told_of)?;
    Some(opening.make(memory))
}

fn sysinfo(to: usize, memory: Memory) -> Result<usize> {
    let mut answer = [0u64; SYSINFO_REST.end];
    // SAFETY: the kernel's `struct sysinfo` has 112 bytes.
    unsafe { syscall!(g::__NR_sysinfo, answer.as_mut_ptr()) }?;
    answer[SYSINFO_MEMORY].copy_from_slice(&[memory.total, memory.free(), 0, 0, 0, 0]);
    answer[SYSINFO_REST].copy_from_slice(&[0, 0, 1]);
    program::write(to, &answer).map(|()| 0)
}

/// `struct open_how`: flags, mode, and how the path is followed.
type How = [u64; 3];

/// A file that is opened to be read, and says how much memory there is.
struct Opening {
    dir: usize,
    path: Vec<u8>,
    flags: u32,
    how: Option<How>,
    text: Text,
}

impl Opening {
    fn meant(number: u32, [a, b, c, d, ..]: [usize; 6]) -> Option<Self> {
        let (dir, path, flags, how) = match number {
            g::__NR_open => (HERE, a, b as u32, None),
            g::__NR_openat => (a, b, c as u32, None),
            g::__NR_openat2 if d == size_of::<How>() => {
                let how = program::read::<How>(c).ok()?;
                (a, b, u32::try_from(how[0]).ok()?, Some(how))
            }
            _ => return None,
        };
        if flags & NOT_TO_READ != 0 {
            return None;
        }
        let path = Reader::new().string(path).ok()?;
        let text = Text::named(path)?;
        Some(Self {
            dir,
            path: [path, b"\0"].concat(),
            flags,
            how,
            text,
        })
    }

    fn open(&self, flags: u32) -> Result<Fd> {
        let (dir, path) = (self.dir, self.path.as_ptr());
        // SAFETY: a string and a structure of ours.
        let opened = unsafe {
            match self.how {
                None => syscall!(g::__NR_openat, dir, path, flags),
                Some([_, mode, resolve]) => {
                    let how: How = [flags.into(), mode, resolve];
                    syscall!(g::__NR_openat2, dir, path, how.as_ptr(), size_of::<How>())
                }
            }
        };
        opened.map(|fd| Fd(fd as i32))
    }

    /// True when the file is what its name says. Nothing waits for that, as it could for a pipe.
    fn is_told_of(&self) -> bool {
        let flags = self.flags & g::O_NOFOLLOW | g::O_PATH | g::O_CLOEXEC;
        let Ok(fd) = file::with_room(|| self.open(flags)) else {
            return false;
        };
        let system = file::system_of(fd);
        file::close(fd);
        system.is_ok_and(|system| self.text.is_at(&self.path, system))
    }

    fn make(&self, memory: impl Fn() -> Memory) -> Result<usize> {
        let fd = self.open(self.flags)?;
        // Where no other file can be made, Linux's is better than none.
        let _ = self.replace(fd, memory);
        Ok(fd.0 as usize)
    }

    /// Makes `fd` a file with other figures.
    fn replace(&self, fd: Fd, memory: impl Fn() -> Memory) -> Result<()> {
        let after = self.text.rewritten(&file::read_all(fd)?, memory());
        if !limits::allows_files_of(after.len() as u64) {
            return Err(Errno::EFBIG);
        }
        let made = file::with_room(|| file::memfd(c"memory", g::MFD_CLOEXEC))?;
        let again = file::pwrite_all(made, &after, 0)
            .and_then(|()| file::with_room(|| file::open_again(made, g::O_RDONLY)));
        file::close(made);
        file::move_to(again?, fd, self.flags & g::O_CLOEXEC != 0).map(drop)
    }
}

/// What the programs of the run use: memory of their own, and pages that are out.
fn used(control: &Control) -> u64 {
    let tasks = || {
        let tasks = control.slots().iter();
        tasks.filter(|task| task.pid.load(Relaxed) != 0)
    };
    let is_alone = tasks().nth(1).is_none();
    tasks().map(|task| used_by(task, is_alone)).sum()
}

/// What a process uses; of what it has in common with others its part, unless it is alone.
fn used_by(task: &TaskSlot, is_alone: bool) -> u64 {
    let counters = &task.counters;
    let process = task.pid.load(Relaxed);
    let in_memory = match is_alone {
        _ if sandbox::is_on() => None,
        true => all_of(process),
        false => part_of(process),
    };
    // The compressed tier is memory of the process, too.
    let tier = counters.compressed_bytes.load(Relaxed);
    let managed = counters.resident_bytes.load(Relaxed);
    let in_memory = in_memory.map_or(managed, |bytes| bytes.saturating_sub(tier).max(managed));
    in_memory + counters.compressed_from_bytes.load(Relaxed) + counters.spilled_bytes.load(Relaxed)
}

/// Memory that a process has for itself. `None` where that cannot be asked.
fn all_of(process: u32) -> Option<u64> {
    let mut text = [0; 128];
    own_memory(file::read_of_process(process, "statm", &mut text).ok()?)
}

/// The same, by what `statm` has of it.
pub(crate) fn own_memory(statm: &[u8]) -> Option<u64> {
    let mut numbers = core::str::from_utf8(statm).ok()?.split(' ').skip(1);
    let mut next = || numbers.next()?.parse::<u64>().ok();
    let (resident, shared) = (next()?, next()?);
    Some(resident.saturating_sub(shared) * PAGE_BYTES as u64)
}

/// As [`all_of`]; a page that several have counts in parts.
fn part_of(process: u32) -> Option<u64> {
    let mut text = [0; 1024];
    let text = file::read_of_process(process, "smaps_rollup", &mut text).ok()?;
    let mut lines = core::str::from_utf8(text).ok()?.lines();
    let kib = lines.find_map(|line| line.strip_prefix("Pss_Anon:"))?;
    let kib: u64 = kib.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}
