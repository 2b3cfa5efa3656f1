//! Page-out: choose, move aside, hand to the pager.
//!
//! Everything here works with what is on the stack: it must succeed when there is no memory left.

use core::sync::atomic::Ordering;

use farpage_object::masks::{bits, runs};
use farpage_object::{CLUSTER_PAGES, PAGE_BYTES, PageIndex, PageRange, TraceKind};
use farpage_object::{PageOut, PageOuts, PagerError, Victim};
use farpage_sys::{Errno, mem, pagemap};

use crate::kernel::{Kernel, State, drop_shadow};
use crate::layout::shadow_of;
use crate::regions::{Source, address_of};

/// Clusters that are taken at a time under one hold of the lock, at most.
pub(crate) const BATCH: usize = 32;

/// What moving a batch aside came to.
#[derive(Default)]
struct Step {
    /// Pages freed at once.
    freed: u64,
    /// Victims chosen.
    chosen: u64,
    /// Something changed: not everything that was chosen had to stay.
    moved: bool,
    /// Clusters that can be chosen now.
    queued: u64,
}

/// What became of a page that was to be moved aside.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    Aside,
    /// It cannot leave now.
    Stays,
    /// It cannot leave for long: a device may be using it, or Linux has it locked.
    Pinned,
}

/// What an eviction came to.
#[derive(Default)]
pub(crate) struct Gone {
    /// Pages freed.
    pub(crate) pages: u64,
    /// Why the pager of temporary memory took no more.
    pub(crate) refused: Option<PagerError>,
}

/// Clusters of one source on their way to its pager.
struct Leaving {
    clusters: [PageOuts; BATCH],
    count: usize,
    source: Source,
}

impl Kernel {
    /// Makes room for `pages`, or waits a while for somebody else to if it `must` be made. False
    /// when paging space is full: then it may take long.
    pub(crate) fn make_room(&self, pages: u64, must: bool) -> bool {
        let excess = self.account.excess(pages) / PAGE_BYTES as u64 + 1;
        let seen = self.account.control().memory_freed.load(Ordering::Acquire);
        let gone = self.evict(excess);
        self.account.gave(gone.pages);
        if !must || gone.pages > 0 || self.account.excess(pages) == 0 {
            return true;
        }
        match gone.refused {
            Some(PagerError::OutOfSpace) => self.finds_paging_space_full(),
            Some(error) => self.kill(format_args!("cannot page out"), error),
            // Nothing of this task can leave, but of another could.
            None if self.account.is_full() => {}
            None => {
                self.account.press_on_the_largest();
                self.account.wait_for_memory(seen, 10_000_000);
                return true;
            }
        }
        self.account.press_on_the_largest();
        false
    }

    /// Frees about `wanted` pages of this task, and some if these are few.
    pub(crate) fn evict(&self, wanted: u64) -> Gone {
        let gone = self.evict_with_windows(wanted.max(self.account.leave_together()));
        if gone.pages > 0 {
            self.account.announce();
        }
        gone
    }

    /// Windows of files and other pages leave in proportion to what there is of them.
    #[cfg(feature = "std")]
    fn evict_with_windows(&self, wanted: u64) -> Gone {
        let state = self.state.lock();
        let held = self.account.pages_held();
        let mut of_windows = state.windows.have_turn(wanted, held);
        drop(state);
        let mut gone = Gone::default();
        // Where one has nothing to give the other does.
        for _ in 0..2 {
            let left = match of_windows {
                true => self.end_oldest_windows(wanted - gone.pages),
                false => {
                    let left = self.evict_pages(wanted - gone.pages);
                    gone.refused = left.refused;
                    left.pages
                }
            };
            let mut state = self.state.lock();
            state.windows.have_left(left, held, of_windows);
            drop(state);
            gone.pages += left;
            if gone.pages >= wanted {
                break;
            }
            of_windows = !of_windows;
        }
        gone
    }

