//! What a daemon sees of the network.

use std::collections::hash_map::Entry;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

use crate::greet::connects;
use crate::lane::{Connection, Lane};
use crate::session::Session;
use crate::shared::{LISTENER, STOP, Shared, TIMER, is_called, lock};
use crate::tick::TICK;
use crate::{Batch, ClusterKey, Incarnation, Priority};

/// How a network is started.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where others connect to. Port 0: any; see [`Network::local_address`].
    pub listen: SocketAddr,
    /// Who has the same may take part.
    pub key: ClusterKey,
    /// Who this is.
    pub incarnation: Incarnation,
    /// A thread of the network's own handles what happens. Without it others have to call
    /// [`Network::turn`] soon whenever [`Network::descriptor`] is readable.
    pub own_thread: bool,
    /// A connection over which nothing came for so long, or that took nothing, is broken, and made
    /// anew. A peer that has nothing to say says so every half second: no less than a second, for
    /// which anything below is taken.
    pub silence: Duration,
}

impl Config {
    /// With a thread of its own, and two seconds of silence.
    #[must_use]
    pub fn new(listen: SocketAddr, key: ClusterKey, incarnation: Incarnation) -> Self {
        Self {
            listen,
            key,
            incarnation,
            own_thread: true,
            silence: Duration::from_secs(2),
        }
    }
}

/// Why a network did not start.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// Others could not connect.
    #[error(
        "cannot listen on {address}: {source}; give an address of this host, and a port that is \
         free"
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What Linux says.
        source: io::Error,
    },
    /// Linux refuses what any network needs.
    #[error("cannot start the network: {0}; is the limit of open files reached?")]
    System(io::Error),
    /// No certificate could be made.
    #[error("cannot make a certificate with the cluster's key: {0}; make a new key")]
    Certificate(String),
}

/// A message was sent to who is not met, or was parted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("incarnation {0} is gone, or was never met: nothing can be sent to it")]
pub struct Gone(pub Incarnation);

/// Why somebody cannot be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeetError {
    /// It is this one.
    #[error("incarnation {0} is this process itself; each needs a number of its own")]
    Itself(Incarnation),
    /// Messages of it may be lost.
    #[error("incarnation {0} was parted from, and stays so; its host has to start anew")]
    Parted(Incarnation),
}

/// Who is told what comes.
///
/// Calls come from whichever thread makes a turn: never two at a time for one peer and
/// priority, else several at a time. They may call everything of [`Network`], except that turns are
/// not made in them. They must not wait: for as long, nothing of that connection is handled, and
/// nobody whom only this thread serves is.
pub trait Receiver: Send + Sync {
    /// A message came: the next one of this peer and priority. What is sent meanwhile by this
    /// thread leaves when all is handled that came together with it.
    fn received(&self, from: Incarnation, priority: Priority, message: &[u8]);

    /// A connection was made, was lost, or could not be made, for this reason. What was sent waits
    /// meanwhile.
    fn link_changed(&self, peer: Incarnation, priority: Priority, up: bool, why: &str) {
        let _ = (peer, priority, up, why);
    }

    /// Somebody connected and was turned away: of another cluster, not met yet, or no host at all.
    fn refused(&self, from: SocketAddr, why: &str) {
        let _ = (from, why);
    }
}

/// A host's end of the cluster's network. When it is dropped, all connections are closed.
pub struct Network {
    shared: Arc<Shared>,
    local_address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    /// Listens, and meets nobody yet.
    ///
    /// # Errors
    /// When the address cannot be listened on, or Linux is out of something.
    pub fn start(config: Config, receiver: Arc<dyn Receiver>) -> Result<Self, NetworkError> {
        let address = config.listen;
        let listen = |source| NetworkError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let local_address = listener.local_addr().map_err(listen)?;
        let identity = config.key.identity(config.incarnation);
        let identity = identity.map_err(|e| NetworkError::Certificate(e.to_string()))?;
        let system = |errno: Errno| NetworkError::System(errno.into());
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(system)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let silence = (config.silence.max(Duration::from_secs(1))).as_millis() / TICK.as_millis();
        let shared = Arc::new(Shared::new(
            config.incarnation,
            identity,
            receiver,
            listener,
            [epoll, timer, stop],
            u32::try_from(silence).unwrap_or(u32::MAX),
        ));
        shared.watch(&shared.timer, TIMER).map_err(system)?;
        shared.tick_soon();
        shared.watch(&shared.listener, LISTENER).map_err(system)?;
        let data = epoll::EventData::new_u64(STOP);
        epoll::add(&*shared.epoll, &shared.stop, data, epoll::EventFlags::IN).map_err(system)?;
        let mut network = Self {
            shared,
            local_address,
            thread: None,
        };
        if config.own_thread {
            let shared = Arc::clone(&network.shared);
            let thread = std::thread::Builder::new()
                .name("network".into())
                .spawn(move || {
                    while !shared.is_stopped.load(Ordering::SeqCst) {
                        shared.turn(None);
                    }
                });
            network.thread = Some(thread.map_err(NetworkError::System)?);
        }
        Ok(network)
    }

