//! How two Nodes come to have one Link: by a path, by a pair of sockets, or introduced by a third.
//!
//! A Link that is made says who is at either end: process and a number of the Node's own, of which
//! Linux vouches for the process. The task with the smaller number decides whether this is the
//! Link of the two, so that both agree when they have made several at a time. What the Link was
//! made for then happens by the one that is used.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farpage_rights::{Disposition, Give, LinkId, TaskId};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::error::ConnectError;
use super::packet::{Packet, Say, VERSION, version};
use super::peer::{Breach, Peer, Purpose, Socket, SocketKind, Stage};
use super::state::{Change, State};
use crate::link::{Connecting, HEADER_BYTES, Link};

/// How long a peer may take to say who it is.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long nobody is accepted after that has failed.
const PAUSE: Duration = Duration::from_millis(100);
/// Strangers that may be saying who they are at a time.
const STRANGERS_MAX: usize = 256;

impl State {
    /// Watches a socket that will become a Link.
    pub(super) fn add_socket(&mut self, kind: SocketKind, purpose: Option<Purpose>) -> u32 {
        let id = self.number();
        let timed = !matches!(kind, SocketKind::Listener(_));
        let deadline = timed.then(|| Instant::now() + HANDSHAKE);
        self.deadlines.extend(deadline.map(|at| (at, id)));
        let socket = Socket {
            kind,
            purpose,
            deadline,
        };
        self.sockets.insert(id, socket);
        self.change(Change::Watch(id));
        id
    }

    /// A socket is readable.
    pub(super) fn socket_ready(&mut self, id: u32) {
        let Some(socket) = self.sockets.get(&id) else {
            return;
        };
        if let SocketKind::Listener(listener) = &socket.kind {
            let accepted = listener.accept_socket();
            let purpose = socket.purpose;
            match (accepted, purpose) {
                (Ok(accepted), Some(Purpose::Offer(name))) => self.stranger(accepted, name),
                _ => self.pause(id),
            }
            return;
        }
        if let Some(set) = &self.set {
            set.forget(std::os::fd::AsFd::as_fd(socket));
        }
        let socket = self.sockets.remove(&id).expect("found above");
        if let Some(deadline) = socket.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        let now = Some(Instant::now());
        let link = match socket.kind {
            SocketKind::Accepting(fd) => Link::accept_over(fd, now),
            SocketKind::Connecting(connecting) => connecting.finish(now),
            SocketKind::Listener(_) => unreachable!("dealt with above"),
        };
        match link {
            Ok(link) => self.greet(id, link, socket.purpose),
            Err(error) => {
                if let Some(purpose) = socket.purpose {
                    self.fail(purpose, error.into());
                }
            }
        }
    }

    /// Somebody has connected to a path, and gets the right `name`. Those who say nothing must go
    /// for those who come.
    fn stranger(&mut self, socket: OwnedFd, name: farpage_rights::Name) {
        if self.strangers.len() >= STRANGERS_MAX
            && let Some(oldest) = self.strangers.pop_front()
        {
            self.end(oldest);
        }
        if self.space.mod_refs(name, 1).is_ok() {
            let purpose = Some(Purpose::Offer(name));
            let id = self.add_socket(SocketKind::Accepting(socket), purpose);
            self.strangers.push_back(id);
        }
    }

    /// Nobody can be accepted, for want of descriptors most likely: tries again later.
    fn pause(&mut self, id: u32) {
        let (Some(socket), Some(set)) = (self.sockets.get_mut(&id), &self.set) else {
            return;
        };
        set.forget(std::os::fd::AsFd::as_fd(socket));
        let until = Instant::now() + PAUSE;
        socket.deadline = Some(until);
        self.deadlines.insert((until, id));
    }

