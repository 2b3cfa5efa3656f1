//! The host kernel as a daemon: one for all processes of a machine.
//!
//! [`Daemon`] has the objects that processes share, the paging space that they spill to, and a
//! place in a cluster if it is to have one; when it is cut off, it joins again by itself. [`web`]
//! shows how it does on a page, [`reading`] and [`hosts`] as figures.

mod cluster;
mod daemon;
pub mod hosts;
pub mod reading;
pub mod symbols;
#[doc(hidden)]
pub mod testing;
pub mod web;

pub use daemon::{Daemon, DaemonConfig};
