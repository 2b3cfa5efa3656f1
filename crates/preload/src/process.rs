//! Processes: fork, and calls that could take from the agent what it needs.

use farpage_abi::fds;
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, syscall};

use crate::frame::Frame;
use crate::{memory, start};

/// `fork`, and `clone` of a process: `args` are those of `clone`.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn fork(frame: &mut Frame, args: [usize; 6]) -> Result<usize> {
    let stack = args[1];
    let mut args = args;
    args[1] = 0;
    for pointer in [args[2], args[3]] {
        if pointer != 0 {
            // What Linux writes while the kernel stands still must be in memory.
            // SAFETY: the program's pointer, which Linux will write to.
            unsafe { core::ptr::read_volatile(pointer as *const u32) };
        }
    }
    let Some(slot) = start::claim_for_child() else {
        return Err(Errno::EAGAIN);
    };
    memory::before_fork(slot);
    // SAFETY: the child gets a copy of this stack and goes on from here.
    let made = unsafe { farpage_sys::raw::syscall(g::__NR_clone, args) };
    match made {
        Ok(0) => {
            start::become_task(slot);
            // SAFETY: `before_fork` was called in the parent, on this thread's twin.
            unsafe { memory::after_fork_in_child(slot) };
            if stack != 0 {
                frame.rsp = stack;
            }
            Ok(0)
        }
        made => {
            // SAFETY: `before_fork` was called on this thread.
            unsafe { memory::after_fork_in_parent(made.is_ok(), slot) };
            match made {
                Ok(pid) => start::name_child(slot, pid),
                Err(_) => start::release_child(slot),
            }
            made
        }
    }
}

/// `seccomp(operation, flags, arguments)`: a filter of the program's own.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn seccomp(args: [usize; 6]) -> Result<usize> {
    const SET_MODE_FILTER: usize = 1;
    const TSYNC: usize = 1;
    let mut args = args;
    if args[0] == SET_MODE_FILTER {
        // The agent's threads need calls that the filter may forbid.
        args[1] &= !TSYNC;
    }
    if args[0] <= SET_MODE_FILTER {
        memory::sandboxed();
    }
    // SAFETY: the program's own call.
    unsafe { farpage_sys::raw::syscall(g::__NR_seccomp, args) }
}

/// `prctl(PR_SET_SECCOMP, ...)`.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn prctl(args: [usize; 6]) -> Result<usize> {
    memory::sandboxed();
    // SAFETY: the program's own call.
    unsafe { farpage_sys::raw::syscall(g::__NR_prctl, args) }
}

/// `close_range(first, last, flags)`, with our descriptors left out.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn close_range(first: usize, last: usize, flags: usize) -> Result<usize> {
    let (first, last) = (first as u32, last as u32);
    if first > last {
        return Err(Errno::EINVAL);
    }
    let ours = start::descriptor(0).0 as u32;
    let after = ours + fds::COUNT;
    let close = |from: u32, to: u32| {
        // SAFETY: takes no pointer.
        unsafe { syscall!(g::__NR_close_range, from, to, flags) }
    };
    if first < ours {
        close(first, last.min(ours - 1))?;
    }
    if last >= after {
        close(first.max(after), last)?;
    }
    Ok(0)
}
