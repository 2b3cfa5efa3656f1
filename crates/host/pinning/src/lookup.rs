//! What is registered: found by address.

use alloc::boxed::Box;
use core::array;
use core::iter;

use once_cell::race::OnceBox;

use crate::atomic::{AtomicU32, Ordering};
use crate::hits::{Region, Use, is_unused};
use crate::index::Index;

const PAGE: usize = 4096;

/// Threads that have a place of their own.
pub const PLACES: usize = 256;

/// Regions by address, and who uses them. Two may have one page in common, and none has all of another: so of those that
/// have a page the last that begins has all that the others have from there on, and a page has one region to look at.
pub struct Lookup {
    index: Index,
    regions: Box<[Region]>,
    places: [OnceBox<Place>; PLACES],
    now: AtomicU32,
    /// The last that was killed, and so on by [`Region::next`], from 1 on.
    killed: AtomicU32,
}

/// What one thread uses.
struct Place(Box<[Use]>);

impl Lookup {
    /// Of `regions` at most.
    #[must_use]
    pub fn new(regions: u32) -> Self {
        Self {
            index: Index::default(),
            regions: all(regions as usize),
            places: array::from_fn(|_| OnceBox::new()),
            now: AtomicU32::new(0),
            killed: AtomicU32::new(0),
        }
    }

    /// Uses the region that has all of the `bytes` bytes at `at`, if there is one. `place` is the caller's
    /// alone while it runs.
    #[inline]
    pub fn take(&self, gate: &AtomicU32, place: usize, at: usize, bytes: usize) -> Option<u32> {
        let number = self.index.find(at)?;
        let region = &self.regions[number as usize];
        let end = at.checked_add(bytes).filter(|end| at < *end)?;
        let now = self.now.load(Ordering::Relaxed);
        let taken = self.used(place, number).take(region, gate, now, at, end);
        taken.then_some(number)
    }

    /// Gives it back, in any place. True when it is dead: it may have to be let go of.
    #[inline]
    pub fn give_back(&self, place: usize, number: u32) -> bool {
        let region = &self.regions[number as usize];
        self.used(place, number).give_back(region)
    }

    #[inline]
    fn used(&self, place: usize, number: u32) -> &Use {
        let make = || Box::new(Place(all(self.regions.len())));
        &self.places[place].get_or_init(make).0[number as usize]
    }

    /// One of them.
    #[must_use]
    pub fn region(&self, number: u32) -> &Region {
        &self.regions[number as usize]
    }

    /// A region is found by its addresses from now on. The last page may be another's, too, which begins with it: who
    /// looks for something that begins there finds that one, which has all that this one has of it.
    pub fn place(&self, number: u32) {
        let (start, end, _) = self.region(number).about();
        let last = end - PAGE;
        let begins_there = |other: u32| {
            let region = self.region(other);
            region.is_alive() && region.about().0 == last
        };
        let shares = last > start && self.index.find(last).is_some_and(begins_there);
        self.index
            .set(start, if shares { last } else { end }, number);
    }

    /// A dead region is not found any more. What it had in common with the one before is that one's alone.
    pub fn displace(&self, number: u32) {
        let (start, end, _) = self.region(number).about();
        self.index.clear(start, end, number);
        let is_free = start < end && self.index.find(start).is_none();
        let before = start.checked_sub(PAGE).filter(|_| is_free);
        if let Some(before) = before.and_then(|at| self.index.find(at)) {
            let region = self.region(before);
            let (from, until, _) = region.about();
            if region.is_alive() && from < start && until == start + PAGE {
                self.index.set(start, until, before);
            }
        }
    }

    /// Tells `found` each region that has some of `start..end`, perhaps several times, also of those that are dead and
    /// have a place still. Allocates nothing.
    pub fn each(&self, start: usize, end: usize, mut found: impl FnMut(u32)) {
        // The page before is the first one's own, if that has its last page in common with the next.
        self.index.each(start.saturating_sub(PAGE), end, |number| {
            let (from, until, _) = self.region(number).about();
            if from < end && start < until {
                found(number);
            }
        });
    }

    /// Kills all that have some of `start..end`, and says how many that lived. Allocates nothing, and waits
    /// for nothing.
    pub fn kill_all(&self, start: usize, end: usize) -> u32 {
        let mut killed = 0;
        self.each(start, end, |number| killed += u32::from(self.kill(number)));
        killed
    }

    /// Kills one: it is among the [`Lookup::killed`] then. False when it did not live.
    pub fn kill(&self, number: u32) -> bool {
        let region = self.region(number);
        let killed = region.kill();
        if killed {
            let mut last = self.killed.load(Ordering::Relaxed);
            loop {
                region.next.store(last, Ordering::Relaxed);
                let (done, seen) = (Ordering::AcqRel, Ordering::Relaxed);
                match self
                    .killed
                    .compare_exchange_weak(last, number + 1, done, seen)
                {
                    Ok(_) => break,
                    Err(now) => last = now,
                }
            }
        }
        killed
    }

    /// Those that were killed since it was asked last. One at a time asks.
    pub fn killed(&self) -> impl Iterator<Item = u32> {
        let mut next = self.killed.swap(0, Ordering::AcqRel);
        iter::from_fn(move || {
            let number = next.checked_sub(1)?;
            next = self.region(number).next.load(Ordering::Relaxed);
            Some(number)
        })
    }

    /// True when nobody uses it: for good if it was killed before every thread passed a barrier.
    #[must_use]
    pub fn is_unused(&self, number: u32) -> bool {
        is_unused(self.uses(number))
    }

    /// When it was last used, in steps of [`Lookup::passes`].
    #[must_use]
    pub fn last_used(&self, number: u32) -> u32 {
        self.uses(number).map(|one| one.seen().1).max().unwrap_or(0)
    }

    /// Time passes: from now on uses are later. When it is.
    pub fn passes(&self) -> u32 {
        self.now.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn uses(&self, number: u32) -> impl Iterator<Item = &Use> {
        let places = self.places.iter().filter_map(OnceBox::get);
        places.map(move |place| &place.0[number as usize])
    }
}

fn all<T: Default>(count: usize) -> Box<[T]> {
    iter::repeat_with(T::default).take(count).collect()
}
