//! Limits that this process was started with, and that are meant for the program (`ulimit`).

use anyhow::{Result, bail, ensure};
use farpage_object::{Control, fds};
use farpage_sys::limits::{self, Limit, Resource};

use farpage_text::size::human;

/// What this process needs of its files: the control block is the longest.
const FILES_BYTES: u64 = 1 << 30;
const _: () = assert!(size_of::<Control>() < FILES_BYTES as usize);
/// End of the numbers that Farpage's descriptors take in a program: out of the way, and no higher
/// than that, for every fork copies the table up to the highest.
const DESCRIPTORS_END: u64 = 1024;
/// Descriptors that a program should at least have for itself.
const DESCRIPTORS_LEFT: u64 = 32;

/// First of the descriptor numbers that Farpage takes in the program.
///
/// # Errors
/// When too few are left for the program.
pub fn first_descriptor(looks_at_files: bool) -> Result<u32> {
    let limit = limits::get(Resource::Descriptors)?.now;
    let own = u64::from(match looks_at_files {
        true => fds::OPENED_END,
        false => fds::COUNT,
    });
    ensure!(
        limit >= own + DESCRIPTORS_LEFT,
        "cannot run: the limit on open files is {limit}, and Farpage takes {own} of them; \
         raise it (ulimit -n 1024)"
    );
    Ok((limit.min(DESCRIPTORS_END) - own) as u32)
}

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
