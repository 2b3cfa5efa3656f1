//! How pages leave: the replacement queues, and the way to the pager.

use super::*;

impl Pages {
    /// Chooses what leaves next. `None` when nothing can.
    pub fn choose(&mut self) -> Option<Victim> {
        loop {
            let (queue, cluster) = self.next_candidate()?;
            let first = u64::from(cluster) * CLUSTER_PAGES;
            let granted = self.mask(cluster, |state| state == State::Granted);
            if granted != 0 {
                self.take(queue, cluster);
                let page = PageIndex(first + u64::from(granted.trailing_zeros()));
                let run = self.stretch(page, block_range(first), State::Granted);
                return Some(Victim::Granted(run));
            }
            if queue == Place::Protected && self.table.node(cluster).warmth > 0 {
                self.take(queue, cluster);
                self.table.node_mut(cluster).warmth -= 1;
                self.protected.push_newest(&mut self.table, cluster);
                continue;
            }
            self.take(queue, cluster);
            let (clean, dirty) = self.leaving_mask(cluster);
            if (clean, dirty) != (0, 0) {
                self.left = self.left.wrapping_add(1).max(1);
                self.table.node_mut(cluster).left_at = self.left;
                return Some(Victim::Cluster {
                    first: PageIndex(first),
                    clean,
                    dirty,
                });
            }
        }
    }

    fn next_candidate(&self) -> Option<(Place, u32)> {
        let probation = self.probation.oldest().map(|c| (Place::Probation, c));
        let protected = self.protected.oldest().map(|c| (Place::Protected, c));
        if self.probation.clusters * 4 >= self.protected.clusters {
            probation.or(protected)
        } else {
            protected.or(probation)
        }
    }

    /// A clean page of a chosen cluster left the program without being written.
    pub fn dropped(&mut self, page: PageIndex) {
        self.expect(page.0, &[State::Clean]);
        self.set(page.0, State::Out);
    }

    /// A page of a chosen cluster was moved aside.
    pub fn moved_aside(&mut self, page: PageIndex) {
        self.expect(page.0, &[State::Resident]);
        self.set(page.0, State::Aside);
    }

    /// A page of a chosen cluster turned out to have no contents.
    pub fn found_absent(&mut self, page: PageIndex) {
        self.expect(page.0, &[State::Resident]);
        self.set(page.0, State::Absent);
    }

    /// A chosen cluster, or the first cluster of a granted run that stays, is done with: it goes
    /// where its pages say.
    pub fn requeue(&mut self, first: PageIndex) {
        let first = first.0 / CLUSTER_PAGES;
        self.settle(first as u32);
    }

    /// The first page of what [`Pages::page_out_begins`] would take.
    pub fn next_aside(&self) -> Option<PageIndex> {
        let cluster = self.aside.oldest()?;
        let pages = self.mask(cluster, |state| state == State::Aside);
        Some(PageIndex(
            u64::from(cluster) * CLUSTER_PAGES + u64::from(pages.trailing_zeros()),
        ))
    }

    /// Takes the cluster that has been aside longest and starts its way to the pager.
    pub fn page_out_begins(&mut self) -> Option<PageOuts> {
        let cluster = self.aside.oldest()?;
        self.aside.remove(&mut self.table, cluster);
        let pages = self.mask(cluster, |state| state == State::Aside);
        let first = u64::from(cluster) * CLUSTER_PAGES;
        for page in bits(pages) {
            self.set(first + page, State::PagingOut);
        }
        self.settle(cluster);
        Some(PageOuts {
            first: PageIndex(first),
            pages,
        })
    }

    /// The pager took a page. Returns (it is in the program, clean; a thread waits for it).
    pub fn paged_out(&mut self, page: PageIndex) -> (bool, bool) {
        self.expect(page.0, &[State::PagingOut, State::PagingOutMapped]);
        let awaited = self.table.byte(page.0) & State::AWAITED != 0;
        let mapped = self.state(page) == State::PagingOutMapped;
        self.set(page.0, if mapped { State::Clean } else { State::Out });
        self.settle(cluster_of(page.0));
        (mapped, awaited)
    }

