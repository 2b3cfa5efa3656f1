//! The program's threads in the user-mode-only tier: how they begin and end.
//!
//! A new thread's stack may be managed memory, on which Linux can put nothing when it is away. So the first
//! thing that a thread does is to make a call that is trapped, while the beginning of its stack is held; from
//! then on its signals arrive on a stack of the agent's.

use core::arch::naked_asm;

use farpage_kernel::Holder;
use farpage_sys::linux::general as g;
use farpage_sys::seccomp::REISSUE_SKIP;

use crate::frame::Frame;
use crate::trap::Outcome;
use crate::{memory, program, sandbox, stacks, start, user_tier};

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

/// `clone` of a thread, by the program or by a thread that begins.
pub(crate) fn make(frame: &mut Frame) -> Outcome {
    if frame.rip == begin as *const () as usize + BEGIN_BYTES {
        return begun(frame);
    }
    let [_, stack, parent_id, child_id, ..] = frame.arguments();
    for id in [parent_id, child_id] {
        // Linux writes to them when the thread begins and when it ends.
        user_tier::keep(id, size_of::<u32>());
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
        // A child of `vfork` has nothing: the stack is its parent's.
        if !start::is_visitor() {
            stacks::end(frame);
        }
    }
    frame.mask = !0;
    Outcome::Reissue
}
