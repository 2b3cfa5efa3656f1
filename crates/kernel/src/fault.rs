//! One fault: ask the automaton, do what it says, tell it.

use core::sync::atomic::Ordering;

use farpage_abi::{Access, PAGE_BYTES, PageIndex, PageRange, TraceEvent, TraceKind};
use farpage_object::{Answer, CLUSTER_PAGES, Filled, State as PageState};
use farpage_pagers::{DataRequest, PagerError, Supplied};
use farpage_sys::uffd::Fault;
use farpage_sys::{Errno, time};

use crate::handler::{Buffer, Lead};
use crate::kernel::{Kernel, StateGuard};
use crate::layout::shadow_of;
use crate::regions::{Source, address_of};

/// Faults between two whose time is taken: the clock costs a tenth of a fault.
const TIMED_EVERY: u64 = 16;
/// After this long without room a fault takes memory above the budget: progress comes first.
const STARVED_NS: u64 = 2_000_000_000;

/// What is left to do after the lock was given up.
pub(crate) enum Step {
    Done,
    /// Pages of memory are needed first.
    Room(u64),
    /// A fork is under way.
    Frozen,
    PageIn {
        pages: PageRange,
        also: Option<(i64, u64)>,
        source: Source,
    },
    /// The pager is to be asked whether a locked page may be written.
    Unlock(PageIndex, Source),
    Lost,
}

impl Kernel {
    /// Answers one fault.
    pub(crate) fn serve(&self, fault: Fault, lead: &mut Lead<'_>, buffer: &mut Buffer) {
        let page = PageIndex(fault.address as u64 / PAGE_BYTES as u64);
        let counters = self.account.counters();
        let timed = counters
            .faults
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(TIMED_EVERY);
        let started = if timed { time::now_ns() } else { 0 };
        let (mut again, mut slow_since, mut starved) = (false, 0, false);
        loop {
            let seen = self.settled.seen();
            match self.step(page, fault, again, starved) {
                Step::Done => break,
                Step::Lost => {
                    self.lose(page, PagerError::Dead);
                    break;
                }
                Step::Unlock(page, source) => {
                    lead.give_up();
                    self.ask_to_unlock(page, &source);
                    break;
                }
                Step::Frozen => self.settled.wait(seen, Some(100_000_000)),
                Step::Room(pages) => {
                    lead.give_up();
                    let now = time::now_ns();
                    slow_since = if slow_since == 0 { now } else { slow_since };
                    self.make_room(pages);
                    starved = now - slow_since > STARVED_NS;
                }
                Step::PageIn {
                    pages,
                    also,
                    source,
                } => {
                    let asked = PageIndex(page.0 - source.origin);
                    let at_hand = source.pager.is_at_hand(source.object, asked);
                    if !at_hand {
                        slow_since = if slow_since == 0 {
                            time::now_ns()
                        } else {
                            slow_since
                        };
                        lead.give_up_for(&source);
                    }
                    self.page_in(page, pages, fault, &source, buffer);
                    self.prefetch_strided(page, also, &source, buffer);
                    break;
                }
            }
            again = true;
        }
        self.take_time(started, slow_since);
    }

    fn take_time(&self, started: u64, slow_since: u64) {
        if started == 0 && slow_since == 0 {
            return;
        }
        let counters = self.account.counters();
        let now = time::now_ns();
        let (took, weight) = if slow_since != 0 {
            (now - slow_since, 1)
        } else {
            (now - started, TIMED_EVERY)
        };
        counters
            .stall_ns
            .fetch_add(took * weight, Ordering::Relaxed);
        counters.stall_ns_max.fetch_max(took, Ordering::Relaxed);
    }

    fn step(&self, page: PageIndex, fault: Fault, again: bool, starved: bool) -> Step {
        let mut state = self.state.lock();
        if state.frozen {
            return Step::Frozen;
        }
        let Some(region) = state.region_of_page(page.0) else {
            drop(state);
            self.uffd().wake(address_of(page.0), PAGE_BYTES);
            return Step::Done;
        };
        let (limits, source) = (region.pages(), region.source.clone());
        if starved {
            // Nobody can give anything: a working set below which nothing runs.
            self.account.overdraw(self.account.window());
        }
        match state.pages.fault(page, fault.protection, limits, again) {
            Answer::Wake => {
                drop(state);
                self.uffd().wake(address_of(page.0), PAGE_BYTES);
                Step::Done
            }
            Answer::Wait => Step::Done,
            Answer::Zero(pages) | Answer::Grant(pages) if !source.temporary => {
                let pages = PageRange::new(page.0, pages.end.0);
                self.request(state, page, pages, None, source)
            }
            Answer::Zero(pages) => self.zero(state, page, pages),
            Answer::Grant(pages) => self.grant(state, page, pages, again),
            Answer::Restore(pages) => self.restore(state, page, pages),
            Answer::RestoreLocked(page) => self.restore_locked(state, page),
            Answer::CopyBack(page) => self.copy_back(state, page),
            Answer::Unprotect(pages) => self.unprotect(state, pages, &source),
            Answer::PageIn { pages, also } => self.request(state, page, pages, also, source),
            Answer::Unlock(page) => {
                state.pages.unlock_begins(page);
                state.in_flight += 1;
                Step::Unlock(page, source)
            }
            Answer::Fail => Step::Lost,
        }
    }

