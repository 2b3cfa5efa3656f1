//! Resource limits of the calling process (`ulimit`).

use linux_raw_sys::general as g;

use crate::raw::Result;
use crate::syscall;

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Resource {
    /// Private memory that can be written, bytes (`-d`).
    Data = g::RLIMIT_DATA,
    /// The size of files, bytes (`-f`).
    FileSize = g::RLIMIT_FSIZE,
    /// The stack, bytes (`-s`).
    Stack = g::RLIMIT_STACK,
    /// Descriptor numbers (`-n`).
    Descriptors = g::RLIMIT_NOFILE,
}

/// A limit. `u64::MAX` is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Limit {
    /// What holds now.
    pub now: u64,
    /// How far that may be raised.
    pub most: u64,
}

/// The limit on `resource`.
///
/// # Errors
/// As `prlimit(2)`.
pub fn get(resource: Resource) -> Result<Limit> {
    let mut limit = Limit { now: 0, most: 0 };
    let to = &raw mut limit;
    // SAFETY: a `struct rlimit64`.
    unsafe { syscall!(g::__NR_prlimit64, 0, resource as u32, 0, to) }?;
    Ok(limit)
}

/// Sets the limit on `resource`.
///
/// # Errors
/// As `prlimit(2)`: `EPERM` without the privilege to raise it further than it may be.
pub fn set(resource: Resource, limit: Limit) -> Result<()> {
    let from = &raw const limit;
    // SAFETY: a `struct rlimit64`.
    unsafe { syscall!(g::__NR_prlimit64, 0, resource as u32, from, 0) }.map(drop)
}

/// Lets this process have as many descriptors as it can. Where that is too few, the call that
/// needs one says so.
pub fn raise_descriptors() {
    if let Ok(limit) = get(Resource::Descriptors) {
        let now = limit.most;
        let _ = set(Resource::Descriptors, Limit { now, ..limit });
    }
}

/// True when this process may write up to `end` of a file. Who writes further gets SIGXFSZ.
pub fn allows_files_of(end: u64) -> bool {
    get(Resource::FileSize).is_ok_and(|limit| end <= limit.now)
}
