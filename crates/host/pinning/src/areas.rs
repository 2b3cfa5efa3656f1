//! Locked areas by handle.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::ControlFlow;

use farpage_object::PageRange;

use crate::counts::Counts;
use crate::treap::{Kept, Treap, Walk};

/// A lock of an area: no two that were ever given are the same, until four billion of one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// What is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area<K> {
    /// Which pages.
    pub pages: PageRange,
    /// How: each kind has its own counts.
    pub kind: K,
}

/// Memory of an area has gone away under its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone<K> {
    /// Its handle, which is of no more use than to be given back.
    pub handle: Handle,
    /// What it was.
    pub area: Area<K>,
}

/// Why a handle is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AreaError {
    /// Nothing is to be locked.
    #[error("an area without pages cannot be locked; give a byte at least")]
    Empty,
    /// It was given back, or never given.
    #[error(
        "there is no locked area of handle {0:#x}; it was unlocked already, or is another process's"
    )]
    Unknown(u64),
    /// Its memory went away.
    #[error(
        "memory of the locked area of handle {handle:#x} was unmapped or discarded while it was locked, from page \
         {page} on; unlock it, and lock what is there now"
    )]
    Gone {
        /// Of which.
        handle: u64,
        /// The first page of it that went away.
        page: u64,
    },
}

/// All locked areas of a task.
pub struct Areas<K> {
    slots: Vec<Slot<K>>,
    free: Vec<u32>,
    counts: BTreeMap<K, Counts>,
    /// By where they are.
    places: Treap<Places>,
}

struct Slot<K> {
    generation: u32,
    area: Option<Area<K>>,
    /// The first page that went away.
    gone: Option<u64>,
}

/// Where areas end, by where they begin.
struct Places;

impl Kept for Places {
    type Key = (u64, u32);
    type Value = u64;
    /// The first beginning, and the last end.
    type Sum = (u64, u64);

    fn sum(
        left: Option<Self::Sum>,
        (start, _): Self::Key,
        end: u64,
        right: Option<Self::Sum>,
    ) -> Self::Sum {
        let first = left.map_or(start, |left| left.0);
        let last = [left, right].into_iter().flatten();
        (first, last.fold(end, |last, one| last.max(one.1)))
    }
}

/// Looks for areas that have some of these pages.
struct Within {
    pages: PageRange,
    found: Vec<u32>,
}

impl Walk<Places> for Within {
    fn enters(&mut self, (first, last): (u64, u64)) -> bool {
        first < self.pages.end.0 && last > self.pages.start.0
    }

    fn passes(&mut self, _: (u64, u64)) {}

    fn visits(&mut self, (start, slot): (u64, u32), end: u64) -> ControlFlow<()> {
        if start < self.pages.end.0 && end > self.pages.start.0 {
            self.found.push(slot);
        }
        ControlFlow::Continue(())
    }
}

