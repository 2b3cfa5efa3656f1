//! Who takes part, as one host sees it, and which messages count after somebody has died.
//!
//! A control plane gives all hosts the same sequence of views. A host that dies takes messages with
//! it, so survivors stop ([`crate::coherence::Page::freeze`]), wait for what they had sent each
//! other before, tell the home what they have, and go on as it says. To know that nothing of before
//! is still on its way, each tells each how many messages it had sent ([`Marker`]): they may come
//! in any order.

use alloc::collections::BTreeMap;
use core::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::coherence::hosts::{HOSTS_MAX, Host, Hosts};
use crate::coherence::message::Violation;

/// Which view: each message carries that of its sender, and each view has a later one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Generation(pub u64);

/// Who lives, as the control plane says it to all hosts in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// Of all views of the object.
    pub generation: Generation,
    /// They take part. A host that comes back was not among them in a view between.
    pub living: Hosts,
    /// It owns what nobody has touched, and decides after a death.
    pub home: Host,
}

impl View {
    /// The next view: the home stays while it lives, else the lowest host is the home.
    ///
    /// # Panics
    /// When nobody lives.
    #[must_use]
    pub fn next(self, living: Hosts) -> Self {
        let lowest = living.iter().next().expect("a view has somebody");
        Self {
            generation: Generation(self.generation.0 + 1),
            living,
            home: match living.has(self.home) {
                true => self.home,
                false => lowest,
            },
        }
    }

    /// The host that keeps what `host` has written, on a mirrored object: the next one, round.
    #[must_use]
    pub fn backup_of(self, host: Host) -> Option<Host> {
        let others = self.living.less(Hosts::of(host));
        let above = others.iter().find(|other| *other > host);
        above.or_else(|| others.iter().next())
    }
}

/// What a new view means for a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Hosts have come, and nothing else changes.
    Joined,
    /// Hosts have died: all pages are frozen, and [`Members::marker`] goes to these.
    Died {
        /// All that lived before and still do.
        marks_to: Hosts,
    },
    /// This host counts as dead: it takes all access away and gives up what it has.
    Fenced,
}

/// A host sends nothing of before this generation any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Marker {
    /// The view in which somebody died.
    pub generation: Generation,
    /// So many messages the sender had sent to the receiver before it.
    pub sent: u64,
}

/// What to do with a message that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Receipt {
    /// Its page takes it now; a frozen one absorbs it.
    Take,
    /// It is of later: ask again after each view, and after [`Members::resume`].
    Keep,
    /// It is of a host that has died since, or of before it died.
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Peer {
    since: Generation,
    sent: u64,
    received: u64,
    /// Of the last death.
    marker: Option<Marker>,
}

/// The hosts of an object as one of them sees them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Members {
    own: Host,
    view: View,
    /// The last view in which somebody died, or in which this host began.
    fence: Generation,
    is_frozen: bool,
    peers: BTreeMap<Host, Peer>,
    /// Of deaths that this host has not heard of, also from hosts that it has not heard of.
    later: BTreeMap<Host, Marker>,
}

impl Members {
    /// A host begins with the view in which it is first, and has nothing yet.
    ///
    /// # Panics
    /// When it is not in that view.
    #[must_use]
    pub fn new(own: Host, view: View) -> Self {
        assert!(view.living.has(own), "a host begins in a view that has it");
        let mut members = Self {
            own,
            view,
            fence: view.generation,
            is_frozen: false,
            peers: BTreeMap::new(),
            later: BTreeMap::new(),
        };
        members.meet(view);
        members
    }

    /// The view that this host has heard of.
    #[must_use]
    pub fn view(&self) -> View {
        self.view
    }

    /// The view since which everything is counted: reports and verdicts of another are refused.
    #[must_use]
    pub fn fence(&self) -> Generation {
        self.fence
    }

