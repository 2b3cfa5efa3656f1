//! The location table: which page is where. A block of 4 KiB for each 2 MiB that has pages out.
//!
//! Page-out must not fail half-way for want of memory: [`Table::hold`] makes the blocks that a
//! batch of pages needs before any of them is taken: at most one a page, and as pages leave in runs
//! usually none or one. [`SPARE`] emptied blocks are kept for the next.

use alloc::boxed::Box;
use alloc::vec::Vec;

use farpage_object::{ObjectId, PageRange};

use crate::location::Location;

/// Pages in one block.
pub(crate) const BLOCK_PAGES: u64 = 512;
/// Empty blocks kept.
const SPARE: usize = 16;

type Words = [u64; BLOCK_PAGES as usize];

struct Block {
    key: u64,
    /// Locations that are not nowhere, and holds.
    used: u32,
    words: Box<Words>,
}

/// Open addressing with linear probing, at most half full.
#[derive(Default)]
pub(crate) struct Table {
    entries: Vec<Option<Block>>,
    blocks: usize,
    spare: Vec<Box<Words>>,
}

/// Pages of the largest object that there can be.
pub(crate) const PAGES_MAX: u64 = 1 << 41;

fn key(object: ObjectId, page: u64) -> u64 {
    assert!(page < PAGES_MAX, "a page beyond the end of any object");
    (u64::from(object.0) << 32) + page / BLOCK_PAGES
}

/// The blocks of `pages`, one for each run of pages in the same block.
fn keys(object: ObjectId, pages: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    let mut last = u64::MAX;
    pages
        .map(move |page| key(object, page))
        .filter(move |&key| {
            let new = key != last;
            last = key;
            new
        })
}

fn new_words() -> Option<Box<Words>> {
    let mut words = Vec::new();
    words.try_reserve_exact(BLOCK_PAGES as usize).ok()?;
    words.resize(BLOCK_PAGES as usize, 0);
    words.into_boxed_slice().try_into().ok()
}

