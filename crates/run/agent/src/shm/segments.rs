//! System V: segments of shared memory. What else it has by numbers, and message queues of POSIX, is
//! Linux's own, but for what a cluster has ([`super::sysv`]); the supervisor is told what the run makes of
//! it, to remove what is left.
//!
//! The real segment is mapped as well, where nobody touches it: so Linux counts who has it.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use farpage_object::PAGE_BYTES;
use farpage_object::shm::{Ask, Ipc, Kind, Shm};
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, ipc, mem, process, syscall};

use super::connection::{STATE, State};
use super::memory::{Wanted, given, unmap};
use super::say;
use crate::program::Reader;
use crate::{supervised, trap};

const CREATE: usize = 0o1000;
const HUGE: usize = 0o4000;
const NO_RESERVE: usize = 0o10000;
const READ_ONLY: usize = 0o10000;
const ROUND: usize = 0o20000;
const REMAP: usize = 0o40000;
const EXECUTE: usize = 0o100_000;

/// A segment that the program has mapped.
#[derive(Clone, Copy)]
pub(super) struct Attached {
    at: usize,
    bytes: usize,
    /// Where the real one is.
    real: usize,
}

/// # Safety
/// As the call that the program made.
pub(super) unsafe fn call(number: u32, args: [usize; 6]) -> Option<Result<usize>> {
    let [a, b, c, ..] = args;
    // SAFETY: for all of these, forwarded.
    unsafe {
        match number {
            g::__NR_shmget => {
                let fresh = |args: &mut [usize; 6]| args[2] |= NO_RESERVE;
                let what = match c & HUGE {
                    0 => Ipc::Segment,
                    _ => Ipc::HugeSegment,
                };
                Some(get(number, args, 2, [a, 0, 0], fresh, what))
            }
            g::__NR_semget => Some(get(number, args, 2, [a, 0, 0], |_| (), Ipc::Semaphores)),
            g::__NR_msgget => Some(get(number, args, 1, [a, 0, 0], |_| (), Ipc::Messages)),
            g::__NR_mq_open => open_queue(args),
            g::__NR_shmat => attach(a as u32, b, c),
            g::__NR_shmdt => detach(a),
            _ => None,
        }
    }
}

/// `shmget`, `semget` and `msgget`, whose flags are argument `at`: tells what they make. `probe` asks
/// for what is there.
///
/// # Safety
/// As the call that the program made.
unsafe fn get(
    number: u32,
    mut args: [usize; 6],
    at: usize,
    probe: [usize; 3],
    fresh: impl FnOnce(&mut [usize; 6]),
    what: Ipc,
) -> Result<usize> {
    let [key, ..] = args;
    let is_private = key as u32 == 0;
    let [a, b, c] = probe;
    let makes = is_private
        || args[at] & CREATE != 0
            // SAFETY: takes no pointer.
            && unsafe { trap::pass(number, [a, b, c, 0, 0, 0]) } == Err(Errno::ENOENT);
    if !makes {
        // SAFETY: forwarded.
        return unsafe { trap::pass(number, args) };
    }
    if what != Ipc::HugeSegment {
        fresh(&mut args);
    }
    let mut state = STATE.lock();
    let making = Ask {
        a: 2,
        b: what as u64,
        c: u64::from(key as u32),
        d: u64::from(process::id()),
        ..Ask::new(Kind::Making)
    };
    // What the supervisor does not know stays Linux's.
    let asked = state.ask(making, None);
    if let (Err(errno), true) = (asked, super::shm().is_some_and(Shm::is_cluster)) {
        return Err(errno);
    }
    let is_told = asked.is_ok();
    // SAFETY: forwarded.
    let made = unsafe { trap::pass(number, args) };
    let told = made.map(|id| {
        let ask = Ask {
            a: what as u64,
            b: id as u64,
            ..Ask::new(Kind::Ipc)
        };
        state.ask(ask, None).is_ok()
    });
    if is_told && told != Ok(true) {
        state.made_nothing();
    }
    made
}

/// Where memory is a cluster's, says once that not all that has names is.
fn say_what_stays() {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    let is_cluster = super::shm().is_some_and(Shm::is_cluster);
    if is_cluster && !IS_SAID.swap(true, Ordering::Relaxed) {
        say(
            "message queues of POSIX are this host's alone: programs of other hosts do not find them; those of \
             System V with a key (msgget) are all hosts'",
        );
    }
}

