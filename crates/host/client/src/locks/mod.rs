//! Shared memory that stays where it is for several processes: the host kernel maps it, too, and locks or
//! pins it there, as long as one of them wants that.

mod client;
mod listed;
mod refusal;

pub use client::SegmentLock;
pub use farpage_pinning::Block;
pub use farpage_pinning::system::Hold;
pub use listed::{LentListed, LocksListed, ProcessLocks, UserLocks};
pub use refusal::LockRefusal;

use serde::{Deserialize, Serialize};

/// What is to be locked of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockWanted {
    /// From there.
    pub offset: u64,
    /// So many.
    pub bytes: u64,
    /// The frames are to stay.
    pub pinned: bool,
}

impl LockWanted {
    /// How the pages are held.
    pub fn hold(self) -> Hold {
        match self.pinned {
            true => Hold::Pinned,
            false => Hold::Resident,
        }
    }
}

/// What is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockAbout {
    /// The first page.
    pub first: u64,
    /// So many.
    pub pages: u64,
    /// The frames stay.
    pub pinned: bool,
}
