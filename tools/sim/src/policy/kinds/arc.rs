//! ARC, as clocks: CAR, "CAR: Clock with Adaptive Replacement", Bansal and Modha, 2004.
//!
//! What was used once and what was used again are two clocks. Ghosts of what left either say how
//! large the first should be.

use super::super::lists::List;
use super::Policy;

pub(super) struct Arc {
    once: List,
    again: List,
    once_left: List,
    again_left: List,
    /// Of each cluster: it belongs to `again`.
    is_used_again: Vec<bool>,
    /// Of each cluster: it was chosen, and is aside.
    is_out: Vec<bool>,
    /// What `once` should hold.
    target: usize,
    capacity: usize,
}

impl Arc {
    pub(super) fn new(clusters: usize, capacity: usize) -> Self {
        Self {
            once: List::default(),
            again: List::default(),
            once_left: List::default(),
            again_left: List::default(),
            is_used_again: vec![false; clusters],
            is_out: vec![false; clusters],
            target: 0,
            capacity,
        }
    }

    fn forget_ghosts(&mut self) {
        while self.once.len() + self.once_left.len() > self.capacity
            && self.once_left.pop().is_some()
        {}
        let all = |arc: &Self| {
            arc.once.len() + arc.again.len() + arc.once_left.len() + arc.again_left.len()
        };
        while all(self) > 2 * self.capacity && self.again_left.pop().is_some() {}
    }
}

impl Policy for Arc {
    fn came(&mut self, cluster: u32, _asked: bool) {
        if self.once.contains(cluster) || self.again.contains(cluster) {
            return;
        }
        let (once, again) = (self.once_left.len(), self.again_left.len());
        let at = cluster as usize;
        if self.once_left.remove(cluster) {
            self.target = (self.target + (again / once).max(1)).min(self.capacity);
            self.is_used_again[at] = true;
        } else if self.again_left.remove(cluster) {
            self.target = self.target.saturating_sub((once / again).max(1));
            self.is_used_again[at] = true;
        } else if !self.is_out[at] {
            self.is_used_again[at] = false;
        }
        match self.is_used_again[at] {
            true => self.again.push(cluster),
            false => self.once.push(cluster),
        }
    }

    fn returned(&mut self, cluster: u32) {
        self.is_used_again[cluster as usize] = true;
        self.is_out[cluster as usize] = false;
        self.once.remove(cluster);
        self.again.push_again(cluster);
    }

    fn choose(&mut self, _is_aside: &dyn Fn(u32) -> bool) -> Option<u32> {
        let of_once = self.once.len() >= self.target.max(1) || self.again.len() == 0;
        let chosen = match of_once {
            true => self.once.pop(),
            false => self.again.pop(),
        }?;
        self.is_out[chosen as usize] = true;
        Some(chosen)
    }

    fn left(&mut self, cluster: u32) {
        let at = cluster as usize;
        self.is_out[at] = false;
        self.once.remove(cluster);
        self.again.remove(cluster);
        match self.is_used_again[at] {
            true => self.again_left.push_again(cluster),
            false => self.once_left.push_again(cluster),
        }
        self.forget_ghosts();
    }
}
