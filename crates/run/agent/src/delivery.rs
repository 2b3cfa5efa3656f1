//! The program's signals in the user-mode-only tier. Linux cannot put what a signal interrupts on a
//! stack in managed memory that is away, nor take it back from there. So all signals arrive on
//! stacks of the agent's ([`stacks`](crate::stacks)). The agent lays out on the program's own what
//! Linux would have put there, lets the handler run, and brings it back when the handler returns.
//! In root's tier a SIGSYS of the program's own is laid out likewise, where its handler is not to
//! run on the thread's stack for signals, on which ours does.

use core::mem::offset_of;

use farpage_sys::linux::general as g;
use farpage_sys::seccomp::{GATE_ADDRESS, GATE_REISSUE};
use farpage_sys::{Errno, Result};

use crate::frame::{Frame, Info, LEGACY, RED_ZONE, SignalStack, vector_bytes, without_sigsys};
use crate::signals::Action;
use crate::stacks::Stack;
use crate::trap::Outcome;
use crate::{program, signals, start, user_tier};

/// What a handler finds at its stack pointer.
#[repr(C)]
struct Laid {
    restorer: usize,
    frame: Frame,
    info: Info,
}

/// Bytes between places of vector registers.
const VECTOR_ALIGNMENT: usize = 64;
/// What a handler starts without: single steps, the resumption of one, and the direction of copies.
const NOT_FOR_HANDLERS: u64 = 1 << 8 | 1 << 10 | 1 << 16;

/// Lets the program's handler have a signal as soon as this one returns. `own`: the agent's stack
/// that this thread keeps.
pub(crate) fn deliver(info: &Info, action: &Action, frame: &mut Frame, own: Option<&Stack>) {
    let given = own.map_or(SignalStack::NONE, Stack::given);
    lay_out(info, action, frame, given);
    if let Some(own) = own.filter(|_| given.is_disarmed_when_used()) {
        own.give(SignalStack::NONE);
    }
}

/// As [`deliver`], where the thread's stack for signals is Linux's business.
pub(crate) fn deliver_in_first_tier(info: &Info, action: &Action, frame: &mut Frame) {
    let given = frame.stack;
    lay_out(info, action, frame, given);
    if given.is_disarmed_when_used() {
        frame.stack = SignalStack::NONE;
    }
}

/// Puts what the handler of `action` needs on the stack that is meant for it, and points `frame`
/// there. `given`: the thread's stack for signals.
fn lay_out(info: &Info, action: &Action, frame: &mut Frame, given: SignalStack) {
    let wants = |flag: u32| action.flags & u64::from(flag) != 0;
    if !wants(g::SA_RESTORER) {
        // Linux cannot deliver it either.
        signals::die_by(g::SIGSEGV);
    }
    let mut at = if wants(g::SA_ONSTACK) && given.bytes != 0 && !is_on(&given, frame.rsp) {
        given.at + given.bytes
    } else {
        frame.rsp.wrapping_sub(RED_ZONE)
    };
    let mut laid = Laid {
        restorer: action.restorer,
        frame: *frame,
        info: *info,
    };
    laid.frame.stack = given;
    if frame.vectors != 0 {
        // SAFETY: Linux has put them there, for as long as this handler runs.
        let bytes = unsafe { vector_bytes(frame.vectors) };
        at = at.wrapping_sub(bytes) & !(VECTOR_ALIGNMENT - 1);
        // SAFETY: below the program's stack pointer, or on the stack that it gave for this.
        unsafe { copy(frame.vectors, at, bytes) };
        laid.frame.vectors = at;
    }
    at = (at.wrapping_sub(size_of::<Laid>()) & !15).wrapping_sub(8);
    // SAFETY: as above. Where there is no stack, the program ends by SIGSEGV, as it would without
    // us.
    unsafe { core::ptr::with_exposed_provenance_mut::<Laid>(at).write_unaligned(laid) };
    let itself = if wants(g::SA_NODEFER) {
        0
    } else {
        1 << (info.signo - 1)
    };
    (frame.rsp, frame.rip) = (at, action.handler);
    frame.rdi = info.signo as usize;
    frame.rsi = at + offset_of!(Laid, info);
    frame.rdx = at + offset_of!(Laid, frame);
    frame.rax = 0;
    frame.eflags &= !NOT_FOR_HANDLERS;
    frame.vectors = 0;
    frame.mask = without_sigsys(frame.mask | action.mask | itself);
}

