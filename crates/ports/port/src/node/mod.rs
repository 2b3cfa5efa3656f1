//! A [`Node`]: one task's ports, joined with those of other processes by Links.
//!
//! - [`Node`]: makes ports, meets other Nodes at a path or over a pair of sockets. One Link for
//!   each pair of Nodes, whatever was connected how often; third parties are introduced without
//!   being asked for, when a right to the port of one is sent to the other.
//! - [`SendRight`], [`SendOnceRight`], [`ReceiveRight`], [`PortSet`]: rights, given up when they
//!   are dropped. [`Message`] and [`Received`]: bytes, rights, descriptors, memory.
//! - What rights do is decided by `farpage_rights::Space`; here are Links, threads and time.
//! - Who polls: `poll`. A thread that waits does it itself, so that a call costs no other thread.
//! - Invariant: one Link at most is up between two tasks; the smaller one decides which.
//! - Invariant: a task is a process that Linux names, and a number of its own. Nobody is believed
//!   to be of another process. Tasks meet in one namespace of process ids.
//! - Invariant: what a peer sends is checked before it counts. What is wrong ends its Link, and so
//!   does owing it more than 64 MiB or 512 descriptors that it does not take; nothing else.
//! - Invariant: nothing here waits for a peer while the lock is held.

mod error;
mod future;
mod meet;
mod memory;
mod message;
mod ops;
mod outbox;
mod packet;
mod peer;
mod poll;
mod right;
mod state;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use farpage_rights::{Got, TaskId};
use farpage_sys::Errno;

pub use error::{CallError, ConnectError, ReceiveError, Refused, SendError};
pub use future::{Readiness, Receiving, Room, Sending};
pub use memory::{Donated, Lent, Memory, Ticket};
pub use message::{Message, Notice, Received, Sender};
pub use right::{PortSet, ReceiveRight, Right, SendOnceRight, SendRight};

use crate::link::{Connecting, Listener, connect_socket};
use peer::{Purpose, SocketKind};
use state::{Ask, Inner, State};

/// One task's ports and its Links to other processes.
///
/// Cloning gives the same Node. It lives while something of it does, rights included; its Links
/// end with it. A forked child must not use its parent's Node: it makes its own.
///
/// ```
/// use farpage_port::{Message, Node};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("echo");
/// // The server, here a thread with a Node of its own.
/// let server = Node::new()?;
/// let port = server.port();
/// let listening = server.listen(&path, &port.make_send())?;
/// let serving = std::thread::spawn(move || {
///     let mut call = port.receive(None).expect("a call");
///     let bytes = std::mem::take(&mut call.bytes);
///     call.answer(Message { bytes, ..Message::new(8) }).expect("answered");
/// });
/// // The client.
/// let client = Node::new()?;
/// let echo = client.connect(&path, None)?;
/// let answer = echo.call(Message { bytes: b"hello".to_vec(), ..Message::new(7) }, None)?;
/// assert_eq!((answer.id, &answer.bytes[..]), (8, &b"hello"[..]));
/// # serving.join().expect("no panic");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Node(Arc<Handle>);

/// What all that belongs to a Node keeps.
struct Handle(Arc<Inner>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node")
    }
}

/// A path that is listened at, until this is dropped.
#[derive(Debug)]
pub struct Listening {
    node: Node,
    id: u32,
    /// What those who connect get.
    _right: SendRight,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut state = self.node.lock();
        if let Some(socket) = state.sockets.get_mut(&self.id) {
            socket.purpose = None;
        }
        state.end(self.id);
        self.node.pump(&mut state);
        while state.sockets.contains_key(&self.id) {
            let waited = self.node.inner().applied.wait(state);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

fn failed(doing: &'static str, error: impl Into<std::io::Error>) -> ConnectError {
    let errno = error.into().raw_os_error().unwrap_or(Errno::EIO.0);
    let errno = Errno(errno);
    ConnectError::Failed { doing, errno }
}

fn random<const N: usize>() -> Result<[u8; N], ConnectError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)
            .map_err(|error| failed("get random numbers", error))?;
    }
    Ok(bytes)
}

impl Node {
    /// A Node without ports and Links. It needs no thread until it has a Link.
    ///
    /// # Errors
    /// [`ConnectError::Failed`] when Linux refuses an epoll or random numbers.
    pub fn new() -> Result<Self, ConnectError> {
        let own = u64::from(u32::from_ne_bytes(random()?));
        let task = TaskId(u64::from(std::process::id()) << 32 | own);
        let inner = Inner::new(task).map_err(|error| failed("make an epoll", error))?;
        Ok(Self(Arc::new(Handle(Arc::new(inner)))))
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.0.0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner().lock()
    }

