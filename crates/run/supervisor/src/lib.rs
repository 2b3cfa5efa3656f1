//! Starts unmodified programs whose memory is managed, and looks after them until they end.
//!
//! [`Run`] is one run: a program and all processes that come of it. This process makes their
//! control block and paging files, answers for files that are mapped into them ([`maps`]) and for
//! their shared memory ([`shm`]), takes back what those that were killed held, and follows the
//! memory limit of its cgroup.

pub mod config;
pub mod control_socket;
pub mod exec;
mod follow;
pub mod heat;
mod launch;
mod limits;
pub mod maps;
pub mod program;
mod replay;
mod run;
pub mod sampler;
pub mod shm;
pub mod signals;

pub use launch::cannot_execute;
pub use run::{Look, Run};
