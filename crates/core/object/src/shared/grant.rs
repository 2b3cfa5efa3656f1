//! Blocks of pages that Linux may map as it likes.

use core::ops::Range;

use crate::PageRange;

use super::{Shared, cluster_pages, mask};
use crate::state::CLUSTER_PAGES;

/// Pages of a block that can be granted: a huge page; fewer in tests, so that blocks fill up.
pub const GRANT_PAGES: u64 = if cfg!(test) { 32 } else { 512 };
/// Granted blocks that are told at a time, before and after the one that is wanted.
const GRANTED_AROUND: u64 = 64;

impl<W> Shared<W> {
    /// Grants the block of `page`, if all of its pages are dirty or have no contents anywhere. How
    /// many pages begin to count as there; `None` when it cannot be granted, or is.
    ///
    /// # Panics
    /// When the object has no such page.
    pub fn grant(&mut self, page: u64) -> Option<u64> {
        assert!(page < self.pages, "page {page} is to be granted");
        let block = self.block_of(page);
        let can_be = |(number, asked): (u64, u16)| {
            let cluster = self.clusters.get(&number).copied().unwrap_or_default();
            let new = cluster.elsewhere() & !cluster.out;
            let new = if self.temporary { new } else { 0 };
            (cluster.writable() | new) & asked == asked
        };
        if self.is_granted(page) || !parts(block).all(can_be) {
            return None;
        }
        let before = self.resident;
        for (number, asked) in parts(block) {
            let cluster = self.clusters.entry(number).or_default();
            self.resident += u64::from((asked & !cluster.there).count_ones());
            self.dirty += u64::from((asked & !cluster.dirty).count_ones());
            cluster.there |= asked;
            cluster.dirty |= asked;
            self.enqueue(number);
        }
        self.resident_max = self.resident_max.max(self.resident);
        self.granted.insert(page / GRANT_PAGES);
        Some(self.resident - before)
    }

    /// A granted block is not granted any more. Of its pages only those in `there`, runs in order,
    /// have been touched; the others have no contents.
    ///
    /// # Panics
    /// When `block` is no granted block.
    pub fn take_back(&mut self, block: PageRange, there: &[PageRange]) {
        let number = block.start.0 / GRANT_PAGES;
        let was = self.granted.remove(&number);
        assert!(
            was && block == self.block(number),
            "{block:?} is not granted"
        );
        for (number, asked) in parts(block) {
            let touched = there.iter().map(|run| run.intersect(cluster_pages(number)));
            let touched = touched.filter(|run| !run.is_empty());
            let gone = asked & !touched.map(mask).fold(0, |all, run| all | run);
            let cluster = self.clusters.entry(number).or_default();
            cluster.there &= !gone;
            self.dirty -= u64::from((cluster.dirty & gone).count_ones());
            cluster.dirty &= !gone;
            self.resident -= u64::from(gone.count_ones());
        }
    }

    /// The pages that are granted together with `page`, if it is.
    pub fn block_of(&self, page: u64) -> PageRange {
        self.block(page / GRANT_PAGES)
    }

    pub(super) fn is_granted(&self, page: u64) -> bool {
        self.granted.contains(&(page / GRANT_PAGES))
    }

    /// The pages of granted blocks that lie around `page`, which is in one.
    pub(super) fn granted_around(&self, page: u64) -> PageRange {
        let number = page / GRANT_PAGES;
        let (mut first, mut last) = (number, number);
        let least = number.saturating_sub(GRANTED_AROUND);
        while first > least && self.granted.contains(&(first - 1)) {
            first -= 1;
        }
        while last < number + GRANTED_AROUND && self.granted.contains(&(last + 1)) {
            last += 1;
        }
        PageRange::new(self.block(first).start.0, self.block(last).end.0)
    }

    /// The pages of the object that are in a block.
    pub(super) fn block(&self, number: u64) -> PageRange {
        let start = number * GRANT_PAGES;
        PageRange::new(start, self.pages.min(start + GRANT_PAGES))
    }

    /// As much of `within`, around `pages`, as is in no granted block.
    pub(super) fn not_granted_around(&self, pages: PageRange, within: PageRange) -> Range<u64> {
        let (mut start, mut end) = (within.start.0, within.end.0);
        let here = pages.start.0 / GRANT_PAGES;
        let before = here.min(start / GRANT_PAGES)..here;
        if let Some(granted) = self.granted.range(before).next_back() {
            start = (granted + 1) * GRANT_PAGES;
        }
        let after = here..end.div_ceil(GRANT_PAGES).max(here);
        if let Some(granted) = self.granted.range(after).next() {
            end = granted * GRANT_PAGES;
        }
        start..end
    }
}

/// The clusters that have some of `pages`, and the bits of those.
fn parts(pages: PageRange) -> impl Iterator<Item = (u64, u16)> {
    let numbers = pages.start.0 / CLUSTER_PAGES..pages.end.0.div_ceil(CLUSTER_PAGES);
    numbers.map(move |number| (number, mask(pages.intersect(cluster_pages(number)))))
}
