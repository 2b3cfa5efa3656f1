//! The policies: which cluster leaves next.

use std::collections::BTreeSet;

use super::Kind;
use super::lists::List;

/// What a policy knows of a cluster.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// Belongs to the main queue.
    main: bool,
    warmth: u8,
    /// Page-outs of the whole space when it left, plus 1.
    left_at: u64,
    next_use: u64,
}

/// The queues of one policy.
pub(super) struct Queues {
    kind: Kind,
    /// New clusters; the only queue of most policies.
    small: List,
    main: List,
    marks: Vec<Mark>,
    departures: u64,
    /// Where SIEVE's hand is.
    hand: u64,
    /// Clusters that fit into memory.
    capacity: usize,
    /// MIN: clusters by next use.
    by_next_use: BTreeSet<(u64, u32)>,
}

impl Queues {
    pub(super) fn new(kind: Kind, clusters: usize, capacity: usize) -> Self {
        Self {
            kind,
            small: List::default(),
            main: List::default(),
            marks: vec![Mark::default(); clusters],
            departures: 0,
            hand: 0,
            capacity,
            by_next_use: BTreeSet::new(),
        }
    }

    /// True when what is chosen is moved aside first.
    pub(super) fn moves_aside(&self) -> bool {
        match self.kind {
            Kind::SecondChance
            | Kind::Warmth
            | Kind::Returning
            | Kind::S3Fifo
            | Kind::S3FifoFilled
            | Kind::Sieve => true,
            Kind::Fifo | Kind::Lru | Kind::Min => false,
        }
    }

    /// Pages of a cluster came in.
    pub(super) fn came(&mut self, cluster: u32) {
        if self.small.contains(cluster) || self.main.contains(cluster) {
            return;
        }
        let queued = (self.small.len() + self.main.len()) as u64;
        let mark = &mut self.marks[cluster as usize];
        if self.kind == Kind::Min {
            self.by_next_use.insert((mark.next_use, cluster));
        }
        let away = self.departures + 1 - mark.left_at;
        let ghost = mark.left_at != 0 && away <= self.capacity as u64;
        mark.main = match self.kind {
            Kind::S3Fifo => ghost,
            Kind::Returning => mark.left_at != 0 && away <= queued,
            Kind::S3FifoFilled => ghost || self.main.len() < self.capacity * 9 / 10,
            Kind::Fifo
            | Kind::SecondChance
            | Kind::Warmth
            | Kind::Sieve
            | Kind::Lru
            | Kind::Min => false,
        };
        if mark.main {
            self.main.push(cluster);
        } else {
            self.small.push(cluster);
        }
    }

    /// A cluster came back from aside: it is in use.
    pub(super) fn returned(&mut self, cluster: u32) {
        let mark = &mut self.marks[cluster as usize];
        match self.kind {
            Kind::Sieve => mark.warmth = 1,
            Kind::Warmth | Kind::Returning => {
                mark.warmth = (mark.warmth + 1).min(3);
                self.small.remove(cluster);
                self.main.remove(cluster);
                self.main.push(cluster);
            }
            Kind::S3Fifo | Kind::S3FifoFilled => {
                mark.main = true;
                self.small.remove(cluster);
                self.main.remove(cluster);
                self.main.push(cluster);
            }
            Kind::SecondChance => {
                self.small.remove(cluster);
                self.small.push(cluster);
            }
            Kind::Fifo | Kind::Lru | Kind::Min => {}
        }
    }

    /// LRU and MIN see every access.
    pub(super) fn touched(&mut self, cluster: u32, next_use: u64) {
        match self.kind {
            Kind::Lru => {
                if self.small.remove(cluster) {
                    self.small.push(cluster);
                }
            }
            Kind::Min => {
                let mark = &mut self.marks[cluster as usize];
                self.by_next_use.remove(&(mark.next_use, cluster));
                mark.next_use = next_use;
                self.by_next_use.insert((next_use, cluster));
            }
            Kind::Fifo
            | Kind::SecondChance
            | Kind::Warmth
            | Kind::Returning
            | Kind::S3Fifo
            | Kind::S3FifoFilled
            | Kind::Sieve => {}
        }
    }

    /// The cluster that leaves next; it is in no queue then, but for SIEVE's.
    pub(super) fn choose(&mut self, aside: impl Fn(u32) -> bool) -> Option<u32> {
        match self.kind {
            Kind::Fifo | Kind::SecondChance | Kind::Lru => self.small.pop(),
            Kind::Warmth | Kind::Returning => self.choose_by_warmth(),
            Kind::S3Fifo | Kind::S3FifoFilled => {
                if self.small.len() * 10 >= self.capacity || self.main.len() == 0 {
                    self.small.pop()
                } else {
                    self.main.pop()
                }
            }
            Kind::Sieve => {
                for _ in 0..2 {
                    while let Some((age, cluster)) = self.small.next_from(self.hand) {
                        self.hand = age + 1;
                        if !aside(cluster) {
                            return Some(cluster);
                        }
                    }
                    self.hand = 0;
                }
                None
            }
            Kind::Min => {
                let (_, cluster) = self.by_next_use.pop_last()?;
                self.small.remove(cluster);
                Some(cluster)
            }
        }
    }

    fn choose_by_warmth(&mut self) -> Option<u32> {
        loop {
            if self.small.len() * 4 >= self.main.len() {
                return self.small.pop().or_else(|| self.main.pop());
            }
            let cluster = self.main.pop()?;
            let mark = &mut self.marks[cluster as usize];
            if mark.warmth == 0 {
                return Some(cluster);
            }
            mark.warmth -= 1;
            self.main.push(cluster);
        }
    }

    /// The last page of a cluster is gone.
    pub(super) fn left(&mut self, cluster: u32) {
        self.departures += 1;
        self.marks[cluster as usize].left_at = self.departures;
        self.small.remove(cluster);
        self.main.remove(cluster);
    }
}
