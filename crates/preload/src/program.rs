//! The program's memory, as its pointers name it: they may be wrong, and then the call fails as
//! Linux would have failed it.

use core::mem::MaybeUninit;

use farpage_abi::PAGE_BYTES;
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, process, syscall};

use crate::{sandbox, user_tier};

/// Strings that Linux takes in `execve` are at most this long.
const STRING_BYTES_MAX: usize = 128 << 10;

#[repr(C)]
struct Piece {
    at: usize,
    bytes: usize,
}

/// Reads the value at `at`.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn read<T: Copy>(at: usize) -> Result<T> {
    let mut value = MaybeUninit::<T>::uninit();
    let bytes = size_of::<T>();
    if sandbox::is_on() {
        // SAFETY: a wrong pointer ends the program, which forbade itself the call that would tell.
        return Ok(unsafe { core::ptr::with_exposed_provenance::<T>(at).read_unaligned() });
    }
    transfer(
        g::__NR_process_vm_readv,
        value.as_mut_ptr().addr(),
        at,
        bytes,
    )?;
    // SAFETY: all its bytes were read; callers use types of plain numbers.
    Ok(unsafe { value.assume_init() })
}

/// Writes `value` to `at`.
///
/// # Errors
/// `EFAULT`.
pub(crate) fn write<T: Copy>(at: usize, value: &T) -> Result<()> {
    if sandbox::is_on() {
        let to = core::ptr::with_exposed_provenance_mut::<T>(at);
        // SAFETY: as in `read`.
        unsafe { to.write_unaligned(*value) };
        return Ok(());
    }
    let from = core::ptr::from_ref(value).expose_provenance();
    transfer(g::__NR_process_vm_writev, from, at, size_of::<T>())
}

fn transfer(number: u32, own: usize, at: usize, bytes: usize) -> Result<()> {
    for _ in 0..2 {
        let local = Piece { at: own, bytes };
        let remote = Piece { at, bytes };
        let (local, remote) = (core::ptr::from_ref(&local), core::ptr::from_ref(&remote));
        // SAFETY: `own` is valid for `bytes` bytes; the program's side is checked by Linux.
        match unsafe { syscall!(number, process::id(), local, 1, remote, 1, 0) } {
            Ok(done) if done == bytes => return Ok(()),
            // Not Linux's to bring in, but ours?
            Ok(_) | Err(Errno::EFAULT) if user_tier::bring_in(at, bytes) => {}
            _ => break,
        }
    }
    Err(Errno::EFAULT)
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

    #[test]
    fn wrong_pointers_are_told() {
        assert_eq!(read::<u64>(8), Err(Errno::EFAULT));
        assert_eq!(write(8, &1u64), Err(Errno::EFAULT));
        let mut value = 7u64;
        let at = (&raw mut value).expose_provenance();
        assert_eq!(read::<u64>(at), Ok(7));
        write(at, &9u64).unwrap();
        assert_eq!(value, 9);
    }

    #[test]
    fn strings_are_found() {
        let at = c"LD_PRELOAD=x".as_ptr().expose_provenance();
        let mut reader = Reader::new();
        assert_eq!(reader.string(at).unwrap(), b"LD_PRELOAD=x");
        assert!(reader.starts_with(at, b"LD_PRELOAD=").unwrap());
        assert!(!reader.starts_with(at, b"LD_AUDIT=").unwrap());
        assert_eq!(reader.string(16), Err(Errno::EFAULT));
    }
}
