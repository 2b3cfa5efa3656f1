//! The pages of a memory object that several tasks map: one copy of each, in one memory file.
//!
//! A task's mapping says three things of a page: it is not there (the task faults), it is there to
//! be read (the task faults when it writes), or it is there to be written. What a mapping may say
//! follows from the page's state here, which is one for all tasks:
//!
//! | page | mappings say | its contents count |
//! |---|---|---|
//! | absent | not there | at the pager; zeros where a temporary object has none there |
//! | coming | not there | at the pager |
//! | clean | to be read | here and at the pager |
//! | dirty | anything | here |
//! | leaving | to be read | here, until the pager has taken them |
//! | aside | not there | here, in a copy beside the memory file |
//!
//! Invariant: a mapping that may be written is of a dirty page. So a page is protected in every
//! mapping before it begins to leave, and whoever writes to it then waits.
//!
//! A pager may **lock** pages: nobody writes to one before the pager, which is asked, has unlocked it. A
//! locked page is there to be read, dirty or not. The lock is forgotten when a clean page goes, since its
//! pager says with its contents whether it is locked.
//!
//! Linux does not tell which pages are used, and takes none out of other processes' mappings that
//! it keeps in the file. So pages leave in two steps ([`Shared::set_aside`],
//! [`Shared::choose_aside`]): what is used while it is aside is put back, as the youngest.
//!
//! Pages that are all dirty, or have no contents anywhere, need no decision while they stay:
//! aligned blocks of them can be **granted** ([`Shared::grant`]). Linux then maps them, and fills
//! those that are not there with zeros, in every task as it is touched, at its own speed. All of
//! them count as dirty until the block is taken back, which is when those that nobody touched are
//! found.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::ops::Range;

use crate::PageRange;

use crate::state::CLUSTER_PAGES;
use crate::stream::{Plan, Streams};

mod away;
mod grant;
mod leave;
mod lock;
#[cfg(test)]
mod tests;

pub use away::Here;
pub use grant::GRANT_PAGES;
pub use lock::Locked;

/// Pages that are filled with zeros at a time at most, for one that goes through them in order.
const ZEROS_MAX: u64 = 512;

/// What to do about a page that somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// It is there: these pages, it among them, may be mapped, to be written if `writable`.
    There {
        /// Pages of its cluster that are there in the same way.
        pages: PageRange,
        /// They are dirty from now on.
        writable: bool,
    },
    /// Linux may map all of these pages, whole blocks, it among them.
    Granted(PageRange),
    /// It is on its way, in or out, or its pager is asked to unlock it; who asked is told when that
    /// has ended.
    Waits,
    /// It is locked: ask its pager to unlock it, which ends with [`Shared::unlock`] or
    /// [`Shared::lock`].
    Unlock(PageRange),
    /// Bring these pages in, it among them; then call [`Shared::came`].
    Fetch(PageRange),
    /// These pages, it among them, have no contents anywhere: put zeros there, then call
    /// [`Shared::came`].
    Zero(PageRange),
    /// These pages, it among them, are aside: put their copies into the memory file, then call
    /// [`Shared::put_back`].
    Aside(PageRange),
}

/// Pages that leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// They are gone after this: they are zeros.
    Clean(PageRange),
    /// Protect them in every mapping, hand them to the pager, then call [`Shared::left`]. They
    /// stay.
    Dirty(PageRange),
    /// They are aside from now on: protect them in every mapping, copy them, take them out of the
    /// memory file.
    SetAside(PageRange),
    /// They are aside, and dirty: hand their copies to the pager, then call [`Shared::left`].
    Aside(PageRange),
    /// They were aside, and their copies are not needed any more: the pager has them.
    Dropped(PageRange),
    /// A granted block, of which nothing can leave: decide in every mapping again what of it is
    /// mapped, call [`Shared::take_back`], then choose again.
    Granted(PageRange),
}

/// The end of what was [`Leaving::Dirty`] or [`Leaving::Aside`].
#[derive(Debug, PartialEq, Eq)]
pub struct Left<W> {
    /// These are gone after this.
    pub gone: Vec<PageRange>,
    /// Who waited; they ask again.
    pub waited: Vec<W>,
}

