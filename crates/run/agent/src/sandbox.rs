//! Programs that forbid themselves system calls.
//!
//! A filter of the program's own applies to what the agent does in the program's threads as well.
//! So the agent does little there once there is one, and what it cannot do without, returning from
//! its signal handler, is allowed in front of the program's filter. The agent's own threads are
//! not subject to it: the first is made before, it makes the others, and
//! `SECCOMP_FILTER_FLAG_TSYNC` is kept from them.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use farpage_sys::linux::general as g;
use farpage_sys::linux::ptrace as p;
use farpage_sys::seccomp::Instruction;
use farpage_sys::{Errno, Result, syscall};

use crate::{memory, own_threads, program, start};

static ON: AtomicBool = AtomicBool::new(false);

const INSTRUCTIONS_MAX: usize = 4096;
const X86_64: u32 = 0xC000_003E;
const PR_SET_SECCOMP: usize = 22;

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

/// Installs `code` as the program asked. Where it is meant for all threads and some are the
/// agent's, each of the program's installs it for itself.
fn set(flags: usize, code: Vec<Instruction>) -> Result<usize> {
    const TSYNC: usize =
        (p::SECCOMP_FILTER_FLAG_TSYNC | p::SECCOMP_FILTER_FLAG_TSYNC_ESRCH) as usize;
    if start::is_visitor() {
        // Its memory is that of a parent, whom it does not concern.
        return set_here(flags, &code);
    }
    let was_on = memory::begin_sandbox();
    let everywhere = flags & TSYNC != 0 && own_threads::exist();
    let here = if everywhere { flags & !TSYNC } else { flags };
    let result = set_here(here, &code).inspect_err(|_| {
        if !was_on {
            memory::no_sandbox();
        }
    })?;
    if everywhere {
        own_threads::install_everywhere(code);
    }
    Ok(result)
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
