//! What hosts tell each other of a page, and what its shell does.

use alloc::boxed::Box;

use farpage_object::Access;
use serde::{Deserialize, Serialize};

use crate::coherence::hosts::{Host, Hosts};

/// How often a page was taken for writing, as far as somebody knows. Who owns it, and this, are
/// always learned together.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Epoch(pub u64);

impl Epoch {
    /// No page gets so far: whoever says so lies.
    pub(crate) const MAX: Self = Self(u64::MAX / 2);
}

/// What a host asks for. It goes from host to host until it meets the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Request {
    /// Who asks.
    pub by: Host,
    /// To write, or to read. Not [`Access`]: that has no order.
    pub to_write: bool,
    /// It has a copy, and keeps it until it is told to drop it.
    pub has_copy: bool,
    /// Who sends it on knew of this epoch: whoever knows of less waits until it knows more.
    pub known: Epoch,
    /// How often it was sent on.
    pub hops: u8,
    /// The owner of a sealed page sent it on, to one that has a copy or is about to: who has none
    /// after all sends it back.
    pub to_copy: bool,
}

/// A message about a page. Contents travel with it where [`Message::has_contents`] says so.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Message {
    /// Somebody asks.
    Request(Request),
    /// The owner lets the receiver read: the contents.
    Copy {
        /// Of the sender's ownership.
        epoch: Epoch,
    },
    /// The receiver owns the page from now on, and may write when these hosts have told it that
    /// they have dropped their copies.
    Own {
        /// Of the receiver's ownership.
        epoch: Epoch,
        /// Which.
        copies: Hosts,
        /// The contents come with it: the receiver had none.
        contents: bool,
        /// What waited at the old owner, in the order in which it is to be served: one request of a
        /// host at most. It travels with the page, or each would be sent on at each change of
        /// owner.
        waiting: Box<[Request]>,
        /// Hosts read and then write it, each in its turn
        /// ([`crate::coherence::Page::find_migration`]): it may answer a read.
        migrates: bool,
        /// Nobody writes it any more ([`crate::coherence::Page::seal`]): copies stay, and are to be
        /// asked for more.
        is_sealed: bool,
    },
    /// The receiver drops its copy, and tells the new owner.
    Invalidate {
        /// Of the new ownership.
        epoch: Epoch,
        /// The new owner.
        owner: Host,
    },
    /// The sender has dropped its copy.
    Dropped {
        /// Of the receiver's ownership.
        epoch: Epoch,
    },
    /// The contents that the receiver asked for were lost when a host died.
    Lost {
        /// Of the sender, who answers for the page.
        epoch: Epoch,
    },
    /// The contents of a page that nobody writes any more, from its owner or from who has a copy of
    /// this kind: the receiver may give them to others, and keeps them as long as it likes.
    Sealed {
        /// Of the ownership of `owner`.
        epoch: Epoch,
        /// Who owns it, as far as the sender knows.
        owner: Host,
    },
}

impl Message {
    pub(crate) fn epoch(&self) -> Epoch {
        match self {
            Self::Request(request) => request.known,
            Self::Copy { epoch }
            | Self::Own { epoch, .. }
            | Self::Invalidate { epoch, .. }
            | Self::Dropped { epoch }
            | Self::Lost { epoch }
            | Self::Sealed { epoch, .. } => *epoch,
        }
    }

    /// True when the page's contents go along.
    #[must_use]
    pub fn has_contents(&self) -> bool {
        match self {
            Self::Copy { .. } | Self::Sealed { .. } => true,
            Self::Own { contents, .. } => *contents,
            Self::Request(_)
            | Self::Invalidate { .. }
            | Self::Dropped { .. }
            | Self::Lost { .. } => false,
        }
    }
}

/// What the shell does, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Send a message, with the contents that the page has now where they belong to it.
    Send(Host, Message),
    /// Send a message with contents that nobody has seen, of a mirrored object: by way of the
    /// backup ([`crate::coherence::Mirror`]), together with all else that this host has written.
    Show {
        /// To whom.
        to: Host,
        /// What.
        message: Message,
        /// As of which the backup keeps the contents.
        version: Epoch,
    },
    /// The page was given away: the contents are kept as of this version, for no task to see, until
    /// they are known to be on two hosts.
    Keep(Epoch),
    /// The page has the contents that are kept here as of this version; of zero, its first
    /// contents.
    Restore(Epoch),
    /// The contents that came with the message are the page's.
    Take,
    /// Tasks of this host may do so much with the page from now on, and no more; without any access
    /// its contents are gone.
    Allow(Option<Access>),
    /// Tasks of this host can do nothing with the page from now on. Its contents stay until they
    /// have been sent.
    Withdraw,
    /// Threads that wait for this access go on. When they have run, or after a while, tell
    /// [`crate::coherence::Page::let_go`]: until then nobody takes away what they were given.
    Answer(Access),
    /// Threads that wait are told that the page's contents are lost. Nobody waits any more.
    Lost,
    /// Threads that wait to write are told that nobody may any more. They do not wait any more.
    Sealed,
}

/// A peer sent what cannot be: it does not keep to the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{by} sent {what}, which cannot be here; its connection is to be closed")]
pub struct Violation {
    /// The guilty one.
    pub by: Host,
    /// What it sent.
    pub what: &'static str,
}
