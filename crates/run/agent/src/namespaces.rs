//! The agent's threads where the program leaves what threads have in common.
//!
//! They share its table of descriptors. A thread of the program that wants a table of its own would leave the old one to
//! them, and what it closes would stay open there: a pipe would never end. Where the program has no other thread, the
//! table is the thread's own already. They share its root and its working directory, which only a thread that shares
//! them with nobody may take into another namespace of mounts. And Linux makes no threads for a process whose children
//! are to begin another namespace of process ids: the thread that pages out, and makes all others that memory needs, is
//! made before. A process that uses hardly any memory has none of them: it may want a namespace that Linux refuses to
//! whoever has threads, and wait for a child that does the work.

use farpage_sys::linux::general as g;
use farpage_sys::linux::ioctl::NS_GET_NSTYPE;
use farpage_sys::{Result, file, process, syscall};

use crate::{memory, own_threads, sandbox, start};

const CLOSE_RANGE_UNSHARE: usize = file::CLOSE_RANGE_UNSHARE as usize;
/// Linux refuses these to a process that has several threads.
const ONE_THREAD_ONLY: usize =
    (g::CLONE_NEWUSER | g::CLONE_THREAD | g::CLONE_SIGHAND | g::CLONE_VM) as usize;

/// `unshare`, where it is not left to Linux.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn unshare(args: [usize; 6]) -> Option<Result<usize>> {
    if must_not_look() {
        return None;
    }
    let mut flags = args[0];
    // SAFETY: the program's own call, or a part of it.
    let call = |flags: usize| unsafe { syscall!(g::__NR_unshare, flags) };
    if flags & g::CLONE_FILES as usize != 0 && has_one_thread() {
        flags &= !(g::CLONE_FILES as usize);
    }
    let last = flags & g::CLONE_NEWPID as usize;
    if last != 0 {
        if flags & ONE_THREAD_ONLY != 0 {
            if let Err(errno) = call(flags & !last) {
                return Some(Err(errno));
            }
            flags = last;
        }
        before_processes();
    }
    Some(call(flags))
}

/// Before `setns`, which is left to Linux.
pub(crate) fn before_setns(args: [usize; 6]) {
    if must_not_look() {
        return;
    }
    let [descriptor, kinds, ..] = args;
    let kinds = match kinds {
        // It is as the descriptor says.
        // SAFETY: takes no pointer.
        0 => unsafe { syscall!(g::__NR_ioctl, descriptor, NS_GET_NSTYPE) }.unwrap_or(0),
        kinds => kinds,
    };
    let has = |kind: u32| kinds & kind as usize != 0;
    if has(g::CLONE_NEWPID) && !has(g::CLONE_NEWUSER | g::CLONE_NEWTIME) {
        before_processes();
    }
    if has(g::CLONE_NEWNS) && process::is_capable(g::CAP_SYS_ADMIN) {
        memory::proc_is_lost();
        if has_one_thread() {
            // SAFETY: takes no pointer. Where it fails, `setns` fails as well, and says so.
            let _ = unsafe { syscall!(g::__NR_unshare, g::CLONE_FS) };
        }
    }
}

/// Linux refuses it to a process that lacks the capability, and a thread would then be in the way of other namespaces.
fn before_processes() {
    if process::is_capable(g::CAP_SYS_ADMIN) {
        memory::watch_if_used();
    }
}

/// The flags of `close_range`: without a copy of the table where nobody else has it.
pub(crate) fn of_close_range(flags: usize) -> usize {
    match flags & CLOSE_RANGE_UNSHARE != 0 && !must_not_look() && has_one_thread() {
        true => flags & !CLOSE_RANGE_UNSHARE,
        false => flags,
    }
}

/// A filter of the program's own may not allow to look; and a process that shares the program's memory has neither its
/// threads nor its table.
fn must_not_look() -> bool {
    sandbox::is_on() || start::is_visitor()
}

/// Whether the program has no thread but this one, and the agent has some.
fn has_one_thread() -> bool {
    own_threads::exist() && own_threads::are_all_but_one()
}