/// Sixteen pages: bit n stands for the n-th.
#[derive(Clone, Copy, Default)]
struct Cluster {
    there: u16,
    coming: u16,
    aside: u16,
    /// Of those there or aside.
    dirty: u16,
    /// Of those dirty.
    leaving: u16,
    /// Not to be written to.
    locked: u16,
    /// Of those there and locked: the pager is asked to unlock them.
    asked: u16,
    /// Its contents, perhaps old ones, are at the pager of a temporary object.
    out: u16,
    /// It has its place in the queue.
    queued: bool,
    /// It has its place in the queue of what is aside.
    queued_aside: bool,
}

impl Cluster {
    fn is_empty(&self) -> bool {
        let pages = self.there | self.coming | self.aside | self.out | self.locked;
        pages == 0 && !(self.queued || self.queued_aside)
    }

    /// Pages that may be written.
    fn writable(&self) -> u16 {
        self.there & self.dirty & !(self.leaving | self.locked)
    }

    /// Pages that are not here in any way.
    fn elsewhere(&self) -> u16 {
        !(self.there | self.coming | self.aside)
    }
}

/// The pages of one object. `W` says who waits.
pub struct Shared<W> {
    pages: u64,
    temporary: bool,
    clusters: BTreeMap<u64, Cluster>,
    /// The numbers of blocks that are granted.
    granted: BTreeSet<u64>,
    /// Clusters in the order in which they came.
    queue: VecDeque<u64>,
    /// Those of which pages are aside, in the order in which they were set there.
    queue_aside: VecDeque<u64>,
    waiting: BTreeMap<u64, Vec<W>>,
    /// How often each cluster is wired: pages leave by clusters, so they stay by clusters.
    wired: BTreeMap<u64, u32>,
    streams: Streams,
    resident: u64,
    resident_max: u64,
    aside: u64,
    dirty: u64,
}

impl<W> Shared<W> {
    /// Of an object of `pages` pages, none of which is there. A `temporary` one begins as zeros,
    /// and its pager has only what was handed to it.
    pub fn new(pages: u64, temporary: bool) -> Self {
        Self {
            pages,
            temporary,
            clusters: BTreeMap::new(),
            granted: BTreeSet::new(),
            queue: VecDeque::new(),
            queue_aside: VecDeque::new(),
            waiting: BTreeMap::new(),
            wired: BTreeMap::new(),
            streams: Streams::default(),
            resident: 0,
            resident_max: 0,
            aside: 0,
            dirty: 0,
        }
    }

    /// Its size.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// It has so many from now on: more, which begin as zeros, or fewer, once those beyond were
    /// discarded.
    ///
    /// # Panics
    /// When the last block is granted and is no whole one, or one of those beyond is there.
    pub fn set_pages(&mut self, pages: u64) {
        let least = self.pages.min(pages);
        let is_cut =
            !least.is_multiple_of(GRANT_PAGES) && self.granted.contains(&(least / GRANT_PAGES));
        assert!(!is_cut, "a block of which pages come or go is granted");
        let first = least.div_ceil(CLUSTER_PAGES);
        let beyond = self
            .clusters
            .range(first..)
            .find(|(_, c)| c.there | c.coming | c.aside != 0);
        assert!(beyond.is_none(), "pages beyond the end are there");
        self.pages = pages;
    }

    /// The contents of `pages`, of which none is there, are at the pager of a temporary object.
    pub fn are_out(&mut self, pages: PageRange) {
        for page in pages.iter().map(|page| page.0) {
            let cluster = self.clusters.entry(page / CLUSTER_PAGES).or_default();
            cluster.out |= 1 << (page % CLUSTER_PAGES) & cluster.elsewhere();
        }
    }

    /// The first granted block that has some of `pages`.
    pub fn granted_in(&self, pages: PageRange) -> Option<PageRange> {
        let blocks = pages.start.0 / GRANT_PAGES..pages.end.0.div_ceil(GRANT_PAGES);
        let number = self.granted.range(blocks).next()?;
        Some(self.block(*number))
    }

    /// Pages that are there, coming or aside: what is charged for.
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// The most that there ever were.
    pub fn resident_max(&self) -> u64 {
        self.resident_max
    }

