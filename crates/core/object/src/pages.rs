//! The automaton itself.
//!
//! The shell holds one lock while it asks and tells; every method is one step. Answers do not
//! change anything by themselves: the shell does what the answer says and then tells that it is
//! done (`filled`, `restored`, ...), so a step that cannot be taken leaves no trace.

use crate::{PageIndex, PageRange};

use crate::chance::Chances;
use crate::masks::bits;
use crate::near::Near;
use crate::queue::{Place, Queue};
use crate::sequences::{Mark, Sequences, Why};
use crate::state::{CLUSTER_PAGES, State};
use crate::stream::{Plan, Streams};
use crate::table::{BLOCK_PAGES, Table};

/// Pages that come in together where accesses are near each other but in no run.
pub const NEIGHBOURS: u64 = 8;
/// Pages of a cluster that chance brings together: two reads, and the page after each.
const FEW: u32 = 4;

/// What a fault needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing: the page is there. Wake the thread.
    Wake,
    /// A transfer is under way; its end wakes the thread.
    Wait,
    /// Fill these absent pages with zeros, then tell `filled(.., Filled::Zero)`.
    Zero(PageRange),
    /// Let Linux fill this whole block, then tell `filled(.., Filled::Granted)`.
    Grant(PageRange),
    /// Move these pages back from aside, then tell `restored`.
    Restore(PageRange),
    /// Copy these pages back from aside, write-protected, for they are clean or locked; the copies
    /// aside go. Then tell `restored`.
    RestoreProtected(PageRange),
    /// Copy this page back from aside, write-protected, then tell `copied_back`.
    CopyBack(PageIndex),
    /// Ask the pager: tell `page_in_begins`, ask, tell `paged_in` or `page_in_failed`. When that
    /// takes long and `pages` is one page, ask for [`Pages::neighbourhood`] instead.
    /// `also` lists single pages further on that will be wanted: (distance in pages, how many).
    PageIn {
        /// Holds the page of the fault.
        pages: PageRange,
        /// Strided prefetch.
        also: Option<(i64, u64)>,
    },
    /// Allow writing to these clean pages, then tell `dirtied`.
    Unprotect(PageRange),
    /// The pager has forbidden writing: tell `unlock_begins`, ask it, tell `unlock_ends`.
    Unlock(PageIndex),
    /// The page is lost.
    Fail,
}

/// How absent pages were filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// With zeros.
    Zero,
    /// Given to Linux to fill.
    Granted,
}

/// The mapping that a fault lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its pages.
    pub pages: PageRange,
    /// What nobody has touched is zeros; else it is with the pager.
    pub temporary: bool,
}

/// What leaves next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// A granted run: take it back, look what is there, tell `ungranted`; it is chosen again. Or
    /// `requeue` its first page, when it cannot be taken back now.
    Granted(PageRange),
    /// A cluster, out of its queue now: drop the clean pages and move the dirty ones aside, tell
    /// `dropped` or `moved_aside` for those that left, and `requeue` at the end. The lock is held
    /// from `choose` to `requeue`.
    Cluster {
        /// Its first page.
        first: PageIndex,
        /// Bit n: page n of the cluster is clean.
        clean: u16,
        /// Bit n: page n of the cluster is dirty.
        dirty: u16,
    },
}

/// A cluster on its way from aside to the pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageOuts {
    /// Its first page.
    pub first: PageIndex,
    /// Bit n: page n of the cluster goes.
    pub pages: u16,
    /// Bit n: the pager has page n; what lies aside is to be dropped.
    pub spare: u16,
}

impl PageOuts {
    /// No pages.
    pub const NONE: Self = Self {
        first: PageIndex(0),
        pages: 0,
        spare: 0,
    };
}

/// What a discarded range held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Pages that were charged to the budget.
    pub charged: u64,
    /// Some lay aside.
    pub aside: bool,
    /// The pager has some.
    pub with_pager: bool,
}

/// Every page of an address space.
#[cfg_attr(any(test, feature = "check"), derive(Clone))]
pub struct Pages {
    table: Table,
    resident: Queue,
    /// What long runs brought in.
    transit: Queue,
    aside: Queue,
    sequences: Sequences,
    reads: Streams,
    writes: Streams,
    near: Near,
    chances: Chances,
    aside_pages: u64,
    charged_pages: u64,
}

impl Default for Pages {
    fn default() -> Self {
        Self::new()
    }
}

