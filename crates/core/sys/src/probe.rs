//! Asking the kernel what it would do, without doing it: for `farpage doctor`.

use linux_raw_sys::general as g;

use crate::raw::{Errno, Result};
use crate::ring::Ring;
use crate::{file, pagemap, syscall};

/// Linux's release, as `uname -r` prints it.
#[cfg(feature = "std")]
pub fn kernel_release() -> std::string::String {
    let read = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    read.unwrap_or_default().trim_end().into()
}

/// Whether seccomp filters may answer a call with SIGSYS (`SECCOMP_RET_TRAP`).
///
/// # Errors
/// As `seccomp(2)`: `ENOSYS` or `EINVAL` without filters, `EOPNOTSUPP` without the action.
pub fn seccomp_trap() -> Result<()> {
    const SECCOMP_GET_ACTION_AVAIL: u32 = 2;
    const SECCOMP_RET_TRAP: u32 = 0x0003_0000;
    let action = SECCOMP_RET_TRAP;
    let args = (SECCOMP_GET_ACTION_AVAIL, 0, &raw const action);
    // SAFETY: `action` is the 4-byte number that is asked about.
    unsafe { syscall!(g::__NR_seccomp, args.0, args.1, args.2) }.map(drop)
}

/// Whether the kernel has `PAGEMAP_SCAN`.
///
/// # Errors
/// As `open(2)` of the pagemap and `ioctl(2)`; `ENOTTY` without the request.
pub fn pagemap_scan() -> Result<()> {
    let fd = pagemap::open()?;
    let answer = pagemap::probe_scan(fd);
    file::close(fd);
    answer
}

/// Whether rings can be made.
///
/// # Errors
/// As `io_uring_setup(2)`: `ENOSYS` or `EPERM` where a sandbox or `kernel.io_uring_disabled`
/// forbids it; `EINVAL` before Linux 5.4.
pub fn io_uring() -> Result<()> {
    let place = file::memfd(c"ring", 1)?;
    Ring::new(place)
        .map(drop)
        .inspect_err(|_| file::close(place))
}

/// Whether this process may trace process `pid`, its child. It stays attached: kill the child.
///
/// # Errors
/// As `ptrace(2)` with `PTRACE_SEIZE`.
pub fn seize(pid: u32) -> Result<()> {
    const PTRACE_SEIZE: u32 = 0x4206;
    // SAFETY: this request takes no pointer.
    unsafe { syscall!(g::__NR_ptrace, PTRACE_SEIZE, pid, 0, 0) }.map(drop)
}

/// Whether `errno` says that the kernel does not know what was asked for.
pub fn is_missing(errno: Errno) -> bool {
    matches!(errno, Errno::ENOSYS | Errno::ENOTTY | Errno::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_of_today_has_filters_and_nobody_traces_process_zero() {
        assert_eq!(seccomp_trap(), Ok(()));
        assert!(seize(0).is_err());
    }
}
