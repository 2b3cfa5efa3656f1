//! The agent's threads among the program's, and work that each of the program's threads must do
//! for itself: installing a filter that the program wants on all of them.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

use farpage_sys::futex::{self, Mutex};
use farpage_sys::linux::general as g;
use farpage_sys::seccomp::{Instruction, TRAP_MARK};
use farpage_sys::{Errno, Result, file, process, syscall, thread, time};

use crate::frame::{Frame, Info};
use crate::{lost, sandbox, signals, start};

const OWN_MAX: usize = 256;
/// How long a thread may take: it can be stopped, or wait where no signal arrives.
const PATIENCE_NS: u64 = 10_000_000_000;
/// Time between two looks whether all have answered.
const ANSWER_NS: u64 = 1_000_000;
/// Who has not answered for so long is told again: Linux keeps one SIGSYS for a thread at a time,
/// and forgets another.
const AGAIN_NS: u64 = 10_000_000;
// Flags in `/proc/PID/stat`: of a thread that is ending, and of those that work for the kernel.
const PF_EXITING: u64 = 0x4;
const PF_IO_WORKER: u64 = 0x10;
const PF_USER_WORKER: u64 = 0x4000;
const SI_QUEUE: i32 = -1;

static OWN: [AtomicU32; OWN_MAX] = [const { AtomicU32::new(0) }; OWN_MAX];
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
static ONE_ASKS: Mutex<()> = Mutex::new(());
/// Held while a thread is made that is not in `OWN` yet.
static MAKING: Mutex<()> = Mutex::new(());
/// Threads of the agent's are hidden from a tracer.
static HIDDEN: AtomicBool = AtomicBool::new(false);
/// What is being carried out.
static ROUND: AtomicPtr<Round> = AtomicPtr::new(core::ptr::null_mut());
/// Threads that have not carried it out yet.
static PENDING: AtomicU32 = AtomicU32::new(0);
/// The system error of one that could not.
static FAILED: AtomicI32 = AtomicI32::new(0);

/// A filter that all threads of the program are to install.
pub(crate) struct Order {
    /// Its instructions.
    pub(crate) code: Vec<Instruction>,
    /// How it is installed.
    pub(crate) flags: usize,
    /// They give up new privileges before, as the thread has that asked for it.
    pub(crate) no_new_privileges: bool,
}

/// An order to some threads. Never freed: one may come late.
struct Round {
    order: &'static Order,
    /// Tells it from others.
    number: u32,
    told: Vec<Told>,
}

/// A thread that was told.
struct Told {
    id: u32,
    /// [`TOLD`], [`BEGUN`] or [`DONE`].
    state: AtomicU32,
}

const TOLD: u32 = 0;
const BEGUN: u32 = 1;
const DONE: u32 = 2;

impl Told {
    fn become_state(&self, from: u32, to: u32) -> bool {
        let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
        self.state.compare_exchange(from, to, order, failed).is_ok()
    }
}

/// Starts a thread of the agent's.
///
/// # Safety
/// As [`thread::spawn`].
///
/// # Errors
/// As [`thread::spawn`].
pub(crate) unsafe fn spawn(main: thread::Main, argument: usize) -> Result<()> {
    // Without the lock a thread that lists the threads meanwhile would take it for the program's.
    let _guard = MAKING.lock();
    let hidden = HIDDEN.load(Ordering::Relaxed);
    // SAFETY: forwarded.
    add(unsafe { thread::spawn(main, argument, hidden) }?);
    Ok(())
}

/// A tracer that follows threads (`strace -f`) would stop the agent's as well, and then wait for a
/// page that only they bring: those that are made from now on are hidden from it. Where it has
/// installed a filter that asks it about calls, Linux refuses them to whom it does not trace: then
/// they are not hidden. Called before there are any.
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
    for lock in [&ONE_AT_A_TIME, &ONE_ASKS, &MAKING] {
        // SAFETY: its holder, if any, is a thread that the child does not have; it protects
        // nothing.
        unsafe { lock.reset() };
    }
    PENDING.store(0, Ordering::Relaxed);
    ROUND.store(core::ptr::null_mut(), Ordering::Relaxed);
}

/// True when the agent has threads here.
pub(crate) fn exist() -> bool {
    OWN.iter().any(|place| place.load(Ordering::Acquire) != 0)
}

pub(crate) fn is_own(id: u32) -> bool {
    OWN.iter().any(|place| place.load(Ordering::Acquire) == id)
}

