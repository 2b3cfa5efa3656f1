//! Messages: what is sent, and what was received.

use std::os::fd::OwnedFd;

use farpage_rights as rights;
use farpage_rights::{Disposition, Give, Got, MemoryKind, Name};

use super::Node;
use super::memory::{Donated, Held, Lent, LentState, Memory};
use super::right::{ReceiveRight, Right, SendOnceRight, SendRight};
use super::state::State;

/// A message to be sent.
///
/// ```
/// use farpage_port::Message;
/// let message = Message { bytes: b"hello".to_vec(), ..Message::new(7) };
/// assert!(message.rights.is_empty());
/// ```
#[derive(Debug)]
pub struct Message {
    /// What it is about: the sender's and receiver's business.
    pub id: u32,
    /// At most 64 KiB; more goes as memory.
    pub bytes: Vec<u8>,
    /// A send or send-once right that the receiver may answer to.
    pub reply: Option<Right>,
    /// At most 64 rights.
    pub rights: Vec<Right>,
    /// Descriptors, of which the receiver gets copies; at most 253 with donated memory.
    pub descriptors: Vec<OwnedFd>,
    /// Out-of-line memory of any size, at most 64 pieces.
    pub memory: Vec<Memory>,
}

impl Message {
    /// A message without anything in it.
    #[must_use]
    pub fn new(id: u32) -> Self {
        Self {
            id,
            bytes: Vec::new(),
            reply: None,
            rights: Vec::new(),
            descriptors: Vec::new(),
            memory: Vec::new(),
        }
    }

    /// The rights in it belong to this Node.
    pub(super) fn is_of(&self, node: &Node) -> bool {
        let mut rights = self.reply.iter().chain(&self.rights);
        rights.all(|right| right.node().is_none_or(|of| of.is(node)))
            && self.memory.iter().all(|memory| match memory {
                Memory::Lent(Lent(LentState::Came(_, _, of))) => of.is(node),
                _ => true,
            })
    }
}

/// Who sent a message, as Linux says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The Node itself: a notification.
    Notice,
    /// This task.
    Own,
    /// Another process.
    Peer {
        /// Its number when it connected.
        pid: u32,
        /// Its user then.
        uid: u32,
        /// Its group then.
        gid: u32,
        /// It forwards the message, and claims that this process sent it.
        forwards: Option<u32>,
    },
}

/// A message that was received.
#[derive(Debug)]
pub struct Received {
    /// The name of the receive right it came to: which member of a set.
    pub port: Name,
    /// How many messages came to this port before, since its receive right came here.
    pub sequence: u32,
    /// Who sent it.
    pub sender: Sender,
    /// What it is about.
    pub id: u32,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The right to answer to.
    pub reply: Option<Right>,
    /// The rights, in the sender's order.
    pub rights: Vec<Right>,
    /// The descriptors, closed on exec.
    pub descriptors: Vec<OwnedFd>,
    /// The memory.
    pub memory: Vec<Memory>,
    pub(super) notice: Option<Notice>,
}

/// What a Node tells about rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A right with a dead-name request was dropped by its own task.
    Deleted(Name),
    /// A receive right was destroyed; it comes with the message.
    Destroyed,
    /// Nobody holds a send right any more; so many were made.
    NoSenders(u32),
    /// A send-once right to this port was dropped unused.
    SendOnce,
    /// The port that a right of this name is to is dead.
    Dead(Name),
}

impl Received {
    /// The notification that this is. Only what Linux or this task's own Node vouches for: a peer
    /// that forges one is not believed, but a send-once right that a peer dropped is one.
    #[must_use]
    pub fn notice(&self) -> Option<Notice> {
        self.notice
    }
}

impl State {
    /// The message as the Space knows it; what is in it stays the sender's until it is taken.
    pub(super) fn pack(&mut self, to: Give, message: &mut Message) -> rights::Message {
        let give = |right: &Right| right.give();
        let mut packed = rights::Message::new(to, message.id);
        packed.bytes = std::mem::take(&mut message.bytes);
        packed.reply = message.reply.as_ref().map(give);
        if !message.rights.is_empty() {
            packed.rights = message.rights.iter().map(give).collect();
        }
        let table = &mut self.descriptors;
        packed.descriptors = each(std::mem::take(&mut message.descriptors), |fd| {
            Some(rights::Descriptor(table.put(fd)))
        });
        packed.memory = each(std::mem::take(&mut message.memory), |memory| {
            Some(self.pack_memory(memory))
        });
        packed
    }

