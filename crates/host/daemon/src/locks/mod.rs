//! Shared memory that stays where it is for several processes: the host kernel maps it, too, and
//! locks or pins it there, as long as one of them wants that.
//!
//! - `book`: accounts by shared memory, process and user; what is lent; limits.
//! - `segment`: one piece of shared memory, its counts and mappings.
//! - `keeper`: the thread of the host kernel that locks.

mod book;
mod caller;
mod keeper;
mod policy;
mod segment;

pub use policy::FramesTold;

pub(crate) use caller::Caller;
pub(crate) use keeper::{Keeper, Locked, Work};
pub(crate) use segment::Memory;
