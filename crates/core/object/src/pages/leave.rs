//! How pages leave: the replacement queues, and the way to the pager.
//!
//! Second chance by moving aside. Clusters leave in the order in which they came; what is dirty is
//! moved aside first, and what is asked back from there in time starts anew as the youngest. On
//! recorded traces this beat probation with protection, S3-FIFO and SIEVE
//! (`tools/bench/trace/README.md`). What long runs bring in leaves before the rest (`sequences`).

use super::*;

impl Pages {
    /// Chooses what leaves next. `None` when nothing can.
    pub fn choose(&mut self) -> Option<Victim> {
        while let Some((cluster, why)) = self.next_to_leave() {
            self.unqueue(cluster);
            let first = u64::from(cluster) * CLUSTER_PAGES;
            let granted = self.mask(cluster, |state| state == State::Granted);
            if granted != 0 {
                let page = PageIndex(first + u64::from(granted.trailing_zeros()));
                let run = self.stretch(page, block_range(first), State::Granted);
                return Some(Victim::Granted(run));
            }
            let (clean, dirty) = self.leaving_mask(cluster);
            if (clean, dirty) != (0, 0) {
                let mark = self.sequences.chosen(cluster, why, self.clusters());
                self.table.node_mut(cluster).mark = mark;
                return Some(Victim::Cluster {
                    first: PageIndex(first),
                    clean,
                    dirty,
                });
            }
        }
        None
    }

    /// The cluster that is to leave next, and why.
    fn next_to_leave(&mut self) -> Option<(u32, Why)> {
        let clusters = self.clusters();
        let table = &self.table;
        self.sequences
            .look(clusters, |cluster| table.node(cluster).mark);
        let rest = self.resident.oldest();
        let Some(transit) = self.transit.oldest() else {
            return Some((rest?, self.sequences.rest_leaves()));
        };
        let Some(rest) = rest else {
            return Some((transit, Why::Transit));
        };
        let oldest = table.node(transit).mark;
        let long_runs = || self.reads.long_runs(Sequences::long_pages(clusters));
        let why = self
            .sequences
            .next(self.transit.clusters, oldest, clusters, long_runs);
        let cluster = match why {
            Why::Transit => transit,
            _ => rest,
        };
        Some((cluster, why))
    }

    /// True when the clean pages of a chosen cluster should be moved aside, too, rather than
    /// dropped: so many came back from there lately.
    pub fn gives_chance(&mut self, first: PageIndex, clean: u16) -> bool {
        clean != 0 && self.chances.gives(first.0, clean.count_ones())
    }

    /// A clean page left without being written: from a chosen cluster, or from aside.
    pub fn dropped(&mut self, page: PageIndex) {
        self.expect(page.0, &[State::Clean, State::Spare]);
        self.set(page.0, State::Out);
    }

    /// A page of a chosen cluster was moved aside.
    pub fn moved_aside(&mut self, page: PageIndex) {
        self.expect(page.0, &[State::Resident, State::Clean]);
        let aside = match self.state(page) {
            State::Clean => State::Spare,
            _ => State::Aside,
        };
        self.set(page.0, aside);
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
        let pages = self.mask(cluster, State::is_aside);
        Some(PageIndex(
            u64::from(cluster) * CLUSTER_PAGES + u64::from(pages.trailing_zeros()),
        ))
    }

    /// Takes the cluster that has been aside longest and starts its way to the pager. What the
    /// pager has is out at once.
    pub fn page_out_begins(&mut self) -> Option<PageOuts> {
        let cluster = self.aside.oldest()?;
        self.aside.remove(&mut self.table, cluster);
        let pages = self.mask(cluster, |state| state == State::Aside);
        let spare = self.mask(cluster, |state| state == State::Spare);
        let first = u64::from(cluster) * CLUSTER_PAGES;
        for page in bits(pages) {
            self.set(first + page, State::PagingOut);
        }
        for page in bits(spare) {
            self.set(first + page, State::Out);
        }
        self.settle(cluster);
        Some(PageOuts {
            first: PageIndex(first),
            pages,
            spare,
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
    /// writable again unless it is locked, and its waiters be woken; else it lies aside as before.
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
            // While its pager is asked to unlock it, a page stays: WRITER is set.
            if state.can_leave() && byte & (State::WIRED | State::WRITER) == 0 {
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

    /// Puts a cluster into the queue that its pages justify: aside when one is aside, else that of
    /// the resident ones when something can leave, else none.
    pub(super) fn settle(&mut self, cluster: u32) {
        let place = self.table.node(cluster).place;
        let right = if self.mask(cluster, State::is_aside) != 0 {
            Place::Aside
        } else if self.leaves(cluster) {
            match self.table.node(cluster).mark.is_transit {
                true => Place::Transit,
                false => Place::Resident,
            }
        } else {
            Place::Nowhere
        };
        if place == right {
            return;
        }
        self.unqueue(cluster);
        match right {
            Place::Aside => self.aside.push_newest(&mut self.table, cluster),
            Place::Resident => self.resident.push_newest(&mut self.table, cluster),
            Place::Transit => self.transit.push_newest(&mut self.table, cluster),
            Place::Nowhere => {}
        }
    }

    pub(super) fn settle_all(&mut self, pages: PageRange) {
        for cluster in clusters_of(pages) {
            self.settle(cluster);
        }
    }

    pub(super) fn unqueue(&mut self, cluster: u32) {
        match self.table.node(cluster).place {
            Place::Resident => self.resident.remove(&mut self.table, cluster),
            Place::Transit => self.transit.remove(&mut self.table, cluster),
            Place::Aside => self.aside.remove(&mut self.table, cluster),
            Place::Nowhere => {}
        }
    }
}
