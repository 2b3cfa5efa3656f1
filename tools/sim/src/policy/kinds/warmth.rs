//! Probation, and what came back from aside, which is protected for as long as it is warm.

use super::super::lists::List;
use super::Policy;

const WARMEST: u8 = 3;

#[derive(Clone, Copy, Default)]
struct Mark {
    warmth: u8,
    /// Departures of all when it left, plus 1.
    left_at: u64,
}

pub(super) struct Warmth {
    probation: List,
    protected: List,
    marks: Vec<Mark>,
    departures: u64,
    /// What comes back from its pager soon is protected, too.
    returning: bool,
}

impl Warmth {
    pub(super) fn new(clusters: usize, returning: bool) -> Self {
        Self {
            probation: List::default(),
            protected: List::default(),
            marks: vec![Mark::default(); clusters],
            departures: 0,
            returning,
        }
    }

    fn is_queued(&self, cluster: u32) -> bool {
        self.probation.contains(cluster) || self.protected.contains(cluster)
    }
}

impl Policy for Warmth {
    fn came(&mut self, cluster: u32, _asked: bool) {
        if self.is_queued(cluster) {
            return;
        }
        let left_at = self.marks[cluster as usize].left_at;
        let away = (self.departures + 1 - left_at) as usize;
        let is_soon = left_at != 0 && away <= self.probation.len() + self.protected.len();
        match self.returning && is_soon {
            true => self.protected.push(cluster),
            false => self.probation.push(cluster),
        }
    }

    fn returned(&mut self, cluster: u32) {
        let mark = &mut self.marks[cluster as usize];
        mark.warmth = (mark.warmth + 1).min(WARMEST);
        self.probation.remove(cluster);
        self.protected.push_again(cluster);
    }

    fn choose(&mut self, _is_aside: &dyn Fn(u32) -> bool) -> Option<u32> {
        loop {
            if self.probation.len() * 4 >= self.protected.len() {
                return self.probation.pop().or_else(|| self.protected.pop());
            }
            let cluster = self.protected.pop()?;
            let mark = &mut self.marks[cluster as usize];
            if mark.warmth == 0 {
                return Some(cluster);
            }
            mark.warmth -= 1;
            self.protected.push(cluster);
        }
    }

    fn left(&mut self, cluster: u32) {
        self.departures += 1;
        self.marks[cluster as usize].left_at = self.departures;
        self.probation.remove(cluster);
        self.protected.remove(cluster);
    }
}
