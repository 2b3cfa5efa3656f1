//! Pages on their way out that may still be wanted.

use alloc::vec::Vec;

use farpage_abi::PageRange;

use super::{Leaving, Shared, first_run, mask};
use crate::state::CLUSTER_PAGES;

impl<W> Shared<W> {
    /// The oldest pages that are there: [`Leaving::SetAside`]. Zeros that nobody wrote to are not
    /// worth it: [`Leaving::Clean`]. Else as [`Shared::choose`].
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
        self.wired.len() as u64
    }
}