fn cluster_of(page: u64) -> u32 {
    (page / CLUSTER_PAGES) as u32
}

fn clusters_of(pages: PageRange) -> impl DoubleEndedIterator<Item = u32> {
    let clusters = pages.start.0 / CLUSTER_PAGES..pages.end.0.div_ceil(CLUSTER_PAGES);
    clusters.map(|cluster| cluster as u32)
}

fn block_range(page: u64) -> PageRange {
    let start = page / BLOCK_PAGES * BLOCK_PAGES;
    PageRange::new(start, start + BLOCK_PAGES)
}

impl Pages {
    /// All pages absent.
    pub fn new() -> Self {
        Self {
            table: Table::new(),
            resident: Queue::new(Place::Resident),
            transit: Queue::new(Place::Transit),
            aside: Queue::new(Place::Aside),
            sequences: Sequences::new(),
            reads: Streams::default(),
            writes: Streams::default(),
            near: Near::new(),
            chances: Chances::new(),
            aside_pages: 0,
            charged_pages: 0,
        }
    }

    /// The state of `page`.
    pub fn state(&self, page: PageIndex) -> State {
        State::of(self.table.byte(page.0))
    }

    /// True when the pager has `page`, and nobody else: it may be asked for before it is touched.
    /// `temporary` as in [`Mapping`].
    pub fn is_with_pager(&self, page: PageIndex, temporary: bool) -> bool {
        match self.state(page) {
            State::Out => true,
            State::Absent => !temporary,
            _ => false,
        }
    }

    /// Pages that lie aside and are not being paged out.
    pub fn aside_pages(&self) -> u64 {
        self.aside_pages
    }

    /// Pages that take memory which the budget is charged for: the size of the task's account.
    pub fn charged_pages(&self) -> u64 {
        self.charged_pages
    }

    /// Clusters that can be chosen to leave.
    pub fn clusters_queued(&self) -> u64 {
        self.resident.clusters + self.transit.clusters
    }

    /// Clusters that all pages in memory would be.
    fn clusters(&self) -> u64 {
        self.charged_pages / CLUSTER_PAGES
    }

    fn set(&mut self, page: u64, state: State) {
        let byte = self.table.byte_mut(page);
        let before = State::of(*byte);
        let flags = *byte & (State::WIRED | State::LOCKED);
        *byte = state as u8 | flags;
        self.aside_pages += u64::from(state.is_aside());
        self.aside_pages -= u64::from(before.is_aside());
        self.charged_pages += u64::from(state.is_charged());
        self.charged_pages -= u64::from(before.is_charged());
        if state == State::Out {
            self.near.left(PageIndex(page));
        }
    }

    fn expect(&self, page: u64, states: &[State]) {
        let state = State::of(self.table.byte(page));
        assert!(
            states.contains(&state),
            "page {page:#x} is {state:?}, not one of {states:?}"
        );
    }

    /// What a fault on `page` needs, a write-protection fault if `protection`, in
    /// `mapping`. `again` marks a fault that was asked about before.
    pub fn fault(
        &mut self,
        page: PageIndex,
        protection: bool,
        mapping: Mapping,
        again: bool,
    ) -> Answer {
        let state = self.state(page);
        if protection && self.is_locked(page) && state.can_leave() {
            if self.is_asked(page) {
                return Answer::Wait;
            }
            return Answer::Unlock(page);
        }
        match state {
            State::Granted | State::Resident => Answer::Wake,
            State::Clean if protection => {
                let plan = if again {
                    Plan::Alone
                } else {
                    self.writes.fault(page.0)
                };
                let pages = self.run(page, plan, mapping.pages, State::Clean);
                self.writes.brought(page.0, pages.start.0, pages.end.0);
                Answer::Unprotect(pages)
            }
            State::Clean => Answer::Wake,
            State::PagingOutMapped if !protection => Answer::Wake,
            State::PagingIn if protection => {
                *self.table.byte_mut(page.0) |= State::AWAITED | State::WRITER;
                Answer::Wait
            }
            State::PagingOutMapped | State::PagingIn => {
                *self.table.byte_mut(page.0) |= State::AWAITED;
                Answer::Wait
            }
            State::PagingOut => Answer::CopyBack(page),
            State::Aside if self.is_locked(page) => Answer::RestoreProtected(PageRange::one(page)),
            State::Aside => Answer::Restore(self.aside_run(page, mapping.pages)),
            State::Spare => Answer::RestoreProtected(self.aside_run(page, mapping.pages)),
            State::Absent if mapping.temporary => {
                let plan = if again {
                    Plan::Alone
                } else {
                    self.reads.fault(page.0)
                };
                let answer = self.fill(page, plan, mapping.pages);
                if let Answer::Grant(pages) | Answer::Zero(pages) = answer {
                    self.reads.brought(page.0, pages.start.0, pages.end.0);
                }
                answer
            }
            State::Absent | State::Out => {
                let plan = if again {
                    Plan::Alone
                } else {
                    self.near.faulted(page, self.charged_pages);
                    self.reads.fault(page.0)
                };
                let also = match plan {
                    Plan::Strided { stride, count } => Some((stride, count)),
                    Plan::Alone | Plan::Forward(_) | Plan::Backward(_) => None,
                };
                let pages = self.run(page, plan, mapping.pages, state);
                Answer::PageIn { pages, also }
            }
            State::Failed => Answer::Fail,
        }
    }

