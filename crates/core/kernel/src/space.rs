//! The address space of an unmodified program: its memory calls, carried out with management.
//!
//! Each call does to Linux what the program asked, and to the automaton what that means.

use core::ops::Range;
use core::sync::atomic::Ordering;

use farpage_object::State as PageState;
use farpage_object::{PAGE_BYTES, PageIndex, PageRange};
use farpage_sys::file::Fd;
use farpage_sys::limits::{self, Resource};
use farpage_sys::linux::general::{
    MAP_GROWSDOWN, MAP_HUGETLB, MAP_LOCKED, MAP_POPULATE, MAP_STACK,
};
use farpage_sys::{Errno, mem, pagemap};

use crate::kernel::{Kernel, State};
use crate::layout::{self, LOW_AREA, PLACE_END, PLACE_START, manageable, shadow_of};
use crate::page_in::object_pages;
use crate::regions::{FROM_BELOW, OnFork, Region, address_of, pages_of};

const HUGE_PAGE: usize = 2 << 20;
/// Pages that leave together, for one pager, lie in one of these.
const CLUSTER: usize = 64 << 10;

/// What the start of a mapping of `bytes` bytes is a multiple of that has a pager of its own: no cluster has
/// two pagers.
pub(crate) fn apart(bytes: usize) -> usize {
    match bytes {
        HUGE_PAGE.. => HUGE_PAGE,
        _ => CLUSTER,
    }
}

/// The same of the program's memory, which has one pager. What is small or no multiple of a cluster follows the
/// mapping before it at once: Linux then has one mapping for both, as it has without us, and of its mappings there
/// are 65,530 at most.
pub(crate) fn together(bytes: usize) -> usize {
    match bytes {
        ..FROM_BELOW => PAGE_BYTES,
        ..HUGE_PAGE if !bytes.is_multiple_of(CLUSTER) => PAGE_BYTES,
        _ => apart(bytes),
    }
}
const FIXED: u32 = mem::MAP_FIXED | mem::MAP_FIXED_NOREPLACE;
/// Kinds of mapping that are left alone.
const SPECIAL: u32 = MAP_STACK | MAP_GROWSDOWN | MAP_HUGETLB;

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

/// Linux would not fork a process with a heap that is larger than RAM and swap, were the heap to have room there.
fn unreserve(start: usize, end: usize) {
    let prot = mem::PROT_READ | mem::PROT_WRITE;
    let flags = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | mem::MAP_FIXED | mem::MAP_NORESERVE;
    // If this fails the heap is as Linux has made it.
    // SAFETY: the program has just got these pages, and nobody has used them.
    let _ = unsafe { mem::map(start, end - start, prot, flags, Fd(-1), 0) };
}

