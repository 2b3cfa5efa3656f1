//! What the user of a [`Space`](crate::Space) gives and gets.

use alloc::vec::Vec;

use crate::slab::Key;

/// Most rights that one message carries, the reply right not counted.
pub const MAX_RIGHTS: usize = 64;
/// Most bytes inside a message; more travels out of line.
pub const MAX_INLINE: usize = 64 << 10;
/// Most descriptors of one message, those of donated memory included: what Linux passes at once.
pub const MAX_DESCRIPTORS: usize = 253;
/// Most pieces of out-of-line memory of one message.
pub const MAX_MEMORY: usize = 64;

/// Most bytes of out-of-line memory of one message to a port of another host.
pub const MAX_MEMORY_ELSEWHERE: u64 = 64 << 20;

/// A right's name in one task. A name that was freed is never mistaken for a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub(crate) u64);

impl Name {
    pub(crate) fn key(self) -> Key {
        Key::from_bits(self.0)
    }

    /// The name as a number, for C and for messages between parts of one task.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// A number that claims to be a name; it is checked when it is used.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// A Link, as the shell numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// A task, the same number for everybody; the shell vouches for that of each Link's peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

/// A point in time, in the shell's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

/// Whoever waits, as the shell numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Waiter(pub u64);

/// A descriptor that the shell holds for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Descriptor(pub u64);

/// How out-of-line memory changes hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// A sealed memory file; the handle is a descriptor, and passed as one.
    Donated,
    /// A region that the receiver keeps mapped; the handle is a number that both shells know.
    Lent,
}

/// Out-of-line memory of a message; its contents are the shell's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Memory {
    /// Donated or lent.
    pub kind: MemoryKind,
    /// The descriptor (donated) or the region (lent).
    pub handle: u64,
    /// Length in bytes.
    pub length: u64,
}

/// What becomes of a right when it is put into a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Disposition {
    /// The receiver gets a send right, the sender keeps its own.
    CopySend,
    /// One user reference of the sender's send right goes.
    MoveSend,
    /// A new send right to a port whose receive right is here.
    MakeSend,
    /// A new send-once right to a port whose receive right is here.
    MakeSendOnce,
    /// The send-once right goes.
    MoveSendOnce,
    /// The receive right goes, with all messages queued.
    MoveReceive,
}

/// A right and what is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Give {
    /// The right.
    pub name: Name,
    /// What is done with it.
    pub how: Disposition,
}

impl Give {
    /// Says what is done with the right `name`.
    #[must_use]
    pub fn new(name: Name, how: Disposition) -> Self {
        Self { name, how }
    }
}

/// A message to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Where to; a send or send-once right.
    pub to: Give,
    /// A right that the receiver may answer to.
    pub reply: Option<Give>,
    /// What the message is about; the sender's and receiver's business.
    pub id: u32,
    /// At most [`MAX_INLINE`] bytes.
    pub bytes: Vec<u8>,
    /// At most [`MAX_RIGHTS`] rights.
    pub rights: Vec<Give>,
    /// Descriptors that the shell passes.
    pub descriptors: Vec<Descriptor>,
    /// Out-of-line memory.
    pub memory: Vec<Memory>,
}

impl Message {
    /// A message without anything in it.
    #[must_use]
    pub fn new(to: Give, id: u32) -> Self {
        Self {
            to,
            reply: None,
            id,
            bytes: Vec::new(),
            rights: Vec::new(),
            descriptors: Vec::new(),
            memory: Vec::new(),
        }
    }
}

/// The kinds of right that a peer can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RightKind {
    /// May send any number of messages.
    Send,
    /// May send one message, which no queue limit holds up.
    SendOnce,
}

/// A right that came in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Got {
    /// A send right: one more user reference of this name.
    Send(Name),
    /// A send-once right.
    SendOnce(Name),
    /// A receive right.
    Receive(Name),
    /// A right that was dead before it came.
    Dead,
}

impl Got {
    /// The right's name, if it is not dead.
    #[must_use]
    pub fn name(self) -> Option<Name> {
        match self {
            Self::Send(name) | Self::SendOnce(name) | Self::Receive(name) => Some(name),
            Self::Dead => None,
        }
    }
}

/// Who sent a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sender {
    /// This Space itself: a notification.
    Space,
    /// This task.
    Own,
    /// The task at the other end of a Link.
    Peer {
        /// The Link it came by.
        link: LinkId,
        /// The Link's peer; the shell vouches for it.
        task: TaskId,
        /// What the shell said of the peer when the Link came up.
        badge: u64,
        /// The peer forwards it and claims that it was sent by this task.
        forwards: Option<TaskId>,
    },
}

/// A message received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The receive right it came to: which member, when a port set was read.
    pub port: Name,
    /// How many messages were received from this port before, since its receive right came here.
    pub sequence: u32,
    /// Who sent it.
    pub sender: Sender,
    /// What it is about.
    pub id: u32,
    /// The right to answer to.
    pub reply: Option<Got>,
    /// The bytes inside.
    pub bytes: Vec<u8>,
    /// The rights, in the sender's order.
    pub rights: Vec<Got>,
    /// The descriptors.
    pub descriptors: Vec<Descriptor>,
    /// The out-of-line memory.
    pub memory: Vec<Memory>,
}

/// A notification. It is an ordinary message; believe it as far as its sender is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// A name with a dead-name request was freed by its own task.
    PortDeleted(Name),
    /// A receive right was destroyed; it comes with the message.
    PortDestroyed,
    /// Nobody holds a send right any more; so many were made.
    NoSenders(u32),
    /// A send-once right to this port was dropped unused.
    SendOnce,
    /// The port behind a name is dead. The name has one more user reference for this.
    DeadName(Name),
}

const PORT_DELETED: u32 = 0o101;
const PORT_DESTROYED: u32 = 0o105;
const NO_SENDERS: u32 = 0o106;
const SEND_ONCE: u32 = 0o107;
const DEAD_NAME: u32 = 0o110;

impl Notice {
    /// The message id (Mach's) and the bytes.
    pub(crate) fn encode(self) -> (u32, Vec<u8>) {
        match self {
            Self::PortDeleted(name) => (PORT_DELETED, name.0.to_le_bytes().into()),
            Self::PortDestroyed => (PORT_DESTROYED, Vec::new()),
            Self::NoSenders(made) => (NO_SENDERS, made.to_le_bytes().into()),
            Self::SendOnce => (SEND_ONCE, Vec::new()),
            Self::DeadName(name) => (DEAD_NAME, name.0.to_le_bytes().into()),
        }
    }

    /// The notification that a message is, if it has the form of one.
    #[must_use]
    pub fn of(message: &Received) -> Option<Self> {
        let name = || Some(Name(u64::from_le_bytes(message.bytes[..].try_into().ok()?)));
        match message.id {
            PORT_DELETED => name().map(Self::PortDeleted),
            PORT_DESTROYED => Some(Self::PortDestroyed),
            NO_SENDERS => {
                let made = message.bytes[..].try_into().ok()?;
                Some(Self::NoSenders(u32::from_le_bytes(made)))
            }
            SEND_ONCE => Some(Self::SendOnce),
            DEAD_NAME => name().map(Self::DeadName),
            _ => None,
        }
    }
}
