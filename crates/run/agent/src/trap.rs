//! SIGSYS: a call that matters was made. Carry it out and put its result where the program looks.

use alloc::vec::Vec;
use core::arch::naked_asm;

use farpage_sys::file::Fd;
use farpage_sys::linux::general as g;
use farpage_sys::process::PR_SET_MEMORY_MERGE;
use farpage_sys::seccomp::{
    GATE_ADDRESS, GATE_AGAIN, GATE_REISSUE, GATE_SLEEP, GATE_THREAD, GATE_WAIT, REISSUE_SKIP,
    SLEEP_WORDS, SLEPT, TRAP_MARK, WAIT_WORDS,
};
use farpage_sys::{Errno, Result};

use crate::frame::{Frame, Info, without_sigsys};
use crate::stacks::{self, Stack};
use crate::transfer::IOV_MAX;
use crate::{
    delivery, drivers, exec, machine, maps, memory, namespaces, own_threads, proc_mem, process,
    program, sandbox, segments, sending, shm, signals, threads, tracing, user_tier,
};

/// What becomes of a trapped call.
pub(crate) enum Outcome {
    /// It was made; this is what it returned.
    Done(Result<usize>),
    /// The program makes it itself, from the gate, with the arguments now in the frame.
    Reissue,
    /// It makes the call itself, and again for as long as Linux says that the memory is not there.
    Again,
    /// It makes this call instead.
    ReissueAs(u32),
    /// It waits until a message can be received from this socket, and then makes it again, though
    /// it received so many.
    WaitFor(usize, u16),
    /// It waits in this call, which leaves the first argument where it is, and then makes it again.
    WaitIn(u32, [usize; 3]),
    /// It sleeps, and then makes it again, however that ended ([`Frame::slept`]).
    Sleep(Sleep),
    /// It makes the call, which makes a thread, whose stack begins at the second argument.
    MakeThread,
    /// It goes on with the registers that are now in the frame.
    Resume,
}

/// How long a call sleeps.
pub(crate) enum Sleep {
    /// Until a semaphore of Linux is not 0, which is then 0 again.
    Semaphore {
        set: u32,
        number: u16,
        /// For how many nanoseconds at most.
        ns_max: Option<u64>,
    },
    /// Until the descriptor has such events for `poll`.
    Ready(Fd, u16),
}

/// The handler: moves to a stack of ours and goes on there. What [`handle`] returns is 0 or the
/// program's own handler for SIGSYS, which then takes the signal over as if it had come to it.
#[unsafe(naked)]
pub(crate) extern "C" fn on_signal(_: i32, _: *mut Info, _: *mut Frame) {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "mov rbx, rsi",
        "mov rbp, rdx",
        "mov rdi, rsp",
        "mov rsi, rdx",
        "call {take}",
        "mov r12, rax",
        "mov rdi, rbx",
        "mov rsi, rbp",
        "mov rdx, rax",
        "mov rcx, rsp",
        "test rax, rax",
        "cmovz rax, rsp",
        "mov rsp, rax",
        "sub rsp, 16",
        "mov [rsp], rcx",
        "call {handle}",
        "mov rsp, [rsp]",
        "mov rdi, r12",
        "mov r12, rax",
        "call {release}",
        "mov rax, r12",
        "mov rsi, rbx",
        "mov rdx, rbp",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "test rax, rax",
        "jnz 2f",
        "ret",
        "2:",
        "mov edi, {sigsys}",
        "jmp rax",
        take = sym take,
        handle = sym handle,
        release = sym release,
        sigsys = const g::SIGSYS,
    )
}

/// A stack to move to, unless the handler runs on one already that its thread keeps.
extern "C" fn take(hint: usize, frame: &Frame) -> Option<&'static Stack> {
    match stacks::kept(frame) {
        Some(_) => None,
        None => stacks::take(hint),
    }
}

extern "C" fn release(stack: Option<&Stack>) {
    if let Some(stack) = stack {
        stack.release();
    }
}

extern "C" fn handle(info: *mut Info, frame: *mut Frame, taken: Option<&Stack>) -> usize {
    // SAFETY: Linux passes both; they live until the handler returns.
    let (seen, context) = unsafe { (&*info, &mut *frame) };
    if let Some(stack) = taken {
        stacks::keep(context, stack);
    }
    answer(seen, context, taken.or_else(|| stacks::kept(context)))
}

