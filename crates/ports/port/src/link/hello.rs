//! How two processes get a Link: each says which version it speaks and who it is.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use farpage_sys::message::{self, Received};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags};

use super::Link;
use super::error::{ConnectError, connecting, errno};
use super::layout::{self, Shared, Side};
use super::peer::Peer;
use super::wake::{Waker, Watched, timespec_until};

/// The version of the protocol: greeting, ring and frames.
pub const VERSION: u16 = 2;
const MAGIC: u32 = u32::from_le_bytes(*b"FpLk");
const GREETING_BYTES: usize = 16;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Accepts Links at a path.
pub struct Listener {
    socket: OwnedFd,
    /// To be removed with it.
    path: Option<PathBuf>,
}

/// Connecting to a file that is no socket is refused, too.
fn is_socket(path: &Path) -> bool {
    let about = rustix::fs::lstat(path);
    about.is_ok_and(|about| FileType::from_raw_mode(about.st_mode) == FileType::Socket)
}

impl Listener {
    /// Listens at `path`. A socket that a dead process left there is replaced.
    ///
    /// # Errors
    /// As `bind(2)`: `EADDRINUSE` when somebody listens there.
    pub fn bind(path: &Path) -> Result<Self, ConnectError> {
        let address = SocketAddrUnix::new(path).map_err(connecting("use this path"))?;
        let socket = new_socket()?;
        let mut bound = net::bind(&socket, &address);
        if bound == Err(Errno::ADDRINUSE) {
            let probe = net::connect(new_socket()?, &address);
            if probe == Err(Errno::CONNREFUSED) && is_socket(path) {
                rustix::fs::unlink(path).map_err(connecting("remove a dead socket"))?;
                bound = net::bind(&socket, &address);
            }
        }
        bound.map_err(connecting("bind a socket"))?;
        net::listen(&socket, BACKLOG).map_err(connecting("listen"))?;
        let path = Some(path.to_owned());
        Ok(Self { socket, path })
    }

    /// Listens on a socket that somebody else has bound and made listen, and whose path is theirs.
    ///
    /// # Errors
    /// `EPROTOTYPE` when it is no `SOCK_SEQPACKET` of Unix that listens.
    pub fn on(socket: OwnedFd) -> Result<Self, ConnectError> {
        let about = net::sockopt::socket_domain(&socket).and_then(|domain| {
            let kind = net::sockopt::socket_type(&socket)?;
            Ok((domain, kind, net::sockopt::socket_acceptconn(&socket)?))
        });
        if about != Ok((AddressFamily::UNIX, SocketType::SEQPACKET, true)) {
            let doing = "listen on the socket that was given";
            return Err(connecting(doing)(about.err().unwrap_or(Errno::PROTOTYPE)));
        }
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)
            .map_err(connecting("keep the socket that was given from children"))?;
        Ok(Self { socket, path: None })
    }

    /// Waits for somebody to connect, and greets them. A client that is refused, or too slow, costs
    /// an error: accept again.
    ///
    /// # Errors
    /// As for [`Link::accept_over`].
    pub fn accept(&self, deadline: Option<Instant>) -> Result<Link, ConnectError> {
        await_readable(&self.socket, deadline)?;
        Link::accept_over(self.accept_socket()?, deadline)
    }

    /// The socket of the next one that waits to be accepted.
    pub(crate) fn accept_socket(&self) -> Result<OwnedFd, ConnectError> {
        net::accept_with(&self.socket, SocketFlags::CLOEXEC).map_err(connecting("accept"))
    }
}

/// Readable when somebody waits to be accepted.
impl AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = rustix::fs::unlink(path);
        }
    }
}

impl Link {
    /// Connects to whoever listens at `path`.
    ///
    /// # Errors
    /// As for [`Link::connect_over`].
    pub fn connect(path: &Path, deadline: Option<Instant>) -> Result<Self, ConnectError> {
        Self::connect_over(connect_socket(path, deadline)?, deadline)
    }

    /// Makes a Link of one end of a pair of sockets (`SOCK_SEQPACKET`), whose other end is given to
    /// [`Link::accept_over`].
    ///
    /// # Errors
    /// [`ConnectError`] says what and why.
    pub fn connect_over(socket: OwnedFd, deadline: Option<Instant>) -> Result<Self, ConnectError> {
        Connecting::begin(socket)?.finish(deadline)
    }

