//! Starting a program under the filter.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicU32, Ordering};

use farpage_object::Control;
use linux_raw_sys::general as g;

use crate::file::{self, Fd};
use crate::limits::{self, Limit, Resource};
use crate::raw::{Errno, Result};
use crate::seccomp::{self, Instruction};
use crate::{join, layout, mem, process, syscall};

/// A program to start, and what it is to find.
pub struct Program<'a> {
    /// The executable file.
    pub path: &'a CStr,
    /// Its arguments.
    pub arguments: &'a [&'a CStr],
    /// Its environment.
    pub environment: &'a [&'a CStr],
    /// Variables of it that are to have the number of its process: three at most.
    pub own_number: &'a [&'a str],
    /// Descriptors, and the numbers under which it gets them.
    pub places: &'a [(Fd, Fd)],
    /// The filter, see [`seccomp::filter`].
    pub filter: &'a [Instruction],
    /// Signals that are blocked when it starts.
    pub signal_mask: u64,
    /// The limit on the size of files that it has, where that is another than this process's.
    pub file_size: Option<Limit>,
    /// It has no dynamic linker: the supervisor of this control block maps the agent into it.
    pub from_outside: Option<&'a Control>,
}

/// What the new process was doing when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Step {
    /// Making the process.
    Fork = 1,
    /// Putting the descriptors where they belong.
    Places = 2,
    /// Installing the filter.
    Filter = 3,
    /// Waiting for the supervisor to trace it.
    Trace = 4,
    /// Executing the program.
    Execute = 5,
}

impl Step {
    fn from_raw(raw: u32) -> Self {
        match raw {
            2 => Self::Places,
            3 => Self::Filter,
            4 => Self::Trace,
            5 => Self::Execute,
            _ => Self::Fork,
        }
    }
}

/// Strings that one program can take, with the null at the end.
const STRINGS_MAX: usize = 1 << 20;

/// Where the new process says why it failed: memory that both share.
struct Report {
    step: AtomicU32,
    errno: AtomicU32,
}

/// Starts `program` in a new process and waits until it executes. Returns the process id.
///
/// # Errors
/// What the new process could not do, and why. It is gone then.
pub fn spawn(program: &Program<'_>) -> core::result::Result<u32, (Step, Errno)> {
    let at_fork = |errno| (Step::Fork, errno);
    let arguments = pointers(program.arguments).map_err(at_fork)?;
    let mut environment = pointers(program.environment).map_err(at_fork)?;
    // SAFETY: without MAP_FIXED nothing existing is touched.
    let page = unsafe {
        let flags = mem::MAP_SHARED | mem::MAP_ANONYMOUS;
        mem::map(0, 4096, mem::PROT_READ | mem::PROT_WRITE, flags, Fd(-1), 0)
    };
    let page = page.map_err(at_fork)?;
    // SAFETY: the page is fresh, aligned, zero (which is a valid `Report`), and unmapped below,
    // after the last use.
    let report = unsafe { &*core::ptr::with_exposed_provenance::<Report>(page) };
    let made = start(program, &arguments, &mut environment, report);
    let step = report.step.load(Ordering::Acquire);
    let errno = Errno(report.errno.load(Ordering::Relaxed) as i32);
    // SAFETY: nobody uses the report any more: the new process has its memory to itself by now.
    let _ = unsafe { mem::unmap(page, 4096) };
    match made {
        Ok(pid) if step == 0 => Ok(pid),
        Ok(pid) => {
            let _ = process::wait(pid);
            Err((Step::from_raw(step), errno))
        }
        Err(errno) => Err((Step::Fork, errno)),
    }
}

fn pointers(strings: &[&CStr]) -> Result<alloc::vec::Vec<*const c_char>> {
    if strings.len() >= STRINGS_MAX {
        return Err(Errno::E2BIG);
    }
    let list = strings.iter().map(|string| string.as_ptr());
    Ok(list.chain([core::ptr::null()]).collect())
}

/// Makes the process and waits until it executes or has failed: until the write end of a pipe that
/// is closed on exec is gone.
fn start(
    program: &Program<'_>,
    arguments: &[*const c_char],
    environment: &mut [*const c_char],
    report: &Report,
) -> Result<u32> {
    let [read, write] = file::pipe()?;
    let blocked = process::set_signal_mask(!0);
    // SAFETY: the child has a copy of this thread and its memory; it allocates nothing, takes no
    // lock and does not come back.
    let made = unsafe { syscall!(g::__NR_clone, g::SIGCHLD, 0, 0, 0, 0) };
    if made == Ok(0) {
        let (step, errno) = become_program(program, arguments, environment);
        report.errno.store(errno.0 as u32, Ordering::Relaxed);
        report.step.store(step as u32, Ordering::Release);
        process::exit(127);
    }
    process::set_signal_mask(blocked);
    file::close(write);
    if made.is_ok() {
        let mut byte = [0];
        while file::read(read, &mut byte) == Err(Errno::EINTR) {}
    }
    file::close(read);
    made.map(|pid| pid as u32)
}

