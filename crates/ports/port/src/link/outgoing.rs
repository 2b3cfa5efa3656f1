//! Sending.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farpage_sys::{Errno, lock};

use super::ends::Link;
use super::error::{Ended, SendError, Violation, errno};
use super::frame::{
    Frame, HEADER_BYTES, Head, IN_LONG_RING_MAX, IN_RING_MAX, IN_SLOT_MAX, Kind, Slots, long_slots,
    words_of,
};
use super::layout::{LONG_SLOTS, SLOTS, WORDS};
use super::memory::{Loan, LoanId, Region, RegionHandle, Sealed};
use super::ring::{Lines, Producer};
use super::{FDS_MAX, control, linger, wake};

/// Time between two looks at a socket that is full.
const SOCKET_LOOK: Duration = Duration::from_millis(1);

/// What the sending side knows.
#[derive(Default)]
pub(super) struct Outgoing {
    pub(super) producer: Producer,
    /// Of the ring of long bodies.
    long: Producer,
    /// Of the last descriptors.
    number: u64,
}

/// A frame as it goes into the ring.
struct Parts<'a> {
    kind: Kind,
    header: &'a [u8; HEADER_BYTES],
    body: &'a [u8],
    /// What goes through the ring of long bodies.
    long: &'a [u8],
    memory: Option<&'a Sealed>,
    region: Option<&'a RegionHandle>,
    fds: &'a [BorrowedFd<'a>],
}

impl Link {
    /// Sends a frame and copies of `fds`, without waiting. A body of more than
    /// [`IN_RING_MAX`] bytes is copied into memory that the receiver gets.
    ///
    /// A peer that was killed is noticed by who receives, and here when the ring is full.
    ///
    /// # Errors
    /// [`SendError::Full`] when the peer does not keep up, [`SendError::Ended`] when there is none.
    pub fn send(&self, frame: &Frame<'_>, fds: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        self.with_long_body(frame, fds, |parts| self.put(parts))
    }

