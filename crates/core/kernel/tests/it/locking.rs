//! Locked memory and calls that fail half-way, on the real Linux, with a small budget.

use farpage_kernel::{Kernel, PLACE_START};
use farpage_sys::file::Fd;
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, mem, syscall, uffd};

use crate::support::{MIB, activate, check, dormant, fill, in_memory, kernel, map, press, words};

/// What this process has locked, until this is dropped: an ordinary user may lock 8 MiB. Each test is
/// a process of its own, for this unlocks what any other had locked.
struct Locks;

impl Drop for Locks {
    fn drop(&mut self) {
        // SAFETY: takes no pointer.
        let _ = unsafe { syscall!(g::__NR_munlockall) };
    }
}

/// True when this user may lock `bytes` at a time.
fn may_lock(bytes: usize) -> bool {
    let at = mem::map_anonymous(bytes).expect("address space");
    // SAFETY: a fresh mapping, that is taken away again.
    let may = unsafe { syscall!(g::__NR_mlock, at, bytes) }.is_ok();
    // SAFETY: as above.
    let _ = unsafe { syscall!(g::__NR_munmap, at, bytes) };
    may
}

/// Locks behind the kernel's back.
fn lock_plainly(at: usize, bytes: usize) {
    // SAFETY: takes no contents away.
    unsafe { syscall!(g::__NR_mlock, at, bytes) }.expect("the limit allows it");
}

fn locked_stays(kernel: &'static Kernel, start: impl FnOnce()) {
    let _locks = Locks;
    let bytes = 4 * MIB;
    let at = map(kernel, bytes);
    fill(at, bytes, 1);
    let locked = at + MIB;
    // SAFETY: the test's own memory.
    unsafe { kernel.mlock(locked + 5, MIB - 10, 0) }.expect("locked");
    // SAFETY: as above. Locks do not nest.
    unsafe { kernel.mlock(locked, MIB, 0) }.expect("locked");
    start();
    press(kernel);
    assert_eq!(in_memory(locked, MIB), 256);
    assert_eq!(kernel.resident(locked, locked + MIB), 256);
    assert!(in_memory(at, bytes) < 1024, "the rest can leave");
    check(at, bytes, 1);
    // SAFETY: as above.
    unsafe { kernel.munlock(locked, MIB) }.expect("unlocked");
    // When it leaves is replacement's choice; that it can is what is claimed.
    let leaves = (0..10).any(|_| {
        press(kernel);
        in_memory(locked, MIB) < 256
    });
    assert!(leaves, "unlocked, and still there");
    check(at, bytes, 1);
}

#[test]
fn memory_locked_before_it_is_managed_stays() {
    farpage_testkit::in_own_process!();
    for clean in [false, true] {
        let kernel = dormant(16 << 20, clean);
        locked_stays(kernel, || activate(kernel));
    }
}

#[test]
fn memory_locked_while_it_is_managed_stays() {
    farpage_testkit::in_own_process!();
    for clean in [false, true] {
        locked_stays(kernel(16 << 20, clean), || ());
    }
}

#[test]
fn more_than_half_of_the_budget_is_not_locked() {
    farpage_testkit::in_own_process!();
    let kernel = kernel(16 << 20, true);
    let at = map(kernel, 32 * MIB);
    // SAFETY: the test's own memory.
    let refused = unsafe { kernel.mlock(at, 9 * MIB, 0) };
    assert_eq!(refused, Err(Errno::ENOMEM));
    // SAFETY: as above.
    let wrong = unsafe { kernel.mlock(at, usize::MAX - at, 0) };
    // Linux looks at the limit of a user before it looks at the range.
    let limited = !may_lock(32 * MIB);
    let expected = if limited {
        Errno::ENOMEM
    } else {
        Errno::EINVAL
    };
    assert_eq!(wrong, Err(expected));
    fill(at, 32 * MIB, 2);
    check(at, 32 * MIB, 2);
    assert!(in_memory(at, 9 * MIB) < 9 * 256, "nothing of it is held");
}