/// In the new process.
fn become_program(
    program: &Program<'_>,
    arguments: &[*const c_char],
    environment: &mut [*const c_char],
) -> (Step, Errno) {
    let mut variables = [[0; VARIABLE_BYTES]; OWN_NUMBERS_MAX];
    have_own_number(program, environment, &mut variables);
    for &(fd, to) in program.places {
        // SAFETY: takes no pointer.
        if let Err(errno) = unsafe { syscall!(g::__NR_dup3, fd.0, to.0, 0) } {
            return (Step::Places, errno);
        }
    }
    default_action_for_sigpipe();
    if let Some(limit) = program.file_size {
        let _ = limits::set(Resource::FileSize, limit);
    }
    // The filter traps `execve`: the program is executed from the gate.
    if let Err(errno) = seccomp::map_gate().and_then(|()| seccomp::install(program.filter)) {
        return (Step::Filter, errno);
    }
    let mut asked = None;
    // Only the agent takes it back, which is there first where it comes from outside.
    let laid_out = program.from_outside.map(|_| layout::prepare());
    if let Some(control) = program.from_outside {
        let slot = control.claim(process::id());
        asked = slot.filter(|slot| join::ask(control, *slot, process::thread_id()).is_ok());
        if asked.is_none() {
            return (Step::Trace, Errno::EPERM);
        }
    }
    process::set_signal_mask(program.signal_mask);
    let (argv, envp) = (arguments.as_ptr(), environment.as_ptr());
    // SAFETY: the strings and the lists of them live in this process's copy of the memory.
    let failed = unsafe { syscall!(g::__NR_execve, program.path.as_ptr(), argv, envp) };
    if let (Some(control), Some(slot)) = (program.from_outside, asked) {
        join::cancel(control, slot);
    }
    drop(laid_out);
    (Step::Execute, failed.err().unwrap_or(Errno::ENOEXEC))
}

const OWN_NUMBERS_MAX: usize = 3;

/// Bytes of a variable with the number of a process.
const VARIABLE_BYTES: usize = 32;

/// Puts the number of this process into the variables that are to have it. It allocates nothing.
fn have_own_number(
    program: &Program<'_>,
    environment: &mut [*const c_char],
    variables: &mut [[u8; VARIABLE_BYTES]; OWN_NUMBERS_MAX],
) {
    let mut digits = [0; 10];
    let (mut rest, mut from) = (process::id(), digits.len());
    while rest > 0 {
        from -= 1;
        digits[from] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let number = &digits[from..];
    for (name, variable) in program.own_number.iter().zip(variables) {
        let name = name.as_bytes();
        let bytes = name.len() + 1 + number.len();
        if bytes >= VARIABLE_BYTES {
            continue;
        }
        variable[..name.len()].copy_from_slice(name);
        variable[name.len()] = b'=';
        variable[name.len() + 1..bytes].copy_from_slice(number);
        let given = program.environment.iter().zip(&mut *environment);
        for (text, pointer) in given {
            if text.to_bytes().starts_with(&variable[..=name.len()]) {
                *pointer = variable.as_ptr().cast();
            }
        }
    }
}

/// Rust programs ignore SIGPIPE; those that they start should not.
fn default_action_for_sigpipe() {
    let default = [0u64; 4];
    // SAFETY: an action of 32 zero bytes is SIG_DFL without flags.
    let _ = unsafe { syscall!(g::__NR_rt_sigaction, g::SIGPIPE, default.as_ptr(), 0, 8) };
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    fn program<'a>(path: &'a CStr, arguments: &'a [&'a CStr]) -> Program<'a> {
        Program {
            path,
            arguments,
            environment: &[],
            own_number: &[],
            places: &[],
            filter: &[],
            signal_mask: 0,
            file_size: None,
            from_outside: None,
        }
    }

    #[test]
    fn failures_name_the_step() {
        let allow = [Instruction {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: 0x7fff_0000,
        }];
        let mut missing = program(c"/no/such/file", &[c"x"]);
        assert_eq!(
            spawn(&missing),
            Err((Step::Filter, Errno::EINVAL)),
            "an empty filter"
        );
        missing.filter = &allow;
        assert_eq!(spawn(&missing), Err((Step::Execute, Errno::ENOENT)));
        let places = [(Fd(-1), Fd(100))];
        missing.places = &places;
        assert_eq!(spawn(&missing), Err((Step::Places, Errno::EBADF)));
        let mut fine = program(c"/bin/sh", &[c"sh", c"-c", c"exit 7"]);
        fine.filter = &allow;
        let pid = spawn(&fine).unwrap();
        assert_eq!(process::wait(pid), Ok(7 << 8));
    }
}
