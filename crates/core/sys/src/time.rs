//! The clock.

use linux_raw_sys::general as g;

use crate::syscall;

/// `CLOCK_MONOTONIC`, nanoseconds.
pub fn now_ns() -> u64 {
    let mut at = g::__kernel_timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `at` is a timespec that the kernel fills.
    let _ = unsafe { syscall!(g::__NR_clock_gettime, g::CLOCK_MONOTONIC, &raw mut at) };
    at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64
}

/// Sleeps for about `ns` nanoseconds.
pub fn sleep_ns(ns: u64) {
    let length = g::__kernel_timespec {
        tv_sec: (ns / 1_000_000_000) as _,
        tv_nsec: (ns % 1_000_000_000) as _,
    };
    // SAFETY: `length` is a timespec; the remainder may be null.
    let _ = unsafe { syscall!(g::__NR_nanosleep, &raw const length, 0) };
}