    #[cfg(not(feature = "std"))]
    fn evict_with_windows(&self, wanted: u64) -> Gone {
        self.evict_pages(wanted)
    }

    fn evict_pages(&self, wanted: u64) -> Gone {
        let mut gone = Gone::default();
        let mut in_vain = 0;
        while gone.pages < wanted {
            let step = self.move_aside(wanted - gone.pages);
            gone.pages += step.freed;
            let target = if step.chosen > 0 {
                self.account.aside_target()
            } else {
                0
            };
            let written = match gone.refused {
                None => self.page_out_to(target),
                // Only what the pager has already can leave.
                Some(_) => Gone::default(),
            };
            gone.pages += written.pages;
            gone.refused = gone.refused.or(written.refused);
            in_vain = if step.moved || written.pages > 0 {
                0
            } else {
                in_vain + step.chosen
            };
            // Nothing is left, or nothing of it can leave: devices use it, or Linux has it locked.
            if written.pages == 0 && (step.chosen == 0 || in_vain > step.queued) {
                break;
            }
            // What lies aside for nothing costs those who use it a fault each.
            if gone.refused.is_some() && step.freed == 0 {
                break;
            }
        }
        gone
    }

    /// First step: a batch of clusters leaves the program, of `wanted` pages if so many are left.
    fn move_aside(&self, wanted: u64) -> Step {
        let mut state = self.state.lock();
        let mut step = Step::default();
        if state.frozen {
            return step;
        }
        let before = state.pages.aside_pages();
        self.look_at_pinned(&mut state);
        let mut clean_pages = [(PageIndex(0), 0u16); BATCH];
        let mut spare_pages = clean_pages;
        let mut dirty_pages = clean_pages;
        let (mut count, mut pages) = (0, 0);
        while count < BATCH && pages < wanted {
            match state.pages.choose() {
                None => break,
                Some(Victim::Granted(pages)) => {
                    step.moved = true;
                    step.chosen += 1;
                    step.freed += self.take_back(&mut state, pages);
                    break;
                }
                Some(Victim::Cluster {
                    first,
                    clean,
                    dirty,
                }) => {
                    step.chosen += 1;
                    pages += u64::from((clean | dirty).count_ones());
                    let chance = state.pages.gives_chance(first, clean);
                    let (dropped, spare) = if chance { (0, clean) } else { (clean, 0) };
                    clean_pages[count] = (first, dropped);
                    spare_pages[count] = (first, spare);
                    dirty_pages[count] = (first, dirty);
                    count += 1;
                }
            }
        }
        each_run(&mut state, &mut clean_pages[..count], |state, run| {
            step.freed += self.drop_clean(state, run);
        });
        each_run(&mut state, &mut spare_pages[..count], |state, run| {
            step.freed += self.spare_run(state, run);
        });
        each_run(&mut state, &mut dirty_pages[..count], |state, run| {
            self.move_run(state, run);
        });
        for (first, _) in &dirty_pages[..count] {
            state.pages.requeue(*first);
        }
        step.moved |= step.freed > 0 || state.pages.aside_pages() > before;
        step.queued = state.pages.clusters_queued();
        self.account.uncharge(step.freed);
        self.check_account(&state);
        step
    }

    /// Takes a granted block back from Linux: registers it again and looks what is there.
    fn take_back(&self, state: &mut State, pages: PageRange) -> u64 {
        let (start, end) = (address_of(pages.start.0), address_of(pages.end.0));
        if let Err(errno) = self.register(start, end) {
            self.end_for(format_args!("cannot take {start:#x} back"), errno);
        }
        let mut present = [0u64; 8];
        let first = pages.start.0;
        let scanned = pagemap::scan(self.pagemap(), start, end, |from, to| {
            for page in from / PAGE_BYTES..to / PAGE_BYTES {
                let at = page - first as usize;
                present[at / 64] |= 1 << (at % 64);
            }
        });
        if let Err(errno) = scanned {
            self.end_for(format_args!("the pagemap cannot be read"), errno);
        }
        let there = |page: PageIndex| {
            let at = (page.0 - first) as usize;
            present[at / 64] >> (at % 64) & 1 == 1
        };
        state.pages.ungranted(pages, there)
    }

