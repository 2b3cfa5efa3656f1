//! Why memory could not be registered.

use crate::LockError;

/// Why memory could not be registered. Nothing more is than before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// It could not be pinned.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// It is more than the cache may have.
    #[error(
        "cannot register {asked} bytes in whole pages: this cache has {most} bytes at most; register less at once, or \
         make it larger"
    )]
    Large {
        /// Bytes of the pages.
        asked: u64,
        /// Bytes at most.
        most: u64,
    },
    /// The limits of the cache.
    #[error(
        "cannot register {asked} bytes more: registrations in use have {used} bytes{}, and {regions} of the \
         {most_regions} regions, of this cache; give some back, or make it larger",
        of_most(*most)
    )]
    Full {
        /// Bytes that were asked for.
        asked: u64,
        /// Bytes in use.
        used: u64,
        /// Bytes at most.
        most: u64,
        /// Regions in use.
        regions: usize,
        /// Regions at most.
        most_regions: u32,
    },
    /// Nobody would tell that the memory goes away.
    #[error("cannot watch the memory at {at:#x}: {why}")]
    Unwatched {
        /// Address.
        at: u64,
        /// Why, and what to do.
        why: String,
    },
    /// The memory went away again and again while it was registered.
    #[error(
        "cannot register the memory at {at:#x}: it is unmapped or discarded all the time; register it when it stays"
    )]
    Restless {
        /// Address.
        at: u64,
    },
    /// This is a child of fork.
    #[error(
        "this cache is of process {0}, of which this one is a child: registrations are not inherited; make a cache \
         here"
    )]
    Forked(u32),
    /// A ring's table of buffers cannot be used.
    #[error("cannot use {buffers} buffers of this ring: {why}")]
    Ring {
        /// So many places.
        buffers: u32,
        /// Why, and what to do.
        why: String,
    },
    /// There are too many caches.
    #[error("this process has {0} caches of registrations already; share one, or drop some")]
    Caches(usize),
    /// What the caller registers with has refused it.
    #[error("the device's own function could not register {asked} KiB at {at:#x}: {why}")]
    Refused {
        /// Address.
        at: u64,
        /// KiB.
        asked: u64,
        /// What it said.
        why: String,
        /// True when it may be done once other memory is given up.
        full: bool,
    },
}

/// Of how many bytes, when that is limited.
fn of_most(most: u64) -> String {
    match most {
        u64::MAX => String::new(),
        most => format!(" of {most}"),
    }
}

impl RegisterError {
    /// True when it may be done once other memory is given up.
    pub(super) fn is_limit(&self) -> bool {
        use LockError::{Full, Limit, NoMemory};
        match self {
            Self::Lock(Limit { .. } | NoMemory { .. } | Full(_)) | Self::Full { .. } => true,
            Self::Refused { full, .. } => *full,
            _ => false,
        }
    }
}