/// Whether the program has one thread, running or ended. Where that cannot be seen it may have
/// more.
pub(crate) fn are_all_but_one() -> bool {
    let _guard = MAKING.lock();
    let found = threads().unwrap_or_default();
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
/// nothing of the program's and take no signal. A child that shares memory with the process asks,
/// too.
pub(crate) fn is_of_ring(id: u32) -> bool {
    flags(id).is_some_and(|flags| flags & (PF_IO_WORKER | PF_USER_WORKER) != 0)
}

/// A thread that is ending, or that Linux has for itself: it handles no signal.
fn ends_or_works(id: u32) -> bool {
    flags(id).is_some_and(|flags| flags & (PF_EXITING | PF_IO_WORKER | PF_USER_WORKER) != 0)
}

/// Flags of a thread: they are right from its first moment, when its name is still its maker's.
fn flags(id: u32) -> Option<u64> {
    let mut text = [0; 512];
    let text = file::read_of_process(id, "stat", &mut text).ok()?;
    // Behind the name, which ends with the last parenthesis: state, five numbers, flags.
    let behind = text.rsplit(|byte| *byte == b')').next()?;
    let mut words = core::str::from_utf8(behind).ok()?.split_ascii_whitespace();
    words.nth(6)?.parse().ok()
}

/// Has every other thread of the program carry out `order`, and those that they make meanwhile.
/// `caller` does not yet: under the filter it may be unable to tell the others.
///
/// # Errors
/// That of a thread that could not; `ESRCH` when one does not answer, or they cannot be listed.
pub(crate) fn tell_all(order: Order, caller: Option<u32>) -> Result<()> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);

    let _guard = ONE_AT_A_TIME.lock();
    lost::prepare();
    FAILED.store(0, Ordering::Relaxed);
    let order: &'static Order = Box::leak(Box::new(order));
    let mut told = Vec::from_iter(caller);
    let done = loop {
        let Ok(new) = others(&told) else {
            break Err(Errno::ESRCH);
        };
        if new.is_empty() {
            break Ok(());
        }
        told.extend_from_slice(&new);
        let round = Box::leak(Box::new(Round {
            order,
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            told: Vec::from_iter(new.into_iter().map(|id| Told {
                id,
                state: AtomicU32::new(TOLD),
            })),
        }));
        PENDING.store(round.told.len() as u32, Ordering::Release);
        ROUND.store(round, Ordering::Release);
        if let Err(errno) = wait_for_answers(round) {
            break Err(errno);
        }
    };
    // Who answers later does nothing.
    ROUND.store(core::ptr::null_mut(), Ordering::Release);
    PENDING.store(0, Ordering::Release);
    done
}

/// What one of the agent's threads is to do for one of the program's.
struct Asked {
    order: Order,
    caller: Option<u32>,
}

static ASKED: AtomicPtr<Asked> = AtomicPtr::new(core::ptr::null_mut());
/// What came of it: [`OPEN`], 0, or a system error.
static ANSWERED: AtomicI32 = AtomicI32::new(0);
const OPEN: i32 = -1;

/// As [`tell_all`], by a thread of the agent's that calls [`serve`] from time to time, and when it
/// is woken.
pub(crate) fn ask(order: Order, caller: Option<u32>, wake: impl Fn()) -> Result<()> {
    let _guard = ONE_ASKS.lock();
    let mut is_told = caller.is_none();
    ANSWERED.store(OPEN, Ordering::Release);
    let asked = Box::new(Asked { order, caller });
    ASKED.store(Box::into_raw(asked), Ordering::Release);
    loop {
        match ANSWERED.load(Ordering::Acquire) {
            OPEN => {}
            0 => return Ok(()),
            errno => return Err(Errno(errno)),
        }
        if is_told && PENDING.load(Ordering::Acquire) == 1 {
            // Who does not know its number was told with the others, and is the last of them: it
            // hears of that when this is over, and there is nothing left for it to do.
            PENDING.store(0, Ordering::Release);
            is_told = false;
        }
        wake();
        // A word that nobody wakes: it is looked at again in a moment.
        let word = AtomicU32::new(0);
        futex::wait(&word, 0, Some(ANSWER_NS));
    }
}

/// Does what was asked of it, in a thread of the agent's.
pub(crate) fn serve() {
    let asked = ASKED.swap(core::ptr::null_mut(), Ordering::AcqRel);
    if asked.is_null() {
        return;
    }
    // SAFETY: `ask` made it with a box, and only one thread takes it.
    let Asked { order, caller } = *unsafe { Box::from_raw(asked) };
    let done = tell_all(order, caller);
    ANSWERED.store(done.map_or_else(|errno| errno.0, |()| 0), Ordering::Release);
}

