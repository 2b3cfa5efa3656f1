//! Cores of programs. Linux writes a core when nobody can page in for it any more: what was paged
//! out is missing there.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use farpage_object::{Control, TaskSlot};
use farpage_sys::file::Fd;
use farpage_sys::process;

/// In a wait status: a core was written.
const HAS_CORE: i32 = 0x80;
/// The last field of `/proc/PID/stat`, counted from the one after the name as 0.
const STATUS_FIELD: usize = 49;

/// Bytes of a task's memory that are in no frame.
fn paged_out(task: &TaskSlot) -> u64 {
    let out = [
        &task.counters.compressed_from_bytes,
        &task.counters.spilled_bytes,
    ];
    out.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
}

/// True when memory of any task is paged out.
pub fn can_miss_memory(control: &Control) -> bool {
    control.slots().iter().any(|task| paged_out(task) > 0)
}

/// Says it if the dead process `number` has left a core in which memory is missing that was paged
/// out.
pub fn tell(task: &TaskSlot, number: u32, status: i32) {
    if status & HAS_CORE == 0 {
        return;
    }
    let missing = match paged_out(task) {
        0 => "memory that it has from its parent was paged out and reads".to_owned(),
        bytes => format!(
            "{} MiB of its memory were paged out and read",
            bytes.div_ceil(1 << 20)
        ),
    };
    farpage_sys::say!(
        "farpage: warning: the core of process {number} is not whole: {missing} as zeros there; for a whole \
         one run it again with a larger --ram"
    );
}

/// The wait status of a dead process: Linux tells it until its parent has waited for it, and
/// afterwards who has a descriptor of it.
pub fn status_of(process: u32, pidfd: Option<&OwnedFd>) -> Option<i32> {
    unwaited_status(process).or_else(|| process::status_of_ended(Fd(pidfd?.as_raw_fd())))
}

/// The wait status of a process that nobody has waited for yet.
fn unwaited_status(process: u32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    let status = after_name.split_ascii_whitespace().nth(STATUS_FIELD)?;
    status.parse().ok()
}
