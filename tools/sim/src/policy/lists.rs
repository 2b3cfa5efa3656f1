//! Queues of clusters in which any cluster can be found.

use std::collections::BTreeMap;

/// A queue: the oldest leaves first.
#[derive(Default)]
pub(super) struct List {
    by_age: BTreeMap<u64, u32>,
    ages: BTreeMap<u32, u64>,
    clock: u64,
}

impl List {
    pub(super) fn push(&mut self, cluster: u32) {
        self.clock += 1;
        self.by_age.insert(self.clock, cluster);
        let before = self.ages.insert(cluster, self.clock);
        assert!(before.is_none(), "cluster {cluster} queued twice");
    }

    /// Unless it is queued.
    pub(super) fn push_new(&mut self, cluster: u32) {
        if !self.contains(cluster) {
            self.push(cluster);
        }
    }

    /// To the end, wherever it is.
    pub(super) fn push_again(&mut self, cluster: u32) {
        self.remove(cluster);
        self.push(cluster);
    }

    pub(super) fn pop(&mut self) -> Option<u32> {
        let (_, cluster) = self.by_age.pop_first()?;
        self.ages.remove(&cluster);
        Some(cluster)
    }

    pub(super) fn remove(&mut self, cluster: u32) -> bool {
        let age = self.ages.remove(&cluster);
        age.is_some_and(|age| self.by_age.remove(&age).is_some())
    }

    pub(super) fn contains(&self, cluster: u32) -> bool {
        self.ages.contains_key(&cluster)
    }

    /// The oldest at or after `age`, and its age.
    pub(super) fn next_from(&self, age: u64) -> Option<(u64, u32)> {
        self.by_age.range(age..).next().map(|(&age, &c)| (age, c))
    }

    pub(super) fn len(&self) -> usize {
        self.ages.len()
    }
}
