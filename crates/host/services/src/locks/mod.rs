//! Shared memory that stays where it is for several processes: the host kernel maps it, too, and locks or
//! pins it there, as long as one of them wants that.
//!
//! - `book`: accounts by shared memory, process and user; what is lent; limits.
//! - `segment`: one piece of shared memory, its counts and mappings.
//! - `keeper`: the thread of the host kernel that locks.
//! - `client`: a process's side.

mod book;
mod caller;
mod client;
mod keeper;
mod listed;
mod policy;
mod refusal;
mod segment;

pub use client::SegmentLock;
pub use farpage_pinning::Block;
pub use farpage_pinning::system::Hold;
pub use listed::{LentListed, LocksListed, ProcessLocks, UserLocks};
pub use policy::FramesTold;
pub use refusal::LockRefusal;

pub(crate) use caller::Caller;
pub(crate) use keeper::{Keeper, Locked, Work};
pub(crate) use segment::Memory;

use serde::{Deserialize, Serialize};

/// What is to be locked of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LockWanted {
    /// From there.
    pub(crate) offset: u64,
    /// So many.
    pub(crate) bytes: u64,
    /// The frames are to stay.
    pub(crate) pinned: bool,
}

impl LockWanted {
    fn hold(self) -> Hold {
        match self.pinned {
            true => Hold::Pinned,
            false => Hold::Resident,
        }
    }
}

/// What is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LockAbout {
    /// The first page.
    pub(crate) first: u64,
    /// So many.
    pub(crate) pages: u64,
    /// The frames stay.
    pub(crate) pinned: bool,
}
