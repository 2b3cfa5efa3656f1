//! Replacement policies on recorded traces of page accesses.
//!
//! Linux shows no accesses: a policy learns of a page when it faults, and otherwise only by moving
//! it aside and seeing whether it comes back. So does this simulator; [`Kind::Lru`] and
//! [`Kind::Min`] see every access (and in the case of MIN the future) and serve as bounds.

mod engine;
mod lists;
mod queues;
mod trace;

pub use engine::{Costs, Outcome, Setup, run};
pub use trace::{Trace, TraceError, decode};

/// A policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// First in, first out; nothing is moved aside.
    Fifo,
    /// One queue; what comes back from aside goes to its end.
    SecondChance,
    /// Probation, protected and warmth, as `object::Pages` had it first: what comes back from
    /// aside is protected.
    Warmth,
    /// The same, and what comes back soon after it left is protected too.
    Returning,
    /// S3-FIFO: a small queue for what is new, a ghost for what left it, aside as the visited bit.
    S3Fifo,
    /// S3-FIFO that fills the main queue first, while there is room.
    S3FifoFilled,
    /// SIEVE: one queue and a hand; what comes back from aside stays where it is.
    Sieve,
    /// Least recently used, by all accesses: a bound.
    Lru,
    /// Farthest next use: a bound.
    Min,
}

impl Kind {
    /// Every policy, in the order of the table.
    pub const ALL: [Self; 9] = [
        Self::Fifo,
        Self::SecondChance,
        Self::Warmth,
        Self::Returning,
        Self::S3Fifo,
        Self::S3FifoFilled,
        Self::Sieve,
        Self::Lru,
        Self::Min,
    ];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fifo => "FIFO",
            Self::SecondChance => "2nd-chance",
            Self::Warmth => "warmth",
            Self::Returning => "returning",
            Self::S3Fifo => "S3-FIFO",
            Self::S3FifoFilled => "S3-filled",
            Self::Sieve => "SIEVE",
            Self::Lru => "(LRU)",
            Self::Min => "(MIN)",
        }
    }
}
