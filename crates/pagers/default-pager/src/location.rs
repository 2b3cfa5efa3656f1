//! Where a page is, in 8 bytes.

use farpage_object::PAGE_BYTES;

/// Where the contents of one page are. All zero bits: nowhere.
///
/// Bits 0..2 kind, 2..34 segment, 34..50 place, 50..62 length, 63 moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Location(pub(crate) u64);

/// What [`Location::at`] unfolds to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum At {
    /// This pager has no contents.
    Nowhere,
    /// All zeros, kept nowhere.
    Zero,
    /// A record in a packed segment: `offset` bytes from its start, `length` bytes after the
    /// header.
    Packed {
        segment: u32,
        offset: usize,
        length: usize,
    },
    /// A whole page in a raw segment.
    Raw { segment: u32, slot: usize },
}

/// The length that 12 bits stand for: 0 is a whole page.
pub(crate) fn length_of(bits: u16) -> usize {
    match usize::from(bits & 0xfff) {
        0 => PAGE_BYTES,
        length => length,
    }
}

/// Records begin at multiples of this.
pub(crate) const ALIGN: usize = 16;

const MOVED: u64 = 1 << 63;

impl Location {
    pub(crate) const NOWHERE: Self = Self(0);
    pub(crate) const ZERO: Self = Self(3);

    pub(crate) fn packed(segment: u32, offset: usize, length: usize) -> Self {
        debug_assert!(offset.is_multiple_of(ALIGN) && offset / ALIGN < 1 << 16);
        assert!(
            0 < length && length <= PAGE_BYTES,
            "a record longer than a page"
        );
        let place = (offset / ALIGN) as u64;
        Self(1 | u64::from(segment) << 2 | place << 34 | (length as u64 & 0xfff) << 50)
    }

    pub(crate) fn raw(segment: u32, slot: usize) -> Self {
        Self(2 | u64::from(segment) << 2 | (slot as u64) << 34)
    }

    pub(crate) fn at(self) -> At {
        let segment = (self.0 >> 2) as u32;
        let place = (self.0 >> 34 & 0xffff) as usize;
        match self.0 & 3 {
            0 => At::Nowhere,
            1 => At::Packed {
                segment,
                offset: place * ALIGN,
                length: length_of((self.0 >> 50) as u16),
            },
            2 => At::Raw {
                segment,
                slot: place,
            },
            _ => At::Zero,
        }
    }

    /// The page was moved after its record went to a paging file: the record has its old name.
    pub(crate) fn moved(self) -> Self {
        Self(self.0 | MOVED)
    }

    pub(crate) fn is_moved(self) -> bool {
        self.0 & MOVED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_round_trip() {
        let packed = Location::packed(u32::MAX, (1 << 20) - 16, 4095);
        let at = At::Packed {
            segment: u32::MAX,
            offset: (1 << 20) - 16,
            length: 4095,
        };
        assert_eq!(packed.at(), at);
        assert_eq!(packed.moved().at(), at);
        assert!(packed.moved().is_moved() && !packed.is_moved());
        let whole = At::Packed {
            segment: 1,
            offset: 32,
            length: PAGE_BYTES,
        };
        assert_eq!(Location::packed(1, 32, PAGE_BYTES).at(), whole);
        let raw = Location::raw(7, 255);
        assert_eq!(
            raw.at(),
            At::Raw {
                segment: 7,
                slot: 255
            }
        );
        assert_eq!(Location::ZERO.at(), At::Zero);
        assert_eq!(Location::NOWHERE.at(), At::Nowhere);
    }
}
