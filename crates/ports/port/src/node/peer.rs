//! Peers: what comes by their Links, and what goes.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use farpage_rights::{
    Descriptor, Frame, LinkId, MAX_DESCRIPTORS, MAX_MEMORY, MemoryKind, MessageFrame, Name, TaskId,
};

use super::error::ConnectError;
use super::memory::{Donated, Half, Held};
use super::outbox::Outbox;
use super::packet::{Packet, RIGHTS, Say, Sending, joined, portions};
use super::state::{State, Table};
use crate::link::{
    Attached, Connecting, Ended, HEADER_BYTES, Link, Listener, Loan, LoanId, Message, Plain,
    REGIONS_MAX,
};

/// Frames taken from one Link before the next one has its turn.
const BATCH: usize = 64;

/// What a Link is made for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// Somebody here waits for the right of this token.
    Ask(u64),
    /// Whoever is there gets this right, of which one reference is held.
    Offer(Name),
    /// A right of this task's came by somebody else.
    Introduction(TaskId),
    /// This task asked somebody else for it.
    Met(TaskId),
}

/// What has a socket and is no Link yet.
pub(super) struct Socket {
    pub(super) kind: SocketKind,
    pub(super) purpose: Option<Purpose>,
    pub(super) deadline: Option<Instant>,
}

pub(super) enum SocketKind {
    Listener(Listener),
    Accepting(OwnedFd),
    Connecting(Connecting),
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            SocketKind::Listener(listener) => listener.as_fd(),
            SocketKind::Accepting(socket) => socket.as_fd(),
            SocketKind::Connecting(connecting) => connecting.as_fd(),
        }
    }
}

/// How far two Nodes have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The peer has not said who it is.
    Greeting,
    /// The peer says whether this is the Link.
    Deciding,
    Up,
}

/// Who is at the other end of a Link.
pub(super) struct Peer {
    pub(super) link: Arc<Link>,
    pub(super) task: Option<TaskId>,
    pub(super) stage: Stage,
    pub(super) purpose: Option<Purpose>,
    /// What it calls the right that it waits for.
    pub(super) token: u64,
    /// When it must have said who it is.
    pub(super) deadline: Option<Instant>,
    pub(super) outbox: Outbox,
    /// Descriptors and loans of the message that comes next.
    pub(super) parts: Vec<OwnedFd>,
    pub(super) loans: Vec<Loan>,
    /// What it borrows.
    pub(super) lent: HashMap<LoanId, Half>,
    /// Files of the regions that it borrows from.
    regions: HashSet<u64>,
    /// Frames of the Space's, put together.
    scratch: Vec<u8>,
}

/// What a peer did that ends its Link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Breach(pub(super) &'static str);

impl Peer {
    pub(super) fn new(link: Arc<Link>, purpose: Option<Purpose>, deadline: Instant) -> Self {
        Self {
            link,
            task: None,
            stage: Stage::Greeting,
            purpose,
            token: 0,
            deadline: Some(deadline),
            outbox: Outbox::default(),
            parts: Vec::new(),
            loans: Vec::new(),
            lent: HashMap::new(),
            regions: HashSet::new(),
            scratch: Vec::new(),
        }
    }

    /// The frame of the Space's that came, when it is a sound one with nothing beside it.
    fn plain_frame(&self) -> Option<Frame> {
        let is_plain = self.stage == Stage::Up && self.parts.is_empty() && self.loans.is_empty();
        if !is_plain || self.scratch.first() != Some(&RIGHTS) {
            return None;
        }
        let frame = Frame::decode(joined(&self.scratch)?).ok()?;
        match &frame {
            Frame::Message(message) if message.descriptors > 0 || !message.memory.is_empty() => {
                None
            }
            _ => Some(frame),
        }
    }

    /// Puts a frame of the Space's behind what waits, with its descriptors.
    pub(super) fn queue(&mut self, header: [u8; HEADER_BYTES], body: &[u8], fds: Vec<OwnedFd>) {
        let (before, last) = portions(fds);
        for fds in before {
            self.outbox.push_back(Packet::own(Say::Parts, fds));
        }
        self.outbox.push_back(Packet {
            body: body.to_vec(),
            fds: last,
            ..Packet::plain(header, Sending::Plain)
        });
    }

