//! Frames: their form in a slot, checked after it was copied.

use std::os::fd::OwnedFd;

use farpage_sys::memory_file::Frozen;

use super::FDS_MAX;
use super::error::Violation;
use super::layout::WORDS;
use super::memory::{Loan, LoanId};

/// Bytes of a frame's header that belong to the user.
pub const HEADER_BYTES: usize = 48;
/// Bytes of a body that share the slot of the header.
pub const IN_SLOT_MAX: usize = 64;
/// Bytes of a body that go through the ring; longer ones go through another, or by memory.
pub const IN_RING_MAX: usize = IN_SLOT_MAX + 32 * SLOT_BYTES;
/// Bytes of a body that go through the ring of long bodies when there is room; longer ones go by
/// memory.
pub const IN_LONG_RING_MAX: usize = 80 << 10;
const SLOT_BYTES: usize = WORDS * 8;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// For the user's own purposes.
    pub header: [u8; HEADER_BYTES],
    /// As long as one likes.
    pub body: &'a [u8],
}

/// What was received.
#[derive(Debug)]
pub struct Message {
    /// The frame's header.
    pub header: [u8; HEADER_BYTES],
    /// The frame's body; derefs to bytes.
    pub body: Body,
    /// What came along.
    pub attached: Attached,
    /// Descriptors that came along, closed on exec.
    pub fds: Vec<OwnedFd>,
}

/// The bytes of a body, wherever they are.
pub enum Body {
    /// Up to 64 bytes.
    InSlot {
        /// The first `length` count.
        bytes: [u8; IN_SLOT_MAX],
        /// How many.
        length: u8,
    },
    /// Up to 64 KiB: longer than [`IN_RING_MAX`] they came by memory, and were copied out of it.
    Copied(Vec<u8>),
    /// Any number, in memory that the sender can no longer change.
    Mapped(Frozen),
}

/// What comes along with a message, beside descriptors.
pub enum Attached {
    /// Nothing.
    Nothing,
    /// Memory, the receiver's own from now on.
    Memory(Frozen),
    /// Memory to look at until it is given back.
    Loan(Loan),
    /// A loan of this side has come back.
    Returned(LoanId),
}

impl std::ops::Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::InSlot { bytes, length } => &bytes[..usize::from(*length)],
            Self::Copied(bytes) => bytes,
            Self::Mapped(frozen) => frozen,
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nothing => write!(f, "Nothing"),
            Self::Memory(memory) => write!(f, "Memory({} bytes)", memory.len()),
            Self::Loan(loan) => loan.fmt(f),
            Self::Returned(id) => write!(f, "Returned({id:?})"),
        }
    }
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Header and body.
    Plain = 1,
    /// The body is the first descriptor.
    LongBody = 2,
    /// Header and body; the first descriptor is memory.
    Memory = 3,
    /// The first descriptor is a region that will be lent.
    Region = 4,
    /// A range of a region is lent.
    Loan = 5,
    /// A loan is returned.
    Return = 6,
    /// The body lies in the ring of long bodies.
    InLongRing = 7,
}

impl Kind {
    fn from_raw(raw: u8) -> Option<Self> {
        const ALL: [Kind; 7] = [
            Kind::Plain,
            Kind::LongBody,
            Kind::Memory,
            Kind::Region,
            Kind::Loan,
            Kind::Return,
            Kind::InLongRing,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == raw)
    }

    /// Its first descriptor belongs to the Link.
    pub(super) fn has_memory(self) -> bool {
        match self {
            Self::LongBody | Self::Memory | Self::Region => true,
            Self::Plain | Self::Loan | Self::Return | Self::InLongRing => false,
        }
    }

    /// Words of its body that belong to the Link.
    fn own_words(self) -> Option<u32> {
        match self {
            Self::Plain | Self::Memory => None,
            Self::LongBody | Self::Return | Self::InLongRing => Some(1),
            Self::Region => Some(2),
            Self::Loan => Some(4),
        }
    }
}

/// The beginning of a frame: 16 bytes of the Link's before the user's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    /// Descriptors, those of the Link among them.
    pub(super) fds: u8,
    /// Bytes of the body in the ring.
    pub(super) bytes: u32,
    /// What the descriptors are numbered in the socket; 0 when there are none.
    pub(super) number: u64,
}

impl Head {
    /// Slots that the frame takes.
    pub(super) fn slots(&self) -> u32 {
        1 + self
            .bytes
            .saturating_sub(IN_SLOT_MAX as u32)
            .div_ceil(SLOT_BYTES as u32)
    }

