//! Objects whose pages Linux has already, in its page cache: they are mapped there as they are, and
//! no fault of theirs comes here, until somebody may change them.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use farpage_abi::{PAGE_BYTES, PageRange};
use farpage_sys::file::Fd;
use farpage_sys::linux::general::{MREMAP_FIXED, MREMAP_MAYMOVE};
use farpage_sys::{Errno, mem};

use crate::kernel::Kernel;
use crate::regions::pages_of;

impl Kernel {
    /// Has the pages of `fd` from `offset` on seen at `start .. end`, a region none of whose pages
    /// is there, for reading.
    ///
    /// # Errors
    /// `EOPNOTSUPP` before Linux 6.10; `EBUSY` when pages were brought in; as `mmap(2)`. The region is
    /// as it was.
    pub(crate) fn cover(
        &self,
        (start, end): (usize, usize),
        fd: Fd,
        offset: u64,
    ) -> Result<(), Errno> {
        if !self.covers.load(Ordering::Relaxed) {
            return Err(Errno::EOPNOTSUPP);
        }
        let pages = pages_of(start, end);
        let mut state = self.lock_settled(pages);
        if state.pages.resident_runs(pages).next().is_some() {
            return Err(Errno::EBUSY);
        }
        let flags = mem::MAP_SHARED | mem::MAP_NORESERVE | mem::MAP_FIXED;
        // SAFETY: the region is this kernel's, and what it shows is what its pager would supply.
        unsafe { mem::map(start, end - start, mem::PROT_READ, flags, fd, offset) }?;
        state.regions.set_covered(start, true);
        Ok(())
    }

    /// Takes the cover away: from now on each page that is touched is asked for. To threads that
    /// touch pages meanwhile it is either there or not.
    ///
    /// # Errors
    /// `ENOMEM` when the process has too many mappings, or as userfaultfd's registration: the cover
    /// is there as before.
    pub(crate) fn uncover(&self, start: usize, end: usize) -> Result<(), Errno> {
        let bytes = end - start;
        let flags = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | mem::MAP_NORESERVE;
        // SAFETY: without MAP_FIXED nothing existing is touched.
        let fresh = unsafe { mem::map(0, bytes, mem::PROT_READ, flags, Fd(-1), 0) }?;
        // SAFETY: only changes what a fork does with memory that nobody else knows.
        let _ = unsafe { mem::advise(fresh, bytes, mem::MADV_DONTFORK) };
        // SAFETY: who touches it waits for this kernel, which answers where it is moved to.
        let registered = unsafe { self.uffd().register(fresh, bytes) };
        let moved = registered.and_then(|()| {
            // Faults that are taken meanwhile wait until it is known what becomes of them.
            let mut state = self.lock_settled(PageRange::new(0, 0));
            state.frozen = true;
            drop(state);
            let moved = self.move_over(fresh, bytes, start);
            let mut state = self.state.lock();
            state.frozen = false;
            state.regions.set_covered(start, moved.is_err());
            drop(state);
            self.settled.notify();
            moved
        });
        if moved.is_err() {
            // SAFETY: nobody else knows it.
            let _ = unsafe { mem::unmap(fresh, bytes) };
        }
        moved.map(drop)
    }

    /// Moves what is registered to where the cover is. The registration moves along, as userfaultfd
    /// tells of moves, so a page that is touched right after is asked for.
    fn move_over(&self, fresh: usize, bytes: usize, start: usize) -> Result<usize, Errno> {
        let uffd = self.uffd();
        let held = std::thread::scope(|scope| {
            let mover = std::thread::Builder::new().name("farpage-mover".into());
            let mover = mover.spawn_scoped(scope, || {
                let fixed = MREMAP_MAYMOVE | MREMAP_FIXED;
                // SAFETY: what was there is this kernel's to replace, and has no contents of its own.
                unsafe { mem::remap(fresh, bytes, bytes, fixed, start) }
            });
            let mover = mover.map_err(|_| Errno::EAGAIN)?;
            // Until the move is read nothing can be answered, and faults are read before it: those
            // that handlers have taken wait for that. The others are held back here.
            let mut held = Vec::new();
            while !mover.is_finished() {
                match uffd.faults_now::<16>() {
                    Ok(faults) if !faults.as_slice().is_empty() => {
                        held.extend(faults.as_slice().iter().map(|fault| fault.address));
                    }
                    _ => std::thread::yield_now(),
                }
            }
            let moved = mover.join().unwrap_or(Err(Errno::EAGAIN));
            Ok((moved, held))
        });
        let (moved, held) = held?;
        for address in held {
            uffd.wake(address / PAGE_BYTES * PAGE_BYTES, PAGE_BYTES);
        }
        moved
    }
}
