//! Copying from and to memory of this process, where what cannot be had is an error and no signal.
//!
//! Linux copies (`process_vm_readv`), as it does for system calls. A userfaultfd of an ordinary user does not
//! serve those: there the thread copies by itself, and SIGBUS of that copy ends it.

use linux_raw_sys::general as g;

use crate::file;
use crate::mem;
use crate::raw::{Errno, Result};
use crate::{process, signal, syscall};

const PAGE: usize = 4096;

/// Copies what is at `at` to `into`. Where a load would raise a signal this fails.
///
/// # Errors
/// `EFAULT` when not all could be copied; otherwise as `process_vm_readv(2)`.
pub fn from(at: usize, into: &mut [u8]) -> Result<()> {
    let to = into.as_mut_ptr().expose_provenance();
    // SAFETY: `into` is the caller's, and the other side is only read.
    unsafe { all(Way::Read, to, at, into.len()) }
}

/// Copies `bytes` to `at`. Where a store would raise a signal this fails.
///
/// # Safety
/// Nothing may rely on what is there.
///
/// # Errors
/// `EFAULT` when not all could be copied; otherwise as `process_vm_writev(2)`.
pub unsafe fn to(at: usize, bytes: &[u8]) -> Result<()> {
    let from = bytes.as_ptr().expose_provenance();
    // SAFETY: `bytes` is only read; the caller answers for what is written to.
    unsafe { all(Way::Write, at, from, bytes.len()) }
}

/// Which side may not be there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Read,
    Write,
}

/// # Safety
/// The side that is not what [`Way`] names is valid; nothing may rely on what is at `to`.
unsafe fn all(way: Way, to: usize, from: usize, bytes: usize) -> Result<()> {
    let mut done = 0;
    while done < bytes {
        // SAFETY: parts of what the caller names.
        let copied = unsafe { by_linux(way, to + done, from + done, bytes - done) };
        match copied {
            Ok(count @ 1..) => {
                done += count;
                continue;
            }
            Ok(0) | Err(Errno::EFAULT) => {}
            Err(errno) => return Err(errno),
        }
        let doubtful = match way {
            Way::Read => from + done,
            Way::Write => to + done,
        };
        let part = (PAGE - doubtful % PAGE).min(bytes - done);
        // SAFETY: as above.
        unsafe { by_thread(way, to + done, from + done, part) }?;
        done += part;
    }
    Ok(())
}

/// # Safety
/// As for [`all`].
unsafe fn by_linux(way: Way, to: usize, from: usize, bytes: usize) -> Result<usize> {
    let (call, own, other) = match way {
        Way::Read => (g::__NR_process_vm_readv, to, from),
        Way::Write => (g::__NR_process_vm_writev, from, to),
    };
    let (own, other) = ([own, bytes], [other, bytes]);
    let (own, other) = (own.as_ptr(), other.as_ptr());
    // SAFETY: both are one `iovec`; the caller answers for what is written to.
    unsafe { syscall!(call, process::id(), own, 1, other, 1, 0) }
}

/// A part of a page, copied by this thread.
///
/// # Safety
/// As for [`all`].
unsafe fn by_thread(way: Way, to: usize, from: usize, bytes: usize) -> Result<()> {
    if !signal::ends_copies() {
        return Err(Errno::EFAULT);
    }
    // What is not mapped so would raise SIGSEGV, which is not ours to answer.
    let maps = file::open_of_process(c"/proc/self/maps", c"/proc/thread-self/maps")?;
    let mapping = mem::mapping_of(maps, if way == Way::Read { from } else { to });
    file::close(maps);
    let mapping = mapping.map_err(|_| Errno::EFAULT)?;
    let may = match way {
        Way::Read => mapping.is_readable,
        Way::Write => mapping.is_writable,
    };
    // SAFETY: the caller answers for both sides, which are mapped.
    match may && unsafe { signal::copy(to, from, bytes) } {
        true => Ok(()),
        false => Err(Errno::EFAULT),
    }
}

#[cfg(all(test, feature = "std", target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_copied_and_what_is_not_is_an_error() {
        let mut into = [0; 5];
        from([7u8; 5].as_ptr().addr(), &mut into).unwrap();
        assert_eq!(into, [7; 5]);
        assert_eq!(from(0x1000, &mut into), Err(Errno::EFAULT));
    }

    #[test]
    fn a_thread_that_copies_beyond_the_end_of_a_file_is_told_so_and_lives() {
        let memory = file::memfd(c"short", 0).unwrap();
        file::set_size(memory, PAGE as u64).unwrap();
        let at = mem::map_shared(memory, 2 * PAGE).unwrap();
        let mut into = [1; 16];
        // SAFETY: the mapping is this test's own.
        unsafe {
            by_thread(Way::Write, at + 8, [9u8; 16].as_ptr().addr(), 16).unwrap();
            by_thread(Way::Read, into.as_mut_ptr().addr(), at + 8, 16).unwrap();
        }
        assert_eq!(into, [9; 16]);
        for bytes in [3, 8] {
            // SAFETY: as above.
            let read = unsafe { by_thread(Way::Read, into.as_mut_ptr().addr(), at + PAGE, bytes) };
            assert_eq!(read, Err(Errno::EFAULT));
        }
        // SAFETY: as above.
        let written = unsafe { by_thread(Way::Write, at + PAGE, into.as_ptr().addr(), 5) };
        assert_eq!(written, Err(Errno::EFAULT));
        assert_eq!(from(at + PAGE, &mut into), Err(Errno::EFAULT));
        // SAFETY: as above; nothing refers to it.
        unsafe { mem::unmap(at, 2 * PAGE) }.unwrap();
        // SAFETY: nothing is read.
        let gone = unsafe { by_thread(Way::Read, into.as_mut_ptr().addr(), at, 8) };
        assert_eq!(gone, Err(Errno::EFAULT));
    }
}
