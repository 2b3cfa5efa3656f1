//! Pages that another kernel has next.

use alloc::vec::Vec;

use crate::PageRange;

use super::{CLUSTER_PAGES, Shared, cluster_pages, mask, one};

/// Where the contents of a page are, as far as this kernel has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Here {
    /// In the memory file.
    Memory,
    /// Aside.
    Aside,
}

impl<W> Shared<W> {
    /// Where the contents of a page are. `None`: at its pager, or coming from there.
    ///
    /// # Panics
    /// When it is granted.
    pub fn here(&self, page: u64) -> Option<Here> {
        assert!(!self.is_granted(page), "page {page} is granted");
        let (cluster, bit) = (self.cluster(page), mask(one(page)));
        match (cluster.there & bit != 0, cluster.aside & bit != 0) {
            (true, _) => Some(Here::Memory),
            (false, true) => Some(Here::Aside),
            (false, false) => None,
        }
    }

    /// The pager has given its copy of a page away: it is handed back before it goes, written to or
    /// not. False when it is not here.
    pub fn make_precious(&mut self, page: u64) -> bool {
        if self.here(page).is_none() {
            return false;
        }
        let cluster = self.clusters.entry(page / CLUSTER_PAGES).or_default();
        let bit = mask(one(page));
        self.dirty += u64::from(cluster.dirty & bit == 0);
        cluster.dirty |= bit;
        true
    }

    /// Another kernel has `pages` from now on: what is here of them counts no more, and goes without
    /// being handed over. Those that are coming are not here. Returns who waited for the pager to
    /// unlock them, who ask again; `None` while some of them leave.
    ///
    /// # Panics
    /// When some of them are granted.
    pub fn take_away(&mut self, pages: PageRange) -> Option<Vec<W>> {
        let granted = self.granted_in(pages);
        assert!(granted.is_none(), "{granted:?} is granted, and goes away");
        if self.is_leaving(pages) {
            return None;
        }
        let waited = self.ask_again(pages);
        for number in self.clusters_of(pages) {
            let cluster = self.clusters.entry(number).or_default();
            let gone = mask(pages.intersect(cluster_pages(number))) & !cluster.coming;
            self.resident -= u64::from(((cluster.there | cluster.aside) & gone).count_ones());
            self.aside -= u64::from((cluster.aside & gone).count_ones());
            self.dirty -= u64::from((cluster.dirty & gone).count_ones());
            for of in [
                &mut cluster.there,
                &mut cluster.aside,
                &mut cluster.dirty,
                &mut cluster.locked,
            ] {
                *of &= !gone;
            }
            self.forget_empty(number);
        }
        Some(waited)
    }
}
