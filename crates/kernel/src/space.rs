//! The address space of an unmodified program: its memory calls, carried out with management.
//!
//! Each call does to Linux what the program asked, and to the automaton what that means.

use core::sync::atomic::Ordering;

use farpage_abi::{PAGE_BYTES, PageRange};
use farpage_object::State as PageState;
use farpage_sys::file::Fd;
use farpage_sys::linux::general::{MAP_GROWSDOWN, MAP_HUGETLB, MAP_POPULATE, MAP_STACK};
use farpage_sys::{Errno, mem, pagemap};

use crate::fault::object_pages;
use crate::kernel::{Kernel, State};
use crate::layout::{LOW_AREA, PLACE_END, PLACE_START, manageable, shadow_of};
use crate::regions::{Region, address_of, pages_of};

const HUGE_PAGE: usize = 2 << 20;
/// Smaller mappings start at multiples of this, so that no cluster has two owners.
const SMALL_ALIGN: usize = 64 << 10;
const MAP_32BIT: u32 = 0x40;
const FIXED: u32 = mem::MAP_FIXED | mem::MAP_FIXED_NOREPLACE;
/// Kinds of mapping that are left alone.
const SPECIAL: u32 = MAP_STACK | MAP_GROWSDOWN | MAP_HUGETLB | MAP_32BIT;

/// A whole number of pages that holds `bytes`.
pub(crate) fn whole_pages(bytes: usize) -> Result<usize, Errno> {
    bytes
        .checked_next_multiple_of(PAGE_BYTES)
        .filter(|bytes| *bytes > 0)
        .ok_or(Errno::EINVAL)
}

/// The end of `at .. at + bytes`, in whole pages.
pub(crate) fn end_of(at: usize, bytes: usize) -> Result<usize, Errno> {
    if !at.is_multiple_of(PAGE_BYTES) {
        return Err(Errno::EINVAL);
    }
    at.checked_add(whole_pages(bytes)?).ok_or(Errno::EINVAL)
}

impl Kernel {
    /// `mmap(2)`.
    ///
    /// # Safety
    /// As the call that the program made.
    ///
    /// # Errors
    /// As `mmap(2)`.
    pub unsafe fn mmap(
        &self,
        at: usize,
        bytes: usize,
        prot: u32,
        flags: u32,
        fd: Fd,
        offset: u64,
    ) -> Result<usize, Errno> {
        let length = whole_pages(bytes)?;
        let anonymous = flags & mem::MAP_ANONYMOUS != 0 && flags & mem::MAP_PRIVATE != 0;
        let threshold = self
            .account
            .control()
            .threshold_bytes
            .load(Ordering::Relaxed);
        let fixed = flags & FIXED != 0;
        let managed = anonymous
            && flags & SPECIAL == 0
            && (fixed || length as u64 >= threshold)
            && (!fixed || manageable(at, at.saturating_add(length)));
        if fixed && flags & mem::MAP_FIXED_NOREPLACE == 0 {
            self.forget(at, end_of(at, bytes)?);
        }
        if !managed {
            // SAFETY: the program's own call.
            return unsafe { mem::map(at, bytes, prot, flags, fd, offset) };
        }
        let flags = if self.is_active() {
            flags & !MAP_POPULATE
        } else {
            flags
        };
        let start = if fixed {
            // SAFETY: the program's own call.
            unsafe { mem::map(at, length, prot, flags, fd, offset) }?
        } else {
            match self.place(at, length, prot, flags) {
                Some(start) => start,
                // SAFETY: the program's own call; the window is full, so it stays unmanaged.
                None => return unsafe { mem::map(at, bytes, prot, flags, fd, offset) },
            }
        };
        self.manage(start, start + length, prot);
        Ok(start)
    }

