//! `object::Pages` on a simulated Linux at its worst, by seed.
//!
//! One thread runs step machines: threads of a program, fault handlers, page-out threads and
//! requests to a pager. A seed chooses who goes next and what goes wrong. The shell of the real
//! thing (crate `kernel`) takes a lock, asks the automaton, does what it says, and tells; here the
//! program's threads run between any two of these steps.
//!
//! The first phase injects trouble: calls cut short, events that block calls, stale and duplicate
//! messages, failing, short and slow transfers, pagers that lock pages and refuse to unlock them,
//! forks, programs that exit. Then the world is healed, and everything must come to rest. The laws
//! (`check`): no page lost, none invented, one place that counts, no write to a locked page before
//! its pager allowed it, every sleeping thread has an answer coming, what is charged is what is
//! there, queues and pages agree.
//!
//! Memory below [`settings`]' `own_from` is temporary; above, it belongs to an object with a pager
//! of its own: its pages are asked for, never filled with zeros.

mod calls;
mod check;
mod coverage;

mod explore;
mod fork;
mod handler;
mod linux;
mod locks;
mod outside;
mod pagein;
mod pageout;
pub mod policy;
mod program;
mod rng;
mod settings;
mod shared;
mod store;
mod world;

pub use coverage::{Coverage, Event};
pub use explore::explore;
pub use outside::{Seen, outside};
pub use world::{Log, Report, run};

/// The command that replays a seed.
pub fn replay(seed: u64) -> String {
    format!("cargo run --release -p farpage-sim -- --seed {seed} --verbose")
}
