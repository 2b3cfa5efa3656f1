//! Signals as something to read, and SIGBUS as something to answer.

#[cfg(target_arch = "x86_64")]
mod sigbus;

use linux_raw_sys::general as g;

use crate::file::{self, Fd};
use crate::raw::{Errno, Result};
use crate::{process, syscall};

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its number.
    pub signal: u32,
    /// The kernel sent it (a key on the terminal, a hang-up), not a process.
    pub from_kernel: bool,
    /// What came with it (`sigqueue`).
    pub value: Option<u64>,
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
    let code = i32::from_ne_bytes(word(8));
    let (_, value) = info.split_at(48);
    let value = value.first_chunk().map(|value| u64::from_ne_bytes(*value));
    Ok(Arrival {
        signal: u32::from_ne_bytes(word(0)),
        from_kernel: code == SI_KERNEL,
        value: value.filter(|_| code == SI_QUEUE),
    })
}

const SI_QUEUE: i32 = -1;

/// Sends a signal on to the process of a descriptor, with what came with it.
///
/// # Errors
/// As `pidfd_send_signal(2)`.
pub fn pass_on(process: Fd, arrival: Arrival) -> Result<()> {
    /// `siginfo_t` of a signal that a process sends.
    #[repr(C)]
    struct Info {
        signal: u32,
        errno: u32,
        code: i32,
        pad: u32,
        pid: u32,
        uid: u32,
        value: u64,
        rest: [u64; 12],
    }
    const _: () = assert!(size_of::<Info>() == 128);
    let info = Info {
        signal: arrival.signal,
        errno: 0,
        code: SI_QUEUE,
        pad: 0,
        pid: process::id(),
        uid: 0,
        value: arrival.value.unwrap_or(0),
        rest: [0; 12],
    };
    let info = match arrival.value {
        Some(_) => &raw const info,
        None => core::ptr::null(),
    };
    // SAFETY: `info` is none, or a `siginfo_t`.
    unsafe {
        syscall!(
            g::__NR_pidfd_send_signal,
            process.0,
            arrival.signal,
            info,
            0
        )
    }
    .map(drop)
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
