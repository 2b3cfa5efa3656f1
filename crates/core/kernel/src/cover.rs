//! Objects whose pages Linux has already, in its page cache: they are mapped there as they are, and
//! no fault of theirs comes here, until somebody may change them.
//!
//! One that fits into the budget is covered as a whole, and not charged: Linux takes its pages back by
//! itself. Of a larger one the parts that are read in order are covered, window by window, and each
//! is charged until it leaves.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use farpage_object::{PAGE_BYTES, PageIndex, PageRange};
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general::{MADV_RANDOM, MREMAP_FIXED, MREMAP_MAYMOVE};
use farpage_sys::{Errno, mem, pthread};

use crate::fault::Stall;
use crate::kernel::{Kernel, State};
use crate::regions::{File, Region, address_of, pages_of};

/// Pages of a run from which on it is worth a window: until then they are copied.
const WINDOW_MIN: u64 = 32;
/// Pages of the largest window.
const WINDOW_MAX: u64 = 8192;
/// Pages of a window that is long: Linux reads around it and beyond it as it likes. Those who read pieces of a
/// file here and there would have no use for that.
const LONG: u64 = 512;
/// Pages that Linux reads ahead at a time; of more it might leave out the end.
const READ_PAGES: u64 = 32;
/// Windows that may be there: each takes one of the mappings that Linux allows a process, and another
/// behind it.
const WINDOWS_MAX: usize = 8192;
/// The part of the budget that a window takes at most, and that leaves together.
const PART: u64 = 8;
/// How often room is made for a window that another thread then takes.
const TRIES: u32 = 4;

impl Kernel {
    /// Has the pages of `fd` from `offset` on seen at `start .. end`, a region none of whose pages
    /// is there, for reading.
    ///
    /// # Errors
    /// `EOPNOTSUPP` before Linux 6.10; `EBUSY` when pages were brought in; as `mmap(2)`. The region is
    /// as it was.
    pub(crate) fn cover(&self, start: usize, end: usize, fd: Fd, offset: u64) -> Result<(), Errno> {
        self.can_cover()?;
        let pages = pages_of(start, end);
        let mut state = self.lock_settled(pages);
        if state.pages.resident_runs(pages).next().is_some() {
            return Err(Errno::EBUSY);
        }
        show(&mut state, pages, File::at(start, fd, offset))
    }

    /// From now on windows of `fd`, from `offset` on, are seen at `start .. end` where it is read in
    /// order.
    ///
    /// # Errors
    /// `EOPNOTSUPP` before Linux 6.10.
    pub(crate) fn cover_in_windows(
        &self,
        start: usize,
        end: usize,
        fd: Fd,
        offset: u64,
    ) -> Result<(), Errno> {
        self.can_cover()?;
        let file = File::at(start, fd, offset);
        let mut state = self.state.lock();
        state
            .regions
            .change(start, end, |region| region.file = Some(file));
        Ok(())
    }

