//! The program's threads: how they begin and end. A process that shares the program's memory, and has a stack of its
//! own in it, begins as a thread does.
//!
//! In the user-mode-only tier a new thread's stack may be managed memory, on which Linux can put nothing when it
//! is away. So the first thing that a thread does is to make a call that is trapped, while the beginning of its
//! stack is held; from then on its signals arrive on a stack of the agent's.

use core::arch::naked_asm;

use farpage_kernel::Holder;
use farpage_sys::linux::general as g;
use farpage_sys::seccomp::REISSUE_SKIP;
use farpage_sys::{process, syscall};

use crate::frame::Frame;
use crate::trap::Outcome;
use crate::{memory, own_threads, program, sandbox, shm, stacks, start, user_tier};

/// Bytes of a new stack that what Linux puts there takes at most, and what the agent's handler does.
const FIRST_BYTES: usize = 32 << 10;
/// Where in the red zone of the new stack the address lies to which the thread returns.
const RETURN: usize = 16;

/// Where threads begin. The arguments are still those of the call that made the thread, so that a program
/// that has forbidden itself calls has not forbidden this one.
#[unsafe(naked)]
extern "C" fn begin() {
    naked_asm!(
        "mov eax, {clone}",
        "syscall",
        "ud2",
        clone = const g::__NR_clone,
    )
}
/// Bytes of [`begin`] up to where the call returns to.
const BEGIN_BYTES: usize = 7;

/// `clone` of what shares the memory, by the program or by what begins.
pub(crate) fn make(frame: &mut Frame) -> Outcome {
    if frame.rip == begin as *const () as usize + BEGIN_BYTES {
        return begun(frame);
    }
    let [flags, stack, parent_id, child_id, ..] = frame.arguments();
    let of_parent = g::CLONE_PARENT_SETTID | g::CLONE_PIDFD;
    let of_child = g::CLONE_CHILD_SETTID | g::CLONE_CHILD_CLEARTID;
    for (asked, id) in [(of_parent, parent_id), (of_child, child_id)] {
        if flags & asked as usize != 0 {
            // Linux writes to them when the thread begins and when it ends.
            user_tier::keep(id, size_of::<u32>());
        }
    }
    let at = stack.wrapping_sub(usize::from(REISSUE_SKIP) + 8);
    let words = [
        (at, begin as *const () as usize),
        (stack.wrapping_sub(RETURN), frame.rip),
    ];
    hold(stack);
    for (to, word) in words {
        if program::write(to, &word).is_err() {
            // Linux would make a thread that ends the process at once, if anything.
            return Outcome::Reissue;
        }
    }
    frame.rsi = at;
    Outcome::MakeThread
}

/// A thread is there.
fn begun(frame: &mut Frame) -> Outcome {
    if let Ok(back) = program::read(frame.rsp.wrapping_sub(RETURN)) {
        frame.rip = back;
    }
    frame.rax = 0;
    if let Some(kernel) = memory::kernel() {
        kernel.release(holder(frame.rsp));
    }
    Outcome::Resume
}

/// Brings in the beginning of a new thread's stack, and keeps it until the thread has begun.
fn hold(stack: usize) {
    let Some(kernel) = memory::kernel() else {
        return;
    };
    let holder = holder(stack);
    kernel.release(holder);
    // SAFETY: a trapped call's thread holds no lock.
    unsafe { kernel.hold(holder, stack.saturating_sub(FIRST_BYTES), stack, true) };
}

/// Who holds it: as a call of a thread that there cannot be, one for each stack.
fn holder(stack: usize) -> Holder {
    Holder::Call((stack >> 4) as u32 | 1 << 31)
}

/// `exit`: the thread gives back what it has of the agent's. No signal arrives any more.
pub(crate) fn end(frame: &mut Frame) -> Outcome {
    // A program that has forbidden itself calls may have left no other but this.
    if !sandbox::is_on() {
        user_tier::let_go();
        hold_for_the_end();
        // A child of `vfork` has its parent's stack. What another sharer of the memory has is free when that is gone.
        if memory::is_user_tier() && !start::is_visitor() {
            stacks::end(frame);
        }
    }
    frame.mask = !0;
    Outcome::Reissue
}

/// Linux marks the robust locks that a thread has when it ends, and clears the word of its id: no memory is
/// brought in for it then.
fn hold_for_the_end() {
    let holder = Holder::Call(process::thread_id());
    let hold = |word: usize| {
        shm::bring_in(word);
        if let Some(kernel) = memory::kernel() {
            // SAFETY: a trapped call's thread holds no lock.
            unsafe { kernel.hold(holder, word, word.saturating_add(size_of::<u32>()), true) };
        }
    };
    if memory::kernel().is_none() && !shm::are_mapped() {
        return;
    }
    if let Some(id) = word_at_end() {
        hold(id);
    }
    for_each_lock(0, hold);
}

/// The word that Linux clears when this thread ends, 0 for none. `None` when Linux does not tell.
pub(crate) fn word_at_end() -> Option<usize> {
    const PR_GET_TID_ADDRESS: usize = 40;
    let mut word = 0usize;
    // SAFETY: Linux writes one word.
    let known = unsafe { syscall!(g::__NR_prctl, PR_GET_TID_ADDRESS, &raw mut word) };
    known.ok().map(|_| word)
}

/// `exit_group` and `execve`: robust locks in shared memory that any thread has are brought in, for others wait
/// for what Linux marks.
pub(crate) fn bring_in_locks() {
    if shm::are_mapped() && !sandbox::is_on() && !start::is_visitor() {
        for thread in own_threads::others(&[]).unwrap_or_default() {
            for_each_lock(thread, shm::bring_in);
        }
    }
}

/// Does something with each word of a robust lock that a thread of the process has, 0 for this one, and with where
/// it has its list.
fn for_each_lock(thread: u32, mut act: impl FnMut(usize)) {
    const LOCKS_MAX: usize = 2048;
    let (mut head, mut bytes) = (0usize, 0usize);
    let to = (&raw mut head, &raw mut bytes);
    // SAFETY: Linux writes one word to each.
    let known = unsafe { syscall!(g::__NR_get_robust_list, thread, to.0, to.1) };
    let (Ok(_), Ok([first, offset, pending])) = (known, program::read::<[usize; 3]>(head)) else {
        return;
    };
    act(head);
    // The lowest bit of an entry says what kind of lock it is.
    let word = |entry: usize| (entry & !1).wrapping_add(offset);
    let next = |entry: &usize| program::read::<usize>(entry & !1).ok();
    let locks = core::iter::successors(Some(first), next).take(LOCKS_MAX);
    locks
        .take_while(|entry| entry & !1 != head)
        .for_each(|entry| act(word(entry)));
    if pending != 0 {
        act(word(pending));
    }
}
