//! What is done after a while: units go to another host when threads here had time enough.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Condvar, Mutex, PoisonError, Weak};
use std::time::Instant;

use crate::object::Shared;

/// What is due next comes first.
#[derive(Default)]
pub(crate) struct Holds {
    due: Mutex<All>,
    changed: Condvar,
}

#[derive(Default)]
struct All {
    heap: BinaryHeap<Reverse<Hold>>,
    is_over: bool,
}

struct Hold {
    at: Instant,
    object: Weak<Shared>,
    due: Due,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// Threads of a unit had time enough.
    LetGo(u64),
    /// A thread waits to write to a page that is here.
    Unlock(u64),
    /// Threads that wait to write to a unit get an error.
    Refuse(u64),
    /// A copy of a unit may be too old.
    Expire(u64),
    /// Others are told that their parcels have come.
    SayArrived,
    /// A diff was put in a unit, or is to be tried again.
    Put(u64, u64, bool),
}

impl Holds {
    /// Has something be done for an object at a time.
    pub(crate) fn add(&self, at: Instant, object: Weak<Shared>, what: Due) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = due.heap.peek().is_none_or(|first| at < first.0.at);
        let hold = Hold {
            at,
            object,
            due: what,
        };
        due.heap.push(Reverse(hold));
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

    /// Does what is due, until [`Holds::end`].
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
                        match hold.due {
                            Due::LetGo(unit) => object.lets_go(unit),
                            Due::Unlock(unit) => object.unlocks(unit),
                            Due::Refuse(unit) => object.refuses(unit),
                            Due::Expire(unit) => object.expires(unit),
                            Due::SayArrived => object.says_arrived(),
                            Due::Put(unit, apply, is_put) => object.has_put(unit, apply, is_put),
                        }
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
        (self.at, self.due).cmp(&(other.at, other.due))
    }
}