    /// Pages whose only right contents are here.
    pub fn dirty(&self) -> u64 {
        self.dirty
    }

    /// `who` wants `page`, to `write` to it or to read. At most `window` pages are to be brought in
    /// with it; `alone`, at least that many are worth it. With a window of 0 it is those of its cluster
    /// of `alone` pages, and never of another.
    ///
    /// # Panics
    /// When the object has no such page.
    pub fn want(&mut self, page: u64, write: bool, who: W, alone: u64, window: u64) -> Wanted {
        assert!(page < self.pages, "page {page} is wanted");
        if self.is_granted(page) {
            return Wanted::Granted(self.granted_around(page));
        }
        let cluster = self.cluster(page);
        let bit = 1 << (page % CLUSTER_PAGES);
        // What leaves from aside is mapped nowhere, and goes back when the pager is done with it.
        let is_leaving = cluster.leaving & bit != 0 && (write || cluster.aside & bit != 0);
        let waits = cluster.coming & bit != 0 || is_leaving;
        if waits {
            self.waiting.entry(page).or_default().push(who);
            return Wanted::Waits;
        }
        if cluster.there & bit != 0 {
            return match write && cluster.locked & bit != 0 {
                true => self.unlocking(page, who),
                false => self.there(page, write),
            };
        }
        self.waiting.entry(page).or_default().push(who);
        if cluster.aside & bit != 0 {
            let aside = |cluster: &Cluster| cluster.aside & !cluster.leaving;
            return Wanted::Aside(self.run(one(page), self.beside(page), aside));
        }
        if self.temporary && cluster.out & bit == 0 {
            let planned = self.plan(page, CLUSTER_PAGES, ZEROS_MAX);
            let new = |cluster: &Cluster| cluster.elsewhere() & !cluster.out;
            let pages = self.run(one(page), planned, new);
            self.streams.brought(page, pages.start.0, pages.end.0);
            self.begin(pages);
            return Wanted::Zero(pages);
        }
        let alone = if window == 0 {
            alone
        } else {
            alone.min(window)
        };
        let planned = self.plan(page, alone, window);
        let pages = self.absent_around(page, planned);
        self.streams.brought(page, pages.start.0, pages.end.0);
        self.begin(pages);
        Wanted::Fetch(pages)
    }

    /// `pages` are there in one way: the run of pages of `within` around them that are there in the
    /// same way and not granted.
    pub fn there_around(&self, pages: PageRange, within: PageRange, writable: bool) -> PageRange {
        let within = self.not_granted_around(pages, within);
        self.run(pages, within, |cluster| match writable {
            true => cluster.writable(),
            false => cluster.there & !cluster.writable(),
        })
    }

    /// Nobody wants pages of `within` yet, but somebody will: the first that are at the pager, at
    /// most `most`. `None` when all are there or coming.
    pub fn want_soon(&mut self, within: Range<u64>, most: u64) -> Option<PageRange> {
        let end = within.end.min(self.pages);
        let is_absent =
            |page: u64| self.absent(&self.cluster(page)) >> (page % CLUSTER_PAGES) & 1 != 0;
        let from = (within.start..end).find(|page| is_absent(*page))?;
        if most == 0 {
            return None;
        }
        let range = self.absent_around(from, from..end.min(from.saturating_add(most)));
        self.begin(range);
        Some(range)
    }

    /// The first `supplied` of `pages`, which were to be brought in, are there: clean, or, when they
    /// are `precious`, the only copy. The others are not. Returns who waited for any of them.
    ///
    /// # Panics
    /// When one of them was not coming.
    pub fn came(&mut self, pages: PageRange, supplied: u64, precious: bool) -> Vec<W> {
        let mut who = Vec::new();
        for page in pages.iter().map(|page| page.0) {
            let came = page - pages.start.0 < supplied;
            let (number, bit) = (page / CLUSTER_PAGES, 1 << (page % CLUSTER_PAGES));
            let cluster = self.clusters.entry(number).or_default();
            assert!(cluster.coming & bit != 0, "page {page} was not coming");
            cluster.coming &= !bit;
            if came {
                cluster.there |= bit;
                if precious {
                    self.dirty += 1;
                    cluster.dirty |= bit;
                    cluster.out &= !bit;
                }
                self.enqueue(number);
            } else {
                self.resident -= 1;
                self.forget_empty(number);
            }
            who.extend(self.waiting.remove(&page).unwrap_or_default());
        }
        who
    }

