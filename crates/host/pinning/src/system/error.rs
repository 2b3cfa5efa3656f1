//! Why memory could not be locked.

use std::string::String;

use crate::AreaError;

/// Why memory could not be locked. Nothing of what was asked for is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// No area.
    #[error(transparent)]
    Area(#[from] AreaError),
    /// It goes beyond the end of all addresses.
    #[error("cannot lock {bytes} bytes at {at:#x}: they end beyond all addresses; give less")]
    Beyond {
        /// Address.
        at: u64,
        /// Size.
        bytes: u64,
    },
    /// A part of it is not there.
    #[error("cannot lock the memory at {at:#x}: {why}")]
    Unusable {
        /// The first address that cannot be used.
        at: u64,
        /// What is wrong there, and what to do.
        why: &'static str,
    },
    /// It is not what was locked.
    #[error(
        "the memory at {at:#x} is not what was locked: {why}; give back all locks that have it, and lock what is \
         there now"
    )]
    Stale {
        /// The first address that is not.
        at: u64,
        /// What is wrong there.
        why: &'static str,
    },
    /// The limit of locked memory.
    #[error(
        "cannot {what} {asked} KiB more: the limit of locked memory (RLIMIT_MEMLOCK) of this {whose} is {limit} \
         KiB{used}; raise it by 'ulimit -l', LimitMEMLOCK= of systemd or 'docker run --ulimit memlock=', or give \
         it CAP_IPC_LOCK"
    )]
    Limit {
        /// lock or pin.
        what: &'static str,
        /// Of whom the limit is: mlock counts per process, io_uring per user.
        whose: &'static str,
        /// KiB that were asked for.
        asked: u64,
        /// KiB that are allowed.
        limit: u64,
        /// How much is in use, where it is known.
        used: String,
    },
    /// There is less memory than was to be locked.
    #[error(
        "cannot lock {asked} KiB more: there is not so much memory to be had; lock less, or raise the memory limit \
         of the cgroup"
    )]
    NoMemory {
        /// KiB that were asked for.
        asked: u64,
    },
    /// There is no ring to pin with.
    #[error(
        "cannot pin memory: io_uring is not to be had here ({why}); allow it (kernel.io_uring_disabled=0, and the \
         sandbox's seccomp profile), or lock it without pinning"
    )]
    NoRing {
        /// What Linux said.
        why: String,
    },
    /// All places are in use.
    #[error("cannot pin memory: {0} pieces are pinned already, and no more fit; unlock some")]
    Full(u32),
    /// Frames may not be read.
    #[error(
        "cannot tell the frames of memory: this process may not read them; give it CAP_SYS_ADMIN, or run it as root"
    )]
    NoFrames,
    /// Anything else that Linux said.
    #[error("cannot {call} {asked} KiB: {why}")]
    System {
        /// The call.
        call: &'static str,
        /// KiB.
        asked: u64,
        /// What Linux said.
        why: String,
    },
}
