//! One fault: ask the automaton, do what it says, tell it.

use core::sync::atomic::Ordering;

use farpage_object::{
    Answer, CLUSTER_PAGES, Filled, Mapping, PAGE_BYTES, PageIndex, PageRange, PagerError,
    TraceEvent, TraceKind,
};
use farpage_sys::uffd::Fault;
use farpage_sys::{Errno, time};

use crate::handler::{Buffer, Watch};
use crate::kernel::{Kernel, StateGuard};
use crate::layout::shadow_of;
use crate::page_in::object_pages;
use crate::regions::{Source, address_of};

/// Faults between two whose time is taken: the clock costs a tenth of a fault.
const TIMED_EVERY: u64 = 16;
/// After this long without room a fault takes memory above the budget: progress comes first.
const STARVED_NS: u64 = 2_000_000_000;
/// The same when it has done so less than [`STARVED_NS`] ago: what must be resident at one time
/// does not fit, and waiting longer for each page of it would not change that.
const STARVED_AGAIN_NS: u64 = 50_000_000;

/// What is left to do after the lock was given up.
pub(crate) enum Step {
    Done,
    /// A transfer is under way; its end lets the thread go on.
    Wait,
    /// Pages of memory are needed first.
    Room(u64),
    /// A fork is under way.
    Frozen,
    PageIn {
        pages: PageRange,
        also: Option<(i64, u64)>,
        source: Source,
    },
    /// A file is read in order: more of it is to be mapped.
    #[cfg(feature = "std")]
    Window(PageRange),
    /// The pager is to be asked whether a locked page may be written.
    Unlock(PageIndex, Source),
    Lost,
}

/// The time that a thread waits for its page.
pub(crate) struct Stall {
    /// Since when, if it is taken at all.
    since: Option<u64>,
    /// For how many faults it stands.
    weight: u64,
}

impl Stall {
    /// One that is not timed, unless it becomes slow.
    pub(crate) fn new() -> Self {
        Self {
            since: None,
            weight: TIMED_EVERY,
        }
    }

    fn timed() -> Self {
        Self {
            since: Some(time::now_ns()),
            ..Self::new()
        }
    }

    /// It takes long: then it stands for itself. Returns since when it lasts.
    fn is_slow(&mut self) -> u64 {
        self.weight = 1;
        *self.since.get_or_insert_with(time::now_ns)
    }
}

impl Kernel {
    /// Answers one fault. False when the page stays locked.
    pub(crate) fn serve(
        &'static self,
        fault: Fault,
        watch: &mut Watch<'_>,
        buffer: &mut Buffer,
    ) -> bool {
        let page = PageIndex(fault.address as u64 / PAGE_BYTES as u64);
        let counters = self.account.counters();
        let timed = counters
            .faults
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(TIMED_EVERY);
        let mut stall = if timed { Stall::timed() } else { Stall::new() };
        let (mut again, mut starved, mut locked) = (false, false, false);
        loop {
            let seen = self.settled.seen();
            match self.step(page, fault, again, starved) {
                Step::Done | Step::Wait => break,
                Step::Lost => {
                    self.lose(page, PagerError::Dead);
                    break;
                }
                Step::Unlock(page, source) => {
                    watch.give_up();
                    locked = !self.ask_to_unlock(page, &source);
                    break;
                }
                Step::Frozen => {
                    self.settled.wait(seen, Some(100_000_000));
                    // Nobody has looked at it yet.
                    continue;
                }
                #[cfg(feature = "std")]
                Step::Window(window) => {
                    watch.give_up_unless_kept();
                    stall.is_slow();
                    if self.begin_window(page, window, &mut stall) {
                        break;
                    }
                }
                Step::Room(pages) => {
                    watch.give_up();
                    let since = stall.is_slow();
                    let now = time::now_ns();
                    if !self.make_room(pages, again) {
                        self.park();
                        break;
                    }
                    let last = self.overdrawn_ns.load(Ordering::Relaxed);
                    let lately = last != 0 && now.saturating_sub(last) < STARVED_NS;
                    let patience = if lately { STARVED_AGAIN_NS } else { STARVED_NS };
                    starved = again && now - since > patience;
                }
                Step::PageIn {
                    pages,
                    also,
                    source,
                } => {
                    let asked = PageIndex(page.0 - source.origin);
                    let quick = source.pager.is_quick(source.object, asked);
                    if !quick {
                        watch.give_up_unless_kept();
                    }
                    if !quick || pages.pages() > 1 {
                        stall.is_slow();
                    }
                    self.page_in(page, pages, fault, &source, buffer, &mut stall);
                    self.prefetch_strided(page, also, &source, buffer);
                    break;
                }
            }
            again = true;
        }
        self.stall_is_over(&mut stall);
        !locked
    }