fn wait_for_answers(round: &Round) -> Result<()> {
    let until = time::now_ns() + PATIENCE_NS;
    let mut tell_ns = 0;
    loop {
        let now = time::now_ns();
        if now >= tell_ns {
            tell_ns = now + AGAIN_NS;
            tell(round);
        }
        let pending = PENDING.load(Ordering::Acquire);
        if pending == 0 {
            return match FAILED.load(Ordering::Acquire) {
                0 => Ok(()),
                errno => Err(Errno(errno)),
            };
        }
        if now >= until {
            return Err(Errno::ESRCH);
        }
        // Nobody wakes it: a thread that has carried it out may be forbidden to.
        futex::wait(&PENDING, pending, Some(ANSWER_NS));
    }
}

/// Tells those who have not begun.
fn tell(round: &Round) {
    for (place, told) in round.told.iter().enumerate() {
        if told.state.load(Ordering::Acquire) != TOLD {
            continue;
        }
        let is_over = ends_or_works(told.id) || send(told.id, place, round.number).is_err();
        if is_over && told.become_state(TOLD, DONE) {
            PENDING.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// The program's threads but those `told`.
///
/// # Errors
/// When they cannot be listed.
pub(crate) fn others(told: &[u32]) -> Result<Vec<u32>> {
    let _guard = MAKING.lock();
    let mut found = threads()?;
    found.retain(|id| !told.contains(id) && !is_own(*id) && !is_of_ring(*id));
    Ok(found)
}

/// In the handler of SIGSYS, which somebody has sent: true when the signal came from [`tell_all`],
/// and what it asks is done.
pub(crate) fn obey(info: &Info, frame: &mut Frame) -> bool {
    lost::restart(frame);
    let ours = info.code == SI_QUEUE
        && info.errno == i32::from(TRAP_MARK)
        && info.call_address as u32 == start::process_id();
    // SAFETY: null, or leaked by `tell_all`.
    let Some(round) = unsafe { ROUND.load(Ordering::Acquire).as_ref() }.filter(|_| ours) else {
        return ours;
    };
    // One that was meant for an earlier round comes again for this one.
    let Some(told) = (round.told.get(info.number as usize)).filter(|_| info.arch == round.number)
    else {
        return true;
    };
    if !told.become_state(TOLD, BEGUN) {
        return true;
    }
    if let Err(errno) = carry_out(round.order) {
        FAILED.store(errno.0, Ordering::Release);
    }
    // From here on no call is made: the filter may forbid any.
    if told.become_state(BEGUN, DONE) {
        PENDING.fetch_sub(1, Ordering::AcqRel);
    }
    true
}

fn carry_out(order: &Order) -> Result<()> {
    if order.no_new_privileges {
        process::set_no_new_privileges()?;
    }
    sandbox::set_here(order.flags, &order.code).map(drop)
}

fn send(id: u32, place: usize, round: u32) -> Result<usize> {
    // `siginfo_t`: signal, errno, code, padding, process, user, value.
    let mut info = [0i32; 32];
    info[0] = g::SIGSYS as i32;
    info[1] = i32::from(TRAP_MARK);
    info[2] = SI_QUEUE;
    info[4] = process::id() as i32;
    info[6] = place as i32;
    info[7] = round as i32;
    let own = process::id();
    // SAFETY: `info` has the 128 bytes of a `siginfo_t`.
    unsafe { syscall!(g::__NR_rt_tgsigqueueinfo, own, id, g::SIGSYS, info.as_ptr()) }
}

/// All threads of the process.
///
/// # Errors
/// As `open(2)` and `getdents64(2)`.
fn threads() -> Result<Vec<u32>> {
    let mut found = Vec::new();
    let flags = g::O_CLOEXEC | g::O_DIRECTORY;
    let dir = file::with_room(|| file::open(c"/proc/self/task", flags, 0))?;
    let mut buffer = [0u8; 4096];
    loop {
        // SAFETY: `buffer` is valid for writes of its length.
        let got = unsafe { syscall!(g::__NR_getdents64, dir.0, buffer.as_mut_ptr(), buffer.len()) };
        let bytes = match got {
            Ok(0) => break,
            Ok(bytes) => bytes,
            Err(errno) => {
                file::close(dir);
                return Err(errno);
            }
        };
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
    Ok(found)
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
        assert!(threads().unwrap().contains(&own));
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
        assert!(!threads().unwrap().into_iter().any(is_of_ring));
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
        assert!(threads().unwrap().into_iter().any(is_of_ring));
    }
}
