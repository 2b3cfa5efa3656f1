//! The agent's threads among the program's, and work that each of the program's threads must do
//! for itself: installing a filter that the program wants on all of them.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use farpage_sys::futex::{self, Mutex};
use farpage_sys::linux::general as g;
use farpage_sys::seccomp::{Instruction, TRAP_MARK};
use farpage_sys::{Errno, Result, file, process, syscall, thread};

use crate::frame::Info;
use crate::{sandbox, signals, start};

const OWN_MAX: usize = 256;
/// How long a thread may take: it can be stopped, or wait where no signal arrives.
const PATIENCE_NS: u64 = 10_000_000_000;
const SI_QUEUE: i32 = -1;

static OWN: [AtomicU32; OWN_MAX] = [const { AtomicU32::new(0) }; OWN_MAX];
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// Held while a thread is made that is not in `OWN` yet.
static MAKING: Mutex<()> = Mutex::new(());
/// Threads of the agent's are hidden from a tracer.
static HIDDEN: AtomicBool = AtomicBool::new(false);
static FILTER: AtomicPtr<Vec<Instruction>> = AtomicPtr::new(core::ptr::null_mut());
/// Threads that have not installed it yet.
static PENDING: AtomicU32 = AtomicU32::new(0);

/// Starts a thread of the agent's.
///
/// # Safety
/// As [`thread::spawn`].
///
/// # Errors
/// As [`thread::spawn`].
pub(crate) unsafe fn spawn(main: thread::Main, argument: usize) -> Result<()> {
    // Whoever lists the threads meanwhile would take it for one of the program's.
    let _guard = MAKING.lock();
    let hidden = HIDDEN.load(Ordering::Relaxed);
    // SAFETY: forwarded.
    add(unsafe { thread::spawn(main, argument, hidden) }?);
    Ok(())
}

/// A tracer that follows threads (`strace -f`) would stop the agent's as well, and then wait for a page that only they
/// bring: those that are made from now on are hidden from it. Where it has installed a filter that asks it about calls,
/// Linux refuses them to whom it does not trace: then they are not hidden. Called before there are any.
pub(crate) fn learn_tracer() {
    HIDDEN.store(must_hide(), Ordering::Relaxed);
}

fn must_hide() -> bool {
    let mut text = [0; 4096];
    let text = file::read_beginning(c"/proc/thread-self/status", &mut text).unwrap_or_default();
    let text = core::str::from_utf8(text).unwrap_or_default();
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line?.trim().parse::<u32>().ok()
    };
    let before = start::control().map_or(0, |control| control.filters.load(Ordering::Relaxed));
    number("TracerPid:").is_some_and(|tracer| tracer != 0)
        && number("Seccomp_filters:") == before.checked_add(1)
}

fn add(id: u32) {
    for place in &OWN {
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        if place.compare_exchange(0, id, order, failed).is_ok() {
            return;
        }
    }
}

/// In the child of a fork, which has one thread.
pub(crate) fn after_fork() {
    for place in &OWN {
        place.store(0, Ordering::Relaxed);
    }
    for lock in [&ONE_AT_A_TIME, &MAKING] {
        // SAFETY: its holder, if any, is a thread that the child does not have; it protects nothing.
        unsafe { lock.reset() };
    }
    PENDING.store(0, Ordering::Relaxed);
}

/// True when the agent has threads here.
pub(crate) fn exist() -> bool {
    OWN.iter().any(|place| place.load(Ordering::Acquire) != 0)
}

pub(crate) fn is_own(id: u32) -> bool {
    OWN.iter().any(|place| place.load(Ordering::Acquire) == id)
}

/// Whether the program has one thread, running or ended. Where that cannot be seen it may have more.
pub(crate) fn are_all_but_one() -> bool {
    let _guard = MAKING.lock();
    let found = threads();
    // `/proc` can be that of an outer namespace, where they have other numbers.
    let of_rings = found.iter().filter(|id| is_of_ring(**id)).count();
    let own = OWN
        .iter()
        .filter(|place| place.load(Ordering::Acquire) != 0);
    found.len() == of_rings + own.count() + 1
}

/// Ends the process when the program's last thread has ended by itself (`exit`, not `exit_group`):
/// the agent's must not keep it alive. Its status is that of the first thread, as without them.
pub(crate) fn end_with_the_program() {
    if first_thread_lives() {
        return;
    }
    if are_all_but_one() {
        match status().unwrap_or(0) {
            code if code & 0x7f == 0 => process::exit(code >> 8 & 0xff),
            signal => signals::die_by(signal & 0x7f),
        }
    }
}

/// A thread that has ended has no memory to read from any more. Asked without a descriptor: the
/// program may be about to open one of a certain number.
fn first_thread_lives() -> bool {
    let mut byte = 0u8;
    let from = 0u8;
    let (to, from) = ([&raw mut byte as usize, 1], [&raw const from as usize, 1]);
    let id = process::id();
    // SAFETY: both vectors name a byte on this stack.
    let read = unsafe {
        syscall!(
            g::__NR_process_vm_readv,
            id,
            to.as_ptr(),
            1,
            from.as_ptr(),
            1,
            0
        )
    };
    read != Err(Errno::ESRCH)
}

/// How the first thread ended, as `wait` has it: the last word of `/proc/self/stat`.
fn status() -> Option<u32> {
    let mut text = [0u8; 1024];
    let file = file::open(c"/proc/self/stat", g::O_CLOEXEC, 0).ok()?;
    let got = file::read(file, &mut text);
    file::close(file);
    let text = core::str::from_utf8(text.get(..got.ok()?)?).ok()?;
    text.split_ascii_whitespace().next_back()?.parse().ok()
}

