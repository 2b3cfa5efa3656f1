//! Receiving.

use std::os::fd::OwnedFd;
use std::sync::TryLockError;
use std::time::Instant;

use std::os::fd::AsFd;

use farpage_sys::lock;

use super::ends::Link;
use super::error::{Ended, ReceiveError, Violation, errno};
use super::frame::{
    Attached, Body, HEADER_BYTES, Head, IN_LONG_RING_MAX, IN_RING_MAX, IN_SLOT_MAX, Kind, Message,
    bytes_of,
};
use super::layout::WORDS;
use super::linger::{self, Patience};
use super::memory::{Borrowed, copy_donated, map_donated};
use super::ring::Consumer;
use super::{control, wake};

/// Looks in vain between two at whether the peer is still there.
const LOOKS: u32 = 64;

/// What the receiving side knows.
#[derive(Default)]
pub(super) struct Incoming {
    consumer: Consumer,
    /// Of the ring of long bodies.
    long: Consumer,
    /// Of the last descriptors.
    number: u64,
    borrowed: Borrowed,
    patience: Patience,
    looks: u32,
}

/// What there was for who takes plain messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plain {
    Taken,
    /// Something that [`Link::try_receive`] takes.
    Other,
    /// Nothing, or another thread takes it; or the end, which [`Link::try_receive`] tells.
    Nothing,
}

/// A frame out of the ring, copied and checked; its slots are still to be given back.
struct Copied {
    head: Head,
    first: [u64; WORDS],
    body: Body,
}

impl Link {
    /// Takes the next message if there is one (and no other thread is about to), without waiting.
    ///
    /// # Errors
    /// Why there will be none any more. All that was sent whole has been received then, unless the
    /// peer broke the rules.
    pub fn try_receive(&self) -> Result<Option<Message>, Ended> {
        let mut incoming = match self.incoming.try_lock() {
            Ok(incoming) => incoming,
            Err(TryLockError::Poisoned(incoming)) => incoming.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        let taken = self.take_or_end(&mut incoming)?;
        if taken.is_none() {
            incoming.looks += 1;
            if incoming.looks.is_multiple_of(LOOKS) {
                self.look();
                return self.take_or_end(&mut incoming);
            }
        }
        Ok(taken)
    }

    /// Takes the next message if it is a plain one without descriptors: its header and body, into
    /// `frame`.
    ///
    /// # Errors
    /// As for [`Self::try_receive`].
    pub(crate) fn try_receive_plain(&self, frame: &mut Vec<u8>) -> Result<Plain, Ended> {
        let Ok(mut incoming) = self.incoming.try_lock() else {
            return Ok(Plain::Nothing);
        };
        if let Some(ended) = self.ended() {
            return Err(ended);
        }
        let taken = self.copy_plain(&mut incoming, frame);
        taken.map_err(|violation| self.end(violation.into()))
    }

    fn copy_plain(&self, incoming: &mut Incoming, frame: &mut Vec<u8>) -> Result<Plain, Violation> {
        let lines = self.shared.incoming();
        let consumer = &mut incoming.consumer;
        let filled = consumer.filled(&lines)?;
        if filled == 0 {
            return Ok(Plain::Nothing);
        }
        let first = consumer.copy(&lines, 0);
        let head = Head::decode(&first)?;
        if head.kind != Kind::Plain || head.fds > 0 {
            return Ok(Plain::Other);
        }
        let slots = whole(&head, filled)?;
        frame.clear();
        let in_slot: [u8; HEADER_BYTES + IN_SLOT_MAX] = bytes_of(&first[2..]);
        frame.extend_from_slice(&in_slot);
        for ahead in 1..slots {
            frame.extend_from_slice(&bytes_of::<{ WORDS * 8 }>(&consumer.copy(&lines, ahead)));
        }
        frame.truncate(HEADER_BYTES + head.bytes as usize);
        if consumer.release(&lines, slots) {
            self.waker.wake();
        }
        Ok(Plain::Taken)
    }

    /// Something to receive, or the end; waits a little for it when that makes sense.
    pub(super) fn peek(&self, patience: &mut Patience) -> bool {
        let lines = self.shared.incoming();
        let Ok(incoming) = self.incoming.try_lock() else {
            return false;
        };
        let came = || incoming.consumer.has_come(&lines) || self.shared.has_peer_left();
        came() || patience.wait(|| self.processor_of_peer(), came)
    }

    /// Where the peer runs, unless it sleeps.
    fn processor_of_peer(&self) -> Option<u32> {
        let sleeps = self.shared.outgoing().consumer_sleeps;
        let is_awake = sleeps.load(super::atomic::Ordering::Relaxed) == 0;
        is_awake.then(|| self.shared.peer_processor()).flatten()
    }

    /// Waits for the next message until `deadline` (`None`: as long as the peer lives).
    ///
    /// # Errors
    /// [`ReceiveError::TimedOut`], or why nothing will come any more.
    pub fn receive(&self, deadline: Option<Instant>) -> Result<Message, ReceiveError> {
        let mut incoming = lock(&self.incoming);
        loop {
            if let Some(message) = self.take_or_end(&mut incoming)? {
                return Ok(message);
            }
            if self.linger(&mut incoming.patience) {
                continue;
            }
            self.shared.set_processor(linger::processor());
            if self.shared.incoming().announce_consumer(&incoming.consumer) {
                continue;
            }
            let start = Instant::now();
            let happened = wake::wait(&self.epoll, deadline, |_, happened| self.note(happened));
            let happened = happened.map_err(|error| self.cannot_wait(error))?;
            incoming.patience.has_slept(start.elapsed());
            if !happened && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return self
                    .take_or_end(&mut incoming)?
                    .ok_or(ReceiveError::TimedOut);
            }
        }
    }

