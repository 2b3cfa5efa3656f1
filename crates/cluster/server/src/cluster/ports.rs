//! What network servers of hosts say to each other: carried here, understood elsewhere.
//!
//! It goes by a connection of its own, so that no page waits for what programs send. Packets of one
//! host come in order; one that is longer than a message of the network comes in parts.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use farpage_membership::{CheckedIn, ControlError, View};
use farpage_network::{Incarnation, MESSAGE_BYTES_MAX, Priority};
use farpage_sys::lock;

use super::post::{Kind, Post};
use super::{Cluster, Inner, put, take};

/// Bytes of one packet at most: what one message of a program may have, and its head.
const PACKET_BYTES_MAX: usize = (64 << 20) + (1 << 20);
/// Bytes of a part at most, so that the first are there while the next are made.
const PART_BYTES: usize = 256 << 10;
const _: () = assert!(PART_BYTES + 2 <= MESSAGE_BYTES_MAX);

/// How the network server of this host sends, for one stay.
#[derive(Clone)]
pub struct PortWire(Arc<Post>);

impl PortWire {
    /// Sends a packet of these parts to the host of a stay; to one that is not there it goes nowhere. Whoever
    /// sends to a host does so one packet at a time.
    pub fn send(&self, to: u64, parts: &[&[u8]]) {
        let to = Incarnation(to);
        let mut left: usize = parts.iter().map(|part| part.len()).sum();
        let mut room = PART_BYTES;
        let mut now: Vec<&[u8]> = Vec::new();
        for part in parts {
            let mut part = *part;
            while !part.is_empty() {
                let (first, rest) = part.split_at(part.len().min(room));
                now.push(first);
                (part, room, left) = (rest, room - first.len(), left - first.len());
                if room == 0 && left > 0 {
                    self.sends(to, false, &now);
                    now.clear();
                    room = PART_BYTES;
                }
            }
        }
        self.sends(to, true, &now);
    }

    fn sends(&self, to: Incarnation, is_last: bool, parts: &[&[u8]]) {
        let is_last = [u8::from(is_last)];
        let mut all: Vec<&[u8]> = vec![&is_last];
        all.extend(parts);
        self.0.sends_to(to, Priority::Bulk, Kind::Port, &all);
    }

    /// Bytes that have been sent to a host and have not come there, as far as is known.
    #[must_use]
    pub fn owed_bytes(&self, to: u64) -> usize {
        self.0.owed_bytes(Incarnation(to), Priority::Bulk)
    }
}

/// Packets of which parts have come.
#[derive(Default)]
pub(super) struct Parts(Mutex<HashMap<Incarnation, Vec<u8>>>);

impl Inner {
    pub(super) fn port_part_came(&self, from: Incarnation, bytes: &[u8]) {
        let Some((is_last, part)) = bytes.split_first() else {
            return;
        };
        let mut parts = lock(&self.parts.0);
        // Most packets are of one part.
        if *is_last != 0 && !parts.contains_key(&from) {
            drop(parts);
            return self.observer.port_packet(from.0, part);
        }
        let known = parts.entry(from).or_default();
        // What is too long is no packet, and refused as such.
        if known.len() <= PACKET_BYTES_MAX {
            known.extend_from_slice(part);
        }
        if *is_last != 0 {
            let whole = parts.remove(&from).unwrap_or_default();
            drop(parts);
            self.observer.port_packet(from.0, &whole);
        }
    }

    pub(super) fn saw_came(&self, from: Incarnation, bytes: &[u8]) {
        if let Some(generation) = take(bytes) {
            self.observer.port_saw(from.0, generation);
        }
    }

    /// Those of a view that were not there before are about to be heard.
    pub(super) fn ports_meet(&self, others: impl Iterator<Item = Incarnation>) {
        let stays: Vec<u64> = others.map(|stay| stay.0).collect();
        self.observer.port_hosts_come(&stays);
    }

    /// Those that are not in a view any more are heard no more. All others are told, after all that was
    /// said because of them.
    pub(super) fn ports_see(&self, view: &View) {
        let own = self.control.incarnation();
        let members = view.members.values().map(|member| member.incarnation);
        let others: BTreeSet<u64> = members
            .filter(|stay| *stay != own)
            .map(|one| one.0)
            .collect();
        lock(&self.parts.0).retain(|stay, _| others.contains(&stay.0));
        self.observer.port_hosts_are(view.generation, &others);
        for stay in others {
            let generation = put(&view.generation);
            self.post
                .sends_to(Incarnation(stay), Priority::Bulk, Kind::Saw, &[&generation]);
        }
    }
}

impl Cluster {
    /// Gives a port of this host's, by its number, a name for all hosts, as long as this stay.
    ///
    /// # Errors
    /// As [`farpage_membership::Control::check_in`].
    pub fn check_in(&self, name: &str, number: u64, uid: u32) -> Result<(), ControlError> {
        self.inner.control.check_in(name, number, uid)
    }

    /// The port of a name.
    ///
    /// # Errors
    /// As [`farpage_membership::Control::look_up`].
    pub fn look_up(&self, name: &str) -> Result<CheckedIn, ControlError> {
        self.inner.control.look_up(name)
    }

    /// Takes its name away from a port.
    ///
    /// # Errors
    /// As [`farpage_membership::Control::check_out`].
    pub fn check_out(&self, name: &str, port: CheckedIn) -> Result<(), ControlError> {
        self.inner.control.check_out(name, port)
    }

    /// All ports that have names, as far as this host knows.
    #[must_use]
    pub fn ports(&self) -> Vec<(String, CheckedIn)> {
        self.inner.control.ports().unwrap_or_default()
    }

    /// Why the store does not answer, since that is known.
    #[must_use]
    pub fn store_lost(&self) -> Option<String> {
        lock(&self.inner.state).store_lost.clone()
    }

    /// What the host of a stay calls itself.
    #[must_use]
    pub fn host_name(&self, stay: u64) -> Option<String> {
        let host = match stay == self.stay() {
            true => self.inner.own,
            false => self.inner.host_of(stay)?,
        };
        let state = lock(&self.inner.state);
        state.members.get(&host.0).map(|member| member.name.clone())
    }
}

impl PortWire {
    pub(super) fn new(post: &Arc<Post>) -> Self {
        Self(Arc::clone(post))
    }
}