    /// The first slot of a frame that begins with these bytes.
    pub(super) fn words(&self, bytes: &[u8]) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[..2].copy_from_slice(&self.encode());
        put(&mut words[2..], bytes);
        words
    }

    fn encode(&self) -> [u64; 2] {
        let first = self.kind as u64 | u64::from(self.fds) << 8 | u64::from(self.bytes) << 32;
        [first, self.number]
    }

    /// Reads the copy of a slot.
    ///
    /// # Errors
    /// What no honest sender writes.
    pub(super) fn decode(words: &[u64; WORDS]) -> Result<Self, Violation> {
        let (first, number) = (words[0], words[1]);
        let wrong = Violation::Frame(first);
        let head = Self {
            kind: Kind::from_raw(first as u8).ok_or(wrong)?,
            fds: (first >> 8) as u8,
            bytes: (first >> 32) as u32,
            number,
        };
        let most = FDS_MAX + usize::from(head.kind.has_memory());
        let fds = usize::from(head.fds);
        let whole = first & 0xffff_0000 == 0
            && (usize::from(head.kind.has_memory())..=most).contains(&fds)
            && (fds == 0) == (number == 0)
            && head
                .kind
                .own_words()
                .is_none_or(|words| head.bytes == words * 8)
            && (head.kind != Kind::Memory || head.bytes >= 8);
        if !whole {
            return Err(wrong);
        }
        Ok(head)
    }
}

/// The slots of a frame, to be filled one by one.
pub(super) struct Slots<'a> {
    pub(super) head: Head,
    pub(super) header: &'a [u8; HEADER_BYTES],
    pub(super) body: &'a [u8],
}

impl Slots<'_> {
    /// The words of slot `index`.
    pub(super) fn words(&self, index: u32) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        if index == 0 {
            words[..2].copy_from_slice(&self.head.encode());
            put(&mut words[2..8], self.header);
            put(
                &mut words[8..],
                &self.body[..self.body.len().min(IN_SLOT_MAX)],
            );
        } else {
            let at = IN_SLOT_MAX + (index as usize - 1) * SLOT_BYTES;
            let end = self.body.len().min(at + SLOT_BYTES);
            put(&mut words, &self.body[at..end]);
        }
        words
    }
}

/// Slots that a body takes in the ring of long ones.
pub(super) fn long_slots(bytes: usize) -> u32 {
    bytes.div_ceil(SLOT_BYTES) as u32
}

/// The words of one slot of a long body.
pub(super) fn words_of(bytes: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    put(&mut words, bytes);
    words
}

fn put(words: &mut [u64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, bytes) in words.iter_mut().zip(whole) {
        *word = u64::from_ne_bytes(*bytes);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words[whole.len()] = u64::from_ne_bytes(last);
    }
}

/// The bytes of copied words.
pub(super) fn bytes_of<const N: usize>(words: &[u64]) -> [u8; N] {
    let mut bytes = [0; N];
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *to = word.to_ne_bytes();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(kind: Kind, fds: u8, bytes: u32) -> Head {
        let number = u64::from(fds > 0);
        Head {
            kind,
            fds,
            bytes,
            number,
        }
    }

    fn coded(head: Head) -> Result<Head, Violation> {
        let body = vec![7; head.bytes as usize];
        let slots = Slots {
            head,
            header: &[1; HEADER_BYTES],
            body: &body,
        };
        Head::decode(&slots.words(0))
    }

    #[test]
    fn what_is_written_is_read() {
        let fine = [
            head(Kind::Plain, 0, 0),
            head(Kind::Plain, 16, 65),
            head(Kind::Memory, 17, 4160),
            head(Kind::LongBody, 1, 8),
            head(Kind::Region, 1, 16),
            head(Kind::Loan, 0, 32),
            head(Kind::Return, 0, 8),
            head(Kind::InLongRing, 3, 8),
        ];
        for head in fine {
            assert_eq!(coded(head), Ok(head));
        }
        assert_eq!(fine.map(|head| head.slots())[..3], [1, 2, 33]);
    }

    #[test]
    fn what_no_sender_writes_is_refused() {
        for head in [
            head(Kind::Plain, 17, 0),
            head(Kind::Memory, 0, 8),
            head(Kind::Memory, 1, 7),
            head(Kind::LongBody, 1, 9),
            head(Kind::Return, 0, 0),
            Head {
                number: 3,
                ..head(Kind::Plain, 0, 0)
            },
            Head {
                number: 0,
                ..head(Kind::Plain, 2, 0)
            },
        ] {
            assert!(matches!(coded(head), Err(Violation::Frame(_))), "{head:?}");
        }
        for first in [0, 8, 0xff, 1 | 1 << 16, 1 | 1 << 31] {
            let mut words = [0; WORDS];
            words[0] = first;
            assert_eq!(Head::decode(&words), Err(Violation::Frame(first)));
        }
    }

    #[test]
    fn a_body_goes_round_whole() {
        for length in [0usize, 1, 7, 64, 65, 191, 192, 193, IN_RING_MAX] {
            let body: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            let head = head(Kind::Plain, 0, length as u32);
            let slots = Slots {
                head,
                header: &[0; HEADER_BYTES],
                body: &body,
            };
            let mut back: Vec<u8> = bytes_of::<64>(&slots.words(0)[8..]).to_vec();
            (1..head.slots()).for_each(|i| back.extend(bytes_of::<128>(&slots.words(i))));
            assert_eq!(back[..length], body);
            assert!(back.len() - length <= 128);
        }
    }
}
