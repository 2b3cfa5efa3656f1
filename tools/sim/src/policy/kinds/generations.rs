//! Linux's generations (MGLRU), as for anonymous memory.
//!
//! What a fault asked for is of the youngest generation, what came with it of the oldest. The oldest
//! leaves; what comes back from aside is of the youngest again. There is a new generation when less
//! than two are older than it. Linux also walks page tables then; Farpage sees no accessed bits.

use std::collections::VecDeque;

use super::super::lists::List;
use super::Policy;

/// Generations that there are at least.
const LEAST: usize = 2;

pub(super) struct Generations {
    /// The oldest first.
    queues: VecDeque<List>,
    /// Of each cluster: it was chosen, and is aside.
    is_out: Vec<bool>,
}

impl Generations {
    pub(super) fn new(clusters: usize) -> Self {
        Self {
            queues: (0..=LEAST).map(|_| List::default()).collect(),
            is_out: vec![false; clusters],
        }
    }

    fn remove(&mut self, cluster: u32) {
        for queue in &mut self.queues {
            queue.remove(cluster);
        }
    }

    fn youngest(&mut self, cluster: u32) {
        if let Some(queue) = self.queues.back_mut() {
            queue.push(cluster);
        }
    }
}

impl Policy for Generations {
    fn came(&mut self, cluster: u32, asked: bool) {
        let is_queued = self.queues.iter().any(|queue| queue.contains(cluster));
        match asked || self.is_out[cluster as usize] {
            _ if is_queued => {}
            true => self.youngest(cluster),
            false => self.queues[0].push(cluster),
        }
    }

    fn returned(&mut self, cluster: u32) {
        self.is_out[cluster as usize] = false;
        self.remove(cluster);
        self.youngest(cluster);
    }

    fn choose(&mut self, _is_aside: &dyn Fn(u32) -> bool) -> Option<u32> {
        while self.queues[0].len() == 0 && self.queues.iter().any(|queue| queue.len() > 0) {
            self.queues.pop_front();
            if self.queues.len() <= LEAST {
                self.queues.push_back(List::default());
            }
        }
        let chosen = self.queues[0].pop()?;
        self.is_out[chosen as usize] = true;
        Some(chosen)
    }

    fn left(&mut self, cluster: u32) {
        self.is_out[cluster as usize] = false;
        self.remove(cluster);
    }
}
