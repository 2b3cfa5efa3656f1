//! How pages leave: the oldest first, by way of a copy aside.

use alloc::vec::Vec;
use core::ops::Range;

use crate::PageRange;

use super::{GRANT_PAGES, Leaving, Left, Shared, cluster_pages, first_run, mask};
use crate::state::CLUSTER_PAGES;

impl<W> Shared<W> {
    /// What is dirty of `within` is to be written back and to stay: the first such run, at most to
    /// the end of its cluster, or a granted block. `None` when nothing is dirty.
    pub fn choose_dirty(&mut self, within: Range<u64>) -> Option<Leaving> {
        if within.is_empty() {
            return None;
        }
        let blocks = within.start / GRANT_PAGES..within.end.div_ceil(GRANT_PAGES);
        if let Some(number) = self.granted.range(blocks).next() {
            return Some(Leaving::Granted(self.block(*number)));
        }
        let clusters = within.start / CLUSTER_PAGES..within.end.div_ceil(CLUSTER_PAGES);
        for (number, cluster) in self.clusters.range_mut(clusters) {
            let first = number * CLUSTER_PAGES;
            let start = within.start.max(first);
            let end = within.end.min(first + CLUSTER_PAGES);
            let asked = mask(PageRange::new(start, end));
            let dirty = cluster.dirty & !cluster.leaving & asked;
            let (there, aside) = (dirty & cluster.there, dirty & cluster.aside);
            if there | aside == 0 {
                continue;
            }
            let is_aside = aside.trailing_zeros() < there.trailing_zeros();
            let pages = first_run(*number, if is_aside { aside } else { there });
            cluster.leaving |= mask(pages);
            return Some(match is_aside {
                true => Leaving::Aside(pages),
                false => Leaving::Dirty(pages),
            });
        }
        None
    }

    /// True while pages of `within` are on their way to the pager.
    pub fn is_leaving(&self, within: PageRange) -> bool {
        let clusters = within.start.0 / CLUSTER_PAGES..within.end.0.div_ceil(CLUSTER_PAGES);
        self.clusters.range(clusters).any(|(number, cluster)| {
            let part = cluster_pages(*number).intersect(within);
            cluster.leaving & mask(part) != 0
        })
    }

    /// Those of `within` that are on their way in, in runs.
    pub fn coming(&self, within: PageRange) -> Vec<PageRange> {
        let mut runs = Vec::new();
        for number in self.clusters_of(within) {
            let part = mask(cluster_pages(number).intersect(within));
            let mut coming = self.clusters[&number].coming & part;
            while coming != 0 {
                let run = first_run(number, coming);
                coming &= !mask(run);
                runs.push(run);
            }
        }
        runs
    }

    /// True when clean pages of `within` are here, since somebody has wired them.
    pub fn are_held(&self, within: PageRange) -> bool {
        self.clusters_of(within).into_iter().any(|number| {
            let cluster = &self.clusters[&number];
            let part = mask(cluster_pages(number).intersect(within));
            let here = (cluster.there | cluster.aside) & !cluster.dirty & part;
            here != 0 && self.wired.contains_key(&number)
        })
    }

    /// The first run of clean pages of `within`, there or aside: they are gone after this. `None`:
    /// there are none that may go.
    pub fn choose_clean(&mut self, within: Range<u64>) -> Option<Leaving> {
        let clusters = within.start / CLUSTER_PAGES..within.end.div_ceil(CLUSTER_PAGES);
        let wired = &self.wired;
        let clusters = self.clusters.range(clusters);
        let mut free = clusters.filter(|(number, _)| !wired.contains_key(number));
        let leaving = free.find_map(|(number, cluster)| {
            let first = number * CLUSTER_PAGES;
            let start = within.start.max(first);
            let asked = mask(PageRange::new(start, within.end.min(first + CLUSTER_PAGES)));
            let clean = asked & !(cluster.dirty | cluster.leaving | cluster.asked);
            match (cluster.there & clean, cluster.aside & clean) {
                (0, 0) => None,
                (0, aside) => Some(Leaving::Dropped(first_run(*number, aside))),
                (there, _) => Some(Leaving::Clean(first_run(*number, there))),
            }
        });
        if let Some(Leaving::Clean(run) | Leaving::Dropped(run)) = leaving {
            self.drop_clean(run);
            self.forget_empty(run.start.0 / CLUSTER_PAGES);
        }
        leaving
    }

