//! CLOCK-Pro: "CLOCK-Pro: An Effective Improvement of the CLOCK Replacement", Jiang, Chen and Zhang, 2005.
//!
//! All clusters lie on one clock by when they came to its head. The cold ones leave; those that are
//! used again while they are in their test become hot. A test ends when the oldest hot cluster is
//! younger. A cluster that left in its test stays on the clock as a ghost.

use std::collections::BTreeSet;

use super::Policy;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Temperature {
    Hot,
    /// In its test or not.
    Cold {
        test: bool,
    },
}

#[derive(Clone, Copy)]
struct Mark {
    temperature: Temperature,
    /// When it came to the head.
    at: u64,
    /// It was chosen, and is aside.
    is_out: bool,
}

pub(super) struct ClockPro {
    hot: BTreeSet<(u64, u32)>,
    cold: BTreeSet<(u64, u32)>,
    ghosts: BTreeSet<(u64, u32)>,
    marks: Vec<Mark>,
    now: u64,
    /// What the cold clusters should be.
    cold_target: usize,
    capacity: usize,
}

impl ClockPro {
    pub(super) fn new(clusters: usize, capacity: usize) -> Self {
        let mark = Mark {
            temperature: Temperature::Cold { test: false },
            at: 0,
            is_out: false,
        };
        Self {
            hot: BTreeSet::new(),
            cold: BTreeSet::new(),
            ghosts: BTreeSet::new(),
            marks: vec![mark; clusters],
            now: 0,
            cold_target: 1,
            capacity,
        }
    }

    fn take(&mut self, cluster: u32) {
        let key = (self.marks[cluster as usize].at, cluster);
        self.hot.remove(&key);
        self.cold.remove(&key);
        self.ghosts.remove(&key);
    }

    fn put_at_head(&mut self, cluster: u32, temperature: Temperature) {
        self.take(cluster);
        self.now += 1;
        self.marks[cluster as usize] = Mark {
            temperature,
            at: self.now,
            is_out: false,
        };
        match temperature {
            Temperature::Hot => self.hot.insert((self.now, cluster)),
            Temperature::Cold { .. } => self.cold.insert((self.now, cluster)),
        };
        self.turn_hot_hand();
    }

    /// Hot clusters that are too many become cold: without reference bits, the oldest. It is hot
    /// again if it comes back from aside.
    fn turn_hot_hand(&mut self) {
        while self.hot.len() > self.capacity.saturating_sub(self.cold_target) {
            let Some((_, cluster)) = self.hot.pop_first() else {
                return;
            };
            self.now += 1;
            let mark = &mut self.marks[cluster as usize];
            mark.at = self.now;
            self.cold.insert((self.now, cluster));
            self.end_tests();
        }
    }

    /// Ends the tests of what is older than the oldest that is hot.
    fn end_tests(&mut self) {
        let oldest = self.hot.first().map_or(0, |(at, _)| *at);
        for &(_, cluster) in self.cold.range(..(oldest, 0)) {
            let mark = &mut self.marks[cluster as usize];
            if mark.temperature == (Temperature::Cold { test: true }) {
                mark.temperature = Temperature::Cold { test: false };
                self.cold_target = (self.cold_target - 1).max(1);
            }
        }
        let younger = self.ghosts.split_off(&(oldest, 0));
        let ended = std::mem::replace(&mut self.ghosts, younger).len();
        self.cold_target = self.cold_target.saturating_sub(ended).max(1);
    }
}

impl Policy for ClockPro {
    fn came(&mut self, cluster: u32, _asked: bool) {
        let mark = self.marks[cluster as usize];
        let key = (mark.at, cluster);
        if self.hot.contains(&key) || self.cold.contains(&key) {
            return;
        }
        if self.ghosts.contains(&key) {
            self.cold_target = (self.cold_target + 1).min(self.capacity.max(2) - 1);
            self.put_at_head(cluster, Temperature::Hot);
        } else if mark.is_out {
            self.put_at_head(cluster, mark.temperature);
        } else {
            self.put_at_head(cluster, Temperature::Cold { test: true });
        }
    }

    fn returned(&mut self, cluster: u32) {
        let temperature = match self.marks[cluster as usize].temperature {
            Temperature::Hot | Temperature::Cold { test: true } => Temperature::Hot,
            Temperature::Cold { test: false } => Temperature::Cold { test: true },
        };
        self.put_at_head(cluster, temperature);
    }

    fn choose(&mut self, _is_aside: &dyn Fn(u32) -> bool) -> Option<u32> {
        let oldest = self.cold.pop_first().or_else(|| self.hot.pop_first());
        let (_, cluster) = oldest?;
        self.marks[cluster as usize].is_out = true;
        Some(cluster)
    }

    fn left(&mut self, cluster: u32) {
        self.take(cluster);
        let mark = &mut self.marks[cluster as usize];
        mark.is_out = false;
        if mark.temperature != (Temperature::Cold { test: true }) {
            return;
        }
        self.ghosts.insert((mark.at, cluster));
        if self.ghosts.len() > self.capacity {
            self.ghosts.pop_first();
            self.cold_target = (self.cold_target - 1).max(1);
        }
    }
}
