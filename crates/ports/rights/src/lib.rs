//! Mach's ports as a value: what a task may name, and what a message does to it.
//!
//! A [`Space`] is one task's names. It holds *ports* (receive rights that live here, with their
//! queues) and *imports* (rights to ports of peers), and [`Name`]s for both, checked by generation.
//! Spaces are joined in pairs by *Links*; a peer names only entries of the Link's export table,
//! which lies in the receiver's own memory. How it looks, and what always holds:
//!
//! 1. `Target` is a port here or an import; `Right` is dead, send, send-once or receive, of one.
//! 2. A port's counts are exact: every name, queued message, export and handover holds one.
//! 3. `Export` counts how often a right was given to a peer; the peer's `Import` counts how often
//!    it came. Release says how many go back, so a right that crosses its own release is not lost.
//! 4. A send-once right has one export; accepting a message frees it, anything else notifies.
//! 5. Credits: a peer may have as many messages queued at a port as the port's limit. Without
//!    credit `send` changes nothing and answers [`SendError::WouldBlock`].
//! 6. A right to B's port goes from A to C by Provide (A to B) and Accept (C to B). Until B
//!    answers, C's right takes no messages, and is given on by a forwarder. Whoever notices that C
//!    will not accept has it withdrawn. If B and C have no Link, the shell is asked for one.
//! 7. A receive right that leaves becomes a forwarder. Holders are told Moved, answer Following,
//!    and are Handed the new home when all that they had sent before is there.
//! 8. A dead port or Link marks the target; names turn dead when they are touched.
//! 9. A frame is checked in full before it changes anything; a [`Violation`] names the guilty peer
//!    and closes its Link, nothing else.
//! 10. No recursion over rights: what is dropped, dies or can move on waits in a work list, which
//!     every operation empties before it returns.
//!
//! What it does not do: rights that came by different ways may have different names although they
//! are to the same port (order is kept for each name). Receive rights of two ports that cross on
//! their way, each sent to the other, follow each other until they meet or have gone 255 ways, and
//! then they are dead, as one Space would refuse them at once; so that they never wait for each
//! other's room, what a moved port's old home forwards needs no credit. In a circle of three tasks
//! they may still wait, until a Link ends.
//! A right that is introduced by a task that dies before the owner has heard of it is dead. A
//! forwarder's task that dies takes along what has not followed yet.
//!
//! The crate is pure: no I/O, no clock, no threads. The shell carries [`Frame`]s, passes
//! descriptors, blocks threads and arms [`Space::next_deadline`].
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod accept;
mod carry;
mod copy;
mod error;
mod export;
mod few;
mod frame;
mod import;
mod input;
mod message;
mod migrate;
pub mod netports;
mod notify;
mod port;
mod receive;
mod right;
mod send;
mod settle;
mod slab;
mod space;
mod third;
mod wait;
mod wire;

#[cfg(test)]
extern crate std;
#[cfg(test)]
mod sim;

pub use error::{Error, Fault, ReceiveError, Refused, SendError, Violation};
pub use frame::{ExportId, Frame, MessageFrame, WireMemory, WireRight};
pub use input::{Input, Output, Woken};
pub use message::{
    Descriptor, Disposition, Give, Got, LinkId, MAX_DESCRIPTORS, MAX_INLINE, MAX_MEMORY,
    MAX_MEMORY_ELSEWHERE, MAX_RIGHTS, Memory, MemoryKind, Message, Name, Notice, Received,
    RightKind, Sender, TaskId, Tick, Waiter,
};
pub use notify::Request;
pub use space::{DEFAULT_LIMIT, PortStatus, Space};
pub use wait::{Chance, Wait};
pub use wire::{DecodeError, MESSAGE_HEAD_BYTES};
