//! A memory file of another process's, mapped here: that process decides which pages are there.

use core::sync::atomic::AtomicU64;

use crate::file::{self, Fd};
use crate::mem;
use crate::raw::{Errno, Result};
use crate::uffd::{self, Uffd, features};

const PAGE: usize = 4096;

/// All of such a file. Threads that touch a page wait until it is let in, by whoever has the
/// userfaultfd; a copy stays here, so that they wait, and read no zeros, when nobody has it.
pub struct View {
    uffd: Uffd,
    address: usize,
    bytes: usize,
}

impl View {
    /// Maps all `bytes` of the file. Children of fork do not have it: they would read zeros.
    /// `device`: an open `/dev/userfaultfd`, if there is one.
    ///
    /// # Errors
    /// As `mmap(2)`, and as for [`Uffd::register_all`]; `EINVAL` when the file is empty.
    pub fn map(file: Fd, bytes: usize, device: Option<Fd>) -> Result<Self> {
        const FEATURES: u64 = features::FAULT_FLAG_WP
            | features::THREAD_ID
            | features::MINOR_SHMEM
            | features::WP_HUGETLBFS_SHMEM;
        let bytes = bytes.next_multiple_of(PAGE);
        if bytes == 0 {
            return Err(Errno::EINVAL);
        }
        let (uffd, _) = uffd::open(device)?;
        let mapped = uffd
            .enable(FEATURES)
            .and_then(|()| mem::map_shared(file, bytes));
        let address = mapped.inspect_err(|_| file::close(uffd.0))?;
        let view = Self {
            uffd,
            address,
            bytes,
        };
        // SAFETY: the mapping is this value's own; nobody has touched it.
        unsafe { uffd.register_all(address, bytes) }?;
        // SAFETY: as above; it changes what children have of it.
        unsafe { mem::advise(address, bytes, mem::MADV_DONTFORK) }?;
        Ok(view)
    }

    /// What the other process needs to answer for it.
    pub fn userfaultfd(&self) -> Fd {
        self.uffd.0
    }

    /// Where it is.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Eight bytes of it, at a multiple of eight.
    ///
    /// # Panics
    /// When they are not in it, or `offset` is not a multiple of eight.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes);
        // SAFETY: the mapping is this value's own and outlives the borrow; whoever else has it mapped
        // accesses it as another processor would.
        unsafe { &*((self.address + offset) as *const AtomicU64) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: nobody borrows it any more.
        let _ = unsafe { mem::unmap(self.address, self.bytes) };
        file::close(self.uffd.0);
    }
}