    /// Drops clean pages: the pager has the same contents.
    fn drop_clean(&self, state: &mut State, run: PageRange) -> u64 {
        let mut pages = 0;
        let drop = |pages: PageRange| {
            let (at, bytes) = (address_of(pages.start.0), pages.bytes() as usize);
            // SAFETY: write-protected and kept by the pager: no write can be lost.
            unsafe { mem::advise(at, bytes, mem::MADV_DONTNEED) }.is_ok()
        };
        let whole = drop(run);
        for page in run.iter() {
            if whole || drop(PageRange::one(page)) {
                state.pages.dropped(page);
                pages += 1;
            } else {
                // Linux has it locked.
                state.note_pinned(page);
            }
        }
        self.account
            .counters()
            .page_outs_clean
            .fetch_add(pages, Ordering::Relaxed);
        pages
    }

    /// Moves clean pages aside; drops those that cannot be moved. Returns how many it dropped.
    fn spare_run(&self, state: &mut State, pages: PageRange) -> u64 {
        let (from, mut dropped) = (address_of(pages.start.0), 0);
        // SAFETY: the pages are the program's, registered, and their shadow is empty.
        let moved = unsafe {
            self.uffd()
                .move_present(shadow_of(from), from, pages.bytes() as usize)
        };
        let split = pages.start.0 + (moved.bytes / PAGE_BYTES) as u64;
        for page in pages.iter() {
            // Linux moves a page now and then that it does not count as moved.
            if page.0 < split || !self.is_absent(shadow_of(address_of(page.0))) {
                state.pages.moved_aside(page);
            } else {
                dropped += self.drop_clean(state, PageRange::one(page));
            }
        }
        dropped
    }

    /// Moves dirty pages aside.
    fn move_run(&self, state: &mut State, pages: PageRange) {
        let from = address_of(pages.start.0);
        // SAFETY: the pages are the program's, registered, and their shadow is empty.
        let moved = unsafe {
            self.uffd()
                .move_present(shadow_of(from), from, pages.bytes() as usize)
        };
        let split = pages.start.0 + (moved.bytes / PAGE_BYTES) as u64;
        for page in PageRange::new(pages.start.0, split).iter() {
            state.pages.moved_aside(page);
        }
        let rest = PageRange::new(split, pages.end.0);
        let temporary = !rest.is_empty() && state.is_temporary(rest.start);
        for page in rest.iter() {
            if self.move_page(state, page, temporary) == Moved::Pinned {
                state.note_pinned(page);
            }
        }
    }

    /// Moves a dirty page aside, of memory that is temporary or not.
    pub(crate) fn move_page(&self, state: &mut State, page: PageIndex, temporary: bool) -> Moved {
        let locked = state.pages.is_locked(page);
        let moved = self.move_one(address_of(page.0), locked, temporary);
        if moved == Moved::Aside {
            state.pages.moved_aside(page);
        }
        moved
    }

