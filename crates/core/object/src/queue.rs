//! Replacement queues: doubly linked lists of clusters, threaded through the page table.

use crate::sequences::Mark;
use crate::table::Table;

const NONE: u32 = u32::MAX;

/// The queue that a cluster is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Place {
    /// None: no page of it can leave.
    Nowhere = 0,
    /// Pages of it are in the program and can leave; none is aside.
    Resident = 1,
    /// Moved aside: last chance.
    Aside = 2,
    /// As resident; a long run brought it in.
    Transit = 3,
}

/// A cluster's links.
#[derive(Clone, Copy)]
pub(crate) struct Node {
    newer: u32,
    older: u32,
    pub(crate) place: Place,
    pub(crate) mark: Mark,
}

impl Node {
    pub(crate) const FREE: Self = Self {
        newer: NONE,
        older: NONE,
        place: Place::Nowhere,
        mark: Mark::NONE,
    };

    pub(crate) fn is_free(&self) -> bool {
        self.place == Place::Nowhere
    }
}

/// One list; the oldest leaves first.
#[derive(Clone, Copy)]
pub(crate) struct Queue {
    place: Place,
    newest: u32,
    oldest: u32,
    pub(crate) clusters: u64,
}

impl Queue {
    pub(crate) const fn new(place: Place) -> Self {
        Self {
            place,
            newest: NONE,
            oldest: NONE,
            clusters: 0,
        }
    }

    pub(crate) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    #[cfg(any(test, feature = "check"))]
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Every cluster, oldest first.
    #[cfg(any(test, feature = "check"))]
    pub(crate) fn iter<'a>(&self, table: &'a Table) -> impl Iterator<Item = u32> + 'a {
        let mut at = self.oldest;
        core::iter::from_fn(move || {
            let cluster = (at != NONE).then_some(at)?;
            at = table.node(cluster).newer;
            Some(cluster)
        })
    }

    pub(crate) fn push_newest(&mut self, table: &mut Table, cluster: u32) {
        let before = self.newest;
        let node = table.node_mut(cluster);
        debug_assert!(node.is_free());
        node.newer = NONE;
        node.older = before;
        node.place = self.place;
        match before {
            NONE => self.oldest = cluster,
            _ => table.node_mut(before).newer = cluster,
        }
        self.newest = cluster;
        self.clusters += 1;
    }

    pub(crate) fn push_oldest(&mut self, table: &mut Table, cluster: u32) {
        let after = self.oldest;
        let node = table.node_mut(cluster);
        debug_assert!(node.is_free());
        node.older = NONE;
        node.newer = after;
        node.place = self.place;
        match after {
            NONE => self.newest = cluster,
            _ => table.node_mut(after).older = cluster,
        }
        self.oldest = cluster;
        self.clusters += 1;
    }

    pub(crate) fn remove(&mut self, table: &mut Table, cluster: u32) {
        let Node {
            newer,
            older,
            place,
            ..
        } = *table.node(cluster);
        debug_assert_eq!(place, self.place);
        match newer {
            NONE => self.newest = older,
            _ => table.node_mut(newer).older = older,
        }
        match older {
            NONE => self.oldest = newer,
            _ => table.node_mut(older).newer = newer,
        }
        let node = table.node_mut(cluster);
        node.place = Place::Nowhere;
        node.newer = NONE;
        node.older = NONE;
        self.clusters -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_leaves_first() {
        let mut table = Table::new();
        let mut queue = Queue::new(Place::Resident);
        for cluster in [5, 900, 7] {
            queue.push_newest(&mut table, cluster);
        }
        queue.push_oldest(&mut table, 11);
        queue.remove(&mut table, 900);
        let mut order = alloc::vec::Vec::new();
        while let Some(cluster) = queue.oldest() {
            queue.remove(&mut table, cluster);
            order.push(cluster);
        }
        assert_eq!(order, [11, 5, 7]);
        assert_eq!(queue.clusters, 0);
    }

    proptest::proptest! {
        #[test]
        fn the_queue_is_a_deque_from_which_any_cluster_can_go(
            steps in proptest::collection::vec((0u8..4, 0u32..40), 0..300)
        ) {
            let mut table = Table::new();
            let mut queue = Queue::new(Place::Resident);
            let mut oracle = alloc::collections::VecDeque::new();
            for (step, number) in steps {
                // Far apart, so that several blocks of the table take part.
                let cluster = number * 37;
                let at = oracle.iter().position(|&c| c == cluster);
                match (step, at) {
                    (0, None) => {
                        queue.push_newest(&mut table, cluster);
                        oracle.push_back(cluster);
                    }
                    (1, None) => {
                        queue.push_oldest(&mut table, cluster);
                        oracle.push_front(cluster);
                    }
                    (2, Some(at)) => {
                        queue.remove(&mut table, cluster);
                        oracle.remove(at);
                    }
                    (3, _) => {
                        if let Some(oldest) = queue.oldest() {
                            queue.remove(&mut table, oldest);
                            assert_eq!(oracle.pop_front(), Some(oldest));
                        }
                    }
                    _ => {}
                }
                assert_eq!(queue.oldest(), oracle.front().copied());
                assert!(queue.iter(&table).eq(oracle.iter().copied()));
                assert_eq!(queue.clusters, oracle.len() as u64);
            }
        }
    }
}
