//! Descriptors of shared memory that go over sockets. Those that come get numbers that the filter
//! knows; those that go out of the run are said, because nobody there sees the pages.

use core::sync::atomic::{AtomicBool, Ordering};

use farpage_object::TaskSlot;
use farpage_object::shm::Shm;
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, process, syscall};

use super::control_messages::{self, COUNT_MAX, EACH};
use super::descriptors::{Pages, pages_of};
use super::{files, memory_files, say, status_of};
use crate::frame::Frame;
use crate::trap::{self, Outcome};
use crate::{maps, program, sandbox, start};

const DONT_WAIT: usize = 0x40;
const WAIT_FOR_ALL: usize = 0x100;
const FROM_ERRORS: usize = 0x2000;
const WAIT_FOR_ONE: usize = 0x10000;
/// The upper half of the flags of a `recvmmsg` that goes on: this, and how many messages it received.
const GOES_ON: u64 = 0xfa6e << 48;

/// It was said that shared memory leaves the run.
static IS_SAID: AtomicBool = AtomicBool::new(false);

/// A call that is made again goes on after so many messages.
pub(crate) fn note_received(frame: &mut Frame, received: u16) {
    if received > 0 {
        let flags = frame.r10 as u32 as u64;
        frame.r10 = (GOES_ON | u64::from(received) << 32 | flags) as usize;
    }
}

/// How many messages a `recvmmsg` that is made again received before. The program's registers are its
/// own again.
pub(super) fn take_received(frame: &mut Frame) -> u16 {
    let flags = frame.r10 as u64;
    if flags & 0xffff << 48 != GOES_ON {
        return 0;
    }
    frame.r10 = frame.r10 as u32 as usize;
    (flags >> 32) as u16
}

/// `recvmsg` and `recvmmsg`, of which so many messages are there already.
///
/// # Safety
/// As the call that the program made.
pub(super) unsafe fn call(shm: &Shm, number: u32, args: [usize; 6], received: u16) -> Outcome {
    let [fd, messages, c, d, timeout, _] = args;
    let before = usize::from(received);
    let messages = messages + before * EACH;
    let (flags_at, count) = match number {
        g::__NR_recvmsg => (2, 1),
        _ => (3, (c as u32 as usize).min(COUNT_MAX).saturating_sub(before)),
    };
    let flags = if flags_at == 2 { c } else { d };
    let may_bring = flags & (WAIT_FOR_ALL | FROM_ERRORS) == 0
        && !sandbox::is_on()
        && (0..count).any(|i| control_messages::has_any(messages + i * EACH))
        && control_messages::is_local(fd);
    if !may_bring && before == 0 {
        return Outcome::Reissue;
    }
    let mut now = args;
    now[flags_at] |= DONT_WAIT;
    if number == g::__NR_recvmmsg {
        (now[1], now[2]) = (messages, count);
    }
    let may_wait = || flags & DONT_WAIT == 0 && waits(fd);
    // Linux looks at the timeout only when it has a message: who has one returns with what is there.
    let wants_all = number == g::__NR_recvmmsg && flags & WAIT_FOR_ONE == 0 && timeout == 0;
    // SAFETY: the program's own call, but that it does not wait.
    match unsafe { trap::pass(number, now) } {
        Err(Errno::EAGAIN) if may_wait() => Outcome::WaitFor(fd, received),
        Ok(got) => {
            let came = if number == g::__NR_recvmsg { 1 } else { got };
            for i in 0..came {
                control_messages::for_each_descriptor(messages + i * EACH, |at| keep(shm, at));
            }
            let all = before + got;
            match wants_all && got < count && may_wait() {
                true => Outcome::WaitFor(fd, all as u16),
                false => Outcome::Done(Ok(all)),
            }
        }
        Err(_) if before > 0 => Outcome::Done(Ok(before)),
        other => Outcome::Done(other),
    }
}

fn waits(fd: usize) -> bool {
    file::flags(Fd(fd as i32)).is_ok_and(|flags| flags & g::O_NONBLOCK == 0)
}

/// The descriptor whose number the program has at `at`.
fn keep(shm: &Shm, at: usize) {
    let Ok(number) = program::read::<i32>(at) else {
        return;
    };
    let fd = Fd(number);
    if status_of(shm, fd).is_none() || maps::is_kept(number as usize) {
        return;
    }
    // SAFETY: takes no pointer.
    let own = unsafe { syscall!(g::__NR_fcntl, number, g::F_GETFD) };
    let cloexec = own.is_ok_and(|own| own as u32 & g::FD_CLOEXEC != 0);
    let kept = files::keep(shm, fd, if cloexec { g::O_CLOEXEC } else { 0 });
    // The number was read there.
    let _ = program::write(at, &(kept as i32));
}

/// What the program's registers are to be while it waits for the next message of `fd`: `recvfrom`,
/// which leaves that where it is.
pub(crate) fn wait_for(fd: usize, byte: usize) -> (u32, [usize; 6]) {
    const PEEK: usize = 0x2;
    (g::__NR_recvfrom, [fd, byte, 1, PEEK, 0, 0])
}

/// `sendmsg` and `sendmmsg` are about to be made.
pub(super) fn before_sending(shm: &Shm, number: u32, [fd, messages, c, ..]: [usize; 6]) {
    let count = match number {
        g::__NR_sendmsg => 1,
        _ => c.min(COUNT_MAX),
    };
    let mut with_any = (0..count)
        .map(|i| messages + i * EACH)
        .filter(|message| control_messages::has_any(*message))
        .peekable();
    if with_any.peek().is_none() || sandbox::is_on() || !control_messages::is_local(fd) {
        return;
    }
    let Some(peer) = control_messages::peer(fd).filter(|pid| !is_of_the_run(*pid)) else {
        return;
    };
    for message in with_any {
        control_messages::for_each_descriptor(message, |at| {
            if let Ok(number) = program::read::<i32>(at) {
                leaves(shm, Fd(number), peer);
            }
        });
    }
}

/// Also of one that has ended: another may have its end of a connection.
fn is_of_the_run(pid: u32) -> bool {
    let Some(control) = start::control() else {
        return true;
    };
    let number = |pid: u32| pid & i32::MAX as u32;
    let is_it = |task: &TaskSlot| number(task.pid.load(Ordering::Acquire)) == pid;
    control.slots().iter().any(is_it) || process::kill(pid, 0) == Err(Errno::ESRCH)
}

/// A process that is not of the run gets this: a memory file that is no object is none for ever.
fn leaves(shm: &Shm, fd: Fd, peer: u32) {
    let Some(status) = status_of(shm, fd) else {
        return;
    };
    if memory_files::is_one(shm, &status) && !memory_files::is_object(shm, fd) {
        memory_files::stays_linuxs(shm, fd);
    }
    if matches!(pages_of(fd), Ok(Pages::Kept(_))) && !IS_SAID.swap(true, Ordering::Relaxed) {
        say(&alloc::format!(
            "process {} hands shared memory to process {peer}, which farpage run --shm does not run: it \
             sees zeros there; run both together, or this one without --shm",
            start::process_id()
        ));
    }
}
