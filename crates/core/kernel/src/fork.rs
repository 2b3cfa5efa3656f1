//! fork: the child gets a whole copy, also of pages that are not in the program.
//!
//! Everything the kernel keeps lies in ordinary private memory, so Linux copies it with the
//! program: the page table, the compressed tier, pages aside. Before that, nothing may be on its way.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use farpage_object::PageRange;
use farpage_object::State as PageState;
use farpage_sys::{Errno, file};

use crate::kernel::{Kernel, State, StateGuard};
use crate::regions::{OnFork, Region, address_of};

impl Kernel {
    /// Waits until nothing is on its way and holds everything still. Ends with
    /// [`Kernel::after_fork_in_parent`] or [`Kernel::after_fork_in_child`].
    pub fn before_fork(&self) {
        loop {
            let seen = self.settled.seen();
            let mut state = self.state.lock();
            state.frozen = true;
            if state.in_flight == 0 {
                self.check_account(&state);
                core::mem::forget(state);
                return;
            }
            drop(state);
            self.settled.wait(seen, Some(100_000_000));
        }
    }

    /// In the parent, whether or not there is a child: go on.
    ///
    /// # Safety
    /// Only after [`Kernel::before_fork`] on the same thread.
    pub unsafe fn after_fork_in_parent(&self) {
        // SAFETY: `before_fork` left the mutex held by this thread, with a whole value.
        unsafe { self.state.reset() };
        self.state.lock().frozen = false;
        self.settled.notify();
    }

    /// In the child, which has one thread: becomes the kernel of the copy, with the account of
    /// `slot`. The embedder starts handlers and page-out anew when [`Kernel::is_active`].
    ///
    /// # Safety
    /// Only after [`Kernel::before_fork`] in the parent, before the child does anything else.
    ///
    /// # Errors
    /// When userfaultfd cannot be had again: the child cannot live.
    pub unsafe fn after_fork_in_child(&self, slot: usize) -> Result<(), Errno> {
        // SAFETY: the holder is this thread's twin; the value is whole.
        unsafe { self.state.reset() };
        self.handlers.store(0, Ordering::Relaxed);
        self.watches.reset();
        self.page_out_rests.store(false, Ordering::Relaxed);
        let mut state = self.state.lock();
        // By this task's own copy: the parent goes on, and its account with it.
        self.account.inherit(slot, state.pages.charged_pages());
        self.account.demand(state.regions.demand_bytes() as i64);
        state.frozen = false;
        // Locks and the calls of other threads are not inherited; of what a device has pinned a child
        // gets a copy.
        state.release_uninherited();
        state.unpin(PageRange::new(0, u64::MAX));
        self.all_locked.store(false, Ordering::Relaxed);
        self.drop_uninherited(&mut state);
        // What is open is of the parent's memory.
        let parents = [self.uffd().0, self.take_pagemap()];
        if !self.is_active() {
            return Ok(());
        }
        // Closed first: a program may have used all descriptor numbers but these.
        parents.into_iter().for_each(file::close);
        self.open()?;
        self.register_all(&state)
    }

    /// Linux has left out of the child, or emptied, what the program wanted so.
    fn drop_uninherited(&self, state: &mut State) {
        let all = state.regions.iter();
        let marked: Vec<Region> = all
            .filter(|region| region.on_fork != OnFork::default())
            .cloned()
            .collect();
        for region in marked {
            if region.on_fork.left_out {
                self.forget(state, region.start, region.end);
            } else {
                self.discard(state, &region);
                state.wire_held(region.pages());
            }
        }
    }

    /// Registers every region but for its granted runs, and protects what is clean or locked.
    fn register_all(&self, state: &StateGuard<'_>) -> Result<(), Errno> {
        for region in state.regions.iter() {
            self.register_ungranted(state, region)?;
        }
        Ok(())
    }

    fn register_ungranted(&self, state: &StateGuard<'_>, region: &Region) -> Result<(), Errno> {
        let pages = region.pages();
        let mut from = pages.start.0;
        let mut granted = state.pages.runs(pages, PageState::Granted);
        loop {
            let next = granted.next();
            let until = next.map_or(pages.end.0, |run| run.start.0);
            if from < until {
                self.register(address_of(from), address_of(until))?;
            }
            match next {
                Some(run) => from = run.end.0,
                None => break,
            }
        }
        for run in state.pages.protected_runs(pages) {
            let at = address_of(run.start.0);
            // SAFETY: these pages are write-protected by definition; the copy lost that.
            unsafe { self.uffd().protect(at, run.bytes() as usize, true) }?;
        }
        Ok(())
    }
}
