//! Whether a heap holds what it must, while nobody uses it.

use std::sync::atomic::AtomicU64;

use crate::heap::layout::{BIT_WORDS, SLOTS};
use crate::heap::memory::Heap;
use crate::heap::size::blocks;
use crate::heap::slab::{Slab, Slot};

/// What is wrong with a heap: somebody has written into what is not theirs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("slab {slab} of the heap is damaged: {why}; make the heap anew")]
pub struct Damage {
    /// Which.
    pub slab: u32,
    /// What.
    pub why: &'static str,
}

impl<M: AsRef<[AtomicU64]>> Heap<M> {
    /// Looks at all of the heap. While somebody allocates or frees, what is right may look wrong.
    ///
    /// # Errors
    /// The first [`Damage`].
    pub fn check(&self) -> Result<(), Damage> {
        let mut slab = 0;
        while slab < self.layout.slabs {
            let damage = |why| Damage { slab, why };
            let next = self.check_slab(slab).map_err(damage)?;
            slab = next;
        }
        Ok(())
    }

    /// Returns the slab behind this one, or behind all that belong to it.
    fn check_slab(&self, slab: u32) -> Result<u32, &'static str> {
        let word = self.words.load(self.layout.slab_word(slab));
        match Slab::decode(word).ok_or("its word is none")? {
            Slab::Free => match self.is_empty(slab) {
                true => Ok(slab + 1),
                false => Err("it is free, and holds blocks"),
            },
            Slab::Small { owner, class, .. } => {
                let bits = |word| self.words.load(self.layout.bit_word(slab, word));
                let set: u32 = (0..BIT_WORDS).map(|word| bits(word).count_ones()).sum();
                let blocks = blocks(class);
                let last = bits(blocks / 64 % BIT_WORDS);
                if !blocks.is_multiple_of(64) && last >> (blocks % 64) != 0 {
                    return Err("it holds more blocks than fit");
                }
                let Some(owner) = owner else {
                    let hint = self.words.load(self.layout.hint_word(class, slab));
                    let is_hinted = hint >> (slab % 64) & 1 == 1;
                    return match (set, is_hinted) {
                        (0, _) => Err("it is empty, and not free"),
                        (set, false) if (set as usize) < blocks => Err("nobody knows of its room"),
                        _ => Ok(slab + 1),
                    };
                };
                self.check_owner(owner).map(|()| slab + 1)
            }
            Slab::Large { slabs, .. } => {
                let end = slab
                    .checked_add(slabs)
                    .filter(|end| *end <= self.layout.slabs);
                let end = end.filter(|_| slabs > 0).ok_or("its block is too long")?;
                let tail = Slab::Tail { first: slab };
                match (slab + 1..end).all(|slab| self.slab(slab) == tail) {
                    true => Ok(end),
                    false => Err("its block has lost a piece"),
                }
            }
            Slab::Tail { .. } => Err("it is a piece of no block"),
            Slab::Claimed { .. } | Slab::Emptied { .. } | Slab::Freeing { .. } => {
                Err("somebody is at work on it")
            }
        }
    }

    fn check_owner(&self, owner: Slot) -> Result<(), &'static str> {
        match self.words.load(SLOTS + usize::from(owner)) {
            0 => Err("its owner is nobody"),
            _ => Ok(()),
        }
    }
}
