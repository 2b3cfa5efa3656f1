//! Slots that keep their index until they are freed, and know how often they were reused.
//!
//! Chunks never move, so growing to a million slots copies nothing and wastes at most one chunk.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

const CHUNK: usize = 4096;
pub(crate) const NONE: u32 = u32::MAX;

/// A slot and the one use of it that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Key {
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self {
            index: bits as u32,
            generation: (bits >> 32) as u32,
        }
    }
}

#[cfg_attr(test, derive(Clone, Hash))]
struct Slot<T> {
    generation: u32,
    item: Item<T>,
}

#[cfg_attr(test, derive(Clone, Hash))]
enum Item<T> {
    Free { next: u32 },
    Used(T),
}

#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<Slot<T>>>,
    free: u32,
    used: u32,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            free: NONE,
            used: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.used as usize
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.used += 1;
        if self.free != NONE {
            let index = self.free;
            let slot = self.slot_mut(index).expect("free slots exist");
            let Item::Free { next } = slot.item else {
                unreachable!("a free slot is used");
            };
            slot.item = Item::Used(value);
            let generation = slot.generation;
            self.free = next;
            return Key { index, generation };
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            let capacity = if self.chunks.is_empty() { 0 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(capacity));
        }
        let chunks = self.chunks.len();
        let chunk = self.chunks.last_mut().expect("pushed above");
        let index = (chunks - 1) * CHUNK + chunk.len();
        assert!(
            index < NONE as usize,
            "four thousand million slots are in use"
        );
        chunk.push(Slot {
            generation: 1,
            item: Item::Used(value),
        });
        Key {
            index: index as u32,
            generation: 1,
        }
    }

    pub(crate) fn remove(&mut self, index: u32) -> T {
        let next = self.free;
        let slot = self.slot_mut(index).expect("only what is there is removed");
        let item = core::mem::replace(&mut slot.item, Item::Free { next });
        let Item::Used(value) = item else {
            unreachable!("slot {index} is removed twice");
        };
        // A slot whose generations are used up is never used again.
        if let Some(generation) = slot.generation.checked_add(1) {
            slot.generation = generation;
            self.free = index;
        }
        self.used -= 1;
        value
    }

    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        self.chunks
            .get(index as usize / CHUNK)?
            .get(index as usize % CHUNK)
    }

    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<T>> {
        self.chunks
            .get_mut(index as usize / CHUNK)?
            .get_mut(index as usize % CHUNK)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        match &self.slot(index)?.item {
            Item::Used(value) => Some(value),
            Item::Free { .. } => None,
        }
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        match &mut self.slot_mut(index)?.item {
            Item::Used(value) => Some(value),
            Item::Free { .. } => None,
        }
    }

    /// What a key names, unless its slot was freed since.
    pub(crate) fn of(&self, key: Key) -> Option<&T> {
        let slot = self.slot(key.index)?;
        match &slot.item {
            Item::Used(value) if slot.generation == key.generation => Some(value),
            Item::Used(_) | Item::Free { .. } => None,
        }
    }

    pub(crate) fn key(&self, index: u32) -> Key {
        let generation = self
            .slot(index)
            .expect("only used slots are named")
            .generation;
        Key { index, generation }
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let slots = self.chunks.iter().flatten().enumerate();
        slots.filter_map(|(index, slot)| match &slot.item {
            Item::Used(value) => Some((index as u32, value)),
            Item::Free { .. } => None,
        })
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        self.get(index).expect("references are counted")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        self.get_mut(index).expect("references are counted")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_slot_is_reused_under_another_key() {
        let mut slab = Slab::new();
        let first = slab.insert('a');
        assert_eq!(slab.remove(first.index), 'a');
        let second = slab.insert('b');
        assert_eq!(second.index, first.index);
        assert_eq!(slab.of(first), None);
        assert_eq!(slab.of(second), Some(&'b'));
    }

    #[test]
    fn slots_past_the_first_chunk_are_found() {
        let mut slab = Slab::new();
        let keys: Vec<_> = (0..3 * CHUNK).map(|i| slab.insert(i)).collect();
        assert!(
            keys.iter()
                .enumerate()
                .all(|(i, &key)| slab.of(key) == Some(&i))
        );
        assert_eq!(slab.len(), 3 * CHUNK);
    }
}
