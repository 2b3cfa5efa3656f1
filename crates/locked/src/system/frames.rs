//! Where in the machine's memory pages are.

use std::ops::Range;
use std::string::ToString;
use std::vec::Vec;

use farpage_sys::{file, pagemap};

use super::error::LockError;

/// The frame of each page of `range`, addresses of this process.
///
/// # Errors
/// [`LockError::NoFrames`] without the privilege to read them (`CAP_SYS_ADMIN`), or when one is not there.
pub fn frames(range: Range<usize>) -> Result<Vec<u64>, LockError> {
    let system = |errno: farpage_sys::Errno| LockError::System {
        call: "read the frames of",
        asked: (range.len() >> 10) as u64,
        why: errno.to_string(),
    };
    let map = pagemap::open().map_err(system)?;
    let mut frames = Vec::with_capacity(range.len() / farpage_abi::PAGE_BYTES);
    let read = pagemap::frames(map, range.start, range.end, |frame| frames.push(frame));
    file::close(map);
    read.map_err(system)?;
    // Who may not read them is told zeros.
    if frames.contains(&0) {
        return Err(LockError::NoFrames);
    }
    Ok(frames)
}
