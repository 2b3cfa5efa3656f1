//! Shared memory of other processes that is mapped here to be locked, and never touched.

use std::os::fd::{AsRawFd, BorrowedFd};

use linux_raw_sys::general as g;

use crate::file::Fd;
use crate::raw::Result;
use crate::{mem, syscall};

/// A mapping of shared memory. Whoever has the memory may shrink it: nobody here reads or writes it,
/// so nobody gets SIGBUS.
pub struct Untouched {
    at: usize,
    bytes: usize,
    is_segment: bool,
}

impl Untouched {
    /// `bytes` bytes of a file from `offset` on, of which some may lie behind its end.
    ///
    /// # Errors
    /// As `mmap(2)`: `EACCES` for a descriptor that does not allow it, `EPERM` for a seal.
    pub fn of_file(
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        is_written: bool,
    ) -> Result<Self> {
        let write = if is_written { mem::PROT_WRITE } else { 0 };
        let flags = mem::MAP_SHARED | mem::MAP_NORESERVE;
        let fd = Fd(file.as_raw_fd());
        // SAFETY: without MAP_FIXED nothing existing is touched.
        let at = unsafe { mem::map(0, bytes, mem::PROT_READ | write, flags, fd, offset) }?;
        Ok(Self {
            at,
            bytes,
            is_segment: false,
        })
    }

    /// All `bytes` bytes of a segment of System V.
    ///
    /// # Errors
    /// As `shmat(2)`.
    pub fn of_segment(number: u32, bytes: usize, is_written: bool) -> Result<Self> {
        const READ_ONLY: usize = 0o10000;
        let flags = if is_written { 0 } else { READ_ONLY };
        // SAFETY: it is mapped where nothing is.
        let at = unsafe { syscall!(g::__NR_shmat, number, 0, flags) }?;
        Ok(Self {
            at,
            bytes,
            is_segment: true,
        })
    }

    /// Where it lies.
    #[must_use]
    pub fn address(&self) -> usize {
        self.at
    }
}

impl Drop for Untouched {
    fn drop(&mut self) {
        // What fails leaves it mapped.
        match self.is_segment {
            // SAFETY: nothing refers to what is never touched.
            true => drop(unsafe { syscall!(g::__NR_shmdt, self.at) }),
            // SAFETY: as above.
            false => drop(unsafe { mem::unmap(self.at, self.bytes) }),
        }
    }
}