fn answer(seen: &Info, context: &mut Frame, own: Option<&Stack>) -> usize {
    if seen.signo != g::SIGSYS as i32 {
        let action = signals::program_action(seen.signo as usize);
        delivery::deliver(seen, &action, context, own);
        return 0;
    }
    if !seen.is_by_filter() && own_threads::obey(seen, context) {
        return 0;
    }
    if !seen.is_by_filter() || seen.errno != i32::from(TRAP_MARK) {
        return signals::forward(seen, context, own);
    }
    if let Some(stack) = own {
        exec::clean(stack);
    }
    let number = seen.number;
    // SAFETY: the program made this call.
    match unsafe { call(number, context, own) } {
        Outcome::Done(result) => context.set_result(result),
        Outcome::Reissue => reissue(number, context),
        Outcome::Again => again(number, context),
        Outcome::ReissueAs(number) => reissue(number, context),
        Outcome::WaitFor(socket, received) => {
            shm::note_received(context, received);
            wait(number, context, received, |byte| {
                shm::wait_for(socket, byte)
            });
        }
        Outcome::WaitIn(waits, [a, b, c]) => {
            wait(number, context, 0, |_| (waits, [a, b, c, 0, 0, 0]));
        }
        Outcome::Sleep(until) => sleep(number, context, &until),
        Outcome::MakeThread => {
            reissue(number, context);
            context.rip = GATE_ADDRESS + GATE_THREAD;
        }
        Outcome::Resume => {}
    }
    0
}

/// Points the program at the gate's stub, which comes back behind the call.
fn reissue(number: u32, context: &mut Frame) {
    context.make_room();
    context.rax = number as usize;
    context.rsp -= usize::from(REISSUE_SKIP) + 8;
    let at = core::ptr::with_exposed_provenance_mut::<usize>(context.rsp);
    // SAFETY: below the red zone of the program's own stack.
    unsafe { at.write(context.rip) };
    context.rip = GATE_ADDRESS + GATE_REISSUE;
}

/// Points the program at the stub that comes back to the call when Linux does not find the memory.
fn again(number: u32, context: &mut Frame) {
    reissue(number, context);
    context.rip = GATE_ADDRESS + GATE_AGAIN;
    put(context.rsp + 8, number as usize);
}

/// Points the program at the gate's other stub: it waits in another call, and comes back to this one.
/// `done`: what of this one is done; `waits`: that call, which may have a byte of the program's stack.
fn wait(
    number: u32,
    context: &mut Frame,
    done: u16,
    waits: impl FnOnce(usize) -> (u32, [usize; 6]),
) {
    let saved: [usize; WAIT_WORDS + 1] = [
        number as usize,
        context.rsi,
        context.rdx,
        context.r10,
        context.r8,
        context.r9,
        usize::from(done) << 32,
    ];
    reissue(number, context);
    context.rip = GATE_ADDRESS + GATE_WAIT;
    let at = put(context.rsp + 8, saved);
    let (waits_in, [a, b, c, d, e, f]) = waits(at + WAIT_WORDS * size_of::<usize>());
    context.rax = waits_in as usize;
    (context.rdi, context.rsi, context.rdx) = (a, b, c);
    (context.r10, context.r8, context.r9) = (d, e, f);
}

/// Points the program at the stub in which it sleeps.
fn sleep(number: u32, context: &mut Frame, until: &Sleep) {
    const SECOND: u64 = 1_000_000_000;
    const DOWN: u16 = u16::MAX;
    let saved: [usize; SLEEP_WORDS] = [
        number as usize | (SLEPT as usize) << 32,
        context.rdi,
        context.rsi,
        context.rdx,
        context.r10,
    ];
    reissue(number, context);
    context.rip = GATE_ADDRESS + GATE_SLEEP;
    let at = put(context.rsp + 8, saved);
    let at = at + size_of_val(&saved);
    match *until {
        Sleep::Semaphore {
            set,
            number,
            ns_max,
        } => {
            let step = put(at, [number, DOWN, 0]);
            let time = ns_max.map(|ns| [ns / SECOND, ns % SECOND]);
            let time = time.map_or(0, |time| put(step + size_of::<u64>(), time));
            context.rax = g::__NR_semtimedop as usize;
            (context.rdi, context.rsi, context.rdx) = (set as usize, step, 1);
            context.r10 = time;
        }
        Sleep::Ready(fd, events) => {
            let asked = put(at, [fd.0 as u32, u32::from(events)]);
            context.rax = g::__NR_poll as usize;
            (context.rdi, context.rsi, context.rdx) = (asked, 1, usize::MAX);
        }
    }
}

/// Where data for a call that is made again can lie: 64 bytes below the red zone.
fn reissue_data(frame: &mut Frame) -> usize {
    frame.make_room();
    frame.rsp.next_multiple_of(8) - usize::from(REISSUE_SKIP)
}

