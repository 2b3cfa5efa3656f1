//! One network server's table, and what it asks of its shell.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::netports::export::Export;
use crate::netports::packet::{Kind, Packet, Port, Ref, Stay};
use crate::netports::proxy::Proxy;

/// Units of messages that a proxy may have under way.
pub const WINDOW: u32 = 32;
/// Units of one message at most.
pub const UNITS_MAX: u32 = WINDOW / 2;
/// A message has a unit, and one more for each so many bytes.
pub const UNIT_BYTES: u64 = 64 << 10;
/// Claims of one host for what is not there that have not been released, at most.
pub(crate) const VAIN_MAX: u32 = 4096;

/// What a message of so many bytes counts.
#[must_use]
pub fn units(bytes: u64) -> u32 {
    let units = (bytes / UNIT_BYTES).saturating_add(1);
    u32::try_from(units).unwrap_or(UNITS_MAX).min(UNITS_MAX)
}

/// A host broke the protocol. Nothing of it is listened to any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// It named a right of this host's that it was not given.
    #[error("it named a right that it does not hold")]
    NotHeld,
    /// It released more than it was given.
    #[error("it released more than it was given")]
    Count,
    /// It sent more than a port's queue takes.
    #[error("it sent more than it had room for")]
    NoRoom,
    /// It gave or confirmed what contradicts what it said before.
    #[error("it contradicts what it said before")]
    Contradiction,
    /// It claims too much that is not there.
    #[error("it claims too much that is not there")]
    Vain,
    /// What it sent is no packet.
    #[error("it sent what is no packet")]
    Garbled,
}

/// What the shell is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// To be sent.
    Send(Stay, Packet),
    /// No other host has this right of this host's any more, or it was used: to be dropped.
    Drop(u64),
    /// The port is dead: its local proxy is to be destroyed, and who looked for it told.
    Kill(Port),
    /// There is room for a message to it; who looked for it has it.
    Open(Port),
}

/// What a right that a message carries is, for the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is dead.
    Dead,
    /// A send right of this host's.
    Own(u64),
    /// A send-once right of this host's, which is the receiver's of the message now.
    OwnOnce(u64),
    /// To a port of another host's. A local proxy is to be made when there is none; for a send-once
    /// right always.
    Proxy(Port, Kind),
}

/// A right that a message is to carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// It is dead.
    Dead,
    /// To a port of this host's, by the number that the shell has for it.
    Own(u64, Kind),
    /// To a port of another host's, which has a local proxy.
    Proxy(Port),
}

/// A host that is gone, and who has yet to say that it has handled all that came from it.
#[derive(Debug)]
pub(crate) struct Departure {
    stay: Stay,
    generation: u64,
    waits: BTreeSet<Stay>,
}

/// Another host of the view.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// The newest view that it has seen.
    saw: u64,
    /// It broke the protocol, or says that this host did.
    is_out: bool,
    /// Its claims of what is not there.
    pub(crate) vain: u32,
}

/// All that one network server knows of rights.
#[derive(Debug)]
pub struct Table {
    pub(crate) own: Stay,
    pub(crate) peers: BTreeMap<Stay, Peer>,
    /// The newest stay that was ever seen.
    newest: Stay,
    pub(crate) exports: BTreeMap<u64, Export>,
    pub(crate) proxies: BTreeMap<Port, Proxy>,
    departures: Vec<Departure>,
    outputs: VecDeque<Output>,
}

impl Table {
    /// That of a host that begins a stay.
    #[must_use]
    pub fn new(own: Stay) -> Self {
        Self {
            own,
            peers: BTreeMap::new(),
            newest: own,
            exports: BTreeMap::new(),
            proxies: BTreeMap::new(),
            departures: Vec::new(),
            outputs: VecDeque::new(),
        }
    }

