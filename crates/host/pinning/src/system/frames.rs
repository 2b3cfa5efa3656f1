//! Where in the machine's memory pages are.

use std::ops::Range;
use std::string::ToString;
use std::vec::Vec;

use farpage_object::PAGE_BYTES;
use farpage_sys::file::{self, Fd};
use farpage_sys::pagemap::{self, Place};

use super::error::LockError;
use super::stale;

/// How often a page is looked at that is on its way to another frame. It is there soon.
const LOOKS: u32 = 10_000;

/// The frame of each page of `range`, addresses of this process.
///
/// # Errors
/// [`LockError::NoFrames`] without the privilege to read them (`CAP_SYS_ADMIN`); [`LockError::Stale`] when
/// one is not there.
pub fn frames(range: Range<usize>) -> Result<Vec<u64>, LockError> {
    let map = pagemap::open().map_err(|errno| unread(&range, errno))?;
    let frames = frames_by(map, range);
    file::close(map);
    frames
}

/// The same, with a pagemap that is open. Who opened it had the privilege, or not.
pub(super) fn frames_by(map: Fd, range: Range<usize>) -> Result<Vec<u64>, LockError> {
    let mut frames = Vec::with_capacity(range.len() / PAGE_BYTES);
    let mut away = Vec::new();
    let (mut absent, mut is_hidden) = (None, false);
    let read = pagemap::places(map, range.start, range.end, |place| {
        match place {
            Place::Frame(frame) => return frames.push(frame),
            Place::Hidden => is_hidden = true,
            Place::Away => away.push(frames.len()),
            Place::Absent => absent = absent.or(Some(frames.len())),
        }
        frames.push(0);
    });
    read.map_err(|errno| unread(&range, errno))?;
    let page = |at: usize| (range.start / PAGE_BYTES + at) as u64;
    match (absent, is_hidden) {
        (Some(at), _) => return Err(stale::stale(page(at), stale::ABSENT)),
        (None, true) => return Err(LockError::NoFrames),
        (None, false) => {}
    }
    for at in away {
        frames[at] = settled(map, range.start + at * PAGE_BYTES)?;
    }
    Ok(frames)
}

/// The frame of the page at an address, once it is there.
fn settled(map: Fd, at: usize) -> Result<u64, LockError> {
    let range = at..at + PAGE_BYTES;
    for _ in 0..LOOKS {
        let mut found = Place::Absent;
        pagemap::places(map, range.start, range.end, |place| found = place)
            .map_err(|errno| unread(&range, errno))?;
        match found {
            Place::Frame(frame) => return Ok(frame),
            Place::Hidden => return Err(LockError::NoFrames),
            Place::Away => std::thread::yield_now(),
            Place::Absent => break,
        }
    }
    Err(stale::stale((at / PAGE_BYTES) as u64, stale::ABSENT))
}

fn unread(range: &Range<usize>, errno: farpage_sys::Errno) -> LockError {
    LockError::System {
        call: "read the frames of",
        asked: (range.len() >> 10) as u64,
        why: errno.to_string(),
    }
}
