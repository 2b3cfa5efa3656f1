//! S3-FIFO: a tenth of memory is for what is new.

use super::super::lists::List;
use super::Policy;

pub(super) struct S3Fifo {
    small: List,
    main: List,
    /// Departures of all when a cluster left, plus 1.
    left_at: Vec<u64>,
    departures: u64,
    capacity: usize,
    /// What is new goes into the main queue while there is room.
    fills: bool,
}

impl S3Fifo {
    pub(super) fn new(clusters: usize, capacity: usize, fills: bool) -> Self {
        Self {
            small: List::default(),
            main: List::default(),
            left_at: vec![0; clusters],
            departures: 0,
            capacity,
            fills,
        }
    }
}

impl Policy for S3Fifo {
    fn came(&mut self, cluster: u32, _asked: bool) {
        if self.small.contains(cluster) || self.main.contains(cluster) {
            return;
        }
        let left_at = self.left_at[cluster as usize];
        let away = self.departures + 1 - left_at;
        let is_ghost = left_at != 0 && away <= self.capacity as u64;
        let fills = self.fills && self.main.len() < self.capacity * 9 / 10;
        match is_ghost || fills {
            true => self.main.push(cluster),
            false => self.small.push(cluster),
        }
    }

    fn returned(&mut self, cluster: u32) {
        self.small.remove(cluster);
        self.main.push_again(cluster);
    }

    fn choose(&mut self, _is_aside: &dyn Fn(u32) -> bool) -> Option<u32> {
        match self.small.len() * 10 >= self.capacity || self.main.len() == 0 {
            true => self.small.pop(),
            false => self.main.pop(),
        }
    }

    fn left(&mut self, cluster: u32) {
        self.departures += 1;
        self.left_at[cluster as usize] = self.departures;
        self.small.remove(cluster);
        self.main.remove(cluster);
    }
}
