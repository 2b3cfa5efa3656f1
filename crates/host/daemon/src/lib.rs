//! The host kernel as a daemon: one for all processes of a machine.
//!
//! [`Daemon`] has the objects that processes share, the paging space that they spill to, and a
//! place in a cluster if it is to have one; when it is cut off, it joins again by itself. [`web`]
//! shows how it does on a page, [`reading`] and [`hosts`] as figures.
//!
//! [`Service`] answers what processes ask by `farpage_client`; [`locks`] keeps their shared memory
//! where it is, and [`net_message`] carries messages to ports of other hosts.

mod cluster;
mod daemon;
pub mod hosts;
pub mod locks;
pub mod net_message;
mod outside;
pub mod reading;
pub mod service;
pub mod symbols;
#[doc(hidden)]
pub mod testing;
pub mod web;

pub use daemon::{Daemon, DaemonConfig};
pub use service::Service;
