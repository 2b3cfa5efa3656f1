//! Processes and signals.

use linux_raw_sys::general as g;

use crate::file::Fd;
use crate::raw::{Errno, Result};
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

/// The process that made the calling one, or took it over; 0 when it lies in another namespace.
pub fn parent_id() -> u32 {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_getppid) }.map_or(0, |id| id as u32)
}

/// `struct pidfd_info`, as it was when it first had a wait status (Linux 6.15).
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    status: i32,
}
/// Asks for the wait status, and says that it is there.
const PIDFD_INFO_EXIT: u64 = 1 << 3;
/// `PIDFD_GET_INFO`, for a structure of this size.
const PIDFD_GET_INFO: u32 = 0xc000_ff0b | (size_of::<PidfdInfo>() as u32) << 16;

/// The wait status of a process that somebody has waited for already, by a descriptor of it. `None` before
/// that, and before Linux 6.15.
pub fn status_of_ended(pidfd: Fd) -> Option<i32> {
    let mut info = PidfdInfo {
        mask: PIDFD_INFO_EXIT,
        ..PidfdInfo::default()
    };
    // SAFETY: Linux reads and writes one structure, whose size the request says.
    unsafe { syscall!(g::__NR_ioctl, pidfd.0, PIDFD_GET_INFO, &raw mut info) }.ok()?;
    (info.mask & PIDFD_INFO_EXIT != 0).then_some(info.status)
}

/// A descriptor that this process was started with, by another number and closed on exec. The
/// number is free afterwards.
///
/// # Errors
/// `EBADF` when there is none of this number; `EMFILE`.
#[cfg(feature = "std")]
pub fn inherited(number: i32) -> Result<std::os::fd::OwnedFd> {
    use std::os::fd::{FromRawFd, OwnedFd};
    // SAFETY: takes no pointer.
    let copy = unsafe { syscall!(g::__NR_fcntl, number, g::F_DUPFD_CLOEXEC, 0) }?;
    crate::file::close(crate::file::Fd(number));
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(copy as i32) })
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

/// Waits for the end of a child that nobody traces. Returns its status as `waitpid(2)` has it.
///
/// # Errors
/// As `wait4(2)`.
pub fn wait(pid: u32) -> Result<i32> {
    let mut status = 0i32;
    loop {
        // SAFETY: `status` is valid for a write.
        match unsafe { syscall!(g::__NR_wait4, pid, &raw mut status, 0, 0) } {
            Ok(_) => return Ok(status),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// The calling thread, and those that it makes, have memory without waiting for pages to be written,
/// because it is they who write them.
///
/// # Errors
/// `EPERM` without CAP_SYS_RESOURCE, `EINVAL` before Linux 5.6.
pub fn writes_pages() -> Result<()> {
    const PR_SET_IO_FLUSHER: u32 = 57;
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_prctl, PR_SET_IO_FLUSHER, 1, 0, 0, 0) }.map(drop)
}

/// Whether the calling thread has the capability of this number, in its namespace of users.
pub fn is_capable(number: u32) -> bool {
    const VERSION: u32 = 0x2008_0522;
    let header = [VERSION, 0];
    // Effective, permitted, inheritable: those below 32, and then the others.
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: both are as large as Linux's structures.
    let asked = unsafe { syscall!(g::__NR_capget, header.as_ptr(), sets.as_mut_ptr()) };
    let [effective, ..] = sets[number as usize / 32 % 2];
    asked.is_ok() && effective & 1 << (number % 32) != 0
}

/// Faults of this process for which nothing had to be read: Linux's own, copies of shared pages among them.
pub fn minor_faults() -> u64 {
    const RUSAGE_SELF: u32 = 0;
    const MINOR: usize = 8;
    let mut usage = [0u64; 18];
    // SAFETY: `usage` is as large as `struct rusage`.
    let _ = unsafe { syscall!(g::__NR_getrusage, RUSAGE_SELF, usage.as_mut_ptr()) };
    usage[MINOR]
}

/// Keeps Linux from merging equal pages of this process, and of those that it makes: what is merged loses the
/// protection by which writing is noticed.
///
/// # Errors
/// `EINVAL` where Linux has no such thing.
pub fn never_merge() -> Result<()> {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_prctl, PR_SET_MEMORY_MERGE, 0, 0, 0, 0) }.map(drop)
}

/// True when this thread has given up that a program it executes gets privileges.
#[must_use]
pub fn has_no_new_privileges() -> bool {
    const PR_GET_NO_NEW_PRIVS: u32 = 39;
    // SAFETY: takes no pointer.
    let has = unsafe { syscall!(g::__NR_prctl, PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) };
    has == Ok(1)
}

/// Gives up, for this thread, that a program it executes gets privileges.
///
/// # Errors
/// As `prctl(2)`.
pub fn set_no_new_privileges() -> Result<()> {
    const PR_SET_NO_NEW_PRIVS: u32 = 38;
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.map(drop)
}

/// Has Linux merge equal pages of a process.
pub const PR_SET_MEMORY_MERGE: u32 = 67;

/// Whether this process has a core, its files in `/proc` are its user's, and others of that user may trace it.
pub fn is_dumpable() -> bool {
    const PR_GET_DUMPABLE: u32 = 3;
    // SAFETY: takes no pointer.
    let is = unsafe { syscall!(g::__NR_prctl, PR_GET_DUMPABLE, 0, 0, 0, 0) };
    is == Ok(1)
}

/// See [`is_dumpable`]. A process that root alone may trace because it has changed its user cannot be made such again:
/// nobody may trace it then.
///
/// # Errors
/// As `prctl(2)`.
pub fn set_dumpable(dumpable: bool) -> Result<()> {
    const PR_SET_DUMPABLE: u32 = 4;
    let dumpable = u32::from(dumpable);
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_prctl, PR_SET_DUMPABLE, dumpable, 0, 0, 0) }.map(drop)
}

/// Ends the calling process with `code`, without anything that libc does then.
pub fn exit(code: u32) -> ! {
    loop {
        // SAFETY: does not return.
        let _ = unsafe { syscall!(g::__NR_exit_group, code) };
    }
}

/// Ends the calling process with SIGKILL: nothing of the program runs any more.
pub fn die() -> ! {
    loop {
        let _ = kill(id(), g::SIGKILL);
    }
}