impl Kernel {
    /// `mmap(2)`. Linux need have no room for what is managed: it is paged.
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
        let fixed = flags & FIXED != 0;
        let managed = anonymous
            && flags & SPECIAL == 0
            && (fixed || self.is_large(length))
            && (!fixed || layout::may_begin(self, at, at.saturating_add(length)));
        // The low 2 GiB hold the program, too, if it has a fixed address: Linux finds the room there.
        let placed_by_linux = fixed || flags & mem::MAP_32BIT != 0;
        let replaces = fixed && flags & mem::MAP_FIXED_NOREPLACE == 0;
        let plain = |flags| {
            // SAFETY: the program's own call.
            let map = || unsafe { mem::map(at, bytes, prot, flags, fd, offset) };
            if replaces {
                self.replace(at, end_of(at, bytes)?, map)
            } else {
                map()
            }
        };
        if !managed {
            return plain(flags);
        }
        let mut quiet = flags & !MAP_LOCKED | mem::MAP_NORESERVE;
        if self.is_active() || self.account.is_tight_with(length as u64) {
            // All at once is too much.
            quiet &= !MAP_POPULATE;
        }
        let start = if placed_by_linux {
            plain(quiet)?
        } else {
            match self.place(at, length, together(length), prot, quiet) {
                Some(start) => start,
                // The window is full: it stays unmanaged.
                None => return plain(flags),
            }
        };
        self.manage(start, start + length, prot, 0);
        if flags & MAP_LOCKED != 0 {
            // SAFETY: mapped just now.
            if let Err(errno) = unsafe { self.mlock(start, length, 0) } {
                // SAFETY: nobody knows it yet.
                unsafe { self.munmap(start, length) }?;
                return Err(if errno == Errno::ENOMEM {
                    Errno::EAGAIN
                } else {
                    errno
                });
            }
        }
        Ok(start)
    }

    fn is_large(&self, bytes: usize) -> bool {
        let threshold = &self.account.control().threshold_bytes;
        bytes as u64 >= threshold.load(Ordering::Relaxed) || self.small.load(Ordering::Relaxed)
    }

    /// Maps anonymous memory inside the window, at `hint` if it can be, else at a multiple of `align`.
    pub(crate) fn place(
        &self,
        hint: usize,
        bytes: usize,
        align: usize,
        prot: u32,
        flags: u32,
    ) -> Option<usize> {
        let hinted = hint.is_multiple_of(PAGE_BYTES)
            && (LOW_AREA.end..PLACE_END).contains(&hint)
            && manageable(hint, hint.saturating_add(bytes));
        if hinted && self.take_place(hint, bytes, prot, flags).is_ok() {
            return Some(hint);
        }
        let area = PLACE_START..layout::IN_THREAD_AREA.start;
        self.place_within(area, bytes, align, prot, flags)
    }

    /// Maps anonymous memory at a place in `area` where there is room.
    pub(crate) fn place_within(
        &self,
        area: Range<usize>,
        bytes: usize,
        align: usize,
        prot: u32,
        flags: u32,
    ) -> Option<usize> {
        let mut from = area.start;
        for attempt in 0..24 {
            let state = self.state.lock();
            let room = match attempt {
                0 | 1 if from == PLACE_START => state.regions.room(area.end, bytes, align),
                _ => None,
            };
            let room = room.or_else(|| state.regions.gap(from, area.end, bytes, align))?;
            drop(state);
            match self.take_place(room, bytes, prot, flags) {
                Ok(()) => return Some(room),
                // Another thread's just now, or somebody else's, of unknown size: look again, then
                // begin below and go further each time.
                Err(Errno::EEXIST) if attempt < 2 => {}
                Err(Errno::EEXIST) => from = room + bytes.max(HUGE_PAGE << attempt),
                Err(_) => return None,
            }
        }
        None
    }

    /// Maps anonymous memory at `at`: `EEXIST` where there is some, or its shadow. A shadow without
    /// memory is another kernel's of this process, which has unmapped the memory just now.
    pub(crate) fn take_place(
        &self,
        at: usize,
        bytes: usize,
        prot: u32,
        flags: u32,
    ) -> Result<(), Errno> {
        let flags = flags | mem::MAP_FIXED_NOREPLACE;
        // SAFETY: MAP_FIXED_NOREPLACE touches nothing that exists.
        unsafe { mem::map(at, bytes, prot, flags, Fd(-1), 0) }?;
        if !self.is_active() {
            return Ok(());
        }
        self.map_shadow(at, bytes).inspect_err(|errno| {
            // SAFETY: nobody knows it yet.
            let _ = unsafe { mem::unmap(at, bytes) };
            if *errno != Errno::EEXIST {
                self.say_unmanaged(at, at + bytes, *errno);
            }
        })
    }

    /// Starts to manage memory that was just mapped.
    pub(crate) fn manage(&self, start: usize, end: usize, prot: u32, key: i32) {
        let managed = self.manage_with(&mut self.state.lock(), start, end, prot, key);
        if let Err(errno) = managed {
            self.say_unmanaged(start, end, errno);
        }
    }

    /// The same with the lock held, for who has something to do before other threads find it managed.
    ///
    /// # Errors
    /// When it is not managed.
    pub(crate) fn manage_with(
        &self,
        state: &mut State,
        start: usize,
        end: usize,
        prot: u32,
        key: i32,
    ) -> Result<(), Errno> {
        let region = Region {
            start,
            end,
            prot,
            key,
            on_fork: OnFork::default(),
            source: self.temporary.clone(),
            covered: false,
            file: None,
        };
        state.regions.insert(region);
        let keyed = match key {
            0 => Ok(()),
            // SAFETY: mapped just now with this protection.
            key => unsafe { mem::protect_by_key(start, end - start, prot, key) },
        };
        let managed = match self.is_active() {
            true => keyed.and_then(|()| self.register(start, end)),
            false => keyed,
        };
        if let Err(errno) = managed {
            state.regions.remove(start, end);
            if self.is_active() && errno != Errno::EBUSY {
                // Else the shadow is another kernel's.
                // SAFETY: this kernel's own, and nothing lies there.
                let _ = unsafe { mem::unmap(shadow_of(start), end - start) };
            }
            return Err(errno);
        }
        if prot & mem::PROT_WRITE != 0 {
            self.account.demand((end - start) as i64);
        }
        Ok(())
    }

    /// It stays with Linux: better unmanaged than lost.
    fn say_unmanaged(&self, start: usize, end: usize, errno: Errno) {
        let has_limit = || limits::get(Resource::Data).is_ok_and(|limit| limit.now != u64::MAX);
        let remedy = match errno {
            Errno::ENOMEM if has_limit() => {
                "raise the limit on data (ulimit -d), which counts managed memory twice"
            }
            Errno::ENOMEM => "raise vm.max_map_count",
            _ => "this is a bug in farpage",
        };
        self.say(format_args!(
            "cannot manage {} bytes at {start:#x} ({errno}): they stay in memory; {remedy}",
            end - start
        ));
    }

    /// Makes `call`, which unmaps `start .. end` or maps over it. Whatever is managed there is gone
    /// when it succeeds. When it fails, what Linux has unmapped is gone, and the rest is as it was.
    ///
    /// # Errors
    /// As the call.
    pub fn replace<T>(
        &self,
        start: usize,
        end: usize,
        call: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut state = self.lock_settled(pages_of(start, end));
        let done = call();
        match done {
            Ok(_) => self.forget(&mut state, start, end),
            Err(_) => self.forget_unmapped(&mut state, start, end),
        }
        done
    }

    /// What was managed in `start .. end` and is not mapped any more is gone: `mremap` with `MREMAP_FIXED` unmaps its
    /// target before Linux knows whether there is memory enough.
    fn forget_unmapped(&self, state: &mut State, start: usize, end: usize) {
        if !self.granting.load(Ordering::Relaxed) {
            // A filter of the program's own may not know the call that asks.
            return;
        }
        let parts: alloc::vec::Vec<Region> = state.regions.within(start, end).collect();
        for part in parts {
            if mem::in_core(part.start, &mut [0]) == Err(Errno::ENOMEM) {
                self.forget(state, part.start, part.end);
            }
        }
    }

    /// Whatever is managed in `start .. end` is gone, and nothing there is busy.
    pub(crate) fn forget(&self, state: &mut State, start: usize, end: usize) {
        let parts: alloc::vec::Vec<Region> = state.regions.within(start, end).collect();
        for part in &parts {
            state.release_all(part.pages());
            state.unpin(part.pages());
            self.account.uncharge(state.windows.end(part.pages()));
            if part.source.temporary {
                self.discard(state, part);
            } else {
                // The contents are its pager's, and stay with it.
                self.drop_pages(state, part);
            }
            if part.prot & mem::PROT_WRITE != 0 {
                self.account.demand(-((part.end - part.start) as i64));
            }
            if self.is_active() {
                // SAFETY: the shadow is ours, and what lay there was discarded.
                let _ = unsafe { mem::unmap(shadow_of(part.start), part.end - part.start) };
            }
        }
        state.regions.remove(start, end);
    }

    /// The contents of a part of a region are gone for good.
    pub(crate) fn discard(&self, state: &mut State, part: &Region) {
        self.drop_pages(state, part);
        if self.is_active() {
            let pages = object_pages(&part.source, part.pages());
            part.source.pager.discard(part.source.object, pages);
        }
    }

    /// The program had Linux drop a page without a word to the kernel, which thinks that it is there:
    /// the kernel forgets it, too.
    pub(crate) fn was_dropped(&self, state: &mut State, page: PageIndex) -> bool {
        let there = matches!(
            state.pages.state(page),
            PageState::Resident | PageState::Clean
        );
        let at = address_of(page.0);
        let region = state.regions.find(at).filter(|_| there).cloned();
        let Some(region) = region.filter(|_| self.is_absent(at)) else {
            return false;
        };
        let part = Region {
            start: at,
            end: at + PAGE_BYTES,
            ..region
        };
        if part.source.temporary {
            self.discard(state, &part);
        } else {
            self.drop_pages(state, &part);
        }
        state.wire_held(PageRange::one(page));
        true
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
        // SAFETY: the program's own call.
        self.replace(at, end_of(at, bytes)?, || unsafe { mem::unmap(at, bytes) })?;
        self.account.announce();
        Ok(())
    }

    /// `mprotect(2)` and `pkey_mprotect(2)`; `key` is -1 when it stays as it is.
    ///
    /// # Safety
    /// As the call that the program made.
    ///
    /// # Errors
    /// As `pkey_mprotect(2)`.
    pub unsafe fn mprotect(
        &self,
        at: usize,
        bytes: usize,
        prot: u32,
        key: i32,
    ) -> Result<(), Errno> {
        // SAFETY: the program's own call.
        let protect =
            |from: usize, bytes: usize| unsafe { mem::protect_by_key(from, bytes, prot, key) };
        let Ok(end) = end_of(at, bytes) else {
            return protect(at, bytes);
        };
        let mut state = self.state.lock();
        let done = protect(at, bytes);
        let changed = match done {
            Ok(()) => end,
            // Linux goes from mapping to mapping, and leaves changed what it has changed.
            Err(_) => {
                let parts: alloc::vec::Vec<Region> = state.regions.within(at, end).collect();
                let edges = parts.iter().flat_map(|part| [part.start, part.end]);
                let mut from = at;
                for to in edges.chain([end]).filter(|to| *to > at) {
                    if from < to && protect(from, to - from).is_err() {
                        break;
                    }
                    from = to;
                }
                from
            }
        };
        if changed == at {
            return done;
        }
        let mut demand = 0;
        for part in state.regions.within(at, changed) {
            let bytes = (part.end - part.start) as i64;
            demand += bytes * i64::from(prot & mem::PROT_WRITE != 0);
            demand -= bytes * i64::from(part.prot & mem::PROT_WRITE != 0);
        }
        state.regions.change(at, changed, |region| {
            region.prot = prot;
            if key != -1 {
                region.key = key;
            }
        });
        drop(state);
        self.account.demand(demand);
        done
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
            let mut state = self.lock_settled(pages_of(wanted, before));
            let now = call(to);
            let end = now.next_multiple_of(PAGE_BYTES);
            // Linux refuses a heap that ends before it begins: what lies there is no heap.
            if end < before {
                self.forget(&mut state, end, before);
            }
            return now;
        }
        let now = call(to);
        let end = now.next_multiple_of(PAGE_BYTES);
        if end > before && layout::may_begin(self, before, end) {
            unreserve(before, end);
            self.manage(before, end, mem::PROT_READ | mem::PROT_WRITE, 0);
        }
        now
    }

    /// True when anything is managed, or noted to be when it must.
    pub fn has_memory(&self) -> bool {
        self.state.lock().regions.iter().next().is_some()
    }

    /// True when the tree's demand has come near the budget and this task's memory is not managed
    /// yet: call [`Kernel::activate`].
    pub fn must_activate(&self) -> bool {
        !self.is_active() && self.account.is_tight_with(0)
    }

    /// Starts to manage what was only noted so far. The embedder starts a handler and the page-out
    /// thread when this returns `true` (it was not active before). A mapping that cannot be managed
    /// stays with Linux.
    ///
    /// # Errors
    /// When userfaultfd cannot be had; nothing has changed then.
    pub fn activate(&self) -> Result<bool, Errno> {
        let mut state = self.state.lock();
        if self.is_active() {
            return Ok(false);
        }
        self.open()?;
        self.unlock_all(&state);
        self.bring_in_held(&state);
        let regions: alloc::vec::Vec<Region> = state.regions.iter().cloned().collect();
        for region in &regions {
            if let Err(errno) = self.adopt(&mut state, region) {
                self.forget(&mut state, region.start, region.end);
                self.say_unmanaged(region.start, region.end, errno);
            }
        }
        self.active.store(true, Ordering::Release);
        drop(state);
        let control = self.account.control();
        control.pressure.fetch_add(1, Ordering::AcqRel);
        farpage_sys::futex::wake(&control.pressure, i32::MAX as u32);
        Ok(true)
    }

    /// From now on Linux fills no block by itself, and what it was given is taken back: the calls
    /// that the program makes about its memory then need userfaultfd no more, but for `mremap`.
    pub fn stop_granting(&self) {
        let mut state = self.state.lock();
        self.granting.store(false, Ordering::Relaxed);
        let regions: alloc::vec::Vec<Region> = state.regions.iter().cloned().collect();
        for region in &regions {
            // What cannot be taken back stays granted.
            let _ = self.take_granted(&mut state, region.start, region.end);
        }
    }

    /// Registers a region that was not managed before and notes what Linux has of it.
    fn adopt(&self, state: &mut State, region: &Region) -> Result<(), Errno> {
        let (start, end) = (region.start, region.end);
        let present = self
            .register(start, end)
            .and_then(|()| self.present(start, end));
        let present = present.inspect_err(|_| self.let_go(start, end))?;
        for run in present {
            state.pages.filled(run, farpage_object::Filled::Zero);
            self.account.charge_anyway(run.pages());
        }
        Ok(())
    }

    /// Linux answers the faults of a range again.
    fn let_go(&self, start: usize, end: usize) {
        // SAFETY: the automaton knows of no page there that is not in the program.
        let _ = unsafe { self.uffd().unregister(start, end - start) };
    }

    /// The runs of pages of a range that Linux has.
    pub(crate) fn present(
        &self,
        start: usize,
        end: usize,
    ) -> Result<alloc::vec::Vec<PageRange>, Errno> {
        let mut present = alloc::vec::Vec::new();
        pagemap::scan(self.pagemap(), start, end, |from, to| {
            present.push(pages_of(from, to));
        })?;
        Ok(present)
    }

    /// Takes granted parts of `start .. end` back: what Linux has of them is resident now, and what
    /// is absent stays so until a fault says otherwise.
    ///
    /// # Errors
    /// As userfaultfd's registration. What could not be taken back is still granted.
    pub(crate) fn take_granted(
        &self,
        state: &mut State,
        start: usize,
        end: usize,
    ) -> Result<(), Errno> {
        let pages = pages_of(start, end);
        let granted: alloc::vec::Vec<PageRange> =
            state.pages.runs(pages, PageState::Granted).collect();
        for run in granted {
            let (from, to) = (address_of(run.start.0), address_of(run.end.0));
            let present = self
                .register(from, to)
                .and_then(|()| self.present(from, to));
            let present = present.inspect_err(|_| self.let_go(from, to))?;
            let there = |page| present.iter().any(|run| run.contains(page));
            let absent = state.pages.ungranted(run, there);
            self.account.uncharge(absent);
        }
        Ok(())
    }
}
