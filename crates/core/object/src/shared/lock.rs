//! Locks that a pager sets: nobody writes to a page before it is unlocked.

use alloc::vec::Vec;

use crate::PageRange;

use super::{Shared, Wanted, cluster_pages, first_run, mask, one};
use crate::state::CLUSTER_PAGES;

/// Pages were locked.
#[derive(Debug, PartialEq, Eq)]
pub struct Locked<W> {
    /// Protect these in every mapping.
    pub writable: Vec<PageRange>,
    /// Who waited for the pager to unlock pages; they ask again.
    pub waited: Vec<W>,
}

impl<W> Shared<W> {
    /// Nobody writes to those of `pages` that are here or coming from now on.
    ///
    /// # Panics
    /// When some of them are granted.
    pub fn lock(&mut self, pages: PageRange) -> Locked<W> {
        let granted = self.granted_in(pages);
        assert!(granted.is_none(), "{granted:?} is granted, and locked");
        let waited = self.ask_again(pages);
        let mut writable = Vec::new();
        for number in self.clusters_of(pages) {
            let cluster = self.clusters.entry(number).or_default();
            let locked = mask(pages.intersect(cluster_pages(number))) & !cluster.elsewhere();
            let mut open = locked & cluster.writable();
            cluster.locked |= locked;
            while open != 0 {
                let run = first_run(number, open);
                open &= !mask(run);
                writable.push(run);
            }
        }
        Locked { writable, waited }
    }

    /// Everybody may write to `pages` again. Returns who waited for that.
    pub fn unlock(&mut self, pages: PageRange) -> Vec<W> {
        for number in self.clusters_of(pages) {
            let cluster = self.clusters.entry(number).or_default();
            cluster.locked &= !mask(pages.intersect(cluster_pages(number)));
        }
        let waited = self.ask_again(pages);
        let numbers = self.clusters_of(pages);
        numbers
            .into_iter()
            .for_each(|number| self.forget_empty(number));
        waited
    }

    /// The pager will not say whether it unlocks `pages`: who waited for that asks again.
    pub fn ask_again(&mut self, pages: PageRange) -> Vec<W> {
        let mut waited = Vec::new();
        for number in self.clusters_of(pages) {
            let cluster = self.clusters.entry(number).or_default();
            let asked = cluster.asked & mask(pages.intersect(cluster_pages(number)));
            cluster.asked &= !asked;
            let pages = cluster_pages(number).iter();
            for page in pages.filter(|page| asked & mask(one(page.0)) != 0) {
                waited.extend(self.waiting.remove(&page.0).unwrap_or_default());
            }
        }
        waited
    }

    /// `who` is to write to a locked page that is there.
    pub(super) fn unlocking(&mut self, page: u64, who: W) -> Wanted {
        self.waiting.entry(page).or_default().push(who);
        let cluster = self.clusters.entry(page / CLUSTER_PAGES).or_default();
        let bit = mask(one(page));
        if cluster.asked & bit != 0 {
            return Wanted::Waits;
        }
        cluster.asked |= bit;
        Wanted::Unlock(one(page))
    }
}
