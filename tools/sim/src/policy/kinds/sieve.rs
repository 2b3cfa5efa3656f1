//! SIEVE: a hand goes over one queue; what comes back from aside stays where it is.

use super::super::lists::List;
use super::Policy;

#[derive(Default)]
pub(super) struct Sieve {
    queue: List,
    hand: u64,
}

impl Policy for Sieve {
    fn came(&mut self, cluster: u32, _asked: bool) {
        self.queue.push_new(cluster);
    }

    fn choose(&mut self, is_aside: &dyn Fn(u32) -> bool) -> Option<u32> {
        for _ in 0..2 {
            while let Some((age, cluster)) = self.queue.next_from(self.hand) {
                self.hand = age + 1;
                if !is_aside(cluster) {
                    return Some(cluster);
                }
            }
            self.hand = 0;
        }
        None
    }

    fn left(&mut self, cluster: u32) {
        self.queue.remove(cluster);
    }
}
