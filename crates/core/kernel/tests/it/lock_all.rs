//! `mlockall`, which locks all that the process has: in a process of its own.

use farpage_sys::Errno;
use farpage_sys::linux::general as g;

use crate::support::{MIB, activate, check, dormant, fill, in_memory, map, press};

#[test]
fn locking_all_is_undone_when_memory_must_be_managed() {
    farpage_testkit::in_own_process!();
    let kernel = dormant(16 << 20, true);
    let at = map(kernel, 8 * MIB);
    // SAFETY: the test's own memory.
    unsafe { kernel.mlock(at, MIB, 0) }.expect("locked");
    // MCL_CURRENT of the whole test process may be more than the limit allows.
    if let Err(errno) = kernel.mlockall(g::MCL_CURRENT) {
        println!("skipped: mlockall is not allowed here ({errno})");
        return;
    }
    fill(at, 8 * MIB, 3);
    activate(kernel);
    assert_eq!(kernel.mlockall(g::MCL_CURRENT), Err(Errno::ENOMEM));
    press(kernel);
    assert_eq!(in_memory(at, MIB), 256, "locked by itself");
    assert!(in_memory(at, 8 * MIB) < 2048);
    check(at, 8 * MIB, 3);
    kernel.munlockall().expect("unlocked");
    press(kernel);
    assert!(in_memory(at, MIB) < 256);
    check(at, 8 * MIB, 3);
}