    /// Maps anonymous memory inside the window, at `hint` if it can be.
    pub(crate) fn place(&self, hint: usize, bytes: usize, prot: u32, flags: u32) -> Option<usize> {
        let flags = flags | mem::MAP_FIXED_NOREPLACE;
        // SAFETY: MAP_FIXED_NOREPLACE touches nothing that exists.
        let map = |at| unsafe { mem::map(at, bytes, prot, flags, Fd(-1), 0) };
        let hinted = hint.is_multiple_of(PAGE_BYTES)
            && (LOW_AREA.end..PLACE_END).contains(&hint)
            && manageable(hint, hint.saturating_add(bytes));
        if hinted && map(hint).is_ok() {
            return Some(hint);
        }
        let align = if bytes >= HUGE_PAGE {
            HUGE_PAGE
        } else {
            SMALL_ALIGN
        };
        let mut from = PLACE_START;
        for attempt in 0..24 {
            let gap = self
                .state
                .lock()
                .regions
                .gap(from, PLACE_END, bytes, align)?;
            match map(gap) {
                Ok(at) => return Some(at),
                // Somebody else's, of unknown size: go further each time.
                Err(Errno::EEXIST) => from = gap + bytes.max(HUGE_PAGE << attempt),
                Err(_) => return None,
            }
        }
        None
    }

    /// Starts to manage memory that was just mapped.
    pub(crate) fn manage(&self, start: usize, end: usize, prot: u32) {
        let region = Region {
            start,
            end,
            prot,
            source: self.temporary.clone(),
        };
        let mut state = self.state.lock();
        state.regions.insert(region);
        if self.is_active()
            && let Err(errno) = self.register(start, end)
        {
            // It stays with Linux: better unmanaged than lost.
            state.regions.remove(start, end);
            drop(state);
            self.say(format_args!(
                "cannot manage {} bytes at {start:#x} ({errno}): they stay in memory; raise \
                 vm.max_map_count if this is ENOMEM",
                end - start
            ));
            return;
        }
        drop(state);
        if prot & mem::PROT_WRITE != 0 {
            self.account.demand((end - start) as i64);
        }
    }

    /// Whatever is managed in `start .. end` is gone: the program unmaps it or maps over it.
    fn forget(&self, start: usize, end: usize) {
        let mut state = self.lock_settled(pages_of(start, end));
        let parts: alloc::vec::Vec<Region> = state.regions.within(start, end).collect();
        for part in &parts {
            if part.source.temporary {
                self.discard(&mut state, part);
            } else {
                // The contents are its pager's, and stay with it.
                self.drop_pages(&mut state, part);
            }
            if part.prot & mem::PROT_WRITE != 0 {
                self.account.demand(-((part.end - part.start) as i64));
            }
        }
        state.regions.remove(start, end);
        drop(state);
        if self.is_active() {
            for part in &parts {
                // SAFETY: the shadow is ours, and what lay there was discarded.
                let _ = unsafe { mem::unmap(shadow_of(part.start), part.end - part.start) };
            }
        }
    }

    /// The contents of a part of a region are gone for good.
    pub(crate) fn discard(&self, state: &mut State, part: &Region) {
        self.drop_pages(state, part);
        if self.is_active() {
            let pages = object_pages(&part.source, part.pages());
            part.source.pager.discard(part.source.object, pages);
        }
    }

    /// The kernel forgets the pages of a part of a region, without a word to their pager.
    fn drop_pages(&self, state: &mut State, part: &Region) {
        let held = state.pages.discard(part.pages());
        if held.aside {
            // SAFETY: the automaton has forgotten these pages.
            unsafe { crate::kernel::drop_shadow(part.start, part.end - part.start) };
        }
        self.account.uncharge(held.charged);
    }

    /// `munmap(2)`.
    ///
    /// # Safety
    /// As the call that the program made.
    ///
    /// # Errors
    /// As `munmap(2)`.
    pub unsafe fn munmap(&self, at: usize, bytes: usize) -> Result<(), Errno> {
        self.forget(at, end_of(at, bytes)?);
        // SAFETY: the program's own call.
        unsafe { mem::unmap(at, bytes) }?;
        self.account.announce();
        Ok(())
    }

    /// `mprotect(2)`.
    ///
    /// # Safety
    /// As the call that the program made.
    ///
    /// # Errors
    /// As `mprotect(2)`.
    pub unsafe fn mprotect(&self, at: usize, bytes: usize, prot: u32) -> Result<(), Errno> {
        if bytes == 0 {
            return Ok(());
        }
        let end = end_of(at, bytes)?;
        let mut state = self.state.lock();
        // SAFETY: the program's own call.
        unsafe { mem::protect(at, bytes, prot) }?;
        let parts: alloc::vec::Vec<Region> = state.regions.within(at, end).collect();
        let mut demand = 0;
        for part in parts {
            let bytes = (part.end - part.start) as i64;
            demand += bytes * i64::from(prot & mem::PROT_WRITE != 0);
            demand -= bytes * i64::from(part.prot & mem::PROT_WRITE != 0);
            state.regions.remove(part.start, part.end);
            state.regions.insert(Region { prot, ..part });
        }
        drop(state);
        self.account.demand(demand);
        Ok(())
    }