    fn pack_memory(&mut self, memory: Memory) -> rights::Memory {
        let length = memory.bytes();
        let (kind, handle) = match memory {
            Memory::Donated(donated) => (MemoryKind::Donated, self.descriptors.put(donated.fd)),
            Memory::Lent(lent) => (MemoryKind::Lent, self.memories.put(lent.0.into_held())),
        };
        rights::Memory {
            kind,
            handle,
            length,
        }
    }

    /// Takes back what was packed and not sent.
    pub(super) fn unpack(&mut self, node: &Node, packed: rights::Message, message: &mut Message) {
        message.bytes = packed.bytes;
        message.descriptors = self.take_descriptors(packed.descriptors);
        message.memory = self.take_memory(node, packed.memory);
    }

    fn take_descriptors(&mut self, keys: Vec<rights::Descriptor>) -> Vec<OwnedFd> {
        each(keys, |key| self.descriptors.take(key.0))
    }

    fn take_memory(&mut self, node: &Node, pieces: Vec<rights::Memory>) -> Vec<Memory> {
        let take = |piece: rights::Memory| match piece.kind {
            MemoryKind::Donated => {
                let fd = self.descriptors.take(piece.handle)?;
                let bytes = piece.length;
                Some(Memory::Donated(Donated { fd, bytes }))
            }
            MemoryKind::Lent => {
                let held = self.memories.take(piece.handle)?;
                Some(Memory::Lent(held.received(node)))
            }
        };
        each(pieces, take)
    }

    /// A message as its receiver gets it.
    pub(super) fn open(&mut self, node: &Node, received: rights::Received) -> Received {
        let notice = self.notice_of(&received);
        let right = |got| Some(Right::new(node, got));
        let descriptors = self.take_descriptors(received.descriptors);
        let memory = self.take_memory(node, received.memory);
        Received {
            port: received.port,
            sequence: received.sequence,
            sender: sender(received.sender),
            id: received.id,
            bytes: received.bytes,
            reply: received.reply.and_then(right),
            rights: each(received.rights, right),
            descriptors,
            memory,
            notice,
        }
    }

    fn notice_of(&mut self, received: &rights::Received) -> Option<Notice> {
        if received.sender != rights::Sender::Space {
            return None;
        }
        Some(match rights::Notice::of(received)? {
            rights::Notice::PortDeleted(name) => Notice::Deleted(name),
            rights::Notice::PortDestroyed => Notice::Destroyed,
            rights::Notice::NoSenders(made) => Notice::NoSenders(made),
            rights::Notice::SendOnce => Notice::SendOnce,
            rights::Notice::DeadName(name) => {
                // The reference that came with it; the right keeps its own.
                let _ = self.space.deallocate(name);
                Notice::Dead(name)
            }
        })
    }
}

/// Makes something of each; nothing of nothing, which most messages have of most things.
fn each<T, U, M: IntoIterator<Item = U>>(from: Vec<T>, make: impl FnMut(T) -> M) -> Vec<U> {
    match from.is_empty() {
        true => Vec::new(),
        false => from.into_iter().flat_map(make).collect(),
    }
}

fn sender(sender: rights::Sender) -> Sender {
    let pid = |task: rights::TaskId| (task.0 >> 32) as u32;
    match sender {
        rights::Sender::Space => Sender::Notice,
        rights::Sender::Own => Sender::Own,
        rights::Sender::Peer {
            task,
            badge,
            forwards,
            ..
        } => Sender::Peer {
            pid: pid(task),
            uid: (badge >> 32) as u32,
            gid: badge as u32,
            forwards: forwards.map(pid),
        },
    }
}

impl LentState {
    fn into_held(mut self) -> Held {
        match &mut self {
            Self::Own(region, range, half) => {
                let half = std::mem::replace(half, super::memory::Half::over());
                Held::Own(region.clone(), range.clone(), half)
            }
            Self::Came(loan, link, _) => {
                let loan = loan.take().expect("there until it is dropped");
                Held::Loan(loan, *link)
            }
        }
    }
}

impl Right {
    fn new(node: &Node, got: Got) -> Self {
        match got {
            Got::Send(name) => Self::Send(SendRight::new(node, name)),
            Got::SendOnce(name) => Self::SendOnce(SendOnceRight::new(node, name)),
            Got::Receive(name) => Self::Receive(ReceiveRight::new(node, name)),
            Got::Dead => Self::Dead,
        }
    }

    /// What sending it takes.
    fn give(&self) -> Give {
        let (name, how) = match self {
            Self::Send(right) => (right.name(), Disposition::MoveSend),
            Self::SendOnce(right) => (right.name(), Disposition::MoveSendOnce),
            Self::Receive(right) => (right.name(), Disposition::MoveReceive),
            Self::Dead => unreachable!("dead rights are replaced before"),
        };
        Give::new(name, how)
    }
}
