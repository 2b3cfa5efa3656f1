//! Pages that stay in memory: `mlock(2)`.

use std::ffi::c_void;
use std::string::ToString;
use std::vec::Vec;
use std::{format, fs};

use farpage_object::{PAGE_BYTES, PageRange};
use farpage_sys::copy;
use rustix::io::Errno;
use rustix::mm::{self, Advice};
use rustix::process::{Resource, getrlimit};

use super::error::LockError;
use super::{left_of, mapped, stale, without};

/// Pages that are wired, beside those that the program had locked itself: these stay locked. Linux does not
/// count.
#[derive(Debug, Default)]
pub struct Wires {
    of_program: Vec<PageRange>,
}

impl Wires {
    /// Has pages of this process in memory, and keeps them there: all of them, or none more than were.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn wire(&mut self, pages: PageRange) -> Result<(), LockError> {
        let of_program = stale::locked(pages);
        match lock(pages) {
            Ok(()) => {
                self.of_program.extend(of_program);
                Ok(())
            }
            Err(errno) => {
                // Linux may have locked a part of it.
                let rest = left_of(pages, &of_program);
                rest.into_iter().for_each(unwire);
                Err(explained(pages, errno))
            }
        }
    }

    /// Lets them go.
    pub fn unwire(&mut self, pages: PageRange) {
        if self.of_program.is_empty() {
            return unwire(pages);
        }
        let rest = left_of(pages, &self.of_program);
        rest.into_iter().for_each(unwire);
        self.of_program = without(&self.of_program, pages);
    }
}

fn unwire(pages: PageRange) {
    if unlock(pages).is_ok() {
        return;
    }
    // It stops where nothing is mapped, and leaves what follows locked.
    for one in mapped::mapped(pages).unwrap_or_default() {
        // There is nobody to tell.
        let _ = unlock(one.pages);
    }
}

fn lock(pages: PageRange) -> Result<(), Errno> {
    let (at, bytes) = (address(pages), pages.bytes() as usize);
    // SAFETY: changes no contents.
    let locked = unsafe { mm::mlock(at, bytes) };
    if locked != Err(Errno::NOMEM) {
        return locked;
    }
    // The userfaultfd of an ordinary user does not bring pages in for Linux: what comes from now on, because
    // this thread touches it, stays.
    // SAFETY: as above.
    unsafe { mm::mlock_with(at, bytes, mm::MlockFlags::ONFAULT) }?;
    match is_touched(pages) {
        true => Ok(()),
        false => locked,
    }
}

/// Reads of every page, and says whether that was possible.
fn is_touched(pages: PageRange) -> bool {
    let mut addresses = pages.iter().map(|page| page.0 as usize * PAGE_BYTES);
    addresses.all(|at| copy::from(at, &mut [0]).is_ok())
}

fn unlock(pages: PageRange) -> Result<(), Errno> {
    // SAFETY: changes no contents.
    unsafe { mm::munlock(address(pages), pages.bytes() as usize) }
}

/// What of `pages` cannot be used, if it is that.
pub fn unusable(pages: PageRange, writable: bool) -> Option<LockError> {
    let mut at = pages.start.0;
    let why = |page, why| {
        let at = page * PAGE_BYTES as u64;
        Some(LockError::Unusable { at, why })
    };
    for one in mapped::mapped(pages).ok()? {
        let start = one.pages.start.0;
        if start > at {
            break;
        }
        if !one.is_readable {
            return why(start, "it may not be read (PROT_NONE); allow that first");
        }
        if one.is_secret {
            return why(start, SECRET);
        }
        if writable && !one.is_writable {
            return why(
                start,
                "it may not be written, and only what may be can be pinned; map it for both",
            );
        }
        at = one.pages.end.0;
    }
    match at < pages.end.0 {
        true => why(at, "nothing is mapped there; map it first, or lock less"),
        false => None,
    }
}

/// Why memory of `memfd_secret` is refused.
const SECRET: &str = "it is secret memory (memfd_secret), which Linux lets nobody lock or pin; what was touched of \
     it stays in memory and in its frames by itself, for no device to read";

/// The limit of locked memory in KiB, if there is one.
pub(super) fn limit() -> Option<u64> {
    getrlimit(Resource::Memlock)
        .current
        .map(|bytes| bytes >> 10)
}

/// What of `pages`, which are mapped, cannot be read all the same, if it is that. They are read.
pub(super) fn unreadable(pages: PageRange) -> Option<LockError> {
    let fails = |pages: PageRange| {
        // SAFETY: changes no contents.
        let read = unsafe {
            mm::madvise(
                address(pages),
                pages.bytes() as usize,
                Advice::LinuxPopulateRead,
            )
        };
        read == Err(Errno::FAULT) && !is_touched(pages)
    };
    let (mut start, mut end) = (pages.start.0, pages.end.0);
    if !fails(pages) {
        return None;
    }
    // The first: all before it can be read.
    while end - start > 1 {
        let middle = start.midpoint(end);
        match fails(PageRange::new(start, middle)) {
            true => end = middle,
            false => start = middle,
        }
    }
    Some(LockError::Unusable {
        at: start * PAGE_BYTES as u64,
        why: "to read there is a bus error (SIGBUS): its file ends before, or cannot be read; make it larger, or \
              lock less",
    })
}

fn explained(pages: PageRange, errno: Errno) -> LockError {
    if let Some(why) = unusable(pages, false) {
        return why;
    }
    let asked = pages.bytes() >> 10;
    let in_use = kib_of("VmLck:");
    match (errno, limit()) {
        (Errno::NOMEM | Errno::PERM | Errno::AGAIN, Some(limit)) if in_use + asked > limit => {
            LockError::Limit {
                what: "lock",
                whose: "process",
                asked,
                limit,
                used: format!(", of which {in_use} are in use"),
            }
        }
        (Errno::NOMEM | Errno::AGAIN, _) => {
            unreadable(pages).unwrap_or(LockError::NoMemory { asked })
        }
        (errno, _) => LockError::System {
            call: "lock",
            asked,
            why: errno.to_string(),
        },
    }
}

/// What Linux counts of this process, in KiB.
pub(super) fn kib_of(what: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(what));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

pub(super) fn address(pages: PageRange) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(pages.start.0 as usize * PAGE_BYTES)
}
