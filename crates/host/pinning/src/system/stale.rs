//! Whether what was locked still is there, and locked: Linux tells nobody when it goes.

use std::string::ToString;
use std::vec::Vec;

use farpage_object::{PAGE_BYTES, PageRange};
use farpage_sys::{file, pagemap};
use rustix::io::Errno;
use rustix::mm::{self, MsyncFlags};

use super::error::LockError;
use super::mapped::{self, Kept};
use super::wired;

const PAGE: u64 = PAGE_BYTES as u64;

/// Looks whether each of `pages`, which were locked, is mapped, locked and in memory. What was
/// discarded and touched again since is there again, and not told from what was locked.
///
/// # Errors
/// [`LockError::Stale`] with the first that is not.
pub fn check(pages: PageRange) -> Result<(), LockError> {
    let unknown = |why: std::io::Error| LockError::System {
        call: "look at",
        asked: pages.bytes() >> 10,
        why: why.to_string(),
    };
    let mut at = pages.start.0;
    for one in mapped::mapped(pages).map_err(unknown)? {
        let (start, end) = (one.pages.start.0, one.pages.end.0);
        if start > at {
            break;
        }
        let kept = match is_locked(one.pages) {
            true => Kept::Pages,
            false => mapped::kept(start).map_err(unknown)?,
        };
        match kept {
            Kept::No => return Err(stale(start, UNLOCKED)),
            Kept::Pages => {
                if let Some(absent) = absent(one.pages)?.first() {
                    return Err(stale(absent.start.0, ABSENT));
                }
            }
            Kept::Apart => {}
        }
        at = end;
    }
    match at < pages.end.0 {
        true => Err(stale(at, "nothing is mapped there any more")),
        false => Ok(()),
    }
}

const UNLOCKED: &str =
    "what is mapped there is not locked; another mapping has taken its place, or it was unlocked";
/// Why pages that are locked are not in memory.
pub(super) const ABSENT: &str =
    "it was discarded, or taken away by who shares it (a hole, a smaller file, large pages)";

pub(super) fn stale(page: u64, why: &'static str) -> LockError {
    let at = page * PAGE;
    LockError::Stale { at, why }
}

/// Those of `pages` of this process that are not in memory.
///
/// # Errors
/// [`LockError::System`] when that cannot be seen.
pub fn absent(pages: PageRange) -> Result<Vec<PageRange>, LockError> {
    let unknown = |errno: farpage_sys::Errno| LockError::System {
        call: "look at",
        asked: pages.bytes() >> 10,
        why: errno.to_string(),
    };
    let (mut found, mut at) = (Vec::new(), pages.start.0);
    let (start, end) = (pages.start.0 * PAGE, pages.end.0 * PAGE);
    let map = pagemap::open().map_err(unknown)?;
    let seen = pagemap::scan(map, start as usize, end as usize, |start, end| {
        let (start, end) = (start as u64 / PAGE, end as u64 / PAGE);
        if at < start {
            found.push(PageRange::new(at, start));
        }
        at = end;
    });
    file::close(map);
    seen.map_err(unknown)?;
    if at < pages.end.0 {
        found.push(PageRange::new(at, pages.end.0));
    }
    Ok(found)
}

/// Those of `pages` that are locked.
pub(super) fn locked(pages: PageRange) -> Vec<PageRange> {
    if !is_locked(pages) {
        return Vec::new();
    }
    let all = mapped::mapped(pages).unwrap_or_default().into_iter();
    all.map(|one| one.pages)
        .filter(|one| is_locked(*one))
        .collect()
}

/// Whether some of the pages are locked; a mapping is locked whole. Linux refuses to drop what is, and
/// with these flags the call does nothing else.
fn is_locked(pages: PageRange) -> bool {
    let bytes = pages.bytes() as usize;
    // SAFETY: changes no contents, and waits for nothing.
    let asked = unsafe { mm::msync(wired::address(pages), bytes, MsyncFlags::INVALIDATE) };
    asked == Err(Errno::BUSY)
}
