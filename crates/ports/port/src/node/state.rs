//! What a Node knows, and carrying out what its Space asks for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farpage_rights::{
    Descriptor, Frame, LinkId, MemoryKind, Name, Output, Space, TaskId, Waiter, Woken,
};

use super::error::ConnectError;
use super::memory::Held;
use super::packet::{Packet, Sending, split};
use super::peer::{Peer, Purpose, Socket};
use super::poll::Keeper;
use crate::link::{Alarm, Ended, HEADER_BYTES, IN_RING_MAX, Link, LinkSet, SendError};

/// Between two tries to send what neither the ring nor the socket says when it takes it.
const RETRY: Duration = Duration::from_millis(1);

/// Bytes of a frame that lies whole in a ring.
const PLAIN_MAX: usize = HEADER_BYTES + IN_RING_MAX;

/// One task's ports and Links, shared by its threads.
pub(super) struct Inner {
    pub(super) state: Mutex<State>,
    /// Ends the wait of whoever polls.
    pub(super) alarm: Alarm,
    /// Told when changes have been applied.
    pub(super) applied: Condvar,
    pub(super) keeper: Condvar,
}

/// Values by a number that is never used again.
pub(super) struct Table<T> {
    next: u64,
    values: BTreeMap<u64, T>,
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        let values = BTreeMap::new();
        Self { next: 1, values }
    }

    pub(super) fn put(&mut self, value: T) -> u64 {
        self.next += 1;
        self.values.insert(self.next, value);
        self.next
    }

    pub(super) fn take(&mut self, key: u64) -> Option<T> {
        self.values.remove(&key)
    }
}

/// Somebody who waits to be woken.
pub(super) struct Slot {
    pub(super) woken: Option<Woken>,
    pub(super) how: How,
}

/// How to wake somebody.
pub(super) enum How {
    Thread(Arc<Condvar>),
    Task(std::task::Waker),
    Descriptor(Arc<OwnedFd>),
}

/// Somebody who waits for a right to begin with.
pub(super) struct Ask {
    pub(super) waiter: Waiter,
    /// The Link that it will come by, once that is known.
    pub(super) link: Option<u32>,
    pub(super) result: Option<Result<farpage_rights::Got, ConnectError>>,
}

/// Something to be done to the set of what is polled.
pub(super) enum Change {
    Insert(u32, Arc<Link>),
    Remove(u32),
    Watch(u32),
    Forget(u32),
    Room(u32),
}

/// All that threads share.
pub(super) struct State {
    pub(super) space: Space,
    pub(super) task: TaskId,
    /// Links by the number that the Space knows them by, greeted or not.
    pub(super) peers: BTreeMap<u32, Peer>,
    /// Sockets that are no Links yet, in the same numbers.
    pub(super) sockets: BTreeMap<u32, Socket>,
    /// Links that are up.
    pub(super) tasks: BTreeMap<TaskId, u32>,
    next_number: u32,
    pub(super) descriptors: Table<OwnedFd>,
    pub(super) memories: Table<Held>,
    pub(super) asks: BTreeMap<u64, Ask>,
    /// Tasks that this one asked to be introduced to: whom it asked.
    pub(super) introducing: BTreeMap<TaskId, u32>,
    pub(super) waiters: BTreeMap<Waiter, Slot>,
    next_waiter: u64,
    /// What is polled; none while a thread does so.
    pub(super) set: Option<Box<LinkSet>>,
    changes: Vec<Change>,
    /// Ends of handshakes that take too long.
    pub(super) deadlines: BTreeSet<(Instant, u32)>,
    /// Those who have connected to a path and are not up, the oldest first.
    pub(super) strangers: VecDeque<u32>,
    /// Links that are stuck for a reason that nobody tells the end of.
    stuck: BTreeSet<u32>,
    /// Links that cannot go on.
    doomed: Vec<u32>,
    scratch: Vec<u8>,
    /// What the poll has found, kept for the next one.
    pub(super) ready: Vec<u64>,
    /// What threads that wait are woken by, while none does.
    pub(super) condvars: Vec<Arc<Condvar>>,
    /// Reply ports that nobody uses.
    pub(super) replies: Vec<Name>,
    /// Threads that sleep while another polls.
    pub(super) sleepers: BTreeSet<Waiter>,
    /// Who polls, while somebody does.
    pub(super) leader: Option<Waiter>,
    /// The leader is to look at its state again.
    pub(super) rung: bool,
    pub(super) keeper: Keeper,
}

