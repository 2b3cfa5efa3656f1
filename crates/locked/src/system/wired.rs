//! Pages that stay in memory: `mlock(2)`.

use std::ffi::c_void;
use std::string::ToString;
use std::{format, fs};

use farpage_abi::{PAGE_BYTES, PageRange};
use rustix::io::Errno;
use rustix::mm;
use rustix::process::{Resource, getrlimit};

use super::error::LockError;

/// Has pages of this process in memory, and keeps them there: all of them, or none more than were.
///
/// # Errors
/// [`LockError`].
pub fn wire(pages: PageRange) -> Result<(), LockError> {
    // SAFETY: changes no contents.
    let done = unsafe { mm::mlock(address(pages), pages.bytes() as usize) };
    done.map_err(|errno| {
        // Linux may have locked a part of it.
        unwire(pages);
        explained(pages, errno)
    })
}

/// Lets them go.
pub fn unwire(pages: PageRange) {
    // What is no longer mapped is not locked either.
    // SAFETY: changes no contents.
    let _ = unsafe { mm::munlock(address(pages), pages.bytes() as usize) };
}

/// What of `pages` cannot be used, if it is that.
pub fn unusable(pages: PageRange, writable: bool) -> Option<LockError> {
    let page = PAGE_BYTES as u64;
    let (mut at, end) = (pages.start.0 * page, pages.end.0 * page);
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let why = |at, why| Some(LockError::Unusable { at, why });
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let from = u64::from_str_radix(from, 16).ok()?;
        let to = u64::from_str_radix(to, 16).ok()?;
        if to <= at {
            continue;
        }
        if from > at {
            break;
        }
        if !rest.starts_with('r') {
            return why(at, "it may not be read (PROT_NONE); allow that first");
        }
        if writable && !rest.starts_with("rw") {
            return why(
                at,
                "it may not be written, and only what may be can be pinned; map it for both",
            );
        }
        at = to;
        if at >= end {
            return None;
        }
    }
    why(at, "nothing is mapped there; map it first, or lock less")
}

/// The limit of locked memory in KiB, if there is one.
pub(super) fn limit() -> Option<u64> {
    getrlimit(Resource::Memlock)
        .current
        .map(|bytes| bytes >> 10)
}

fn explained(pages: PageRange, errno: Errno) -> LockError {
    if let Some(why) = unusable(pages, false) {
        return why;
    }
    let asked = pages.bytes() >> 10;
    match (errno, limit()) {
        (Errno::NOMEM | Errno::PERM | Errno::AGAIN, Some(limit)) if in_use() + asked > limit => {
            LockError::Limit {
                what: "lock",
                whose: "process",
                asked,
                limit,
                used: format!(", of which {} are in use", in_use()),
            }
        }
        (Errno::NOMEM | Errno::AGAIN, _) => LockError::NoMemory { asked },
        (errno, _) => LockError::System {
            call: "lock",
            asked,
            why: errno.to_string(),
        },
    }
}

/// KiB that this process has locked.
fn in_use() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

pub(super) fn address(pages: PageRange) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(pages.start.0 as usize * PAGE_BYTES)
}