    /// Counts a stall, once.
    pub(crate) fn stall_is_over(&self, stall: &mut Stall) {
        let Some(since) = stall.since.take() else {
            return;
        };
        let took = time::now_ns() - since;
        let counters = self.account.counters();
        let all = &counters.stall_ns;
        all.fetch_add(took * stall.weight, Ordering::Relaxed);
        counters.stall_ns_max.fetch_max(took, Ordering::Relaxed);
    }

    fn step(&self, page: PageIndex, fault: Fault, again: bool, starved: bool) -> Step {
        let state = self.state.lock();
        if starved {
            // Nobody can give anything: a working set below which nothing runs.
            self.account.overdraw(self.account.window());
            self.overdrawn_ns.store(time::now_ns(), Ordering::Relaxed);
        }
        self.step_with(state, page, fault, again)
    }

    /// What to do about a fault; does what is done with the lock held.
    pub(crate) fn step_with(
        &self,
        mut state: StateGuard<'_>,
        page: PageIndex,
        fault: Fault,
        again: bool,
    ) -> Step {
        if state.frozen {
            return Step::Frozen;
        }
        let Some(region) = state.region_of_page(page.0) else {
            drop(state);
            self.wake(address_of(page.0), PAGE_BYTES);
            return Step::Done;
        };
        if region.covered {
            // A fault of something that was mapped here before.
            drop(state);
            self.wake(address_of(page.0), PAGE_BYTES);
            return Step::Done;
        }
        #[cfg(feature = "std")]
        let may_be_covered = region.file.is_some();
        let (limits, source) = (region.pages(), region.source.clone());
        let mapping = Mapping {
            pages: limits,
            temporary: source.temporary,
        };
        let mut answer = state.pages.fault(page, fault.protection, mapping, again);
        if answer == Answer::Wake && !fault.protection && self.was_dropped(&mut state, page) {
            answer = state.pages.fault(page, false, mapping, again);
        }
        match answer {
            Answer::Wake => {
                drop(state);
                self.wake(address_of(page.0), PAGE_BYTES);
                Step::Done
            }
            Answer::Wait => Step::Wait,
            Answer::Zero(pages) => self.zero(state, page, pages, again),
            Answer::Grant(pages) => self.grant(state, page, pages, again),
            Answer::Restore(pages) => self.restore(state, page, pages),
            Answer::RestoreProtected(pages) => self.restore_protected(state, page, pages),
            Answer::CopyBack(page) => self.copy_back(state, page),
            Answer::Unprotect(pages) => self.unprotect(state, pages, &source),
            Answer::PageIn {
                mut pages,
                mut also,
            } => {
                #[cfg(feature = "std")]
                if may_be_covered
                    && let Some(window) = self.window_for(&mut state, page, pages, limits)
                {
                    return Step::Window(window);
                }
                let asked = PageIndex(page.0 - source.origin);
                if let Some(at) = state.alone.iter().position(|alone| *alone == page) {
                    state.alone.swap_remove(at);
                    (pages, also) = (PageRange::one(page), None);
                } else if pages.pages() == 1 && also.is_none() {
                    let cluster = source.pager.cluster_pages(source.object, asked);
                    if cluster > 1 {
                        pages = state.pages.cluster(page, limits, source.origin, cluster);
                    } else if !source.pager.is_at_hand(source.object, asked) {
                        pages = state.pages.neighbourhood(page, limits);
                    }
                }
                self.request(state, page, pages, also, source, again)
            }
            Answer::Unlock(page) => {
                state.pages.unlock_begins(page);
                state.in_flight += 1;
                Step::Unlock(page, source)
            }
            Answer::Fail => Step::Lost,
        }
    }

