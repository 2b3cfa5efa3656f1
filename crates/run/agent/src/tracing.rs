//! `ptrace`, where it would stop what nobody could have go on.

use farpage_sys::linux::ptrace as p;
use farpage_sys::{Errno, Result, thread};

use crate::{maps, own_threads, sandbox, start};

/// The call, if it is refused.
pub(crate) fn call([request, id, ..]: [usize; 6]) -> Option<Result<usize>> {
    let is_refused = match request as u32 {
        // Those that stop all threads of their process to look at its memory (LeakSanitizer) would wait for
        // pages that nobody brings.
        p::PTRACE_ATTACH | p::PTRACE_SEIZE => {
            // Of the process whose memory it is: a child that shares that asks, too.
            let id = id as u32;
            thread::is_of(start::process_id(), id)
                && (own_threads::is_own(id) || own_threads::is_of_ring(id))
        }
        // A child of `vfork` would stop for its tracer at its next trapped call, and its parent, which is the
        // tracer, waits until it has executed a program.
        p::PTRACE_TRACEME if !sandbox::is_on() && start::is_visitor() => {
            maps::say(
                "a debugger cannot start a program inside of farpage run: start the program by farpage run, and \
                 let the debugger attach to it from outside (gdb -p PID)",
            );
            true
        }
        _ => false,
    };
    is_refused.then_some(Err(Errno::EPERM))
}
