//! Receiving descriptors of shared memory: they get numbers that the filter knows.

use farpage_abi::shm::Shm;
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, syscall};

use super::{files, status_of};
use crate::program;
use crate::trap::{self, Outcome};
use crate::{maps, sandbox};

const SOL_SOCKET: i32 = 1;
const SCM_RIGHTS: i32 = 1;
const SO_DOMAIN: usize = 39;
const AF_UNIX: i32 = 1;
const DONT_WAIT: usize = 0x40;
const WAIT_FOR_ALL: usize = 0x100;
const FROM_ERRORS: usize = 0x2000;
const IOV_MAX: usize = 1024;

/// `struct msghdr`.
type Message = [usize; 7];
/// Where it has the address of its control messages, and their bytes.
const CONTROL: usize = 4;
/// `struct mmsghdr`, bytes.
const EACH: usize = size_of::<Message>() + 8;

/// `recvmsg` and `recvmmsg`.
///
/// # Safety
/// As the call that the program made.
pub(super) unsafe fn call(shm: &Shm, number: u32, args: [usize; 6]) -> Outcome {
    let [fd, messages, c, d, ..] = args;
    let (flags_at, count) = match number {
        g::__NR_recvmsg => (2, 1),
        _ => (3, c.min(IOV_MAX)),
    };
    let flags = if flags_at == 2 { c } else { d };
    let has_control = |i: usize| {
        let message = program::read::<Message>(messages + i * EACH);
        message.is_ok_and(|message| message[CONTROL] != 0 && message[CONTROL + 1] != 0)
    };
    let may_bring = flags & (WAIT_FOR_ALL | FROM_ERRORS) == 0
        && !sandbox::is_on()
        && (0..count).any(has_control)
        && is_local(fd);
    if !may_bring {
        return Outcome::Reissue;
    }
    let mut now = args;
    now[flags_at] |= DONT_WAIT;
    // SAFETY: the program's own call, but that it does not wait.
    match unsafe { trap::pass(number, now) } {
        Err(Errno::EAGAIN) if flags & DONT_WAIT == 0 && waits(fd) => Outcome::WaitFor(fd),
        Ok(got) => {
            let count = if number == g::__NR_recvmsg { 1 } else { got };
            (0..count).for_each(|i| keep_all(shm, messages + i * EACH));
            Outcome::Done(Ok(got))
        }
        other => Outcome::Done(other),
    }
}

/// True of a socket by which descriptors can come.
fn is_local(fd: usize) -> bool {
    let (mut domain, mut bytes) = (0i32, 4u32);
    let (to, length) = (&raw mut domain, &raw mut bytes);
    // SAFETY: Linux writes a number of four bytes, and how many they were.
    let asked = unsafe {
        syscall!(
            g::__NR_getsockopt,
            fd,
            SOL_SOCKET as usize,
            SO_DOMAIN,
            to,
            length
        )
    };
    asked.is_ok() && domain == AF_UNIX
}

fn waits(fd: usize) -> bool {
    file::flags(Fd(fd as i32)).is_ok_and(|flags| flags & g::O_NONBLOCK == 0)
}

/// Gives the descriptors that came with a message numbers that the filter knows.
fn keep_all(shm: &Shm, message: usize) {
    let Ok(message) = program::read::<Message>(message) else {
        return;
    };
    let mut at = message[CONTROL];
    let end = at.saturating_add(message[CONTROL + 1]);
    while at + 16 <= end {
        let (Ok(length), Ok(about)) = (
            program::read::<usize>(at),
            program::read::<[i32; 2]>(at + 8),
        ) else {
            return;
        };
        let last = at.saturating_add(length).min(end);
        if about == [SOL_SOCKET, SCM_RIGHTS] {
            (at + 16..last.saturating_sub(3))
                .step_by(4)
                .for_each(|at| keep(shm, at));
        }
        if length < 16 {
            return;
        }
        at = at.saturating_add(length.next_multiple_of(8));
    }
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