    /// Makes a Link of the other end.
    ///
    /// # Errors
    /// [`ConnectError`] says what and why. A peer of another version is told so.
    pub fn accept_over(socket: OwnedFd, deadline: Option<Instant>) -> Result<Self, ConnectError> {
        check(&socket)?;
        let heard = hear(&socket, deadline);
        if matches!(heard, Err(ConnectError::Version { .. })) {
            greet(&socket, &[])?;
        }
        let (peer, fds) = heard?;
        let [ring, pipe] = <[OwnedFd; 2]>::try_from(fds)
            .map_err(|_| ConnectError::Greeting("it does not bring a ring and a pipe"))?;
        let shared = Shared::map(ring.as_fd(), Side::Acceptor)
            .map_err(|_| ConnectError::Greeting("its ring is not sealed or sized as agreed"))?;
        let (waker, watched_by_peer) = Waker::new().map_err(connecting("make a pipe"))?;
        greet(&socket, &[watched_by_peer.as_fd()])?;
        assemble(shared, waker, socket, pipe, peer)
    }
}

/// A Link whose other side has been greeted and has not answered yet.
pub(crate) struct Connecting {
    socket: OwnedFd,
    shared: Shared,
    waker: Waker,
}

impl Connecting {
    /// Greets, without waiting.
    pub(crate) fn begin(socket: OwnedFd) -> Result<Self, ConnectError> {
        check(&socket)?;
        let ring = layout::create().map_err(failed("make a ring"))?;
        let shared = Shared::map(ring.as_fd(), Side::Connector).map_err(failed("map a ring"))?;
        let (waker, watched_by_peer) = Waker::new().map_err(connecting("make a pipe"))?;
        greet(&socket, &[ring.as_fd(), watched_by_peer.as_fd()])?;
        Ok(Self {
            socket,
            shared,
            waker,
        })
    }

    /// Waits for the answer, which is there when the socket is readable.
    pub(crate) fn finish(self, deadline: Option<Instant>) -> Result<Link, ConnectError> {
        let (peer, fds) = hear(&self.socket, deadline)?;
        let [pipe] = <[OwnedFd; 1]>::try_from(fds)
            .map_err(|_| ConnectError::Greeting("it does not bring one pipe"))?;
        assemble(self.shared, self.waker, self.socket, pipe, peer)
    }
}

impl AsFd for Connecting {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Connects a socket to whoever listens at `path`.
pub(crate) fn connect_socket(
    path: &Path,
    deadline: Option<Instant>,
) -> Result<OwnedFd, ConnectError> {
    let address = SocketAddrUnix::new(path).map_err(connecting("use this path"))?;
    let socket = new_socket()?;
    let limit = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // Linux takes none for no limit.
    let limit = limit.map(|limit| limit.max(std::time::Duration::from_millis(1)));
    net::sockopt::set_socket_timeout(&socket, net::sockopt::Timeout::Send, limit)
        .map_err(connecting("limit the time to connect"))?;
    match net::connect(&socket, &address) {
        Err(Errno::AGAIN) => return Err(ConnectError::TimedOut),
        other => other.map_err(connecting("connect"))?,
    }
    Ok(socket)
}

fn failed(doing: &'static str) -> impl FnOnce(farpage_sys::Errno) -> ConnectError {
    move |errno| ConnectError::Failed { doing, errno }
}

fn new_socket() -> Result<OwnedFd, ConnectError> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    net::socket_with(family, kind, SocketFlags::CLOEXEC, None).map_err(connecting("make a socket"))
}

/// That a descriptor, which may come from anybody, is a socket of the kind that is needed.
fn check(socket: &OwnedFd) -> Result<(), ConnectError> {
    let kind = net::sockopt::socket_type(socket);
    let family = net::sockopt::socket_domain(socket);
    if (kind, family) != (Ok(SocketType::SEQPACKET), Ok(AddressFamily::UNIX)) {
        return Err(ConnectError::Greeting(
            "it comes by something else than a Unix socket of packets",
        ));
    }
    message::pass_credentials(socket.as_fd(), true).map_err(failed("ask for credentials"))
}