    fn zero(&self, state: StateGuard<'_>, page: PageIndex, pages: PageRange, again: bool) -> Step {
        let pages = match charge_around(self, page, pages, again) {
            Ok(pages) => pages,
            Err(room) => return room,
        };
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
                Some(Errno::EEXIST) => self.wake(address_of(page.0), PAGE_BYTES),
                Some(errno) => self.end_for(
                    format_args!("cannot fill the memory at {:#x}", address_of(page.0)),
                    errno,
                ),
            }
        }
    }

    fn grant(&self, state: StateGuard<'_>, page: PageIndex, pages: PageRange, again: bool) -> Step {
        let start = page.0 / CLUSTER_PAGES * CLUSTER_PAGES;
        let cluster = PageRange::new(start, start + CLUSTER_PAGES);
        if !self.granting.load(Ordering::Relaxed) {
            return self.zero(state, page, cluster, again);
        }
        if !self.charge(pages.pages()) {
            if again {
                // No room for a whole block: a cluster will do.
                return self.zero(state, page, cluster, again);
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
            return self.zero(state, page, cluster, again);
        }
        self.filled(state, pages, Filled::Granted)
    }

    fn restore(&self, state: StateGuard<'_>, page: PageIndex, pages: PageRange) -> Step {
        let (to, bytes) = (address_of(pages.start.0), pages.bytes() as usize);
        // SAFETY: the pages lie aside, at their shadow, and are absent from the program.
        let moved = unsafe { self.uffd_at(to).move_pages(to, shadow_of(to), bytes) };
        let whole = moved.stopped.is_none();
        if !whole {
            for page in pages.iter() {
                self.bring_back(address_of(page.0), false);
            }
        }
        self.restored(state, page, pages)
    }

    fn restore_protected(&self, state: StateGuard<'_>, page: PageIndex, pages: PageRange) -> Step {
        let (to, bytes) = (address_of(pages.start.0), pages.bytes() as usize);
        // SAFETY: the pages lie aside and are absent from the program; the shadow is readable.
        let copied = unsafe { self.uffd_at(to).copy(to, shadow_of(to), bytes, true) };
        // SAFETY: the copies in the program are those that count now.
        unsafe { crate::kernel::drop_shadow(to, copied.bytes) };
        let split = pages.start.0 + (copied.bytes / PAGE_BYTES) as u64;
        for page in PageRange::new(split, pages.end.0).iter() {
            self.bring_back(address_of(page.0), true);
        }
        self.restored(state, page, pages)
    }

    fn restored(&self, mut state: StateGuard<'_>, page: PageIndex, pages: PageRange) -> Step {
        state.pages.restored(pages);
        drop(state);
        self.wake(address_of(page.0), PAGE_BYTES);
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
            let moved = unsafe { self.uffd_at(at).move_pages(at, shadow_of(at), PAGE_BYTES) };
            if matches!(moved.stopped, None | Some(Errno::EEXIST)) {
                return;
            }
        }
        // SAFETY: as above; the shadow is readable.
        let copied = unsafe {
            self.uffd_at(at)
                .copy(at, shadow_of(at), PAGE_BYTES, protected)
        };
        match copied.stopped {
            None => {
                // SAFETY: the copy in the program is the one that counts now.
                unsafe { crate::kernel::drop_shadow(at, PAGE_BYTES) }
            }
            Some(errno) => self.end_for(
                format_args!("cannot give back the memory at {at:#x}"),
                errno,
            ),
        }
    }

    fn copy_back(&self, mut state: StateGuard<'_>, page: PageIndex) -> Step {
        let at = address_of(page.0);
        // SAFETY: the page is being paged out from its shadow, which stays until that ends.
        let copied = unsafe { self.uffd_at(at).copy(at, shadow_of(at), PAGE_BYTES, true) };
        if let Some(errno) = copied.stopped {
            self.end_for(
                format_args!("cannot give back the memory at {at:#x}"),
                errno,
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
        if let Err(errno) = unsafe { self.uffd_at(at).protect(at, bytes, false) } {
            self.end_for(format_args!("cannot let {at:#x} be written"), errno);
        }
        state.pages.dirtied(pages);
        if source.temporary {
            self.rewrites.written(pages.start, pages.pages());
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
        again: bool,
    ) -> Step {
        let pages = match charge_around(self, page, pages, again) {
            Ok(pages) => pages,
            Err(room) => return room,
        };
        state.pages.page_in_begins(pages, Some(page));
        state.in_flight += 1;
        Step::PageIn {
            pages,
            also,
            source,
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

/// Charges `pages`, which come together with `page`, or as many of those around it as there is room
/// for: the first time a cluster at least, else it alone will do.
fn charge_around(
    kernel: &Kernel,
    page: PageIndex,
    pages: PageRange,
    again: bool,
) -> Result<PageRange, Step> {
    let window = kernel.account.window();
    let least = if again {
        1
    } else {
        CLUSTER_PAGES.min(pages.pages())
    };
    let mut reach = window.min(pages.pages());
    while reach > 0 {
        let around = PageRange::new((page.0 + 1).saturating_sub(reach), page.0 + reach);
        let some = pages.intersect(around);
        if some.pages() < least {
            break;
        }
        if kernel.charge(some.pages()) {
            return Ok(some);
        }
        reach /= 2;
    }
    Err(Step::Room(window))
}
