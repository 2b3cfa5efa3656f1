//! How the agent comes into a program that is about to be executed: what the dynamic linker is told
//! to load, and how the supervisor is asked to map it into programs that have none.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use farpage_object::{Control, Inject, fds};
use linux_raw_sys::general as g;

use crate::file::Fd;
use crate::raw::Errno;
use crate::{futex, process, syscall, time};

/// The variable that makes glibc's dynamic linker load a library first.
pub const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// The variable that has glibc's dynamic linker say what it does.
pub const LINKER_SPEAKS: &[u8] = b"LD_DEBUG=";
/// How long a task waits for a supervisor that lives to trace it.
const PATIENCE_NS: u64 = 30_000_000_000;

/// What the launcher writes into its copy of the agent's library. It finds the place by `mark`.
#[repr(C)]
pub struct AgentConfig {
    /// [`AGENT_MARK`].
    pub mark: [u64; 2],
    /// First of the descriptor numbers that belong to Farpage.
    pub fd_base: AtomicU32,
    /// Not 0: the program lays its address space out by itself, and its memory is left alone.
    pub leaves_memory: AtomicU32,
    /// Where a static program starts: the agent goes there when it is ready.
    pub entry: AtomicUsize,
}

/// Says where [`AgentConfig`] is.
pub const AGENT_MARK: [u64; 2] = [0x6761_7072_6166_10ff, 0x1f69_666e_6f63_2e74];

impl AgentConfig {
    /// One that is still to be filled in.
    pub const fn new() -> Self {
        Self {
            mark: AGENT_MARK,
            fd_base: AtomicU32::new(0),
            leaves_memory: AtomicU32::new(0),
            entry: AtomicUsize::new(0),
        }
    }
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// The file name under which every task finds the agent's library.
pub fn agent_path(fd_base: u32) -> Vec<u8> {
    alloc::format!("/proc/self/fd/{}", fd_base + fds::AGENT).into_bytes()
}

/// The value of [`PRELOAD`] for a program: the agent first, if `with_agent`, then what the program
/// asked for in `wanted`. `None`: the variable is not to be set.
pub fn preload_value(wanted: &[u8], fd_base: u32, with_agent: bool) -> Option<Vec<u8>> {
    let ours = agent_path(fd_base);
    let mut value = Vec::new();
    if with_agent {
        value.extend_from_slice(&ours);
    }
    for name in wanted.split(|byte| *byte == b':' || *byte == b' ') {
        if name.is_empty() || name == ours {
            continue;
        }
        if !value.is_empty() {
            value.push(b':');
        }
        value.extend_from_slice(name);
    }
    (!value.is_empty()).then_some(value)
}

/// True when the file `agent_path` names can be opened here: not where `/proc` is missing.
pub fn agent_is_visible(fd_base: u32) -> bool {
    const READABLE: usize = 4;
    let mut path = agent_path(fd_base);
    path.push(0);
    // SAFETY: `path` is a string that ends with a zero byte.
    unsafe { syscall!(g::__NR_faccessat, g::AT_FDCWD, path.as_ptr(), READABLE) }.is_ok()
}

/// Why a thread is not traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTraced {
    /// The supervisor cannot: a debugger traces it, or ptrace is forbidden.
    Refused,
    /// There is no supervisor any more, or none that answers.
    NoAnswer,
}

/// Asks the supervisor to trace thread `thread` of task `slot`, which will execute a program
/// without dynamic linker. When it does: execute now, and call [`cancel`] if that fails.
///
/// # Errors
/// When it does not.
pub fn ask(control: &Control, slot: usize, thread: u32) -> core::result::Result<(), NotTraced> {
    const PR_SET_PTRACER: usize = 0x5961_6d61;
    let task = &control.tasks[slot];
    let supervisor = control.supervisor_pid.load(Ordering::Relaxed);
    if process::kill(supervisor, 0) == Err(Errno::ESRCH) {
        return Err(NotTraced::NoAnswer);
    }
    // SAFETY: takes no pointer. It fails where there is nothing to allow.
    let _ = unsafe { syscall!(g::__NR_prctl, PR_SET_PTRACER, supervisor, 0, 0, 0) };
    task.inject_tid.store(thread, Ordering::Relaxed);
    task.inject.store(Inject::Asked as u32, Ordering::Release);
    ring(control);
    let until = time::now_ns() + PATIENCE_NS;
    loop {
        let state = task.inject.load(Ordering::Acquire);
        if state != Inject::Asked as u32 && state != Inject::Taken as u32 {
            return match state == Inject::Ready as u32 {
                true => Ok(()),
                false => Err(NotTraced::Refused),
            };
        }
        let now = time::now_ns();
        if now >= until {
            let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            let cancelled = Inject::Cancelled as u32;
            match task
                .inject
                .compare_exchange(state, cancelled, order, failed)
            {
                Ok(_) => return Err(NotTraced::NoAnswer),
                Err(_) => continue,
            }
        }
        futex::wait(&task.inject, state, Some(until - now));
    }
}

/// Tells the supervisor that the execution failed, and waits until it lets go of the thread.
pub fn cancel(control: &Control, slot: usize) {
    let inject = &control.tasks[slot].inject;
    inject.store(Inject::Cancelled as u32, Ordering::Release);
    futex::wake(inject, i32::MAX as u32);
    let until = time::now_ns() + PATIENCE_NS;
    while inject.load(Ordering::Acquire) == Inject::Cancelled as u32 && time::now_ns() < until {
        futex::wait(inject, Inject::Cancelled as u32, Some(PATIENCE_NS));
    }
}

/// Makes the supervisor look at the tasks: one asks.
fn ring(control: &Control) {
    control.inject_requests.fetch_add(1, Ordering::Release);
    futex::wake(&control.inject_requests, 1);
}

/// Where a task's descriptor number `offset` (see [`fds`]) is.
pub fn fd(fd_base: u32, offset: u32) -> Fd {
    Fd((fd_base + offset) as i32)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    fn value(wanted: &[u8], with_agent: bool) -> Option<std::string::String> {
        let value = preload_value(wanted, 4064, with_agent)?;
        Some(std::string::String::from_utf8(value).unwrap())
    }

    #[test]
    fn the_agent_is_loaded_first_and_once() {
        let ours = "/proc/self/fd/4065";
        assert_eq!(value(b"", true).unwrap(), ours);
        assert_eq!(value(ours.as_bytes(), true).unwrap(), ours);
        let both = std::format!("{ours}:/lib/a.so:b.so");
        assert_eq!(value(b"/lib/a.so b.so", true).unwrap(), both);
        assert_eq!(
            value(b"/lib/a.so:/proc/self/fd/4065 b.so", true).unwrap(),
            both
        );
        assert_eq!(value(both.as_bytes(), false).unwrap(), "/lib/a.so:b.so");
        assert_eq!(value(ours.as_bytes(), false), None);
    }
}
