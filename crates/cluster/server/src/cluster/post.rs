//! Messages between hosts: which incarnation a host's number stands for, and what kind a message is.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use farpage_network::{Incarnation, Network, Priority, Receiver};
use farpage_rules::coherence::{HOSTS_MAX, Host};

use crate::server::Wire;

/// What a message is, in its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Of a unit of an object.
    Unit = 1,
    /// Whether the host is there.
    Ping = 2,
    /// It is.
    Pong = 3,
    /// Until when it has done what the store says.
    Done = 4,
    /// It has.
    IsDone = 5,
    /// Whoever waits at a word is to go on.
    Wake = 6,
    /// A part of what concerns semaphores and message queues of System V.
    Sysv = 7,
    /// Whether a process of the host lives.
    Lives = 8,
    /// It does, or not.
    IsLiving = 9,
    /// What the host has counted.
    Asks = 10,
    /// It tells.
    Told = 11,
    /// A part of what network servers say to each other.
    Port = 12,
    /// All that came from hosts that a view has not any more is handled.
    Saw = 13,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        let all = [
            Self::Unit,
            Self::Ping,
            Self::Pong,
            Self::Done,
            Self::IsDone,
            Self::Wake,
            Self::Sysv,
            Self::Lives,
            Self::IsLiving,
            Self::Asks,
            Self::Told,
            Self::Port,
            Self::Saw,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Takes what comes.
pub(crate) trait Inbox: Send + Sync {
    /// A message of a host of the view.
    fn came(&self, from: Host, kind: Kind, bytes: &[u8]);
    /// The same, for whom a host's number is not enough.
    fn came_from(&self, from: Incarnation, kind: Kind, bytes: &[u8]);
    /// A host sent what is none.
    fn is_wrong(&self, from: Host, what: &str);
    /// A host is connected, or not, for this reason.
    fn link_changed(&self, host: Host, is_up: bool, why: &str);
    /// Somebody was turned away.
    fn turned_away(&self, who: SocketAddr, why: &str);
}

#[derive(Default)]
struct Peers {
    by_host: HashMap<Host, Incarnation>,
    by_incarnation: HashMap<Incarnation, Host>,
}

/// The network, by the numbers of hosts.
#[derive(Default)]
pub(crate) struct Post {
    network: RwLock<Option<Arc<Network>>>,
    peers: RwLock<Peers>,
    inbox: OnceLock<Weak<dyn Inbox>>,
}

impl Post {
    /// Who takes what comes, and by what it comes.
    pub(crate) fn begin(&self, inbox: Weak<dyn Inbox>) {
        self.inbox.get_or_init(|| inbox);
    }

    pub(crate) fn uses(&self, network: Network) {
        let mut used = self.network.write().unwrap_or_else(PoisonError::into_inner);
        *used = Some(Arc::new(network));
    }

    /// Nothing is sent or comes any more.
    pub(crate) fn ends(&self) {
        let mut used = self.network.write().unwrap_or_else(PoisonError::into_inner);
        let network = used.take();
        drop(used);
        drop(network);
    }

    fn network(&self) -> Option<Arc<Network>> {
        let used = self.network.read().unwrap_or_else(PoisonError::into_inner);
        used.clone()
    }

    /// The other hosts of the view from now on. Those that were among them before, and are not, are
    /// heard no more when this returns.
    pub(crate) fn are_peers(&self, all: &HashMap<Host, (Incarnation, SocketAddr)>) -> Vec<String> {
        let mut peers = self.peers.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *peers);
        for (host, (incarnation, _)) in all {
            assert!(host.0 < HOSTS_MAX, "no such host");
            peers.by_host.insert(*host, *incarnation);
            peers.by_incarnation.insert(*incarnation, *host);
        }
        let gone: Vec<Incarnation> = before
            .by_incarnation
            .into_keys()
            .filter(|incarnation| !peers.by_incarnation.contains_key(incarnation))
            .collect();
        drop(peers);
        let Some(network) = self.network() else {
            return Vec::new();
        };
        gone.into_iter().for_each(|peer| network.part(peer));
        let met = all
            .values()
            .map(|(peer, address)| network.meet(*peer, *address));
        met.filter_map(|met| Some(met.err()?.to_string())).collect()
    }

    /// Sends a message to a host of the view; to another it goes nowhere.
    pub(crate) fn sends(&self, to: Host, kind: Kind, parts: &[&[u8]]) {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        let Some(peer) = peers.by_host.get(&to).copied() else {
            return;
        };
        drop(peers);
        self.sends_to(peer, Priority::Urgent, kind, parts);
    }

    /// Sends a message to an incarnation; to one that is not met it goes nowhere.
    pub(crate) fn sends_to(
        &self,
        to: Incarnation,
        priority: Priority,
        kind: Kind,
        parts: &[&[u8]],
    ) {
        let first = [kind as u8];
        let mut all: Vec<&[u8]> = vec![&first];
        all.extend(parts);
        if let Some(network) = self.network() {
            // One that is gone is being parted from.
            let _ = network.send(to, priority, &all);
        }
    }

    /// What is kept for an incarnation until it has come.
    pub(crate) fn owed_bytes(&self, to: Incarnation, priority: Priority) -> usize {
        let network = self.network();
        let owed = network.and_then(|network| network.owed_bytes(to, priority).ok());
        owed.unwrap_or(0)
    }

    /// The number of a host of the view.
    pub(crate) fn host(&self, peer: Incarnation) -> Option<Host> {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        peers.by_incarnation.get(&peer).copied()
    }

    /// Which incarnation a host of the view has.
    pub(crate) fn incarnation(&self, host: Host) -> Option<Incarnation> {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        peers.by_host.get(&host).copied()
    }

    fn inbox(&self) -> Option<Arc<dyn Inbox>> {
        self.inbox.get()?.upgrade()
    }
}

impl Wire for Post {
    fn send(&self, to: Host, parts: &[&[u8]]) {
        self.sends(to, Kind::Unit, parts);
    }
}

/// What the network calls.
pub(crate) struct Ears(pub(crate) Weak<Post>);

impl Ears {
    fn whose(&self, peer: Incarnation) -> Option<(Host, Arc<dyn Inbox>)> {
        let post = self.0.upgrade()?;
        Some((post.host(peer)?, post.inbox()?))
    }
}

impl Receiver for Ears {
    fn received(&self, from: Incarnation, _: Priority, message: &[u8]) {
        let stay = from;
        let Some((from, inbox)) = self.whose(from) else {
            return;
        };
        let (first, rest) = message.split_first().unwrap_or((&0, &[]));
        match Kind::of(*first) {
            Some(kind @ (Kind::Port | Kind::Saw | Kind::Sysv)) => inbox.came_from(stay, kind, rest),
            Some(kind) => inbox.came(from, kind, rest),
            None => inbox.is_wrong(from, "a message of no kind of this version"),
        }
    }

    fn link_changed(&self, peer: Incarnation, priority: Priority, up: bool, why: &str) {
        if let (Priority::Urgent, Some((host, inbox))) = (priority, self.whose(peer)) {
            inbox.link_changed(host, up, why);
        }
    }

    fn refused(&self, from: SocketAddr, why: &str) {
        let post = self.0.upgrade();
        if let Some(inbox) = post.and_then(|post| post.inbox()) {
            inbox.turned_away(from, why);
        }
    }
}