    fn fill(&self, page: PageIndex, plan: Plan, limits: PageRange) -> Answer {
        let block = block_range(page.0);
        let whole = block.intersect(limits) == block;
        let wanted = matches!(plan, Plan::Forward(_)) || page.0 - block.start.0 < CLUSTER_PAGES;
        if whole
            && wanted
            && block
                .iter()
                .all(|p| self.table.byte(p.0) == State::Absent as u8)
        {
            return Answer::Grant(block);
        }
        match plan {
            Plan::Forward(_) | Plan::Backward(_) => {
                Answer::Zero(self.run(page, plan, limits, State::Absent))
            }
            Plan::Alone | Plan::Strided { .. } => {
                let start = page.0 / CLUSTER_PAGES * CLUSTER_PAGES;
                let cluster = PageRange::new(start, start + CLUSTER_PAGES).intersect(limits);
                Answer::Zero(self.stretch(page, cluster, State::Absent))
            }
        }
    }

    /// The longest run of pages in `state` around `page` inside `within`. A locked page is in no
    /// run: it is treated otherwise than its neighbours.
    fn stretch(&self, page: PageIndex, within: PageRange, state: State) -> PageRange {
        let same = |p: u64| {
            State::of(self.table.byte(p)) == state && self.table.byte(p) & State::LOCKED == 0
        };
        let (mut start, mut end) = (page.0, page.0 + 1);
        if self.is_locked(page) {
            return PageRange::one(page);
        }
        while start > within.start.0 && same(start - 1) {
            start -= 1;
        }
        while end < within.end.0 && same(end) {
            end += 1;
        }
        PageRange::new(start, end)
    }

    fn run(&self, page: PageIndex, plan: Plan, limits: PageRange, state: State) -> PageRange {
        let (below, above) = match plan {
            Plan::Alone | Plan::Strided { .. } => (0, 1),
            Plan::Forward(count) => (0, count),
            Plan::Backward(count) => (count - 1, 1),
        };
        let start = page.0.saturating_sub(below);
        let within = PageRange::new(start, page.0 + above).intersect(limits);
        self.stretch(page, within, state)
    }

    /// What to ask for instead of an out page alone when the pager takes its time: that costs
    /// little more. Those beside it if many of its cluster are here, else the next page, because
    /// what a program reads seldom ends where a page does; and none where they proved to be of no
    /// use.
    pub fn neighbourhood(&mut self, page: PageIndex, limits: PageRange) -> PageRange {
        let near = self.mask(cluster_of(page.0), |state| {
            matches!(state, State::Resident | State::Clean | State::PagingIn)
        });
        let around = if near.count_ones() <= FEW {
            PageRange::new(page.0, page.0 + 2)
        } else {
            let start = page.0 / NEIGHBOURS * NEIGHBOURS;
            PageRange::new(start, start + NEIGHBOURS)
        };
        let around = self.stretch(page, around.intersect(limits), self.state(page));
        self.near.choose(page, around)
    }

    /// What to ask for instead of a page alone when the pager says that `count` pages (a power of
    /// two) take hardly longer than one: those of its aligned cluster, counted from `origin`, that
    /// are not here either. Of a cluster's last page the next one too: what a program reads seldom
    /// ends where a page does, and would take a second request.
    pub fn cluster(
        &self,
        page: PageIndex,
        limits: PageRange,
        origin: u64,
        count: u64,
    ) -> PageRange {
        let start = origin + (page.0 - origin) / count * count;
        let end = (start + count).max(page.0 + 2);
        self.out_around(page, PageRange::new(start, end).intersect(limits))
    }