    /// Moves or copies one page aside.
    fn move_one(&self, from: usize, locked: bool, temporary: bool) -> Moved {
        let to = shadow_of(from);
        // SAFETY: as for a run.
        let mut moved = unsafe { self.uffd().move_present(to, from, PAGE_BYTES) };
        let exclusive =
            || pagemap::count_exclusive(self.pagemap(), from, from + PAGE_BYTES).unwrap_or(1) == 1;
        if moved.stopped == Some(Errno::EBUSY) && exclusive() {
            if locked {
                // The write below would wait for the pager.
                return Moved::Stays;
            }
            // Once shared with a child that is gone: a write makes it movable again.
            // SAFETY: populating changes no contents.
            let _ = unsafe { mem::advise(from, PAGE_BYTES, mem::MADV_POPULATE_WRITE) };
            // SAFETY: as for a run.
            moved = unsafe { self.uffd().move_present(to, from, PAGE_BYTES) };
            if moved.stopped == Some(Errno::EBUSY) {
                return Moved::Pinned;
            }
        }
        let absent = moved.stopped.is_some() && self.is_absent(from);
        let is_aside = match moved.stopped {
            None => true,
            // Linux 6.18 moves a page now and then that it does not count as moved.
            Some(Errno::EEXIST) => absent,
            // What was never written to lies nowhere after a fork: a child gets no zeros.
            // SAFETY: the page has no other contents, and its shadow is empty.
            Some(_) if absent && temporary => unsafe {
                self.uffd().zero(to, PAGE_BYTES).stopped.is_none()
            },
            // The program had it dropped: its pager is asked when it is touched.
            Some(_) if absent => false,
            Some(_) => return self.copy_aside(from, to, locked),
        };
        if is_aside { Moved::Aside } else { Moved::Stays }
    }

    /// Whether Linux has nothing of the page at `at`.
    pub(crate) fn is_absent(&self, at: usize) -> bool {
        let mut there = false;
        let scanned = pagemap::scan(self.pagemap(), at, at + PAGE_BYTES, |_, _| there = true);
        scanned.is_ok() && !there
    }

    /// For pages that cannot be moved: shared after a fork, of other protection, older kernels.
    fn copy_aside(&self, from: usize, to: usize, locked: bool) -> Moved {
        // SAFETY: the page is registered; a writer waits until it is gone and then faults.
        if unsafe { self.uffd_at(from).protect(from, PAGE_BYTES, true) }.is_err() {
            return Moved::Stays;
        }
        // What the pager has locked stays protected also when it stays.
        let lift = || {
            if !locked {
                // SAFETY: lifts what was set above.
                let _ = unsafe { self.uffd_at(from).protect(from, PAGE_BYTES, false) };
            }
        };
        // SAFETY: the program's page is write-protected and stays until it is dropped below.
        let copied = unsafe { self.uffd().copy(to, from, PAGE_BYTES, false) };
        if copied.stopped.is_some() {
            lift();
            return Moved::Stays;
        }
        // SAFETY: the copy counts from now on.
        let dropped = unsafe { mem::advise(from, PAGE_BYTES, mem::MADV_DONTNEED) };
        if dropped.is_err() {
            // Linux has it locked: the page stays, and counts; the copy goes.
            // SAFETY: nobody was told of the copy.
            unsafe { drop_shadow(from, PAGE_BYTES) };
            lift();
        }
        self.wake(from, PAGE_BYTES);
        match dropped {
            Ok(()) => Moved::Aside,
            Err(_) => Moved::Pinned,
        }
    }

    /// Second step: hands clusters to their pagers until no more than `target` pages lie aside.
    pub(crate) fn page_out_to(&self, target: u64) -> Gone {
        let mut gone = Gone::default();
        // Of paging space that was full it is only tried whether it still is.
        let most = if self.account.is_full() { 1 } else { BATCH };
        loop {
            let mut state = self.state.lock();
            let pages = state.pages.aside_pages().saturating_sub(target);
            if state.frozen || pages == 0 {
                return gone;
            }
            let Some(leaving) = take_leaving(&mut state, most, pages) else {
                return gone;
            };
            let spared = self.drop_spare(&mut state, &leaving);
            state.in_flight += 1;
            drop(state);
            let written = self.write(&leaving);
            gone.pages += spared + written.pages;
            gone.refused = written.refused;
            if gone.refused.is_some() || spared + written.pages == 0 {
                return gone;
            }
        }
    }