    /// This host.
    #[must_use]
    pub fn own(&self) -> Stay {
        self.own
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    pub(crate) fn put(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    pub(crate) fn send(&mut self, to: Stay, packet: Packet) {
        if self.hears(to) {
            self.put(Output::Send(to, packet));
        }
    }

    /// Whether there is a host that is listened to.
    #[must_use]
    pub fn hears(&self, stay: Stay) -> bool {
        self.peers.get(&stay).is_some_and(|peer| !peer.is_out)
    }

    /// A host that is not there is so for ever.
    pub(crate) fn is_past(&self, stay: Stay) -> bool {
        match self.peers.get(&stay) {
            Some(peer) => peer.is_out,
            None => stay <= self.newest,
        }
    }

    /// How many rights of this host's others have, and how many of theirs this host has.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let is_held = |export: &&Export| export.has_holders();
        (
            self.exports.values().filter(is_held).count(),
            self.proxies.len(),
        )
    }

    /// A host joins: before anything of it can come.
    pub fn meets(&mut self, stay: Stay) {
        if stay == self.own || self.peers.contains_key(&stay) {
            return;
        }
        self.peers.insert(stay, Peer::default());
        self.newest = self.newest.max(stay);
        // What was given by somebody who knew it before.
        let of = |port: &&Port| port.home == stay;
        let early: Vec<Port> = self.proxies.keys().filter(of).copied().collect();
        for Port { number, .. } in early {
            self.send(stay, Packet::Claim { number });
        }
    }

    /// These are the others of the newest view; of those that are not, nothing comes any more.
    pub fn sees(&mut self, generation: u64, others: &BTreeSet<Stay>) {
        others.iter().for_each(|stay| self.meets(*stay));
        let gone: Vec<Stay> = self.peers.keys().copied().collect();
        for stay in gone.into_iter().filter(|stay| !others.contains(stay)) {
            self.peers.remove(&stay);
            self.forget(stay);
            for departure in &mut self.departures {
                departure.waits.remove(&stay);
            }
            let is_late = |(_, peer): &(&Stay, &Peer)| peer.saw < generation;
            let waits = self.peers.iter().filter(is_late);
            let waits = waits.map(|(stay, _)| *stay).collect();
            self.departures.push(Departure {
                stay,
                generation,
                waits,
            });
        }
        // Somebody gave a right of a host that came and went between two views.
        let missed = self.proxies.keys().map(|port| port.home);
        let missed: BTreeSet<Stay> = missed.filter(|home| self.is_past(*home)).collect();
        missed.into_iter().for_each(|stay| self.forget(stay));
        self.depart();
    }

    /// Another host has handled all that came to it from hosts that are not in a view any more.
    pub fn saw(&mut self, by: Stay, generation: u64) {
        if let Some(peer) = self.peers.get_mut(&by) {
            peer.saw = peer.saw.max(generation);
        }
        for departure in &mut self.departures {
            if departure.generation <= generation {
                departure.waits.remove(&by);
            }
        }
        self.depart();
    }

    /// Releases what hosts held that are gone, when nobody can claim any more what they gave.
    fn depart(&mut self) {
        let over = self.departures.extract_if(.., |one| one.waits.is_empty());
        let over: Vec<Stay> = over.map(|one| one.stay).collect();
        for stay in over {
            self.releases_all(stay);
        }
    }

    /// A host broke the protocol: its ports are dead here, and those of this host to it. What it
    /// holds is released when it leaves the cluster.
    pub fn expel(&mut self, stay: Stay) {
        self.send(stay, Packet::Bye);
        self.bye(stay);
    }

    fn bye(&mut self, stay: Stay) {
        if let Some(peer) = self.peers.get_mut(&stay) {
            peer.is_out = true;
        }
        self.forget(stay);
    }

    /// A packet of another host's; of a message its rights are taken by [`Table::take`] before.
    /// `Ok(true)`: the message is to be given to the port.
    ///
    /// # Errors
    /// [`Violation`]: the host is to be [expelled](Table::expel).
    pub fn handle(&mut self, from: Stay, packet: &Packet) -> Result<bool, Violation> {
        if !self.hears(from) {
            return Ok(false);
        }
        match *packet {
            Packet::Message {
                to,
                released,
                ref head,
            } => {
                let bytes = head.follows().ok_or(Violation::Garbled)?;
                return self.message_came(from, to, units(bytes), released);
            }
            Packet::Release { number, times } => self.release_came(from, number, times)?,
            Packet::Claim { number } => self.claim_came(from, number)?,
            Packet::Claimed { number } => self.claimed_came(Port { home: from, number })?,
            Packet::Gone { number } => self.gone_came(Port { home: from, number }),
            Packet::Unpin { port } => self.unpin_came(from, port),
            Packet::Credit { number, units } => {
                self.credit_came(Port { home: from, number }, units)?;
            }
            Packet::Drain { number } => self.drain_came(from, number)?,
            Packet::Bye => self.bye(from),
        }
        Ok(false)
    }

    /// Has a message to `to` carry a right.
    pub fn give(&mut self, to: Stay, given: Given) -> Ref {
        match given {
            Given::Dead => Ref::Dead,
            Given::Own(number, kind) => self.give_own(to, number, kind),
            Given::Proxy(port) => self.give_proxy(to, port),
        }
    }

    /// A right that a message of another host carries.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn take(&mut self, from: Stay, right: Ref) -> Result<Taken, Violation> {
        match right {
            Ref::Dead => Ok(Taken::Dead),
            Ref::Mine { number, kind } => {
                let home = from;
                self.take_theirs(Port { home, number }, kind)
            }
            Ref::Yours { number, released } => self.take_own(from, number, released),
            Ref::Third { port, .. } if port.home == self.own || port.home == from => {
                Err(Violation::Contradiction)
            }
            Ref::Third { port, kind } => self.take_third(from, port, kind),
        }
    }
}
