//! The program's memory, as its pointers name it: they may be wrong, and then the call fails as
//! Linux would have failed it.

use farpage_object::{Access, PAGE_BYTES};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, syscall};

use crate::{sandbox, user_tier};

/// Paths begin at the working directory.
pub(crate) const HERE: usize = g::AT_FDCWD as isize as usize;
/// Strings that Linux takes in `execve` are at most this long.
const STRING_BYTES_MAX: usize = 128 << 10;

/// Reads the value at `at`.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn read<T: Copy>(at: usize) -> Result<T> {
    check(at, size_of::<T>(), Access::Read)?;
    // SAFETY: it was there just now. The program may take it away meanwhile, and then ends by a
    // fault of its own making. Callers use types of plain numbers.
    Ok(unsafe { core::ptr::with_exposed_provenance::<T>(at).read_unaligned() })
}

/// Writes `value` to `at`.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn write<T: Copy>(at: usize, value: &T) -> Result<()> {
    check(at, size_of::<T>(), Access::Write)?;
    // SAFETY: as in `read`.
    unsafe { core::ptr::with_exposed_provenance_mut::<T>(at).write_unaligned(*value) };
    Ok(())
}

/// Looks whether `bytes` bytes at `at`, at most a page of them, can be read.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn check_readable(at: usize, bytes: usize) -> Result<()> {
    check(at, bytes, Access::Read)
}

/// Looks whether `bytes` bytes at `at`, at most a page of them, can be written.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn check_writable(at: usize, bytes: usize) -> Result<()> {
    check(at, bytes, Access::Write)
}

/// Asks Linux about the pages of `bytes` bytes at `at`, at most a page of them.
fn check(at: usize, bytes: usize, access: Access) -> Result<()> {
    debug_assert!((1..=PAGE_BYTES).contains(&bytes));
    let last = at.checked_add(bytes - 1).ok_or(Errno::EFAULT)?;
    for byte in [at, last] {
        let bring_in = || user_tier::bring_in(at, bytes, access == Access::Write);
        let there = probe(byte, access) || bring_in() && probe(byte, access);
        if !there {
            return Err(Errno::EFAULT);
        }
        if at / PAGE_BYTES == last / PAGE_BYTES {
            break;
        }
    }
    Ok(())
}

/// Lets Linux read the eight bytes around `at`, or write the one at `at`, by the cheapest calls that do: all
/// signals are blocked in the agent, so blocking some more changes nothing, and the byte, which is the
/// caller's to write to, is written back as it was read.
fn probe(at: usize, access: Access) -> bool {
    if at < PAGE_BYTES {
        // A null pointer, or a member of what one leads to. To the call below it means none.
        return false;
    }
    if sandbox::is_on() {
        // The program may have forbidden the call. Another wrong pointer ends it.
        return true;
    }
    let word = at & !7;
    // SAFETY: only reads eight bytes, if they are there; see above for the mask.
    let read = unsafe { syscall!(g::__NR_rt_sigprocmask, g::SIG_BLOCK, word, 0, 8) };
    match access {
        Access::Read => read.is_ok(),
        Access::Write => read.is_ok() && writable(at),
    }
}

fn writable(byte: usize) -> bool {
    let there = core::ptr::with_exposed_provenance_mut::<u8>(byte);
    // SAFETY: it can be read: Linux did just now.
    let before = unsafe { there.read_volatile() };
    // Of a mask Linux writes as many bytes as it is told. Those beside this one may be another thread's.
    // SAFETY: only writes a byte, if it can be written.
    let written = unsafe { syscall!(g::__NR_rt_sigpending, byte, 1) };
    if written.is_ok() {
        // SAFETY: Linux wrote there just now.
        unsafe { there.write_volatile(before) };
    }
    written.is_ok()
}

/// Walks through strings and pointers, asking Linux once per page whether it is there.
pub(crate) struct Reader {
    page: usize,
}

impl Reader {
    pub(crate) const fn new() -> Self {
        Self { page: usize::MAX }
    }

    fn check(&mut self, at: usize) -> Result<()> {
        let page = at / PAGE_BYTES;
        if page != self.page {
            read::<u8>(at)?;
            self.page = page;
        }
        Ok(())
    }

    /// The pointer at `at`.
    ///
    /// # Errors
    /// `EFAULT`.
    pub(crate) fn pointer(&mut self, at: usize) -> Result<usize> {
        if at % PAGE_BYTES > PAGE_BYTES - size_of::<usize>() {
            return read(at);
        }
        self.check(at)?;
        // SAFETY: the page that holds all of it is there.
        Ok(unsafe { core::ptr::with_exposed_provenance::<usize>(at).read_unaligned() })
    }

    /// The bytes of the string at `at`, without its end.
    ///
    /// # Errors
    /// `EFAULT`; `E2BIG` when it is longer than Linux takes.
    pub(crate) fn string(&mut self, at: usize) -> Result<&'static [u8]> {
        let start = core::ptr::with_exposed_provenance::<u8>(at);
        for length in 0..STRING_BYTES_MAX {
            self.check(at + length)?;
            // SAFETY: its page is there.
            if unsafe { start.add(length).read() } == 0 {
                // SAFETY: `length` bytes from `at` are there. The program may change them
                // meanwhile, as it may during any call; they are only copied.
                return Ok(unsafe { core::slice::from_raw_parts(start, length) });
            }
        }
        Err(Errno::E2BIG)
    }

    /// True when the string at `at` starts with `prefix`.
    ///
    /// # Errors
    /// `EFAULT`.
    pub(crate) fn starts_with(&mut self, at: usize, prefix: &[u8]) -> Result<bool> {
        for (offset, byte) in prefix.iter().enumerate() {
            self.check(at + offset)?;
            // SAFETY: its page is there.
            let seen = unsafe { core::ptr::with_exposed_provenance::<u8>(at + offset).read() };
            if seen != *byte {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_sys::process;

    #[test]
    fn wrong_pointers_are_told() {
        process::set_signal_mask(!0);
        assert_eq!(read::<u64>(0), Err(Errno::EFAULT));
        assert_eq!(read::<u64>(8), Err(Errno::EFAULT));
        assert_eq!(write(8, &1u64), Err(Errno::EFAULT));
        let mut value = 7u64;
        let at = (&raw mut value).expose_provenance();
        assert_eq!(read::<u64>(at), Ok(7));
        write(at, &9u64).unwrap();
        assert_eq!(value, 9);
        let text = c"constant".as_ptr().expose_provenance();
        assert_eq!(write(text, &9u8), Err(Errno::EFAULT));
        assert_eq!(read::<u64>(usize::MAX - 3), Err(Errno::EFAULT));
    }

    #[test]
    fn strings_are_found() {
        process::set_signal_mask(!0);
        let at = c"LD_PRELOAD=x".as_ptr().expose_provenance();
        let mut reader = Reader::new();
        assert_eq!(reader.string(at).unwrap(), b"LD_PRELOAD=x");
        assert!(reader.starts_with(at, b"LD_PRELOAD=").unwrap());
        assert!(!reader.starts_with(at, b"LD_AUDIT=").unwrap());
        assert_eq!(reader.string(16), Err(Errno::EFAULT));
    }
}
