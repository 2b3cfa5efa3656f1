//! Linux's active and inactive list, as for anonymous memory since 5.9.
//!
//! What is new is inactive; what comes back from aside twice is active, and so is what comes from
//! its pager after fewer departures than there are active clusters. The oldest of the active ones
//! become inactive when they are more than half.

use super::super::lists::List;
use super::Policy;

#[derive(Clone, Copy, Default)]
struct Mark {
    /// It came back from aside once.
    is_referenced: bool,
    /// `age` when it left, plus 1.
    left_at: u64,
}

pub(super) struct TwoLists {
    inactive: List,
    active: List,
    marks: Vec<Mark>,
    /// Departures and activations of all.
    age: u64,
}

impl TwoLists {
    pub(super) fn new(clusters: usize) -> Self {
        Self {
            inactive: List::default(),
            active: List::default(),
            marks: vec![Mark::default(); clusters],
            age: 0,
        }
    }

    fn activate(&mut self, cluster: u32) {
        self.age += 1;
        self.inactive.remove(cluster);
        self.active.push_again(cluster);
        self.marks[cluster as usize].is_referenced = false;
    }
}

impl Policy for TwoLists {
    fn came(&mut self, cluster: u32, _asked: bool) {
        if self.inactive.contains(cluster) || self.active.contains(cluster) {
            return;
        }
        let left_at = self.marks[cluster as usize].left_at;
        let distance = self.age + 1 - left_at;
        match left_at != 0 && distance <= self.active.len() as u64 {
            true => self.activate(cluster),
            false => self.inactive.push(cluster),
        }
    }

    fn returned(&mut self, cluster: u32) {
        let mark = &mut self.marks[cluster as usize];
        match std::mem::replace(&mut mark.is_referenced, true) {
            true => self.activate(cluster),
            false => self.inactive.push_again(cluster),
        }
    }

    fn choose(&mut self, _is_aside: &dyn Fn(u32) -> bool) -> Option<u32> {
        while self.inactive.len() < self.active.len() {
            let oldest = self.active.pop()?;
            self.inactive.push(oldest);
        }
        self.inactive.pop()
    }

    fn left(&mut self, cluster: u32) {
        self.age += 1;
        let mark = &mut self.marks[cluster as usize];
        (mark.left_at, mark.is_referenced) = (self.age, false);
        self.inactive.remove(cluster);
        self.active.remove(cluster);
    }
}
