//! What all threads of a network share: who is met, which connections there are, what happened.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::greet::Greeter;
use crate::key::Identity;
use crate::lane::{END, LOOK, Lane, News};
use crate::{Batch, Incarnation, Priority, Receiver};

/// Names of what is not a connection.
pub(crate) const TIMER: u64 = 0;
pub(crate) const LISTENER: u64 = 1;
pub(crate) const STOP: u64 = 2;
const FIRST_TOKEN: u64 = 3;
/// So many events are taken at a time.
const EVENTS: usize = 16;

pub(crate) struct Shared {
    pub(crate) incarnation: Incarnation,
    pub(crate) identity: Identity,
    pub(crate) receiver: Arc<dyn Receiver>,
    pub(crate) listener: TcpListener,
    pub(crate) epoll: Arc<OwnedFd>,
    pub(crate) timer: OwnedFd,
    /// Readable for ever when it is over.
    pub(crate) stop: OwnedFd,
    pub(crate) is_stopped: AtomicBool,
    /// Ticks without a sign of life after which a connection is broken.
    pub(crate) silence: u32,
    pub(crate) peers: RwLock<Peers>,
    /// What events are about, by token.
    pub(crate) watched: RwLock<HashMap<u64, Watched>>,
    tokens: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Peers {
    pub(crate) met: HashMap<Incarnation, [Arc<Lane>; 2]>,
    pub(crate) parted: HashSet<Incarnation>,
}

#[derive(Clone)]
pub(crate) enum Watched {
    Greeter(Arc<Greeter>),
    Lane(Arc<Lane>),
}

thread_local! {
    /// This thread is in a callback.
    static IS_CALLED: Cell<bool> = const { Cell::new(false) };
}

/// Each change of a socket is reported once.
pub(crate) fn all_events() -> EventFlags {
    EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET
}

/// This thread is in a callback.
pub(crate) fn is_called() -> bool {
    IS_CALLED.get()
}

/// A thread that panicked in a callback left nothing half done: callbacks are made between steps.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(
        incarnation: Incarnation,
        identity: Identity,
        receiver: Arc<dyn Receiver>,
        listener: TcpListener,
        [epoll, timer, stop]: [OwnedFd; 3],
        silence: u32,
    ) -> Self {
        Self {
            incarnation,
            identity,
            receiver,
            listener,
            epoll: Arc::new(epoll),
            timer,
            stop,
            is_stopped: AtomicBool::new(false),
            silence,
            peers: RwLock::default(),
            watched: RwLock::default(),
            tokens: AtomicU64::new(FIRST_TOKEN),
        }
    }

    pub(crate) fn next_token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn lane(&self, peer: Incarnation, priority: Priority) -> Option<Arc<Lane>> {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        let lanes = peers.met.get(&peer)?;
        Some(Arc::clone(&lanes[priority as usize]))
    }

    pub(crate) fn lanes(&self) -> Vec<Arc<Lane>> {
        let peers = self.peers.read().unwrap_or_else(PoisonError::into_inner);
        peers.met.values().flatten().cloned().collect()
    }

    pub(crate) fn watched(&self, token: u64) -> Option<Watched> {
        let watched = self.watched.read().unwrap_or_else(PoisonError::into_inner);
        watched.get(&token).cloned()
    }

    pub(crate) fn set_watched(&self, token: u64, what: Watched) {
        let mut watched = self.watched.write().unwrap_or_else(PoisonError::into_inner);
        watched.insert(token, what);
    }

    pub(crate) fn forget(&self, token: u64) {
        let mut watched = self.watched.write().unwrap_or_else(PoisonError::into_inner);
        watched.remove(&token);
    }

    /// Has each change of the descriptor reported.
    pub(crate) fn watch(&self, fd: impl AsFd, token: u64) -> Result<(), Errno> {
        epoll::add(&*self.epoll, fd, EventData::new_u64(token), all_events())
    }

    /// Waits until something happened, at most so long, and handles it. False when nothing did.
    pub(crate) fn turn(self: &Arc<Self>, limit: Option<Duration>) -> bool {
        if is_called() {
            return false;
        }
        let none = Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        let mut events = [none; EVENTS];
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let Ok(count) = epoll::wait(&*self.epoll, &mut events[..], limit.as_ref()) else {
            return false; // a signal handler ran
        };
        let mut bulk = [const { None }; EVENTS];
        for (event, later) in events[..count].iter().zip(&mut bulk) {
            let (token, flags) = (event.data.u64(), event.flags);
            let ends = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            let wanted = if flags.intersects(ends) { END } else { LOOK };
            match token {
                TIMER => self.tick(),
                LISTENER => self.accept(),
                STOP => {}
                _ => match self.watched(token) {
                    Some(Watched::Greeter(greeter)) => self.greet(&greeter),
                    Some(Watched::Lane(lane)) => match lane.priority {
                        Priority::Urgent => self.visit(&lane, wanted),
                        Priority::Bulk => *later = Some((lane, wanted)),
                    },
                    None => {}
                },
            }
        }
        for (lane, wanted) in bulk.into_iter().flatten() {
            self.visit(&lane, wanted);
        }
        count > 0
    }

    /// Looks at a connection, and hands out what came, unless another thread does: then that one
    /// looks again.
    pub(crate) fn visit(self: &Arc<Self>, lane: &Arc<Lane>, wanted: u8) {
        lane.wanted.fetch_or(wanted, Ordering::SeqCst);
        while lane.wanted.load(Ordering::SeqCst) != 0 {
            let Some(mut incoming) = lane.try_incoming() else {
                return;
            };
            let wanted = lane.wanted.swap(0, Ordering::SeqCst);
            // What is answered leaves together.
            let batch = Batch::open();
            let looked = lane.look(&mut incoming, wanted);
            looked
                .news
                .into_iter()
                .for_each(|news| self.tell(lane, news));
            for message in incoming.inbox.messages() {
                self.call(lane, |it| it.received(lane.peer, lane.priority, message));
            }
            if let Some(token) = looked.lost {
                self.lost(lane, token);
            }
            drop(batch);
        }
    }

    /// Calls the receiver, unless the peer was parted from.
    fn call(&self, lane: &Lane, call: impl FnOnce(&dyn Receiver)) {
        if !lane.is_parted.load(Ordering::SeqCst) {
            let called = IsCalled::new();
            call(&*self.receiver);
            drop(called);
        }
    }

    pub(crate) fn tell(&self, lane: &Lane, news: News) {
        let News { up, why } = news;
        self.call(lane, |it| {
            it.link_changed(lane.peer, lane.priority, up, &why)
        });
    }

    /// Tells that somebody was turned away.
    pub(crate) fn tell_refused(&self, address: std::net::SocketAddr, why: &str) {
        let called = IsCalled::new();
        self.receiver.refused(address, why);
        drop(called);
    }
}

/// While it lives, this thread is in a callback; also when that panics.
struct IsCalled(bool);

impl IsCalled {
    fn new() -> Self {
        Self(IS_CALLED.replace(true))
    }
}

impl Drop for IsCalled {
    fn drop(&mut self) {
        IS_CALLED.set(self.0);
    }
}