unsafe fn call(number: u32, frame: &mut Frame, own: Option<&Stack>) -> Outcome {
    // SAFETY: forwarded.
    if let Some(outcome) = unsafe { of_files(number, frame) } {
        return outcome;
    }
    let args = frame.arguments();
    // SAFETY: the call that the program made.
    if let Some(done) = unsafe { prepared(number, args) } {
        return Outcome::Done(done);
    }
    let [a, b, c, d, e, f] = args;
    // SAFETY: each is the call that the program made.
    Outcome::Done(unsafe {
        match number {
            g::__NR_mmap => memory::mmap(a, b, c as u32, d as u32, Fd(e as i32), f as u64)
                .inspect(|at| maps::forget(*at, b)),
            g::__NR_munmap => memory::munmap(a, b).inspect(|_| forget(a, b)),
            g::__NR_mremap => {
                memory::mremap(a, b, c, d as u32, e).inspect(|at| maps::forget(*at, c))
            }
            g::__NR_madvise => memory::madvise(a, b, c as u32),
            g::__NR_process_madvise if memory::may_advise(a) => advise_each(frame, own, args),
            g::__NR_shmat => segments::shmat(args),
            g::__NR_mprotect | g::__NR_pkey_mprotect => memory::mprotect(number, args),
            g::__NR_mlock | g::__NR_mlock2 => memory::mlock(number, args),
            g::__NR_munlock => memory::munlock(args),
            g::__NR_mlockall => memory::mlockall(args),
            g::__NR_munlockall => memory::munlockall(args),
            g::__NR_brk => Ok(memory::brk(a)),
            g::__NR_clone if a & g::CLONE_VM as usize != 0 => return threads::make(frame),
            g::__NR_exit => return threads::end(frame),
            g::__NR_fork => process::fork(frame, own, [g::SIGCHLD as usize, 0, 0, 0, 0, 0]),
            g::__NR_clone => process::fork(frame, own, args),
            g::__NR_execve => {
                let dir = g::AT_FDCWD;
                exec::execute(
                    frame,
                    own,
                    &exec::Call {
                        dir,
                        path: a,
                        argv: b,
                        envp: c,
                        flags: 0,
                    },
                )
            }
            g::__NR_execveat => {
                let dir = a as i32;
                exec::execute(
                    frame,
                    own,
                    &exec::Call {
                        dir,
                        path: b,
                        argv: c,
                        envp: d,
                        flags: e,
                    },
                )
            }
            g::__NR_rt_sigaction => signals::action(args),
            g::__NR_rt_sigprocmask => signals::mask(frame, args),
            g::__NR_rt_sigreturn => return delivery::resume(frame, own),
            g::__NR_sigaltstack if memory::is_user_tier() => {
                delivery::alternate(own, frame.rsp, args)
            }
            g::__NR_rt_sigsuspend => return with_mask(number, frame, |frame| &mut frame.rdi),
            g::__NR_ppoll => return with_mask(number, frame, |frame| &mut frame.r10),
            g::__NR_epoll_pwait | g::__NR_epoll_pwait2 => {
                return with_mask(number, frame, |frame| &mut frame.r8);
            }
            g::__NR_pselect6 => return pselect(number, frame),
            g::__NR_close_range => process::close_range(a, b, c),
            _ if memory::is_user_tier() => return user_tier::call(number, frame),
            g::__NR_set_robust_list => {
                user_tier::keep(a, b);
                return Outcome::Reissue;
            }
            // A mapped file or shared memory could have been meant.
            _ => return Outcome::Reissue,
        }
    })
}

/// Where addresses of programs end.
const USER_END: usize = 0x7fff_ffff_f000;

