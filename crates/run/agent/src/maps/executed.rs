//! Mapped files that are programs.
//!
//! Linux executes the memory file: what it reads of it meanwhile stays in memory, which the supervisor
//! sees to before the file may be executed. What Linux has mapped of it by then is registered before
//! the program's first instruction, and from then on is like any other mapping.

use alloc::vec::Vec;
use core::ffi::CStr;
use core::sync::atomic::Ordering;

use farpage_object::PAGE_BYTES;
use farpage_object::maps::{Maps, PATH_MAX, PieceOf};
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, process, syscall};

use super::{by_identity, file_of, maps, memory, paths, say};
use crate::{program, start};

const AT_EMPTY_PATH: usize = g::AT_EMPTY_PATH as usize;
const SELF: &CStr = c"/proc/self/exe";

/// What executing a path means, when it is a mapped file: the descriptor to execute.
pub(crate) fn target(dir: i32, path: usize, flags: usize) -> Option<Result<Fd>> {
    let maps = maps()?;
    let name = program::Reader::new().string(path).ok()?;
    let number = match name.is_empty() && flags & AT_EMPTY_PATH != 0 {
        true => file_of(maps, dir as usize),
        false => paths::opened(maps, dir as isize as usize, path),
    }?;
    Some(match is_executable(maps, number) {
        true => Ok(paths::mapped(number)),
        false => {
            say("a file of --map that is no program of this machine cannot be executed");
            Err(Errno::EACCES)
        }
    })
}

pub(super) fn is_executable(maps: &Maps, number: usize) -> bool {
    maps.files()[number].executable.load(Ordering::Acquire)
}

/// Registers what Linux has mapped of mapped files when it executed this program, which has not run
/// yet. Ends the process when that cannot be: it would read zeros.
pub(crate) fn adopt() {
    let Some(maps) = maps() else { return };
    let Ok(mapped) = mappings(maps) else {
        die("cannot see what is mapped: mount /proc");
    };
    if mapped.is_empty() {
        return;
    }
    let mask = process::set_signal_mask(!0);
    let done = memory::adopt(maps, &mapped);
    process::set_signal_mask(mask);
    if done.is_err() {
        die("gets no userfaultfd, thread or process id for it; see farpage doctor");
    }
    name_after(maps, mapped[0].file);
}

fn die(why: &str) -> ! {
    say(&alloc::format!(
        "process {} is killed: the program is a mapped file, and it {why}",
        process::id()
    ));
    process::die()
}

/// Linux has called the process after the descriptor.
fn name_after(maps: &Maps, number: usize) {
    const PR_SET_NAME: usize = 15;
    let mut path = [0; PATH_MAX];
    let length = maps.files()[number].paths[0].copy_to(&mut path);
    let path = &path[..length.min(PATH_MAX - 1)];
    let from = path.iter().rposition(|byte| *byte == b'/');
    let mut name = path[from.map_or(0, |slash| slash + 1)..].to_vec();
    name.push(0);
    // SAFETY: a string of ours, which Linux copies.
    let _ = unsafe { syscall!(g::__NR_prctl, PR_SET_NAME, name.as_ptr()) };
}

/// What of mapped files is in this process's memory.
fn mappings(maps: &Maps) -> Result<Vec<PieceOf>> {
    let opened = file::with_room(|| file::open(c"/proc/self/maps", g::O_CLOEXEC, 0))?;
    let text = file::read_all(opened);
    file::close(opened);
    let text = text?;
    let lines = text.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(|line| mapping(maps, line)).collect())
}

/// One line: `start-end rwxp offset major:minor inode path`.
fn mapping(maps: &Maps, line: &[u8]) -> Option<PieceOf> {
    let line = core::str::from_utf8(line.get(..line.len().min(100))?).ok();
    let mut words = line?.split_ascii_whitespace();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = words.next()?.split_once('-')?;
    let may = words.next()?;
    let offset = hex(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let (major, minor) = (hex(major)?, hex(minor)?);
    let inode = words.next()?.parse().ok()?;
    // As `fstat` has it.
    let device = minor & 0xff | major << 8 | (minor & !0xff) << 12;
    Some(PieceOf {
        file: by_identity(maps, (device, inode))?,
        shared: may.ends_with('s'),
        reading: false,
        start: hex(start)?,
        end: hex(end)?,
        first: offset / PAGE_BYTES as u64,
    })
}

/// `readlink` of the program's own name, when that is a mapped file: Linux would tell that of the
/// memory file.
pub(super) fn own_name(maps: &Maps, path: usize, to: usize, bytes: usize) -> Option<Result<usize>> {
    let name = program::Reader::new().string(path).ok()?;
    let is_own = name == SELF.to_bytes() || {
        let id = name.strip_prefix(b"/proc/")?.strip_suffix(b"/exe")?;
        core::str::from_utf8(id).ok()?.parse() == Ok(start::process_id())
    };
    if !is_own {
        return None;
    }
    let identity = file::identity_at(g::AT_FDCWD as isize as usize, SELF.as_ptr() as usize);
    let number = by_identity(maps, identity.ok()?)?;
    let mut path = [0; PATH_MAX];
    let length = maps.files()[number].paths[0].copy_to(&mut path).min(bytes);
    if length == 0 {
        return Some(Err(Errno::EINVAL));
    }
    for (at, byte) in path[..length].iter().enumerate() {
        if let Err(errno) = program::write(to + at, byte) {
            return Some(Err(errno));
        }
    }
    Some(Ok(length))
}
