//! `mremap` of an unmodified program: pages are renamed, never copied if it can be helped.

use farpage_object::State as PageState;
use farpage_object::{PAGE_BYTES, PageRange};
use farpage_sys::linux::general::{MREMAP_FIXED, MREMAP_MAYMOVE};
use farpage_sys::{Errno, mem};

use crate::kernel::{Kernel, State};
use crate::layout::may_begin;
use crate::page_in::object_pages;
use crate::regions::{Region, address_of, pages_of};
use crate::space::{end_of, together, whole_pages};

const OPEN: u32 = mem::PROT_READ | mem::PROT_WRITE;

/// Protects memory as a region.
///
/// # Safety
/// As for [`mem::protect`].
unsafe fn protect(region: &Region, start: usize, end: usize) -> Result<(), Errno> {
    let key = if region.key == 0 { -1 } else { region.key };
    // SAFETY: forwarded.
    unsafe { mem::protect_by_key(start, end - start, region.prot, key) }
}

/// Lets memory that is protected as a region be read and written.
///
/// # Safety
/// As for [`mem::protect`].
unsafe fn open(region: &Region, start: usize, end: usize) -> Result<(), Errno> {
    let key = if region.key == 0 { -1 } else { 0 };
    // SAFETY: forwarded.
    unsafe { mem::protect_by_key(start, end - start, OPEN, key) }
}

impl Kernel {
    /// `mremap(2)`.
    ///
    /// # Safety
    /// As the call that the program made.
    ///
    /// # Errors
    /// As `mremap(2)`; `MREMAP_DONTUNMAP` of managed memory is refused with `EINVAL`.
    pub unsafe fn mremap(
        &self,
        at: usize,
        old: usize,
        new: usize,
        flags: u32,
        target: usize,
    ) -> Result<usize, Errno> {
        let new = whole_pages(new)?;
        let region = self.state.lock().regions.find(at).cloned();
        let Some(region) = region else {
            // SAFETY: the program's own call.
            let map = || unsafe { mem::remap(at, old, new, flags, target) };
            if flags & MREMAP_FIXED == 0 {
                return match new < old {
                    true => self.replace(at + new, end_of(at, old)?, map),
                    false => map(),
                };
            }
            if self.has_managed(at, at.saturating_add(old)) {
                // Several mappings at a time, of which some are managed.
                return Err(Errno::EFAULT);
            }
            return self.replace(target, end_of(target, new)?, map);
        };
        let end = end_of(at, old)?;
        if end > region.end {
            return Err(Errno::EFAULT);
        }
        let fixed = flags & MREMAP_FIXED != 0;
        let nowhere = target.checked_add(new).is_none_or(|goal| {
            !target.is_multiple_of(PAGE_BYTES)
                || flags & MREMAP_MAYMOVE == 0
                || target < end && at < goal
        });
        if flags & !(MREMAP_MAYMOVE | MREMAP_FIXED) != 0
            || at.checked_add(new).is_none()
            || fixed && nowhere
        {
            return Err(Errno::EINVAL);
        }
        // What follows asks Linux for something else. If the program has sealed the memory, this says so, and
        // changes nothing.
        // SAFETY: it has this protection already.
        unsafe { mem::protect(at, end - at, region.prot) }?;
        if !fixed {
            if at + new <= end {
                if at + new < end {
                    // SAFETY: the program gives the tail up.
                    unsafe { self.munmap(at + new, end - (at + new)) }?;
                }
                return Ok(at);
            }
            if self.grow_in_place(&region, end, at + new) {
                return Ok(at);
            }
            if flags & MREMAP_MAYMOVE == 0 {
                return Err(Errno::ENOMEM);
            }
        }
        // SAFETY: forwarded.
        unsafe { self.move_region(&region, (at, end), new, flags, target) }
    }

    fn has_managed(&self, start: usize, end: usize) -> bool {
        let state = self.state.lock();
        state.regions.within(start, end).next().is_some()
    }

    fn grow_in_place(&self, region: &Region, end: usize, new_end: usize) -> bool {
        let flags = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | mem::MAP_NORESERVE;
        if end != region.end || !may_begin(self, end, new_end) {
            return false;
        }
        let grown = self.take_place(end, new_end - end, region.prot, flags);
        if grown.is_ok() {
            self.manage(end, new_end, region.prot, region.key);
            self.inherit_on_fork(region, end, new_end);
        }
        grown.is_ok()
    }

