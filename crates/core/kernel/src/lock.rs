//! `mlock` and its like: what the program locked stays resident.
//!
//! Linux is told as well, so that limits and errors are Linux's. Locked memory can neither be moved
//! nor dropped, so page-out must know of it, and know it before memory is managed.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use farpage_object::{PAGE_BYTES, PageRange};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, mem, syscall};

use crate::hold::Holder;
use crate::kernel::{Kernel, State};
use crate::regions::{Region, address_of, pages_of};

/// The whole pages of `bytes` bytes from `at`. `None` where there are none, or no such addresses.
fn span(at: usize, bytes: usize) -> Option<(usize, usize)> {
    let end = at
        .checked_add(bytes)?
        .checked_next_multiple_of(PAGE_BYTES)?;
    (bytes > 0).then_some((at / PAGE_BYTES * PAGE_BYTES, end))
}

impl Kernel {
    /// `mlock(2)`, `mlock2(2)`: what is locked stays resident.
    ///
    /// # Safety
    /// As the call that the program made.
    ///
    /// # Errors
    /// As `mlock(2)`; `ENOMEM` when memory is managed, or must be, and it would take more than half
    /// of the budget.
    pub unsafe fn mlock(&self, at: usize, bytes: usize, flags: u32) -> Result<(), Errno> {
        // SAFETY: the program's own call.
        let plain = || unsafe { lock_plainly(at, bytes, flags) };
        let Some((start, end)) = span(at, bytes) else {
            return plain();
        };
        if !self.is_active() && !self.account.is_tight_with(0) {
            plain()?;
            hold_all(&mut self.state.lock(), start, end);
            return Ok(());
        }
        let pages = pages_of(start, end);
        let (parts, before) = {
            let mut state = self.state.lock();
            let before = state.locked(pages);
            let parts = hold_all(&mut state, start, end);
            let managed: usize = parts.iter().map(|part| part.end - part.start).sum();
            let budget = self.account.control().budget_bytes.load(Ordering::Relaxed);
            if managed as u64 > budget / 2 {
                lock_only(&mut state, pages, &before);
                return Err(Errno::ENOMEM);
            }
            (parts, before)
        };
        if flags & g::MLOCK_ONFAULT == 0 {
            for part in &parts {
                // SAFETY: a trapped call's thread holds no lock.
                unsafe { self.touch_for(part, part.prot & mem::PROT_WRITE != 0) };
            }
        }
        plain().inspect_err(|_| lock_only(&mut self.state.lock(), pages, &before))
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
        if let Some((start, end)) = span(at, bytes) {
            lock_only(&mut self.state.lock(), pages_of(start, end), &[]);
        }
        Ok(())
    }

    /// `mlockall(2)`: until memory is managed.
    ///
    /// # Errors
    /// As `mlockall(2)`; `ENOMEM` once memory is managed: all there is and will be in memory
    /// contradicts a budget.
    pub fn mlockall(&self, flags: u32) -> Result<(), Errno> {
        // Held, so that memory is not managed meanwhile.
        let _state = self.state.lock();
        if self.is_active() {
            return Err(Errno::ENOMEM);
        }
        // SAFETY: takes no pointer.
        unsafe { syscall!(g::__NR_mlockall, flags) }?;
        self.all_locked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// `munlockall(2)`.
    ///
    /// # Errors
    /// As `munlockall(2)`.
    pub fn munlockall(&self) -> Result<(), Errno> {
        let mut state = self.state.lock();
        // SAFETY: takes no pointer.
        unsafe { syscall!(g::__NR_munlockall) }?;
        self.all_locked.store(false, Ordering::Relaxed);
        lock_only(&mut state, PageRange::new(0, u64::MAX), &[]);
        Ok(())
    }

    /// Memory is about to be managed: undoes `mlockall`, or nothing could ever leave, but for what
    /// was locked by itself.
    pub(crate) fn unlock_all(&self, state: &State) {
        if !self.all_locked.swap(false, Ordering::Relaxed) {
            return;
        }
        // SAFETY: takes no pointer.
        let _ = unsafe { syscall!(g::__NR_munlockall) };
        for pages in state.locked(PageRange::new(0, u64::MAX)) {
            let (at, bytes) = (address_of(pages.start.0), pages.bytes() as usize);
            // SAFETY: the program locked it.
            let _ = unsafe { lock_plainly(at, bytes, 0) };
        }
        self.say(format_args!(
            "warning: the program's mlockall is undone: it needs more memory than --ram allows"
        ));
    }

    /// Unlocks a range that is about to move. Returns what was locked, for [`Kernel::lock_again`].
    pub(crate) fn unlock_for_move(&self, start: usize, end: usize) -> Vec<PageRange> {
        let pages = pages_of(start, end);
        let locked = self.state.lock().locked(pages);
        if !locked.is_empty() {
            // SAFETY: takes no contents away.
            let _ = unsafe { self.munlock(start, end - start) };
        }
        locked
    }

    /// Locks what [`Kernel::unlock_for_move`] returned, at its new place.
    pub(crate) fn lock_again(&self, locked: &[PageRange], from: usize, to: usize) {
        for pages in locked {
            let at = address_of(pages.start.0) - from + to;
            // SAFETY: the program locked it. More than fits now stays unlocked.
            let _ = unsafe { self.mlock(at, pages.bytes() as usize, 0) };
        }
    }
}

/// As the program called it: a filter of its own may allow one of the two only.
unsafe fn lock_plainly(at: usize, bytes: usize, flags: u32) -> Result<(), Errno> {
    // SAFETY: forwarded.
    unsafe {
        match flags {
            0 => syscall!(g::__NR_mlock, at, bytes),
            _ => syscall!(g::__NR_mlock2, at, bytes, flags),
        }
    }
    .map(drop)
}

/// Holds what is managed of a range, and returns it.
fn hold_all(state: &mut State, start: usize, end: usize) -> Vec<Region> {
    let parts: Vec<Region> = state.regions.within(start, end).collect();
    for part in &parts {
        state.hold(Holder::Lock, part.pages());
    }
    parts
}

/// Of `within`, `these` are locked and nothing else.
fn lock_only(state: &mut State, within: PageRange, these: &[PageRange]) {
    state.release(Holder::Lock, within);
    for pages in these {
        state.hold(Holder::Lock, *pages);
    }
}