    /// The pager has `taken` pages that were leaving, or not. They are gone unless they are to
    /// `stay` or somebody waits to write to them.
    ///
    /// # Panics
    /// When one of them was not leaving.
    pub fn left(&mut self, pages: PageRange, taken: bool, stay: bool) -> Left<W> {
        let (number, all) = (pages.start.0 / CLUSTER_PAGES, mask(pages));
        let cluster = self.clusters.entry(number).or_default();
        assert!(
            cluster.leaving & all == all,
            "pages {pages:?} were not leaving"
        );
        cluster.leaving &= !all;
        if taken {
            // What leaves is dirty.
            self.dirty -= pages.pages();
            cluster.dirty &= !all;
            cluster.out |= if self.temporary { all } else { 0 };
        }
        let (mut waited, mut going) = (Vec::new(), if taken && !stay { all } else { 0 });
        for page in pages.iter().map(|page| page.0) {
            if let Some(who) = self.waiting.remove(&page) {
                going &= !(1 << (page % CLUSTER_PAGES));
                waited.extend(who);
            }
        }
        let mut gone = Vec::new();
        let locked = self.cluster(pages.start.0).locked;
        while going != 0 {
            let run = first_run(number, going);
            going &= !mask(run);
            self.drop_clean(run);
            gone.push(run);
        }
        // They may come back from who keeps them for the pager, which knows of no lock.
        self.clusters.entry(number).or_default().locked = locked;
        self.forget_empty(number);
        Left { gone, waited }
    }

    /// The oldest pages that are there, a run within a cluster: [`Leaving::SetAside`]; zeros that
    /// nobody wrote to are not worth a copy: [`Leaving::Clean`]. Clusters of which somebody holds
    /// pages stay. `None` when there is nothing that could go.
    pub fn set_aside(&mut self, is_held: impl Fn(PageRange) -> bool) -> Option<Leaving> {
        let number = match self.oldest(is_held)? {
            Ok(number) => number,
            Err(granted) => return Some(granted),
        };
        let temporary = self.temporary;
        let cluster = self.clusters.get_mut(&number)?;
        let zeros = cluster.there & !(cluster.dirty | cluster.out);
        if temporary && zeros != 0 {
            let pages = first_run(number, zeros);
            self.drop_clean(pages);
            self.requeue(number);
            return Some(Leaving::Clean(pages));
        }
        let pages = first_run(number, cluster.there);
        cluster.there &= !mask(pages);
        cluster.aside |= mask(pages);
        self.aside += pages.pages();
        if !core::mem::replace(&mut cluster.queued_aside, true) {
            self.queue_aside.push_back(number);
        }
        self.requeue(number);
        Some(Leaving::SetAside(pages))
    }

    /// The pages that have been aside longest: [`Leaving::Dropped`] or [`Leaving::Aside`]. `None`
    /// when none are, or all of them are on their way to the pager.
    pub fn choose_aside(&mut self) -> Option<Leaving> {
        for _ in 0..self.queue_aside.len() {
            let number = self.queue_aside.pop_front()?;
            let cluster = self.clusters.get_mut(&number)?;
            let clean = cluster.aside & !cluster.dirty;
            let dirty = cluster.aside & cluster.dirty & !cluster.leaving;
            if cluster.aside == 0 {
                // All of it is back, or gone.
                cluster.queued_aside = false;
                self.forget_empty(number);
            } else if clean != 0 {
                self.queue_aside.push_front(number);
                let pages = first_run(number, clean);
                self.drop_clean(pages);
                return Some(Leaving::Dropped(pages));
            } else {
                self.queue_aside.push_back(number);
                if dirty != 0 {
                    let pages = first_run(number, dirty);
                    cluster.leaving |= mask(pages);
                    return Some(Leaving::Aside(pages));
                }
            }
        }
        None
    }