    /// How many pages the run of the fault on `page` has brought in before it.
    pub fn run_pages(&self, page: PageIndex) -> u64 {
        self.reads.run_pages(page.0)
    }

    /// As many pages around `page`, which is out, as are `within` and out like it.
    pub fn out_around(&self, page: PageIndex, within: PageRange) -> PageRange {
        self.stretch(page, within, self.state(page))
    }

    /// The same, of the page of a fault, which brings them in: the run that it belongs to goes on
    /// behind them.
    pub fn brings(&mut self, page: PageIndex, within: PageRange) -> PageRange {
        let pages = self.out_around(page, within);
        self.reads.brought(page.0, pages.start.0, pages.end.0);
        pages
    }

    fn aside_run(&self, page: PageIndex, limits: PageRange) -> PageRange {
        let start = page.0 / CLUSTER_PAGES * CLUSTER_PAGES;
        let cluster = PageRange::new(start, start + CLUSTER_PAGES).intersect(limits);
        self.stretch(page, cluster, self.state(page))
    }

    /// Absent pages were filled.
    pub fn filled(&mut self, pages: PageRange, how: Filled) {
        let state = match how {
            Filled::Zero => State::Resident,
            Filled::Granted => State::Granted,
        };
        for page in pages.iter() {
            self.expect(page.0, &[State::Absent]);
            self.set(page.0, state);
        }
        self.begin(pages);
    }

    /// Pages of a mapping that existed before it was managed: Linux has filled what it has filled.
    pub fn adopt(&mut self, pages: PageRange) {
        for page in pages.iter() {
            self.expect(page.0, &[State::Absent]);
            self.set(page.0, State::Granted);
        }
        self.begin(pages);
    }

    /// New pages are there. What is remembered of their clusters is of others that lay there.
    fn begin(&mut self, pages: PageRange) {
        for cluster in clusters_of(pages) {
            let node = self.table.node_mut(cluster);
            if node.is_free() {
                node.mark = Mark::NONE;
            }
            self.settle(cluster);
        }
    }

    /// A granted run was taken back; `present` says which of its pages have contents.
    pub fn ungranted(&mut self, pages: PageRange, present: impl Fn(PageIndex) -> bool) -> u64 {
        let mut absent = 0;
        for page in pages.iter() {
            if State::of(self.table.byte(page.0)) == State::Granted {
                let there = present(page);
                absent += u64::from(!there);
                self.set(
                    page.0,
                    if there {
                        State::Resident
                    } else {
                        State::Absent
                    },
                );
            }
        }
        for cluster in clusters_of(pages).rev() {
            self.table.node_mut(cluster).mark = Mark::NONE;
            self.settle(cluster);
            if self.table.node(cluster).place != Place::Aside && self.leaves(cluster) {
                self.unqueue(cluster);
                self.resident.push_oldest(&mut self.table, cluster);
            }
        }
        absent
    }

    /// Pages came back from aside: they are wanted, and their clusters leave last.
    pub fn restored(&mut self, pages: PageRange) {
        for page in pages.iter() {
            self.expect(page.0, &[State::Aside, State::Spare]);
            if self.state(page) == State::Spare {
                self.chances.taken(page.0);
                self.set(page.0, State::Clean);
            } else {
                self.set(page.0, State::Resident);
            }
        }
        for cluster in clusters_of(pages) {
            if self.mask(cluster, State::is_aside) == 0 {
                self.unqueue(cluster);
                self.table.node_mut(cluster).mark = Mark::NONE;
                self.settle(cluster);
            }
        }
    }

    /// A page that is being paged out was copied back, write-protected.
    pub fn copied_back(&mut self, page: PageIndex) {
        self.expect(page.0, &[State::PagingOut]);
        self.set(page.0, State::PagingOutMapped);
    }

    /// Clean pages may be written to now; the pager's copy is stale.
    pub fn dirtied(&mut self, pages: PageRange) {
        for page in pages.iter() {
            self.expect(page.0, &[State::Clean]);
            self.set(page.0, State::Resident);
        }
    }

