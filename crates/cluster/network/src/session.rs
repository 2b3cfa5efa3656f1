//! What two incarnations tell each other with one priority, over any number of connections: a value.
//!
//! Messages are numbered. Each is kept until the other side has said that it came, and sent again,
//! from the first that did not come, over the next connection. What came twice is dropped.

use std::collections::VecDeque;
use std::ops::Range;

use crate::frame::{HEADER_BYTES, Header, MESSAGE_BYTES_MAX, Violation};

/// So many messages come before the other side is told so by itself.
const UNTOLD_MESSAGES_MAX: u64 = 64;
/// As above, in bytes: with less, what the other side keeps grows beyond its caches.
const UNTOLD_BYTES_MAX: usize = 256 << 10;
/// Beginnings of the buffer that are not needed any more are tolerated up to here.
const SLACK_BYTES: usize = 64 << 10;
/// An empty buffer keeps so much memory.
const IDLE_BYTES: usize = 256 << 10;

/// Both directions.
#[derive(Default)]
pub struct Session {
    /// Frames as they are sent, one behind the other.
    bytes: Vec<u8>,
    /// Here begins what is kept.
    head: usize,
    /// So far the connection has taken it.
    sent: usize,
    /// So far any connection ever took it.
    reached: usize,
    /// Where the frames of messages end that the peer has not acknowledged; in bytes of all that
    /// was ever put in, of which `dropped` are not in `bytes` any more.
    ends: VecDeque<u64>,
    dropped: u64,
    /// The number of the next message.
    next: u64,
    /// The number of the next message of the peer.
    expected: u64,
    /// So many of its messages the peer was told to have come.
    told: u64,
    /// Of those that it was not told.
    untold_bytes: usize,
}

impl Session {
    /// Adds a message: its parts, one behind the other.
    ///
    /// # Panics
    /// When it is empty or longer than [`MESSAGE_BYTES_MAX`].
    pub fn push(&mut self, parts: &[&[u8]]) {
        let length = parts.iter().map(|part| part.len()).sum();
        assert!(
            (1..=MESSAGE_BYTES_MAX).contains(&length),
            "a message has 1 to {MESSAGE_BYTES_MAX} bytes, not {length}: send large things in parts"
        );
        self.put(length, parts);
        self.ends.push_back(self.dropped + self.bytes.len() as u64);
        self.next += 1;
    }

    /// Adds a frame without a message.
    pub fn push_bare(&mut self) {
        self.put(0, &[]);
    }

    fn put(&mut self, length: usize, parts: &[&[u8]]) {
        self.make_room(HEADER_BYTES + length);
        let header = Header {
            length,
            number: self.next,
            acknowledged: self.expected,
        };
        self.bytes.extend_from_slice(&header.encode());
        parts
            .iter()
            .for_each(|part| self.bytes.extend_from_slice(part));
        self.told = self.expected;
        self.untold_bytes = 0;
    }

    /// Drops the beginning when that is cheaper than to grow.
    fn make_room(&mut self, wanted: usize) {
        let full = self.bytes.len() + wanted > self.bytes.capacity();
        if full && self.head > SLACK_BYTES && self.head > self.bytes.len() / 2 {
            self.bytes.drain(..self.head);
            self.dropped += self.head as u64;
            self.sent -= self.head;
            self.reached -= self.head;
            self.head = 0;
        }
    }

    /// What is to be sent next.
    #[must_use]
    pub fn poll_output(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// The connection took so much of it.
    pub fn handle_sent(&mut self, bytes: usize) {
        self.sent += bytes;
        self.reached = self.reached.max(self.sent);
        self.forget();
    }

    /// Without messages that are kept, frames that were sent are not kept either.
    fn forget(&mut self) {
        if self.ends.is_empty() && self.sent == self.bytes.len() {
            self.dropped += self.bytes.len() as u64;
            self.bytes.clear();
            self.bytes.shrink_to(IDLE_BYTES);
            (self.head, self.sent, self.reached) = (0, 0, 0);
        }
    }

    /// The number of the message that has not come yet: for the greeting.
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.expected
    }

