//! Copies of pages that are aside, in memory that is reserved at once and goes back to Linux page
//! by page, but for a little: taking a page away from a process stops it on all processors.

use std::sync::Mutex;

use farpage_object::PAGE_BYTES;
use farpage_sys::arena::{Arena, Reading};
use farpage_sys::{Errno, lock};

/// Pages that there can be, whatever the memory: a gigabyte, and a megabyte.
const MOST: std::ops::RangeInclusive<u64> = 256..=1 << 18;
/// Free slots that keep their memory: some clusters that leave one after another.
const WARM: usize = 64;

/// Where they are.
pub(crate) struct Copies {
    arena: Arena,
    free: Mutex<Free>,
}

/// Slots that are free.
struct Free {
    /// With memory.
    warm: Vec<u32>,
    cold: Vec<u32>,
}

impl Copies {
    /// Room for so many pages, but for what is too few or too many.
    pub(crate) fn new(pages: u64) -> Result<Self, Errno> {
        let slots = pages.clamp(*MOST.start(), *MOST.end()) as u32;
        Ok(Self {
            arena: Arena::new(slots as usize, PAGE_BYTES)?,
            free: Mutex::new(Free {
                warm: Vec::with_capacity(WARM),
                cold: (0..slots).rev().collect(),
            }),
        })
    }

    /// True when there is room for so many more.
    pub(crate) fn have_room(&self, pages: u64) -> bool {
        let free = lock(&self.free);
        (free.warm.len() + free.cold.len()) as u64 >= pages
    }

    /// Copies a page. `None` when there is no room.
    pub(crate) fn put(&self, page: &[u8; PAGE_BYTES]) -> Option<u32> {
        let slot = {
            let mut free = lock(&self.free);
            free.warm.pop().or_else(|| free.cold.pop())?
        };
        let at = self.arena.append(slot as usize, &[page]);
        assert_eq!(at, Some(0), "a copy in use");
        Some(slot)
    }

    /// A copy.
    pub(crate) fn get(&self, slot: u32) -> Reading<'_> {
        self.arena.read(slot as usize)
    }

    /// A copy is not needed any more.
    pub(crate) fn forget(&self, slot: u32) {
        let is_warm = lock(&self.free).warm.len() < WARM;
        let cleared = self.arena.clear(slot as usize, !is_warm);
        assert!(cleared, "a copy in use");
        let mut free = lock(&self.free);
        match is_warm {
            true => free.warm.push(slot),
            false => free.cold.push(slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_as_they_were_and_make_room_when_they_are_forgotten() {
        let copies = Copies::new(0).unwrap();
        let slots: Vec<u32> = (0..=255u8)
            .map(|byte| copies.put(&[byte; PAGE_BYTES]).unwrap())
            .collect();
        assert!(!copies.have_room(1) && copies.put(&[0; PAGE_BYTES]).is_none());
        for (byte, slot) in (0..=255u8).zip(&slots) {
            assert_eq!(*copies.get(*slot), [byte; PAGE_BYTES]);
        }
        slots.into_iter().for_each(|slot| copies.forget(slot));
        assert!(copies.have_room(256) && !copies.have_room(257));
        let slot = copies.put(&[7; PAGE_BYTES]).unwrap();
        assert_eq!(*copies.get(slot), [7; PAGE_BYTES]);
    }
}