impl<K: Copy + Ord> Default for Areas<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Copy + Ord> Areas<K> {
    /// None.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            counts: BTreeMap::new(),
            places: Treap::new(),
        }
    }

    /// Locks an area. Its handle, and what is to be locked now: pages that no other area of this kind has.
    /// If that cannot be done, all of it is taken back by [`Areas::unlock`].
    ///
    /// # Errors
    /// [`AreaError::Empty`].
    pub fn lock(&mut self, area: Area<K>) -> Result<(Handle, Vec<PageRange>), AreaError> {
        if area.pages.pages() == 0 {
            return Err(AreaError::Empty);
        }
        let new = self.counts.entry(area.kind).or_default().lock(area.pages);
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                area: None,
                gone: None,
            });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 areas")
        });
        let slot = &mut self.slots[at as usize];
        slot.generation = slot.generation.wrapping_add(1);
        (slot.area, slot.gone) = (Some(area), None);
        let handle = handle(slot.generation, at);
        let (start, end) = (area.pages.start.0, area.pages.end.0);
        self.places.change((start, at), |_| Some(end));
        Ok((handle, new))
    }

    /// Gives a lock back. What it was, and what is to be unlocked now: pages that no other area of this kind
    /// has.
    ///
    /// # Errors
    /// [`AreaError::Unknown`]; [`AreaError::Gone`], when nothing is to be unlocked and the handle is given back
    /// all the same.
    pub fn unlock(&mut self, handle: Handle) -> Result<(Area<K>, Vec<PageRange>), AreaError> {
        let (at, area, gone) = self.of(handle)?;
        self.slots[at as usize].area = None;
        self.free.push(at);
        still_there(handle, gone)?;
        Ok((area, self.leaves(at, area)))
    }

    /// What is locked by a handle.
    ///
    /// # Errors
    /// [`AreaError`].
    pub fn get(&self, handle: Handle) -> Result<Area<K>, AreaError> {
        let (_, area, gone) = self.of(handle)?;
        still_there(handle, gone).map(|()| area)
    }

    /// Memory is another from now on, or none: areas that have some of it are gone, each whole. Which, and
    /// what is to be unlocked of the rest of them, by kind.
    pub fn gone(&mut self, pages: PageRange) -> (Vec<Gone<K>>, Vec<(K, PageRange)>) {
        let mut within = Within {
            pages,
            found: Vec::new(),
        };
        if pages.pages() > 0 {
            self.places.walk(&mut within);
        }
        let (mut gone, mut rest) = (Vec::new(), Vec::new());
        for at in within.found {
            let slot = &mut self.slots[at as usize];
            let area = slot.area.expect("what has a place is locked");
            slot.gone = Some(pages.start.0.max(area.pages.start.0));
            let handle = handle(slot.generation, at);
            gone.push(Gone { handle, area });
            let unlocked = self.leaves(at, area).into_iter();
            rest.extend(
                unlocked
                    .flat_map(|one| without(one, pages))
                    .map(|one| (area.kind, one)),
            );
        }
        (gone, rest)
    }

    /// Gives all locks back. What is to be unlocked, by kind.
    pub fn clear(&mut self) -> Vec<(K, PageRange)> {
        let all = core::mem::take(&mut self.counts);
        self.places = Treap::new();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if slot.area.take().is_some() {
                self.free.push(at as u32);
            }
        }
        all.iter()
            .flat_map(|(kind, counts)| counts.pieces().into_iter().map(|one| (*kind, one.pages)))
            .collect()
    }

    /// All areas that are locked, and whether their memory has gone.
    pub fn all(&self) -> impl Iterator<Item = (Handle, Area<K>, bool)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(at, slot)| {
            let handle = handle(slot.generation, at as u32);
            Some((handle, slot.area?, slot.gone.is_some()))
        })
    }

    /// How often pages are locked in a way; `None`: none are.
    #[must_use]
    pub fn counts(&self, kind: K) -> Option<&Counts> {
        self.counts.get(&kind)
    }

    fn of(&self, handle: Handle) -> Result<(u32, Area<K>, Option<u64>), AreaError> {
        let at = handle.0 as u32;
        let slot = self.slots.get(at as usize);
        let slot = slot.filter(|slot| u64::from(slot.generation) == handle.0 >> 32);
        let found = slot.and_then(|slot| Some((at, slot.area?, slot.gone)));
        found.ok_or(AreaError::Unknown(handle.0))
    }

    fn leaves(&mut self, at: u32, area: Area<K>) -> Vec<PageRange> {
        self.places.change((area.pages.start.0, at), |_| None);
        let counts = self.counts.get_mut(&area.kind).expect("it was locked so");
        let unlocked = counts.unlock(area.pages);
        if counts.changes() == 0 {
            self.counts.remove(&area.kind);
        }
        unlocked
    }
}

fn still_there(Handle(handle): Handle, gone: Option<u64>) -> Result<(), AreaError> {
    match gone {
        Some(page) => Err(AreaError::Gone { handle, page }),
        None => Ok(()),
    }
}

fn handle(generation: u32, at: u32) -> Handle {
    Handle(u64::from(generation) << 32 | u64::from(at))
}

