//! Where things lie in a heap, in words of 8 bytes.

use crate::heap::size::{CLASSES, SLAB_BYTES};
use crate::heap::slab::SLABS_MAX;

/// `FPHEAP` and the version of all that is laid out here.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"FPHEAP\x02\x00");
/// Words of the head.
pub(crate) const BYTES: usize = 1;
/// In which way processes are known: who knows them in another cannot tell whether they are dead.
pub(crate) const WAY: usize = 2;
/// Where the search for free slabs begins.
pub(crate) const CURSOR: usize = 3;
pub(crate) const ROOTS: usize = 8;
pub(crate) const ROOT_WORDS: usize = 16;
pub(crate) const SLOTS: usize = 24;
/// Processes that can have a heap at a time.
pub(crate) const SLOT_WORDS: usize = 488;
const HEAD: usize = SLOTS + SLOT_WORDS;
/// Words of bits of a slab: one for each block of 16 bytes.
pub(crate) const BIT_WORDS: usize = (SLAB_BYTES / 16 / 64) as usize;
/// Words of a page: what hosts get from one another together.
const PAGE_WORDS: usize = 512;
/// Slabs whose bits are on one page.
pub(crate) const SLABS_OF_PAGE: u32 = (PAGE_WORDS / BIT_WORDS) as u32;

/// Where what is counted by slabs lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) slabs: u32,
    /// Of each slab a word.
    table: usize,
    /// Of each class a bit for each slab.
    hints: usize,
    /// Of each slab a bit for each block.
    bits: usize,
    /// The first slab, in bytes.
    first: u64,
}

impl Layout {
    /// Of a heap of so many bytes, if it has room for one slab.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        let fits = |slabs: u32| Self::of(slabs).end() <= bytes;
        let most = u32::try_from(bytes / SLAB_BYTES).unwrap_or(u32::MAX);
        let (mut least, mut most) = (0, most.min(SLABS_MAX));
        while least < most {
            let half = least + (most - least).div_ceil(2);
            match fits(half) {
                true => least = half,
                false => most = half - 1,
            }
        }
        (least > 0).then(|| Self::of(least))
    }

    fn of(slabs: u32) -> Self {
        let count = slabs as usize;
        let table = HEAD;
        let hints = table + count;
        let bits = (hints + CLASSES * count.div_ceil(64)).next_multiple_of(PAGE_WORDS);
        let end = ((bits + count * BIT_WORDS) * 8) as u64;
        Self {
            slabs,
            table,
            hints,
            bits,
            first: end.next_multiple_of(SLAB_BYTES),
        }
    }

    fn end(&self) -> u64 {
        self.first + u64::from(self.slabs) * SLAB_BYTES
    }

    pub(crate) fn slab_word(&self, slab: u32) -> usize {
        debug_assert!(slab < self.slabs);
        self.table + slab as usize
    }

    /// Hints of a class for 64 slabs.
    pub(crate) fn hint_word(&self, class: u8, slab: u32) -> usize {
        let of_class = (self.slabs as usize).div_ceil(64);
        self.hints + usize::from(class) * of_class + slab as usize / 64
    }

    pub(crate) fn bit_word(&self, slab: u32, word: usize) -> usize {
        debug_assert!(word < BIT_WORDS);
        self.bits + slab as usize * BIT_WORDS + word
    }

    /// Where a slab begins, in bytes.
    pub(crate) fn offset(&self, slab: u32) -> u64 {
        self.first + u64::from(slab) * SLAB_BYTES
    }

    /// The slab that a byte lies in, and where in it.
    pub(crate) fn slab_at(&self, offset: u64) -> Option<(u32, u64)> {
        let from = offset.checked_sub(self.first)?;
        let slab = u32::try_from(from / SLAB_BYTES).ok()?;
        (slab < self.slabs).then_some((slab, from % SLAB_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_has_as_many_slabs_as_fit_and_nothing_overlaps() {
        assert_eq!(Layout::new(4096), None);
        assert_eq!(Layout::new(2 * SLAB_BYTES - 1), None);
        for bytes in [2 * SLAB_BYTES, 1 << 20, (1 << 30) + 17, 1 << 40] {
            let layout = Layout::new(bytes).unwrap();
            assert!(layout.end() <= bytes);
            assert!(Layout::of(layout.slabs + 1).end() > bytes);
            let last = layout.slabs - 1;
            assert!(layout.slab_word(last) < layout.hint_word(0, 0));
            assert!(layout.hint_word(39, last) < layout.bit_word(0, 0));
            assert!(layout.bit_word(last, BIT_WORDS - 1) * 8 < layout.offset(0) as usize);
            assert_eq!(layout.slab_at(layout.offset(last)), Some((last, 0)));
            assert_eq!(layout.slab_at(layout.end()), None);
            assert_eq!(layout.slab_at(layout.offset(0) - 1), None);
        }
        let waste = 1.0 - f64::from(Layout::new(1 << 30).unwrap().slabs) / 16384.0;
        assert!(waste < 0.01, "{waste}");
    }
}
