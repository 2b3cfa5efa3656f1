//! SIGSYS: a call that matters was made. Carry it out and put its result where the program looks.

use core::arch::asm;

use farpage_sys::file::Fd;
use farpage_sys::linux::general as g;
use farpage_sys::seccomp::{GATE_ADDRESS, GATE_REISSUE, REISSUE_SKIP, TRAP_MARK};
use farpage_sys::{Errno, Result, raw};

use crate::frame::{Frame, Info, without_sigsys};
use crate::{exec, memory, process, signals, stacks, user_tier};

/// What becomes of a trapped call.
pub(crate) enum Outcome {
    /// It was made; this is what it returned.
    Done(Result<usize>),
    /// The program makes it itself, from the gate, with the arguments now in the frame.
    Reissue,
}

/// The handler: moves to a stack of ours and goes on there.
pub(crate) extern "C" fn on_sigsys(_: i32, info: *mut Info, frame: *mut Frame) {
    let Some(stack) = stacks::take() else {
        return handle(info, frame);
    };
    // SAFETY: `stack` is the top of a fresh stack; `r12` survives the call and brings us back.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {stack}",
            "call {handle}",
            "mov rsp, r12",
            stack = in(reg) stack,
            handle = sym handle,
            in("rdi") info,
            in("rsi") frame,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    stacks::put(stack);
}

extern "C" fn handle(info: *mut Info, frame: *mut Frame) {
    // SAFETY: Linux passes both; they live until the handler returns.
    let (seen, context) = unsafe { (&*info, &mut *frame) };
    const SYS_SECCOMP: i32 = 1;
    if seen.code != SYS_SECCOMP || seen.errno != i32::from(TRAP_MARK) {
        return signals::forward(info, frame);
    }
    let number = seen.number;
    // SAFETY: the program made this call.
    match unsafe { call(number, context) } {
        Outcome::Done(result) => {
            context.rax = match result {
                Ok(value) => value,
                Err(Errno(number)) => (-i64::from(number)) as usize,
            };
        }
        Outcome::Reissue => {
            context.rax = number as usize;
            context.rsp -= usize::from(REISSUE_SKIP) + 8;
            // SAFETY: below the red zone of the program's own stack.
            unsafe { (context.rsp as *mut usize).write(context.rip) };
            context.rip = GATE_ADDRESS + GATE_REISSUE;
        }
    }
}

/// Where data for a call that is made again can lie: 64 bytes below the red zone.
pub(crate) fn reissue_data(frame: &Frame) -> usize {
    (frame.rsp - usize::from(REISSUE_SKIP)) & !7
}

unsafe fn call(number: u32, frame: &mut Frame) -> Outcome {
    let args = frame.arguments();
    let [a, b, c, d, e, f] = args;
    // SAFETY: each is the call that the program made.
    Outcome::Done(unsafe {
        match number {
            g::__NR_mmap => memory::mmap(a, b, c as u32, d as u32, Fd(e as i32), f as u64),
            g::__NR_munmap => memory::munmap(a, b),
            g::__NR_mremap => memory::mremap(a, b, c, d as u32, e),
            g::__NR_madvise => memory::madvise(a, b, c as u32),
            g::__NR_mprotect | g::__NR_pkey_mprotect => memory::mprotect(number, args),
            g::__NR_mlock => memory::mlock(a, b, 0),
            g::__NR_mlock2 => memory::mlock(a, b, c as u32),
            g::__NR_munlock => memory::munlock(a, b),
            g::__NR_mlockall => memory::mlockall(a as u32),
            g::__NR_munlockall => memory::munlockall(),
            g::__NR_brk => Ok(memory::brk(a)),
            g::__NR_fork => process::fork(frame, [g::SIGCHLD as usize, 0, 0, 0, 0, 0]),
            g::__NR_clone => process::fork(frame, args),
            g::__NR_execve => return exec::execve(frame),
            g::__NR_execveat => return exec::execveat(frame),
            g::__NR_rt_sigaction => signals::action(args),
            g::__NR_rt_sigprocmask => signals::mask(frame, args),
            g::__NR_rt_sigsuspend => return with_mask(frame, |frame| &mut frame.rdi),
            g::__NR_ppoll => return with_mask(frame, |frame| &mut frame.r10),
            g::__NR_epoll_pwait | g::__NR_epoll_pwait2 => {
                return with_mask(frame, |frame| &mut frame.r8);
            }
            g::__NR_pselect6 => return pselect(frame),
            g::__NR_seccomp => process::seccomp(args),
            g::__NR_prctl => process::prctl(args),
            g::__NR_close_range => process::close_range(a, b, c),
            _ => return user_tier::call(number, frame),
        }
    })
}

/// A call that waits with another signal mask: the program makes it itself, with a mask that
/// leaves SIGSYS alone.
unsafe fn with_mask(frame: &mut Frame, pointer: fn(&mut Frame) -> &mut usize) -> Outcome {
    let data = reissue_data(frame);
    let at = pointer(frame);
    if *at != 0 {
        // SAFETY: the program's pointer.
        let mask = unsafe { (*at as *const u64).read_unaligned() };
        *at = data;
        // SAFETY: below the red zone of the program's own stack.
        unsafe { (data as *mut u64).write(without_sigsys(mask)) };
    }
    // SAFETY: the program made this call.
    unsafe { user_tier::prepare_reissue(frame) };
    Outcome::Reissue
}

/// `pselect6` takes its mask through one more pointer.
unsafe fn pselect(frame: &mut Frame) -> Outcome {
    let data = reissue_data(frame);
    if frame.r9 != 0 {
        // SAFETY: the program's pointer to a pointer and a size.
        let [mask, size] = unsafe { (frame.r9 as *const [usize; 2]).read_unaligned() };
        if mask != 0 {
            // SAFETY: the program's pointer.
            let mask = unsafe { (mask as *const u64).read_unaligned() };
            // SAFETY: below the red zone of the program's own stack: 24 of its 64 bytes.
            unsafe {
                (data as *mut [usize; 2]).write([data + 16, size]);
                ((data + 16) as *mut u64).write(without_sigsys(mask));
            }
            frame.r9 = data;
        }
    }
    // SAFETY: the program made this call.
    unsafe { user_tier::prepare_reissue(frame) };
    Outcome::Reissue
}

/// Makes a call as it is, past the filter.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn pass(number: u32, args: [usize; 6]) -> Result<usize> {
    // SAFETY: forwarded.
    unsafe { raw::syscall(number, args) }
}
