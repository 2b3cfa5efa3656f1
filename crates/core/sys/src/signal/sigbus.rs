//! SIGBUS of an access, as x86-64 reports it.

use core::arch::naked_asm;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use linux_raw_sys::general as g;

use super::{Answer, BadAccess, set_default};
use crate::raw::{Errno, Result};
use crate::syscall;

/// `struct sigaction` as the kernel takes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// What is used of `siginfo_t`.
#[repr(C)]
struct Info {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    address: usize,
}

/// What is used of `ucontext_t`.
#[repr(C)]
struct Context {
    before: [u64; 21],
    /// Address of the instruction.
    instruction: u64,
    between_these: [u64; 2],
    /// Of the page fault: bit 0 the page is there, bit 1 a write.
    error: u64,
    between: [u64; 12],
    mask: u64,
}

const _: () = {
    assert!(core::mem::offset_of!(Info, address) == 16);
    assert!(core::mem::offset_of!(Context, instruction) == 168);
    assert!(core::mem::offset_of!(Context, error) == 192);
    assert!(core::mem::offset_of!(Context, mask) == 296);
};

const BUS_BIT: u64 = 1 << (g::SIGBUS - 1);

/// Who is asked, in this order, until somebody answers.
static ANSWERS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
/// The handler is installed, or about to be.
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// What was there before: handler, flags, mask.
static BEFORE: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Has `answer` asked about every SIGBUS of an access, with all signals blocked and on the stack
/// of the thread. What nobody answers goes to the action that was there before the first of them.
///
/// # Safety
/// `answer` must be sound wherever a thread may access memory that raises SIGBUS.
///
/// # Errors
/// As `sigaction(2)`; `EMFILE` when four answer already.
pub unsafe fn answer_sigbus(answer: Answer) -> Result<()> {
    let new = answer as usize;
    let is_taken = |slot: &AtomicUsize| {
        let stored = slot.compare_exchange(0, new, Ordering::Release, Ordering::Relaxed);
        stored.is_ok() || stored == Err(new)
    };
    if !ANSWERS.iter().any(is_taken) {
        return Err(Errno::EMFILE);
    }
    install()
}

fn install() -> Result<()> {
    if INSTALLED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let before = current()?;
    let words = [before.handler as u64, before.flags, before.mask];
    for (word, value) in BEFORE.iter().zip(words) {
        word.store(value, Ordering::Relaxed);
    }
    let action = Action {
        handler: on_sigbus as *const () as usize,
        flags: u64::from(g::SA_SIGINFO | g::SA_RESTORER | g::SA_RESTART),
        restorer: restorer as *const () as usize,
        mask: u64::MAX,
    };
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and the restorer returns.
    unsafe { syscall!(g::__NR_rt_sigaction, g::SIGBUS, &raw const action, 0, 8) }.map(drop)
}

/// True while the handler is in force: nobody has put another in its place.
pub fn is_answering_sigbus() -> bool {
    current().is_ok_and(|action| action.handler == on_sigbus as *const () as usize)
}

