//! Waking the peer, and being woken.
//!
//! A pipe beats the alternatives: an eventfd is 5% cheaper, but its one file belongs to both sides,
//! so that the peer can fill it and clear O_NONBLOCK, and the next wake-up never returns; a message
//! over the socket costs half as much again. The reader never reads: an edge-triggered epoll
//! reports each byte that is written. Only the writer empties its pipe, once in 65536 wake-ups.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

/// Wakes the peer.
pub(super) struct Waker {
    write: OwnedFd,
    /// The same pipe, opened anew: nobody else can make reading it wait.
    empty: OwnedFd,
}

impl Waker {
    /// A waker, and what the peer is to watch.
    pub(super) fn new() -> Result<(Self, OwnedFd), Errno> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let path = format!("/proc/self/fd/{}", read.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let empty = rustix::fs::open(path, flags, Mode::empty())?;
        Ok((Self { write, empty }, read))
    }

    /// Wakes it if it sleeps.
    pub(super) fn wake(&self) {
        if rustix::io::write(&self.write, &[0]) == Err(Errno::AGAIN) {
            let mut bytes = [0; 4096];
            while matches!(rustix::io::read(&self.empty, &mut bytes), Ok(1..)) {}
            let _ = rustix::io::write(&self.write, &[0]);
        }
    }
}

/// What there is to watch of a peer.
pub(super) struct Watched {
    /// The pipe that it writes to.
    pub(super) pipe: OwnedFd,
    /// Hung up when it closes.
    pub(super) socket: OwnedFd,
    /// Readable when it is dead; absent when it lies in a namespace that this process cannot see.
    pub(super) process: Option<OwnedFd>,
}

/// Which of them something happened to, in the low bits of an event.
const PIPE: u64 = 0;
const SOCKET: u64 = 1;
const PROCESS: u64 = 2;
const OTHER: u64 = 3;
const SOURCES: u64 = 4;

/// Something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happened {
    /// The peer wrote to its pipe.
    Woken,
    /// The peer is gone.
    Gone,
    /// The peer has shut half of the socket.
    HalfShut,
    /// A descriptor that belongs to no Link is readable.
    Readable,
}

impl Watched {
    /// Has `epoll` report what happens, each time that it happens, as `name`.
    pub(super) fn watch(&self, epoll: &OwnedFd, name: u64) -> Result<(), Errno> {
        let add = |fd: &OwnedFd, source, flags| {
            let data = EventData::new_u64(name * SOURCES + source);
            epoll::add(epoll, fd, data, flags | EventFlags::ET)
        };
        add(&self.pipe, PIPE, EventFlags::IN)?;
        add(&self.socket, SOCKET, EventFlags::RDHUP)?;
        match &self.process {
            Some(process) => add(process, PROCESS, EventFlags::IN),
            None => Ok(()),
        }
    }

    /// Has `epoll` report it no more.
    pub(super) fn forget(&self, epoll: &OwnedFd) {
        for fd in [Some(&self.pipe), Some(&self.socket), self.process.as_ref()] {
            fd.map(|fd| epoll::delete(epoll, fd));
        }
    }

    /// Whether the peer is gone, without waiting and without taking anybody's events.
    pub(super) fn look(&self) -> Option<Happened> {
        let mut fds = vec![PollFd::new(&self.socket, PollFlags::RDHUP)];
        fds.extend(
            self.process
                .as_ref()
                .map(|fd| PollFd::new(fd, PollFlags::IN)),
        );
        rustix::event::poll(&mut fds, Some(&Timespec::default())).ok()?;
        let is_dead = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        let socket = fds[0].revents();
        if is_dead || socket.contains(PollFlags::HUP) {
            return Some(Happened::Gone);
        }
        (!socket.is_empty()).then_some(Happened::HalfShut)
    }
}

/// Has `epoll` report that `fd` is readable: again and again, or each time that it becomes so.
pub(super) fn watch_other(
    epoll: &OwnedFd,
    fd: BorrowedFd<'_>,
    name: u64,
    each: bool,
) -> Result<(), Errno> {
    let flags = if each {
        EventFlags::IN | EventFlags::ET
    } else {
        EventFlags::IN
    };
    epoll::add(epoll, fd, EventData::new_u64(name * SOURCES + OTHER), flags)
}

/// An epoll, closed on exec.
pub(super) fn new_epoll() -> Result<OwnedFd, Errno> {
    epoll::create(epoll::CreateFlags::CLOEXEC)
}

/// Waits until something happens, or the deadline; reports it by name. False when nothing did.
pub(super) fn wait(
    epoll: &OwnedFd,
    deadline: Option<Instant>,
    mut report: impl FnMut(u64, Happened),
) -> Result<bool, Errno> {
    let none = Event {
        flags: EventFlags::empty(),
        data: EventData::new_u64(0),
    };
    let mut events = [none; 32];
    let limit = deadline.map(timespec_until);
    let count = match epoll::wait(epoll, &mut events, limit.as_ref()) {
        Ok(count) => count,
        // Somebody's signal handler ran: as good as woken.
        Err(Errno::INTR) => return Ok(true),
        Err(errno) => return Err(errno),
    };
    for event in &events[..count] {
        let (data, flags) = (event.data.u64(), event.flags);
        let happened = match data % SOURCES {
            PIPE => Happened::Woken,
            OTHER => Happened::Readable,
            SOCKET if !flags.contains(EventFlags::HUP) => Happened::HalfShut,
            _ => Happened::Gone,
        };
        report(data / SOURCES, happened);
    }
    Ok(count > 0)
}

/// The time until `deadline`.
pub(super) fn timespec_until(deadline: Instant) -> Timespec {
    let left = deadline.saturating_duration_since(Instant::now());
    Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    }
}