/// Linux works on a ring's transfers in threads that it lists among the process's own, and that run
/// nothing of the program's and take no signal.
pub(crate) fn is_of_ring(id: u32) -> bool {
    // A child that shares memory with the process asks, too.
    let mut name = [0; 16];
    file::read_of_process(id, "comm", &mut name).is_ok_and(|name| name.starts_with(b"iou-wrk-"))
}

/// Has every other thread of the program install `code`, and those that they make meanwhile.
pub(crate) fn install_everywhere(code: Vec<Instruction>) {
    let _guard = ONE_AT_A_TIME.lock();
    // Never freed: a thread may come late.
    FILTER.store(Box::into_raw(Box::new(code)), Ordering::Release);
    let mut told = Vec::from([process::thread_id()]);
    loop {
        let new = others(&told);
        if new.is_empty() {
            return;
        }
        PENDING.store(new.len() as u32, Ordering::Release);
        for id in &new {
            if tell(*id).is_err() {
                done();
            }
        }
        told.extend_from_slice(&new);
        let until = farpage_sys::time::now_ns() + PATIENCE_NS;
        loop {
            let pending = PENDING.load(Ordering::Acquire);
            let now = farpage_sys::time::now_ns();
            if pending == 0 || now >= until {
                break;
            }
            futex::wait(&PENDING, pending, Some(until - now));
        }
    }
}

/// The program's threads but those `told`.
pub(crate) fn others(told: &[u32]) -> Vec<u32> {
    let _guard = MAKING.lock();
    let mut found = threads();
    found.retain(|id| !told.contains(id) && !is_own(*id) && !is_of_ring(*id));
    found
}

/// In the handler of SIGSYS: true when the signal came from [`install_everywhere`], and is done.
pub(crate) fn obey(info: &Info) -> bool {
    let ours = info.code == SI_QUEUE
        && info.errno == i32::from(TRAP_MARK)
        && info.call_address as u32 == start::process_id();
    if !ours || PENDING.load(Ordering::Acquire) == 0 {
        return ours;
    }
    // SAFETY: null, or leaked by `install_everywhere`.
    if let Some(code) = unsafe { FILTER.load(Ordering::Acquire).as_ref() } {
        let _ = sandbox::set_here(0, code);
    }
    done();
    true
}

fn done() {
    PENDING.fetch_sub(1, Ordering::AcqRel);
    futex::wake(&PENDING, i32::MAX as u32);
}

fn tell(id: u32) -> Result<usize> {
    // `siginfo_t`: signal, errno, code, padding, process, user.
    let mut info = [0i32; 32];
    info[0] = g::SIGSYS as i32;
    info[1] = i32::from(TRAP_MARK);
    info[2] = SI_QUEUE;
    info[4] = process::id() as i32;
    let own = process::id();
    // SAFETY: `info` has the 128 bytes of a `siginfo_t`.
    unsafe { syscall!(g::__NR_rt_tgsigqueueinfo, own, id, g::SIGSYS, info.as_ptr()) }
}

/// All threads of the process.
fn threads() -> Vec<u32> {
    let mut found = Vec::new();
    let flags = g::O_CLOEXEC | g::O_DIRECTORY;
    let Ok(dir) = file::with_room(|| file::open(c"/proc/self/task", flags, 0)) else {
        return found;
    };
    let mut buffer = [0u8; 4096];
    loop {
        // SAFETY: `buffer` is valid for writes of its length.
        let got = unsafe { syscall!(g::__NR_getdents64, dir.0, buffer.as_mut_ptr(), buffer.len()) };
        let Ok(bytes @ 1..) = got else { break };
        let mut entries = &buffer[..bytes];
        // An entry: inode and offset of 8 bytes each, length of 2, kind of 1, name.
        while entries.len() > 19 {
            let length = usize::from(u16::from_ne_bytes([entries[16], entries[17]]));
            let name = &entries[19..length.max(20).min(entries.len())];
            let digits = name.iter().take_while(|byte| byte.is_ascii_digit());
            let id = digits.fold(0, |id, digit| id * 10 + u32::from(digit - b'0'));
            if id != 0 {
                found.push(id);
            }
            entries = &entries[length.max(20).min(entries.len())..];
        }
    }
    file::close(dir);
    found
}

#[cfg(test)]
mod tests {
    use farpage_sys::file::Fd;
    use farpage_sys::ring::{Read, Ring};

    use super::*;

    #[test]
    fn the_first_thread_lives_while_it_runs() {
        assert!(first_thread_lives());
        assert_eq!(status(), Some(0));
    }

    #[test]
    fn threads_are_found() {
        let own = process::thread_id();
        assert!(threads().contains(&own));
        assert!(!is_own(own));
        add(own);
        assert!(is_own(own) && exist());
        after_fork();
        assert!(!exist());
    }

    #[test]
    fn a_thread_that_works_for_a_ring_is_known() {
        let Ok(mut ring) = Ring::new(Fd(400)) else {
            return;
        };
        assert!(!threads().into_iter().any(is_of_ring));
        // What cannot be read without waiting is left to such a thread.
        let fd = file::open(c"/proc/self/status", g::O_CLOEXEC, 0).unwrap();
        let mut buffer = [0; 64];
        ring.read_all(&mut [Read {
            fd,
            offset: 0,
            buffer: &mut buffer,
            whole: false,
        }]);
        file::close(fd);
        assert!(buffer.starts_with(b"Name:"));
        assert!(threads().into_iter().any(is_of_ring));
    }
}
