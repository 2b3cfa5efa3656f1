//! Limits that this process was started with, and that are meant for the program (`ulimit`).

use anyhow::{Result, bail};
use farpage_abi::Control;
use farpage_sys::limits::{self, Limit, Resource};

use crate::size::human;

/// What this process needs of its files: the control block is the longest.
const FILES_BYTES: u64 = 1 << 30;
const _: () = assert!(size_of::<Control>() < FILES_BYTES as usize);

/// Lets files of this process be as long as they must. Returns the limit on the program's.
///
/// # Errors
/// When they may not be long enough.
pub fn raise_file_size() -> Result<Limit> {
    let before = limits::get(Resource::FileSize)?;
    let none = Limit {
        now: u64::MAX,
        most: u64::MAX,
    };
    let as_far_as_it_goes = Limit {
        now: before.most,
        ..before
    };
    if limits::set(Resource::FileSize, none).is_err() {
        limits::set(Resource::FileSize, as_far_as_it_goes)?;
    }
    if !limits::allows_files_of(FILES_BYTES) {
        bail!(
            "cannot run: files may have no more than {} here, and farpage needs {}; raise the limit \
             (ulimit -f), or give it to the program alone: farpage run -- bash -c 'ulimit -f {}; exec PROGRAM'",
            human(before.most),
            human(FILES_BYTES),
            before.now / 1024
        );
    }
    Ok(before)
}
