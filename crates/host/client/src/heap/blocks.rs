//! Blocks that share a slab: the two levels.

use std::sync::atomic::AtomicU64;

use crate::heap::layout::SLABS_OF_PAGE;
use crate::heap::memory::{Block, Current, Heap, Kind};
use crate::heap::size::{CLASSES, block_bytes, blocks};
use crate::heap::slab::{Slab, Slot};

/// The bits of word `word` that stand for blocks.
fn mask(class: u8, word: usize) -> u64 {
    match blocks(class).saturating_sub(word * 64) {
        0 => 0,
        all @ ..64 => (1 << all) - 1,
        _ => u64::MAX,
    }
}

fn bit_words(class: u8) -> usize {
    blocks(class).div_ceil(64)
}

impl<M: AsRef<[AtomicU64]>> Heap<M> {
    pub(crate) fn allocate_small(&self, class: u8, kind: Kind) -> Option<Block> {
        let mut current = self.current(class);
        loop {
            let own = current.iter().position(|current| current.kind == kind);
            let at = match own {
                Some(at) => at,
                None => {
                    let found = self.take_with_room(class, kind);
                    let slab = found.or_else(|| self.take_free(class, kind))?;
                    let word = 0;
                    current.push(Current { kind, slab, word });
                    current.len() - 1
                }
            };
            if let Some(bit) = self.take_bit(class, &mut current[at]) {
                let offset = self.layout.offset(current[at].slab);
                return Some(Block(offset + bit as u64 * block_bytes(class)));
            }
            let full = current.swap_remove(at);
            self.release(self.slot, full.slab, class, kind);
        }
    }

    /// Allocates a block of an owned slab. Others can only free some meanwhile.
    fn take_bit(&self, class: u8, current: &mut Current) -> Option<usize> {
        let words = bit_words(class);
        for step in 0..words {
            let word = (current.word + step) % words;
            let at = self.layout.bit_word(current.slab, word);
            let free = !self.words.load(at) & mask(class, word);
            if free != 0 {
                let bit = free.trailing_zeros() as usize;
                let is_new = self.words.set(at, 1 << bit);
                debug_assert!(is_new, "only its owner allocates");
                current.word = word;
                return Some(word * 64 + bit);
            }
        }
        None
    }

    fn has_room(&self, slab: u32, class: u8) -> bool {
        let full = |word| {
            let bits = self.words.load(self.layout.bit_word(slab, word));
            !bits & mask(class, word) == 0
        };
        !(0..bit_words(class)).all(full)
    }

    /// An unowned slab of this class and type with room, which is owned then.
    fn take_with_room(&self, class: u8, kind: Kind) -> Option<u32> {
        let unowned = Slab::Small {
            owner: None,
            class,
            kind,
        };
        let owned = Slab::Small {
            owner: Some(self.slot),
            class,
            kind,
        };
        for from in (0..self.layout.slabs).step_by(64) {
            let mut hints = self.words.load(self.layout.hint_word(class, from));
            while hints != 0 {
                let slab = from + hints.trailing_zeros();
                hints &= hints - 1;
                if matches!(self.slab(slab), Slab::Small { class: c, kind: k, owner: None }
                    if c == class && k != kind)
                {
                    continue;
                }
                self.unhint(slab, class);
                if self.change_slab(slab, unowned, owned) {
                    if self.has_room(slab, class) {
                        return Some(slab);
                    }
                    self.release(self.slot, slab, class, kind);
                } else {
                    // It may have become another one's since it was looked at.
                    self.settle(self.slot, slab);
                }
            }
        }
        None
    }

    fn take_free(&self, class: u8, kind: Kind) -> Option<u32> {
        let owned = Slab::Small {
            owner: Some(self.slot),
            class,
            kind,
        };
        let (cursor, all) = (self.cursor(), self.layout.slabs);
        let row = || (cursor..all).chain(0..cursor);
        let free = || row().filter(|slab| self.slab(*slab) == Slab::Free);
        let near = free().filter(|slab| self.is_near_slab(*slab));
        for slab in near.chain(free()) {
            if self.change_slab(slab, Slab::Free, owned) {
                self.set_cursor(slab + 1);
                return Some(slab);
            }
        }
        None
    }

