//! fork, and calls about the program's own descriptors that must spare Farpage's.

use farpage_abi::fds;
use farpage_sys::linux::general as g;
use farpage_sys::{Result, syscall};

use crate::frame::Frame;
use crate::stacks::{self, Stack};
use crate::{memory, own_threads, program, start};

/// `fork`, or `clone` of a process with a memory of its own.
///
/// The parent does not wait when `CLONE_VFORK` asks it to: it would wait in the handler, where no
/// signal arrives, with everything held still for the fork.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn fork(
    frame: &mut Frame,
    own: Option<&Stack>,
    args: [usize; 6],
) -> Result<usize> {
    let [flags, stack, parent_id, child_id, storage, _] = args;
    let flags = flags & !(g::CLONE_VFORK as usize);
    for pointer in [parent_id, child_id] {
        if pointer != 0 {
            // What Linux writes while everything stands still must be in memory.
            let _ = program::read::<u32>(pointer);
        }
    }
    let child = start::claim_for_child()?;
    if let Some(slot) = child {
        memory::before_fork(slot);
    }
    // SAFETY: the program's own call. The child goes on here, on a copy of this stack.
    let made = unsafe { syscall!(g::__NR_clone, flags, 0, parent_id, child_id, storage) };
    if made == Ok(0) {
        stacks::after_fork(own);
        own_threads::after_fork();
        start::become_child(child);
        if let Some(slot) = child {
            // SAFETY: this thread's twin called `before_fork`.
            unsafe { memory::after_fork_in_child(slot) };
        }
        if stack != 0 {
            frame.rsp = stack;
        }
    } else if let Some(slot) = child {
        // SAFETY: this thread called `before_fork`.
        unsafe { memory::after_fork_in_parent(made.is_ok(), slot) };
        if made.is_err() {
            start::release_child(slot);
        }
    }
    made
}

/// `close_range` over a range in which Farpage's descriptors lie: around them.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn close_range(first: usize, last: usize, flags: usize) -> Result<usize> {
    let (first, last) = (first as u32, last as u32);
    let base = start::fd_base();
    // SAFETY: the program's own call, less our descriptors.
    let close = |from: u32, to: u32| unsafe { syscall!(g::__NR_close_range, from, to, flags) };
    if first > last {
        return close(first, last);
    }
    let mut result = Ok(0);
    if first < base {
        result = close(first, base - 1);
    }
    if result.is_ok() && last >= base + fds::COUNT {
        result = close(first.max(base + fds::COUNT), last);
    }
    result
}
