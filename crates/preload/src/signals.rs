//! The program's signals: SIGSYS stays ours and unblocked behind its back.

use core::arch::naked_asm;
use core::sync::atomic::{AtomicU64, Ordering};

use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, process, syscall};

use crate::frame::{Frame, Info, without_sigsys};
use crate::{program, start};

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

/// What the program installed for SIGSYS: handler, flags, restorer, mask.
static PROGRAM: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

#[unsafe(naked)]
extern "C" fn restorer() {
    // rt_sigreturn
    naked_asm!("mov eax, 15", "syscall", "ud2")
}

/// Installs `handler` for SIGSYS, with every signal blocked while it runs.
pub(crate) fn install(handler: extern "C" fn(i32, *mut Info, *mut Frame)) -> Result<()> {
    let action = Action {
        handler: handler as *const () as usize,
        flags: u64::from(g::SA_SIGINFO | g::SA_ONSTACK | g::SA_RESTART | 0x0400_0000),
        restorer: restorer as *const () as usize,
        mask: !0,
    };
    // SAFETY: `action` is what the call expects; the handler keeps everything as it was.
    unsafe { syscall!(g::__NR_rt_sigaction, g::SIGSYS, &raw const action, 0, 8) }.map(drop)
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
    let mut before = Action::default();
    if signal == g::SIGSYS as usize {
        before = program_action();
        // A child of `vfork` has signal handlers, but no memory, of its own.
        if let Some(wanted) = wanted
            && !start::is_visitor()
        {
            for (word, value) in PROGRAM.iter().zip([
                wanted.handler as u64,
                wanted.flags,
                wanted.restorer as u64,
                wanted.mask,
            ]) {
                word.store(value, Ordering::Relaxed);
            }
        }
    } else {
        let stripped = wanted.map(|w| Action {
            mask: without_sigsys(w.mask),
            ..w
        });
        let new = stripped
            .as_ref()
            .map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: both are valid for the call.
        unsafe { syscall!(g::__NR_rt_sigaction, signal, new, &raw mut before, 8) }?;
    }
    if old != 0 {
        program::write(old, &before)?;
    }
    Ok(0)
}

fn program_action() -> Action {
    let [handler, flags, restorer, mask] =
        [0, 1, 2, 3].map(|i: usize| PROGRAM[i].load(Ordering::Relaxed));
    Action {
        handler: handler as usize,
        flags,
        restorer: restorer as usize,
        mask,
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
pub(crate) fn forward(by_filter: bool, frame: &mut Frame) -> usize {
    let program = program_action();
    match program.handler {
        IGNORE if !by_filter => 0,
        DEFAULT | IGNORE => die_by(g::SIGSYS),
        handler => {
            if program.flags & u64::from(g::SA_RESETHAND) != 0 {
                PROGRAM[0].store(DEFAULT as u64, Ordering::Relaxed);
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
