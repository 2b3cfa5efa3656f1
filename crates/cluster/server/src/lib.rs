//! The shared memory server: memory objects that several hosts have in common.
//!
//! Every host has one [`Server`]. To its own kernel (crate `host`) it is the pager of each shared
//! object; to the servers of other hosts it is a peer, and they bring its messages
//! ([`Server::received`]) as it sends theirs ([`Wire`]). Who may do what is decided by crate
//! `coherence`; how it is carried out, and what always holds:
//!
//! 1. An object is divided into units of the same number of pages. Each has a cell here, once it was
//!    touched, with its scheduler.
//! 2. One thing at a time happens to a cell: what comes meanwhile waits in its inbox, and whoever is
//!    at work does it. Nobody waits for a cell, so nothing waits in a circle.
//! 3. A unit that this host owns has its contents in exactly one place that counts: the kernel, the
//!    paging space, or the cell; zeros are in none of them, at the home that nobody asked yet.
//! 4. A copy may go at any time without a word. It is then asked for again.
//! 5. What the scheduler forbids is done (protected, or gone from every mapping) before anything is
//!    sent that says so.
//! 6. With two replicas, what another host sees is on two hosts before, together with all that its
//!    writer wrote before: it goes to the writer's backup in a parcel, and on from there. Parcels of
//!    a host are taken in order, and each as a whole.
//! 7. What no task of this host may see, as it is kept for others, is in paging space under a number of
//!    its own, never in the kernel.
//!
//! A sealed object is written by nobody, and copies of it are given on by who has them. Copies of an object
//! that may be read old are lent for a time, and writers do not wait for them. Of an object with release
//! consistency several hosts write to copies of a unit, and its owner puts together what each has changed.
//!
//! The home of a durable object has a file of what was flushed last. A flush reads at the home, as any
//! thread there might, all units that may have been written since: so the home has copies of them, which
//! their owners have to have dropped before they write again, and which need no memory. What a host that dies
//! has not written since the flush is still there. The home takes the object with it, but for the file.
//!
//! With the simple scheduler the object's home is a server: see [`Scheduler::Simple`]. It has all that
//! nobody may write. A host that dies takes what it had not given back, which nobody else has seen; the
//! home takes the object with it.

mod backing;
mod cell;
mod changed;
mod cluster;
mod counters;
mod diff;
mod durable;
mod gate;
mod holds;
#[cfg(feature = "joined")]
pub mod joined;
mod line;
mod mirrored;
mod object;
mod parts;
mod recovery;
mod scheduled;
mod seen;
mod server;
mod simple;
mod twins;
mod types;
mod unit;
mod units;
#[doc(hidden)]
pub mod wire;

pub use backing::{Backing, BackingError};
pub use changed::Changed;
pub use cluster::{
    Cluster, Config, Files, HaveError, HostFigures, JoinError, Lives, Member, Observer, PortWire,
    Replied, State, Units, Wish, Woken,
};
pub use counters::Figures;
pub use durable::FlushError;
pub use farpage_membership::{Consistency, Scheduler};
pub use object::About;
pub use seen::{Flow, Holds, UnitCounts, UnitFigures};
pub use server::{
    GiveUp, Hosts, Left, NotLocked, OnLocked, OnReleased, OpenError, Server, Unreleased, Why, Wire,
    Wrong,
};
pub use types::{NotTurned, Types, element_bytes};
