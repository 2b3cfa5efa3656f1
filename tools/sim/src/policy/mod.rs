//! Replacement policies on recorded traces of page accesses.
//!
//! Linux shows no accesses: a policy learns of a page when it faults, and otherwise only by moving
//! it aside and seeing whether it comes back. So does this simulator, and policies that were made
//! for reference bits get them in this way. [`Kind::Lru`] and [`Kind::Min`] see every access (and
//! in the case of MIN the future) and serve as bounds.

mod engine;
mod kinds;
mod lists;
mod object;
mod trace;

pub use engine::{Costs, Outcome, Setup};
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
    /// ARC as clocks (CAR): what is new, what is used again, and how much of each, by ghosts of both.
    Arc,
    /// CLOCK-Pro: hot and cold by how soon what is new comes back, with ghosts.
    ClockPro,
    /// Linux's active and inactive list, with the distance of refaults.
    TwoLists,
    /// Linux's generations (MGLRU).
    Generations,
    /// Least recently used, by all accesses: a bound.
    Lru,
    /// Farthest next use: a bound.
    Min,
    /// The automaton that Farpage has, `object::Pages`.
    Object,
}

/// Runs `trace`.
pub fn run(trace: &Trace, setup: Setup) -> Outcome {
    match setup.kind {
        Kind::Object => object::run(trace, setup),
        _ => engine::run(trace, setup),
    }
}

impl Kind {
    /// Every policy, in the order of the table.
    pub const ALL: [Self; 14] = [
        Self::Fifo,
        Self::SecondChance,
        Self::Warmth,
        Self::Returning,
        Self::S3Fifo,
        Self::S3FifoFilled,
        Self::Sieve,
        Self::Arc,
        Self::ClockPro,
        Self::TwoLists,
        Self::Generations,
        Self::Lru,
        Self::Min,
        Self::Object,
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
            Self::Arc => "ARC (CAR)",
            Self::ClockPro => "CLOCK-Pro",
            Self::TwoLists => "two lists",
            Self::Generations => "MGLRU",
            Self::Lru => "(LRU)",
            Self::Min => "(MIN)",
            Self::Object => "Farpage",
        }
    }

    /// True when it sees nothing but faults.
    pub fn sees_only_faults(self) -> bool {
        !matches!(self, Self::Lru | Self::Min)
    }
}

#[cfg(test)]
mod tests;
