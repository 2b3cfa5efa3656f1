//! What becomes of locked memory: each kind of it under each event that may move it or take it away,
//! beside what is promised of it.
//!
//! - `memory`: memory of each kind.
//! - `events`: what is done to it, by this process and by others.
//! - `seen`: where its pages are and what is in them, without a look at what is tested.
//! - `promises`: what docs/locked.md says.
//! - `matrix`: all of it, each in a process of its own.

mod events;
mod matrix;
#[allow(unsafe_code)]
mod memory;
#[allow(unsafe_code)]
mod process;
mod promises;
mod seen;

use std::fmt;

use farpage::Hold;

pub use matrix::{CELL, Cell, Matrix, Program, one, run};
pub use memory::Memory;
pub use promises::{Promise, promised, table};

/// What is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backing {
    /// Anonymous memory.
    Private,
    /// Of `memfd_create`, mapped to be shared.
    Memfd,
    /// A segment of System V.
    SystemV,
    /// An anonymous page of 2 MiB.
    Huge,
    /// One of `memfd_create`, mapped to be shared.
    HugeMemfd,
    /// Of `memfd_secret`.
    Secret,
}

/// What happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// Its cgroup has less memory than its process uses, and there is swap.
    Pressure,
    /// `/proc/sys/vm/compact_memory`.
    Compaction,
    /// `move_pages(2)` to another node, which is what NUMA balancing and CMA do, too.
    Migration,
    /// `MADV_MERGEABLE`, and others have pages with the same contents.
    Merging,
    /// `MADV_COLLAPSE`.
    Collapse,
    /// The same by another process.
    CollapseByAnother,
    /// Parent and child write.
    Fork,
    /// `MADV_DONTNEED`.
    DontNeed,
    /// `MADV_DONTNEED_LOCKED`.
    DontNeedLocked,
    /// The same, and what is there now is read.
    DontNeedLockedAndRead,
    /// Another process discards some of it.
    Hole,
    /// The same, and what is there now is read.
    HoleAndRead,
    /// Another process makes the file smaller.
    Truncation,
    /// `munmap`.
    Unmapped,
    /// The same, and new memory is mapped there and written to.
    Replaced,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing: the same bytes in the same frames.
    Same,
    /// The same bytes in memory, of which some are in other frames.
    Moved,
    /// Linux refused the event, by this error; it is as it was.
    Refused(String),
    /// It could not be locked: the message.
    NotLocked(String),
    /// It is not what was locked, and `check` says so.
    Detected,
    /// It is not what was locked, and `check` does not say so. What is different.
    Unseen(String),
    /// The event does not happen here: why.
    NotHere(String),
    /// What was seen contradicts itself, or the process died.
    Failed(String),
}

impl Backing {
    /// All.
    pub const ALL: [Self; 6] = [
        Self::Private,
        Self::Memfd,
        Self::SystemV,
        Self::Huge,
        Self::HugeMemfd,
        Self::Secret,
    ];

    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Memfd => "memfd",
            Self::SystemV => "System V",
            Self::Huge => "huge page",
            Self::HugeMemfd => "huge memfd",
            Self::Secret => "secret",
        }
    }
}

impl Event {
    /// All.
    pub const ALL: [Self; 15] = [
        Self::Pressure,
        Self::Compaction,
        Self::Migration,
        Self::Merging,
        Self::Fork,
        Self::Collapse,
        Self::CollapseByAnother,
        Self::DontNeed,
        Self::DontNeedLocked,
        Self::DontNeedLockedAndRead,
        Self::Hole,
        Self::HoleAndRead,
        Self::Truncation,
        Self::Unmapped,
        Self::Replaced,
    ];

    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pressure => "memory gets scarce, with swap",
            Self::Compaction => "compaction",
            Self::Migration => "migration (NUMA, CMA)",
            Self::Merging => "KSM",
            Self::Collapse => "`MADV_COLLAPSE`",
            Self::CollapseByAnother => "`MADV_COLLAPSE` by who shares it",
            Self::Fork => "`fork`, then both write",
            Self::DontNeed => "`MADV_DONTNEED`",
            Self::DontNeedLocked => "`MADV_DONTNEED_LOCKED`",
            Self::DontNeedLockedAndRead => "`MADV_DONTNEED_LOCKED`, then a read",
            Self::Hole => "a hole by who shares it",
            Self::HoleAndRead => "a hole by who shares it, then a read",
            Self::Truncation => "a smaller file by who shares it",
            Self::Unmapped => "`munmap`",
            Self::Replaced => "`munmap`, then new memory there",
        }
    }
}

/// What a way to hold memory is called.
#[must_use]
pub fn hold_name(hold: Hold) -> &'static str {
    match hold {
        Hold::Resident => "resident",
        Hold::Pinned => "pinned",
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("same frames"),
            Self::Moved => f.write_str("in memory, moved"),
            Self::Refused(errno) => write!(f, "refused: {errno}"),
            Self::NotLocked(why) => write!(f, "not locked: {why}"),
            Self::Detected => f.write_str("detected"),
            Self::Unseen(what) => write!(f, "not detected: {what}"),
            Self::NotHere(why) => write!(f, "not here: {why}"),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

impl Outcome {
    /// The opposite of its text.
    fn parse(text: &str) -> Option<Self> {
        let (word, rest) = text.split_once(": ").unwrap_or((text, ""));
        let rest = rest.to_owned();
        Some(match word {
            "same frames" => Self::Same,
            "in memory, moved" => Self::Moved,
            "refused" => Self::Refused(rest),
            "not locked" => Self::NotLocked(rest),
            "detected" => Self::Detected,
            "not detected" => Self::Unseen(rest),
            "not here" => Self::NotHere(rest),
            "failed" => Self::Failed(rest),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_read_as_it_was_written() {
        let outcomes = [
            Outcome::Same,
            Outcome::Moved,
            Outcome::Refused("EINVAL".into()),
            Outcome::NotLocked("cannot lock: why".into()),
            Outcome::Detected,
            Outcome::Unseen("other bytes".into()),
            Outcome::NotHere("no swap: none".into()),
            Outcome::Failed("signal 7".into()),
        ];
        for outcome in outcomes {
            assert_eq!(Outcome::parse(&outcome.to_string()), Some(outcome));
        }
        assert_eq!(Outcome::parse("something"), None);
    }
}
