//! Which region has a page: four levels of nine bits each, as the page tables have them.

use alloc::boxed::Box;
use core::array;
use core::sync::atomic::{AtomicU32, Ordering};

use once_cell::race::OnceBox;

const SLOTS: usize = 512;
const PAGE_SHIFT: u32 = 12;
/// 2 MiB: what one leaf has.
const LEAF_SHIFT: u32 = PAGE_SHIFT + 9;
/// Addresses below this have places.
pub const ADDRESSES: usize = 1 << (LEAF_SHIFT + 27);

struct Level<T>([OnceBox<T>; SLOTS]);

/// 1 GiB: 2 MiB that have one region, and those that have several.
struct Low {
    whole: [AtomicU32; SLOTS],
    leaves: [OnceBox<Leaf>; SLOTS],
}

struct Leaf([AtomicU32; SLOTS]);

/// Numbers of regions by page. One at a time changes it; anybody looks, and waits for nothing.
#[derive(Default)]
pub struct Index(Level<Level<Low>>);

impl<T> Default for Level<T> {
    fn default() -> Self {
        Self(array::from_fn(|_| OnceBox::new()))
    }
}

impl Default for Low {
    fn default() -> Self {
        Self {
            whole: array::from_fn(|_| AtomicU32::new(0)),
            leaves: array::from_fn(|_| OnceBox::new()),
        }
    }
}

impl Default for Leaf {
    fn default() -> Self {
        Self(array::from_fn(|_| AtomicU32::new(0)))
    }
}

fn made<T: Default>(slot: &OnceBox<T>) -> &T {
    slot.get_or_init(Box::default)
}

#[inline]
fn slot(at: usize, shift: u32) -> usize {
    (at >> shift) % SLOTS
}

impl Index {
    /// The region of the page at an address.
    #[inline]
    pub fn find(&self, at: usize) -> Option<u32> {
        if at >= ADDRESSES {
            return None;
        }
        let low = self.low(at)?;
        let leaf = slot(at, LEAF_SHIFT);
        let number = match low.whole[leaf].load(Ordering::Acquire) {
            0 => low.leaves[leaf].get()?.0[slot(at, PAGE_SHIFT)].load(Ordering::Acquire),
            whole => whole,
        };
        number.checked_sub(1)
    }

    #[inline]
    fn low(&self, at: usize) -> Option<&Low> {
        let middle = self.0.0[slot(at, LEAF_SHIFT + 18)].get()?;
        middle.0[slot(at, LEAF_SHIFT + 9)].get()
    }

    /// The pages of `start..end`, below [`ADDRESSES`], are those of region `number`, whosever they were.
    pub fn set(&self, start: usize, end: usize, number: u32) {
        for (at, until) in leaves(start, end) {
            let middle = made(&self.0.0[slot(at, LEAF_SHIFT + 18)]);
            let low = made(&middle.0[slot(at, LEAF_SHIFT + 9)]);
            let leaf = slot(at, LEAF_SHIFT);
            if until - at == 1 << LEAF_SHIFT {
                low.whole[leaf].store(number + 1, Ordering::Release);
                continue;
            }
            let pages = made(&low.leaves[leaf]);
            // Another region has all of it, and keeps the rest.
            let whole = low.whole[leaf].load(Ordering::Acquire);
            if whole > 0 {
                pages
                    .0
                    .iter()
                    .for_each(|page| page.store(whole, Ordering::Release));
                low.whole[leaf].store(0, Ordering::Release);
            }
            for at in (at..until).step_by(1 << PAGE_SHIFT) {
                pages.0[slot(at, PAGE_SHIFT)].store(number + 1, Ordering::Release);
            }
        }
    }

    /// The pages of `start..end` are no longer those of region `number`, where they were.
    pub fn clear(&self, start: usize, end: usize, number: u32) {
        let clear = |word: &AtomicU32| {
            let (done, kept) = (Ordering::Release, Ordering::Relaxed);
            let _ = word.compare_exchange(number + 1, 0, done, kept);
        };
        for (at, until) in leaves(start, end) {
            let Some(low) = self.low(at) else { continue };
            let leaf = slot(at, LEAF_SHIFT);
            if until - at == 1 << LEAF_SHIFT {
                clear(&low.whole[leaf]);
            }
            let Some(pages) = low.leaves[leaf].get() else {
                continue;
            };
            for at in (at..until).step_by(1 << PAGE_SHIFT) {
                clear(&pages.0[slot(at, PAGE_SHIFT)]);
            }
        }
    }