    /// Gets the descriptor of this Link ready to be waited for: forgets what woke it before, and
    /// has the peer wake it. False when there is no need to wait, because there is something to
    /// receive (if only the end), or another thread is receiving.
    ///
    /// # Errors
    /// When Linux refuses to look.
    pub fn prepare_to_wait(&self) -> Result<bool, Ended> {
        let Ok(incoming) = self.incoming.try_lock() else {
            return Ok(false);
        };
        let now = Some(Instant::now());
        while wake::wait(&self.epoll, now, |_, happened| self.note(happened))
            .map_err(|error| self.cannot_wait(error))?
        {}
        let is_there = self.shared.incoming().announce_consumer(&incoming.consumer);
        Ok(!is_there && self.ended().is_none() && self.has_left().is_none())
    }

    /// Something to receive, or the end. Waits for a thread that receives.
    pub(super) fn is_ready(&self) -> bool {
        let mut incoming = lock(&self.incoming);
        let filled = incoming.consumer.filled(&self.shared.incoming());
        filled != Ok(0) || self.ended().is_some() || self.has_left().is_some()
    }

    /// Has the peer wake this side. True when there is something already.
    pub(super) fn announce(&self) -> bool {
        let incoming = lock(&self.incoming);
        self.shared.set_processor(linger::processor());
        self.shared.incoming().announce_consumer(&incoming.consumer)
    }

    /// Has the peer wake this side when there is room again. True when there may be already.
    pub(super) fn announce_room(&self) -> bool {
        let outgoing = lock(&self.outgoing);
        let lines = self.shared.outgoing();
        lines.announce_producer(&outgoing.producer)
    }

    /// The peer has taken something since this side last looked for room.
    pub(super) fn has_room_come(&self) -> bool {
        let outgoing = lock(&self.outgoing);
        let lines = self.shared.outgoing();
        outgoing.producer.has_moved(&lines)
    }

    /// Waits a little, when that makes sense. True when something came.
    pub(super) fn linger(&self, patience: &mut Patience) -> bool {
        let incoming = self.shared.incoming();
        let tail = incoming.tail.load(super::atomic::Ordering::Relaxed);
        let came = || {
            incoming.tail.load(super::atomic::Ordering::Relaxed) != tail
                || self.shared.has_peer_left()
        };
        patience.wait(|| self.processor_of_peer(), came)
    }

    fn cannot_wait(&self, error: rustix::io::Errno) -> Ended {
        self.end(Ended::Failed {
            doing: "wait for the peer",
            errno: errno(error),
        })
    }

    /// The next message, or why there will be none.
    fn take_or_end(&self, incoming: &mut Incoming) -> Result<Option<Message>, Ended> {
        if let Some(ended) = self.ended() {
            return Err(ended);
        }
        // Before the ring: what was sent before the end is there when the end is seen.
        let left = self.has_left();
        let taken = self.take(incoming).map_err(|reason| self.end(reason))?;
        match (taken, left) {
            (None, Some(reason)) => Err(self.end(reason)),
            (taken, _) => Ok(taken),
        }
    }

