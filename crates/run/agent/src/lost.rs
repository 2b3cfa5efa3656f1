//! Calls whose trap was lost.
//!
//! Linux keeps one SIGSYS for a thread at a time. Where one is pending that somebody has sent, a
//! filter raises none: the thread gets the other, and the call looks as if it had returned its own
//! number. So a thread that was sent SIGSYS looks whether it is at such a call, and makes it again.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, Ordering};

use farpage_sys::linux::general as g;
use farpage_sys::linux::ptrace as p;
use farpage_sys::seccomp::judge::{JudgedCall, judge};
use farpage_sys::seccomp::{self, GATE_ADDRESS, GATE_BYTES, Instruction, Params, TRAP_MARK};

use crate::frame::Frame;
use crate::{maps, memory, program, sandbox, shm, start};

/// The `syscall` instruction.
const CALL: [u8; 2] = [0x0f, 0x05];

/// The filter that traps calls.
static FILTER: AtomicPtr<Vec<Instruction>> = AtomicPtr::new(core::ptr::null_mut());

/// Called before a thread is sent SIGSYS, while memory can still be allocated.
pub(crate) fn prepare() {
    let _ = filter();
}

/// A thread that was sent SIGSYS makes the call again whose trap it has not got.
pub(crate) fn restart(frame: &mut Frame) {
    let number = frame.rax as u32;
    // Linux leaves the return address in `rcx`; the agent does not, in what it has carried out.
    let has_just_called = frame.rcx == frame.rip && frame.rax == number as usize;
    let in_gate = (GATE_ADDRESS..GATE_ADDRESS + GATE_BYTES).contains(&frame.rip);
    if !has_just_called || in_gate {
        return;
    }
    let at = frame.rip.wrapping_sub(CALL.len());
    if program::read::<[u8; 2]>(at) == Ok(CALL) && is_trapped(number, frame) {
        frame.rip = at;
    }
}

fn is_trapped(number: u32, frame: &Frame) -> bool {
    if number == g::__NR_mmap {
        // It never returns that, and later filters trap more of it.
        return true;
    }
    let call = JudgedCall {
        number,
        args: frame.arguments().map(|argument| argument as u64),
    };
    let trap = p::SECCOMP_RET_TRAP | u32::from(TRAP_MARK);
    filter().is_some_and(|filter| judge(filter, &call) == Some(trap))
}

/// `None`: it was not made in time, or there is no control block.
fn filter() -> Option<&'static [Instruction]> {
    let made = FILTER.load(Ordering::Acquire);
    // SAFETY: null, or leaked below.
    if let Some(made) = unsafe { made.as_ref() } {
        return Some(made);
    }
    if sandbox::is_on() {
        return None;
    }
    let control = start::control()?;
    let made = seccomp::filter(&Params {
        fd_base: start::fd_base(),
        threshold_bytes: control.threshold_bytes.load(Ordering::Relaxed),
        user_mode_tier: memory::is_user_tier(),
        maps: maps::exist(),
        shm: shm::exist(),
        cluster: control.shm.is_cluster(),
        machine: control.machine_bytes.load(Ordering::Relaxed) != 0,
    });
    let made = Box::into_raw(Box::new(made));
    // Two threads may make it: it is small, and the same.
    FILTER.store(made, Ordering::Release);
    // SAFETY: never freed.
    Some(unsafe { &*made })
}