impl Table {
    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.entries.len() - 1)
    }

    /// Where `key` is, or else where it would go. `None` when the table has no room at all.
    fn find(&self, key: u64) -> Option<(usize, bool)> {
        if self.entries.is_empty() {
            return None;
        }
        let mut at = self.home(key);
        loop {
            match &self.entries[at] {
                None => return Some((at, false)),
                Some(block) if block.key == key => return Some((at, true)),
                Some(_) => at = (at + 1) & (self.entries.len() - 1),
            }
        }
    }

    fn block(&self, key: u64) -> Option<&Block> {
        let (at, found) = self.find(key)?;
        if found {
            self.entries[at].as_ref()
        } else {
            None
        }
    }

    /// Makes the blocks of all of `pages` and keeps them until `let_go` with the same pages. False,
    /// and nothing done, when memory is short.
    pub(crate) fn hold(
        &mut self,
        object: ObjectId,
        pages: impl Iterator<Item = u64> + Clone,
    ) -> bool {
        let missing = |key: &u64| self.block(*key).is_none();
        let missing = keys(object, pages.clone()).filter(missing).count();
        if !self.reserve_blocks(missing) {
            return false;
        }
        for key in keys(object, pages) {
            let at = self.make(key);
            if let Some(block) = &mut self.entries[at] {
                block.used += 1;
            }
        }
        true
    }

    /// Ends `hold`.
    pub(crate) fn let_go(&mut self, object: ObjectId, pages: impl Iterator<Item = u64>) {
        for key in keys(object, pages) {
            if let Some((at, true)) = self.find(key)
                && let Some(block) = &mut self.entries[at]
            {
                block.used -= 1;
                if block.used == 0 {
                    self.remove_at(at);
                }
            }
        }
    }

    /// Where the block of `key` is; it is made from a spare one when it is missing.
    fn make(&mut self, key: u64) -> usize {
        let (at, found) = self.find(key).expect("a table was reserved");
        if !found {
            let words = self.spare.pop().expect("a block was reserved");
            let used = 0;
            self.entries[at] = Some(Block { key, used, words });
            self.blocks += 1;
        }
        at
    }

    /// Makes sure that `missing` blocks can be added. False when memory is short.
    pub(crate) fn reserve_blocks(&mut self, missing: usize) -> bool {
        if missing == 0 {
            return true;
        }
        while self.spare.len() < missing {
            let Some(words) = new_words() else {
                return false;
            };
            if self.spare.try_reserve(SPARE).is_err() {
                return false;
            }
            self.spare.push(words);
        }
        self.make_entries(self.blocks + missing)
    }

    fn make_entries(&mut self, blocks: usize) -> bool {
        if blocks * 2 <= self.entries.len() {
            return true;
        }
        let wanted = (blocks * 2).next_power_of_two().max(64);
        let mut entries = Vec::new();
        if entries.try_reserve_exact(wanted).is_err() {
            return false;
        }
        entries.resize_with(wanted, || None);
        let old = core::mem::replace(&mut self.entries, entries);
        for block in old.into_iter().flatten() {
            if let Some((at, false)) = self.find(block.key) {
                self.entries[at] = Some(block);
            }
        }
        true
    }

    /// Where `page` is.
    pub(crate) fn get(&self, object: ObjectId, page: u64) -> Location {
        self.block(key(object, page))
            .map_or(Location::NOWHERE, |block| {
                Location(block.words[(page % BLOCK_PAGES) as usize])
            })
    }

    /// Sets where `page` is, returns where it was.
    ///
    /// # Panics
    /// When its block is missing and neither held nor reserved.
    pub(crate) fn set(&mut self, object: ObjectId, page: u64, location: Location) -> Location {
        let key = key(object, page);
        if location == Location::NOWHERE && self.block(key).is_none() {
            return location;
        }
        let at = self.make(key);
        let Some(block) = &mut self.entries[at] else {
            unreachable!("found above")
        };
        let word = &mut block.words[(page % BLOCK_PAGES) as usize];
        let old = Location(core::mem::replace(word, location.0));
        block.used += u32::from(location != Location::NOWHERE);
        block.used -= u32::from(old != Location::NOWHERE);
        if block.used == 0 {
            self.remove_at(at);
        }
        old
    }

    /// Takes the block at `at`, all of whose words are zero, out of the table.
    fn remove_at(&mut self, mut at: usize) {
        let mask = self.entries.len() - 1;
        if let Some(block) = self.entries[at].take() {
            debug_assert!(block.words.iter().all(|&word| word == 0));
            self.blocks -= 1;
            if self.spare.len() < SPARE.min(self.spare.capacity()) {
                self.spare.push(block.words);
            }
        }
        let mut next = (at + 1) & mask;
        while let Some(block) = &self.entries[next] {
            let home = self.home(block.key);
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(at) & mask) {
                self.entries[at] = self.entries[next].take();
                at = next;
            }
            next = (next + 1) & mask;
        }
    }

    /// Forgets all of `range`, telling `gone` where each page was.
    pub(crate) fn remove_range(
        &mut self,
        object: ObjectId,
        range: PageRange,
        mut gone: impl FnMut(Location),
    ) {
        let (first, end) = (
            range.start.0 / BLOCK_PAGES,
            range.end.0.div_ceil(BLOCK_PAGES),
        );
        if end - first <= self.entries.len() as u64 {
            for block in first..end {
                if let Some((at, true)) = self.find(key(object, block * BLOCK_PAGES)) {
                    self.clear_in(at, range, &mut gone);
                    if self.entries[at].as_ref().is_some_and(|b| b.used == 0) {
                        self.remove_at(at);
                    }
                }
            }
            return;
        }
        for at in 0..self.entries.len() {
            let of_object = |b: &Block| b.key >> 32 == u64::from(object.0);
            if self.entries[at].as_ref().is_some_and(of_object) {
                self.clear_in(at, range, &mut gone);
            }
        }
        let mut at = 0;
        while at < self.entries.len() {
            match &self.entries[at] {
                Some(block) if block.used == 0 => self.remove_at(at),
                _ => at += 1,
            }
        }
    }

    fn clear_in(&mut self, at: usize, range: PageRange, gone: &mut impl FnMut(Location)) {
        let Some(block) = &mut self.entries[at] else {
            return;
        };
        let first = (block.key & 0xffff_ffff) * BLOCK_PAGES;
        let from = range.start.0.clamp(first, first + BLOCK_PAGES) - first;
        let to = range.end.0.clamp(first, first + BLOCK_PAGES) - first;
        for word in &mut block.words[from as usize..to as usize] {
            if *word != 0 {
                gone(Location(core::mem::take(word)));
                block.used -= 1;
            }
        }
    }

    /// The first page of `range` that has a location.
    pub(crate) fn next_in(&self, object: ObjectId, range: PageRange) -> Option<u64> {
        let mut page = range.start.0;
        while page < range.end.0 {
            let block_end = (page / BLOCK_PAGES + 1) * BLOCK_PAGES;
            if let Some(block) = self.block(key(object, page)) {
                let found = (page..block_end.min(range.end.0))
                    .find(|page| block.words[(page % BLOCK_PAGES) as usize] != 0);
                if found.is_some() {
                    return found;
                }
            }
            page = block_end;
        }
        None
    }

    /// Visits pages from place `cursor` on until `visit` says stop (`false`); returns where to go
    /// on, or `None` at the end. Changes in between may hide a page or show it twice.
    pub(crate) fn scan(
        &self,
        cursor: usize,
        mut visit: impl FnMut(ObjectId, u64, Location) -> bool,
    ) -> Option<usize> {
        for at in cursor..self.entries.len() {
            let Some(block) = &self.entries[at] else {
                continue;
            };
            let object = ObjectId((block.key >> 32) as u32);
            let first = (block.key & 0xffff_ffff) * BLOCK_PAGES;
            for (page, &word) in (first..).zip(block.words.iter()) {
                if word != 0 && !visit(object, page, Location(word)) {
                    return Some(at);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::HashMap;

    use super::*;

    #[test]
    fn agrees_with_a_map() {
        let (mut table, mut oracle) = (Table::default(), HashMap::new());
        let mut random = 1u64;
        for step in 0..60_000u64 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let object = ObjectId((random >> 60) as u32 & 1);
            let page = (random >> 40) % 3000 * 97 + ((random >> 30 & 1) << 34);
            if random >> 20 & 3 == 0 {
                assert!(table.hold(object, [page].into_iter()));
                let new = Location::raw(step as u32, 1);
                let old = table.set(object, page, new);
                table.let_go(object, [page].into_iter());
                assert_eq!(
                    oracle.insert((object, page), new).unwrap_or(Location(0)),
                    old
                );
            } else if random >> 20 & 0xff == 7 {
                let range = PageRange::new(page, page + (random >> 10 & 0xffff));
                let mut gone = 0;
                table.remove_range(object, range, |_| gone += 1);
                let before = oracle.len();
                oracle.retain(|&(o, p), _| o != object || p < page || p >= range.end.0);
                assert_eq!(gone, before - oracle.len());
            } else {
                let known = oracle.get(&(object, page)).copied();
                assert_eq!(table.get(object, page), known.unwrap_or(Location(0)));
            }
        }
        let mut seen = 0;
        assert!(
            table
                .scan(0, |_, _, _| {
                    seen += 1;
                    true
                })
                .is_none()
        );
        assert_eq!(seen, oracle.len());
        for object in [ObjectId(0), ObjectId(1)] {
            table.remove_range(object, PageRange::new(0, 1 << 40), |_| seen -= 1);
        }
        assert_eq!((seen, table.blocks), (0, 0));
    }
}