#[test]
fn the_mapping_that_fills_the_budget_is_not_filled_at_once() {
    let kernel = dormant(16 << 20, true);
    let bytes = 64 * MIB;
    let mapped = |more: u32| {
        let flags = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | more;
        let prot = mem::PROT_READ | mem::PROT_WRITE;
        // SAFETY: a fresh mapping.
        unsafe { kernel.mmap(0, bytes, prot, flags, Fd(-1), 0) }
    };
    assert_eq!(mapped(g::MAP_LOCKED), Err(Errno::EAGAIN));
    let at = mapped(g::MAP_POPULATE).expect("a mapping");
    assert_eq!(in_memory(at, bytes), 0);
    activate(kernel);
    fill(at, bytes, 3);
    let peak = &kernel.account().control().resident_bytes;
    assert!(peak.load(std::sync::atomic::Ordering::Relaxed) <= 16 << 20);
    check(at, bytes, 3);
}

#[test]
fn a_lock_ends_with_its_mapping() {
    farpage_testkit::in_own_process!();
    let kernel = kernel(16 << 20, true);
    let at = map(kernel, 4 * MIB);
    // SAFETY: the test's own memory.
    unsafe { kernel.mlock(at, 4 * MIB, 0) }.expect("locked");
    let (prot, flags) = (
        mem::PROT_READ | mem::PROT_WRITE,
        mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | mem::MAP_FIXED,
    );
    // SAFETY: as above.
    let again = unsafe { kernel.mmap(at, 4 * MIB, prot, flags, Fd(-1), 0) };
    assert_eq!(again, Ok(at));
    fill(at, 4 * MIB, 4);
    let other = map(kernel, 4 * MIB);
    // SAFETY: as above. Whoever unlocks something looks at all that is held.
    unsafe { kernel.mlock(other, MIB, 0) }.expect("locked");
    // SAFETY: as above.
    unsafe { kernel.munlock(other, MIB) }.expect("unlocked");
    press(kernel);
    assert!(in_memory(at, 4 * MIB) < 1024);
    check(at, 4 * MIB, 4);
}

#[test]
fn a_lock_moves_with_its_memory() {
    farpage_testkit::in_own_process!();
    let kernel = kernel(16 << 20, true);
    let at = map(kernel, 4 * MIB);
    fill(at, 4 * MIB, 5);
    // SAFETY: the test's own memory.
    unsafe { kernel.mlock(at + MIB, MIB, 0) }.expect("locked");
    let to = map(kernel, 8 * MIB);
    let fixed = g::MREMAP_MAYMOVE | g::MREMAP_FIXED;
    // SAFETY: as above.
    let moved = unsafe { kernel.mremap(at, 4 * MIB, 8 * MIB, fixed, to) };
    assert_eq!(moved, Ok(to));
    press(kernel);
    assert_eq!(in_memory(to + MIB, MIB), 256);
    assert!(in_memory(to, 4 * MIB) < 1024);
    check(to, 4 * MIB, 5);
}

#[test]
fn memory_that_linux_locked_alone_stays_and_can_be_written() {
    farpage_testkit::in_own_process!();
    if !uffd::serves_system_calls() {
        println!("skipped: Linux brings nothing in by itself for this user");
        return;
    }
    for clean in [false, true] {
        let _locks = Locks;
        let kernel = kernel(16 << 20, clean);
        let at = map(kernel, 8 * MIB);
        fill(at, 8 * MIB, 6);
        press(kernel);
        check(at, 8 * MIB, 6);
        lock_plainly(at + MIB, 4 * MIB);
        for round in 0..3 {
            press(kernel);
            assert_eq!(in_memory(at + MIB, 4 * MIB), 1024);
            check(at, 8 * MIB, 6 + round);
            fill(at, 8 * MIB, 7 + round);
        }
    }
}

#[test]
fn a_budget_full_of_what_cannot_leave_does_not_stop_the_program() {
    farpage_testkit::in_own_process!();
    if !may_lock(15 * MIB) {
        println!("skipped: this user may not lock 15 MiB");
        return;
    }
    let kernel = kernel(16 << 20, true);
    let at = map(kernel, 15 * MIB);
    fill(at, 15 * MIB, 7);
    lock_plainly(at, 15 * MIB);
    let more = map(kernel, MIB / 4);
    fill(more, MIB / 4, 8);
    check(at, 15 * MIB, 7);
    check(more, MIB / 4, 8);
}

