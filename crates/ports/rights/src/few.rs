//! A map that usually has few entries: those are looked for one by one, the others in a tree.
//!
//! What a call makes and uses up again stays in the first places, which costs no search and no
//! memory of the allocator's. A peer that fills the map makes it a tree, not slow.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Makes something of each; nothing of nothing, which most messages have of most things.
pub(crate) fn each<T, U>(from: Vec<T>, make: impl FnMut(T) -> U) -> Vec<U> {
    match from.is_empty() {
        true => Vec::new(),
        false => from.into_iter().map(make).collect(),
    }
}

/// Entries that are looked for one by one.
const NEAR: usize = 8;

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Few<K, V> {
    near: Vec<(K, V)>,
    far: BTreeMap<K, V>,
}

impl<K: Copy + Ord, V> Few<K, V> {
    pub(crate) const fn new() -> Self {
        Self {
            near: Vec::new(),
            far: BTreeMap::new(),
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.near.len() + self.far.len()
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        match self.near.iter().find(|(other, _)| other == key) {
            Some((_, value)) => Some(value),
            None if self.far.is_empty() => None,
            None => self.far.get(key),
        }
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match self.near.iter_mut().find(|(other, _)| other == key) {
            Some((_, value)) => Some(value),
            None if self.far.is_empty() => None,
            None => self.far.get_mut(key),
        }
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        if let Some(old) = self.get_mut(&key) {
            *old = value;
        } else if self.near.len() < NEAR {
            self.near.push((key, value));
        } else {
            self.far.insert(key, value);
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        match self.near.iter().position(|(other, _)| other == key) {
            Some(at) => Some(self.near.swap_remove(at).1),
            None if self.far.is_empty() => None,
            None => self.far.remove(key),
        }
    }

    /// Takes all out, in the order of their keys.
    pub(crate) fn take_sorted(&mut self) -> BTreeMap<K, V> {
        let mut all = core::mem::take(&mut self.far);
        all.extend(self.near.drain(..));
        all
    }

    /// The values in the order of their keys.
    pub(crate) fn sorted(&self) -> Vec<&V> {
        let mut all: Vec<_> = self.iter().collect();
        all.sort_unstable_by_key(|(key, _)| **key);
        all.into_iter().map(|(_, value)| value).collect()
    }

    fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let near = self.near.iter().map(|(key, value)| (key, value));
        near.chain(&self.far)
    }

    #[cfg(test)]
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&K, &V)> {
        self.iter()
    }

    #[cfg(test)]
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    #[cfg(test)]
    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

#[cfg(test)]
impl<K: Copy + Ord + core::hash::Hash, V: core::hash::Hash> core::hash::Hash for Few<K, V> {
    /// The same whatever the order in which the entries came.
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        let sorted: BTreeMap<&K, &V> = self.iter().collect();
        sorted.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_map_with_few_entries_and_with_many() {
        for many in [3u32, 8, 9, 100] {
            let (mut few, mut map) = (Few::new(), BTreeMap::new());
            for round in 0..2 {
                for key in (0..many).map(|at| at * 7919 % 101) {
                    few.insert(key, key + round);
                    map.insert(key, key + round);
                }
                for key in (0..many).step_by(3) {
                    assert_eq!(few.remove(&key), map.remove(&key));
                }
                let mut all: Vec<_> = few.iter().map(|(&key, &value)| (key, value)).collect();
                all.sort_unstable();
                assert!(all.iter().map(|(key, value)| (key, value)).eq(&map));
                assert!(few.sorted().into_iter().eq(map.values()));
                assert_eq!(few.len(), map.len());
                assert!((0..101).all(|key| few.get(&key) == map.get(&key)));
                assert!((0..101).all(|key| few.get_mut(&key) == map.get_mut(&key)));
            }
            assert_eq!(few.take_sorted(), map);
            assert_eq!(few.len(), 0);
        }
    }
}
