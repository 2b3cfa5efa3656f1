//! A port: the receive right's side.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::message::{Descriptor, Memory, Sender};
use crate::right::{Right, Target};
use crate::slab::{Key, NONE};

/// Whether a port's messages are received here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum Home {
    Here,
    /// The receive right has left; messages follow it.
    Forward(Target),
    Dead,
}

/// Where the receive right of a port whose home is here is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum Place {
    /// Under this name.
    Named(u32),
    /// In a message queued at this port.
    Queued(u32),
    /// Nowhere for the moment, or never again.
    Loose,
}

#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Port {
    pub(crate) home: Home,
    /// It stands for a port of another host's: it takes only what can go there.
    pub(crate) is_proxy: bool,
    pub(crate) place: Place,
    /// The name that a further send right joins.
    pub(crate) name: u32,
    /// The queue of letters.
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) queued: u32,
    /// How many of them were sent by this task, by a send right.
    pub(crate) local: u16,
    pub(crate) limit: u16,
    pub(crate) sequence: u32,
    pub(crate) sends: u32,
    pub(crate) onces: u32,
    pub(crate) make_sends: u32,
    /// The first of its exports.
    pub(crate) exports: u32,
    pub(crate) set: u32,
    /// Neighbours in the set's ring of ports with messages.
    pub(crate) newer: u32,
    pub(crate) older: u32,
}

impl Port {
    pub(crate) fn new(limit: u16) -> Self {
        Self {
            home: Home::Here,
            is_proxy: false,
            place: Place::Loose,
            name: NONE,
            head: NONE,
            tail: NONE,
            queued: 0,
            local: 0,
            limit,
            sequence: 0,
            sends: 0,
            onces: 0,
            make_sends: 0,
            exports: NONE,
            set: NONE,
            newer: NONE,
            older: NONE,
        }
    }
}

/// A port set; the ready members take turns.
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Set {
    pub(crate) name: u32,
    pub(crate) members: BTreeSet<u32>,
    pub(crate) oldest: u32,
    pub(crate) newest: u32,
}

/// Something queued at a port.
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Letter {
    pub(crate) next: u32,
    /// The export whose credit it used.
    pub(crate) from: Option<Key>,
    /// It counts against the limit of this task's own messages.
    pub(crate) local: bool,
    pub(crate) hops: u8,
    /// The right it was sent by, held until it is received; dead when that was a send-once right.
    pub(crate) to: Right,
    pub(crate) content: Content,
}

#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) enum Content {
    Parcel(Parcel),
    /// All that came by this export has gone on; its holder may be handed the new home.
    Handover(Key),
}

#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Parcel {
    pub(crate) sender: Sender,
    pub(crate) id: u32,
    pub(crate) reply: Option<Right>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) rights: Vec<Right>,
    pub(crate) descriptors: Vec<Descriptor>,
    pub(crate) memory: Vec<Memory>,
}

impl Letter {
    pub(crate) fn new(parcel: Parcel, to: Right) -> Self {
        Self {
            next: NONE,
            from: None,
            local: false,
            hops: 0,
            to,
            content: Content::Parcel(parcel),
        }
    }
}