/// `process_madvise` on this process: as `madvise` of each part. Returns how many bytes were advised before one failed.
fn advise_each(frame: &mut Frame, own: Option<&Stack>, args: [usize; 6]) -> Result<usize> {
    let [_, vectors, count, advice, flags, _] = args;
    if flags != 0 || count > IOV_MAX {
        return Err(Errno::EINVAL);
    }
    let parts = (0..count).map(|part| {
        let at = vectors + part * size_of::<[usize; 2]>();
        program::read::<[usize; 2]>(at)
    });
    let parts: Vec<[usize; 2]> = parts.collect::<Result<_>>()?;
    // Linux looks at all of them before it does anything.
    if parts.iter().any(|[_, bytes]| *bytes > isize::MAX as usize) {
        return Err(Errno::EINVAL);
    }
    let is_user =
        |&[at, bytes]: &[usize; 2]| at.checked_add(bytes).is_some_and(|end| end <= USER_END);
    if !parts.iter().all(is_user) {
        return Err(Errno::EFAULT);
    }
    let (given, mut advised) = (frame.arguments(), 0);
    for [at, bytes] in parts {
        frame.set_arguments([at, bytes, advice, 0, 0, 0]);
        // SAFETY: what the program's own call asks for.
        let done = match unsafe { call(g::__NR_madvise, frame, own) } {
            Outcome::Done(done) => done,
            // SAFETY: as above.
            _ => unsafe { pass(g::__NR_madvise, frame.arguments()) },
        };
        frame.set_arguments(given);
        match done {
            Ok(_) => advised += bytes,
            Err(errno) if advised == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(advised)
}

/// A call of which the agent makes only some requests. For the others it brings in what they need.
///
/// # Safety
/// As the call that the program made.
unsafe fn prepared(number: u32, args: [usize; 6]) -> Option<Result<usize>> {
    // SAFETY: forwarded.
    unsafe {
        match number {
            g::__NR_seccomp => sandbox::seccomp(args),
            // See `process::never_merge`.
            g::__NR_prctl if args[0] as u32 == PR_SET_MEMORY_MERGE && args[2..5] == [0; 3] => {
                Some(Ok(0))
            }
            g::__NR_prctl => sandbox::prctl(args),
            g::__NR_ioctl | g::__NR_setsockopt => drivers::call(number, args),
            g::__NR_futex => {
                drivers::before_futex(args);
                None
            }
            g::__NR_ptrace => tracing::call(args),
            g::__NR_unshare => namespaces::unshare(args),
            g::__NR_setns => {
                namespaces::before_setns(args);
                None
            }
            g::__NR_setrlimit => {
                memory::before_limit(args[0], args[1]);
                None
            }
            g::__NR_prlimit64 => {
                memory::before_limit(args[1], args[2]);
                None
            }
            g::__NR_chroot | g::__NR_pivot_root | g::__NR_landlock_restrict_self => {
                memory::proc_is_lost();
                None
            }
            _ => machine::call(number, args).or_else(|| proc_mem::call(number, args)),
        }
    }
}

/// A call that concerns mapped files or shared memory. Of others shared memory is told what they may
/// do to it.
///
/// # Safety
/// As the call that the program made.
unsafe fn of_files(number: u32, frame: &mut Frame) -> Option<Outcome> {
    let sent = sending::call(number, frame);
    // SAFETY: both forwarded.
    let others = || unsafe { maps::call(number, frame).or_else(|| shm::call(number, frame)) };
    let done = sent.or_else(others);
    if done.is_none() {
        shm::before(number, frame.arguments());
    }
    done
}

/// The program has unmapped a range.
fn forget(at: usize, bytes: usize) {
    maps::forget(at, bytes);
    shm::after_unmap(at, bytes);
}

/// A call that waits with another signal mask: the program makes it itself, with a mask that
/// leaves SIGSYS alone.
fn with_mask(number: u32, frame: &mut Frame, pointer: fn(&mut Frame) -> &mut usize) -> Outcome {
    let data = reissue_data(frame);
    let at = pointer(frame);
    if *at != 0 {
        match program::read::<u64>(*at) {
            Ok(mask) => *at = put(data, without_sigsys(mask)),
            Err(errno) => return Outcome::Done(Err(errno)),
        }
    }
    user_tier::prepare(number, frame.arguments());
    Outcome::Reissue
}

/// `pselect6` takes its mask through one more pointer.
fn pselect(number: u32, frame: &mut Frame) -> Outcome {
    let data = reissue_data(frame);
    match pselect_mask(frame.r9) {
        Ok(Some((mask, size))) => {
            let mask = put(data + 16, without_sigsys(mask));
            frame.r9 = put(data, [mask, size]);
        }
        Ok(None) => {}
        Err(errno) => return Outcome::Done(Err(errno)),
    }
    user_tier::prepare(number, frame.arguments());
    Outcome::Reissue
}

fn pselect_mask(at: usize) -> Result<Option<(u64, usize)>> {
    if at == 0 {
        return Ok(None);
    }
    match program::read::<[usize; 2]>(at)? {
        [0, _] => Ok(None),
        [mask, size] => Ok(Some((program::read(mask)?, size))),
    }
}

/// Writes to the place that [`reissue_data`] gave; returns the address.
fn put<T>(at: usize, value: T) -> usize {
    let to = core::ptr::with_exposed_provenance_mut::<T>(at);
    // SAFETY: below the red zone of the program's own stack, inside the stub's 64 bytes.
    unsafe { to.write_unaligned(value) };
    at
}

/// Makes a call as it is, past the filter.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn pass(number: u32, args: [usize; 6]) -> Result<usize> {
    // SAFETY: forwarded.
    unsafe { farpage_sys::raw::syscall(number, args) }
}