    /// A request for these pages goes to the pager; a thread waits for `waited`. The pager may
    /// supply fewer, and then `page_in_ends` must know whom to wake.
    pub fn page_in_begins(&mut self, pages: PageRange, waited: Option<PageIndex>) {
        for page in pages.iter() {
            self.expect(page.0, &[State::Out, State::Absent]);
            self.set(page.0, State::PagingIn);
        }
        // The run of the fault goes on behind what is really asked for.
        let run_pages = waited.map_or(0, |page| {
            self.reads.brought(page.0, pages.start.0, pages.end.0)
        });
        for cluster in clusters_of(pages) {
            self.comes(cluster, run_pages);
        }
        if let Some(page) = waited {
            self.expect(page.0, &[State::PagingIn]);
            *self.table.byte_mut(page.0) |= State::AWAITED;
        }
    }

    /// Pages of a cluster are about to come.
    fn comes(&mut self, cluster: u32, run_pages: u64) {
        let (clusters, node) = (self.clusters(), self.table.node_mut(cluster));
        if node.is_free() {
            node.mark = self.sequences.comes(node.mark, run_pages, clusters);
        }
    }

    /// The pager supplied these pages and they are in the program; `clean` when it keeps a copy.
    /// True when a thread found one of them there, write-protected, before this was told: it must
    /// be woken. (Those who waited for the page itself were woken by its coming.)
    #[must_use]
    pub fn paged_in(&mut self, pages: PageRange, clean: bool) -> bool {
        let mut awaited = false;
        for page in pages.iter() {
            self.expect(page.0, &[State::PagingIn]);
            awaited |= self.table.byte(page.0) & State::WRITER != 0;
            self.set(page.0, if clean { State::Clean } else { State::Resident });
        }
        self.settle_all(pages);
        awaited
    }

    /// These pages were not supplied after all: they stay with the pager. True when a thread waits
    /// for one of them and must be woken to ask again.
    #[must_use]
    pub fn page_in_ends(&mut self, pages: PageRange) -> bool {
        let mut awaited = false;
        for page in pages.iter() {
            self.expect(page.0, &[State::PagingIn]);
            awaited |= self.table.byte(page.0) & State::AWAITED != 0;
            self.set(page.0, State::Out);
        }
        awaited
    }

    /// The pager cannot supply this page, ever.
    pub fn page_in_failed(&mut self, page: PageIndex) {
        self.expect(page.0, &[State::PagingIn]);
        self.set(page.0, State::Failed);
    }

    /// The clusters of `pages` go where their pages say.
    pub fn requeue_all(&mut self, pages: PageRange) {
        self.settle_all(pages);
    }

    /// True while a transfer of one of these pages is under way, or its pager is asked about one.
    pub fn busy(&self, pages: PageRange) -> bool {
        self.existing(pages).any(|page| self.is_busy(page))
    }

    fn is_busy(&self, page: PageIndex) -> bool {
        let transfer = matches!(
            self.state(page),
            State::PagingIn | State::PagingOut | State::PagingOutMapped
        );
        transfer || self.is_asked(page)
    }

    /// True when one of these pages is in a state that `wanted` accepts.
    pub fn any(&self, pages: PageRange, wanted: impl Fn(State) -> bool) -> bool {
        self.existing(pages).any(|page| wanted(self.state(page)))
    }

    /// The pages of a range that the table knows; others are absent.
    pub fn existing(&self, pages: PageRange) -> impl Iterator<Item = PageIndex> {
        let mut block = self.table.next_block(pages.start.0 / BLOCK_PAGES);
        core::iter::from_fn(move || {
            let at = block.filter(|b| b * BLOCK_PAGES < pages.end.0)?;
            block = self.table.next_block(at + 1);
            Some(PageRange::new(at * BLOCK_PAGES, (at + 1) * BLOCK_PAGES).intersect(pages))
        })
        .flat_map(|range| (range.start.0..range.end.0).map(PageIndex))
    }

    /// The runs of pages in `state` within `pages`.
    pub fn runs(&self, pages: PageRange, state: State) -> impl Iterator<Item = PageRange> {
        self.runs_of(pages, move |page| self.state(page) == state)
    }

    /// The runs of pages that lie in the program.
    pub fn resident_runs(&self, pages: PageRange) -> impl Iterator<Item = PageRange> {
        self.runs_of(pages, |page| {
            let state = self.state(page);
            matches!(
                state,
                State::Resident | State::Clean | State::PagingOutMapped
            )
        })
    }

