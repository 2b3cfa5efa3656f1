//! Units whose threads are given a while before another host gets them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Condvar, Mutex, PoisonError, Weak};
use std::time::Instant;

use crate::object::Shared;

/// What is due next comes first.
#[derive(Default)]
pub(crate) struct Holds {
    due: Mutex<Due>,
    changed: Condvar,
}

#[derive(Default)]
struct Due {
    heap: BinaryHeap<Reverse<Hold>>,
    is_over: bool,
}

struct Hold {
    at: Instant,
    object: Weak<Shared>,
    unit: u64,
}

impl Holds {
    /// Has `unit` be let go at a time.
    pub(crate) fn add(&self, at: Instant, object: Weak<Shared>, unit: u64) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = due.heap.peek().is_none_or(|first| at < first.0.at);
        due.heap.push(Reverse(Hold { at, object, unit }));
        if is_first {
            self.changed.notify_one();
        }
    }

    /// No more.
    pub(crate) fn end(&self) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        due.is_over = true;
        self.changed.notify_one();
    }

    /// Lets go of what is due, until [`Holds::end`].
    pub(crate) fn run(&self) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        while !due.is_over {
            let now = Instant::now();
            let wait = due
                .heap
                .peek()
                .map(|first| first.0.at.saturating_duration_since(now));
            match wait {
                None => {
                    due = self
                        .changed
                        .wait(due)
                        .unwrap_or_else(PoisonError::into_inner)
                }
                Some(time) if time.is_zero() => {
                    let Some(Reverse(hold)) = due.heap.pop() else {
                        continue;
                    };
                    drop(due);
                    if let Some(object) = hold.object.upgrade() {
                        object.lets_go(hold.unit);
                    }
                    due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
                }
                Some(time) => {
                    let waited = self.changed.wait_timeout(due, time);
                    due = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }
}

impl PartialEq for Hold {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Hold {}

impl PartialOrd for Hold {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Hold {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.unit).cmp(&(other.at, other.unit))
    }
}