    fn pump(&self, state: &mut State) {
        self.inner().pump(state);
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Makes a port.
    #[must_use]
    pub fn port(&self) -> ReceiveRight {
        let name = self.lock().space.allocate_port();
        ReceiveRight::new(self, name)
    }

    /// Makes a port that stands for one whose receiver is on another host: whoever sends it
    /// descriptors, receive rights or more than 64 MiB of memory is refused, wherever the right has
    /// come to.
    #[must_use]
    pub fn proxy_port(&self) -> ReceiveRight {
        let name = self.lock().space.allocate_proxy();
        ReceiveRight::new(self, name)
    }

    /// Makes an empty port set.
    #[must_use]
    pub fn port_set(&self) -> PortSet {
        let name = self.lock().space.allocate_set();
        PortSet::new(self, name)
    }

    /// Listens at `path`: whoever connects gets a send right to the same port as `right`. A socket
    /// that a dead process left there is replaced. Who may connect is decided by the folder's and
    /// the socket's permissions.
    ///
    /// # Errors
    /// [`ConnectError`], as `bind(2)`: `EADDRINUSE` when somebody listens there.
    ///
    /// # Panics
    /// When the right is of another Node.
    pub fn listen(&self, path: &Path, right: &SendRight) -> Result<Listening, ConnectError> {
        self.listen_by(Listener::bind(path)?, right)
    }

    /// As [`Node::listen`], on a socket that somebody else has bound and made listen, such as a
    /// service manager. It stays where it is afterwards.
    ///
    /// # Errors
    /// [`ConnectError::Failed`]: `EPROTOTYPE` when it is no `SOCK_SEQPACKET` of Unix that listens.
    ///
    /// # Panics
    /// When the right is of another Node.
    pub fn listen_on(
        &self,
        socket: std::os::fd::OwnedFd,
        right: &SendRight,
    ) -> Result<Listening, ConnectError> {
        self.listen_by(Listener::on(socket)?, right)
    }

    fn listen_by(&self, listener: Listener, right: &SendRight) -> Result<Listening, ConnectError> {
        let right = self.own(right);
        let kind = SocketKind::Listener(listener);
        let mut state = self.lock();
        self.inner()
            .start_keeper(&mut state)
            .map_err(|error| failed("start a thread", error))?;
        let id = state.add_socket(kind, Some(Purpose::Offer(right.name())));
        self.pump(&mut state);
        drop(state);
        Ok(Listening {
            node: self.clone(),
            id,
            _right: right,
        })
    }

    /// Gives whoever connects over the other end of `socket` (a pair of `SOCK_SEQPACKET`) a send
    /// right to the same port as `right`. Does not wait: who does not connect within ten seconds
    /// finds the socket closed.
    ///
    /// # Errors
    /// [`ConnectError::Failed`] when there can be no thread.
    ///
    /// # Panics
    /// When the right is of another Node.
    pub fn offer_over(&self, socket: OwnedFd, right: &SendRight) -> Result<(), ConnectError> {
        let right = self.own(right);
        let mut state = self.lock();
        self.inner()
            .start_keeper(&mut state)
            .map_err(|error| failed("start a thread", error))?;
        let purpose = Purpose::Offer(right.name());
        Right::Send(right).taken();
        state.add_socket(SocketKind::Accepting(socket), Some(purpose));
        self.pump(&mut state);
        Ok(())
    }

    fn own(&self, right: &SendRight) -> SendRight {
        let right = right.clone();
        let of = Right::Send(right);
        assert!(
            of.node().is_some_and(|node| node.is(self)),
            "a right of this Node"
        );
        of.into_send().expect("made above")
    }

    /// Connects to whoever listens at `path`, at most for `timeout`: the right that it gives.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(
        &self,
        path: &Path,
        timeout: Option<Duration>,
    ) -> Result<SendRight, ConnectError> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let socket = connect_socket(path, until)?;
        self.ask(socket, until)
    }

    /// The same over one end of a pair of sockets, the other end of which is given to
    /// [`Node::offer_over`].
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect_over(
        &self,
        socket: OwnedFd,
        timeout: Option<Duration>,
    ) -> Result<SendRight, ConnectError> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.ask(socket, until)
    }

    fn ask(&self, socket: OwnedFd, until: Option<Instant>) -> Result<SendRight, ConnectError> {
        let connecting = Connecting::begin(socket)?;
        let token = u64::from_ne_bytes(random()?);
        let mut state = self.lock();
        self.inner()
            .start_keeper(&mut state)
            .map_err(|error| failed("start a thread", error))?;
        state.space.expect_offer(token);
        let waiter = state.thread();
        let ask = Ask {
            waiter,
            link: None,
            result: None,
        };
        state.asks.insert(token, ask);
        let purpose = Some(Purpose::Ask(token));
        state.add_socket(SocketKind::Connecting(connecting), purpose);
        self.pump(&mut state);
        let (mut state, _) = self.inner().block(state, waiter, until);
        state.space.forget_offer(token);
        let ask = state.asks.remove(&token).expect("removed here only");
        if ask.result.is_none() {
            state.give_up(token);
        }
        self.pump(&mut state);
        drop(state);
        match ask.result {
            None => Err(ConnectError::TimedOut),
            Some(Err(error)) => Err(error),
            Some(Ok(Got::Send(name))) => Ok(SendRight::new(self, name)),
            Some(Ok(Got::SendOnce(name))) => {
                drop(SendOnceRight::new(self, name));
                Err(ConnectError::Closed)
            }
            Some(Ok(Got::Receive(_) | Got::Dead)) => Err(ConnectError::Dead),
        }
    }
}
