//! Semaphores and message queues of System V that several hosts have in common, as values.
//!
//! Every host has all of them ([`State`]), and does the same calls in the same order, so that all agree.
//! The order is made by one host, the one that is in the cluster longest ([`Replica`]). So nothing
//! is ever half done, whoever is killed: a call has a place in the order, or it was not made.
//!
//! A call never waits here. One that has to is noted, and its thread is to wait until it is told to make
//! it again: what it then does is in one place of the order with all others, and a thread that gives up
//! (a signal came, its time is over) has changed nothing.

mod queue;
mod replica;
mod set;
mod state;

pub use replica::{Message, Output, Replica, Violation};
pub use set::Operation;
pub use state::{Call, Command, FIRST_ID, Process, Reply, State, Thread, What};

/// Why calls fail, by the numbers that Linux has for it.
pub mod errno {
    /// It may not be done.
    pub const EPERM: i32 = 1;
    /// There is none.
    pub const ENOENT: i32 = 2;
    /// More than can be.
    pub const E2BIG: i32 = 7;
    /// Not now.
    pub const EAGAIN: i32 = 11;
    /// There is one.
    pub const EEXIST: i32 = 17;
    /// It cannot be meant.
    pub const EINVAL: i32 = 22;
    /// A set has no such semaphore.
    pub const EFBIG: i32 = 27;
    /// There is no room.
    pub const ENOSPC: i32 = 28;
    /// A value would be too large.
    pub const ERANGE: i32 = 34;
    /// It is not offered.
    pub const ENOSYS: i32 = 38;
    /// No such message.
    pub const ENOMSG: i32 = 42;
    /// It was removed.
    pub const EIDRM: i32 = 43;
}
