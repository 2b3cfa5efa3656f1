//! Policies of one queue.

use super::super::lists::List;
use super::Policy;

/// What makes a cluster the newest again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Renews {
    /// Nothing: first in, first out.
    Nothing,
    /// To come back from aside: second chance.
    Return,
    /// Each access: least recently used.
    Access,
}

/// The oldest leaves.
pub(super) struct OneQueue {
    renews: Renews,
    queue: List,
}

impl OneQueue {
    pub(super) fn new(renews: Renews) -> Self {
        Self {
            renews,
            queue: List::default(),
        }
    }
}

impl Policy for OneQueue {
    fn moves_aside(&self) -> bool {
        self.renews == Renews::Return
    }

    fn came(&mut self, cluster: u32, _asked: bool) {
        self.queue.push_new(cluster);
    }

    fn returned(&mut self, cluster: u32) {
        self.queue.push_again(cluster);
    }

    fn touched(&mut self, cluster: u32, _next_use: u64) {
        if self.renews == Renews::Access && self.queue.contains(cluster) {
            self.queue.push_again(cluster);
        }
    }

    fn choose(&mut self, _is_aside: &dyn Fn(u32) -> bool) -> Option<u32> {
        self.queue.pop()
    }

    fn left(&mut self, cluster: u32) {
        self.queue.remove(cluster);
    }
}
