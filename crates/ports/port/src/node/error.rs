//! What can go wrong.

use farpage_sys::Errno;

use super::message::Message;
use crate::link;

/// Why there is no right to begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nothing came before the time was up.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// The peer went away, or gives no right.
    #[error("the peer closed the connection without giving a right")]
    Closed,
    /// The port that the peer gives a right to is dead.
    #[error("the port that the peer offers is dead")]
    Dead,
    /// The peer speaks another version.
    #[error("the peer's Node speaks version {theirs}, this one {ours}: update the older")]
    Version {
        /// Of this program.
        ours: u16,
        /// Of the peer.
        theirs: u16,
    },
    /// The peer does not say honestly who it is.
    #[error("the peer is refused: {0}")]
    Greeting(&'static str),
    /// There is no Link.
    #[error(transparent)]
    Link(link::ConnectError),
    /// Linux refused.
    #[error("cannot {doing}: {errno}")]
    Failed {
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        errno: Errno,
    },
}

impl From<link::ConnectError> for ConnectError {
    fn from(error: link::ConnectError) -> Self {
        match error {
            link::ConnectError::TimedOut => Self::TimedOut,
            link::ConnectError::Closed => Self::Closed,
            error => Self::Link(error),
        }
    }
}

/// Why a message was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// There was no room in the port's queue in time.
    #[error("the port's queue stayed full; its receiver does not keep up")]
    TimedOut,
    /// The port is dead.
    #[error("the port is dead: its receiver has gone or destroyed it")]
    Dead,
    /// The message is larger than the limits.
    #[error(
        "the message has more than 65536 bytes, 64 rights, 64 pieces of memory or 253 descriptors; \
         send less, or bytes as memory"
    )]
    TooLarge,
    /// A receive right would be queued at its own port.
    #[error("the receive right would travel to its own port and be lost; send it elsewhere")]
    Circular,
    /// The port's receiver is on another host.
    #[error(
        "the port's receiver is on another host, where no descriptors, receive rights and more than 64 \
         MiB of memory can go; send bytes, send rights and less memory, or share memory of the cluster"
    )]
    Elsewhere,
    /// A right of another Node of this process.
    #[error(
        "a right belongs to another Node of this process; rights move between Nodes by messages"
    )]
    Foreign,
    /// A reply right that is a receive right.
    #[error("a receive right cannot be answered to; give a send or send-once right")]
    Reply,
}

/// A message that was not sent, with all that is in it.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// Why.
    pub error: SendError,
    /// The message.
    pub message: Box<Message>,
}

/// Why nothing was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// Nothing came before the time was up.
    #[error("nothing came in time")]
    TimedOut,
    /// The port is a member of a port set.
    #[error("the port is a member of a port set; receive from the set or remove it first")]
    InSet,
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The call was not sent.
    #[error("the call was not sent: {0}")]
    Refused(#[from] SendError),
    /// It was, and there will be no answer.
    #[error("the receiver died, or dropped the call without an answer")]
    Unanswered,
    /// There was no answer before the time was up.
    #[error("no answer came in time")]
    TimedOut,
}
