//! A peer and a priority: the session, and the connection that it has at the moment.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use rustix::event::epoll::{self, EventData};

use crate::line::{Broken, Inbox, Left, Line};
use crate::session::Session;
use crate::shared::{all_events, lock};
use crate::tls::Tls;
use crate::{Incarnation, Priority, batch};

/// So much is taken from a connection before others have their turn.
const URGENT_BYTES: usize = 256 << 10;
/// As above: nobody who has something urgent waits longer than this takes.
const BULK_BYTES: usize = 64 << 10;
/// So much is given to a connection, as above. Who sends gives it all that it takes.
const OUT_BYTES: usize = 512 << 10;

/// Something happened to the connection: look at it.
pub(crate) const LOOK: u8 = 1;
/// It ended: take what is left.
pub(crate) const END: u8 = 2;

/// A thread that takes messages from a lane holds `incoming`, then `state`; one that sends holds
/// `state` alone. No callback is made under `state`.
pub(crate) struct Lane {
    pub(crate) peer: Incarnation,
    pub(crate) priority: Priority,
    /// Held by the one thread that hands messages out.
    pub(crate) incoming: Mutex<Incoming>,
    state: Mutex<State>,
    /// What that thread is to do, or to do again.
    pub(crate) wanted: AtomicU8,
    /// Nothing is to be handed out any more.
    pub(crate) is_parted: AtomicBool,
}

#[derive(Default)]
pub(crate) struct Incoming {
    /// The connection that `inbox` belongs to.
    token: u64,
    pub(crate) inbox: Inbox,
}

pub(crate) struct State {
    pub(crate) session: Session,
    pub(crate) connection: Connection,
    pub(crate) address: SocketAddr,
    /// Which of the connector's connections was the last.
    pub(crate) attempt: u64,
    /// Ticks until the next attempt, should the connection break, or not be made.
    pub(crate) back_off: u32,
    /// What the receiver is to be told.
    pub(crate) news: VecDeque<News>,
    /// It was told so the last time.
    told: String,
}

pub(crate) enum Connection {
    /// The peer is to connect.
    Theirs,
    /// This side will connect, so many ticks from now.
    Waits(u32),
    /// It is being made.
    UnderWay(u64),
    /// It is there.
    Up(Box<Up>),
}

pub(crate) struct Up {
    pub(crate) token: u64,
    pub(crate) line: Line<Tls>,
    pub(crate) epoll: Arc<OwnedFd>,
    /// What came behind the greeting.
    pub(crate) first: Vec<u8>,
    /// Why it was shut down here.
    pub(crate) why: Option<Broken>,
    /// Ticks since something came.
    pub(crate) silent: u32,
    /// Ticks since the peer last took something of what waits for it.
    pub(crate) stuck: u32,
    /// Ticks since something was sent.
    pub(crate) quiet: u32,
    /// Ticks since it was made.
    pub(crate) age: u32,
}

/// What the receiver is told of a connection.
pub(crate) struct News {
    pub(crate) up: bool,
    pub(crate) why: String,
}

/// What a look at the connection brought, beside what is in the inbox.
pub(crate) struct Looked {
    pub(crate) news: VecDeque<News>,
    /// The connection is gone; this was its token.
    pub(crate) lost: Option<u64>,
}

impl Lane {
    pub(crate) fn new(peer: Incarnation, priority: Priority, address: SocketAddr) -> Self {
        Self {
            peer,
            priority,
            incoming: Mutex::default(),
            state: Mutex::new(State {
                session: Session::default(),
                connection: Connection::Theirs,
                address,
                attempt: 0,
                back_off: 0,
                news: VecDeque::new(),
                told: String::new(),
            }),
            wanted: AtomicU8::new(0),
            is_parted: AtomicBool::new(false),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Nothing when another thread hands out: it will look at [`Lane::wanted`] again.
    pub(crate) fn try_incoming(&self) -> Option<MutexGuard<'_, Incoming>> {
        match self.incoming.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Queues a message and, unless this thread has a batch open, sends it. False when the peer is
    /// gone.
    pub(crate) fn send(self: &Arc<Self>, parts: &[&[u8]]) -> bool {
        let mut state = self.state();
        if self.is_parted.load(Ordering::Relaxed) {
            return false;
        }
        state.session.push(parts);
        if !batch::add(self) {
            state.pump(usize::MAX);
        }
        true
    }

    /// Sends what a batch held back, and tells the peer what came when it has waited for long.
    pub(crate) fn flush(&self) {
        let mut state = self.state();
        if state.session.is_owed_word() && matches!(state.connection, Connection::Up(_)) {
            state.session.push_bare();
        }
        state.pump(OUT_BYTES);
    }

    /// Takes what came into the inbox, and sends what could not be sent before.
    pub(crate) fn look(self: &Arc<Self>, incoming: &mut Incoming, wanted: u8) -> Looked {
        let limit = match (wanted & END != 0, self.priority) {
            (true, _) => None,
            (false, Priority::Urgent) => Some(URGENT_BYTES),
            (false, Priority::Bulk) => Some(BULK_BYTES),
        };
        let mut guard = self.state();
        let state = &mut *guard;
        let news = std::mem::take(&mut state.news);
        let Connection::Up(up) = &mut state.connection else {
            incoming.inbox.begin(Vec::new());
            return Looked { news, lost: None };
        };
        if incoming.token != up.token {
            incoming.token = up.token;
            incoming.inbox.begin(std::mem::take(&mut up.first));
        }
        let inbox = &mut incoming.inbox;
        let result = up.line.pump_in(&mut state.session, inbox, limit);
        let result = result.and_then(|left| {
            let more = up.line.pump_out(&mut state.session, OUT_BYTES)?;
            if left == Left::Perhaps || more == Left::Perhaps {
                up.look_again();
            }
            Ok(())
        });
        let mut lost = None;
        if let Err(error) = result {
            let why = up.why.take().unwrap_or(error);
            lost = Some(up.token);
            state.note(false, why.to_string());
        }
        if state.session.is_owed_word() {
            // What is answered may carry it.
            batch::add(self);
        }
        Looked { news, lost }
    }
}

impl State {
    /// Sends what there is, about so much at most. Should that fail, whoever looks at the connection
    /// next finds it so.
    pub(crate) fn pump(&mut self, limit: usize) {
        let Connection::Up(up) = &mut self.connection else {
            return;
        };
        match up.line.pump_out(&mut self.session, limit) {
            Ok(Left::Nothing) => {}
            Ok(Left::Perhaps) => up.look_again(),
            Err(error) => up.shut_down(error),
        }
    }

    /// Has the receiver told, unless it was told the same the last time.
    pub(crate) fn note(&mut self, up: bool, why: String) {
        if up || why != self.told {
            self.told.clone_from(&why);
            self.news.push_back(News { up, why });
        }
    }
}

impl Up {
    /// Has an event made for what is there already.
    fn look_again(&self) {
        let data = EventData::new_u64(self.token);
        let _ = epoll::modify(&*self.epoll, &self.line.transport, data, all_events());
    }

    /// Ends it: there will be an event.
    pub(crate) fn shut_down(&mut self, why: Broken) {
        self.why.get_or_insert(why);
        self.line.transport.shut_down();
    }
}
