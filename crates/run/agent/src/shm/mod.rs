//! Shared memory (`farpage run --shm`): the program's calls that concern it.
//!
//! Linux keeps the names, the supervisor the pages. A file at `/dev/shm` that was made in the run has
//! a size, an owner and a mode as ever, and no pages: what is mapped in its place is the memory file
//! of an object, which the supervisor makes when the file is first mapped. Files of others, and those
//! of semaphores, are left to Linux.
//!
//! Memory files are like these from their first mapping on ([`memory_files`]).
//!
//! Where the memory is a cluster's ([`Shm::is_cluster`]), files and segments of the same names are at
//! all hosts, and what is done to a name has happened at all of them when the call returns.
//!
//! What would let Linux read or write the empty file is done here, by descriptors that have numbers
//! which the filter knows, or cannot be done by the descriptor any more.

mod connection;
mod control_messages;
mod descriptors;
mod files;
mod futexes;
mod locks;
mod memory;
mod memory_files;
mod names;
mod own_files;
mod room;
mod segments;
mod sockets;
mod sysv;
mod transfer;
mod turns;

use farpage_object::shm::Shm;
use farpage_sys::Result;
use farpage_sys::file::{self, Fd, Status};
use farpage_sys::linux::general as g;

use crate::frame::Frame;
use crate::trap::Outcome;
use crate::{maps, start, threads};

pub(crate) use connection::{after_fork_in_child, after_fork_in_parent, before_fork};
pub(crate) use descriptors::Object;
pub(crate) use memory::{after_unmap, are_mapped, bring_in};
pub(crate) use memory_files::before_execution;
pub(crate) use sockets::{note_received, wait_for};
pub(crate) use turns::{HOLD_ALL, SIGNAL_FIRST};

/// What the tree has in common about it; `None` where Linux keeps the pages, too.
fn shm() -> Option<&'static Shm> {
    let shm = &start::control()?.shm;
    shm.is_on().then_some(shm)
}

/// True in a tree whose shared memory is kept by the supervisor.
pub(crate) fn exist() -> bool {
    shm().is_some()
}

/// A call that was trapped, if it concerns shared memory.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn call(number: u32, frame: &mut Frame) -> Option<Outcome> {
    let shm = shm()?;
    let received = match number {
        g::__NR_recvmmsg => sockets::take_received(frame),
        _ => 0,
    };
    let (args, mask) = (frame.arguments(), frame.mask);
    let done = match number {
        g::__NR_open | g::__NR_openat | g::__NR_openat2 | g::__NR_creat | g::__NR_truncate => {
            files::call(shm, number, args, mask)
        }
        g::__NR_mmap
        | g::__NR_mremap
        | g::__NR_mprotect
        | g::__NR_pkey_mprotect
        | g::__NR_madvise => {
            // SAFETY: forwarded.
            unsafe { memory::call(shm, number, args) }
        }
        g::__NR_semget
        | g::__NR_semop
        | g::__NR_semtimedop
        | g::__NR_semctl
        | g::__NR_msgget
        | g::__NR_msgsnd
        | g::__NR_msgrcv
        | g::__NR_msgctl
            if shm.is_cluster() && sysv::is_one(number, args) =>
        {
            return Some(sysv::call(number, args, frame.slept(), mask));
        }
        g::__NR_shmget
        | g::__NR_shmat
        | g::__NR_shmdt
        | g::__NR_semget
        | g::__NR_msgget
        | g::__NR_mq_open => {
            // SAFETY: forwarded.
            unsafe { segments::call(number, args) }
        }
        g::__NR_sendmsg | g::__NR_sendmmsg => {
            sockets::before_sending(shm, number, args);
            None
        }
        g::__NR_statfs | g::__NR_fstatfs => room::call(shm, number, args),
        g::__NR_memfd_create => Some(memory_files::create(shm, args)),
        g::__NR_recvmsg | g::__NR_recvmmsg => {
            // SAFETY: forwarded.
            return Some(unsafe { sockets::call(shm, number, args, received) });
        }
        // SAFETY: forwarded.
        g::__NR_futex => return unsafe { futexes::call(shm, args) },
        g::__NR_unlink
        | g::__NR_unlinkat
        | g::__NR_link
        | g::__NR_linkat
        | g::__NR_rename
        | g::__NR_renameat
        | g::__NR_renameat2
        | g::__NR_shmctl
            if shm.is_cluster() =>
        {
            // SAFETY: forwarded.
            unsafe { names::call(shm, number, args) }
        }
        g::__NR_exit_group => {
            threads::bring_in_locks();
            return None;
        }
        g::__NR_fcntl => match locks::call(shm, args) {
            Some(done) => return Some(done),
            None => descriptors::call(shm, number, args, mask),
        },
        _ => descriptors::call(shm, number, args, mask),
    };
    Some(match done? {
        // The program's signals come when it makes a call that only comes back to this one.
        Err(SIGNAL_FIRST) => Outcome::WaitIn(g::__NR_sched_yield, [args[0], 0, 0]),
        done => Outcome::Done(done),
    })
}

/// A call that may unmap or replace shared memory is about to be made.
pub(crate) fn before(number: u32, [a, b, c, d, e, _]: [usize; 6]) {
    match number {
        g::__NR_munmap => memory::before_unmap(a, b),
        g::__NR_mmap if d as u32 & g::MAP_FIXED != 0 => memory::before_unmap(a, b),
        g::__NR_mremap if d as u32 & g::MREMAP_FIXED != 0 => memory::before_unmap(e, c),
        _ => {}
    }
}

/// The object of a descriptor's file, where the supervisor has the pages.
///
/// # Errors
/// When it cannot be learned whether it has.
pub(crate) fn kept(fd: Fd) -> Result<Option<Object>> {
    if shm().and_then(|shm| status_of(shm, fd)).is_none() {
        return Ok(None);
    }
    Ok(match descriptors::pages_of(fd)? {
        descriptors::Pages::Kept(object) => Some(object),
        descriptors::Pages::None | descriptors::Pages::Linux => None,
    })
}

/// True when the pages of a descriptor's file may be kept here, now or soon.
pub(crate) fn may_be_kept(fd: Fd) -> bool {
    shm().is_some_and(|shm| status_of(shm, fd).is_some())
}

/// What Linux says about the file of a descriptor, if it is one whose pages may be kept here.
fn status_of(shm: &Shm, fd: Fd) -> Option<Status> {
    let status = file::status(fd).ok()?;
    is_one(shm, &status).then_some(status)
}

fn is_one(shm: &Shm, status: &Status) -> bool {
    let device = shm.device.load(core::sync::atomic::Ordering::Relaxed);
    status.device == device && status.is_regular() || memory_files::is_one(shm, status)
}

/// Says what is not possible, in one line.
fn say(what: &str) {
    maps::say(what);
}