fn current() -> Result<Action> {
    let mut action = Action {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    // SAFETY: `action` is valid for a write of its size.
    unsafe { syscall!(g::__NR_rt_sigaction, g::SIGBUS, 0, &raw mut action, 8) }?;
    Ok(action)
}

/// Returns from a handler. Unwinders know this sequence.
#[unsafe(naked)]
extern "C" fn restorer() {
    naked_asm!("mov rax, 15", "syscall", "ud2")
}

extern "C" fn on_sigbus(signal: i32, info: *mut Info, context: *mut Context) {
    // SAFETY: Linux passes both; they live until the handler returns.
    let (seen, frame) = unsafe { (&*info, &mut *context) };
    // A memory error (BUS_MCEERR_AR) is nobody's to answer: the access would fail for ever.
    const BUS_ADRERR: i32 = 2;
    if seen.code == BUS_ADRERR {
        let access = BadAccess {
            address: seen.address,
            write: frame.error & 2 != 0,
            protection: frame.error & 1 != 0,
        };
        for slot in &ANSWERS {
            let answer = slot.load(Ordering::Acquire);
            if answer == 0 {
                break;
            }
            // SAFETY: `answer_sigbus` stores functions of this type, and nothing else.
            let answer = unsafe { core::mem::transmute::<usize, Answer>(answer) };
            if answer(access) {
                return;
            }
        }
    }
    if seen.code > 0 && ends_copy(frame) {
        return;
    }
    forward(signal, seen.code > 0, info, context);
}

/// True when SIGBUS of [`copy`] ends the copy and no thread: from now on, while nobody has another handler.
pub fn ends_copies() -> bool {
    install().is_ok() && is_answering_sigbus()
}

/// Copies, and says whether all of it was copied: SIGBUS ends it, if [`ends_copies`].
///
/// # Safety
/// Both sides are mapped, the one to be read, the other to be written; nothing may rely on what is at `to`.
pub unsafe fn copy(to: usize, from: usize, bytes: usize) -> bool {
    let in_words = (to | from | bytes).is_multiple_of(8);
    // SAFETY: the caller's.
    let left = unsafe {
        match in_words {
            true => copy_words(to, from, 0, bytes / 8),
            false => copy_bytes(to, from, 0, bytes),
        }
    };
    left == 0
}

/// Returns how many were not copied. The first instruction is the copy: its address says what SIGBUS ended.
#[unsafe(naked)]
unsafe extern "C" fn copy_words(to: usize, from: usize, unused: usize, count: usize) -> usize {
    naked_asm!("rep movsq", "mov rax, rcx", "ret")
}

/// As [`copy_words`].
#[unsafe(naked)]
unsafe extern "C" fn copy_bytes(to: usize, from: usize, unused: usize, count: usize) -> usize {
    naked_asm!("rep movsb", "mov rax, rcx", "ret")
}

/// Where a copy goes on that SIGBUS ended: it returns to who called it.
#[unsafe(naked)]
extern "C" fn copy_ended() {
    naked_asm!("mov rax, rcx", "ret")
}

fn ends_copy(frame: &mut Context) -> bool {
    let copies = [
        copy_words as *const () as u64,
        copy_bytes as *const () as u64,
    ];
    let is_copy = copies.contains(&frame.instruction);
    if is_copy {
        frame.instruction = copy_ended as *const () as u64;
    }
    is_copy
}

/// Does what was done about SIGBUS before.
fn forward(signal: i32, by_access: bool, info: *mut Info, context: *mut Context) {
    const DEFAULT: u64 = 0;
    const IGNORE: u64 = 1;
    let [handler, flags, mask] = [0, 1, 2].map(|i| BEFORE[i].load(Ordering::Relaxed));
    match handler {
        IGNORE if !by_access => return,
        DEFAULT | IGNORE => {
            // The access is tried again and ends the process; a signal that was sent is sent again.
            let _ = set_default(g::SIGBUS);
            if !by_access {
                let (process, thread) = (crate::process::id(), crate::process::thread_id());
                // SAFETY: takes no pointer.
                let _ = unsafe { syscall!(g::__NR_tgkill, process, thread, signal) };
            }
            return;
        }
        _ => {}
    }
    if flags & u64::from(g::SA_RESETHAND) != 0 {
        BEFORE[0].store(DEFAULT, Ordering::Relaxed);
    }
    let own = if flags & u64::from(g::SA_NODEFER) != 0 {
        0
    } else {
        BUS_BIT
    };
    // SAFETY: Linux passes the context; it lives until the handler returns.
    let blocked = unsafe { &*context }.mask | mask | own;
    // SAFETY: the set is on this stack; the handler expects it in force, and returning from ours
    // puts the thread's own back.
    let _ = unsafe {
        syscall!(
            g::__NR_rt_sigprocmask,
            g::SIG_SETMASK,
            &raw const blocked,
            0,
            8
        )
    };
    type Handler = extern "C" fn(i32, *mut Info, *mut Context);
    // SAFETY: the program installed it for this signal; one that takes only the number ignores the
    // rest.
    let handler = unsafe { core::mem::transmute::<usize, Handler>(handler as usize) };
    handler(signal, info, context);
}