    /// The contents of `pages` do not count any more. False, and nothing is done, while some of
    /// them are on their way in or out, or granted, or their pager is asked to unlock them.
    pub fn discard(&mut self, pages: PageRange) -> bool {
        if self.granted_in(pages).is_some() {
            return false;
        }
        let part = |number: u64| mask(pages.intersect(cluster_pages(number)));
        let numbers = self.clusters_of(pages);
        let is_busy = |number: &u64| {
            let cluster = &self.clusters[number];
            (cluster.coming | cluster.leaving | cluster.asked) & part(*number) != 0
        };
        if numbers.iter().any(is_busy) {
            return false;
        }
        for number in numbers {
            let cluster = self.clusters.entry(number).or_default();
            let gone = part(number);
            let here = cluster.there | cluster.aside;
            self.resident -= u64::from((here & gone).count_ones());
            self.aside -= u64::from((cluster.aside & gone).count_ones());
            cluster.there &= !gone;
            cluster.aside &= !gone;
            self.dirty -= u64::from((cluster.dirty & gone).count_ones());
            cluster.dirty &= !gone;
            cluster.out &= !gone;
            cluster.locked &= !gone;
            self.forget_empty(number);
        }
        true
    }

    /// `pages`, and those of their clusters, stay once they are there, until [`Shared::unwire`] was
    /// called as often.
    pub fn wire(&mut self, pages: PageRange) {
        for cluster in clusters_of(pages) {
            *self.wired.entry(cluster).or_default() += 1;
        }
    }

    /// Pages that [`Shared::wire`] would have stay that may go now.
    pub fn would_wire(&self, pages: PageRange) -> u64 {
        let new = clusters_of(pages).filter(|cluster| !self.wired.contains_key(cluster));
        new.map(|cluster| self.pages_of(cluster)).sum()
    }

    fn pages_of(&self, cluster: u64) -> u64 {
        let end = (cluster + 1) * CLUSTER_PAGES;
        end.min(self.pages).saturating_sub(cluster * CLUSTER_PAGES)
    }

    /// The opposite of [`Shared::wire`].
    ///
    /// # Panics
    /// When one of them is not wired.
    pub fn unwire(&mut self, pages: PageRange) {
        for number in clusters_of(pages) {
            let count = self.wired.get_mut(&number).expect("a wired page");
            *count -= 1;
            if *count == 0 {
                self.wired.remove(&number);
                let cluster = self.clusters.get(&number);
                if cluster.is_some_and(|cluster| cluster.there != 0) {
                    self.enqueue(number);
                }
            }
        }
    }

    fn there(&mut self, page: u64, write: bool) -> Wanted {
        let bit = 1 << (page % CLUSTER_PAGES);
        let cluster = self.cluster(page);
        if write && cluster.dirty & bit == 0 {
            // Of temporary memory what lies beside is likely to be written, too.
            let clean = |cluster: &Cluster| cluster.there & !(cluster.dirty | cluster.locked);
            let pages = match self.temporary {
                true => self.run(one(page), self.beside(page), clean),
                false => one(page),
            };
            let cluster = self.clusters.entry(page / CLUSTER_PAGES).or_default();
            cluster.dirty |= mask(pages);
            self.dirty += pages.pages();
            return Wanted::There {
                pages,
                writable: true,
            };
        }
        let writable = cluster.writable() & bit != 0;
        let beside = self.beside(page);
        let within = PageRange::new(beside.start, beside.end);
        let pages = self.there_around(one(page), within, writable);
        Wanted::There { pages, writable }
    }

