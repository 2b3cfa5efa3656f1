//! What is on its way between hosts.

use alloc::vec::Vec;
use core::hash::{Hash, Hasher};

use crate::coherence::{Epoch, Generation, Host, Marker, Message, Report, Verdict};

/// Pages of a world at most.
pub(super) const PAGES: usize = 4;

/// A page's contents: how often it had been written, and what the last writer knew of all pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Bytes {
    pub(super) written: u32,
    pub(super) past: [u32; PAGES],
}

/// A message about a page, of the host that `origin` says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct About {
    pub(super) page: usize,
    pub(super) origin: Host,
    pub(super) to: Host,
    pub(super) message: Message,
    pub(super) bytes: Option<Bytes>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum What {
    About(About),
    /// Written pages for the backup, which passes something on.
    Parcel {
        number: u64,
        pages: Vec<(usize, Epoch, Bytes)>,
        then: Option<About>,
    },
    Marker(Uncounted),
    Reports(Generation, Vec<(usize, Report)>),
    Verdicts(Generation, Vec<(usize, Verdict)>),
}

/// How many messages were sent tells no more than which of them are still on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Uncounted(pub(super) Marker);

impl Hash for Uncounted {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.generation.hash(state);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flying {
    pub(super) from: Host,
    pub(super) to: Host,
    pub(super) generation: Generation,
    pub(super) what: What,
}