    unsafe fn move_region(
        &self,
        region: &Region,
        (at, end): (usize, usize),
        new: usize,
        flags: u32,
        target: usize,
    ) -> Result<usize, Errno> {
        let map = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | mem::MAP_NORESERVE;
        let is_fixed = flags & MREMAP_FIXED != 0;
        let to = if is_fixed {
            let fixed = map | mem::MAP_FIXED;
            self.replace(target, target + new, || {
                let nowhere = farpage_sys::file::Fd(-1);
                // SAFETY: the program's own wish.
                unsafe { mem::map(target, new, region.prot, fixed, nowhere, 0) }
            })?
        } else {
            self.place(0, new, together(new), region.prot, map)
                .ok_or(Errno::ENOMEM)?
        };
        let kept = (end - at).min(new);
        // Linux moves no page between locked and other memory.
        let locked = self.unlock_for_move(at, end);
        let rest = match self.carry_all(region, at, kept, (to, to + new), is_fixed) {
            Ok(rest) => rest,
            Err(errno) => {
                self.lock_again(&locked, at, at);
                // SAFETY: nothing was moved there.
                unsafe { self.munmap(to, new) }?;
                return Err(errno);
            }
        };
        if rest < end {
            // What cannot be unmapped stays, without contents: the move itself is done.
            // SAFETY: everything that counts was moved.
            let _ = unsafe { self.munmap(rest, end - rest) };
        }
        self.inherit_on_fork(region, to, to + new);
        self.lock_again(&locked, at, to);
        Ok(to)
    }

    /// Moves `bytes` bytes from `at` to the begin of memory that was mapped just now and is not managed yet.
    /// Returns where the old place still begins: what is not there any more can be another thread's by now.
    fn carry_all(
        &self,
        region: &Region,
        at: usize,
        bytes: usize,
        (to, goal): (usize, usize),
        is_fixed: bool,
    ) -> Result<usize, Errno> {
        let is_managed = may_begin(self, to, goal);
        let mut state = self.lock_settled(pages_of(at, at + bytes));
        // The lock is held until all is there. A thread that faults beside it, in a mapping that it continues,
        // would bring in pages of it.
        if is_managed {
            let managed = self.manage_with(&mut state, to, goal, region.prot, region.key);
            managed.map_err(|_| Errno::ENOMEM)?;
        } else {
            // SAFETY: mapped just now for this.
            unsafe { protect(region, to, goal) }?;
        }
        if self.is_active() && !is_managed {
            drop(state);
            self.carry_out(region, at, bytes, to)?;
            return Ok(at);
        }
        if self.is_active() {
            if is_fixed {
                // Who has touched a target of the program's choice since it was mapped finds what is moved there.
                // SAFETY: nothing of it is anybody's yet.
                let _ = unsafe { mem::advise(to, goal - to, mem::MADV_DONTNEED) };
            }
            self.carry(&mut state, region, at, bytes, to)?;
            return Ok(at);
        }
        let fixed = MREMAP_MAYMOVE | MREMAP_FIXED;
        // SAFETY: the target was mapped just now for this.
        unsafe { mem::remap(at, bytes, bytes, fixed, to) }?;
        self.forget(&mut state, at, at + bytes);
        Ok(at + bytes)
    }

    /// Copies to a place of the program's choice where no memory is managed.
    fn carry_out(&self, region: &Region, at: usize, bytes: usize, to: usize) -> Result<(), Errno> {
        let key = if region.key == 0 { -1 } else { 0 };
        // SAFETY: the program gives this range up.
        unsafe { self.mprotect(at, bytes, OPEN, key) }?;
        // SAFETY: mapped just now for this.
        unsafe { open(region, to, to + bytes) }?;
        // SAFETY: both are mapped and readable and writable, and do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(at as *const u8, to as *mut u8, bytes) };
        // SAFETY: as the program has it.
        unsafe { protect(region, to, to + bytes) }
    }