impl Inner {
    pub(super) fn new(task: TaskId) -> Result<Self, rustix::io::Errno> {
        let set = LinkSet::new()?;
        Ok(Self {
            alarm: set.alarm()?,
            applied: Condvar::new(),
            keeper: Condvar::new(),
            state: Mutex::new(State {
                space: Space::new(task),
                task,
                peers: BTreeMap::new(),
                sockets: BTreeMap::new(),
                tasks: BTreeMap::new(),
                next_number: 0,
                descriptors: Table::new(),
                memories: Table::new(),
                asks: BTreeMap::new(),
                introducing: BTreeMap::new(),
                waiters: BTreeMap::new(),
                next_waiter: 1,
                set: Some(Box::new(set)),
                changes: Vec::new(),
                deadlines: BTreeSet::new(),
                strangers: VecDeque::new(),
                stuck: BTreeSet::new(),
                doomed: Vec::new(),
                scratch: Vec::new(),
                ready: Vec::new(),
                condvars: Vec::new(),
                replies: Vec::new(),
                sleepers: BTreeSet::new(),
                leader: None,
                rung: false,
                keeper: Keeper::default(),
            }),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what the Space has asked for; called after each operation.
    pub(super) fn pump(&self, state: &mut State) {
        state.pump();
        if state.rung {
            state.rung = false;
            self.alarm.ring();
        }
    }
}

impl State {
    /// A number for a socket or a Link.
    pub(super) fn number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number
    }

    /// Registers a thread that will [`block`](Inner::block).
    pub(super) fn thread(&mut self) -> Waiter {
        let condvar = self.condvars.pop().unwrap_or_default();
        self.waiter(How::Thread(condvar))
    }

    /// Registers somebody who waits.
    pub(super) fn waiter(&mut self, how: How) -> Waiter {
        self.next_waiter += 1;
        let waiter = Waiter(self.next_waiter);
        self.waiters.insert(waiter, Slot { woken: None, how });
        waiter
    }

    /// Changes what is polled: at once, or when the thread that polls looks up.
    pub(super) fn change(&mut self, change: Change) {
        self.changes.push(change);
        if self.set.is_some() {
            self.apply();
        } else {
            self.rung = true;
        }
    }

    /// Applies changes to the set, which is here. True when there were any.
    pub(super) fn apply(&mut self) -> bool {
        let Some(set) = self.set.as_mut() else {
            return false;
        };
        let any = !self.changes.is_empty();
        for change in self.changes.drain(..) {
            match change {
                Change::Insert(id, link) => {
                    if self.peers.contains_key(&id) && set.insert(id.into(), link).is_err() {
                        self.doomed.push(id);
                    }
                }
                Change::Remove(id) => drop(set.remove(id.into())),
                Change::Watch(id) => {
                    let socket = self.sockets.get(&id);
                    let watched = socket.map(|it| set.watch(id.into(), it.as_fd()));
                    if matches!(watched, Some(Err(_))) {
                        self.doomed.push(id);
                    }
                }
                Change::Forget(id) => {
                    if let Some(socket) = self.sockets.remove(&id) {
                        set.forget(socket.as_fd());
                    }
                }
                Change::Room(id) => set.await_room(id.into()),
            }
        }
        any
    }

    #[inline]
    pub(super) fn pump(&mut self) {
        if self.space.has_output() || !self.doomed.is_empty() {
            self.carry_out();
        }
    }

    fn carry_out(&mut self) {
        loop {
            while let Some(output) = self.space.poll_output() {
                match output {
                    Output::Frame {
                        link,
                        mut frame,
                        descriptors,
                    } => self.put(link.0, &mut frame, descriptors),
                    Output::Wake { waiter, why } => self.wake(waiter, why),
                    Output::Introduce { task, by } => self.ask_for_introduction(task, by.0),
                    Output::Offered { token, right, .. } => self.answer(token, Ok(right)),
                    Output::Close(Descriptor(key)) => drop(self.descriptors.take(key)),
                    Output::Unused(memory) => self.unused(memory.handle),
                }
            }
            match self.doomed.pop() {
                Some(id) => self.end(id),
                None => return,
            }
        }
    }

    pub(super) fn wake(&mut self, waiter: Waiter, why: Woken) {
        // Who sleeps or polls must be told; who runs sees it by itself.
        let polls = self.leader == Some(waiter) && self.set.is_none();
        let sleeps = self.sleepers.contains(&waiter);
        let Some(slot) = self.waiters.get_mut(&waiter) else {
            return;
        };
        slot.woken = Some(why);
        match &slot.how {
            How::Thread(condvar) => {
                self.rung |= polls;
                if sleeps {
                    condvar.notify_one();
                }
            }
            How::Task(waker) => waker.wake_by_ref(),
            How::Descriptor(fd) => drop(rustix::io::write(fd, &1u64.to_ne_bytes())),
        }
    }

    /// Tells whoever asked with `token`.
    pub(super) fn answer(&mut self, token: u64, result: Result<farpage_rights::Got, ConnectError>) {
        let Some(ask) = self.asks.get_mut(&token) else {
            return;
        };
        ask.result = Some(result);
        let waiter = ask.waiter;
        self.wake(waiter, Woken::TimedOut);
    }

    /// What a purpose was there for will not be.
    pub(super) fn fail(&mut self, purpose: Purpose, error: ConnectError) {
        match purpose {
            Purpose::Ask(token) => self.answer(token, Err(error)),
            Purpose::Offer(name) => drop(self.space.deallocate(name)),
            Purpose::Introduction(task) => {
                self.introducing.remove(&task);
                self.space.not_introduced(task);
            }
            Purpose::Met(_) => {}
        }
    }

    /// A Link or a socket is no more.
    pub(super) fn end(&mut self, id: u32) {
        self.strangers.retain(|stranger| *stranger != id);
        if let Some(socket) = self.sockets.get_mut(&id) {
            if let Some(deadline) = socket.deadline.take() {
                self.deadlines.remove(&(deadline, id));
            }
            if let Some(purpose) = socket.purpose.take() {
                self.fail(purpose, ConnectError::Closed);
            }
            self.change(Change::Forget(id));
            return;
        }
        let Some(mut peer) = self.peers.remove(&id) else {
            return;
        };
        self.change(Change::Remove(id));
        if let Some(deadline) = peer.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        if let Some(purpose) = peer.purpose.take() {
            self.fail(purpose, ConnectError::Closed);
        }
        if let Some(task) = peer.task
            && self.tasks.get(&task) == Some(&id)
        {
            self.tasks.remove(&task);
        }
        self.space.link_down(LinkId(id));
        let asks = self.asks.iter();
        let lost = asks.filter(|(_, ask)| ask.link == Some(id) && ask.result.is_none());
        for token in lost.map(|(&token, _)| token).collect::<Vec<_>>() {
            self.answer(token, Err(ConnectError::Closed));
        }
        let asked = self.introducing.iter().filter(|(_, by)| **by == id);
        for task in asked.map(|(&task, _)| task).collect::<Vec<_>>() {
            self.introducing.remove(&task);
            self.space.not_introduced(task);
        }
    }

    /// Puts a frame of the Space's on a Link.
    fn put(&mut self, id: u32, frame: &mut Frame, descriptors: Vec<Descriptor>) {
        let Some(peer) = self.peers.get_mut(&id) else {
            for Descriptor(key) in descriptors {
                self.descriptors.take(key);
            }
            return;
        };
        let mut take = |key| self.descriptors.take(key);
        let mut fds = Vec::new();
        if !descriptors.is_empty() {
            fds.extend(descriptors.iter().filter_map(|fd| take(fd.0)));
        }
        let mut back = Vec::new();
        if let Frame::Message(message) = frame
            && message.memory.iter().any(|it| it.kind == MemoryKind::Lent)
        {
            match peer.lend(message, &mut fds, &mut self.memories) {
                Ok(loans) => back = loans,
                Err(_) => return self.doomed.push(id),
            }
        }
        self.scratch.clear();
        frame.encode(&mut self.scratch);
        if self.scratch.len() < HEADER_BYTES {
            self.scratch.resize(HEADER_BYTES, 0);
        }
        if fds.is_empty() && peer.outbox.is_empty() {
            let sent = if self.scratch.len() <= PLAIN_MAX {
                peer.link.send_plain(&self.scratch)
            } else {
                let (header, body) = split(&self.scratch);
                peer.link.send(&crate::link::Frame { header, body }, &[])
            };
            match sent {
                Ok(()) | Err(SendError::Ended(_)) => return,
                Err(SendError::Full) => {}
                Err(_) => return self.doomed.push(id),
            }
        }
        let (header, body) = split(&self.scratch);
        peer.queue(header, body, fds);
        self.flush(id);
        for (loan, link) in back {
            self.give_back(link, loan);
        }
    }

    /// Puts a packet of the Node's own on a Link.
    pub(super) fn put_packet(&mut self, id: u32, packet: Packet) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.outbox.push_back(packet);
            self.flush(id);
        }
    }