    /// True when nobody of another host allocates from slabs whose bits are on the same page.
    fn is_near_slab(&self, slab: u32) -> bool {
        let first = slab / SLABS_OF_PAGE * SLABS_OF_PAGE;
        let end = (first + SLABS_OF_PAGE).min(self.layout.slabs);
        (first..end).all(|slab| match self.slab(slab) {
            Slab::Small {
                owner: Some(owner), ..
            } => self.is_near(owner),
            _ => true,
        })
    }

    fn hint(&self, slab: u32, class: u8) {
        let word = self.layout.hint_word(class, slab);
        if self.words.load(word) >> (slab % 64) & 1 == 0 {
            self.words.set(word, 1 << (slab % 64));
        }
    }

    fn unhint(&self, slab: u32, class: u8) {
        let word = self.layout.hint_word(class, slab);
        self.words.clear(word, 1 << (slab % 64));
    }

    /// What was owned by `slot`, or looked at, is so no more.
    pub(crate) fn release(&self, slot: Slot, slab: u32, class: u8, kind: Kind) {
        let unowned = Slab::Small {
            owner: None,
            class,
            kind,
        };
        self.set_slab(slab, unowned);
        self.settle(slot, slab);
    }

    /// Whatever this process allocates from it does not any more.
    pub(crate) fn release_current(&self) {
        for class in 0..CLASSES as u8 {
            let current = std::mem::take(&mut *self.current(class));
            for Current { kind, slab, .. } in current {
                self.release(self.slot, slab, class, kind);
            }
        }
    }

    /// Sees that an unowned slab with room has its hint, and that an empty one is free.
    pub(crate) fn settle(&self, slot: Slot, slab: u32) {
        loop {
            let unowned = self.slab(slab);
            let Slab::Small {
                owner: None,
                class,
                kind,
            } = unowned
            else {
                return;
            };
            if !self.has_room(slab, class) {
                return;
            }
            self.hint(slab, class);
            if !self.is_empty(slab) {
                return;
            }
            let emptied = Slab::Emptied { slot, class, kind };
            if !self.change_slab(slab, unowned, emptied) {
                continue;
            }
            // Nobody allocates from it now.
            if self.is_empty(slab) {
                self.unhint(slab, class);
                return self.set_slab(slab, Slab::Free);
            }
            self.set_slab(slab, unowned);
        }
    }

    pub(crate) fn free_small(&self, slab: u32, bit: usize) -> bool {
        let (at, bit) = (self.layout.bit_word(slab, bit / 64), 1 << (bit % 64));
        let were = self.words.clear(at, bit);
        // An owner finds it by itself.
        if let Slab::Small {
            owner: None, class, ..
        } = self.slab(slab)
        {
            match were & !bit {
                0 => self.settle(self.slot, slab),
                // Whoever frees the last block sees that it is.
                _ => self.hint(slab, class),
            }
        }
        were & bit != 0
    }

    /// The blocks of a slab.
    pub(crate) fn blocks_of(&self, slab: u32) -> Vec<(Block, Kind)> {
        let offset = self.layout.offset(slab);
        match self.slab(slab) {
            Slab::Small { class, kind, .. } | Slab::Emptied { class, kind, .. } => {
                let is_set = |bit: &usize| {
                    let word = self.words.load(self.layout.bit_word(slab, bit / 64));
                    word >> (bit % 64) & 1 == 1
                };
                let block = |bit| (Block(offset + bit as u64 * block_bytes(class)), kind);
                (0..blocks(class)).filter(is_set).map(block).collect()
            }
            Slab::Large { kind, .. } => vec![(Block(offset), kind)],
            _ => Vec::new(),
        }
    }
}
