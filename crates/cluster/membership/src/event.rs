//! What happens in the cluster, as its user is told.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::record::{Object, ObjectId, RecordError};
use crate::view::{Incarnation, Slot, View};

/// Events that wait at most: who does not take them is fenced.
pub(crate) const EVENTS_MAX: usize = 1 << 16;

/// Something happened. Views and objects come in the order of the store, the same on all hosts. A
/// host that could not watch for so long that the store forgot what happened meanwhile is told the
/// newest view and the difference, with what was deleted last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// There is a new view. The members may be those of the one before.
    View(View),
    /// An object was made.
    Made(ObjectId, Object),
    /// An object has another name, or another note; without a name it lives while somebody holds it.
    Changed(ObjectId, Object),
    /// An object is gone.
    Removed(ObjectId),
    /// The store let go of a member's lease: it is dead, or cannot reach the store. Either it
    /// comes back, with a new view of the same members, or it is removed.
    AtRisk {
        /// Where it is.
        slot: Slot,
        /// Which.
        incarnation: Incarnation,
    },
    /// The store does not answer, for this reason. Nothing can be made or found, and this host
    /// goes on while every member of its view answers pings.
    StoreLost(String),
    /// It answers again.
    StoreBack,
    /// An object that cannot be used: another version wrote it, or it is damaged.
    Unreadable {
        /// Where it is stored.
        key: String,
        /// Why.
        why: RecordError,
    },
    /// This host may not act any more, for this reason, and will not again: join anew. Nothing
    /// comes after.
    Fenced(String),
}

/// Events that wait to be taken.
#[derive(Debug, Default)]
pub(crate) struct Events {
    waiting: Mutex<VecDeque<Event>>,
    more: Condvar,
}

impl Events {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there was room.
    pub(crate) fn push(&self, event: Event) -> bool {
        let mut waiting = self.lock();
        waiting.push_back(event);
        self.more.notify_one();
        waiting.len() < EVENTS_MAX
    }

    pub(crate) fn next(&self, timeout: Duration) -> Option<Event> {
        let end = Instant::now().checked_add(timeout);
        let mut waiting = self.lock();
        loop {
            if let Some(event) = waiting.pop_front() {
                return Some(event);
            }
            let left = match end {
                Some(end) => end.checked_duration_since(Instant::now())?,
                None => Duration::from_secs(3600),
            };
            let woken = self.more.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_taken_in_order_and_waited_for() {
        let events = Events::default();
        assert_eq!(events.next(Duration::ZERO), None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(events.push(Event::StoreBack));
                assert!(events.push(Event::Removed(ObjectId(1))));
            });
            assert_eq!(events.next(Duration::MAX), Some(Event::StoreBack));
            assert_eq!(
                events.next(Duration::MAX),
                Some(Event::Removed(ObjectId(1)))
            );
        });
    }

    #[test]
    fn nobody_takes_them_is_noticed() {
        let events = Events::default();
        let fits = (0..EVENTS_MAX).take_while(|_| events.push(Event::StoreBack));
        assert_eq!(fits.count(), EVENTS_MAX - 1);
    }
}