    /// Where it listens.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// From now on there is a connection to `peer`, or one is being made: by whose number is the
    /// smaller. Again: its address has changed.
    ///
    /// # Errors
    /// [`MeetError`]; nothing has changed.
    pub fn meet(&self, peer: Incarnation, address: SocketAddr) -> Result<(), MeetError> {
        if peer == self.shared.incarnation {
            return Err(MeetError::Itself(peer));
        }
        let mut peers = self
            .shared
            .peers
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if peers.parted.contains(&peer) {
            return Err(MeetError::Parted(peer));
        }
        let lanes = match peers.met.entry(peer) {
            Entry::Occupied(met) => {
                met.get()
                    .iter()
                    .for_each(|lane| lane.state().address = address);
                return Ok(());
            }
            Entry::Vacant(new) => new
                .insert(
                    [Priority::Urgent, Priority::Bulk]
                        .map(|priority| Arc::new(Lane::new(peer, priority, address))),
                )
                .clone(),
        };
        drop(peers);
        if connects(self.shared.incarnation, peer) {
            for lane in &lanes {
                lane.state().connection = Connection::Waits(0);
            }
            // Not here: the caller may hold locks that callbacks take.
            self.shared.tick_soon();
        }
        Ok(())
    }

    /// The peer is dead, or fenced: its connections are closed, what waits for it is dropped, and it
    /// is never met again. When this returns, nothing of it is handed out any more: it waits for a
    /// callback that another thread is in, so hold no lock that [`Receiver`] takes. Called from a
    /// callback it does not wait, and another thread's callback may still be coming to its end.
    pub fn part(&self, peer: Incarnation) {
        let mut peers = self
            .shared
            .peers
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        peers.parted.insert(peer);
        let lanes = peers.met.remove(&peer);
        drop(peers);
        for lane in lanes.iter().flatten() {
            let mut state = lane.state();
            lane.is_parted.store(true, Ordering::SeqCst);
            let old = std::mem::replace(&mut state.connection, Connection::Theirs);
            if let Connection::Up(up) = &old {
                self.shared.forget(up.token);
            }
            state.session = Session::default();
            state.news.clear();
        }
        for lane in lanes.iter().flatten() {
            if !is_called() {
                drop(lock(&lane.incoming));
            }
        }
    }

    /// Sends a message: its parts, one behind the other, 1 byte to
    /// [`crate::MESSAGE_BYTES_MAX`] in all. Never waits: what the connection does not take is kept,
    /// until the peer has it; see [`Network::owed_bytes`].
    ///
    /// # Errors
    /// [`Gone`].
    ///
    /// # Panics
    /// When it is empty or too long.
    pub fn send(&self, peer: Incarnation, priority: Priority, parts: &[&[u8]]) -> Result<(), Gone> {
        match self.shared.lane(peer, priority) {
            Some(lane) if lane.send(parts) => Ok(()),
            Some(_) | None => Err(Gone(peer)),
        }
    }

    /// While the batch lives, what this thread sends waits, and then leaves together: one write for
    /// each connection.
    pub fn batch(&self) -> Batch {
        Batch::open()
    }

    /// What is kept for `peer`, in bytes, because it has not said that it came. Who sends much waits
    /// while this is much: there is no other limit. It falls when the peer says so, at the latest
    /// every 256 KiB, or after a tenth of a second.
    ///
    /// # Errors
    /// [`Gone`].
    pub fn owed_bytes(&self, peer: Incarnation, priority: Priority) -> Result<usize, Gone> {
        let lane = self.shared.lane(peer, priority).ok_or(Gone(peer))?;
        let owed = lane.state().session.owed_bytes();
        Ok(owed)
    }

    /// Handles what has happened, without waiting. Any thread may, several at a time. False when
    /// nothing had; nothing is done in a callback.
    pub fn turn(&self) -> bool {
        self.shared.turn(Some(Duration::ZERO))
    }

    /// As [`Network::turn`], but waits until something happens, for so long at most. What this
    /// thread waits for may be handled by another, which then has to wake it.
    pub fn turn_within(&self, limit: Duration) -> bool {
        self.shared.turn(Some(limit))
    }

    /// Readable when there is something to handle: an epoll, to be waited for in another. It is not
    /// to be changed or read.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.epoll.as_fd()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
        for lane in self.shared.lanes() {
            lane.is_parted.store(true, Ordering::SeqCst);
            lane.state().connection = Connection::Theirs;
        }
        let watched = &self.shared.watched;
        watched
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}