/// # Safety
/// As the call that the program made.
unsafe fn open_queue(args: [usize; 6]) -> Option<Result<usize>> {
    let [name, flags, ..] = args;
    if flags as u32 & g::O_CREAT == 0 {
        return None;
    }
    let plain = (g::O_RDONLY | g::O_CLOEXEC) as usize;
    // SAFETY: the program's own string.
    let there = unsafe { syscall!(g::__NR_mq_open, name, plain, 0, 0) };
    if let Ok(fd) = there {
        file::close(Fd(fd as i32));
    }
    if there != Err(Errno::ENOENT) {
        return None;
    }
    say_what_stays();
    let mut state = STATE.lock();
    let ask = |kind| Ask {
        a: 1,
        ..Ask::new(kind)
    };
    let name = Reader::new().string(name).ok()?;
    let is_told = state.ask_named(ask(Kind::Making), None, name).is_ok();
    // SAFETY: forwarded.
    let opened = unsafe { trap::pass(g::__NR_mq_open, args) };
    let told = opened.map(|fd| state.ask(ask(Kind::Made), Some(Fd(fd as i32))).is_ok());
    if is_told && told != Ok(true) {
        state.made_nothing();
    }
    Some(opened)
}

/// `shmat`.
///
/// # Safety
/// As the call that the program made.
unsafe fn attach(id: u32, at: usize, flags: usize) -> Option<Result<usize>> {
    let bytes = ipc::segment(id).ok()?.bytes;
    let mut state = STATE.lock();
    let ask = Ask {
        a: u64::from(id),
        b: bytes,
        ..Ask::new(Kind::Segment)
    };
    let (object, memory) = match given(state.ask(ask, None)) {
        Ok(given) => given,
        Err(Errno::ENOENT) => return None,
        Err(errno) => return Some(Err(errno)),
    };
    let bytes = (bytes as usize).next_multiple_of(PAGE_BYTES);
    let place = match at {
        0 => Ok((0, 0)),
        _ if !at.is_multiple_of(PAGE_BYTES) && flags & ROUND == 0 => Err(Errno::EINVAL),
        _ if flags & REMAP != 0 => Ok((at / PAGE_BYTES * PAGE_BYTES, g::MAP_FIXED)),
        _ => Ok((at / PAGE_BYTES * PAGE_BYTES, g::MAP_FIXED_NOREPLACE)),
    };
    let real_flags = flags & !(ROUND | REMAP);
    let real = place.and_then(|_| attach_real(&state, id, bytes, real_flags));
    let mapped = place.and_then(|(at, how)| {
        let write = if flags & READ_ONLY == 0 {
            g::PROT_WRITE
        } else {
            0
        };
        let execute = if flags & EXECUTE != 0 {
            g::PROT_EXEC
        } else {
            0
        };
        let wanted = Wanted {
            object,
            memory,
            at,
            bytes,
            prot: g::PROT_READ | write | execute,
            flags: g::MAP_SHARED | how,
            first: 0,
            writable: write != 0,
        };
        real?;
        // SAFETY: forwarded.
        unsafe { wanted.map(&mut state) }
    });
    file::close(memory);
    let (Ok(real), Ok(at)) = (real, mapped) else {
        if let Ok(real) = real {
            let_go(real);
        }
        let errno = real.and(mapped).err().unwrap_or(Errno::EINVAL);
        return Some(Err(match errno {
            Errno::EEXIST => Errno::EINVAL,
            other => other,
        }));
    };
    state.attached.push(Attached { at, bytes, real });
    Some(Ok(at))
}

/// Maps the real segment in the supervised area: where Linux would put it, the program may want
/// something else next.
fn attach_real(state: &State, id: u32, bytes: usize, flags: usize) -> Result<usize> {
    let empty = g::MAP_PRIVATE | g::MAP_ANONYMOUS | g::MAP_NORESERVE;
    let at = supervised::place(state.taken(), bytes, empty, Fd(-1), 0)?;
    // SAFETY: only what was mapped just now is replaced.
    unsafe { syscall!(g::__NR_shmat, id, at, flags | REMAP) }.inspect_err(|_| {
        // SAFETY: nobody uses it.
        let _ = unsafe { mem::unmap(at, bytes) };
    })
}

/// `shmdt`.
///
/// # Safety
/// As the call that the program made.
unsafe fn detach(at: usize) -> Option<Result<usize>> {
    let mut state = STATE.lock();
    let index = state.attached.iter().position(|one| one.at == at)?;
    let Attached { bytes, real, .. } = state.attached.swap_remove(index);
    // SAFETY: forwarded.
    unsafe { unmap(&mut state, at, bytes) };
    let_go(real);
    Some(Ok(0))
}

fn let_go(real: usize) {
    // SAFETY: nobody uses what lies there.
    let _ = unsafe { syscall!(g::__NR_shmdt, real) };
}

impl State {
    /// What this task has of the supervised area, in its order.
    pub(super) fn taken(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let pieces = self.pieces.iter().map(|piece| (piece.start, piece.end));
        let real = self
            .attached
            .iter()
            .map(|one| (one.real, one.real + one.bytes));
        let mut all: Vec<(usize, usize)> = pieces.chain(real).collect();
        all.sort_unstable();
        all.into_iter()
    }

    /// The program has unmapped `start .. end` by other means.
    pub(super) fn detach_within(&mut self, start: usize, end: usize) {
        self.attached.retain(|one| {
            let is_gone = start <= one.at && one.at + one.bytes <= end;
            if is_gone {
                let_go(one.real);
            }
            !is_gone
        });
    }
}
