//! What hosts tell each other of such a page, and what its shell does.

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::Twinned;
use crate::coherence::hosts::Host;
use crate::coherence::message::{Epoch, Output};

/// A message about such a page. Contents travel with copies and ownership, diffs with [`TwinMessage::Diff`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TwinMessage {
    /// The sender wants a copy; or all of it, to own it.
    Ask {
        /// The receiver leaves, and has said that the sender is to have it.
        to_own: bool,
    },
    /// The contents.
    Copy,
    /// The contents: the receiver owns the page from now on.
    Own {
        /// How often it has changed hands.
        epoch: Epoch,
    },
    /// What the sender has changed of its copy.
    Diff {
        /// Of all that it sent of this page.
        number: u64,
    },
    /// The owner has a diff in its contents.
    Applied {
        /// Which.
        number: u64,
    },
    /// The receiver has asked, or sent a diff to, who does not own the page: this one does.
    Elsewhere {
        /// Who, as far as the sender knows.
        owner: Host,
    },
    /// The contents were lost when a host died.
    Lost,
}

impl TwinMessage {
    /// True when all contents of the page go along.
    #[must_use]
    pub fn has_contents(self) -> bool {
        match self {
            Self::Copy | Self::Own { .. } => true,
            Self::Ask { .. }
            | Self::Diff { .. }
            | Self::Applied { .. }
            | Self::Elsewhere { .. }
            | Self::Lost => false,
        }
    }
}

/// What the shell does, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TwinOutput {
    /// What other schedulers say as well: to take, to allow, to withdraw, to restore, to answer, and that
    /// the page is lost.
    As(Output),
    /// Send a message, with the contents that the page has now where they belong to it.
    Send(Host, TwinMessage),
    /// Keep the contents as they are now beside the page: tasks are about to write.
    Twin,
    /// Compare the page with its twin, which is not needed any more, and send what differs; keep it
    /// until this diff's number is confirmed. Where nothing does, say [`Twinned::unchanged`] at once.
    Diff {
        /// The owner.
        to: Host,
        /// Of the diff.
        number: u64,
    },
    /// Send the diff that is kept again.
    Again {
        /// The owner.
        to: Host,
        /// Of the diff.
        number: u64,
    },
    /// Put the diff that came with the message in the page, beside what tasks write meanwhile, and say
    /// [`Twinned::applied`] with this number when it is there.
    Apply(u64),
    /// What this host had written and not released is lost with the page.
    DiffLost,
}
