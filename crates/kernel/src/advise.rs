//! `madvise`, `mlock` and `munlock` of an unmodified program.

use farpage_abi::PAGE_BYTES;
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, mem, syscall};

use crate::hold::Holder;
use crate::kernel::Kernel;
use crate::regions::{Region, pages_of};
use crate::space::{end_of, whole_pages};

impl Kernel {
    /// `madvise(2)`.
    ///
    /// # Safety
    /// As the call that the program made.
    ///
    /// # Errors
    /// As `madvise(2)`.
    pub unsafe fn madvise(&self, at: usize, bytes: usize, advice: u32) -> Result<(), Errno> {
        // SAFETY: the program's own call.
        let plain = || unsafe { mem::advise(at, bytes, advice) };
        if bytes == 0 || !self.is_active() {
            return plain();
        }
        let end = end_of(at, bytes)?;
        let managed = self.state.lock().regions.within(at, end).next().is_some();
        if !managed {
            return plain();
        }
        match advice {
            mem::MADV_DONTNEED | mem::MADV_FREE => self.drop_contents(at, end),
            // A child that may not use the memory does not notice that it could.
            mem::MADV_DONTFORK | g::MADV_DOFORK | mem::MADV_WILLNEED => Ok(()),
            // Paging out is our business.
            g::MADV_COLD | g::MADV_PAGEOUT | mem::MADV_COLLAPSE => Ok(()),
            // Not carried over to a child's copy.
            g::MADV_WIPEONFORK => Err(Errno::EINVAL),
            mem::MADV_POPULATE_READ | mem::MADV_POPULATE_WRITE => {
                // SAFETY: only reads.
                unsafe { self.touch(at, end) };
                plain()
            }
            _ => plain(),
        }
    }

    fn drop_contents(&self, at: usize, end: usize) -> Result<(), Errno> {
        let mut state = self.lock_settled(pages_of(at, end));
        self.ungrant(&state, at, end)?;
        let parts: alloc::vec::Vec<Region> = state.regions.within(at, end).collect();
        // SAFETY: the program gave these contents up.
        unsafe { mem::advise(at, end - at, mem::MADV_DONTNEED) }?;
        for part in &parts {
            self.discard(&mut state, part);
        }
        drop(state);
        self.account.announce();
        Ok(())
    }

    /// Reads a byte of every managed page of a range, so that all were there at one time.
    ///
    /// # Safety
    /// The range must be readable.
    pub unsafe fn touch(&self, at: usize, end: usize) {
        for page in (at..end).step_by(PAGE_BYTES) {
            // SAFETY: forwarded to the caller.
            unsafe { core::ptr::read_volatile(page as *const u8) };
        }
    }

    /// `mlock(2)`, `mlock2(2)`: what is locked stays resident.
    ///
    /// # Safety
    /// As the call that the program made.
    ///
    /// # Errors
    /// As `mlock(2)`; `ENOMEM` when it would take more than half of the budget.
    pub unsafe fn mlock(&self, at: usize, bytes: usize, flags: u32) -> Result<(), Errno> {
        let start = at / PAGE_BYTES * PAGE_BYTES;
        let length = whole_pages(bytes + (at - start))?;
        let end = start + length;
        // SAFETY: the program's own call.
        let plain = || unsafe { syscall!(g::__NR_mlock2, at, bytes, flags) }.map(drop);
        if !self.is_active() {
            return plain();
        }
        let readable = {
            let mut state = self.state.lock();
            let parts: alloc::vec::Vec<Region> = state.regions.within(start, end).collect();
            let managed: usize = parts.iter().map(|part| part.end - part.start).sum();
            let budget = self
                .account
                .control()
                .budget_bytes
                .load(core::sync::atomic::Ordering::Relaxed);
            if managed as u64 > budget / 2 {
                return Err(Errno::ENOMEM);
            }
            for part in &parts {
                self.ungrant(&state, part.start, part.end)?;
                self.settle_granted(&mut state, part)?;
                state.hold(Holder::Lock, part.pages());
            }
            parts
        };
        for part in readable
            .iter()
            .filter(|part| part.prot & mem::PROT_READ != 0)
        {
            // SAFETY: the region is readable.
            unsafe { self.touch(part.start, part.end) };
        }
        let locked = plain();
        if locked.is_err() {
            self.unwire(start, end);
        }
        locked
    }

    fn unwire(&self, start: usize, end: usize) {
        self.state
            .lock()
            .release(|hold| hold == Holder::Lock, pages_of(start, end));
    }

    /// `munlock(2)`.
    ///
    /// # Safety
    /// As the call that the program made.
    ///
    /// # Errors
    /// As `munlock(2)`.
    pub unsafe fn munlock(&self, at: usize, bytes: usize) -> Result<(), Errno> {
        // SAFETY: the program's own call.
        unsafe { syscall!(g::__NR_munlock, at, bytes) }?;
        if self.is_active() {
            let start = at / PAGE_BYTES * PAGE_BYTES;
            self.unwire(start, start + whole_pages(bytes + (at - start))?);
        }
        Ok(())
    }
}