    /// Tells `found` each region that has some of `start..end`, perhaps several times. Allocates
    /// nothing.
    pub fn each(&self, start: usize, end: usize, mut found: impl FnMut(u32)) {
        let end = end.min(ADDRESSES);
        let mut at = start;
        while at < end {
            let middle = self.0.0[slot(at, LEAF_SHIFT + 18)].get();
            let Some(middle) = middle else {
                at = behind(at, LEAF_SHIFT + 18);
                continue;
            };
            let Some(low) = middle.0[slot(at, LEAF_SHIFT + 9)].get() else {
                at = behind(at, LEAF_SHIFT + 9);
                continue;
            };
            let until = behind(at, LEAF_SHIFT).min(end);
            let leaf = slot(at, LEAF_SHIFT);
            let whole = low.whole[leaf].load(Ordering::Acquire);
            whole.checked_sub(1).into_iter().for_each(&mut found);
            if let Some(pages) = low.leaves[leaf].get() {
                let mut last = 0;
                for at in (at..until).step_by(1 << PAGE_SHIFT) {
                    let number = pages.0[slot(at, PAGE_SHIFT)].load(Ordering::Acquire);
                    if number != last {
                        number.checked_sub(1).into_iter().for_each(&mut found);
                    }
                    last = number;
                }
            }
            at = until;
        }
    }
}

fn behind(at: usize, shift: u32) -> usize {
    ((at >> shift) + 1) << shift
}

/// `start..end` in parts that have one leaf each.
fn leaves(start: usize, end: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = start;
    core::iter::from_fn(move || {
        (at < end).then(|| {
            let part = (at, behind(at, LEAF_SHIFT).min(end));
            at = part.1;
            part
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const PAGE: usize = 1 << PAGE_SHIFT;

    fn found(index: &Index, start: usize, end: usize) -> Vec<u32> {
        let mut found = Vec::new();
        index.each(start, end, |number| found.push(number));
        found.sort_unstable();
        found.dedup();
        found
    }

    #[test]
    fn a_page_is_found_in_small_and_in_large_regions() {
        let index = Index::default();
        let large = 3 << LEAF_SHIFT;
        index.set(large - PAGE, 3 * large, 7);
        index.set(PAGE, 2 * PAGE, 0);
        assert_eq!(index.find(PAGE + 5), Some(0));
        assert_eq!(index.find(0), None);
        assert_eq!(index.find(2 * PAGE), None);
        assert_eq!(index.find(large - 1), Some(7));
        assert_eq!(index.find(2 * large + 4711), Some(7));
        assert_eq!(index.find(3 * large), None);
        assert_eq!(index.find(usize::MAX), None);
        assert_eq!(found(&index, 0, usize::MAX), [0, 7]);
        index.clear(large - PAGE, 3 * large, 7);
        assert_eq!(found(&index, 0, usize::MAX), [0]);
    }

    proptest! {
        #[test]
        fn it_is_a_map_from_pages_to_regions(
            steps in proptest::collection::vec((0..1500_usize, 1..1200_usize, 0..9_u32, any::<bool>()), 1..40)
        ) {
            let index = Index::default();
            // Regions never overlap those that are there: who sets pages has cleared them.
            let mut pages = BTreeMap::new();
            for (from, count, number, set) in steps {
                let range = from..from + count;
                if set && range.clone().any(|page| pages.contains_key(&page)) {
                    continue;
                }
                let (start, end) = (range.start * PAGE, range.end * PAGE);
                if set {
                    index.set(start, end, number);
                    pages.extend(range.map(|page| (page, number)));
                } else {
                    // Regions are cleared whole.
                    let whole: Vec<usize> =
                        pages.iter().filter(|(_, of)| **of == number).map(|(page, _)| *page).collect();
                    for page in whole {
                        pages.remove(&page);
                    }
                    index.clear(0, 3000 * PAGE, number);
                }
                for page in 0..2700 {
                    prop_assert_eq!(index.find(page * PAGE), pages.get(&page).copied());
                }
            }
        }
    }
}
