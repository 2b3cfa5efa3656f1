//! The agent's threads where the program leaves what threads have in common.
//!
//! They share its table of descriptors. A thread of the program that wants a table of its own would leave the old one to
//! them, and what it closes would stay open there: a pipe would never end. Where nobody else shares the table, it is the
//! thread's own already. And Linux makes no threads for who has asked that its children begin another namespace of
//! process ids: the one that makes all others of the agent's is made before.

use farpage_sys::linux::general as g;
use farpage_sys::linux::ioctl::NS_GET_NSTYPE;
use farpage_sys::{Result, syscall};

use crate::{memory, own_threads, sandbox, start};

const CLOSE_RANGE_UNSHARE: usize = 1 << 1;

/// `unshare`, where it is not left to Linux.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn unshare(args: [usize; 6]) -> Option<Result<usize>> {
    let flags = args[0];
    if flags & g::CLONE_NEWPID as usize != 0 {
        before_processes();
    }
    let others = flags & !(g::CLONE_FILES as usize);
    if others == flags || !has_one_thread() {
        return None;
    }
    // SAFETY: forwarded.
    Some(unsafe { syscall!(g::__NR_unshare, others) })
}

/// Before `setns`, which is left to Linux.
pub(crate) fn before_setns(args: [usize; 6]) {
    let [descriptor, kinds, ..] = args;
    let new_processes = g::CLONE_NEWPID as usize;
    let is_of_processes = match kinds {
        // It is as the descriptor says. A filter of the program's own may not allow to ask.
        0 if sandbox::is_on() => false,
        0 => {
            // SAFETY: takes no pointer.
            let kind = unsafe { syscall!(g::__NR_ioctl, descriptor, NS_GET_NSTYPE) };
            kind == Ok(new_processes)
        }
        kinds => kinds & new_processes != 0,
    };
    if is_of_processes {
        before_processes();
    }
}

/// The flags of `close_range`: without a copy of the table where there is no use for it.
pub(crate) fn of_close_range(flags: usize) -> usize {
    match flags & CLOSE_RANGE_UNSHARE != 0 && has_one_thread() {
        true => flags & !CLOSE_RANGE_UNSHARE,
        false => flags,
    }
}

fn before_processes() {
    if !start::is_visitor() && !sandbox::is_on() {
        memory::watch_from_now_on();
    }
}

/// Whether the program has no thread but this one, and the agent has some.
fn has_one_thread() -> bool {
    // A filter of the program's own may not allow to look.
    !start::is_visitor()
        && !sandbox::is_on()
        && own_threads::exist()
        && own_threads::are_all_but_one()
}