    fn zero(&self, state: StateGuard<'_>, page: PageIndex, mut pages: PageRange) -> Step {
        if !self.account.charge(pages.pages()) {
            pages = PageRange::one(page);
            if !self.account.charge(1) {
                return Step::Room(16);
            }
        }
        let (at, bytes) = (address_of(pages.start.0), pages.bytes() as usize);
        // SAFETY: the automaton says that these pages have no contents anywhere.
        let progress = unsafe { self.uffd().zero(at, bytes) };
        if progress.stopped.is_some() {
            self.zero_one_by_one(pages);
        }
        self.filled(state, pages, Filled::Zero)
    }

    fn filled(&self, mut state: StateGuard<'_>, pages: PageRange, how: Filled) -> Step {
        state.pages.filled(pages, how);
        drop(state);
        self.account
            .counters()
            .zero_fills
            .fetch_add(pages.pages(), Ordering::Relaxed);
        self.trace(TraceKind::ZeroFill, pages);
        Step::Done
    }

    /// The run crosses mappings, or Linux had some of it: page by page.
    fn zero_one_by_one(&self, pages: PageRange) {
        for page in pages.iter() {
            // SAFETY: as for the run.
            let progress = unsafe { self.uffd().zero(address_of(page.0), PAGE_BYTES) };
            match progress.stopped {
                None => {}
                Some(Errno::EEXIST) => self.uffd().wake(address_of(page.0), PAGE_BYTES),
                Some(errno) => self.kill(
                    format_args!(
                        "cannot fill the memory at {:#x} ({errno})",
                        address_of(page.0)
                    ),
                    PagerError::Dead,
                ),
            }
        }
    }

    fn grant(&self, state: StateGuard<'_>, page: PageIndex, pages: PageRange, again: bool) -> Step {
        let start = page.0 / CLUSTER_PAGES * CLUSTER_PAGES;
        let cluster = PageRange::new(start, start + CLUSTER_PAGES);
        if !self.account.charge(pages.pages()) {
            if again {
                // No room for a whole block: a cluster will do.
                return self.zero(state, page, cluster);
            }
            return Step::Room(pages.pages());
        }
        // SAFETY: the automaton says that these pages have no contents anywhere: zeros are right.
        let given = unsafe {
            self.uffd()
                .unregister(address_of(pages.start.0), pages.bytes() as usize)
        };
        if given.is_err() {
            // Too many mappings: fill it ourselves.
            self.account.uncharge(pages.pages());
            return self.zero(state, page, cluster);
        }
        self.filled(state, pages, Filled::Granted)
    }

    fn restore(&self, state: StateGuard<'_>, page: PageIndex, pages: PageRange) -> Step {
        let (to, bytes) = (address_of(pages.start.0), pages.bytes() as usize);
        // SAFETY: the pages lie aside, at their shadow, and are absent from the program.
        let moved = unsafe { self.uffd().move_pages(to, shadow_of(to), bytes) };
        let whole = moved.stopped.is_none();
        if !whole {
            for page in pages.iter() {
                self.bring_back(address_of(page.0), false);
            }
        }
        self.restored(state, page, pages)
    }

    fn restore_locked(&self, state: StateGuard<'_>, page: PageIndex) -> Step {
        self.bring_back(address_of(page.0), true);
        self.restored(state, page, PageRange::one(page))
    }

    fn restored(&self, mut state: StateGuard<'_>, page: PageIndex, pages: PageRange) -> Step {
        state.pages.restored(pages);
        drop(state);
        self.uffd().wake(address_of(page.0), PAGE_BYTES);
        self.account
            .counters()
            .refaults_aside
            .fetch_add(pages.pages(), Ordering::Relaxed);
        self.trace(TraceKind::Refault, pages);
        Step::Done
    }