    fn take(&self, incoming: &mut Incoming) -> Result<Option<Message>, Ended> {
        while let Some(copied) = self.copy(incoming)? {
            let mut fds = Vec::new();
            let count = usize::from(copied.head.fds);
            if count > 0 {
                fds = self.take_fds(incoming, &copied.head)?;
            }
            // Not before: who waits for room needs it in the socket as well.
            let lines = self.shared.incoming();
            if incoming.consumer.release(&lines, copied.head.slots()) {
                self.waker.wake();
            }
            if let Some(message) = self.understand(incoming, copied, fds)? {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Copies a frame out of the ring.
    fn copy(&self, incoming: &mut Incoming) -> Result<Option<Copied>, Violation> {
        let lines = self.shared.incoming();
        let consumer = &mut incoming.consumer;
        let filled = consumer.filled(&lines)?;
        if filled == 0 {
            return Ok(None);
        }
        let first = consumer.copy(&lines, 0);
        let head = Head::decode(&first)?;
        let (bytes, slots) = (head.bytes as usize, whole(&head, filled)?);
        let in_slot = bytes_of::<IN_SLOT_MAX>(&first[2 + HEADER_BYTES / 8..]);
        let body = if bytes <= IN_SLOT_MAX {
            Body::InSlot {
                bytes: in_slot,
                length: bytes as u8,
            }
        } else {
            let mut body = Vec::with_capacity(slots as usize * WORDS * 8);
            body.extend_from_slice(&in_slot);
            for ahead in 1..slots {
                body.extend_from_slice(&bytes_of::<{ WORDS * 8 }>(&consumer.copy(&lines, ahead)));
            }
            body.truncate(bytes);
            Body::Copied(body)
        };
        Ok(Some(Copied { head, first, body }))
    }

    /// Copies a body out of the ring of long ones: it was put there before its frame.
    fn copy_long(&self, incoming: &mut Incoming, bytes: u64) -> Result<Vec<u8>, Violation> {
        let lines = self.shared.incoming_long();
        let consumer = &mut incoming.long;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let slots = bytes.div_ceil(WORDS * 8) as u32;
        let filled = consumer.filled(&lines)?;
        if bytes > IN_LONG_RING_MAX || slots > filled {
            return Err(Violation::Length {
                bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
                slots: filled,
            });
        }
        let mut body = Vec::with_capacity(slots as usize * WORDS * 8);
        for ahead in 0..slots {
            body.extend_from_slice(&bytes_of::<{ WORDS * 8 }>(&consumer.copy(&lines, ahead)));
        }
        body.truncate(bytes);
        consumer.release(&lines, slots);
        Ok(body)
    }

    fn take_fds(&self, incoming: &mut Incoming, head: &Head) -> Result<Vec<OwnedFd>, Ended> {
        incoming.number += 1;
        if head.number != incoming.number {
            return Err(Violation::Descriptors {
                announced: head.fds.into(),
                number: head.number,
                came: 0,
                other: incoming.number,
            }
            .into());
        }
        control::receive(self.watched.socket.as_fd(), head.number, head.fds.into())
    }

    /// Makes a message of a frame, unless it was for the Link alone.
    fn understand(
        &self,
        incoming: &mut Incoming,
        copied: Copied,
        mut fds: Vec<OwnedFd>,
    ) -> Result<Option<Message>, Violation> {
        let Copied { head, first, body } = copied;
        let words = &first[2 + HEADER_BYTES / 8..];
        let own = head.kind.has_memory().then(|| fds.remove(0));
        let header = bytes_of(&first[2..]);
        let mut message = Message {
            header,
            body: Body::InSlot {
                bytes: [0; IN_SLOT_MAX],
                length: 0,
            },
            attached: Attached::Nothing,
            fds,
        };
        match (head.kind, own) {
            (Kind::LongBody, Some(own)) => {
                message.body = match copy_donated(own.as_fd(), words[0])? {
                    Some(copied) => Body::Copied(copied),
                    None => Body::Mapped(map_donated(own.as_fd(), words[0])?),
                };
            }
            (Kind::Memory, Some(own)) => {
                message.attached = Attached::Memory(map_donated(own.as_fd(), words[0])?);
                message.body = without_first_word(body);
            }
            (Kind::Region, Some(own)) => {
                incoming.borrowed.add(own.as_fd(), words[0], words[1])?;
                return Ok(None);
            }
            (Kind::Loan, _) => {
                let numbers = [words[0], words[1], words[2], words[3]];
                message.attached = Attached::Loan(incoming.borrowed.loan(self.id, numbers)?);
            }
            (Kind::Return, _) => {
                let returned = lock(&self.lent).returned(words[0])?;
                message.attached = Attached::Returned(returned);
            }
            (Kind::Plain, _) => message.body = body,
            (Kind::InLongRing, _) => {
                message.body = Body::Copied(self.copy_long(incoming, words[0])?);
            }
            (Kind::LongBody | Kind::Memory | Kind::Region, None) => {
                unreachable!("a frame of memory has a descriptor, as was checked")
            }
        }
        Ok(Some(message))
    }
}

/// The slots of a frame, all of which must be there.
fn whole(head: &Head, filled: u32) -> Result<u32, Violation> {
    let slots = head.slots();
    if head.bytes as usize > IN_RING_MAX || slots > filled {
        return Err(Violation::Length {
            bytes: head.bytes,
            slots: filled,
        });
    }
    Ok(slots)
}

fn without_first_word(body: Body) -> Body {
    match body {
        Body::InSlot { mut bytes, length } => {
            bytes.copy_within(8.., 0);
            Body::InSlot {
                bytes,
                length: length - 8,
            }
        }
        Body::Copied(mut bytes) => {
            bytes.drain(..8);
            Body::Copied(bytes)
        }
        Body::Mapped(_) => unreachable!("bodies of the ring are not mapped"),
    }
}
