//! The program's signals: SIGSYS stays ours and unblocked behind its back. In the user-mode-only
//! tier the agent gets all others first as well ([`delivery`]).

use core::sync::atomic::{AtomicU64, Ordering};

use farpage_sys::linux::general as g;
use farpage_sys::seccomp::{GATE_ADDRESS, GATE_RETURN};
use farpage_sys::{Errno, Result, process, syscall};

use crate::frame::{Frame, Info, without_sigsys};
use crate::stacks::Stack;
use crate::{delivery, memory, program, start, trap};

/// `struct sigaction` as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Action {
    pub(crate) handler: usize,
    pub(crate) flags: u64,
    pub(crate) restorer: usize,
    pub(crate) mask: u64,
}

const DEFAULT: usize = 0;
const IGNORE: usize = 1;

/// Signals are counted from 1.
const SIGNALS: usize = 65;

/// What the program installed for signals that the agent gets first: handler, flags, restorer,
/// mask.
static PROGRAM: [[AtomicU64; 4]; SIGNALS] = [const { [const { AtomicU64::new(0) }; 4] }; SIGNALS];

/// Installs the agent's handler for SIGSYS.
pub(crate) fn install() -> Result<()> {
    let action = through_agent(u64::from(g::SA_RESTART));
    // SAFETY: `action` is what the call expects; the handler keeps everything as it was.
    unsafe { syscall!(g::__NR_rt_sigaction, g::SIGSYS, &raw const action, 0, 8) }.map(drop)
}

/// How Linux is told to give the agent a signal first: with every other one blocked meanwhile.
fn through_agent(flags: u64) -> Action {
    Action {
        handler: trap::on_signal as *const () as usize,
        flags: flags | u64::from(g::SA_SIGINFO | g::SA_ONSTACK | g::SA_RESTORER),
        restorer: GATE_ADDRESS + GATE_RETURN,
        mask: !0,
    }
}

/// `rt_sigaction`.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn action(args: [usize; 6]) -> Result<usize> {
    let [signal, new, old, size, ..] = args;
    if size != 8 {
        return Err(Errno::EINVAL);
    }
    let wanted = if new == 0 {
        None
    } else {
        Some(program::read::<Action>(new)?)
    };
    let mut before = program_action(signal);
    if signal == g::SIGSYS as usize {
        // A child of `vfork` has signal handlers, but no memory, of its own.
        if let Some(wanted) = wanted
            && !start::is_visitor()
        {
            note(signal, &wanted);
        }
    } else {
        let told = wanted.map(|wanted| told(signal, wanted));
        let new = told.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        let mut known = Action::default();
        // SAFETY: both are valid for the call.
        unsafe { syscall!(g::__NR_rt_sigaction, signal, new, &raw mut known, 8) }?;
        let agent = through_agent(0);
        if known.handler == agent.handler {
            // Linux has taken out what it does not know.
            before.flags &= known.flags & !agent.flags | agent.flags;
        } else {
            before = known;
        }
    }
    if old != 0 {
        program::write(old, &before)?;
    }
    Ok(0)
}

/// What Linux is told of an action that the program wants.
fn told(signal: usize, wanted: Action) -> Action {
    let wanted = Action {
        mask: without_sigsys(wanted.mask),
        ..wanted
    };
    let is_handler = wanted.handler != DEFAULT && wanted.handler != IGNORE;
    if !is_handler || !memory::is_user_tier() {
        return wanted;
    }
    if start::is_known_visitor() {
        // As above, it must not change what is noted here. Its handlers run where Linux finds
        // memory.
        let flags = wanted.flags | u64::from(g::SA_ONSTACK);
        return Action { flags, ..wanted };
    }
    note(signal, &wanted);
    through_agent(wanted.flags)
}

/// What the program installed last of handlers for a signal that the agent gets first.
pub(crate) fn program_action(signal: usize) -> Action {
    let Some(noted) = PROGRAM.get(signal) else {
        return Action::default();
    };
    let [handler, flags, restorer, mask] =
        [0, 1, 2, 3].map(|i: usize| noted[i].load(Ordering::Relaxed));
    Action {
        handler: handler as usize,
        flags,
        restorer: restorer as usize,
        mask,
    }
}

