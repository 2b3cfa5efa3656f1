//! One end of a Link.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use super::error::{Ended, Violation};
use super::incoming::Incoming;
use super::layout::Shared;
use super::memory::Lent;
use super::outgoing::Outgoing;
use super::peer::Peer;
use super::wake::{self, Happened, Waker, Watched};

/// One end of a connection between two processes: see the [module](super).
///
/// Several threads may send. Threads that receive take turns: while one waits in
/// [`Link::receive`], the others wait for it.
pub struct Link {
    /// Among the Links of this process.
    pub(super) id: u64,
    pub(super) shared: Shared,
    pub(super) watched: Watched,
    pub(super) waker: Waker,
    pub(super) peer: Peer,
    pub(super) outgoing: Mutex<Outgoing>,
    pub(super) incoming: Mutex<Incoming>,
    pub(super) lent: Mutex<Lent>,
    /// Watches the peer for whoever receives.
    pub(super) epoll: OwnedFd,
    /// Watches it for whoever waits for room, one at a time.
    pub(super) room: Mutex<Option<OwnedFd>>,
    pub(super) too_many_fds: AtomicBool,
    hang_up: AtomicU8,
    ended: OnceLock<Ended>,
}

/// What is known of the peer's end.
const HERE: u8 = 0;
const GONE: u8 = 1;
const HALF_SHUT: u8 = 2;

impl Link {
    /// The parts put together.
    pub(super) fn new(
        shared: Shared,
        watched: Watched,
        waker: Waker,
        peer: Peer,
    ) -> Result<Self, rustix::io::Errno> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let epoll = wake::new_epoll()?;
        watched.watch(&epoll, 0)?;
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            shared,
            watched,
            waker,
            peer,
            outgoing: Mutex::default(),
            incoming: Mutex::default(),
            lent: Mutex::default(),
            epoll,
            room: Mutex::default(),
            too_many_fds: AtomicBool::new(false),
            hang_up: AtomicU8::new(HERE),
            ended: OnceLock::new(),
        })
    }

    /// Who is at the other end, as Linux said when the Link was made.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    pub(super) fn ended(&self) -> Option<Ended> {
        self.ended.get().copied()
    }

    pub(super) fn note(&self, happened: Happened) {
        match happened {
            Happened::Woken | Happened::Readable => {}
            Happened::Gone => self.hang_up.store(GONE, Ordering::Release),
            Happened::HalfShut => {
                let _ = self.hang_up.compare_exchange(
                    HERE,
                    HALF_SHUT,
                    Ordering::Release,
                    Ordering::Relaxed,
                );
            }
        }
    }

    /// Looks whether the peer is gone.
    pub(crate) fn look(&self) {
        if let Some(happened) = self.watched.look() {
            self.note(happened);
        }
    }

    /// How the peer went, if it has: what it sent may still lie in the ring.
    pub(crate) fn has_left(&self) -> Option<Ended> {
        if self.shared.has_peer_left() {
            return Some(Ended::Closed);
        }
        match self.hang_up.load(Ordering::Acquire) {
            HERE => None,
            GONE => Some(Ended::Died),
            _ => Some(Violation::Shutdown.into()),
        }
    }

    /// Ends the Link; the first reason stays.
    pub(super) fn end(&self, reason: Ended) -> Ended {
        let reason = *self.ended.get_or_init(|| reason);
        let _ = rustix::net::shutdown(&self.watched.socket, rustix::net::Shutdown::Both);
        reason
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.say_goodbye();
    }
}

/// Readable when there may be something to receive, provided that [`Link::prepare_to_wait`] was
/// called before: for asynchronous run-times.
impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("peer", &self.peer)
            .field("ended", &self.ended())
            .finish_non_exhaustive()
    }
}
