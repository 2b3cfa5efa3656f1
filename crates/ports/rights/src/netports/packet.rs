//! What network servers say to each other.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// One stay of a host in the cluster; later ones have larger numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stay(pub u64);

/// A right, the same for all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Port {
    /// Where its port lives.
    pub home: Stay,
    /// What its home calls it.
    pub number: u64,
}

/// What a right is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Any number of messages.
    Send,
    /// One message.
    Once,
}

/// A right in a message. "Mine" and "yours" are the sender's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Ref {
    /// It was dead already.
    Dead,
    /// To a port of the sender's host.
    Mine {
        /// What it calls it.
        number: u64,
        /// What it is good for.
        kind: Kind,
    },
    /// To a port of the receiver's host: it comes home.
    Yours {
        /// What the receiver calls it.
        number: u64,
        /// How often the sender had got it, when it has it no longer.
        released: u64,
    },
    /// To a port of a third host's, to be claimed there.
    Third {
        /// Which.
        port: Port,
        /// What it is good for.
        kind: Kind,
    },
}

/// A piece of out-of-line memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemoryHead {
    /// It is lent to the receiver, and not given.
    pub is_lent: bool,
    /// How many bytes.
    pub bytes: u64,
}

/// What a message is, before its bytes and the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// What it is about: its sender's and receiver's business.
    pub id: u32,
    /// How many bytes are inside.
    pub bytes: u32,
    /// The first right is the one to answer to.
    pub has_reply: bool,
    /// The rights.
    pub rights: Vec<Ref>,
    /// The memory.
    pub memory: Vec<MemoryHead>,
}

impl Head {
    /// Bytes that follow; `None` when there is no such number.
    #[must_use]
    pub fn follows(&self) -> Option<u64> {
        let mut pieces = self.memory.iter();
        let first = Some(u64::from(self.bytes));
        pieces.try_fold(first?, |sum, piece| sum.checked_add(piece.bytes))
    }
}

/// What one network server tells another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Packet {
    /// A message for a port of the receiver's; bytes and memory follow.
    Message {
        /// Which.
        to: u64,
        /// How often the sender had got the right, when it has it no longer.
        released: u64,
        /// What it is.
        head: Head,
    },
    /// The sender has a right no more that it had got so often.
    Release {
        /// Which.
        number: u64,
        /// How often.
        times: u64,
    },
    /// The sender was given a right by a third host, or found it by a name.
    Claim {
        /// Which.
        number: u64,
    },
    /// It has it.
    Claimed {
        /// Which.
        number: u64,
    },
    /// The port is dead, or was never there.
    Gone {
        /// Which.
        number: u64,
    },
    /// The sender has claimed what the receiver gave it.
    Unpin {
        /// Which.
        port: Port,
    },
    /// Messages of so many units have been taken.
    Credit {
        /// By which port.
        number: u64,
        /// How many.
        units: u32,
    },
    /// The sender wants to know when all its messages have been taken.
    Drain {
        /// By which port.
        number: u64,
    },
    /// The receiver has broken the protocol: nothing of it is listened to any more.
    Bye,
}

/// What came is none of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what came for its ports is no packet of this version")]
pub struct Garbled;

impl Packet {
    /// It as bytes.
    ///
    /// # Panics
    /// Never: it is written into memory.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("it is written into memory")
    }

    /// It, and what follows.
    ///
    /// # Errors
    /// [`Garbled`].
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), Garbled> {
        let (packet, rest) = postcard::take_from_bytes(bytes).map_err(|_| Garbled)?;
        let follows = match &packet {
            Self::Message { head, .. } => head.follows(),
            Self::Release { .. }
            | Self::Claim { .. }
            | Self::Claimed { .. }
            | Self::Gone { .. }
            | Self::Unpin { .. }
            | Self::Credit { .. }
            | Self::Drain { .. }
            | Self::Bye => Some(0),
        };
        match follows == Some(rest.len() as u64) {
            true => Ok((packet, rest)),
            false => Err(Garbled),
        }
    }
}