    /// A connection was made, over which the peer says that it has not had message `expected` yet.
    ///
    /// # Errors
    /// It cannot be.
    pub fn handle_connected(&mut self, expected: u64) -> Result<(), Violation> {
        if expected < self.next - self.ends.len() as u64 {
            return Err(self.wrong(expected));
        }
        self.handle_acknowledged(expected, self.reached)?;
        self.sent = self.head;
        if self.ends.is_empty() {
            self.sent = self.bytes.len();
            self.forget();
        }
        self.told = self.expected;
        self.untold_bytes = 0;
        Ok(())
    }

    /// What came over the connection: whole frames are taken, and the places of new messages told.
    /// How much was taken comes back; the rest is to be given again, with more behind it.
    ///
    /// # Errors
    /// It cannot be. What came before is taken and told.
    pub fn handle_input(
        &mut self,
        bytes: &[u8],
        messages: &mut Vec<Range<usize>>,
    ) -> (usize, Result<(), Violation>) {
        let mut taken = 0;
        loop {
            let header = match Header::decode(&bytes[taken..]) {
                Ok(Some(header)) => header,
                Ok(None) => return (taken, Ok(())),
                Err(violation) => return (taken, Err(violation)),
            };
            let message = taken + HEADER_BYTES..taken + HEADER_BYTES + header.length;
            match self.handle_header(header) {
                Ok(true) => messages.push(message.clone()),
                Ok(false) => {}
                Err(violation) => return (taken, Err(violation)),
            }
            taken = message.end;
        }
    }

    /// True when its message is new.
    fn handle_header(&mut self, header: Header) -> Result<bool, Violation> {
        if header.number > self.expected {
            return Err(Violation::Gap {
                number: header.number,
                expected: self.expected,
            });
        }
        self.handle_acknowledged(header.acknowledged, self.sent)?;
        let is_new = header.length > 0 && header.number == self.expected;
        if is_new {
            self.expected += 1;
            self.untold_bytes += header.length;
        }
        Ok(is_new)
    }

    /// The peer has all before message `acknowledged`; `reached` is how far bytes can have come.
    fn handle_acknowledged(&mut self, acknowledged: u64, reached: usize) -> Result<(), Violation> {
        let first = self.next - self.ends.len() as u64;
        // Frames that are sent again acknowledge what they did the first time.
        let Some(count) = acknowledged.checked_sub(first).filter(|count| *count > 0) else {
            return Ok(());
        };
        let reached = self.dropped + reached as u64;
        let last = usize::try_from(count - 1)
            .ok()
            .and_then(|at| self.ends.get(at));
        let Some(end) = last.copied().filter(|end| *end <= reached) else {
            return Err(self.wrong(acknowledged));
        };
        self.ends.drain(..count as usize);
        self.head = (end - self.dropped) as usize;
        // Where all is sent again, it begins behind what need not be.
        self.sent = self.sent.max(self.head);
        self.forget();
        Ok(())
    }

    fn wrong(&self, acknowledged: u64) -> Violation {
        let least = self.next - self.ends.len() as u64;
        let reached = self.dropped + self.reached as u64;
        let sent = self.ends.partition_point(|end| *end <= reached) as u64;
        Violation::Acknowledged {
            acknowledged,
            least,
            most: least + sent,
        }
    }

    /// So much came that the peer should be told, and there is nothing to tell it with.
    #[must_use]
    pub fn is_owed_word(&self) -> bool {
        self.expected - self.told >= UNTOLD_MESSAGES_MAX || self.untold_bytes >= UNTOLD_BYTES_MAX
    }

    /// Something came of which the peer was not told.
    #[must_use]
    pub fn is_untold(&self) -> bool {
        self.expected > self.told
    }