    /// The run around `pages`, which are so, inside `within`, of pages that are so: that have their
    /// bits in the set that `so` makes of their cluster.
    fn run(&self, pages: PageRange, within: Range<u64>, so: impl Fn(&Cluster) -> u16) -> PageRange {
        let (mut start, mut end) = (pages.start.0, pages.end.0);
        while end < within.end {
            let at = end % CLUSTER_PAGES;
            let more = u64::from((so(&self.cluster(end)) >> at).trailing_ones());
            end += more;
            if more < CLUSTER_PAGES - at {
                break;
            }
        }
        while start > within.start {
            let at = (start - 1) % CLUSTER_PAGES;
            let set = so(&self.cluster(start - 1)) << (CLUSTER_PAGES - 1 - at);
            let more = u64::from(set.leading_ones());
            start -= more;
            if more < at + 1 {
                break;
            }
        }
        PageRange::new(start, end).intersect(PageRange::new(within.start, within.end))
    }

    /// The pages of the object that are in the cluster of `page`.
    fn beside(&self, page: u64) -> Range<u64> {
        let first = page / CLUSTER_PAGES * CLUSTER_PAGES;
        first..self.pages.min(first + CLUSTER_PAGES)
    }

    /// The numbers of clusters of which something is known, that have some of `pages`.
    fn clusters_of(&self, pages: PageRange) -> Vec<u64> {
        let numbers = pages.start.0 / CLUSTER_PAGES..pages.end.0.div_ceil(CLUSTER_PAGES);
        self.clusters.range(numbers).map(|(n, _)| *n).collect()
    }

    fn cluster(&self, page: u64) -> Cluster {
        let cluster = self.clusters.get(&(page / CLUSTER_PAGES));
        cluster.copied().unwrap_or_default()
    }

    /// Pages of a cluster whose contents are at the pager, and that are not on their way.
    fn absent(&self, cluster: &Cluster) -> u16 {
        match self.temporary {
            true => cluster.out & cluster.elsewhere(),
            false => cluster.elsewhere(),
        }
    }

    fn plan(&mut self, page: u64, alone: u64, window: u64) -> Range<u64> {
        let followed = self.streams.fault(page);
        let plan = if window == 0 { Plan::Alone } else { followed };
        let planned = match plan {
            Plan::Forward(count) => page..page.saturating_add(count.max(alone).min(window)),
            Plan::Backward(count) => {
                (page + 1).saturating_sub(count.max(alone).min(window))..page + 1
            }
            Plan::Alone | Plan::Strided { .. } => {
                let start = page / alone * alone;
                start..start.saturating_add(alone)
            }
        };
        planned.start..planned.end.min(self.pages)
    }

    /// The run of absent pages around `page` inside `within`.
    fn absent_around(&self, page: u64, within: Range<u64>) -> PageRange {
        self.run(one(page), within, |cluster| self.absent(cluster))
    }

    fn begin(&mut self, pages: PageRange) {
        for page in pages.iter() {
            let cluster = self.clusters.entry(page.0 / CLUSTER_PAGES).or_default();
            cluster.coming |= 1 << (page.0 % CLUSTER_PAGES);
        }
        self.resident += pages.pages();
        self.resident_max = self.resident_max.max(self.resident);
    }

    fn forget_empty(&mut self, number: u64) {
        if self.clusters.get(&number).is_some_and(Cluster::is_empty) {
            self.clusters.remove(&number);
        }
    }
}

fn one(page: u64) -> PageRange {
    PageRange::new(page, page + 1)
}

fn clusters_of(pages: PageRange) -> core::ops::Range<u64> {
    pages.start.0 / CLUSTER_PAGES..pages.end.0.div_ceil(CLUSTER_PAGES)
}

fn cluster_pages(number: u64) -> PageRange {
    let first = number * CLUSTER_PAGES;
    PageRange::new(first, first + CLUSTER_PAGES)
}

/// The bits of pages of one cluster.
fn mask(pages: PageRange) -> u16 {
    let ones = (1u32 << pages.pages()) - 1;
    (ones << (pages.start.0 % CLUSTER_PAGES)) as u16
}

/// The first run of pages in `set`, of cluster `number`.
fn first_run(number: u64, set: u16) -> PageRange {
    let first = set.trailing_zeros();
    let count = (set >> first).trailing_ones();
    let start = number * CLUSTER_PAGES + u64::from(first);
    PageRange::new(start, start + u64::from(count))
}
