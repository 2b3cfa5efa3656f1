//! `/proc/PID/mem`: memory as a file, by which programs look at themselves, and debuggers at others.
//!
//! Linux cannot have userfaultfd answer there, and says `EIO` of a page that is away. So the bytes are moved
//! by `process_vm_readv` and its like, where it can; what those may not do, because of a protection that this
//! file ignores, Linux does as ever. So it does with a process that is traced: whoever traces it may have
//! stopped those who bring pages in. The user-mode-only tier brings in what is the process's own.
//!
//! The filter knows such transfers by their offset: no other file is so long.

use core::sync::atomic::{AtomicU64, Ordering};

use farpage_object::PAGE_BYTES;
use farpage_sys::linux::general as g;
use farpage_sys::seccomp::LEAST_ADDRESS;
use farpage_sys::seccomp::later::{self, Unseen};
use farpage_sys::{Errno, Result, file, process, syscall};

use crate::transfer::{self, Transfer, Way};
use crate::{memory, sandbox, trap, user_tier};

/// What is moved at a time where both sides have to be held.
const HELD: usize = 256 << 10;
const NUMBERS: usize = 1024;

/// Numbers of descriptors by which somebody went to an address.
static WENT: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

/// A call on the memory of a process; `None` where Linux does it.
pub(crate) fn call(number: u32, args: [usize; 6]) -> Option<Result<usize>> {
    let [fd, to, whence, offset, ..] = args;
    let is_address = |place: usize| place >= LEAST_ADDRESS && (place as isize) > 0;
    let may_be = match number {
        g::__NR_lseek => whence as u32 == g::SEEK_SET && is_address(to),
        g::__NR_read | g::__NR_readv | g::__NR_write | g::__NR_writev => has_gone(fd),
        _ => transfer::is_one(number) && is_address(offset),
    };
    if !may_be || sandbox::is_on() {
        return None;
    }
    let process = process_of(fd)?;
    if number == g::__NR_lseek {
        goes(fd);
        return None;
    }
    let meant = Transfer::meant(number, args)?;
    Some(meant.and_then(|transfer| make(&transfer, process)))
}

fn has_gone(fd: usize) -> bool {
    let word = WENT.get(fd / 64);
    word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (fd % 64) != 0)
}

/// What is read and written by this number is seen from now on.
fn goes(fd: usize) {
    if let Some(word) = WENT.get(fd / 64)
        && later::see(Unseen::Descriptor(fd as u32)).is_ok()
    {
        word.fetch_or(1 << (fd % 64), Ordering::Relaxed);
    }
}

/// The process whose memory the descriptor is of.
fn process_of(fd: usize) -> Option<u32> {
    let path = file::path_of(file::Fd(fd as i32));
    let mut link = [0u8; 64];
    let to = link.as_mut_ptr();
    // SAFETY: a string, and room for as many bytes.
    let got = unsafe { syscall!(g::__NR_readlink, path.as_ptr(), to, link.len()) };
    let text = core::str::from_utf8(link.get(..got.ok()?)?).ok()?;
    let id = text.strip_prefix("/proc/")?.strip_suffix("/mem")?;
    // A thread's is its process's.
    id.split('/').next()?.parse().ok()
}

fn make(transfer: &Transfer, process: u32) -> Result<usize> {
    let start = match transfer.at {
        Some(at) => at,
        None => transfer.seek(0, g::SEEK_CUR)?,
    };
    let mut done = 0;
    let mut end = Ok(());
    'pieces: for &[at, length] in &transfer.pieces {
        let mut piece = 0;
        while piece < length {
            let step = Step {
                transfer,
                process,
                near: at + piece,
                far: start + done,
                bytes: length - piece,
            };
            match step.make() {
                Ok(0) => break 'pieces,
                Ok(count) => {
                    piece += count;
                    done += count;
                }
                Err(errno) => {
                    end = Err(errno);
                    break 'pieces;
                }
            }
        }
    }
    if transfer.at.is_none() {
        transfer.seek((start + done) as isize, g::SEEK_SET)?;
    }
    match end {
        Err(errno) if done == 0 => Err(errno),
        _ => Ok(done),
    }
}

/// True of another process that somebody traces.
fn is_traced(process: u32) -> bool {
    const TRACER: &[u8] = b"TracerPid:\t";
    if process == process::id() {
        return false;
    }
    let mut text = [0; 512];
    let Ok(text) = file::read_of_process(process, "status", &mut text) else {
        return false;
    };
    let at = text.windows(TRACER.len()).position(|seen| seen == TRACER);
    at.is_some_and(|at| text.get(at + TRACER.len()) != Some(&b'0'))
}

struct Step<'a> {
    transfer: &'a Transfer,
    process: u32,
    /// Where the program has its side.
    near: usize,
    /// The address in the process.
    far: usize,
    bytes: usize,
}

impl Step<'_> {
    /// Moves some of the bytes.
    fn make(&self) -> Result<usize> {
        if memory::is_user_tier() {
            return self.with_both_held();
        }
        if is_traced(self.process) {
            return self.by_file(self.bytes);
        }
        match self.by_address() {
            // It is not there, or may not be used so.
            Err(_) | Ok(0) => self.by_file(self.bytes.min(PAGE_BYTES - self.far % PAGE_BYTES)),
            done => done,
        }
    }

    fn by_address(&self) -> Result<usize> {
        let (near, far) = ([self.near, self.bytes], [self.far, self.bytes]);
        let number = match self.transfer.way {
            Way::Out => g::__NR_process_vm_readv,
            Way::In => g::__NR_process_vm_writev,
        };
        let (near, far) = (near.as_ptr(), far.as_ptr());
        // SAFETY: Linux checks all of these addresses.
        unsafe { syscall!(number, self.process, near, 1, far, 1, 0) }
    }

    fn by_file(&self, bytes: usize) -> Result<usize> {
        let number = match self.transfer.way {
            Way::Out => g::__NR_pread64,
            Way::In => g::__NR_pwrite64,
        };
        let args = [self.transfer.fd, self.near, bytes, self.far, 0, 0];
        // SAFETY: the program's own call, in part.
        unsafe { trap::pass(number, args) }
    }

    fn with_both_held(&self) -> Result<usize> {
        let bytes = self.bytes.min(HELD);
        let (written, read) = match self.transfer.way {
            Way::Out => (self.near, self.far),
            Way::In => (self.far, self.near),
        };
        let is_own = self.process == process::id();
        if is_own || written == self.near {
            user_tier::bring_in_to_write(written, bytes);
        } else {
            user_tier::let_go();
        }
        if is_own || read == self.near {
            user_tier::bring_in(read, bytes, false);
        }
        let done = self.by_file(bytes);
        user_tier::let_go();
        match done {
            Ok(0) if bytes > 0 => Err(Errno::EIO),
            done => done,
        }
    }
}
