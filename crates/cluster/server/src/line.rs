//! Objects to which everything happens one after the other at a host, and messages between two hosts
//! that are taken in order.

use std::collections::{BTreeMap, HashMap, VecDeque};

use farpage_rules::coherence::{Epoch, Host};

use crate::cell::Event;
use crate::mirrored::Parcel;
use crate::simple;

/// What happens to such an object.
pub(crate) enum Happening {
    /// To a unit.
    Unit(u64, Event),
    /// A host whose backup this one is has written.
    Parcel { from: Host, parcel: Parcel },
    /// The backup has all parcels up to this one.
    Arrived(u64),
    /// It is time to say which parcels have come.
    SayArrived,
    /// Units need not be kept before these versions.
    OnTwo(Vec<(u64, Epoch)>),
    /// Another host, or this one, says something of the simple scheduler.
    Simple { from: Host, said: simple::Said },
}

/// What has yet to happen.
#[derive(Default)]
pub(crate) struct Line {
    pub(crate) all: VecDeque<Happening>,
    /// Somebody is at work.
    pub(crate) is_busy: bool,
}

/// Messages of one object to and from each other host, which number them.
pub(crate) struct Lanes<T> {
    sent: HashMap<Host, u64>,
    coming: HashMap<Host, Coming<T>>,
}

struct Coming<T> {
    next: u64,
    early: BTreeMap<u64, T>,
}

impl<T> Default for Lanes<T> {
    fn default() -> Self {
        Self {
            sent: HashMap::new(),
            coming: HashMap::new(),
        }
    }
}

impl<T> Lanes<T> {
    /// The number of the next message to a host.
    pub(crate) fn next(&mut self, to: Host) -> u64 {
        let sent = self.sent.entry(to).or_insert(0);
        *sent += 1;
        *sent - 1
    }

    /// A message has come: those that it is time to take. The error is what is wrong.
    pub(crate) fn came(&mut self, from: Host, number: u64, one: T) -> Result<Vec<T>, &'static str> {
        let coming = self.coming.entry(from).or_insert_with(|| Coming {
            next: 0,
            early: BTreeMap::new(),
        });
        if number < coming.next || coming.early.contains_key(&number) {
            return Err("a message that has come");
        }
        coming.early.insert(number, one);
        let mut due = Vec::new();
        while let Some(one) = coming.early.remove(&coming.next) {
            coming.next += 1;
            due.push(one);
        }
        Ok(due)
    }

    /// A host has died: whoever has its place numbers anew.
    pub(crate) fn is_gone(&mut self, host: Host) {
        self.sent.remove(&host);
        self.coming.remove(&host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BY: Host = Host(2);

    #[test]
    fn messages_are_taken_in_order() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.came(BY, 2, 'c'), Ok(vec![]));
        assert_eq!(lanes.came(BY, 0, 'a'), Ok(vec!['a']));
        assert!(lanes.came(BY, 0, 'a').is_err(), "twice");
        assert!(lanes.came(BY, 2, 'c').is_err(), "twice, and not taken yet");
        assert_eq!(lanes.came(Host(3), 0, 'x'), Ok(vec!['x']));
        assert_eq!(lanes.came(BY, 1, 'b'), Ok(vec!['b', 'c']));
        lanes.is_gone(BY);
        assert_eq!(lanes.came(BY, 0, 'n'), Ok(vec!['n']));
    }

    #[test]
    fn each_host_has_numbers_of_its_own() {
        let mut lanes = Lanes::<()>::default();
        assert_eq!(
            [lanes.next(BY), lanes.next(Host(3)), lanes.next(BY)],
            [0, 0, 1]
        );
        lanes.is_gone(BY);
        assert_eq!([lanes.next(BY), lanes.next(Host(3))], [0, 1]);
    }
}