    fn can_cover(&self) -> Result<(), Errno> {
        match self.covers.load(Ordering::Relaxed) {
            true => Ok(()),
            false => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Takes all covers of `start .. end` away for good: from now on each page that is touched is
    /// asked for. To threads that touch pages meanwhile a page is either there or not.
    ///
    /// # Errors
    /// `ENOMEM` when the process has too many mappings, or as userfaultfd's registration: some of it
    /// is covered as before.
    pub(crate) fn uncover(&self, start: usize, end: usize) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let forget = |region: &mut Region| region.file = None;
        state.regions.change(start, end, forget);
        drop(state);
        loop {
            let state = self.state.lock();
            let covered = state.regions.within(start, end).find(|part| part.covered);
            drop(state);
            match covered {
                // Part of it may be gone when it is taken away: the rest is found then.
                Some(part) => self.take_away(part.pages())?,
                None => return Ok(()),
            };
        }
    }

    /// Drops what covers of `start .. end` have in memory: windows end, and pages of what is covered as
    /// a whole are there again when they are touched.
    pub(crate) fn drop_covered(&self, start: usize, end: usize) {
        let within = pages_of(start, end);
        let state = self.state.lock();
        let windows = state
            .windows
            .iter()
            .filter(|w| !w.intersect(within).is_empty());
        // One that is locked stays, and is charged.
        let windows: Vec<PageRange> = windows.filter(|window| let_go(*window)).collect();
        let whole = |part: &Region| part.covered && part.file.is_none();
        let whole: Vec<Region> = state.regions.within(start, end).filter(whole).collect();
        drop(state);
        for window in windows {
            // So does one that cannot be taken away.
            let _ = self.take_away(window);
        }
        for part in whole {
            // SAFETY: pages of a file that is mapped shared lose nothing. Advice: it may stay.
            let _ = unsafe { mem::advise(part.start, part.end - part.start, mem::MADV_DONTNEED) };
        }
    }

    /// What to map of a file that is read in order, of which a fault on `page` would have `pages`
    /// paged in: as much as has been read. `None` when these are too few.
    pub(crate) fn window_for(
        &self,
        state: &mut State,
        page: PageIndex,
        pages: PageRange,
        limits: PageRange,
    ) -> Option<PageRange> {
        if pages.pages() < WINDOW_MIN || state.windows.count() >= WINDOWS_MAX {
            return None;
        }
        let count = state
            .pages
            .run_pages(page)
            .max(pages.pages())
            .min(self.part());
        let wanted = match pages.start == page {
            true => PageRange::new(page.0, page.0 + count),
            false => PageRange::new(pages.end.0.saturating_sub(count), pages.end.0),
        };
        let window = state.pages.brings(page, wanted.intersect(limits));
        (window.pages() >= WINDOW_MIN).then_some(window)
    }

    /// Maps a window of a file around `page`, for which a thread waits. False when it cannot be had
    /// now.
    pub(crate) fn begin_window(
        &self,
        page: PageIndex,
        window: PageRange,
        stall: &mut Stall,
    ) -> bool {
        let mut tries = 0..TRIES;
        let (window, file) = loop {
            let mut state = self.lock_settled(PageRange::new(0, 0));
            let Some(region) = state
                .region_of_page(page.0)
                .filter(|region| !region.covered)
            else {
                // Somebody else was faster.
                drop(state);
                self.wake(address_of(page.0), PAGE_BYTES);
                return true;
            };
            let limits = region.pages();
            let is_out = state.pages.is_with_pager(page, false);
            let Some(file) = region.file.filter(|_| is_out) else {
                return false;
            };
            let window = state.pages.out_around(page, window.intersect(limits));
            if self.charge(window.pages()) {
                if show(&mut state, window, file).is_err() {
                    self.account.uncharge(window.pages());
                    return false;
                }
                state.windows.begin(window);
                break (window, file);
            }
            drop(state);
            if tries.next().is_none() {
                return false;
            }
            self.make_room(window.pages(), true);
        };
        let (at, bytes) = (address_of(window.start.0), window.bytes() as usize);
        let is_long = window.pages() >= LONG;
        if !is_long {
            // Linux would read megabytes around a fault, for who may want 100 KiB.
            // SAFETY: changes no contents. Advice: it reads more.
            let _ = unsafe { mem::advise(at, bytes, MADV_RANDOM) };
            read_ahead(file, window);
        }
        self.wake(at, bytes);
        self.stall_is_over(stall);
        if is_long {
            read_ahead(file, window);
            self.read_next(file, page, window);
        }
        true
    }

    /// Has Linux read what follows a window in the direction in which it is read.
    fn read_next(&self, file: File, page: PageIndex, window: PageRange) {
        let next = match page == window.start {
            true => PageRange::new(window.end.0, window.end.0 + window.pages()),
            false => PageRange::new(
                window.start.0.saturating_sub(window.pages()),
                window.start.0,
            ),
        };
        let state = self.state.lock();
        let same = |page: u64| {
            let region = state.region_of_page(page);
            region.is_some_and(|region| region.file == Some(file))
        };
        let goes_on = same(next.start.0) && same(next.end.0 - 1);
        drop(state);
        if goes_on {
            read_ahead(file, next);
        }
    }

    /// Takes windows away that have been there for longest, until about `wanted` pages are free.
    /// Returns how many it saw leave.
    pub(crate) fn end_oldest_windows(&self, wanted: u64) -> u64 {
        let (mut freed, mut kept) = (0, 0);
        while freed < wanted {
            let mut state = self.state.lock();
            let oldest = state.windows.oldest((wanted - freed).max(self.part()));
            let Some(oldest) = oldest.filter(|_| kept < state.windows.count()) else {
                break;
            };
            if !let_go(oldest) {
                kept += state.windows.renew(oldest);
                continue;
            }
            drop(state);
            if self.take_away(oldest).is_err() {
                break;
            }
            // Or another thread was faster, and they are free as well.
            freed += oldest.pages();
        }
        freed
    }

    /// Pages of the largest window.
    fn part(&self) -> u64 {
        let budget = self.account.control().budget_bytes.load(Ordering::Relaxed);
        (budget / PART / PAGE_BYTES as u64).clamp(WINDOW_MIN, WINDOW_MAX)
    }

    /// Puts the object back at `pages`, all of which were covered; does nothing if some are not.
    fn take_away(&self, pages: PageRange) -> Result<(), Errno> {
        let (start, bytes) = (address_of(pages.start.0), pages.bytes() as usize);
        let flags = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | mem::MAP_NORESERVE;
        // SAFETY: without MAP_FIXED nothing existing is touched.
        let fresh = unsafe { mem::map(0, bytes, mem::PROT_READ, flags, Fd(-1), 0) }?;
        // SAFETY: only changes what a fork does with memory that nobody else knows.
        let _ = unsafe { mem::advise(fresh, bytes, mem::MADV_DONTFORK) };
        // SAFETY: who touches it waits for this kernel, which answers where it is moved to.
        let registered = unsafe { self.uffd().register(fresh, bytes) };
        let moved = registered.and_then(|()| {
            let mut state = self.lock_settled(PageRange::new(0, 0));
            if !state.regions.is_covered(pages) {
                return Ok(false);
            }
            // Faults that are taken meanwhile wait until it is known what becomes of them.
            state.frozen = true;
            drop(state);
            let moved = self.move_over(fresh, bytes, start);
            let mut state = self.state.lock();
            state.frozen = false;
            if moved.is_ok() {
                let is_back = |region: &mut Region| region.covered = false;
                state.regions.change(start, start + bytes, is_back);
                self.account.uncharge(state.windows.end(pages));
            }
            drop(state);
            self.settled.notify();
            moved.map(|_| true)
        });
        if moved != Ok(true) {
            // SAFETY: nobody else knows it.
            let _ = unsafe { mem::unmap(fresh, bytes) };
        }
        moved.map(drop)
    }

    /// Moves what is registered to where the cover is. The registration moves along, as userfaultfd
    /// tells of moves, so a page that is touched right after is asked for.
    fn move_over(&self, fresh: usize, bytes: usize, start: usize) -> Result<usize, Errno> {
        let uffd = self.uffd();
        let mover = pthread::start_joined(c"farpage-mover", move || {
            let fixed = MREMAP_MAYMOVE | MREMAP_FIXED;
            // SAFETY: what was there is this kernel's to replace, and has no contents of its own.
            unsafe { mem::remap(fresh, bytes, bytes, fixed, start) }
        })?;
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
        for address in held {
            uffd.wake(address / PAGE_BYTES * PAGE_BYTES, PAGE_BYTES);
        }
        moved
    }
}

/// Maps the file's `pages`, none of which is there.
fn show(state: &mut State, pages: PageRange, file: File) -> Result<(), Errno> {
    let (start, bytes) = (address_of(pages.start.0), pages.bytes() as usize);
    let flags = mem::MAP_SHARED | mem::MAP_NORESERVE | mem::MAP_FIXED;
    let (prot, offset) = (mem::PROT_READ, file.offset(start));
    // SAFETY: the pages are this kernel's, and what they show is what their pager would supply.
    unsafe { mem::map(start, bytes, prot, flags, file.fd, offset) }?;
    let end = start + bytes;
    state
        .regions
        .change(start, end, |region| region.covered = true);
    Ok(())
}

/// Drops what is in memory of windows that are about to be taken away. False when the program has some of it
/// locked: that must stay. To be called with the lock held, as whatever else is mapped there must not be
/// dropped.
fn let_go(pages: PageRange) -> bool {
    let (start, bytes) = (address_of(pages.start.0), pages.bytes() as usize);
    // SAFETY: pages of a file that is mapped shared lose nothing.
    let dropped = unsafe { mem::advise(start, bytes, mem::MADV_DONTNEED) };
    dropped != Err(Errno::EINVAL)
}

/// Has Linux read `pages` of a file, if it has not done so.
fn read_ahead(file: File, pages: PageRange) {
    let offset = file.offset(address_of(pages.start.0));
    let there = file::cached_pages(file.fd, offset, pages.bytes());
    if there.is_ok_and(|there| there == pages.pages()) {
        return;
    }
    for part in pages.chunks(READ_PAGES) {
        let offset = file.offset(address_of(part.start.0));
        file::read_ahead(file.fd, offset, part.bytes());
    }
}
