//! What travels over a Link.

use alloc::vec::Vec;

use crate::message::{MemoryKind, RightKind, TaskId};
use crate::slab::Key;

/// An entry of the export table of the task that made it, for one Link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExportId(pub u64);

/// A bit of an entry's index that no table is large enough to use: the port is a proxy.
const PROXY: u64 = 1 << 31;

impl ExportId {
    pub(crate) fn key(self) -> Key {
        Key::from_bits(self.0 & !PROXY)
    }

    pub(crate) fn new(key: Key, is_proxy: bool) -> Self {
        Self(key.to_bits() | if is_proxy { PROXY } else { 0 })
    }

    /// What is sent there goes on to another host.
    pub(crate) fn is_proxy(self) -> bool {
        self.0 & PROXY != 0
    }
}

/// A right in a frame. "Mine" and "yours" are the sender's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WireRight {
    /// It was dead already.
    Dead,
    /// Mine: an entry of my export table, with credits to begin with.
    Mine {
        /// The entry; new, or one that you hold already (send rights).
        export: ExportId,
        /// Send or send-once.
        kind: RightKind,
        /// Messages that you may send; 0 for an entry that you hold already.
        credits: u16,
    },
    /// Yours: an entry of your export table. A send-once entry is consumed.
    Yours {
        /// The entry.
        export: ExportId,
        /// Send or send-once.
        kind: RightKind,
    },
    /// A third task's: it was told by [`Frame::Provide`]; ask it by [`Frame::Accept`].
    Third {
        /// Whose.
        task: TaskId,
        /// Which.
        nonce: u64,
        /// Send or send-once.
        kind: RightKind,
    },
    /// The receive right moves. Answer [`Frame::Accepted`] with a send right for what I forward.
    Receive {
        /// Which; echoed in the answer.
        nonce: u64,
        /// The queue limit.
        limit: u16,
    },
}

/// Out-of-line memory in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WireMemory {
    /// Donated: the next of the descriptors that follow the message's own. Lent: see `region`.
    pub kind: MemoryKind,
    /// The region lent; 0 when donated.
    pub region: u64,
    /// Length in bytes.
    pub length: u64,
}

/// A message in a frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MessageFrame {
    /// An entry of the receiver's export table.
    pub to: ExportId,
    /// The right to answer to.
    pub reply: Option<WireRight>,
    /// What the message is about.
    pub id: u32,
    /// Who sent it first, when it is forwarded: a claim.
    pub origin: Option<TaskId>,
    /// How often it was forwarded.
    pub hops: u8,
    /// The bytes inside.
    pub bytes: Vec<u8>,
    /// The rights.
    pub rights: Vec<WireRight>,
    /// Descriptors that come with it, those of donated memory not counted.
    pub descriptors: u8,
    /// Out-of-line memory.
    pub memory: Vec<WireMemory>,
}

/// What travels over a Link. The owner of a port grants; its peer holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    /// A message.
    Message(MessageFrame),
    /// A right to begin with, for one who waits for it.
    Offer {
        /// What the receiver has said to know it by.
        token: u64,
        /// A send or send-once right.
        right: WireRight,
    },
    /// Holder to owner: a right that came `count` times is dropped.
    Release {
        /// The owner's entry.
        export: ExportId,
        /// How often it had come.
        count: u32,
    },
    /// Owner to holder: the last right of this entry is back, the entry is gone.
    Freed {
        /// The owner's entry.
        export: ExportId,
    },
    /// Owner to holder: so many messages more.
    Credit {
        /// The owner's entry.
        export: ExportId,
        /// Messages.
        credits: u16,
    },
    /// Owner to holder: the port is dead. Answered by Release, unless the right is used up.
    Dead {
        /// The owner's entry.
        export: ExportId,
    },
    /// Holder to owner: keep a right for a third task to accept.
    Provide {
        /// A number larger than all before.
        nonce: u64,
        /// The owner's entry; a send-once one is consumed.
        export: ExportId,
        /// Who may accept it.
        to: TaskId,
    },
    /// Holder to owner: what was provided is not wanted.
    Withdraw {
        /// The number of the Provide.
        nonce: u64,
    },
    /// Owner to the provider: what was provided is accepted, or its receiver is gone.
    Settled {
        /// The number of the Provide.
        nonce: u64,
    },
    /// Third task to owner: give me what was provided for me.
    Accept {
        /// Who provided it.
        from: TaskId,
        /// The number of the Provide.
        nonce: u64,
        /// What was promised.
        kind: RightKind,
    },
    /// Owner to third task: here it is.
    Accepted {
        /// Who provided it.
        from: TaskId,
        /// The number of the Provide.
        nonce: u64,
        /// A new entry of the owner's.
        export: ExportId,
        /// Messages that may be sent.
        credits: u16,
    },
    /// Owner to third task: there is no such thing.
    Refused {
        /// Who was to provide it.
        from: TaskId,
        /// The number.
        nonce: u64,
    },
    /// Third task to the provider: I do not get what you sent me.
    Decline {
        /// Whose it was.
        owner: TaskId,
        /// The number.
        nonce: u64,
    },
    /// Owner to holder: the port has moved; send no more by this entry.
    Moved {
        /// The owner's entry.
        export: ExportId,
    },
    /// Holder to owner: that was the last by this entry.
    Following {
        /// The owner's entry.
        export: ExportId,
    },
    /// Owner to holder: all that you sent is there; use this right instead. The entry is gone.
    Handed {
        /// The owner's entry.
        export: ExportId,
        /// A send right that stands for nothing that you hold already.
        right: WireRight,
    },
}
