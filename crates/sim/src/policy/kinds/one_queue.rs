//! Policies of one queue.

use super::super::lists::List;
use super::Policy;

/// First in, first out.
#[derive(Default)]
pub(super) struct Fifo(List);

impl Policy for Fifo {
    fn moves_aside(&self) -> bool {
        false
    }

    fn came(&mut self, cluster: u32, _asked: bool) {
        self.0.push_new(cluster);
    }

    fn choose(&mut self, _is_aside: &dyn Fn(u32) -> bool) -> Option<u32> {
        self.0.pop()
    }

    fn left(&mut self, cluster: u32) {
        self.0.remove(cluster);
    }
}

/// What comes back from aside goes to the end.
#[derive(Default)]
pub(super) struct SecondChance(List);

impl Policy for SecondChance {
    fn came(&mut self, cluster: u32, _asked: bool) {
        self.0.push_new(cluster);
    }

    fn returned(&mut self, cluster: u32) {
        self.0.push_again(cluster);
    }

    fn choose(&mut self, _is_aside: &dyn Fn(u32) -> bool) -> Option<u32> {
        self.0.pop()
    }

    fn left(&mut self, cluster: u32) {
        self.0.remove(cluster);
    }
}

/// Least recently used.
#[derive(Default)]
pub(super) struct Lru(List);

impl Policy for Lru {
    fn moves_aside(&self) -> bool {
        false
    }

    fn came(&mut self, cluster: u32, _asked: bool) {
        self.0.push_new(cluster);
    }

    fn touched(&mut self, cluster: u32, _next_use: u64) {
        if self.0.contains(cluster) {
            self.0.push_again(cluster);
        }
    }

    fn choose(&mut self, _is_aside: &dyn Fn(u32) -> bool) -> Option<u32> {
        self.0.pop()
    }

    fn left(&mut self, cluster: u32) {
        self.0.remove(cluster);
    }
}