/// `rt_sigreturn`: what was interrupted goes on, with what the handler has changed.
pub(crate) fn resume(frame: &mut Frame, own: Option<&Stack>) -> Outcome {
    let laid = program::read::<Frame>(frame.rsp);
    let vectors = laid.and_then(|laid| vectors(frame.vectors, laid.vectors));
    let (Ok(laid), Ok(vectors)) = (laid, vectors) else {
        signals::die_by(g::SIGSEGV);
    };
    // Linux notes the agent's where it delivers by itself, to a handler that another process which
    // shares this memory has set.
    if let Some(own) = own.filter(|own| own.signals().at != laid.stack.at) {
        // As in Linux: by where the handler ended, and nothing is said of one that is refused.
        let _ = change(own, frame.rsp, laid.stack);
    }
    let stack = frame.stack;
    *frame = laid;
    (frame.stack, frame.vectors) = (stack, vectors);
    frame.mask = without_sigsys(laid.mask);
    if frame.rip == GATE_ADDRESS + GATE_REISSUE {
        // The handler's own calls have let go what this one needs, which is made now, or again.
        user_tier::prepare(frame.rax as u32, frame.arguments());
    }
    Outcome::Resume
}

/// Copies vector registers from where a handler has left them to where Linux takes them from, if
/// there is room; returns where they are.
fn vectors(to: usize, from: usize) -> Result<usize> {
    if from == 0 || to == 0 {
        return Ok(from);
    }
    program::check_readable(from, LEGACY)?;
    // SAFETY: both have so many bytes at least.
    let (room, bytes) = unsafe { (vector_bytes(to), vector_bytes(from)) };
    if bytes > room {
        user_tier::bring_in_to_write(from, bytes);
        return Ok(from);
    }
    // SAFETY: the handler was given so many there; `to` has room for them.
    unsafe { copy(from, to, bytes) };
    Ok(to)
}

/// # Safety
/// As `copy_nonoverlapping`; the program may take memory of its own away, and then ends by that.
unsafe fn copy(from: usize, to: usize, bytes: usize) {
    let from = core::ptr::with_exposed_provenance::<u8>(from);
    let to = core::ptr::with_exposed_provenance_mut::<u8>(to);
    // SAFETY: forwarded.
    unsafe { core::ptr::copy_nonoverlapping(from, to, bytes) };
}

/// `sigaltstack`.
pub(crate) fn alternate(own: Option<&Stack>, rsp: usize, args: [usize; 6]) -> Result<usize> {
    let [new, old, ..] = args;
    let own = own.ok_or(Errno::ENOMEM)?;
    let given = own.given();
    if new != 0 {
        let wanted = program::read(new)?;
        // A child of `vfork` has another one than its parent, whose memory this is.
        if !start::is_known_visitor() {
            change(own, rsp, wanted)?;
        }
    }
    if old != 0 {
        let state = match given.bytes {
            0 => g::SS_DISABLE,
            _ if is_on(&given, rsp) => g::SS_ONSTACK,
            _ => 0,
        };
        let flags = state | given.flags & g::SS_AUTODISARM;
        program::write(old, &SignalStack { flags, ..given })?;
    }
    Ok(0)
}

/// Whether a thread is on its stack for signals. One that is disarmed when it is used is never in
/// use.
fn is_on(given: &SignalStack, rsp: usize) -> bool {
    !given.is_disarmed_when_used() && given.holds(rsp)
}

fn change(own: &Stack, rsp: usize, wanted: SignalStack) -> Result<()> {
    if is_on(&own.given(), rsp) {
        return Err(Errno::EPERM);
    }
    match wanted.flags & !g::SS_AUTODISARM {
        g::SS_DISABLE => own.give(SignalStack {
            flags: wanted.flags,
            ..SignalStack::NONE
        }),
        0 | g::SS_ONSTACK if wanted.bytes < g::MINSIGSTKSZ as usize => return Err(Errno::ENOMEM),
        0 | g::SS_ONSTACK => own.give(wanted),
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}
