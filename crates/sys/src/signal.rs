//! Signals as something to read, and SIGBUS as something to answer.

#[cfg(target_arch = "x86_64")]
mod sigbus;

use linux_raw_sys::general as g;

use crate::file::{self, Fd};
use crate::raw::{Errno, Result};
use crate::syscall;

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its number.
    pub signal: u32,
    /// The kernel sent it (a key on the terminal, a hang-up), not a process.
    pub from_kernel: bool,
}

/// A descriptor, closed on exec, from which the signals of `mask` (bit n - 1 is signal n) are
/// read. They must be blocked in every thread.
///
/// # Errors
/// As `signalfd4(2)`.
pub fn watch(mask: u64) -> Result<Fd> {
    let flags = g::O_CLOEXEC;
    // SAFETY: `mask` is an 8-byte signal set.
    unsafe { syscall!(g::__NR_signalfd4, -1i32, &raw const mask, 8, flags) }.map(|fd| Fd(fd as i32))
}

/// Waits for the next signal.
///
/// # Errors
/// As `read(2)`.
pub fn next(fd: Fd) -> Result<Arrival> {
    const SI_KERNEL: i32 = 0x80;
    let mut info = [0u8; 128];
    loop {
        match file::read(fd, &mut info) {
            Ok(got) if got == info.len() => break,
            Ok(_) => return Err(Errno::EIO),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    let word = |at: usize| [info[at], info[at + 1], info[at + 2], info[at + 3]];
    Ok(Arrival {
        signal: u32::from_ne_bytes(word(0)),
        from_kernel: i32::from_ne_bytes(word(8)) == SI_KERNEL,
    })
}

/// Does something, as starting a thread, while no signal is handled in this thread.
pub fn without<T>(act: impl FnOnce() -> T) -> T {
    const BLOCK: u32 = 0;
    const SET: u32 = 2;
    let all = u64::MAX;
    let mut before = 0u64;
    // SAFETY: both are 8-byte signal sets.
    let _ = unsafe {
        syscall!(
            g::__NR_rt_sigprocmask,
            BLOCK,
            &raw const all,
            &raw mut before,
            8
        )
    };
    let done = act();
    // SAFETY: as above.
    let _ = unsafe { syscall!(g::__NR_rt_sigprocmask, SET, &raw const before, 0, 8) };
    done
}

/// Gives `signal` its default effect back, whoever handled or ignored it.
///
/// # Errors
/// As `sigaction(2)`: `EINVAL` for SIGKILL and SIGSTOP, which have no other.
pub fn set_default(signal: u32) -> Result<()> {
    // Handler, flags, restorer and mask: all zero is SIG_DFL.
    let action = [0u64; 4];
    // SAFETY: `action` is a kernel sigaction with an 8-byte set; no handler is installed.
    unsafe { syscall!(g::__NR_rt_sigaction, signal, action.as_ptr(), 0, 8) }.map(drop)
}

/// An access that Linux could not carry out: it raised SIGBUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadAccess {
    /// The address.
    pub address: usize,
    /// The thread wants to write.
    pub write: bool,
    /// The page is there and protected.
    pub protection: bool,
}

/// Answers a bad access: true when the thread may try again.
pub type Answer = fn(BadAccess) -> bool;

#[cfg(target_arch = "x86_64")]
pub use sigbus::{answer_sigbus, copy, ends_copies, is_answering_sigbus};

/// Not known on this processor.
///
/// # Safety
/// Nothing is done.
///
/// # Errors
/// `ENOSYS`.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn answer_sigbus(_: Answer) -> Result<()> {
    Err(Errno::ENOSYS)
}

/// Not known on this processor.
#[cfg(not(target_arch = "x86_64"))]
pub fn is_answering_sigbus() -> bool {
    false
}

/// Not known on this processor.
#[cfg(not(target_arch = "x86_64"))]
pub fn ends_copies() -> bool {
    false
}

/// Not known on this processor.
///
/// # Safety
/// Nothing is done.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn copy(_: usize, _: usize, _: usize) -> bool {
    false
}