    /// Brings one page back from its shadow by the way that works: shared with a forked child, or
    /// of other protection, it cannot be moved; and to be `protected` from the first moment it must
    /// be copied.
    pub(crate) fn bring_back(&self, at: usize, protected: bool) {
        if !protected {
            // SAFETY: the page lies aside and is absent from the program, or was brought back.
            let moved = unsafe { self.uffd().move_pages(at, shadow_of(at), PAGE_BYTES) };
            if matches!(moved.stopped, None | Some(Errno::EEXIST)) {
                return;
            }
        }
        // SAFETY: as above; the shadow is readable.
        let copied = unsafe { self.uffd().copy(at, shadow_of(at), PAGE_BYTES, protected) };
        match copied.stopped {
            None => {
                // SAFETY: the copy in the program is the one that counts now.
                unsafe { crate::kernel::drop_shadow(at, PAGE_BYTES) }
            }
            Some(errno) => self.kill(
                format_args!("cannot give back the memory at {at:#x} ({errno})"),
                PagerError::Dead,
            ),
        }
    }

    fn copy_back(&self, mut state: StateGuard<'_>, page: PageIndex) -> Step {
        let at = address_of(page.0);
        // SAFETY: the page is being paged out from its shadow, which stays until that ends.
        let copied = unsafe { self.uffd().copy(at, shadow_of(at), PAGE_BYTES, true) };
        if let Some(errno) = copied.stopped {
            self.kill(
                format_args!("cannot give back the memory at {at:#x} ({errno})"),
                PagerError::Dead,
            );
        }
        self.account.charge_anyway(1);
        state.pages.copied_back(page);
        self.account
            .counters()
            .refaults_aside
            .fetch_add(1, Ordering::Relaxed);
        Step::Done
    }

    fn unprotect(&self, mut state: StateGuard<'_>, pages: PageRange, source: &Source) -> Step {
        let (at, bytes) = (address_of(pages.start.0), pages.bytes() as usize);
        // SAFETY: the pages are registered; that they become dirty is told right below.
        if let Err(errno) = unsafe { self.uffd().protect(at, bytes, false) } {
            self.kill(
                format_args!("cannot let {at:#x} be written ({errno})"),
                PagerError::Dead,
            );
        }
        state.pages.dirtied(pages);
        if source.temporary {
            source
                .pager
                .discard(source.object, object_pages(source, pages));
        }
        drop(state);
        self.account
            .counters()
            .write_faults
            .fetch_add(1, Ordering::Relaxed);
        self.trace(TraceKind::WriteFault, pages);
        Step::Done
    }

    /// Charges what will come and marks it requested.
    fn request(
        &self,
        mut state: StateGuard<'_>,
        page: PageIndex,
        pages: PageRange,
        also: Option<(i64, u64)>,
        source: Source,
    ) -> Step {
        let window = self.account.window();
        let end = pages.end.0.min(page.0 + window);
        let start = pages.start.0.max((page.0 + 1).saturating_sub(window));
        let mut pages = PageRange::new(start, end);
        if !self.account.charge(pages.pages()) {
            pages = PageRange::one(page);
            if !self.account.charge(1) {
                return Step::Room(window);
            }
        }
        state.pages.page_in_begins(pages, Some(page));
        state.in_flight += 1;
        Step::PageIn {
            pages,
            also,
            source,
        }
    }