    /// A page on its way out held only zeros and nobody had mapped it again: it is absent now.
    /// False when it is mapped, and then it must go to the pager after all.
    pub fn paged_out_zero(&mut self, page: PageIndex) -> bool {
        self.expect(page.0, &[State::PagingOut, State::PagingOutMapped]);
        let gone = self.state(page) == State::PagingOut;
        if gone {
            self.set(page.0, State::Absent);
        }
        gone
    }

    /// The pager did not take a page. True when it is in the program, where it must be made
    /// writable again; else it lies aside as before.
    pub fn page_out_failed(&mut self, page: PageIndex) -> bool {
        self.expect(page.0, &[State::PagingOut, State::PagingOutMapped]);
        let mapped = self.state(page) == State::PagingOutMapped;
        self.set(
            page.0,
            if mapped {
                State::Resident
            } else {
                State::Aside
            },
        );
        self.settle(cluster_of(page.0));
        mapped
    }

    /// Which pages of a cluster can leave: (clean, dirty).
    pub(super) fn leaving_mask(&self, cluster: u32) -> (u16, u16) {
        let first = u64::from(cluster) * CLUSTER_PAGES;
        let Some(block) = self.table.block(first / BLOCK_PAGES) else {
            return (0, 0);
        };
        let at = (first % BLOCK_PAGES) as usize;
        let (mut clean, mut dirty) = (0, 0);
        for (i, &byte) in block.pages[at..at + CLUSTER_PAGES as usize]
            .iter()
            .enumerate()
        {
            let state = State::of(byte);
            if state.can_leave() && byte & State::WIRED == 0 {
                clean |= u16::from(state == State::Clean) << i;
                dirty |= u16::from(state == State::Resident) << i;
            }
        }
        (clean, dirty)
    }

    /// True when something of a cluster can be chosen to leave.
    pub(super) fn leaves(&self, cluster: u32) -> bool {
        self.leaving_mask(cluster) != (0, 0)
            || self.mask(cluster, |state| state == State::Granted) != 0
    }

    /// True when a cluster left and came back before as many others had left as there are here:
    /// with twice the memory it would have stayed. It is wanted more than what passes once.
    fn left_lately(&self, cluster: u32) -> bool {
        let left_at = self.table.node(cluster).left_at;
        let since = u64::from(self.left.wrapping_sub(left_at));
        left_at != 0 && since <= self.clusters_queued()
    }

    /// Puts a cluster into the queue that its pages justify: aside when one is aside, else its own
    /// or probation when something can leave, else none.
    pub(super) fn settle(&mut self, cluster: u32) {
        let place = self.table.node(cluster).place;
        let aside = self.mask(cluster, |state| state == State::Aside) != 0;
        let right = match place {
            _ if aside => Place::Aside,
            _ if !self.leaves(cluster) => Place::Nowhere,
            Place::Probation | Place::Protected => place,
            Place::Nowhere if self.left_lately(cluster) => Place::Protected,
            Place::Aside | Place::Nowhere => Place::Probation,
        };
        if place == right {
            return;
        }
        self.take(place, cluster);
        match right {
            Place::Aside => self.aside.push_newest(&mut self.table, cluster),
            Place::Probation => self.probation.push_newest(&mut self.table, cluster),
            Place::Protected => self.protected.push_newest(&mut self.table, cluster),
            Place::Nowhere => {}
        }
    }

    pub(super) fn settle_all(&mut self, pages: PageRange) {
        for cluster in clusters_of(pages) {
            self.settle(cluster);
        }
    }

    fn take(&mut self, place: Place, cluster: u32) {
        match place {
            Place::Probation => self.probation.remove(&mut self.table, cluster),
            Place::Protected => self.protected.remove(&mut self.table, cluster),
            Place::Aside => self.aside.remove(&mut self.table, cluster),
            Place::Nowhere => {}
        }
    }

    pub(super) fn unqueue(&mut self, cluster: u32) {
        self.take(self.table.node(cluster).place, cluster);
    }
}
