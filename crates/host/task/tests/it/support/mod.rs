//! Children, and memory as the processor sees it.
#![allow(unsafe_code)]

pub mod tasks;

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farpage_task::{AddressSpace, PAGE_BYTES as PAGE};
use farpage_testkit::until_or;

/// So long that only a fault is longer.
pub const PATIENCE: Duration = Duration::from_secs(120);

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(code: i32) -> !;
    fn kill(pid: i32, signal: i32) -> i32;
    fn syscall(number: i64, ...) -> i64;
}

pub fn own() -> &'static AddressSpace {
    AddressSpace::own().unwrap()
}

pub fn allocate(pages: u64) -> u64 {
    own().vm_allocate(0, pages * PAGE, true).unwrap()
}

pub fn pages(pattern: &[u8]) -> Vec<u8> {
    let page = |&byte| vec![byte; PAGE as usize];
    pattern.iter().flat_map(page).collect()
}

/// The first word of a page that the test has allocated and not given back.
pub fn word(at: u64) -> &'static AtomicU64 {
    // SAFETY: as said; whoever else has it mapped accesses it as another processor would.
    unsafe { &*(at as *const AtomicU64) }
}

pub fn get(at: u64) -> u64 {
    word(at).load(Ordering::SeqCst)
}

pub fn set(at: u64, value: u64) {
    word(at).store(value, Ordering::SeqCst);
}

/// Waits for what another process or thread writes.
pub fn until(at: u64, value: u64) {
    until_it(at, |found| found == value);
}

pub fn until_at_least(at: u64, value: u64) {
    until_it(at, |found| found >= value);
}

fn until_it(at: u64, is: impl Fn(u64) -> bool) {
    until_or(|| format!("{at:#x} stays {}", get(at)), || is(get(at)));
}

/// A process that was forked. Killed at the latest when this is dropped.
pub struct Forked(pub i32);

impl Forked {
    /// Forks with all handlers; the child does what it is told and ends.
    pub fn new(act: impl FnOnce()) -> Self {
        // SAFETY: glibc makes its own locks usable in the child, and the handlers theirs.
        Self::of(unsafe { fork() }, act)
    }

    /// Forks behind the back of all handlers.
    pub fn raw(act: impl FnOnce()) -> Self {
        const SYS_FORK: i64 = 57;
        // SAFETY: the child only touches memory.
        Self::of(unsafe { syscall(SYS_FORK) } as i32, act)
    }

    fn of(made: i32, act: impl FnOnce()) -> Self {
        assert!(made >= 0);
        if made == 0 {
            let done = catch_unwind(AssertUnwindSafe(act));
            // SAFETY: ends the child.
            unsafe { _exit(i32::from(done.is_err())) };
        }
        Self(made)
    }

    /// What it ended with: 0, or the signal.
    pub fn wait(self) -> i32 {
        let mut status = -1;
        // SAFETY: the child is this value's.
        let waited = unsafe { waitpid(self.0, &mut status, 0) };
        assert_eq!(waited, self.0);
        std::mem::forget(self);
        status
    }

    pub fn ends_well(self) {
        assert_eq!(self.wait(), 0);
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        // SAFETY: the child is this value's.
        unsafe { kill(self.0, 9) };
        // SAFETY: as above.
        unsafe { waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

/// Has Linux write a word, as `read(2)` does.
pub fn read_call(reader: &mut PipeReader, writer: &mut PipeWriter, at: u64, value: u64) {
    writer.write_all(&value.to_ne_bytes()).unwrap();
    // SAFETY: callers name a word of memory that they allocated; nobody has a reference to it that
    // is not to an atomic.
    let into = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, 8) };
    reader.read_exact(into).unwrap();
}
