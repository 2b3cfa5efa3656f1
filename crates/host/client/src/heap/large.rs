//! Blocks of whole slabs.

use std::sync::atomic::AtomicU64;

use crate::heap::memory::{Block, Heap, Kind};
use crate::heap::slab::Slab;

impl<M: AsRef<[AtomicU64]>> Heap<M> {
    pub(crate) fn allocate_large(&self, slabs: u32, kind: Kind) -> Option<Block> {
        let (cursor, all) = (self.cursor(), self.layout.slabs);
        let found = self.claim_row(cursor, all, slabs);
        let first = found.or_else(|| self.claim_row(0, all, slabs))?;
        for tail in first + 1..first + slabs {
            self.set_slab(tail, Slab::Tail { first });
        }
        // From here on it is a block.
        self.set_slab(first, Slab::Large { slabs, kind });
        self.set_cursor(first + slabs);
        Some(Block(self.layout.offset(first)))
    }

    /// Claims so many free slabs in a row; returns the first.
    fn claim_row(&self, from: u32, to: u32, slabs: u32) -> Option<u32> {
        let mut first = from;
        while to - first >= slabs {
            let row = first..first + slabs;
            // From its end: what is in the way leads past it.
            let taken = row
                .clone()
                .rev()
                .find(|slab| self.slab(*slab) != Slab::Free);
            let taken = taken.or_else(|| self.claim(row));
            match taken {
                None => return Some(first),
                Some(taken) => first = taken + 1,
            }
        }
        None
    }

    /// Claims all or none; then returns the slab that somebody else has.
    fn claim(&self, row: std::ops::Range<u32>) -> Option<u32> {
        let claimed = Slab::Claimed { slot: self.slot };
        let taken = row
            .clone()
            .find(|slab| !self.change_slab(*slab, Slab::Free, claimed))?;
        for slab in row.start..taken {
            self.set_slab(slab, Slab::Free);
        }
        Some(taken)
    }

    pub(crate) fn free_large(&self, first: u32, slabs: u32, kind: Kind) -> bool {
        let slot = self.slot;
        let freeing = Slab::Freeing { slot, slabs };
        if !self.change_slab(first, Slab::Large { slabs, kind }, freeing) {
            return false;
        }
        self.free_tails(first, slabs);
        self.set_slab(first, Slab::Free);
        true
    }

    /// Frees what belongs to a first slab, which is this process's, or a dead one's.
    pub(crate) fn free_tails(&self, first: u32, slabs: u32) {
        let end = first.saturating_add(slabs).min(self.layout.slabs);
        for tail in first + 1..end {
            // Those that are free already may be somebody else's by now.
            self.change_slab(tail, Slab::Tail { first }, Slab::Free);
        }
    }
}
