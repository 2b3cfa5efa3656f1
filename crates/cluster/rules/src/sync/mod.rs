//! Locks, semaphores, barriers and conditions in memory that several hosts share.
//!
//! What lies in the memory is a few words: [`Layout`]. A call is a value ([`Take`], [`Give`],
//! [`Arrive`], [`Await`], [`Notify`]) that does one thing at a time to a [`Ground`]: an access to one
//! word, a sleep, a wake-up. So what the tests explore in every order, with a process that dies
//! between any two steps, is what runs.
//!
//! How it works, and what always holds:
//!
//! 1. A place is free, or names the process that has it. It changes hands by one atomic step, so
//!    a process that is killed has it or not. Nothing else has to agree with that word.
//! 2. Who finds no place free says that threads of its host wait (one bit for each host), looks once
//!    more, and sleeps in its own Linux, at a word of its host's alone. Who gives a place back does so
//!    before it looks who waits. So either the one sees that it is free, or the other that somebody
//!    waits: [`Ground::seen`] before the looking, and [`Ground::sleep`] compares.
//! 3. A place that is given back is kept for the next host that waits, in turn, and one wake-up goes
//!    there. Nobody there takes it for [`Patience::Short`]: then anybody may.
//! 4. Who sleeps looks again now and then ([`Patience::Long`]), and asks whether who has the place
//!    lives. That heals whatever a death leaves undone: a place whose holder is dead is taken
//!    from it, by a step that fails if it is not the dead one's any more; a wake-up that was never sent.
//!    Invariant: no place is taken from a process that lives.
//! 5. A barrier is a cell for each party. Who arrives marks the cell that it had before, or one that
//!    nobody has; when all are marked whoever sees it begins the next generation. So a party that died
//!    is one whose cell is not marked, and breaks the barrier.
//!
//! The crate is pure: no I/O, no clock, no threads.

mod barrier;
mod condition;
mod give;
mod take;
mod words;

#[cfg(test)]
mod tests;

pub use barrier::{Arrive, Arrived, Reset};
pub use condition::{Await, Notify};
pub use give::Give;
pub use take::{Take, Taken};
pub use words::{
    CONDITION, Cell, Cells, HOSTS_MAX, Held, KIND, Kind, Layout, Process, SERIAL_BITS, STATE,
    THREAD,
};

use words::WAITING;

/// What a call stands on: words in shared memory, and the hosts around them.
pub trait Ground {
    /// Why something cannot be done: it ends the call.
    type Error;

    /// The host of the caller.
    fn host(&self) -> u8;

    /// What [`Ground::sleep`] compares: it changes with each wake-up of this host.
    fn seen(&mut self) -> u32;

    /// Reads a word.
    ///
    /// # Errors
    /// When the memory is lost.
    fn load(&mut self, word: u32) -> Result<u64, Self::Error>;

    /// Writes a word that is `from`; else says what it is.
    ///
    /// # Errors
    /// When the memory is lost.
    fn exchange(&mut self, word: u32, from: u64, to: u64) -> Result<Result<(), u64>, Self::Error>;

    /// Sets bits.
    ///
    /// # Errors
    /// When the memory is lost.
    fn set(&mut self, word: u32, bits: u64) -> Result<(), Self::Error>;

    /// Clears bits; which were set.
    ///
    /// # Errors
    /// When the memory is lost.
    fn clear(&mut self, word: u32, bits: u64) -> Result<u64, Self::Error>;

    /// Sleeps, unless there was a wake-up since `seen`.
    fn sleep(&mut self, seen: u32, patience: Patience) -> Slept;

    /// Wakes all threads that sleep at these hosts, one bit each.
    ///
    /// # Errors
    /// When this host does not answer.
    fn wake(&mut self, hosts: u64) -> Result<(), Self::Error>;

    /// Whether a process is there. Who once was not never is.
    ///
    /// # Errors
    /// When this host does not answer.
    fn lives(&mut self, process: Process) -> Result<bool, Self::Error>;
}

/// How long to sleep at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    /// As long as it takes a host to come for what is kept for it.
    Short,
    /// Until a look at who died is worth it.
    Long,
}

/// Why a thread does not sleep any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slept {
    /// It was woken, or for no reason.
    Woken,
    /// Its patience is over.
    Looks,
    /// So is the caller's time.
    TimedOut,
}

/// A call, step by step.
pub trait Steps {
    /// What comes of it.
    type Outcome;

    /// Does the next thing: one call of `ground`. `None`: there is more to do.
    ///
    /// # Errors
    /// As `ground` says; the call is over then.
    fn step<G: Ground>(&mut self, ground: &mut G) -> Result<Option<Self::Outcome>, G::Error>;

    /// Does all of it.
    ///
    /// # Errors
    /// As `ground` says.
    fn run<G: Ground>(mut self, ground: &mut G) -> Result<Self::Outcome, G::Error>
    where
        Self: Sized,
    {
        loop {
            if let Some(outcome) = self.step(ground)? {
                return Ok(outcome);
            }
        }
    }
}

/// Has all hosts whose threads wait wake them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum WakeAll {
    #[default]
    Looks,
    Clears(u64),
    Wakes(u64),
    Done,
}

impl WakeAll {
    /// True when it is done.
    fn step<G: Ground>(&mut self, ground: &mut G) -> Result<bool, G::Error> {
        *self = match *self {
            Self::Looks => match ground.load(WAITING)? {
                0 => Self::Done,
                hosts => Self::Clears(hosts),
            },
            Self::Clears(hosts) => match ground.clear(WAITING, hosts)? {
                0 => Self::Done,
                hosts => Self::Wakes(hosts),
            },
            Self::Wakes(hosts) => {
                ground.wake(hosts)?;
                Self::Done
            }
            Self::Done => Self::Done,
        };
        Ok(*self == Self::Done)
    }
}