fn await_readable(socket: &OwnedFd, deadline: Option<Instant>) -> Result<(), ConnectError> {
    loop {
        let limit = deadline.map(timespec_until);
        let mut fds = [PollFd::new(socket, PollFlags::IN)];
        match rustix::event::poll(&mut fds, limit.as_ref()) {
            Ok(0) => return Err(ConnectError::TimedOut),
            Err(Errno::INTR) => {}
            other => return other.map(drop).map_err(connecting("wait for the peer")),
        }
    }
}

fn greet(socket: &OwnedFd, fds: &[std::os::fd::BorrowedFd<'_>]) -> Result<(), ConnectError> {
    let mut greeting = [0; GREETING_BYTES];
    greeting[..4].copy_from_slice(&MAGIC.to_ne_bytes());
    greeting[4..6].copy_from_slice(&VERSION.to_ne_bytes());
    match message::send(socket.as_fd(), &greeting, fds, true) {
        Err(farpage_sys::Errno::EPIPE) => Err(ConnectError::Closed),
        other => other.map_err(failed("greet the peer")),
    }
}

/// Waits for the peer's greeting: who it is, and what it brings.
fn hear(socket: &OwnedFd, deadline: Option<Instant>) -> Result<(Peer, Vec<OwnedFd>), ConnectError> {
    await_readable(socket, deadline)?;
    // A longer one of another version is understood as far as the version.
    let mut greeting = [0; 4 * GREETING_BYTES];
    let received = match message::receive(socket.as_fd(), &mut greeting) {
        Ok(Received { bytes: 0, .. }) | Err(farpage_sys::Errno::ECONNRESET) => {
            return Err(ConnectError::Closed);
        }
        other => other.map_err(failed("receive the peer's greeting"))?,
    };
    if received.bytes < GREETING_BYTES || greeting[..4] != MAGIC.to_ne_bytes() {
        return Err(ConnectError::Greeting("it is none of this protocol"));
    }
    let theirs = u16::from_ne_bytes([greeting[4], greeting[5]]);
    if theirs != VERSION {
        let ours = VERSION;
        return Err(ConnectError::Version { ours, theirs });
    }
    if received.bytes != GREETING_BYTES || received.truncated {
        return Err(ConnectError::Greeting("it is too long"));
    }
    if received.lost {
        return Err(ConnectError::Failed {
            doing: "receive descriptors, of which this process may not have more",
            errno: farpage_sys::Errno::EMFILE,
        });
    }
    let peer = received.credentials;
    let peer = peer.ok_or(ConnectError::Greeting("it does not say who it is"))?;
    Ok((peer, received.fds))
}

fn assemble(
    shared: Shared,
    waker: Waker,
    socket: OwnedFd,
    pipe: OwnedFd,
    peer: Peer,
) -> Result<Link, ConnectError> {
    // Only pipes have a size; of a file that the peer answers for nothing else is asked.
    rustix::pipe::fcntl_getpipe_size(&pipe)
        .map_err(|_| ConnectError::Greeting("what it brings is no pipe"))?;
    message::pass_credentials(socket.as_fd(), false).map_err(failed("leave credentials"))?;
    let process = process_of(&socket, peer)?;
    let watched = Watched {
        pipe,
        socket,
        process,
    };
    Link::new(shared, watched, waker, peer).map_err(connecting("watch the peer"))
}

/// A descriptor of the peer's process, if this process can see it.
fn process_of(socket: &OwnedFd, peer: Peer) -> Result<Option<OwnedFd>, ConnectError> {
    let raw = i32::try_from(peer.pid).ok().and_then(Pid::from_raw);
    let Some(pid) = raw else {
        return Ok(None);
    };
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => {
            // Dead since its greeting: the number may be another process's by now.
            let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
            let now = rustix::event::Timespec::default();
            let gone = rustix::event::poll(&mut fds, Some(&now));
            Ok((gone == Ok(0)).then_some(process))
        }
        Err(Errno::SRCH) => Ok(None),
        Err(error) => Err(ConnectError::Failed {
            doing: "watch the peer's process",
            errno: errno(error),
        }),
    }
}
