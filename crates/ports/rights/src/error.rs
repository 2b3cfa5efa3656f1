//! What can go wrong, and who is to blame.

use alloc::boxed::Box;

use crate::message::{LinkId, Message, TaskId};
use crate::wait::Wait;

/// Why an operation on a name is refused. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such name.
    #[error("the name denotes no right: it was freed, or never given")]
    InvalidName,
    /// The name denotes another kind of right.
    #[error("the name does not denote a right of the kind that this needs")]
    InvalidRight,
    /// A right is not there often enough.
    #[error("the name has fewer user references than that; use it less often")]
    TooFew,
    /// User references would overflow.
    #[error("the name has as many user references as can be counted; free some")]
    TooMany,
    /// The port is a member of a set.
    #[error("the port is a member of a port set; receive from the set or remove it first")]
    InSet,
    /// A notification goes to a send-once right only.
    #[error("a notification needs a send-once right; make or move one")]
    NotSendOnce,
    /// There is such a Link, or one to this task.
    #[error("a Link of this number or to this task is up; take it down first")]
    LinkUp,
}

/// Why a message is not received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The queue is empty.
    #[error("no message is queued; wait for one")]
    WouldBlock,
    /// The name is not one to receive from.
    #[error("cannot receive: {0}")]
    Name(#[from] Error),
}

/// Why a message is not sent. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Wait for this and send again.
    #[error("the queue is full, or the right is on its way; wait and send again")]
    WouldBlock(Wait),
    /// The destination's port is dead.
    #[error("the destination's port is dead; free the name")]
    Dead,
    /// The destination is no send right.
    #[error("cannot send to this name: {0}")]
    Destination(Error),
    /// The reply right cannot be given.
    #[error("cannot give the reply right: {0}")]
    Reply(Error),
    /// The right of this index cannot be given.
    #[error("cannot give right {0}: {1}")]
    Right(usize, Error),
    /// The message is larger than the limits.
    #[error("the message has too many bytes, rights, descriptors or pieces of memory; send less")]
    TooLarge,
    /// A receive right would be queued, directly or not, at its own port.
    #[error("the receive right would travel to itself and be lost; send it to another port")]
    Circular,
    /// The port is a proxy: its receiver is on another host.
    #[error(
        "the port's receiver is on another host, where no descriptors, receive rights and more than 64 \
         MiB of memory can go"
    )]
    Elsewhere,
}

/// A message that was not sent, whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// Why.
    pub error: SendError,
    /// The message, with all its rights still the sender's.
    pub message: Box<Message>,
}

/// A peer broke the protocol. Its Link is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task {} broke the protocol on Link {}: {fault}; the Link is closed", .task.0, .link.0)]
pub struct Violation {
    /// The Link.
    pub link: LinkId,
    /// The guilty task.
    pub task: TaskId,
    /// What it did.
    pub fault: Fault,
}

/// How a peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It named what was not granted to it, or no longer.
    #[error("it named what it does not hold")]
    NotHeld,
    /// It granted, freed or moved what this task does not hold.
    #[error("it answered for a right that was not given")]
    NotGiven,
    /// It sent without credit.
    #[error("it sent a message without credit")]
    NoCredit,
    /// It granted a right in a way that contradicts what it granted before.
    #[error("it granted a right that contradicts an earlier one")]
    Contradiction,
    /// It released more than it got.
    #[error("it released more than was given")]
    Count,
    /// It used a number again.
    #[error("it used the number of a handover again")]
    Replay,
    /// It named itself or this task as a third one.
    #[error("it named one of the Link's own tasks as a third one")]
    NotThird,
    /// Descriptors that were announced are not there, or others are.
    #[error("the descriptors are not those that were announced")]
    Descriptors,
    /// More than the limits.
    #[error("it exceeded a limit of the protocol")]
    TooMuch,
}
