//! The laws of the queues, checked by tests and by the simulator.

use super::*;

impl Pages {
    /// Checks that the queues and the pages agree.
    ///
    /// To be called while no chosen cluster is on its way (between `choose` and `requeue`).
    ///
    /// # Panics
    /// When they do not.
    pub fn check(&self) {
        let mut queued = 0;
        for queue in [&self.resident, &self.transit, &self.aside] {
            let mut clusters = 0;
            for cluster in queue.iter(&self.table) {
                let place = self.table.node(cluster).place;
                assert_eq!(place, queue.place(), "cluster {cluster:#x} says {place:?}");
                clusters += 1;
            }
            assert_eq!(clusters, queue.clusters, "length of {:?}", queue.place());
            queued += clusters;
        }
        let (mut aside, mut placed, mut charged) = (0, 0, 0);
        let mut block = self.table.next_block(0);
        while let Some(at) = block {
            let pages = block_range(at * BLOCK_PAGES);
            let takes_memory = |page: &PageIndex| self.state(*page).is_charged();
            charged += pages.iter().filter(takes_memory).count() as u64;
            let first = at * BLOCK_PAGES / CLUSTER_PAGES;
            for cluster in first..first + BLOCK_PAGES / CLUSTER_PAGES {
                let (pages, queued) = self.check_cluster(cluster as u32);
                aside += pages;
                placed += u64::from(queued);
            }
            block = self.table.next_block(at + 1);
        }
        assert_eq!(aside, self.aside_pages, "number of pages aside");
        assert_eq!(charged, self.charged_pages, "number of pages charged");
        assert_eq!(
            placed, queued,
            "clusters with a place and clusters in queues"
        );
    }

    /// Returns how many pages of a cluster are aside, and whether it is in a queue.
    fn check_cluster(&self, cluster: u32) -> (u64, bool) {
        let place = self.table.node(cluster).place;
        let aside = self.mask(cluster, State::is_aside);
        let granted = self.mask(cluster, |state| state == State::Granted);
        let (clean, dirty) = self.leaving_mask(cluster);
        match place {
            Place::Aside => assert_ne!(aside, 0, "cluster {cluster:#x} is not aside"),
            Place::Nowhere | Place::Resident | Place::Transit => {
                assert_eq!(aside, 0, "cluster {cluster:#x} is aside and in {place:?}");
            }
        }
        if place == Place::Nowhere {
            let leaves = clean | dirty | granted;
            assert_eq!(
                leaves, 0,
                "cluster {cluster:#x} can leave and is in no queue"
            );
        }
        (u64::from(aside.count_ones()), place != Place::Nowhere)
    }

    /// The state of a page and its flags as one number: pages with equal ones behave alike.
    pub fn byte(&self, page: PageIndex) -> u8 {
        self.table.byte(page.0)
    }

    /// True when a thread waits for the end of the page's transfer, or for its pager's answer.
    pub fn awaited(&self, page: PageIndex) -> bool {
        self.is_busy(page) && self.table.byte(page.0) & State::AWAITED != 0 || self.is_asked(page)
    }

    /// True while the pager of a locked page is asked to let a thread write to it.
    pub fn asked(&self, page: PageIndex) -> bool {
        self.is_asked(page)
    }
}
