//! What a slab is, in one word.

use crate::heap::memory::Kind;

/// Who a slab belongs to: the number of a process in the heap.
pub(crate) type Slot = u16;

/// A slab's word. `slot` is the process that works on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slab {
    /// Nobody's, and empty.
    Free,
    /// To become something else, or nothing: of large blocks.
    Claimed { slot: Slot },
    /// Looked at by a process that believes it to be empty.
    Emptied { slot: Slot, class: u8, kind: Kind },
    /// Blocks of one size and type. Only its owner allocates.
    Small {
        owner: Option<Slot>,
        class: u8,
        kind: Kind,
    },
    /// The first of so many that are one block.
    Large { slabs: u32, kind: Kind },
    /// One of the others, and which slab is the first.
    Tail { first: u32 },
    /// The first of a large block that is being freed.
    Freeing { slot: Slot, slabs: u32 },
}

/// Slabs of a heap, and of a large block, at most.
pub(crate) const SLABS_MAX: u32 = (1 << 24) - 1;

const FREE: u64 = 0;
const CLAIMED: u64 = 1;
const EMPTIED: u64 = 2;
const SMALL: u64 = 3;
const LARGE: u64 = 4;
const TAIL: u64 = 5;
const FREEING: u64 = 6;

impl Slab {
    /// From the lowest bit on: 4 bits what it is, 8 the class, 16 the type, 12 the process (0:
    /// nobody), 24 a number of slabs.
    pub(crate) fn encode(self) -> u64 {
        let word = |what, class: u8, kind: Kind, slot: Option<Slot>, number: u32| {
            let slot = slot.map_or(0, |slot| u64::from(slot) + 1);
            what | u64::from(class) << 4
                | u64::from(kind.0) << 12
                | slot << 28
                | u64::from(number) << 40
        };
        let bytes = Kind::BYTES;
        match self {
            Self::Free => FREE,
            Self::Claimed { slot } => word(CLAIMED, 0, bytes, Some(slot), 0),
            Self::Emptied { slot, class, kind } => word(EMPTIED, class, kind, Some(slot), 0),
            Self::Small { owner, class, kind } => word(SMALL, class, kind, owner, 0),
            Self::Large { slabs, kind } => word(LARGE, 0, kind, None, slabs),
            Self::Tail { first } => word(TAIL, 0, bytes, None, first),
            Self::Freeing { slot, slabs } => word(FREEING, 0, bytes, Some(slot), slabs),
        }
    }

    /// What [`Self::encode`] wrote, and nothing else.
    pub(crate) fn decode(word: u64) -> Option<Self> {
        let class = (word >> 4) as u8;
        let kind = Kind((word >> 12) as u16);
        let owner = ((word >> 28) as u16 & 0xfff).checked_sub(1);
        let number = (word >> 40) as u32;
        let slab = match (word & 0xf, owner) {
            (FREE, _) => Self::Free,
            (CLAIMED, Some(slot)) => Self::Claimed { slot },
            (EMPTIED, Some(slot)) => Self::Emptied { slot, class, kind },
            (SMALL, owner) => Self::Small { owner, class, kind },
            (LARGE, _) => Self::Large {
                slabs: number,
                kind,
            },
            (TAIL, _) => Self::Tail { first: number },
            (FREEING, Some(slot)) => Self::Freeing {
                slot,
                slabs: number,
            },
            _ => return None,
        };
        (slab.encode() == word && usize::from(class) < crate::heap::size::CLASSES).then_some(slab)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let (slot, class, kind) = (4094, 39, Kind(u16::MAX));
        for slab in [
            Slab::Free,
            Slab::Claimed { slot },
            Slab::Emptied { slot, class, kind },
            Slab::Small {
                owner: Some(slot),
                class,
                kind,
            },
            Slab::Small {
                owner: None,
                class,
                kind,
            },
            Slab::Large {
                slabs: SLABS_MAX,
                kind,
            },
            Slab::Tail { first: SLABS_MAX },
            Slab::Freeing {
                slot,
                slabs: SLABS_MAX,
            },
        ] {
            assert_eq!(Slab::decode(slab.encode()), Some(slab));
        }
        for wrong in [15, CLAIMED, FREE | 1 << 20, TAIL | 1 << 4, SMALL | 40 << 4] {
            assert_eq!(Slab::decode(wrong), None, "{wrong:x}");
        }
    }
}
