//! Processes and signals.

use linux_raw_sys::general as g;

use crate::raw::Result;
use crate::syscall;

/// The calling process.
pub fn id() -> u32 {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_getpid) }.map_or(0, |id| id as u32)
}

/// The calling thread.
pub fn thread_id() -> u32 {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_gettid) }.map_or(0, |id| id as u32)
}

/// Sends `signal` to process `pid`.
///
/// # Errors
/// As `kill(2)`.
pub fn kill(pid: u32, signal: u32) -> Result<()> {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_kill, pid, signal) }.map(drop)
}

/// Replaces the calling thread's set of blocked signals (bit n - 1 is signal n); returns the old.
pub fn set_signal_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: both are 8-byte signal sets.
    let _ = unsafe {
        syscall!(
            g::__NR_rt_sigprocmask,
            g::SIG_SETMASK,
            &raw const mask,
            &raw mut old,
            8
        )
    };
    old
}

/// Ends the calling process with SIGKILL: nothing of the program runs any more.
pub fn die() -> ! {
    loop {
        let _ = kill(id(), g::SIGKILL);
    }
}
