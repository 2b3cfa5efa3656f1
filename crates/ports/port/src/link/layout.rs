//! Where things lie in the memory that two processes share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use farpage_sys::memory_file::{self, Words};

use super::atomic::{AtomicU32, Ordering};
use super::ring::Lines;

/// Slots of one direction.
pub(super) const SLOTS: usize = 64;
/// Words of one slot.
pub(super) const WORDS: usize = 16;

/// Slots of one direction for long bodies.
pub(super) const LONG_SLOTS: usize = 1024;

/// Bytes of the memory: a page of words, the slots of either direction, and those for long bodies,
/// which take no memory until they are used.
pub(super) const BYTES: usize = FIRST_LONG_SLOT + 2 * LONG_SLOTS * WORDS * 8;
const FIRST_SLOT: usize = 4096;
const FIRST_LONG_SLOT: usize = FIRST_SLOT + 2 * SLOTS * WORDS * 8;
/// Between what is written by different sides: two lines of the cache, which Intel fetches at once.
const APART: usize = 128;
const SIDES: usize = 1024;
/// Indices of the slots for long bodies.
const LONG: usize = 2048;

/// One side of a Link: who connected is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Connector,
    Acceptor,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Connector => Self::Acceptor,
            Self::Acceptor => Self::Connector,
        }
    }
}

/// The shared memory, as one side sees it.
pub(super) struct Shared {
    words: Words,
    own: Side,
}

/// Makes the memory for a Link.
pub(super) fn create() -> farpage_sys::Result<OwnedFd> {
    let fd = memory_file::create(c"farpage-link", BYTES)?;
    memory_file::seal(fd.as_fd(), memory_file::FIXED)?;
    Ok(fd)
}

impl Shared {
    /// Maps what [`create`] made, here or in another process.
    pub(super) fn map(fd: BorrowedFd<'_>, own: Side) -> farpage_sys::Result<Self> {
        let words = Words::map(fd, BYTES)?;
        // What every message needs is there before the first one.
        for first in words.u64s()[..FIRST_LONG_SLOT / 8].chunks(512) {
            first[0].load(Ordering::Relaxed);
        }
        Ok(Self { words, own })
    }

    /// The words before the slots.
    #[inline]
    fn first(&self) -> &[AtomicU32; FIRST_SLOT / 4] {
        let first = self.words.u32s().first_chunk();
        first.expect("all of the memory is mapped")
    }

    #[inline]
    fn word(&self, byte: usize) -> &AtomicU32 {
        &self.first()[byte / 4]
    }

    #[inline]
    fn lines(&self, from: Side) -> Lines<'_, SLOTS, WORDS> {
        let at = from as usize * 2 * APART;
        let first = (FIRST_SLOT / 8) + from as usize * SLOTS * WORDS;
        let words = self.first();
        Lines {
            tail: &words[at / 4],
            consumer_sleeps: &words[at / 4 + 1],
            head: &words[(at + APART) / 4],
            producer_sleeps: &words[(at + APART) / 4 + 1],
            slots: &self.words.u64s()[first..first + SLOTS * WORDS],
        }
    }

    fn long_lines(&self, from: Side) -> Lines<'_, LONG_SLOTS, WORDS> {
        let at = LONG + from as usize * 2 * APART;
        let first = (FIRST_LONG_SLOT / 8) + from as usize * LONG_SLOTS * WORDS;
        Lines {
            tail: self.word(at),
            consumer_sleeps: self.word(at + 4),
            head: self.word(at + APART),
            producer_sleeps: self.word(at + APART + 4),
            slots: &self.words.u64s()[first..first + LONG_SLOTS * WORDS],
        }
    }

    /// The ring that this side fills with long bodies. Nobody sleeps on it: what finds no room goes
    /// by memory, and the frame that announces a body comes by the other ring.
    pub(super) fn outgoing_long(&self) -> Lines<'_, LONG_SLOTS, WORDS> {
        self.long_lines(self.own)
    }

    /// The ring of long bodies that this side empties.
    pub(super) fn incoming_long(&self) -> Lines<'_, LONG_SLOTS, WORDS> {
        self.long_lines(self.own.other())
    }

    /// The ring that this side fills.
    pub(super) fn outgoing(&self) -> Lines<'_, SLOTS, WORDS> {
        self.lines(self.own)
    }

    /// The ring that this side empties.
    pub(super) fn incoming(&self) -> Lines<'_, SLOTS, WORDS> {
        self.lines(self.own.other())
    }

    fn processor_of(&self, side: Side) -> &AtomicU32 {
        self.word(SIDES + side as usize * APART)
    }

    fn goodbye_of(&self, side: Side) -> &AtomicU32 {
        self.word(SIDES + side as usize * APART + 4)
    }

    /// Tells the peer on which processor this side runs.
    pub(super) fn set_processor(&self, processor: u32) {
        let word = self.processor_of(self.own);
        if word.load(Ordering::Relaxed) != processor + 1 {
            word.store(processor + 1, Ordering::Relaxed);
        }
    }

    /// The processor that the peer says it runs on.
    pub(super) fn peer_processor(&self) -> Option<u32> {
        let word = self.processor_of(self.own.other());
        word.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Says that this side closes the Link; all that it sent lies in the ring.
    pub(super) fn say_goodbye(&self) {
        self.goodbye_of(self.own).store(1, Ordering::Release);
    }

    /// The peer has said so.
    pub(super) fn has_peer_left(&self) -> bool {
        self.goodbye_of(self.own.other()).load(Ordering::Acquire) != 0
    }
}
