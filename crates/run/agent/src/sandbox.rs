//! Programs that forbid themselves system calls.
//!
//! A filter of the program's own applies to what the agent does in the program's threads as well.
//! So the agent does little there once there is one, and what it cannot do without, returning from
//! its signal handler, is allowed in front of the program's filter. The agent's own threads are
//! not subject to it: the first is made before, it makes the others, and
//! `SECCOMP_FILTER_FLAG_TSYNC` is kept from them.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use farpage_object::fds;
use farpage_sys::linux::general as g;
use farpage_sys::linux::ptrace as p;
use farpage_sys::seccomp::Instruction;
use farpage_sys::seccomp::judge::{JudgedCall, judge};
use farpage_sys::{Errno, Result, futex, process, syscall, uffd};

use crate::own_threads::{Order, tell_all};
use crate::{memory, own_threads, program, start};

static ON: AtomicBool = AtomicBool::new(false);
/// A thread of the program may not ask for the numbers of its process and of itself.
static FORBIDS_ID: AtomicBool = AtomicBool::new(false);
static FORBIDS_THREAD_ID: AtomicBool = AtomicBool::new(false);

const INSTRUCTIONS_MAX: usize = 4096;
const X86_64: u32 = 0xC000_003E;
const PR_SET_SECCOMP: usize = 22;
const TSYNC: usize = (p::SECCOMP_FILTER_FLAG_TSYNC | p::SECCOMP_FILTER_FLAG_TSYNC_ESRCH) as usize;
/// Flags that each thread installs the filter with.
const SHARED_FLAGS: usize =
    (p::SECCOMP_FILTER_FLAG_LOG | p::SECCOMP_FILTER_FLAG_SPEC_ALLOW) as usize;

/// `struct sock_fprog`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Filter {
    length: u16,
    code: usize,
}

/// True when the program has forbidden itself something.
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// `seccomp`, when it forbids something.
pub(crate) fn seccomp(args: [usize; 6]) -> Option<Result<usize>> {
    let [operation, flags, pointer, ..] = args;
    match operation as u32 {
        p::SECCOMP_SET_MODE_STRICT if flags == 0 && pointer == 0 => Some(strict()),
        p::SECCOMP_SET_MODE_FILTER => Some(install(flags, pointer)),
        _ => None,
    }
}

/// `prctl`, when it forbids something.
pub(crate) fn prctl(args: [usize; 6]) -> Option<Result<usize>> {
    let [option, mode, pointer, ..] = args;
    match (option, mode as u32) {
        (PR_SET_SECCOMP, p::SECCOMP_MODE_STRICT) => Some(strict()),
        (PR_SET_SECCOMP, p::SECCOMP_MODE_FILTER) => Some(install(0, pointer)),
        _ => None,
    }
}

fn install(flags: usize, pointer: usize) -> Result<usize> {
    let filter: Filter = program::read(pointer)?;
    let length = usize::from(filter.length);
    if length == 0 || length > INSTRUCTIONS_MAX {
        return Err(Errno::EINVAL);
    }
    let mut code: Vec<Instruction> = allow_return().to_vec();
    for index in 0..length {
        code.push(program::read(
            filter.code + index * size_of::<Instruction>(),
        )?);
    }
    if code.len() > INSTRUCTIONS_MAX {
        code = code.split_off(allow_return().len());
    }
    set(flags, code)
}

/// Strict mode cannot follow a filter. This one allows the same.
fn strict() -> Result<usize> {
    let allow = p::SECCOMP_RET_ALLOW;
    let mut code: Vec<Instruction> = allow_return().to_vec();
    code.push(load(4));
    code.push(Instruction {
        code: JEQ,
        jt: 0,
        jf: 4,
        k: X86_64,
    });
    code.push(load(0));
    for (index, nr) in [g::__NR_read, g::__NR_write, g::__NR_exit]
        .into_iter()
        .enumerate()
    {
        code.push(Instruction {
            code: JEQ,
            jt: 3 - index as u8,
            jf: 0,
            k: nr,
        });
    }
    code.push(answer(p::SECCOMP_RET_KILL_THREAD));
    code.push(answer(allow));
    set(0, code)
}

