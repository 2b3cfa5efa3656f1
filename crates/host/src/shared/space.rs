//! The address space of another process, as far as this one may change it.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use farpage_abi::PAGE_BYTES;
use farpage_sys::file::Fd;
use farpage_sys::uffd::{Faults, Uffd};
use farpage_sys::{Errno, socket};
use std::os::fd::AsFd;

/// A process's userfaultfd. What is done by it changes that process's mappings, and nobody else's.
pub struct Space {
    faults: OwnedFd,
}

impl Space {
    /// Takes over the userfaultfd that a process has registered its mappings with.
    ///
    /// # Errors
    /// When it cannot be set up; it need not be a userfaultfd, as far as this process knows.
    pub fn new(faults: OwnedFd) -> Result<Self, Errno> {
        socket::do_not_wait(Fd(faults.as_raw_fd()))?;
        Ok(Self { faults })
    }

    /// Faults that wait, up to eight.
    ///
    /// # Errors
    /// When it is no userfaultfd, or one that reports other things than faults.
    pub fn faults(&self) -> Result<Faults<8>, Errno> {
        self.uffd().faults()
    }

    /// Lets threads that wait at a range fault again.
    pub fn wake(&self, at: usize, bytes: usize) {
        self.uffd().wake(at, bytes);
    }

    /// Maps pages that the memory file has, to be read or to be written, and wakes who waits there.
    pub(super) fn let_in(&self, at: usize, bytes: usize, writable: bool) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes {
            let progress = self.uffd().map_in(at + done, bytes - done, !writable);
            done += progress.bytes;
            match progress.stopped {
                None => {}
                // It is mapped already.
                Some(Errno::EEXIST) => done += PAGE_BYTES,
                Some(errno) => return Err(errno),
            }
        }
        if writable {
            // Those that were mapped already may have been protected. Wakes as well.
            return self.uffd().set_protected(at, bytes, false);
        }
        self.wake(at, bytes);
        Ok(())
    }

    /// Nobody writes to the range from now on without a fault.
    pub(super) fn protect(&self, at: usize, bytes: usize) -> Result<(), Errno> {
        self.uffd().set_protected(at, bytes, true)
    }

    /// Makes accesses to a page fail with SIGBUS.
    pub(super) fn refuse(&self, at: usize) -> Result<(), Errno> {
        let refused = self.uffd().refuse(at, PAGE_BYTES);
        self.wake(at, PAGE_BYTES);
        refused
    }

    fn uffd(&self) -> Uffd {
        Uffd(Fd(self.faults.as_raw_fd()))
    }
}

impl AsFd for Space {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.faults.as_fd()
    }
}