    /// Sends the lent memory of a message before it. What cannot be lent (any more) is copied, and
    /// donated. Returns loans that were copied, and the Links that they go back by.
    pub(super) fn lend(
        &mut self,
        message: &mut MessageFrame,
        fds: &mut Vec<OwnedFd>,
        memories: &mut Table<Held>,
    ) -> Result<Vec<(Loan, u32)>, farpage_sys::Errno> {
        let mut back = Vec::new();
        let mut donated = usize::from(message.descriptors);
        for piece in &mut message.memory {
            if piece.kind == MemoryKind::Donated {
                donated += 1;
                continue;
            }
            let Some(held) = memories.take(piece.region) else {
                return Err(farpage_sys::Errno::EINVAL);
            };
            let lent = match held {
                Held::Own(region, range, half) if self.takes_region(region.id()) => {
                    let sending = Sending::Lend(region, range, half);
                    self.outbox
                        .push_back(Packet::plain(Say::Lending.encode(), sending));
                    true
                }
                held => {
                    let copy = held.copy()?;
                    fds.insert(donated, copy.into_fd());
                    donated += 1;
                    if let Held::Loan(loan, link) = held {
                        back.push((loan, link));
                    }
                    false
                }
            };
            piece.region = 0;
            if !lent {
                piece.kind = MemoryKind::Donated;
            }
        }
        Ok(back)
    }

    fn takes_region(&mut self, region: u64) -> bool {
        if !self.regions.contains(&region) && self.regions.len() == REGIONS_MAX {
            return false;
        }
        self.regions.insert(region);
        true
    }
}

impl State {
    /// Takes what has come by a Link.
    pub(super) fn read(&mut self, id: u32) {
        for turn in 0..BATCH {
            let Some(peer) = self.peers.get_mut(&id) else {
                return;
            };
            let came = match peer.link.try_receive_plain(&mut peer.scratch) {
                Ok(Plain::Taken) => match peer.plain_frame() {
                    Some(frame) => handled(self.space.handle_frame(LinkId(id), frame, Vec::new())),
                    None => self.plain_came(id),
                },
                // If it is the end, it is told next time.
                Ok(Plain::Nothing) if turn > 0 => break,
                Ok(Plain::Nothing | Plain::Other) => match peer.link.try_receive() {
                    Ok(Some(message)) => self.came(id, message),
                    Ok(None) => break,
                    Err(ended) => Err(self.lost(id, ended)),
                },
                Err(ended) => Err(self.lost(id, ended)),
            };
            if came.is_err() {
                self.end(id);
            }
            self.pump();
        }
        self.flush(id);
    }

    /// Ends the Links of tasks that have ended, which whoever polls may not have heard of yet.
    pub(super) fn look_at_peers(&mut self) {
        let has_left = |link: &Link| {
            link.look();
            link.has_left().is_some()
        };
        let left = self.peers.iter().filter(|(_, peer)| has_left(&peer.link));
        let left: Vec<u32> = left.map(|(&id, _)| id).collect();
        for id in left {
            // What they sent comes first, and the end is told by the next look.
            self.read(id);
            self.read(id);
        }
    }

    /// The Link has ended; whoever waits for what it was made for is told why.
    fn lost(&mut self, id: u32, ended: Ended) -> Breach {
        let peer = self.peers.get_mut(&id);
        if let Some(purpose) = peer.and_then(|peer| peer.purpose.take()) {
            self.fail(purpose, super::state::why(ended));
        }
        Breach("its Link has ended")
    }

    /// A frame without anything beside it lies in the peer's scratch space.
    fn plain_came(&mut self, id: u32) -> Result<(), Breach> {
        let peer = self.peers.get_mut(&id).expect("looked up before");
        let header = *peer.scratch.first_chunk().expect("a header");
        if header[0] == RIGHTS {
            return self.frame_came(id, Vec::new());
        }
        if peer.scratch.len() > HEADER_BYTES {
            return Err(Breach("it said more than there is to say"));
        }
        self.said(id, &header, Vec::new())
    }

    fn came(&mut self, id: u32, message: Message) -> Result<(), Breach> {
        let Some(peer) = self.peers.get_mut(&id) else {
            return Ok(());
        };
        match message.attached {
            Attached::Nothing if message.header[0] == RIGHTS => {
                peer.scratch.clear();
                peer.scratch.extend_from_slice(&message.header);
                peer.scratch.extend_from_slice(&message.body);
                self.frame_came(id, message.fds)
            }
            Attached::Nothing => {
                if !message.body.is_empty() {
                    return Err(Breach("it said more than there is to say"));
                }
                self.said(id, &message.header, message.fds)
            }
            Attached::Loan(loan) => {
                if peer.loans.len() == MAX_MEMORY || loan.bytes() == 0 {
                    return Err(Breach("it lends more than a message has"));
                }
                peer.loans.push(loan);
                Ok(())
            }
            Attached::Returned(loan) => {
                peer.lent.remove(&loan);
                Ok(())
            }
            Attached::Memory(_) => Err(Breach("it donates memory without a message")),
        }
    }