    /// Asks the pager and puts what it supplies into the program.
    fn page_in(
        &self,
        page: PageIndex,
        pages: PageRange,
        fault: Fault,
        source: &Source,
        buffer: &mut Buffer,
    ) {
        let mut at = pages.start.0;
        let access = if fault.write {
            Access::Write
        } else {
            Access::Read
        };
        let mut failed = None;
        while at < pages.end.0 {
            let rest = PageRange::new(at, pages.end.0);
            let needed = if page.0 >= at { page.0 - at + 1 } else { 1 };
            let space = buffer.bytes(rest.pages() as usize);
            let asked = object_pages(source, rest);
            let request = DataRequest::new(source.object, asked, needed, access, space);
            match source.pager.data_request(request) {
                Ok(supplied) if !is_valid(supplied, rest) => {
                    failed = Some(PagerError::Violation);
                    break;
                }
                Ok(supplied) => {
                    let count = supplied.pages;
                    self.install(PageRange::new(at, at + count), supplied, buffer);
                    at += count;
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        self.page_in_is_over(page, PageRange::new(at, pages.end.0), failed);
        let came = PageRange::new(pages.start.0, at);
        let counters = self.account.counters();
        counters
            .prefetched
            .fetch_add(came.pages().saturating_sub(1), Ordering::Relaxed);
        self.trace(TraceKind::PageIn, came);
    }

    fn install(&self, pages: PageRange, supplied: Supplied, buffer: &mut Buffer) {
        let clean = !supplied.precious;
        let from = buffer.bytes(pages.pages() as usize).as_ptr() as usize;
        let (to, bytes) = (address_of(pages.start.0), pages.bytes() as usize);
        // A page keeps the lock that it left with; a run with a locked page is that page alone.
        let protect =
            clean || supplied.locked.is_some() || self.state.lock().pages.is_locked(pages.start);
        // SAFETY: the pages are being paged in: absent, and nobody else fills or unmaps them.
        let copied = unsafe { self.uffd().copy(to, from, bytes, protect) };
        let mut done = copied.bytes;
        while done < bytes {
            // SAFETY: as above. Runs that cross mappings go page by page.
            let one = unsafe {
                self.uffd()
                    .copy(to + done, from + done, PAGE_BYTES, protect)
            };
            if let Some(errno) = one.stopped {
                let at = to + done;
                self.kill(
                    format_args!("cannot page in at {at:#x} ({errno})"),
                    PagerError::Dead,
                );
            }
            done += PAGE_BYTES;
        }
        let mut state = self.state.lock();
        let awaited = state.pages.paged_in(pages, clean);
        if supplied.locked.is_some() {
            state.pages.lock_writes(pages, true);
        }
        drop(state);
        if awaited {
            // It wrote to a page that was there already, but not known to be.
            self.uffd().wake(to, bytes);
        }
    }

    fn page_in_is_over(&self, page: PageIndex, rest: PageRange, failed: Option<PagerError>) {
        let mut state = self.state.lock();
        let mut lost = None;
        let mut rest_from = rest.start.0;
        if let Some(error) = failed
            && rest.start <= page
        {
            state.pages.page_in_failed(rest.start);
            lost = Some((rest.start, error));
            rest_from += 1;
        }
        let awaited = state
            .pages
            .page_in_ends(PageRange::new(rest_from, rest.end.0));
        state.in_flight -= 1;
        drop(state);
        self.account.uncharge(rest.pages());
        if let Some((first, error)) = lost {
            self.lose(first, error);
        }
        if awaited || lost.is_some() {
            self.uffd()
                .wake(address_of(rest.start.0), rest.bytes() as usize);
        }
        self.settled.notify();
    }

    fn prefetch_strided(
        &self,
        page: PageIndex,
        also: Option<(i64, u64)>,
        source: &Source,
        buffer: &mut Buffer,
    ) {
        let Some((stride, count)) = also else { return };
        for step in 1..count as i64 {
            let next = PageIndex(page.0.saturating_add_signed(stride * step));
            let mut state = self.state.lock();
            let same = state.region_of_page(next.0).is_some_and(|region| {
                region.source.object == source.object && region.source.origin == source.origin
            });
            let out = same && !state.frozen && state.pages.state(next) == PageState::Out;
            if !out || !self.account.charge(1) {
                return;
            }
            state.pages.page_in_begins(PageRange::one(next), None);
            state.in_flight += 1;
            drop(state);
            let fault = Fault {
                address: address_of(next.0),
                write: false,
                protection: false,
                thread: 0,
            };
            self.page_in(next, PageRange::one(next), fault, source, buffer);
        }
    }

    pub(crate) fn trace(&self, kind: TraceKind, pages: PageRange) {
        let control = self.account.control();
        if control.trace.load(Ordering::Relaxed) == 0 || pages.is_empty() {
            return;
        }
        let since = time::now_ns() - control.started_ns.load(Ordering::Relaxed);
        control.ring.push(TraceEvent {
            at_us: since / 1000,
            kind,
            page: pages.start.0,
            pages: pages.pages().min(u64::from(u16::MAX)) as u16,
            task: self.account.slot() as u16,
        });
    }
}

/// True when a pager supplied something that it may supply for `asked`.
fn is_valid(supplied: Supplied, asked: PageRange) -> bool {
    let lock = matches!(supplied.locked, None | Some(Access::Write));
    lock && 0 < supplied.pages && supplied.pages <= asked.pages()
}

/// The object's own page numbers of a run of virtual pages.
pub(crate) fn object_pages(source: &Source, pages: PageRange) -> PageRange {
    PageRange::new(pages.start.0 - source.origin, pages.end.0 - source.origin)
}