    /// Pages of [`super::Wanted::Aside`] are in the memory file again, as they were, and the
    /// youngest; or not, when they are not `done`. Returns who waited.
    ///
    /// # Panics
    /// When one of them is not aside, or leaves.
    pub fn put_back(&mut self, pages: PageRange, done: bool) -> Vec<W> {
        let (number, all) = (pages.start.0 / CLUSTER_PAGES, mask(pages));
        let cluster = self.clusters.entry(number).or_default();
        assert!(
            cluster.aside & !cluster.leaving & all == all,
            "pages {pages:?} are not aside"
        );
        if done {
            cluster.aside &= !all;
            cluster.there |= all;
            self.aside -= pages.pages();
            self.enqueue(number);
        }
        let who = pages.iter().filter_map(|page| self.waiting.remove(&page.0));
        who.flatten().collect()
    }

    /// True of a page that has no contents anywhere.
    pub fn is_new(&self, page: u64) -> bool {
        let cluster = self.cluster(page);
        let new = cluster.elsewhere() & !cluster.out;
        self.temporary && new >> (page % CLUSTER_PAGES) & 1 != 0
    }

    /// The contents that the pager of a temporary object has of `page` do not count any more, if
    /// the page is dirty and it has some: it may be told to discard them.
    pub fn give_up_old(&mut self, page: u64) -> bool {
        let bit = 1 << (page % CLUSTER_PAGES);
        let Some(cluster) = self.clusters.get_mut(&(page / CLUSTER_PAGES)) else {
            return false;
        };
        let is_old = cluster.out & cluster.dirty & !cluster.leaving & bit != 0;
        cluster.out &= if is_old { !bit } else { !0 };
        is_old
    }

    /// Pages that are aside.
    pub fn aside(&self) -> u64 {
        self.aside
    }

    /// Pages that are wired, wherever they are.
    pub fn wired(&self) -> u64 {
        self.wired.keys().map(|number| self.pages_of(*number)).sum()
    }

    /// Clean pages leave.
    fn drop_clean(&mut self, pages: PageRange) {
        let cluster = self.clusters.entry(pages.start.0 / CLUSTER_PAGES);
        let cluster = cluster.or_default();
        self.aside -= u64::from((cluster.aside & mask(pages)).count_ones());
        cluster.there &= !mask(pages);
        cluster.aside &= !mask(pages);
        cluster.locked &= !mask(pages);
        self.resident -= pages.pages();
    }

    /// The oldest cluster of which pages are there and may go; it has left the queue. `Err` when it
    /// is in a granted block; then it has not.
    fn oldest(&mut self, is_held: impl Fn(PageRange) -> bool) -> Option<Result<u64, Leaving>> {
        for _ in 0..self.queue.len() {
            let number = self.queue.pop_front()?;
            let all = cluster_pages(number);
            let first = all.start.0;
            let cluster = self.clusters.get_mut(&number)?;
            cluster.queued = false;
            if cluster.there == 0 {
                // All of it was discarded, or has left.
                self.forget_empty(number);
                continue;
            }
            if self.wired.contains_key(&number) {
                // Unwiring has it queued again.
                continue;
            }
            let is_busy = cluster.coming | cluster.leaving | cluster.asked != 0;
            if is_busy || is_held(all) {
                // Some of it is on its way, or in use: it is young.
                self.enqueue(number);
                continue;
            }
            if self.granted.contains(&(first / GRANT_PAGES)) {
                self.requeue(number);
                return Some(Err(Leaving::Granted(self.block(first / GRANT_PAGES))));
            }
            return Some(Ok(number));
        }
        None
    }

    /// A cluster with pages that are there becomes the youngest, unless it has its place.
    pub(super) fn enqueue(&mut self, number: u64) {
        let cluster = self.clusters.entry(number).or_default();
        if !core::mem::replace(&mut cluster.queued, true) {
            self.queue.push_back(number);
        }
    }

    /// A cluster that was the oldest is so again, if some of it is there.
    fn requeue(&mut self, number: u64) {
        let cluster = self.clusters.entry(number).or_default();
        if cluster.there != 0 && !core::mem::replace(&mut cluster.queued, true) {
            self.queue.push_front(number);
        }
        self.forget_empty(number);
    }
}
