//! A [`Link`] carries frames, descriptors and memory between two processes, in order.
//!
//! - [`Link`]: one per pair of processes. A seqpacket socket for descriptors and for noticing the
//!   end, a sealed memory file with two rings of 64 slots of 128 bytes, a pipe for each direction
//!   to wake the other by. [`LinkSet`]: many Links, one wait.
//! - [`Frame`]: what is sent, a header of 48 bytes of the user's and a body. Up to 64 bytes of body
//!   share the header's slot, up to [`IN_RING_MAX`] follow in more slots, up to
//!   [`IN_LONG_RING_MAX`] go through a ring of their own while it has room, more by memory.
//! - [`Sealed`] memory is donated: nobody can change it any more. [`Region`] memory is lent: its
//!   owner goes on writing, the borrower only reads, and gives each [`Loan`] back by a message.
//! - Invariant: a side believes only its own memory. What lies in the ring is copied before it is
//!   looked at, and an index that cannot be, a length, a kind, a descriptor too many or too few,
//!   ends the Link with a [`Violation`]: no panic, no SIGBUS, no wait without end, no growth.
//! - Invariant: nothing that the peer shares can make a call wait. The write end of the pipe that
//!   wakes the peer, and its flags, are this process's alone; the read end is only polled.
//! - Invariant: descriptors are in the socket before the frame that announces them is in the ring;
//!   both carry the same number.
//! - Invariant: all that was sent whole before the peer's end is received before the end is told.
//! - Nothing spins when idle: at most 20 us after the last frame, and only while the peer is awake
//!   on another processor; on the same one this thread lets the peer run instead.
//! - A forked child must not use its parent's Links: both would write to the same rings.

mod atomic;
mod control;
mod ends;
mod error;
mod frame;
mod hello;
mod incoming;
mod layout;
mod linger;
mod memory;
mod outgoing;
mod peer;
mod ring;
mod set;
mod wake;

pub use ends::Link;
pub use error::{ConnectError, Ended, ReceiveError, SendError, Violation};
pub use farpage_sys::memory_file::{Draft, Frozen};
pub use frame::{
    Attached, Body, Frame, HEADER_BYTES, IN_LONG_RING_MAX, IN_RING_MAX, IN_SLOT_MAX, Message,
};
pub(crate) use hello::{Connecting, connect_socket};
pub use hello::{Listener, VERSION};
pub(crate) use incoming::Plain;
pub(crate) use memory::RegionHandle;
pub use memory::{LOANS_MAX, Loan, LoanId, REGIONS_MAX, Region, Sealed};
pub use peer::{Peer, introduce};
pub use set::LinkSet;
pub(crate) use set::{ALARM, Alarm};

/// Descriptors that one frame may bring, beside memory.
pub const FDS_MAX: usize = 16;