/// Installs `code` as the program asked.
fn set(flags: usize, code: Vec<Instruction>) -> Result<usize> {
    if !FORBIDS_ID.load(Ordering::Relaxed) && start::is_visitor() {
        // Its memory is that of a parent, whom it does not concern.
        return set_here(flags, &code);
    }
    let was_on = memory::begin_sandbox();
    let kernel = memory::kernel().filter(|_| !may_register(&code));
    let leaves_new = kernel.filter(|kernel| !kernel.leaves_new.swap(true, Ordering::AcqRel));
    let everywhere = flags & TSYNC != 0 && own_threads::exist();
    let [forbids_id, forbids_thread_id] =
        [g::__NR_getpid, g::__NR_gettid].map(|number| !allows(&code, number, [0; 2]));
    let result = match everywhere {
        true => set_everywhere(flags & !TSYNC, code),
        false => set_here(flags, &code),
    };
    if result.is_ok() {
        FORBIDS_ID.fetch_or(forbids_id, Ordering::Relaxed);
        FORBIDS_THREAD_ID.fetch_or(forbids_thread_id, Ordering::Relaxed);
    }
    result.inspect_err(|_| {
        if let Some(kernel) = leaves_new {
            kernel.leaves_new.store(false, Ordering::Release);
        }
        if !was_on {
            memory::no_sandbox();
        }
    })
}

/// Installs `code` in all threads of the program, but in none of the agent's: the others first,
/// each for itself, then the calling one. Where one cannot, the call fails.
fn set_everywhere(flags: usize, code: Vec<Instruction>) -> Result<usize> {
    let was_on = ON.swap(true, Ordering::Relaxed);
    let order = Order {
        code: code.clone(),
        flags: flags & SHARED_FLAGS,
        no_new_privileges: !was_on && process::has_no_new_privileges(),
    };
    let told = match was_on {
        // An earlier filter may forbid this thread what it takes to tell the others.
        true => tell_all_by_another(order),
        false => check_flags(flags).and_then(|()| tell_all(order, Some(process::thread_id()))),
    };
    told.inspect_err(|_| ON.store(was_on, Ordering::Relaxed))?;
    set_here(flags, &code)
}

/// As [`tell_all`], by the page-out thread, to which no filter of the program's applies.
fn tell_all_by_another(order: Order) -> Result<()> {
    let may_ask = !FORBIDS_THREAD_ID.load(Ordering::Relaxed);
    let caller = may_ask.then(process::thread_id);
    let Some(kernel) = memory::kernel().filter(|_| memory::has_page_out_thread()) else {
        return tell_all(order, caller);
    };
    own_threads::ask(order, caller, || {
        futex::wake(&kernel.account().control().pressure, i32::MAX as u32);
    })
}

/// Linux looks at the flags before it reads the filter.
fn check_flags(flags: usize) -> Result<()> {
    // SAFETY: no filter is named.
    match unsafe { syscall!(g::__NR_seccomp, p::SECCOMP_SET_MODE_FILTER, flags, 0) } {
        Err(Errno::EFAULT) | Ok(_) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Whether a thread under the filter `code` may have memory managed.
fn may_register(code: &[Instruction]) -> bool {
    let descriptor = start::descriptor(fds::UFFD).0 as u64;
    allows(code, g::__NR_ioctl, [descriptor, uffd::REGISTER.into()])
}

/// Whether the filter `code` allows a call with these arguments.
fn allows(code: &[Instruction], number: u32, [first, second]: [u64; 2]) -> bool {
    const ACTION: u32 = 0xffff_0000;
    let call = JudgedCall {
        number,
        args: [first, second, 0, 0, 0, 0],
    };
    let answer = judge(code, &call).map(|answer| answer & ACTION);
    matches!(answer, Some(p::SECCOMP_RET_ALLOW | p::SECCOMP_RET_LOG))
}

/// Installs `code` for the calling thread.
pub(crate) fn set_here(flags: usize, code: &[Instruction]) -> Result<usize> {
    let filter = Filter {
        length: code.len() as u16,
        code: code.as_ptr().expose_provenance(),
    };
    let was_on = ON.swap(true, Ordering::Relaxed);
    let operation = p::SECCOMP_SET_MODE_FILTER;
    // SAFETY: `filter` and the instructions it names are valid for the call.
    let result = unsafe { syscall!(g::__NR_seccomp, operation, flags, &raw const filter) };
    if result.is_err() && !was_on {
        ON.store(false, Ordering::Relaxed);
    }
    result
}

const JEQ: u16 = 0x15;

const fn load(offset: u32) -> Instruction {
    Instruction {
        code: 0x20,
        jt: 0,
        jf: 0,
        k: offset,
    }
}

const fn answer(value: u32) -> Instruction {
    Instruction {
        code: 0x06,
        jt: 0,
        jf: 0,
        k: value,
    }
}

/// In front of a filter: `rt_sigreturn` is allowed; the accumulator is zero again behind it.
fn allow_return() -> [Instruction; 6] {
    [
        load(4),
        Instruction {
            code: JEQ,
            jt: 0,
            jf: 3,
            k: X86_64,
        },
        load(0),
        Instruction {
            code: JEQ,
            jt: 0,
            jf: 1,
            k: g::__NR_rt_sigreturn,
        },
        answer(p::SECCOMP_RET_ALLOW),
        Instruction {
            code: 0x00,
            jt: 0,
            jf: 0,
            k: 0,
        },
    ]
}