    /// Sends what waits for room, as far as there is any.
    pub(super) fn flush(&mut self, id: u32) {
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        if !self.stuck.is_empty() {
            self.stuck.remove(&id);
        }
        if peer.outbox.is_empty() {
            return;
        }
        while let Some(packet) = peer.outbox.pop_front() {
            let had_fds = !packet.fds.is_empty();
            match send(&peer.link, packet) {
                Ok(None) => {}
                Ok(Some((loan, half))) => drop(peer.lent.insert(loan, half)),
                Err((SendError::Full, packet)) => {
                    peer.outbox.push_front(*packet);
                    if had_fds || peer.link.has_too_many_fds() {
                        self.stuck.insert(id);
                    }
                    if peer.outbox.is_too_much() {
                        self.doomed.push(id);
                    }
                    return self.change(Change::Room(id));
                }
                Err((SendError::Ended(_), _)) => return peer.outbox.clear(),
                Err(_) => return self.doomed.push(id),
            }
        }
    }

    /// Links that are to be tried again although nobody tells when.
    pub(super) fn stuck(&self) -> Vec<u32> {
        self.stuck.iter().copied().collect()
    }

    /// When something is to be done although nothing happens.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let first = self.deadlines.first().map(|&(at, _)| at);
        let retry = (!self.stuck.is_empty()).then(|| Instant::now() + RETRY);
        first.into_iter().chain(retry).min()
    }

    fn unused(&mut self, key: u64) {
        if let Some(Held::Loan(loan, link)) = self.memories.take(key) {
            self.give_back(link, loan);
        }
    }

    pub(super) fn give_back(&mut self, link: u32, loan: crate::link::Loan) {
        self.put_packet(link, Packet::plain([0; 48], Sending::Return(loan)));
    }
}

