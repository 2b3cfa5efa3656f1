//! Programs that have much of their memory in small mappings.
//!
//! Small mappings are left to Linux, so that making one costs what it costs without Farpage. A
//! program that is found to have more than a little memory which is not managed gets one more
//! filter, and from then on its mappings are managed whatever their size.
//!
//! To look takes a descriptor for a moment. Only the calls look by which the program asks for
//! memory that is managed: a thread of the agent's could take the number that the program expects
//! to get next.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farpage_kernel::Kernel;
use farpage_sys::seccomp::later::{self, Unseen};
use farpage_sys::{file, time};

use crate::{machine, sandbox, start};

/// Memory that need not be managed: of libraries, of threads' stacks, of the agent.
const LEFT_BYTES: u64 = 8 << 20;
/// One in so many of managed bytes may be the agent's besides.
const AGENTS: u64 = 32;
/// Time between two looks. A look takes some 5 us; what is filled meanwhile stays in memory.
const STEP_NS: u64 = 1_000_000;

/// Small mappings are managed, or cannot be.
static IS_SETTLED: AtomicBool = AtomicBool::new(false);
static LOOKED_NS: AtomicU64 = AtomicU64::new(0);
/// What there was when the managed memory was last counted.
static COUNTED_AT: AtomicU64 = AtomicU64::new(0);

/// A program has what its process was found to need before it executed it.
pub(crate) fn begin(kernel: &Kernel) {
    if !sandbox::is_on() && later::is_seen(Unseen::SmallMemory) {
        IS_SETTLED.store(true, Ordering::Relaxed);
        kernel.manage_small();
    }
}

/// Manages small mappings from now on if there are many.
pub(crate) fn look(kernel: &Kernel) {
    if IS_SETTLED.load(Ordering::Relaxed) || sandbox::is_on() || !is_time() || start::is_visitor() {
        return;
    }
    let Some(all) = in_memory() else { return };
    // Counting takes the longer the more there is.
    let counted = COUNTED_AT.load(Ordering::Relaxed);
    if all < (counted + counted / 8).max(LEFT_BYTES) {
        return;
    }
    COUNTED_AT.store(all, Ordering::Relaxed);
    let unmanaged = kernel.unmanaged_bytes(all);
    if unmanaged < LEFT_BYTES + (all - unmanaged) / AGENTS {
        return;
    }
    IS_SETTLED.store(true, Ordering::Relaxed);
    if later::see(Unseen::SmallMemory).is_ok() {
        kernel.manage_small();
    }
}

/// True for one thread, every [`STEP_NS`].
fn is_time() -> bool {
    let now = time::now_ns();
    let last = LOOKED_NS.load(Ordering::Relaxed);
    let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
    now.saturating_sub(last) >= STEP_NS
        && (LOOKED_NS.compare_exchange(last, now, order, failed)).is_ok()
}

/// Memory of its own that the process has in memory.
fn in_memory() -> Option<u64> {
    let mut text = [0; 128];
    // The first thread may have ended.
    let statm = file::read_beginning(c"/proc/thread-self/statm", &mut text);
    machine::own_memory(statm.ok()?)
}