    /// What is kept for the peer, in bytes.
    #[must_use]
    pub fn owed_bytes(&self) -> usize {
        self.bytes.len() - self.head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(from: &mut Session, to: &mut Session) -> Vec<Vec<u8>> {
        let bytes = from.poll_output().to_vec();
        from.handle_sent(bytes.len());
        let mut messages = Vec::new();
        let (taken, result) = to.handle_input(&bytes, &mut messages);
        assert_eq!((taken, result), (bytes.len(), Ok(())));
        messages.into_iter().map(|at| bytes[at].to_vec()).collect()
    }

    #[test]
    fn what_was_not_acknowledged_is_sent_again_and_taken_once() {
        let (mut a, mut b) = (Session::default(), Session::default());
        a.push(&[b"one", b"!"]);
        assert_eq!(pass(&mut a, &mut b), [b"one!"]);
        a.push(&[b"two"]);
        a.handle_sent(a.poll_output().len());
        a.handle_connected(b.expected()).unwrap();
        b.handle_connected(a.expected()).unwrap();
        assert_eq!(pass(&mut a, &mut b), [b"two"]);
        a.handle_connected(1).unwrap();
        assert_eq!(pass(&mut a, &mut b), [] as [Vec<u8>; 0]);
        b.push_bare();
        pass(&mut b, &mut a);
        assert_eq!((a.owed_bytes(), b.owed_bytes()), (0, 0));
    }

    #[test]
    fn acknowledging_what_was_never_sent_is_a_violation_and_changes_nothing() {
        let (mut a, mut b) = (Session::default(), Session::default());
        a.push(&[b"one"]);
        let lie = |acknowledged| Header {
            length: 0,
            number: 0,
            acknowledged,
        };
        let wrong = |acknowledged, most| {
            Err(Violation::Acknowledged {
                acknowledged,
                least: 0,
                most,
            })
        };
        let mut none = Vec::new();
        let answer = a.handle_input(&lie(1).encode(), &mut none);
        assert_eq!(answer, (0, wrong(1, 0)));
        assert_eq!(pass(&mut a, &mut b), [b"one"]);
        assert_eq!(a.handle_connected(2), wrong(2, 1));
        assert_eq!(a.handle_connected(1), Ok(()));
        assert!(a.handle_connected(0).is_err(), "it has lost one");
    }

    #[test]
    fn a_gap_is_a_violation() {
        let mut a = Session::default();
        let header = Header {
            length: 1,
            number: 1,
            acknowledged: 0,
        };
        let mut bytes = header.encode().to_vec();
        bytes.push(0);
        let gap = Violation::Gap {
            number: 1,
            expected: 0,
        };
        assert_eq!(a.handle_input(&bytes, &mut Vec::new()), (0, Err(gap)));
    }

    #[test]
    fn many_messages_are_told_of_without_being_asked() {
        let (mut a, mut b) = (Session::default(), Session::default());
        (0..UNTOLD_MESSAGES_MAX).for_each(|_| a.push(&[b"x"]));
        assert!(!b.is_owed_word());
        pass(&mut a, &mut b);
        assert!(b.is_owed_word());
        b.push_bare();
        assert!(!b.is_owed_word() && !b.is_untold());
    }

    #[test]
    fn a_buffer_that_is_never_empty_does_not_grow() {
        let (mut a, mut b) = (Session::default(), Session::default());
        let page = [7; 4096];
        a.push(&[&page]);
        for _ in 0..2000 {
            a.push(&[&page]);
            let frame = page.len() + HEADER_BYTES;
            let bytes = a.poll_output()[..frame].to_vec();
            a.handle_sent(frame);
            b.handle_input(&bytes, &mut Vec::new()).1.unwrap();
            b.push_bare();
            pass(&mut b, &mut a);
        }
        assert_eq!(a.owed_bytes(), page.len() + HEADER_BYTES);
        assert!(a.bytes.capacity() < 512 << 10, "{}", a.bytes.capacity());
    }

    #[test]
    #[should_panic(expected = "send large things in parts")]
    fn a_message_that_is_too_long_is_refused() {
        Session::default().push(&[&[0; MESSAGE_BYTES_MAX], &[0]]);
    }

    #[test]
    #[should_panic(expected = "not 0")]
    fn an_empty_message_is_refused() {
        Session::default().push(&[]);
    }
}