    /// The runs of pages that lie in the program and must be write-protected there.
    pub fn protected_runs(&self, pages: PageRange) -> impl Iterator<Item = PageRange> {
        self.runs_of(pages, |page| match self.state(page) {
            State::Clean | State::PagingOutMapped => true,
            State::Resident => self.is_locked(page),
            State::Absent
            | State::Granted
            | State::Aside
            | State::Spare
            | State::PagingOut
            | State::PagingIn
            | State::Out
            | State::Failed => false,
        })
    }

    fn runs_of(
        &self,
        pages: PageRange,
        wanted: impl Fn(PageIndex) -> bool,
    ) -> impl Iterator<Item = PageRange> {
        let mut found = self.existing(pages).filter(move |page| wanted(*page));
        let mut pending: Option<PageRange> = None;
        core::iter::from_fn(move || {
            loop {
                match (found.next(), pending) {
                    (Some(page), Some(run)) if run.end == page => {
                        pending = Some(PageRange::new(run.start.0, page.0 + 1));
                    }
                    (Some(page), before) => {
                        pending = Some(PageRange::one(page));
                        if before.is_some() {
                            return before;
                        }
                    }
                    (None, last) => {
                        pending = None;
                        return last;
                    }
                }
            }
        })
    }

    /// The contents of a range are gone for good. Nothing in it may be busy.
    pub fn discard(&mut self, pages: PageRange) -> Discarded {
        let mut held = Discarded::default();
        let mut from = pages.start.0;
        while let Some(block) = self.table.next_block(from / BLOCK_PAGES) {
            if block * BLOCK_PAGES >= pages.end.0 {
                break;
            }
            let part = block_range(block * BLOCK_PAGES).intersect(pages);
            self.discard_in_block(part, &mut held);
            self.table.free_if_empty(block);
            from = (block + 1) * BLOCK_PAGES;
        }
        held
    }

    fn discard_in_block(&mut self, pages: PageRange, held: &mut Discarded) {
        for page in pages.iter() {
            let state = self.state(page);
            assert!(
                !self.is_busy(page),
                "page {page:?} discarded while {state:?}"
            );
            held.charged += u64::from(state.is_charged());
            held.aside |= state.is_aside();
            held.with_pager |= matches!(
                state,
                State::Out | State::Clean | State::Spare | State::Failed
            );
            self.set(page.0, State::Absent);
            *self.table.byte_mut(page.0) = State::Absent as u8;
        }
        self.settle_all(pages);
    }

    /// Renames the pages of `from` to the same number of absent pages at `to` (mremap). Nothing
    /// may be busy.
    pub fn rename(&mut self, from: PageRange, to: PageIndex) {
        let aside = self.any(from, State::is_aside);
        assert!(
            !aside && !self.busy(from),
            "renamed while pages are aside or busy"
        );
        for page in from.iter() {
            let byte = self.table.byte(page.0);
            if byte != State::Absent as u8 {
                let target = to.0 + (page.0 - from.start.0);
                self.set(target, State::of(byte));
                // Who keeps pages from leaving does so for a place.
                let there = self.table.byte_mut(target);
                *there = byte & !State::WIRED | *there & State::WIRED;
            }
        }
        self.discard(from);
        self.settle_all(PageRange::new(to.0, to.0 + from.pages()));
    }

    /// Keeps pages from leaving, or lets them again.
    pub fn wire(&mut self, pages: PageRange, wired: bool) {
        for page in pages.iter() {
            let byte = self.table.byte_mut(page.0);
            *byte = if wired {
                *byte | State::WIRED
            } else {
                *byte & !State::WIRED
            };
        }
        if !wired {
            self.settle_all(pages);
        }
    }

    fn mask(&self, cluster: u32, wanted: impl Fn(State) -> bool) -> u16 {
        let first = u64::from(cluster) * CLUSTER_PAGES;
        let Some(block) = self.table.block(first / BLOCK_PAGES) else {
            return 0;
        };
        let at = (first % BLOCK_PAGES) as usize;
        let bytes = &block.pages[at..at + CLUSTER_PAGES as usize];
        let one = |(i, &byte)| u16::from(wanted(State::of(byte))) << i;
        bytes.iter().enumerate().map(one).sum()
    }
}

#[cfg(any(test, feature = "check"))]
mod check;
mod leave;
mod lock;
#[cfg(test)]
mod tests;
