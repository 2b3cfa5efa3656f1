//! Why shared memory is not locked.

use farpage_pinning::system::LockError;
use serde::{Deserialize, Serialize};

/// Why shared memory is not locked, or frames are not told. Nothing of what was asked for is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum LockRefusal {
    /// Nothing is to be locked.
    #[error("a part without bytes cannot be locked; give a byte at least")]
    Empty,
    /// It is longer than the memory.
    #[error(
        "cannot lock {bytes} bytes from byte {offset} of {segment}: it has {size} bytes; lock less, or make it \
         larger first"
    )]
    Beyond {
        /// What it is called.
        segment: String,
        /// From there.
        offset: u64,
        /// So many.
        bytes: u64,
        /// Of so many.
        size: u64,
    },
    /// The descriptor is of something else.
    #[error(
        "cannot lock what this descriptor stands for: it is no shared memory in pages of 4096 bytes (of \
         memfd_create, shm_open or in a tmpfs); copy it to such memory"
    )]
    NoMemory,
    /// It is memory of the host kernel's own.
    #[error(
        "cannot lock '{0}' by its descriptor: the host kernel pages it; Shared::wire keeps it in memory \
         (SharedMemory.pin in Python)"
    )]
    Own(String),
    /// It may not be written to.
    #[error(
        "cannot pin {0}: only what may be written can be pinned, and its descriptor is for reading only, or it is \
         sealed; give a descriptor for both, or lock it without pinning"
    )]
    ReadOnly(String),
    /// There is no such segment.
    #[error("there is no System V segment {0}; ipcs -m shows what there is")]
    NoSegment(u32),
    /// The segment is another user's.
    #[error(
        "user {user} may not {what} System V segment {number}: it is user {owner}'s, with mode {mode:04o}; its \
         owner may allow it (shmctl IPC_SET)"
    )]
    Denied {
        /// Who asks.
        user: u32,
        /// What is needed.
        what: String,
        /// Of which.
        number: u32,
        /// Whose it is.
        owner: u32,
        /// Who may what.
        mode: u32,
    },
    /// Numbers mean something else there.
    #[error(
        "process {0} has System V segments apart from the host kernel's (another IPC namespace), or has gone; \
         run both in one, or share memory by descriptors"
    )]
    Apart(u32),
    /// The limit of a user.
    #[error(
        "cannot lock {asked} KiB more: processes of user {user} may have {limit} KiB locked at the host kernel, of \
         which {used} are in use; unlock some, or start it with more (farpage up --lock-limit)"
    )]
    Limit {
        /// Whose.
        user: u32,
        /// KiB that were asked for.
        asked: u64,
        /// KiB that are allowed.
        limit: u64,
        /// KiB in use.
        used: u64,
    },
    /// There are too many.
    #[error(
        "cannot lock more: {whose} may have {most} {what} at the host kernel; unlock some, or larger parts at once"
    )]
    Many {
        /// A user, or all.
        whose: String,
        /// Of what.
        what: String,
        /// So many.
        most: u64,
    },
    /// Linux's limit of the host kernel.
    #[error(
        "the host kernel cannot {what} {asked} KiB more: its own limit of locked memory (RLIMIT_MEMLOCK) is {limit} \
         KiB{used}; start farpage up with more (ulimit -l, LimitMEMLOCK= of systemd), or with CAP_IPC_LOCK"
    )]
    HostLimit {
        /// lock or pin.
        what: String,
        /// KiB that were asked for.
        asked: u64,
        /// KiB that are allowed.
        limit: u64,
        /// How much is in use, where it is known.
        used: String,
    },
    /// Anything else that Linux said.
    #[error("the host kernel could not do it: {0}")]
    Failed(String),
    /// It is not what was locked.
    #[error(
        "memory of {segment} at byte {offset} was discarded or cut off by who shares it while it was locked; unlock \
         it, and lock what is there now"
    )]
    Gone {
        /// What it is called.
        segment: String,
        /// The first byte of it that was.
        offset: u64,
    },
    /// It was the parent's.
    #[error(
        "this lock is the parent's: a child of fork has nothing locked; lock the memory again, or borrow the lock"
    )]
    Parents,
    /// Another is lent by this name.
    #[error("there is a lent lock '{0}' already; borrow it, or give another name")]
    Lent(String),
    /// It has a name already.
    #[error("this lock is lent as '{0}' already, which is its only name; borrow it by that")]
    LentAs(String),
    /// None is.
    #[error(
        "no lock of this user's is lent as '{0}', or not any more: it goes with its last user; farpage locks shows \
         what there is"
    )]
    NotLent(String),
    /// It is no name.
    #[error(
        "'{0}' is no name of a lent lock; give 1 to 200 characters without '/' and control characters"
    )]
    Name(String),
    /// Who asks may not know frames.
    #[error(
        "process {pid} of user {user} is not told frames of memory: the host kernel tells them to {told}; give the \
         process CAP_SYS_ADMIN, or name the user when the host kernel is started (farpage up --frames)"
    )]
    FramesDenied {
        /// Who asks.
        pid: u32,
        /// Its user.
        user: u32,
        /// Who may know.
        told: String,
    },
    /// The host kernel may not know frames itself.
    #[error(
        "the host kernel may not read frames of memory itself; start farpage up as root, or with CAP_SYS_ADMIN"
    )]
    FramesUnknown,
    /// Too many wait.
    #[error("{0} calls about locks wait at the host kernel already; wait for some")]
    Busy(u64),
}

impl From<LockError> for LockRefusal {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Limit {
                what,
                asked,
                limit,
                used,
                ..
            } => Self::HostLimit {
                what: what.into(),
                asked,
                limit,
                used,
            },
            LockError::NoFrames => Self::FramesUnknown,
            other => Self::Failed(other.to_string()),
        }
    }
}
