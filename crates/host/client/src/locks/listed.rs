//! Locks as they are told.

use serde::{Deserialize, Serialize};

/// What processes have locked of shared memory, as `farpage locks` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocksListed {
    /// By shared memory and process.
    pub processes: Vec<ProcessLocks>,
    /// Locks that others may borrow, by name.
    pub lent: Vec<LentListed>,
    /// What users are charged with.
    pub users: Vec<UserLocks>,
    /// Bytes that a user may have locked.
    pub user_limit_bytes: u64,
}

/// What one process has locked of some shared memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessLocks {
    /// The name of its file, or the number of the System V segment.
    pub segment: String,
    /// Its size.
    pub segment_bytes: u64,
    /// The process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Bytes that it has stay in memory, each counted once.
    pub resident_bytes: u64,
    /// Bytes whose frames it has stay, each counted once.
    pub pinned_bytes: u64,
    /// Locks that it has, borrowed ones among them.
    pub areas: u64,
    /// Locks of them whose memory was discarded or cut off.
    pub gone: u64,
}

/// A lock that others may borrow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentListed {
    /// By this name.
    pub name: String,
    /// Of which shared memory.
    pub segment: String,
    /// From there.
    pub offset: u64,
    /// So much.
    pub bytes: u64,
    /// The frames stay.
    pub is_pinned: bool,
    /// Processes that have it, once for each time.
    pub users: Vec<u32>,
}

/// What a user is charged with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserLocks {
    /// The user.
    pub uid: u32,
    /// Bytes, each counted once.
    pub bytes: u64,
}