    /// A frame of the Space's lies in the peer's scratch space.
    fn frame_came(&mut self, id: u32, fds: Vec<OwnedFd>) -> Result<(), Breach> {
        let peer = self.peers.get_mut(&id).expect("looked up before");
        if peer.stage != Stage::Up {
            return Err(Breach("it spoke of rights before it was asked to"));
        }
        let frame = joined(&peer.scratch).ok_or(Breach("a frame has something in its padding"))?;
        let mut frame = Frame::decode(frame).map_err(|_| Breach("a frame has no meaning"))?;
        let mut descriptors = Vec::new();
        if !fds.is_empty() || !peer.parts.is_empty() {
            let mut all = std::mem::take(&mut peer.parts);
            all.extend(fds);
            if let Frame::Message(message) = &frame {
                check_donated(message, &all)?;
            }
            let table = &mut self.descriptors;
            descriptors = all
                .into_iter()
                .map(|fd| Descriptor(table.put(fd)))
                .collect();
        }
        if let Frame::Message(message) = &mut frame {
            let loans = std::mem::take(&mut peer.loans);
            take_loans(message, loans, id, &mut self.memories)?;
        } else if !peer.loans.is_empty() {
            return Err(Breach("it lends memory without a message"));
        }
        handled(self.space.handle_frame(LinkId(id), frame, descriptors))
    }

    fn said(
        &mut self,
        id: u32,
        header: &[u8; HEADER_BYTES],
        fds: Vec<OwnedFd>,
    ) -> Result<(), Breach> {
        let peer = self.peers.get_mut(&id).expect("looked up before");
        if peer.stage == Stage::Greeting {
            self.check_version(id, header)?;
        }
        let peer = self.peers.get_mut(&id).expect("it is still there");
        let say = Say::decode(header).ok_or(Breach("what it says has no meaning"))?;
        match (say, peer.stage) {
            (Say::Parts, Stage::Up) => {
                peer.parts.extend(fds);
                if peer.parts.len() > MAX_DESCRIPTORS {
                    return Err(Breach("it sends more descriptors than a message has"));
                }
                Ok(())
            }
            (Say::Meet { task, connects }, Stage::Up) => {
                let [socket] = <[OwnedFd; 1]>::try_from(fds)
                    .map_err(|_| Breach("an introduction has one socket"))?;
                self.meet(id, task, connects, socket);
                Ok(())
            }
            _ if !fds.is_empty() => Err(Breach("it sends descriptors with what has none")),
            (Say::Hello { task, token }, Stage::Greeting) => self.hello(id, task, token),
            (Say::Use, Stage::Deciding) => {
                self.link_is_up(id);
                Ok(())
            }
            (Say::Another, Stage::Deciding) => {
                self.another_is_up(id);
                Ok(())
            }
            (Say::Introduce { task }, Stage::Up) => {
                self.introduce(id, task);
                Ok(())
            }
            (Say::Unknown { task }, Stage::Up) => {
                if self.introducing.get(&task) == Some(&id) {
                    self.fail(Purpose::Introduction(task), ConnectError::Closed);
                }
                Ok(())
            }
            (_, Stage::Greeting | Stage::Deciding | Stage::Up) => {
                Err(Breach("it says that at the wrong time"))
            }
        }
    }
}

fn handled(handled: Result<(), farpage_rights::Violation>) -> Result<(), Breach> {
    handled.map_err(|_| Breach("it broke the protocol of rights"))
}

/// The last descriptors of a message are its donated memory: sealed, and as long as it says.
fn check_donated(message: &MessageFrame, fds: &[OwnedFd]) -> Result<(), Breach> {
    let own = usize::from(message.descriptors);
    let donated = message.memory.iter();
    let donated = donated.filter(|piece| piece.kind == MemoryKind::Donated);
    for (index, piece) in donated.enumerate() {
        let fd = fds.get(own + index);
        if !fd.is_some_and(|fd| Donated::check(fd, piece.length)) {
            return Err(Breach("donated memory is not sealed or sized as agreed"));
        }
    }
    Ok(())
}

/// The loans that came before a message are its lent memory, in order.
fn take_loans(
    message: &mut MessageFrame,
    loans: Vec<Loan>,
    link: u32,
    memories: &mut Table<Held>,
) -> Result<(), Breach> {
    let wrong = Breach("lent memory is not what came before");
    let mut loans = loans.into_iter();
    let lent = message.memory.iter_mut();
    for piece in lent.filter(|piece| piece.kind == MemoryKind::Lent) {
        let loan = loans.next().ok_or(wrong)?;
        if loan.bytes() as u64 != piece.length {
            return Err(wrong);
        }
        piece.region = memories.put(Held::Loan(loan, link));
    }
    match loans.next() {
        None => Ok(()),
        Some(_) => Err(wrong),
    }
}
