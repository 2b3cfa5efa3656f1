//! Ports between hosts as a value: who holds which right to what, and what the network servers of
//! hosts tell one another of it.
//!
//! A port lives at one host, its *home*; every other host that has a right to it has a *proxy*
//! there. A [`Table`] is one network server's side of all that: its *exports* (rights of this host
//! that others hold) and its proxies. How it looks, and what always holds:
//!
//! 1. A right is named by its home and a number that its home drew at random, never twice.
//! 2. An export counts how often each host was given it; the host's proxy counts how often it
//!    came. A release says how many go back, so a right that crosses its own release is not lost.
//! 3. Whoever gets a right of a third host's claims it at its home before using it. Who gave it
//!    keeps its own until the claim is confirmed ([`Packet::Unpin`]). So between the two the home
//!    always knows a holder.
//! 4. When a host is gone, what it held is released only after every other host has said that it
//!    has handled all that ever came from it ([`Table::saw`]): claims of what it gave were made then.
//! 5. A proxy may have [`WINDOW`] units of messages under way. A port that is full holds up its own
//!    senders, and nobody else's.
//! 6. Only a holder names an export; whoever else does breaks the protocol, and nothing of it is
//!    listened to any more ([`Violation`]).
//! 7. A right that comes home is the real one, so no chain of proxies grows.
//!
//! The crate is pure: no I/O, no clock, no threads. The shell carries [`Packet`]s, exactly once and in
//! order between two hosts, makes local ports for proxies, and sends to the real ones.

mod export;
mod packet;
mod proxy;
mod table;

#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

pub use packet::{Garbled, Head, Kind, MemoryHead, Packet, Port, Ref, Stay};
pub use table::{Given, Output, Table, Taken, UNIT_BYTES, UNITS_MAX, Violation, WINDOW, units};