    /// `brk(2)`: returns the new end of the heap, or the old one when it cannot be moved there.
    ///
    /// # Safety
    /// As the call that the program made.
    pub unsafe fn brk(&self, to: usize) -> usize {
        let call = |to: usize| {
            // SAFETY: the program's own call.
            unsafe { farpage_sys::syscall!(farpage_sys::linux::general::__NR_brk, to) }.unwrap_or(0)
        };
        let before = call(0).next_multiple_of(PAGE_BYTES);
        let wanted = to.next_multiple_of(PAGE_BYTES);
        if to != 0 && wanted < before {
            self.forget(wanted, before);
        }
        let now = call(to);
        let end = now.next_multiple_of(PAGE_BYTES);
        if end > before && manageable(before, end) {
            self.manage(before, end, mem::PROT_READ | mem::PROT_WRITE);
        } else if to != 0 && end > wanted && manageable(wanted, end) {
            self.manage(wanted, end, mem::PROT_READ | mem::PROT_WRITE);
        }
        now
    }

    /// True when the tree's demand has come near the budget and this task's memory is not managed
    /// yet: call [`Kernel::activate`].
    pub fn must_activate(&self) -> bool {
        !self.is_active() && self.account.is_tight()
    }

    /// Starts to manage what was only noted so far. The embedder starts a handler and the page-out
    /// thread when this returns `true` (it was not active before).
    ///
    /// # Errors
    /// When userfaultfd cannot be had.
    pub fn activate(&self) -> Result<bool, Errno> {
        let mut state = self.state.lock();
        if self.is_active() {
            return Ok(false);
        }
        self.open()?;
        let regions: alloc::vec::Vec<Region> = state.regions.iter().cloned().collect();
        for region in &regions {
            self.register(region.start, region.end)?;
            self.adopt(&mut state, region)?;
        }
        self.active.store(true, Ordering::Release);
        drop(state);
        let control = self.account.control();
        control.pressure.fetch_add(1, Ordering::AcqRel);
        farpage_sys::futex::wake(&control.pressure, i32::MAX as u32);
        Ok(true)
    }

    /// Notes what Linux has of a region that was not managed before.
    fn adopt(&self, state: &mut State, region: &Region) -> Result<(), Errno> {
        let mut found = 0;
        pagemap::scan(self.pagemap(), region.start, region.end, |from, to| {
            let pages = pages_of(from, to);
            state.pages.filled(pages, farpage_object::Filled::Zero);
            found += pages.pages();
        })?;
        self.account.charge_anyway(found);
        Ok(())
    }

    /// What Linux has of granted pages of a part that was registered again is resident now.
    pub(crate) fn settle_granted(&self, state: &mut State, part: &Region) -> Result<(), Errno> {
        let granted: alloc::vec::Vec<PageRange> =
            state.pages.runs(part.pages(), PageState::Granted).collect();
        for run in granted {
            let mut present = alloc::vec::Vec::new();
            let (from, to) = (address_of(run.start.0), address_of(run.end.0));
            pagemap::scan(self.pagemap(), from, to, |a, b| {
                present.push(pages_of(a, b))
            })?;
            let there = |page| present.iter().any(|run| run.contains(page));
            let absent = state.pages.ungranted(run, there);
            self.account.uncharge(absent);
        }
        Ok(())
    }

    /// Takes granted parts of `start .. end` back, so that what is absent there stays absent until
    /// a fault says otherwise.
    pub(crate) fn ungrant(&self, state: &State, start: usize, end: usize) -> Result<(), Errno> {
        for run in state.pages.runs(pages_of(start, end), PageState::Granted) {
            self.register(address_of(run.start.0), address_of(run.end.0))?;
        }
        Ok(())
    }
}
