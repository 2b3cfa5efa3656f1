//! What goes on beside the transfers: children of fork that write to what they have, and compaction.

use std::fs;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use farpage_sys::process;

use super::{Common, memory};

const PAGE: usize = 4096;
const BETWEEN_FORKS: Duration = Duration::from_millis(200);
const BETWEEN_COMPACTIONS: Duration = Duration::from_secs(1);

unsafe extern "C" {
    fn fork() -> i32;
}

/// Forks again and again: the child writes to all private memory while its parent's transfers go on.
/// What went wrong.
pub(super) fn forks(common: &Common) -> Vec<String> {
    let mut wrong = Vec::new();
    while !common.stop.load(Ordering::Relaxed) {
        let layout = memory::held(&common.layout);
        // SAFETY: the child writes to memory of its own, and exits.
        let child = unsafe { fork() };
        if child == 0 {
            for &(at, bytes) in layout.iter() {
                for page in (at..at + bytes).step_by(PAGE) {
                    let byte =
                        std::ptr::with_exposed_provenance_mut::<u8>(page + page / PAGE % PAGE);
                    // SAFETY: mapped, for nothing is unmapped while the layout is held.
                    unsafe { byte.write_volatile(0xCC) };
                }
            }
            process::exit(0);
        }
        drop(layout);
        assert!(child > 0, "a fork");
        match process::wait(child as u32) {
            Ok(0) => {}
            ended => {
                wrong.push(format!(
                    "a child that writes to its memory ended with {ended:?}"
                ));
                common.wrong.fetch_add(1, Ordering::Relaxed);
            }
        }
        common.forks.fetch_add(1, Ordering::Relaxed);
        thread::park_timeout(BETWEEN_FORKS);
    }
    wrong
}

/// Compacts all memory of the machine each second. How often, or why it cannot.
pub(super) fn compacts(common: &Common) -> Result<u64, String> {
    let mut done = 0;
    while !common.stop.load(Ordering::Relaxed) {
        fs::write("/proc/sys/vm/compact_memory", "1").map_err(|error| error.to_string())?;
        done += 1;
        thread::park_timeout(BETWEEN_COMPACTIONS);
    }
    Ok(done)
}