type Lent = (crate::link::LoanId, super::memory::Half);

/// Sends one packet; the loan that it is, if it is one.
fn send(link: &Link, packet: Packet) -> Result<Option<Lent>, (SendError, Box<Packet>)> {
    let Packet {
        header,
        body,
        fds,
        sending,
    } = packet;
    let again = |error, body, fds, sending| {
        let packet = Packet {
            header,
            body,
            fds,
            sending,
        };
        (error, Box::new(packet))
    };
    match sending {
        Sending::Plain => {
            let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            let frame = crate::link::Frame {
                header,
                body: &body,
            };
            let sent = link.send(&frame, &borrowed);
            sent.map(|()| None)
                .map_err(|error| again(error, body, fds, Sending::Plain))
        }
        Sending::Lend(region, range, half) => {
            match link.lend_handle(header, &region, range.clone()) {
                Ok(loan) => Ok(Some((loan, half))),
                Err(error) => Err(again(error, body, fds, Sending::Lend(region, range, half))),
            }
        }
        Sending::Return(loan) => match link.give_back(header, loan) {
            Ok(()) => Ok(None),
            Err((error, loan)) => Err(again(error, body, fds, Sending::Return(loan))),
        },
    }
}

/// Why a Link ended, as whoever waits for a right to begin with is told.
pub(super) fn why(ended: Ended) -> ConnectError {
    match ended {
        Ended::Closed | Ended::Died => ConnectError::Closed,
        Ended::Violation(_) => ConnectError::Greeting("it broke the rules of the Link"),
        Ended::Failed { doing, errno } => ConnectError::Failed { doing, errno },
    }
}