    /// Says who this is.
    fn greet(&mut self, id: u32, link: Link, purpose: Option<Purpose>) {
        let deadline = Instant::now() + HANDSHAKE;
        self.deadlines.insert((deadline, id));
        let link = Arc::new(link);
        let peer = Peer::new(Arc::clone(&link), purpose, deadline);
        self.peers.insert(id, peer);
        self.change(Change::Insert(id, link));
        let token = match purpose {
            Some(Purpose::Ask(token)) => token,
            Some(Purpose::Offer(_) | Purpose::Introduction(_) | Purpose::Met(_)) | None => 0,
        };
        let task = self.task;
        self.put_packet(id, Packet::own(Say::Hello { task, token }, Vec::new()));
    }

    /// Handshakes that take too long end.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.deadlines.first() {
            if at > now {
                return;
            }
            self.deadlines.remove(&(at, id));
            if let Some(socket) = self.sockets.get_mut(&id)
                && matches!(socket.kind, SocketKind::Listener(_))
            {
                socket.deadline = None;
                self.change(Change::Watch(id));
                continue;
            }
            let purpose = match (self.sockets.get_mut(&id), self.peers.get_mut(&id)) {
                (Some(socket), _) => socket.purpose.take(),
                (None, Some(peer)) => peer.purpose.take(),
                (None, None) => None,
            };
            if let Some(purpose) = purpose {
                self.fail(purpose, ConnectError::TimedOut);
            }
            self.end(id);
        }
    }

    pub(super) fn check_version(
        &mut self,
        id: u32,
        header: &[u8; HEADER_BYTES],
    ) -> Result<(), Breach> {
        let theirs = version(header);
        if theirs == Some(VERSION) {
            return Ok(());
        }
        let peer = self.peers.get_mut(&id).expect("looked up before");
        if let (Some(theirs), Some(purpose)) = (theirs, peer.purpose.take()) {
            let ours = VERSION;
            self.fail(purpose, ConnectError::Version { ours, theirs });
        }
        Err(Breach("it speaks another version, or is no Node"))
    }

    /// A peer says who it is: believed as far as Linux says the same.
    pub(super) fn hello(&mut self, id: u32, task: TaskId, token: u64) -> Result<(), Breach> {
        let own = self.task;
        let peer = self.peers.get_mut(&id).expect("looked up before");
        let is_itself = task.0 >> 32 == u64::from(peer.link.peer().pid) && task.0 >> 32 != 0;
        let is_meant = match peer.purpose {
            Some(Purpose::Introduction(meant) | Purpose::Met(meant)) => meant == task,
            Some(Purpose::Ask(_) | Purpose::Offer(_)) | None => true,
        };
        if task == own || !is_itself || !is_meant {
            let error = if is_itself {
                ConnectError::Greeting("it is this Node itself, or not the task that was meant")
            } else {
                ConnectError::Greeting(
                    "it claims another process than Linux says, or lives in another namespace of \
                     process ids",
                )
            };
            if let Some(purpose) = peer.purpose.take() {
                self.fail(purpose, error);
            }
            return Err(Breach("it is not who it should be"));
        }
        (peer.task, peer.token, peer.stage) = (Some(task), token, Stage::Deciding);
        if own < task {
            let is_known = self.tasks.contains_key(&task);
            let say = if is_known { Say::Another } else { Say::Use };
            self.put_packet(id, Packet::own(say, Vec::new()));
            if is_known {
                self.another_is_up(id);
            } else {
                self.link_is_up(id);
            }
        }
        Ok(())
    }

    /// This is the Link of the two tasks.
    pub(super) fn link_is_up(&mut self, id: u32) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let task = peer.task.expect("it has said who it is");
        peer.stage = Stage::Up;
        self.strangers.retain(|stranger| *stranger != id);
        let (purpose, token) = (peer.purpose.take(), peer.token);
        let credentials = peer.link.peer();
        if let Some(deadline) = peer.deadline.take() {
            self.deadlines.remove(&(deadline, id));
        }
        if let Some(&old) = self.tasks.get(&task) {
            // The peer, which decides, knows already that it has ended.
            self.end(old);
        }
        let badge = u64::from(credentials.uid) << 32 | u64::from(credentials.gid);
        let up = self.space.link_up(LinkId(id), task, badge);
        up.expect("the number is new, and the task has no other Link");
        self.tasks.insert(task, id);
        self.introducing.remove(&task);
        self.settle(id, purpose, token);
    }

    /// There is one already: what this Link was made for happens by that.
    pub(super) fn another_is_up(&mut self, id: u32) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let task = peer.task.expect("it has said who it is");
        let (purpose, token) = (peer.purpose.take(), peer.token);
        match self.tasks.get(&task) {
            Some(&known) => self.settle(known, purpose, token),
            None => {
                if let Some(purpose) = purpose {
                    self.fail(purpose, ConnectError::Closed);
                }
            }
        }
        self.end(id);
    }

    fn settle(&mut self, id: u32, purpose: Option<Purpose>, token: u64) {
        match purpose {
            Some(Purpose::Ask(token)) => {
                if let Some(ask) = self.asks.get_mut(&token) {
                    ask.link = Some(id);
                }
            }
            Some(Purpose::Offer(name)) => {
                let give = Give::new(name, Disposition::MoveSend);
                if self.space.offer(LinkId(id), token, give).is_err() {
                    let _ = self.space.deallocate(name);
                }
            }
            Some(Purpose::Introduction(task)) => {
                self.introducing.remove(&task);
            }
            Some(Purpose::Met(_)) | None => {}
        }
    }

    /// The Space wants a Link to `task`, which the peer `by` has spoken of.
    pub(super) fn ask_for_introduction(&mut self, task: TaskId, by: u32) {
        if !self.peers.contains_key(&by) {
            return self.space.not_introduced(task);
        }
        self.introducing.insert(task, by);
        self.put_packet(by, Packet::own(Say::Introduce { task }, Vec::new()));
    }

    /// The peer `id` wants a Link to `task`.
    pub(super) fn introduce(&mut self, id: u32, task: TaskId) {
        let asking = self.peers.get(&id).and_then(|peer| peer.task);
        let other = self.tasks.get(&task).copied().filter(|&other| other != id);
        let pair = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        );
        let (Some(asking), Some(other), Ok((one, two))) = (asking, other, pair) else {
            let unknown = Packet::own(Say::Unknown { task }, Vec::new());
            return self.put_packet(id, unknown);
        };
        for (to, of, end, connects) in [(id, task, one, true), (other, asking, two, false)] {
            let say = Say::Meet { task: of, connects };
            self.put_packet(to, Packet::own(say, vec![end]));
        }
    }

    /// The peer `by` hands over a socket to `task`.
    pub(super) fn meet(&mut self, by: u32, task: TaskId, connects: bool, socket: OwnedFd) {
        if connects && self.introducing.get(&task) != Some(&by) {
            return;
        }
        if !connects {
            if self.deadlines.len() < STRANGERS_MAX {
                self.add_socket(SocketKind::Accepting(socket), Some(Purpose::Met(task)));
            }
            return;
        }
        let purpose = Purpose::Introduction(task);
        match Connecting::begin(socket) {
            Ok(connecting) => {
                self.add_socket(SocketKind::Connecting(connecting), Some(purpose));
            }
            Err(error) => self.fail(purpose, error.into()),
        }
    }
}

impl State {
    /// Nobody waits for the right of this token any more.
    pub(super) fn give_up(&mut self, token: u64) {
        let is_for =
            |purpose: Option<Purpose>| matches!(purpose, Some(Purpose::Ask(of)) if of == token);
        let sockets = self.sockets.iter().filter(|(_, it)| is_for(it.purpose));
        let peers = self.peers.iter().filter(|(_, it)| is_for(it.purpose));
        let ids = sockets.map(|(&id, _)| id).chain(peers.map(|(&id, _)| id));
        for id in ids.collect::<Vec<_>>() {
            self.end(id);
        }
    }
}