/// What is left of some pages without others.
fn without(pages: PageRange, others: PageRange) -> impl Iterator<Item = PageRange> {
    let before = (pages.start, pages.end.min(others.start));
    let after = (pages.start.max(others.end), pages.end);
    let parts = [before, after].into_iter();
    parts
        .filter(|(start, end)| start < end)
        .map(|(start, end)| PageRange::new(start.0, end.0))
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Kind {
        Resident,
        Pinned,
    }
    use Kind::{Pinned, Resident};

    fn area(start: u64, end: u64, kind: Kind) -> Area<Kind> {
        let pages = PageRange::new(start, end);
        Area { pages, kind }
    }

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(start, end)
    }

    #[test]
    fn each_lock_has_a_handle_and_each_kind_its_counts() {
        let mut areas = Areas::new();
        let (one, new) = areas.lock(area(0, 10, Resident)).unwrap();
        assert_eq!(new, [range(0, 10)]);
        let (two, new) = areas.lock(area(0, 10, Resident)).unwrap();
        assert_eq!(new, []);
        let (three, new) = areas.lock(area(5, 10, Pinned)).unwrap();
        assert_eq!(new, [range(5, 10)]);
        assert!(one != two && two != three);
        assert_eq!(areas.get(two), Ok(area(0, 10, Resident)));
        assert_eq!(areas.unlock(one), Ok((area(0, 10, Resident), vec![])));
        assert_eq!(areas.unlock(three).unwrap().1, [range(5, 10)]);
        assert_eq!(areas.unlock(two).unwrap().1, [range(0, 10)]);
        assert!(areas.all().next().is_none() && areas.counts(Resident).is_none());
    }

    #[test]
    fn a_handle_is_good_once() {
        let mut areas = Areas::new();
        let (one, _) = areas.lock(area(0, 10, Resident)).unwrap();
        areas.unlock(one).unwrap();
        let (two, _) = areas.lock(area(0, 10, Resident)).unwrap();
        assert_eq!(areas.unlock(one), Err(AreaError::Unknown(one.0)));
        assert_eq!(areas.get(one), Err(AreaError::Unknown(one.0)));
        assert!(areas.get(two).is_ok());
        assert_eq!(areas.get(Handle(7)), Err(AreaError::Unknown(7)));
        assert_eq!(areas.lock(area(3, 3, Resident)), Err(AreaError::Empty));
    }

    #[test]
    fn areas_whose_memory_goes_away_are_gone_whole_and_the_rest_of_them_is_unlocked() {
        let mut areas = Areas::new();
        let (first, _) = areas.lock(area(0, 10, Resident)).unwrap();
        let (second, _) = areas.lock(area(8, 20, Resident)).unwrap();
        let (third, _) = areas.lock(area(30, 40, Pinned)).unwrap();
        let (gone, rest) = areas.gone(range(12, 14));
        assert_eq!(gone.len(), 1);
        assert_eq!(gone[0].handle, second);
        // What the first area has stays locked.
        assert_eq!(rest, [(Resident, range(10, 12)), (Resident, range(14, 20))]);
        let (handle, page) = (second.0, 12);
        assert_eq!(areas.get(second), Err(AreaError::Gone { handle, page }));
        assert_eq!(areas.unlock(second), Err(AreaError::Gone { handle, page }));
        assert_eq!(areas.unlock(second), Err(AreaError::Unknown(second.0)));
        let (gone, rest) = areas.gone(range(9, 31));
        let handles: Vec<Handle> = gone.iter().map(|one| one.handle).collect();
        assert_eq!(handles, [first, third]);
        assert_eq!(rest, [(Resident, range(0, 9)), (Pinned, range(31, 40))]);
        assert_eq!(areas.gone(range(0, 100)), (vec![], vec![]));
    }

    #[test]
    fn all_that_a_task_has_locked_is_given_back_at_once() {
        let mut areas = Areas::new();
        let (one, _) = areas.lock(area(0, 10, Resident)).unwrap();
        areas.lock(area(5, 15, Resident)).unwrap();
        areas.lock(area(2, 4, Pinned)).unwrap();
        let mut all = areas.clear();
        all.sort_by_key(|(kind, pages)| (*kind, pages.start));
        let wanted = [
            (Resident, range(0, 5)),
            (Resident, range(5, 10)),
            (Resident, range(10, 15)),
            (Pinned, range(2, 4)),
        ];
        assert_eq!(all, wanted);
        assert_eq!(areas.get(one), Err(AreaError::Unknown(one.0)));
        assert!(areas.lock(area(0, 1, Resident)).is_ok());
    }

    #[test]
    fn what_has_some_of_a_range_is_found_among_many() {
        let mut areas = Areas::new();
        let mut handles = Vec::new();
        for at in 0..10_000 {
            handles.push(areas.lock(area(at * 3, at * 3 + 5, Resident)).unwrap().0);
        }
        let (gone, _) = areas.gone(range(3000, 3001));
        let found: Vec<Handle> = gone.iter().map(|one| one.handle).collect();
        assert_eq!(found, handles[999..=1000]);
    }
}
