//! A queue of slots in memory that two processes share, one of which fills it and one empties it.
//!
//! Pure: words in, words out. What each side believes lies in its own memory ([`Producer`],
//! [`Consumer`]); of what the other writes, only its index is read, and checked: an index that
//! cannot be ends the conversation as a [`Lie`]. The model of this file is checked under every
//! order that the memory model allows (`tests/it/ring_orders.rs`).
//!
//! Invariant: whoever sleeps has announced it and then looked once more, with a fence between;
//! whoever changes an index looks for the announcement afterwards, with a fence between. So one of
//! the two sees the other.

use super::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The words of one direction. `SLOTS` is a power of two.
pub struct Lines<'a, const SLOTS: usize, const WORDS: usize> {
    /// Slots filled since the beginning, modulo 2^32; written by the producer.
    pub tail: &'a AtomicU32,
    /// Slots emptied since the beginning, modulo 2^32; written by the consumer.
    pub head: &'a AtomicU32,
    /// The consumer wants to be woken when the tail moves.
    pub consumer_sleeps: &'a AtomicU32,
    /// The producer wants to be woken when the head moves.
    pub producer_sleeps: &'a AtomicU32,
    /// `SLOTS` times `WORDS` words.
    pub slots: &'a [AtomicU64],
}

/// The other side wrote an index that it cannot have reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lie {
    /// What it wrote.
    pub index: u32,
    /// What this side has reached.
    pub own: u32,
}

/// What the side that fills knows.
#[derive(Default)]
pub struct Producer {
    tail: u32,
    head: u32,
}

/// What the side that empties knows.
#[derive(Default)]
pub struct Consumer {
    head: u32,
    tail: u32,
}

impl<const SLOTS: usize, const WORDS: usize> Lines<'_, SLOTS, WORDS> {
    fn slot(&self, index: u32) -> &[AtomicU64] {
        let at = index as usize % SLOTS * WORDS;
        &self.slots[at..at + WORDS]
    }

    /// The consumer's announcement: "wake me". True when that is not needed, because something
    /// is there already (or the producer lies; the next look says so).
    pub fn announce_consumer(&self, consumer: &Consumer) -> bool {
        self.consumer_sleeps.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.tail.load(Ordering::Relaxed) != consumer.head
    }

    /// The producer's. True when the head has moved since `producer` looked.
    pub fn announce_producer(&self, producer: &Producer) -> bool {
        self.producer_sleeps.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.head.load(Ordering::Relaxed) != producer.head
    }
}

/// Takes an announcement back for the one who sleeps: true when there was one.
fn take(flag: &AtomicU32) -> bool {
    fence(Ordering::SeqCst);
    flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0
}

impl Producer {
    /// How many slots are empty, at least `wanted` of them or as many as there are.
    pub fn room<const S: usize, const W: usize>(
        &mut self,
        lines: &Lines<'_, S, W>,
        wanted: u32,
    ) -> Result<u32, Lie> {
        let room = |producer: &Self| S as u32 - producer.tail.wrapping_sub(producer.head);
        if room(self) >= wanted {
            return Ok(room(self));
        }
        let index = lines.head.load(Ordering::Acquire);
        if self.tail.wrapping_sub(index) > self.tail.wrapping_sub(self.head) {
            return Err(Lie {
                index,
                own: self.tail,
            });
        }
        self.head = index;
        Ok(room(self))
    }

    /// The consumer has given slots back since this side looked.
    pub fn has_moved<const S: usize, const W: usize>(&self, lines: &Lines<'_, S, W>) -> bool {
        lines.head.load(Ordering::Relaxed) != self.head
    }

    /// Fills the slot `ahead` of the next one, which must be empty.
    pub fn fill<const S: usize, const W: usize>(
        &self,
        lines: &Lines<'_, S, W>,
        ahead: u32,
        words: &[u64; W],
    ) {
        for (to, word) in lines.slot(self.tail.wrapping_add(ahead)).iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
    }

    /// Hands `count` filled slots over. True when the consumer is to be woken.
    pub fn publish<const S: usize, const W: usize>(
        &mut self,
        lines: &Lines<'_, S, W>,
        count: u32,
    ) -> bool {
        self.tail = self.tail.wrapping_add(count);
        lines.tail.store(self.tail, Ordering::Release);
        take(lines.consumer_sleeps)
    }
}

impl Consumer {
    /// Whether there is something, without believing how much.
    pub fn has_come<const S: usize, const W: usize>(&self, lines: &Lines<'_, S, W>) -> bool {
        lines.tail.load(Ordering::Relaxed) != self.head
    }

    /// How many slots are filled.
    pub fn filled<const S: usize, const W: usize>(
        &mut self,
        lines: &Lines<'_, S, W>,
    ) -> Result<u32, Lie> {
        let known = self.tail.wrapping_sub(self.head);
        if known > 0 {
            return Ok(known);
        }
        let index = lines.tail.load(Ordering::Acquire);
        let filled = index.wrapping_sub(self.head);
        if filled > S as u32 {
            return Err(Lie {
                index,
                own: self.head,
            });
        }
        self.tail = index;
        Ok(filled)
    }

    /// Copies the filled slot `ahead` of the next one.
    pub fn copy<const S: usize, const W: usize>(
        &self,
        lines: &Lines<'_, S, W>,
        ahead: u32,
    ) -> [u64; W] {
        let slot = lines.slot(self.head.wrapping_add(ahead));
        core::array::from_fn(|word| slot[word].load(Ordering::Relaxed))
    }

    /// Gives `count` slots back, empty. True when the producer is to be woken.
    pub fn release<const S: usize, const W: usize>(
        &mut self,
        lines: &Lines<'_, S, W>,
        count: u32,
    ) -> bool {
        self.head = self.head.wrapping_add(count);
        lines.head.store(self.head, Ordering::Release);
        take(lines.producer_sleeps)
    }
}