    /// True from a death until [`Members::resume`].
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// A view has come. Views come in order, and none in which somebody died is left out.
    ///
    /// # Panics
    /// When it is not a later one.
    pub fn change(&mut self, view: View) -> Change {
        assert!(view.generation > self.view.generation, "a later view");
        if !view.living.has(self.own) {
            self.is_frozen = true;
            return Change::Fenced;
        }
        let died = self.view.living.less(view.living);
        self.peers.retain(|host, _| !died.has(*host));
        let marks_to = Hosts::all(self.peers.keys().copied());
        self.meet(view);
        self.view = view;
        if died.is_empty() {
            return Change::Joined;
        }
        self.fence = view.generation;
        self.is_frozen = true;
        for peer in self.peers.values_mut() {
            peer.marker = None;
        }
        for (from, marker) in core::mem::take(&mut self.later) {
            self.mark(from, marker);
        }
        Change::Died { marks_to }
    }

    fn meet(&mut self, view: View) {
        for host in view.living.less(Hosts::of(self.own)).iter() {
            self.peers.entry(host).or_insert(Peer {
                since: view.generation,
                sent: 0,
                received: 0,
                marker: None,
            });
        }
    }

    /// A message about a page goes to another host: the generation that it carries. None when that
    /// host does not live any more.
    pub fn send(&mut self, to: Host) -> Option<Generation> {
        self.peers.get_mut(&to)?.sent += 1;
        Some(self.view.generation)
    }

    /// What every survivor is told once, after [`Change::Died`].
    #[must_use]
    pub fn marker(&self, to: Host) -> Option<Marker> {
        let sent = self.peers.get(&to)?.sent;
        let generation = self.fence;
        Some(Marker { generation, sent })
    }

    /// A marker has come, of whatever view.
    ///
    /// # Errors
    /// When its sender cannot be.
    pub fn marked(&mut self, from: Host, marker: Marker) -> Result<(), Violation> {
        if from.0 >= HOSTS_MAX || from == self.own {
            let what = "a marker as a host that cannot be there";
            return Err(Violation { by: from, what });
        }
        self.mark(from, marker);
        Ok(())
    }

    fn mark(&mut self, from: Host, marker: Marker) {
        match (
            marker.generation.cmp(&self.fence),
            self.peers.get_mut(&from),
        ) {
            (Ordering::Greater, _) => {
                let later = self.later.entry(from).or_insert(marker);
                *later = marker.max(*later);
            }
            (Ordering::Equal, Some(peer)) => peer.marker = Some(marker),
            (Ordering::Equal, None) | (Ordering::Less, _) => {}
        }
    }

    /// A message about a page has come. What is kept is asked about again, and counted only once.
    pub fn receive(&mut self, from: Host, generation: Generation) -> Receipt {
        if generation > self.view.generation {
            return Receipt::Keep;
        }
        let (fence, is_frozen) = (self.fence, self.is_frozen);
        let Some(peer) = self.peers.get_mut(&from) else {
            return Receipt::Refuse;
        };
        if generation < peer.since {
            return Receipt::Refuse;
        }
        if is_frozen && generation >= fence {
            return Receipt::Keep;
        }
        peer.received += 1;
        Receipt::Take
    }

    /// So many messages of a host have come.
    #[must_use]
    pub fn received(&self, from: Host) -> u64 {
        self.peers.get(&from).map_or(0, |peer| peer.received)
    }

    /// A host says with which view it began, of those that have it: it may have heard of none
    /// before, and has then no part in what came to an end in one of them.
    ///
    /// # Errors
    /// When its sender is none of those who live.
    pub fn began(&mut self, from: Host, generation: Generation) -> Result<(), Violation> {
        let Some(peer) = self.peers.get_mut(&from) else {
            let what = "where it began, as a host that is not there";
            return Err(Violation { by: from, what });
        };
        peer.since = peer.since.max(generation);
        Ok(())
    }

    /// True when nothing of before the death is on its way to this host any more.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.peers.values().all(|peer| {
            let is_marked = peer.marker.is_some_and(|one| one.sent == peer.received);
            peer.since >= self.fence || is_marked
        })
    }

    /// All pages have their verdicts: messages of now are taken.
    ///
    /// # Panics
    /// When messages of before are still to come.
    pub fn resume(&mut self) {
        assert!(self.is_drained(), "what is on its way would be lost");
        self.is_frozen = false;
    }
}
