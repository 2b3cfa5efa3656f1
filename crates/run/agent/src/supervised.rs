//! Memory whose faults the supervisor answers: what mapped files and shared memory have in common.

use core::ops::Range;

use farpage_object::fds;
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general as g;
use farpage_sys::uffd::{self, Uffd};
use farpage_sys::{Errno, Result, mem, process};

use crate::maps::say;
use crate::{own_threads, start};

/// Where it is placed: in the window, above the kernel's own areas.
const AREA: Range<usize> = 0x5A00_0000_0000..0x6F00_0000_0000;
/// Where the filter sees what is done to memory.
const SEEN: [Range<usize>; 2] = [
    0x1_0000_0000..0x5500_0000_0000,
    0x5700_0000_0000..0x7000_0000_0000,
];
/// Time between two looks whether the program has ended thread by thread.
const LOOK_MS: i32 = 1000;

/// True of addresses where the first filter sees all that is done to memory.
pub(crate) fn is_seen(start: usize, end: usize) -> bool {
    let holds = |area: &Range<usize>| area.start <= start && end <= area.end;
    SEEN.iter().any(holds)
}

/// Maps `bytes` of a file without access, at the lowest place that is free. `taken`: what this task
/// has, first and last address, in their order.
pub(crate) fn place(
    taken: impl Iterator<Item = (usize, usize)>,
    bytes: usize,
    flags: u32,
    fd: Fd,
    offset: u64,
) -> Result<usize> {
    let mut at = AREA.start;
    for (start, end) in taken {
        if end <= at {
            continue;
        }
        if at.checked_add(bytes).ok_or(Errno::ENOMEM)? <= start {
            break;
        }
        at = end;
    }
    let flags = flags | g::MAP_FIXED_NOREPLACE;
    // Somebody else may have something there.
    for _ in 0..64 {
        if at.checked_add(bytes).is_none_or(|end| end > AREA.end) {
            break;
        }
        // SAFETY: MAP_FIXED_NOREPLACE touches nothing that exists.
        match unsafe { mem::map(at, bytes, g::PROT_NONE, flags, fd, offset) } {
            Err(Errno::EEXIST) => at += bytes.next_multiple_of(1 << 30),
            other => return other,
        }
    }
    Err(Errno::ENOMEM)
}

/// Opens a userfaultfd of this task's, at the number `at`. `features`: what it is to have, by the
/// device.
pub(crate) fn open_userfaultfd(
    at: Fd,
    features: impl Fn(Option<Fd>) -> Result<u64>,
) -> Result<Uffd> {
    let device = Some(start::descriptor(fds::DEVICE));
    let opened = file::with_room(|| {
        let features = features(device)?;
        let (opened, _) = uffd::open(device)?;
        let enabled = opened.enable(features);
        enabled.inspect_err(|_| file::close(opened.0))?;
        Ok(opened)
    })?;
    file::move_to(opened.0, at, true).inspect_err(|_| file::close(opened.0))?;
    Ok(Uffd(at))
}

/// Waits for the end of the supervisor: nobody answers the program's faults then.
pub(crate) fn watch(dies: fn() -> !) -> ! {
    loop {
        match file::poll([start::descriptor(fds::MAPS)], LOOK_MS) {
            Ok(0) | Err(_) => own_threads::end_with_the_program(),
            Ok(_) => dies(),
        }
    }
}

/// Ends the process, which `uses` what nobody brings any more.
pub(crate) fn die(uses: &str) -> ! {
    say(&alloc::format!(
        "process {} is killed: it uses {uses}; run it again",
        start::process_id()
    ));
    process::die()
}
