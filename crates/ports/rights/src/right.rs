//! Rights inside a Space, and the entries that names denote.

/// What a right is to: a port here, or a port of a peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Target {
    Port(u32),
    Import(u32),
}

/// A right on its way; it holds a reference of its target. To be given on or put into the trash.
#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Clone, Hash))]
#[must_use]
pub(crate) enum Right {
    Dead,
    Send(Target),
    Once(Target),
    Receive(u32),
}

/// What a name denotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum Entry {
    /// A send right with user references, the receive right, or both.
    Port {
        target: Target,
        receive: bool,
        /// User references of the send right; together they hold one reference of the target.
        sends: u32,
    },
    Once(Target),
    Set(u32),
    /// What was a send or send-once right.
    Dead {
        references: u32,
    },
}
