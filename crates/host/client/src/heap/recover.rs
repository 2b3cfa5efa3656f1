//! Processes that were killed: what they had in hand is found again.

use std::sync::atomic::AtomicU64;

use crate::heap::layout::{SLOT_WORDS, SLOTS};
use crate::heap::memory::Heap;
use crate::heap::slab::{Slab, Slot};

/// Of a slot's word: its process recovers what another one left there.
const RECOVERING: u64 = 1 << 63;

impl<M: AsRef<[AtomicU64]>> Heap<M> {
    /// Recovers all that are dead; so many there were. Who dies here leaves a slot of a dead process
    /// behind, for the next: every step may be done again.
    pub(crate) fn recover_dead(&self) -> u32 {
        let mut found = 0;
        for slot in 0..SLOT_WORDS as Slot {
            let at = SLOTS + usize::from(slot);
            let was = self.words.load(at);
            let is_dead = was != 0 && self.processes.is_dead(was & !RECOVERING);
            let own = self.processes.own();
            if is_dead && self.words.replace(at, was, own | RECOVERING) {
                self.recover_slot(slot);
                self.words.store(at, 0);
                found += 1;
            }
        }
        found
    }

    /// Whether who has a slot is near.
    pub(crate) fn is_near(&self, slot: Slot) -> bool {
        let word = SLOTS + usize::from(slot) % SLOT_WORDS;
        slot == self.slot || self.processes.is_near(self.words.load(word) & !RECOVERING)
    }

    fn recover_slot(&self, dead: Slot) {
        // Large blocks first: their tails are known by what the first slab still says.
        for slab in 0..self.layout.slabs {
            match self.slab(slab) {
                Slab::Freeing { slot, slabs } if slot == dead => self.free_tails(slab, slabs),
                Slab::Tail { first }
                    if first < slab && self.slab(first) == (Slab::Claimed { slot: dead }) =>
                {
                    self.change_slab(slab, Slab::Tail { first }, Slab::Free);
                }
                _ => {}
            }
        }
        for slab in 0..self.layout.slabs {
            match self.slab(slab) {
                Slab::Freeing { slot, .. } | Slab::Claimed { slot } if slot == dead => {
                    self.set_slab(slab, Slab::Free);
                }
                Slab::Emptied { slot, class, kind } if slot == dead => {
                    self.release(dead, slab, class, kind);
                }
                Slab::Small { owner, class, kind } if owner == Some(dead) => {
                    self.release(dead, slab, class, kind);
                }
                // A hint that it was about to give.
                Slab::Small { owner: None, .. } => self.settle(dead, slab),
                _ => {}
            }
        }
    }
}