    /// Moves the pages of `from .. from + bytes`, of which none is busy, to `to`, where all are absent. Linux moves
    /// and copies nothing that may not be read and written: meanwhile both may be.
    fn carry(
        &self,
        state: &mut State,
        region: &Region,
        from: usize,
        bytes: usize,
        to: usize,
    ) -> Result<(), Errno> {
        let (end, goal) = (from + bytes, to + bytes);
        let is_open = region.prot & OPEN == OPEN && region.key == 0;
        if is_open {
            return self.carry_pages(state, region, from, bytes, to);
        }
        // SAFETY: the program gives the one up, and does not know the other yet.
        let opened = unsafe { open(region, to, goal).and_then(|()| open(region, from, end)) };
        let carried = opened.and_then(|()| self.carry_pages(state, region, from, bytes, to));
        if carried.is_err() {
            // SAFETY: as the program had it.
            let _ = unsafe { protect(region, from, end) };
        }
        // SAFETY: as the program has it.
        let protected = unsafe { protect(region, to, goal) };
        carried?;
        // Nobody could be told now: what was moved is not there any more.
        protected.unwrap_or_else(|errno| {
            let what = format_args!("cannot protect the memory at {to:#x} again");
            self.end_for(what, errno)
        });
        Ok(())
    }

    fn carry_pages(
        &self,
        state: &mut State,
        region: &Region,
        from: usize,
        bytes: usize,
        to: usize,
    ) -> Result<(), Errno> {
        let (old, new) = (pages_of(from, from + bytes), pages_of(to, to + bytes));
        self.take_granted(state, from, from + bytes)?;
        self.bring_all_back(state, old);
        let source = &region.source;
        let (asked, start) = (object_pages(source, old), object_pages(source, new).start);
        if source.pager.rename(source.object, asked, start).is_err() {
            return Err(Errno::ENOMEM);
        }
        let clean: alloc::vec::Vec<PageRange> = state.pages.runs(old, PageState::Clean).collect();
        for run in clean {
            // What is moved loses its write-protection: from now on it counts as dirty.
            let at = address_of(run.start.0);
            // SAFETY: told to the automaton right below.
            let _ = unsafe { self.uffd().protect(at, run.bytes() as usize, false) };
            state.pages.dirtied(run);
            let moved = run.start.0 - old.start.0 + new.start.0;
            let moved = PageRange::new(moved, moved + run.pages());
            source
                .pager
                .discard(source.object, object_pages(source, moved));
        }
        let present: alloc::vec::Vec<PageRange> =
            state.pages.runs(old, PageState::Resident).collect();
        for run in present {
            let at = address_of(run.start.0);
            self.carry_run(at, to + (at - from), run.bytes() as usize);
        }
        state.pages.rename(old, new.start);
        Ok(())
    }

    fn carry_run(&self, from: usize, to: usize, bytes: usize) {
        // SAFETY: both ranges are the program's; the target is absent and registered.
        let moved = unsafe { self.uffd().move_pages(to, from, bytes) };
        let mut done = moved.bytes;
        while done < bytes {
            // SAFETY: as above.
            let one = unsafe { self.uffd().move_pages(to + done, from + done, PAGE_BYTES) };
            let is_moved = match one.stopped {
                None => true,
                // It was moved and not counted: it is there, where nothing was.
                Some(Errno::EEXIST) => {
                    let there = self.present(from + done, from + done + PAGE_BYTES);
                    there.is_ok_and(|there| there.is_empty())
                }
                Some(_) => false,
            };
            if !is_moved {
                // SAFETY: as above; a page that cannot be moved is copied.
                let copied = unsafe { self.uffd().copy(to + done, from + done, PAGE_BYTES, false) };
                if let Some(errno) = copied.stopped {
                    let what = format_args!("cannot move the memory at {from:#x}");
                    self.end_for(what, errno)
                }
            }
            done += PAGE_BYTES;
        }
    }

    pub(crate) fn bring_all_back(&self, state: &mut State, pages: PageRange) {
        for aside in [PageState::Aside, PageState::Spare] {
            let runs: alloc::vec::Vec<PageRange> = state.pages.runs(pages, aside).collect();
            for page in runs.iter().flat_map(|run| run.iter()) {
                let protected = aside == PageState::Spare || state.pages.is_locked(page);
                self.bring_back(address_of(page.0), protected);
                state.pages.restored(PageRange::one(page));
            }
        }
    }
}
