//! Some bytes in memory: of a file, from any byte on, or of nothing else.

use std::os::fd::{AsRawFd, BorrowedFd};

use farpage_object::PAGE_BYTES;

use crate::file::{self, Fd};
use crate::mem;
use crate::raw::{Errno, Result};

/// A mapping with a byte that is its first, inside a page perhaps. Undone when it is dropped.
pub struct Part {
    /// What is mapped: whole pages.
    start: usize,
    mapped: usize,
    address: usize,
    bytes: usize,
}

/// Who sees what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Nobody else: pages are copied when they are written to.
    Private,
    /// All who have the file.
    Shared,
    /// Nobody writes, and what others write is seen.
    Forbidden,
}

impl Part {
    /// Maps `bytes` bytes of a file from `offset` on. With `at` that is where the first lies, and
    /// both begin a page; without it Linux chooses.
    ///
    /// # Errors
    /// As `mmap(2)`: `EEXIST` where something lies already, `EACCES` when the descriptor does not
    /// allow it. `EINVAL` when the place is not possible.
    pub fn of_file(
        fd: BorrowedFd<'_>,
        (offset, bytes): (u64, usize),
        at: Option<usize>,
        writes: Writes,
    ) -> Result<Self> {
        let inside = (offset % PAGE_BYTES as u64) as usize;
        if at.is_some() && inside != 0 {
            return Err(Errno::EINVAL);
        }
        let (prot, flags) = match writes {
            Writes::Private => (mem::PROT_READ | mem::PROT_WRITE, mem::MAP_PRIVATE),
            Writes::Shared => (mem::PROT_READ | mem::PROT_WRITE, mem::MAP_SHARED),
            Writes::Forbidden => (mem::PROT_READ, mem::MAP_SHARED),
        };
        let fd = Fd(fd.as_raw_fd());
        let place = (offset - inside as u64, inside, bytes);
        Self::map(place, at, prot, flags | mem::MAP_NORESERVE, fd)
    }

    /// Fresh memory with the bytes of a file from `offset` on; with `at` there.
    ///
    /// # Errors
    /// As [`Part::of_file`], and as `pread(2)`; `ENOMEM` without memory; `ENXIO` when the file
    /// ends before.
    pub fn copied(
        fd: BorrowedFd<'_>,
        (offset, bytes): (u64, usize),
        at: Option<usize>,
    ) -> Result<Self> {
        let (prot, flags) = (
            mem::PROT_READ | mem::PROT_WRITE,
            mem::MAP_PRIVATE | mem::MAP_ANONYMOUS,
        );
        let part = Self::map((0, 0, bytes), at, prot, flags, Fd(-1))?;
        let into = part.as_ptr();
        // SAFETY: mapped just now, for reading and writing, and nobody else has the address.
        let into = unsafe { core::slice::from_raw_parts_mut(into, bytes) };
        match file::pread(Fd(fd.as_raw_fd()), into, offset)? {
            all if all == bytes => Ok(part),
            _ => Err(Errno::ENXIO),
        }
    }

    fn map(
        (offset, inside, bytes): (u64, usize, usize),
        at: Option<usize>,
        prot: u32,
        flags: u32,
        fd: Fd,
    ) -> Result<Self> {
        let mapped = inside.checked_add(bytes).ok_or(Errno::ENOMEM)?;
        let mapped = mapped.checked_next_multiple_of(PAGE_BYTES);
        let mapped = mapped.ok_or(Errno::ENOMEM)?;
        let place = at.map_or(0, |_| mem::MAP_FIXED_NOREPLACE);
        let wanted = at.unwrap_or(0);
        // SAFETY: nothing existing is touched.
        let start = unsafe { mem::map(wanted, mapped, prot, flags | place, fd, offset) }?;
        let part = Self {
            start,
            mapped,
            address: start + inside,
            bytes,
        };
        // Linux before 4.17 takes the wish for an address for a hint.
        match at.is_none_or(|at| at == start) {
            true => Ok(part),
            false => Err(Errno::EEXIST),
        }
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.address)
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // SAFETY: whoever has pointers into it was told that they end with it.
        let _ = unsafe { mem::unmap(self.start, self.mapped) };
    }
}