#[test]
fn contents_that_could_not_all_be_dropped_are_as_linux_left_them() {
    farpage_testkit::in_own_process!();
    let kernel = kernel(16 << 20, true);
    let at = map(kernel, 6 * MIB);
    fill(at, 6 * MIB, 9);
    lock_plainly(at + 2 * MIB, MIB);
    // SAFETY: the test gives the contents up.
    let dropped = unsafe { kernel.madvise(at, 6 * MIB, mem::MADV_DONTNEED) };
    assert_eq!(dropped, Err(Errno::EINVAL), "locked memory is not dropped");
    assert!(words(at, 2 * MIB).iter().all(|word| *word == 0));
    let skipped = 2 * MIB as u64 / 8;
    check(at + 2 * MIB, 4 * MIB, 9 + skipped);
    fill(at, 6 * MIB, 10);
    // SAFETY: as above.
    let dropped = unsafe { kernel.madvise(at, 6 * MIB, g::MADV_DONTNEED_LOCKED) };
    assert_eq!(dropped, Ok(()));
    assert!(words(at, 6 * MIB).iter().all(|word| *word == 0));
}

#[test]
fn contents_around_a_hole_are_dropped() {
    let kernel = kernel(16 << 20, true);
    let at = map(kernel, 6 * MIB);
    fill(at, 6 * MIB, 11);
    // SAFETY: the test gives the memory up.
    unsafe { kernel.munmap(at + 2 * MIB, MIB) }.expect("unmapped");
    // SAFETY: as above.
    let dropped = unsafe { kernel.madvise(at, 6 * MIB, mem::MADV_DONTNEED) };
    assert_eq!(dropped, Err(Errno::ENOMEM));
    assert!(words(at, 2 * MIB).iter().all(|word| *word == 0));
    let rest = words(at + 3 * MIB, 3 * MIB);
    assert!(rest.iter().all(|word| *word == 0));
}

#[test]
fn a_mapping_that_fails_leaves_what_was_there() {
    let kernel = kernel(16 << 20, true);
    let at = map(kernel, 4 * MIB);
    fill(at, 4 * MIB, 12);
    press(kernel);
    let flags = mem::MAP_PRIVATE | mem::MAP_FIXED;
    // SAFETY: nothing is mapped: there is no such descriptor.
    let failed = unsafe { kernel.mmap(at, 4 * MIB, mem::PROT_READ, flags, Fd(-1), 0) };
    assert_eq!(failed, Err(Errno::EBADF));
    check(at, 4 * MIB, 12);
}

#[test]
fn wrong_moves_are_refused_and_change_nothing() {
    let kernel = kernel(16 << 20, true);
    let at = map(kernel, 4 * MIB);
    fill(at, 4 * MIB, 13);
    let (may_move, fixed) = (g::MREMAP_MAYMOVE, g::MREMAP_MAYMOVE | g::MREMAP_FIXED);
    for (new, flags, target) in [
        (usize::MAX - 2 * 4096, may_move, 0),
        (usize::MAX - at, may_move, 0),
        (4 * MIB, fixed, at + MIB),
        (4 * MIB, fixed, at - MIB),
        (4 * MIB, fixed, PLACE_START + 12345),
        (4 * MIB, g::MREMAP_FIXED, PLACE_START + (1 << 40)),
    ] {
        // SAFETY: refused.
        let moved = unsafe { kernel.mremap(at, 4 * MIB, new, flags, target) };
        assert_eq!(moved, Err(Errno::EINVAL), "{new:#x} {flags} {target:#x}");
    }
    check(at, 4 * MIB, 13);
}

#[test]
fn memory_can_be_moved_to_where_none_is_managed() {
    let kernel = kernel(16 << 20, true);
    let at = map(kernel, 8 * MIB);
    fill(at, 8 * MIB, 14);
    press(kernel);
    let goal = mem::map_anonymous(8 * MIB).expect("address space");
    let fixed = g::MREMAP_MAYMOVE | g::MREMAP_FIXED;
    // SAFETY: the goal is the test's own.
    let moved = unsafe { kernel.mremap(at, 8 * MIB, 8 * MIB, fixed, goal) };
    assert_eq!(moved, Ok(goal));
    check(goal, 8 * MIB, 14);
    press(kernel);
    check(goal, 8 * MIB, 14);
}