/// True when the program has a handler after which calls are not to go on.
pub(crate) fn interrupt_calls() -> bool {
    (1..SIGNALS).filter_map(set_action).any(|known| {
        let has_handler = known.handler != DEFAULT && known.handler != IGNORE;
        has_handler && known.flags & u64::from(g::SA_RESTART) == 0
    })
}

/// What is set for a signal.
fn set_action(signal: usize) -> Option<Action> {
    let mut known = Action::default();
    // SAFETY: only reads what is set, into a structure of that size.
    let asked = unsafe { syscall!(g::__NR_rt_sigaction, signal, 0, &raw mut known, 8) };
    asked.ok().map(|_| known)
}

/// True when a signal waits that does something to the program, whose own `mask` does not hold it
/// back.
pub(crate) fn have_come(mask: u64) -> bool {
    const IGNORED: [u32; 4] = [g::SIGCHLD, g::SIGCONT, g::SIGURG, g::SIGWINCH];
    let mut waiting = 0u64;
    // SAFETY: writes eight bytes.
    let asked = unsafe { syscall!(g::__NR_rt_sigpending, &raw mut waiting, 8) };
    let waiting = waiting & !mask;
    asked.is_ok()
        && (1..SIGNALS).any(|signal| {
            let does_something = || match set_action(signal).map(|known| known.handler) {
                Some(DEFAULT) => !IGNORED.contains(&(signal as u32)),
                Some(IGNORE) | None => false,
                Some(_) => true,
            };
            waiting & 1 << (signal - 1) != 0 && does_something()
        })
}

fn note(signal: usize, action: &Action) {
    let words = [
        action.handler as u64,
        action.flags,
        action.restorer as u64,
        action.mask,
    ];
    for (to, word) in PROGRAM.get(signal).into_iter().flatten().zip(words) {
        to.store(word, Ordering::Relaxed);
    }
}

/// `rt_sigprocmask`: takes effect when the handler returns.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn mask(frame: &mut Frame, args: [usize; 6]) -> Result<usize> {
    let [how, set, old, size, ..] = args;
    if size != 8 {
        return Err(Errno::EINVAL);
    }
    let before = frame.mask;
    let mut after = before;
    if set != 0 {
        let set: u64 = program::read(set)?;
        after = match how as u32 {
            g::SIG_BLOCK => before | set,
            g::SIG_UNBLOCK => before & !set,
            g::SIG_SETMASK => set,
            _ => return Err(Errno::EINVAL),
        };
    }
    if old != 0 {
        program::write(old, &before)?;
    }
    frame.mask = without_sigsys(after);
    Ok(0)
}

/// A SIGSYS that is not ours: sent by somebody, or raised by a filter of the program's own.
/// Returns the program's handler that is to have it, or 0.
pub(crate) fn forward(info: &Info, frame: &mut Frame, own: Option<&Stack>) -> usize {
    let program = program_action(g::SIGSYS as usize);
    match program.handler {
        IGNORE if !info.is_by_filter() => 0,
        DEFAULT | IGNORE => die_by(g::SIGSYS),
        handler => {
            if program.flags & u64::from(g::SA_RESETHAND) != 0 {
                PROGRAM[g::SIGSYS as usize][0].store(DEFAULT as u64, Ordering::Relaxed);
            }
            if memory::is_user_tier() {
                delivery::deliver(info, &program, frame, own);
                return 0;
            }
            let (given, here) = (frame.stack, core::ptr::from_ref(frame).addr());
            let wants_it = program.flags & u64::from(g::SA_ONSTACK) != 0;
            if !wants_it && given.holds(here) && !given.holds(frame.rsp) {
                // Ours runs on the thread's stack for signals, where its own handler may have no
                // room.
                delivery::deliver_in_first_tier(info, &program, frame);
                return 0;
            }
            process::set_signal_mask(without_sigsys(frame.mask | program.mask));
            handler
        }
    }
}

/// Ends the process as `signal` does by default.
pub(crate) fn die_by(signal: u32) -> ! {
    let default = Action::default();
    // SAFETY: `default` is what the call expects; the process is about to end.
    let _ = unsafe { syscall!(g::__NR_rt_sigaction, signal, &raw const default, 0, 8) };
    let _ = process::kill(process::id(), signal);
    process::set_signal_mask(!(1 << (signal - 1)));
    process::die()
}