    /// The same; waits for room until `deadline`.
    ///
    /// # Errors
    /// As for [`Link::send`]; [`SendError::Full`] when there was no room in time.
    pub fn send_until(
        &self,
        frame: &Frame<'_>,
        fds: &[BorrowedFd<'_>],
        deadline: Option<Instant>,
    ) -> Result<(), SendError> {
        self.with_long_body(frame, fds, |parts| {
            loop {
                match self.put(parts) {
                    Err(SendError::Full) => self.wait_for_room(parts, deadline)?,
                    other => return other,
                }
            }
        })
    }

    /// Sends a frame with a body of at most [`IN_RING_MAX`] bytes and `memory`, which becomes the
    /// receiver's: it may change its copy, and nobody else can change what it sees.
    ///
    /// # Errors
    /// As for [`Link::send`]; [`SendError::TooLong`].
    pub fn donate(
        &self,
        frame: &Frame<'_>,
        memory: &Sealed,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), SendError> {
        if frame.body.len() > IN_RING_MAX - 8 {
            return Err(SendError::TooLong(frame.body.len()));
        }
        let body = [&memory.bytes().to_ne_bytes(), frame.body].concat();
        self.put(&Parts {
            memory: Some(memory),
            fds,
            ..Parts::new(Kind::Memory, &frame.header, &body)
        })
    }

    /// Lends bytes of `region`: the receiver keeps the region mapped, so a loan costs one message
    /// there and one back ([`Attached::Returned`](super::Attached::Returned) with the same id).
    ///
    /// # Errors
    /// As for [`Link::send`], `Full` also while too many loans are out;
    /// [`SendError::TooManyRegions`].
    ///
    /// # Panics
    /// When the range lies outside of the region.
    pub fn lend(
        &self,
        header: [u8; HEADER_BYTES],
        region: &Region,
        range: Range<usize>,
    ) -> Result<LoanId, SendError> {
        self.lend_handle(header, region.handle(), range)
    }

    /// The same of a region whose owner is elsewhere.
    pub(crate) fn lend_handle(
        &self,
        header: [u8; HEADER_BYTES],
        region: &RegionHandle,
        range: Range<usize>,
    ) -> Result<LoanId, SendError> {
        assert!(range.start <= range.end && range.end <= region.bytes);
        let mut lent = lock(&self.lent);
        let id = lent.next_loan().ok_or(SendError::Full)?;
        let number = if let Some(number) = lent.number(region) {
            number
        } else {
            let number = lent.next_number().ok_or(SendError::TooManyRegions)?;
            let body = bytes_of([number, region.bytes as u64]);
            let parts = Parts::new(Kind::Region, &header, &body);
            self.put(&Parts {
                region: Some(region),
                ..parts
            })?;
            lent.announced(region, number);
            number
        };
        let body = bytes_of([id, number, range.start as u64, range.len() as u64]);
        self.put(&Parts::new(Kind::Loan, &header, &body))?;
        lent.lent(id);
        Ok(LoanId(id))
    }

    /// Gives a loan back.
    ///
    /// # Errors
    /// As for [`Link::send`], with the loan.
    ///
    /// # Panics
    /// When it came by another Link.
    pub fn give_back(
        &self,
        header: [u8; HEADER_BYTES],
        loan: Loan,
    ) -> Result<(), (SendError, Loan)> {
        assert_eq!(
            loan.link, self.id,
            "a loan goes back by the Link that it came by"
        );
        let id = loan.id.to_ne_bytes();
        let parts = Parts::new(Kind::Return, &header, &id);
        self.put(&parts).map_err(|error| (error, loan))
    }

    /// Sends a plain frame whose header and body lie one behind the other: 48 bytes at least, and
    /// at most [`IN_RING_MAX`] more.
    ///
    /// # Errors
    /// As for [`Link::send`].
    pub(crate) fn send_plain(&self, frame: &[u8]) -> Result<(), SendError> {
        self.put_by(|outgoing| {
            let head = Head {
                kind: Kind::Plain,
                fds: 0,
                bytes: (frame.len() - HEADER_BYTES) as u32,
                number: 0,
            };
            let lines = self.shared.outgoing();
            let slots = self.room(outgoing, &lines, &head)?;
            let (first, rest) = frame.split_at(frame.len().min(HEADER_BYTES + IN_SLOT_MAX));
            outgoing.producer.fill(&lines, 0, &head.words(first));
            for (index, bytes) in rest.chunks(WORDS * 8).enumerate() {
                outgoing
                    .producer
                    .fill(&lines, 1 + index as u32, &words_of(bytes));
            }
            self.shared.set_processor(linger::processor());
            Ok(outgoing.producer.publish(&lines, slots))
        })
    }

    /// The slots of a frame, for which there is room.
    fn room(
        &self,
        outgoing: &mut Outgoing,
        lines: &Lines<'_, SLOTS, WORDS>,
        head: &Head,
    ) -> Result<u32, SendError> {
        let slots = head.slots();
        let room = outgoing.producer.room(lines, slots);
        let room = room.map_err(|lie| self.end(Violation::from(lie).into()))?;
        (room >= slots).then_some(slots).ok_or(SendError::Full)
    }

    /// Makes parts of a frame: memory of a body that is long.
    fn with_long_body(
        &self,
        frame: &Frame<'_>,
        fds: &[BorrowedFd<'_>],
        send: impl Fn(&Parts<'_>) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        let header = &frame.header;
        if frame.body.len() <= IN_RING_MAX {
            return send(&Parts {
                fds,
                ..Parts::new(Kind::Plain, header, frame.body)
            });
        }
        let length = (frame.body.len() as u64).to_ne_bytes();
        if frame.body.len() <= IN_LONG_RING_MAX {
            let sent = self.put(&Parts {
                long: frame.body,
                fds,
                ..Parts::new(Kind::InLongRing, header, &length)
            });
            // Nobody tells when that ring has room: what finds none goes by memory.
            if sent != Err(SendError::Full) {
                return sent;
            }
        }
        let memory = Sealed::copy(frame.body).map_err(|errno| SendError::Failed {
            doing: "copy a long body into memory",
            errno,
        })?;
        send(&Parts {
            memory: Some(&memory),
            fds,
            ..Parts::new(Kind::LongBody, header, &length)
        })
    }

    /// Whether there is room in the ring of long bodies.
    fn long_room(&self, outgoing: &mut Outgoing, bytes: usize) -> Result<bool, SendError> {
        let slots = long_slots(bytes);
        let room = outgoing.long.room(&self.shared.outgoing_long(), slots);
        Ok(room.map_err(|lie| self.end(Violation::from(lie).into()))? >= slots)
    }

    fn put(&self, parts: &Parts<'_>) -> Result<(), SendError> {
        if parts.fds.len() > FDS_MAX {
            return Err(SendError::TooManyDescriptors(parts.fds.len()));
        }
        self.put_by(|outgoing| self.fill(outgoing, parts))
    }

    /// Has `fill` put a frame into the ring, and wakes the peer if it says so.
    fn put_by(
        &self,
        fill: impl FnOnce(&mut Outgoing) -> Result<bool, SendError>,
    ) -> Result<(), SendError> {
        if let Some(ended) = self.ended().or_else(|| self.has_left()) {
            return Err(ended.into());
        }
        let wake = fill(&mut lock(&self.outgoing));
        if wake == Err(SendError::Full) {
            self.look();
            if let Some(ended) = self.has_left() {
                return Err(ended.into());
            }
        }
        if wake? {
            self.waker.wake();
        }
        Ok(())
    }

    /// Puts a frame into the ring. True when the peer is to be woken.
    fn fill(&self, outgoing: &mut Outgoing, parts: &Parts<'_>) -> Result<bool, SendError> {
        let own = parts.memory.map(Sealed::fd);
        let own = own.or_else(|| parts.region.map(RegionHandle::fd));
        let count = parts.fds.len() + usize::from(own.is_some());
        let mut head = parts.head(count);
        let lines = self.shared.outgoing();
        let slots = self.room(outgoing, &lines, &head)?;
        if !self.long_room(outgoing, parts.long.len())? {
            return Err(SendError::Full);
        }
        if count > 0 {
            let number = outgoing.number + 1;
            let all: Vec<_> = own.into_iter().chain(parts.fds.iter().copied()).collect();
            let sent = control::send(self.watched.socket.as_fd(), number, &all);
            sent.map_err(|errno| self.not_sent(errno))?;
            self.too_many_fds.store(false, Ordering::Relaxed);
            (outgoing.number, head.number) = (number, number);
        }
        if !parts.long.is_empty() {
            fill_long(&mut outgoing.long, &self.shared.outgoing_long(), parts.long);
        }
        let frame = Slots {
            head,
            header: parts.header,
            body: parts.body,
        };
        for index in 0..slots {
            outgoing.producer.fill(&lines, index, &frame.words(index));
        }
        self.shared.set_processor(linger::processor());
        Ok(outgoing.producer.publish(&lines, slots))
    }

    /// A frame found no room because this user has too many descriptors on their way, to whomever:
    /// nobody tells when that changes.
    pub(crate) fn has_too_many_fds(&self) -> bool {
        self.too_many_fds.load(Ordering::Relaxed)
    }

    /// Why descriptors did not go.
    fn not_sent(&self, errno: Errno) -> SendError {
        match errno {
            Errno::EAGAIN => SendError::Full,
            Errno::ETOOMANYREFS => {
                self.too_many_fds.store(true, Ordering::Relaxed);
                SendError::Full
            }
            Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN | Errno::ECONNREFUSED => {
                self.look();
                self.has_left().unwrap_or(Ended::Died).into()
            }
            errno => SendError::Failed {
                doing: "send descriptors",
                errno,
            },
        }
    }

    /// Sleeps until there may be room for a frame.
    fn wait_for_room(&self, parts: &Parts<'_>, deadline: Option<Instant>) -> Result<(), SendError> {
        let failed = |error| SendError::Failed {
            doing: "wait for room",
            errno: errno::<rustix::io::Errno>(error),
        };
        let mut room = lock(&self.room);
        if room.is_none() {
            let epoll = wake::new_epoll().map_err(failed)?;
            self.watched.watch(&epoll, 0).map_err(failed)?;
            *room = Some(epoll);
        }
        let Some(epoll) = room.as_ref() else {
            return Ok(());
        };
        let mut until = deadline;
        {
            let mut outgoing = lock(&self.outgoing);
            let lines = self.shared.outgoing();
            let slots = parts.head(0).slots();
            let found = outgoing.producer.room(&lines, slots);
            let found = found.map_err(|lie| self.end(Violation::from(lie).into()))?;
            if found < slots {
                if lines.announce_producer(&outgoing.producer) {
                    return Ok(());
                }
            } else if !parts.fds.is_empty() || parts.memory.is_some() {
                // The socket is full, or the user has too many descriptors on their way: nobody
                // tells when that changes.
                let again = Instant::now() + SOCKET_LOOK;
                until = Some(deadline.map_or(again, |deadline| deadline.min(again)));
            } else {
                return Ok(());
            }
        }
        wake::wait(epoll, until, |_, happened| self.note(happened)).map_err(failed)?;
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(SendError::Full);
        }
        Ok(())
    }
}

impl<'a> Parts<'a> {
    fn new(kind: Kind, header: &'a [u8; HEADER_BYTES], body: &'a [u8]) -> Self {
        Self {
            kind,
            header,
            body,
            long: &[],
            memory: None,
            region: None,
            fds: &[],
        }
    }

    fn head(&self, fds: usize) -> Head {
        Head {
            kind: self.kind,
            fds: fds as u8,
            bytes: self.body.len() as u32,
            number: 0,
        }
    }
}

/// Puts a body into the ring of long ones, which has room. Nobody sleeps on that.
fn fill_long(producer: &mut Producer, lines: &Lines<'_, LONG_SLOTS, WORDS>, body: &[u8]) {
    for (ahead, bytes) in body.chunks(WORDS * 8).enumerate() {
        producer.fill(lines, ahead as u32, &words_of(bytes));
    }
    producer.publish(lines, long_slots(body.len()));
}

fn bytes_of<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