    /// Drops what lies aside of pages that the pager has.
    fn drop_spare(&self, state: &mut State, leaving: &Leaving) -> u64 {
        let mut pages = 0;
        let mut spare = [(PageIndex(0), 0u16); BATCH];
        for (spare, cluster) in spare.iter_mut().zip(&leaving.clusters[..leaving.count]) {
            *spare = (cluster.first, cluster.spare);
        }
        each_run(state, &mut spare[..leaving.count], |_, run| {
            // SAFETY: the pager has these contents.
            unsafe { drop_shadow(address_of(run.start.0), run.bytes() as usize) };
            pages += run.pages();
        });
        self.account.uncharge(pages);
        self.account
            .counters()
            .page_outs_clean
            .fetch_add(pages, Ordering::Relaxed);
        pages
    }

    /// Hands pages that are being paged out to their pager, `runs` of one object in order, and ends
    /// the transfer. False when they were not taken.
    #[cfg(feature = "std")]
    pub(crate) fn write_runs(&self, runs: &[PageRange], source: Source) -> bool {
        let mut leaving = Leaving {
            clusters: [PageOuts::NONE; BATCH],
            count: 0,
            source,
        };
        for page in runs.iter().flat_map(|run| run.iter()) {
            let first = PageIndex(page.0 / CLUSTER_PAGES * CLUSTER_PAGES);
            if leaving.count == 0 || leaving.clusters[leaving.count - 1].first != first {
                leaving.clusters[leaving.count] = PageOuts {
                    first,
                    ..PageOuts::NONE
                };
                leaving.count += 1;
            }
            leaving.clusters[leaving.count - 1].pages |= 1 << (page.0 - first.0);
        }
        self.write(&leaving).pages > 0
    }

    fn write(&self, leaving: &Leaving) -> Gone {
        const EMPTY: &[u8; PAGE_BYTES] = &[0; PAGE_BYTES];
        let mut out = [PageOut {
            page: PageIndex(0),
            bytes: EMPTY,
        }; BATCH * 16];
        let mut zeros = [0u16; BATCH];
        let mut count = 0;
        for (i, cluster) in leaving.clusters[..leaving.count].iter().enumerate() {
            for bit in bits(cluster.pages) {
                let page = cluster.first.0 + bit;
                let at = shadow_of(address_of(page)) as *const [u8; PAGE_BYTES];
                // SAFETY: the page lies at its shadow, readable, and is not written while it is
                // being paged out.
                let bytes = unsafe { &*at };
                if leaving.source.temporary && is_zero(bytes) {
                    zeros[i] |= 1 << bit;
                    continue;
                }
                let page = PageIndex(page - leaving.source.origin);
                out[count] = PageOut { page, bytes };
                count += 1;
            }
        }
        let source = &leaving.source;
        let result = match count {
            0 => Ok(()),
            _ => source.pager.data_write(source.object, &out[..count]),
        };
        self.written(leaving, &zeros, result)
    }

    fn written(
        &self,
        leaving: &Leaving,
        zeros: &[u16; BATCH],
        result: Result<(), PagerError>,
    ) -> Gone {
        let mut state = self.state.lock();
        let mut freed = 0;
        let mut rewrite = false;
        let mut left = [(PageIndex(0), 0u16); BATCH];
        let clusters = leaving.clusters[..leaving.count].iter().zip(zeros);
        for ((cluster, zero), left) in clusters.zip(&mut left) {
            let mut gone = 0u16;
            for bit in bits(cluster.pages) {
                let page = PageIndex(cluster.first.0 + bit);
                let is_zero = zero >> bit & 1 == 1;
                if is_zero && state.pages.paged_out_zero(page) {
                    self.account
                        .counters()
                        .zero_pages_dropped
                        .fetch_add(1, Ordering::Relaxed);
                    gone |= 1 << bit;
                } else if is_zero || result.is_err() {
                    rewrite |= self.stays(&mut state, page);
                } else {
                    let (_, awaited) = state.pages.paged_out(page);
                    gone |= 1 << bit;
                    if awaited {
                        self.wake(address_of(page.0), PAGE_BYTES);
                    }
                }
            }
            *left = (cluster.first, gone);
        }
        each_run(&mut state, &mut left[..leaving.count], |_, run| {
            // SAFETY: the pager has these contents, or they are zeros.
            unsafe { drop_shadow(address_of(run.start.0), run.bytes() as usize) };
            freed += run.pages();
            self.trace(TraceKind::PageOut, run);
        });
        state.in_flight -= 1;
        self.account.uncharge(freed);
        self.check_account(&state);
        drop(state);
        self.settled.notify();
        match result {
            Ok(()) => Gone {
                pages: freed.max(u64::from(rewrite)),
                refused: None,
            },
            // They stay where they are, to be tried again.
            Err(error) => Gone {
                pages: freed,
                refused: leaving.source.temporary.then_some(error),
            },
        }
    }

