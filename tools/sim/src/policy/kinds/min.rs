//! The farthest next use leaves.

use std::collections::BTreeSet;

use super::Policy;

pub(super) struct Min {
    by_next_use: BTreeSet<(u64, u32)>,
    next_use: Vec<u64>,
    queued: Vec<bool>,
}

impl Min {
    pub(super) fn new(clusters: usize) -> Self {
        Self {
            by_next_use: BTreeSet::new(),
            next_use: vec![0; clusters],
            queued: vec![false; clusters],
        }
    }
}

impl Policy for Min {
    fn moves_aside(&self) -> bool {
        false
    }

    fn came(&mut self, cluster: u32, _asked: bool) {
        let at = cluster as usize;
        if !std::mem::replace(&mut self.queued[at], true) {
            self.by_next_use.insert((self.next_use[at], cluster));
        }
    }

    fn touched(&mut self, cluster: u32, next_use: u64) {
        let before = std::mem::replace(&mut self.next_use[cluster as usize], next_use);
        self.by_next_use.remove(&(before, cluster));
        self.by_next_use.insert((next_use, cluster));
        self.queued[cluster as usize] = true;
    }

    fn choose(&mut self, _is_aside: &dyn Fn(u32) -> bool) -> Option<u32> {
        let (_, cluster) = self.by_next_use.pop_last()?;
        self.queued[cluster as usize] = false;
        Some(cluster)
    }

    fn left(&mut self, cluster: u32) {
        let at = cluster as usize;
        self.by_next_use.remove(&(self.next_use[at], cluster));
        self.queued[at] = false;
    }
}