    /// A page that the pager did not take: it stays aside, or, when it is mapped again, becomes
    /// dirty there.
    fn stays(&self, state: &mut State, page: PageIndex) -> bool {
        if !state.pages.page_out_failed(page) {
            return false;
        }
        let at = address_of(page.0);
        if state.pages.is_locked(page) {
            self.wake(at, PAGE_BYTES);
        } else {
            // SAFETY: the page in the program is the one that counts now.
            let _ = unsafe { self.uffd_at(at).protect(at, PAGE_BYTES, false) };
        }
        // SAFETY: as above.
        unsafe { drop_shadow(at, PAGE_BYTES) };
        self.account.uncharge(1);
        true
    }
}

/// Takes up to `most` clusters of one source from aside, until they have `pages` pages.
fn take_leaving(state: &mut State, most: usize, pages: u64) -> Option<Leaving> {
    let source = state
        .region_of_page(state.pages.next_aside()?.0)?
        .source
        .clone();
    let same = |other: &Source| other.object == source.object && other.origin == source.origin;
    let mut leaving = Leaving {
        clusters: [PageOuts::NONE; BATCH],
        count: 0,
        source: source.clone(),
    };
    let mut taken = 0;
    while leaving.count < most && taken < pages {
        let next = state
            .pages
            .next_aside()
            .and_then(|page| state.region_of_page(page.0));
        if !next.is_some_and(|region| same(&region.source)) {
            break;
        }
        let Some(cluster) = state.pages.page_out_begins() else {
            break;
        };
        taken += u64::from((cluster.pages | cluster.spare).count_ones());
        leaving.clusters[leaving.count] = cluster;
        leaving.count += 1;
    }
    Some(leaving)
}

fn is_zero(bytes: &[u8; PAGE_BYTES]) -> bool {
    let (words, _) = bytes.as_chunks::<64>();
    words.iter().all(|chunk| *chunk == [0; 64])
}

/// Calls `act` with the runs of pages of a batch of clusters, neighbours in one region together:
/// each run is one call to Linux, and an interrupt to every other processor that runs the program.
fn each_run(
    state: &mut State,
    batch: &mut [(PageIndex, u16)],
    mut act: impl FnMut(&mut State, PageRange),
) {
    batch.sort_unstable_by_key(|(first, _)| *first);
    let region = |state: &State, page: PageIndex| {
        let region = state.region_of_page(page.0);
        region.map(|region| region.start)
    };
    let mut pending = PageRange::new(0, 0);
    for run in batch.iter().flat_map(|(first, mask)| runs(*first, *mask)) {
        let follows = pending.end == run.start && !pending.is_empty();
        if follows && region(state, pending.start) == region(state, run.start) {
            pending.end = run.end;
            continue;
        }
        if !pending.is_empty() {
            act(state, pending);
        }
        pending = run;
    }
    if !pending.is_empty() {
        act(state, pending);
    }
}
