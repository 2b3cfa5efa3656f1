//! A cache of registrations: memory that was registered with a device stays so after its use, and is found
//! again without a lock or a call of the system, until it goes away or others need the place.
//!
//! ```no_run
//! # fn main() -> Result<(), farpage::registrations::RegisterError> {
//! use farpage::registrations::{Limits, Pinning, Registrations};
//!
//! let cache = Registrations::new(Pinning::new(), Limits::default())?;
//! let buffer = vec![0_u8; 1 << 20];
//! let registered = cache.get(buffer.as_ptr().addr(), buffer.len())?;
//! // The frames stay while it is held, and most likely until it is asked for again.
//! drop(registered);
//! # Ok(())
//! # }
//! ```
//!
//! What this process does to the memory is seen: munmap, mremap, a new mapping over it, MADV_DONTNEED,
//! MADV_FREE and MADV_REMOVE. From when such a call returns nothing of it is hit. What is not seen:
//! a shared memory file that is cut off or punched by descriptor, here or by another process; and, until
//! munmap returns in the thread that calls it, that another thread is given the same addresses.

mod error;
mod place;
mod watch;
mod ways;

use std::collections::VecDeque;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farpage_object::PAGE_BYTES;
use farpage_pinning::{ADDRESSES, Lookup};
use farpage_sys::thread::all_pass_a_barrier;

pub use error::RegisterError;
pub use ways::{Pinning, Register, RingBuffers};

use crate::LockError;
use crate::locks::pages_of;
use place::SHARED;
use watch::Watch;

/// Memory that goes away each time while it is being registered is given up after so many times.
const TRIES: u32 = 16;

/// What a cache keeps at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes that are registered.
    pub bytes: u64,
    /// Regions, of 40 bytes and of 8 more for each thread. An `io_uring` has places for 16,384.
    pub regions: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: u64::MAX,
            regions: 16384,
        }
    }
}

/// A cache of registrations.
pub struct Registrations {
    shared: Arc<Shared>,
    watch: Arc<Watch>,
}

/// Memory that is registered as long as this lives.
///
/// If it goes away meanwhile, [`Registered::is_gone`] is true, and what it was registered with still has
/// what was there.
#[derive(Debug)]
pub struct Registered<'a> {
    cache: &'a Registrations,
    number: u32,
}

/// What a cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegistrationSums {
    /// Regions that are registered.
    pub regions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Registrations that were made.
    pub made: u64,
    /// Those that were given up for others.
    pub evicted: u64,
    /// Those whose memory went away, or that others have all of.
    pub gone: u64,
}

struct Shared {
    lookup: Lookup,
    limits: Limits,
    state: Mutex<State>,
}

struct State {
    register: Box<dyn Register>,
    free: Vec<u32>,
    /// The first of those that are not in use goes first.
    order: VecDeque<Turn>,
    /// Which registration each is of.
    made: Vec<u64>,
    /// Dead ones that are still used.
    leaving: Vec<u32>,
    sums: RegistrationSums,
}

/// When a region's turn comes to be given up.
struct Turn {
    number: u32,
    /// The number may be another region's now.
    made: u64,
    /// When it had been used last as it was put there.
    known: u32,
}

impl Registrations {
    /// A cache of what `register` registers.
    ///
    /// # Errors
    /// [`RegisterError`]: this system does not say when memory goes away, or there are too many caches.
    pub fn new(register: impl Register + 'static, limits: Limits) -> Result<Self, RegisterError> {
        let watch = Watch::of_process()?;
        let shared = Arc::new(Shared {
            lookup: Lookup::new(limits.regions),
            limits,
            state: Mutex::new(State {
                register: Box::new(register),
                free: (0..limits.regions).rev().collect(),
                order: VecDeque::new(),
                made: vec![0; limits.regions as usize],
                leaving: Vec::new(),
                sums: RegistrationSums::default(),
            }),
        });
        watch.add(&shared)?;
        Ok(Self { shared, watch })
    }

    /// The pages that have some of the `bytes` bytes at `at`, registered: as before, or from now on. What
    /// overlaps becomes one region, but for neighbours that have a page in common, of which the larger stays.
    ///
    /// # Errors
    /// [`RegisterError`], and then it is as if it had not been asked for.
    #[inline]
    pub fn get(&self, at: usize, bytes: usize) -> Result<Registered<'_>, RegisterError> {
        let number = self.get_number(at, bytes)?;
        Ok(Registered {
            cache: self,
            number,
        })
    }

    /// As [`Registrations::get`], by number: the caller gives it back with [`Registrations::put_number`].
    ///
    /// # Errors
    /// As [`Registrations::get`].
    #[inline]
    pub fn get_number(&self, at: usize, bytes: usize) -> Result<u32, RegisterError> {
        let place = place::place();
        if place != SHARED {
            let hit = self.shared.lookup.take(self.watch.gate, place, at, bytes);
            if let Some(number) = hit {
                return Ok(number);
            }
        }
        self.miss(at, bytes)
    }

    /// Gives one back that was got, in any thread. Numbers that were not got, or were given back already,
    /// are the caller's mistake: memory may be let go of that is used.
    ///
    /// # Panics
    /// When there is no such number.
    #[inline]
    pub fn put_number(&self, number: u32) {
        let place = place::place();
        let dead = if place == SHARED {
            let _state = self.shared.state();
            self.shared.lookup.give_back(SHARED, number)
        } else {
            self.shared.lookup.give_back(place, number)
        };
        if dead {
            self.shared.lets_go();
        }
    }

    /// What a number of [`Registrations::get_number`] is: its addresses, what it is known by, and whether
    /// its memory is still there. In a child of fork it never is.
    ///
    /// # Panics
    /// When there is no such number.
    #[must_use]
    pub fn about(&self, number: u32) -> (Range<usize>, u64, bool) {
        // What is being seen is seen.
        let is_here = self.watch.passes();
        let region = self.shared.lookup.region(number);
        let (start, end, token) = region.about();
        (start..end, token, is_here && region.is_alive())
    }

    /// Several at once, for lists of scatter and gather: all or none.
    ///
    /// # Errors
    /// As [`Registrations::get`].
    pub fn get_all(&self, parts: &[(usize, usize)]) -> Result<Vec<Registered<'_>>, RegisterError> {
        // What lies close together is one region: found by the next part, too.
        let mut sorted: Vec<(usize, usize)> = parts.to_vec();
        sorted.sort_unstable();
        let mut ahead: Vec<(usize, usize)> = Vec::new();
        for (at, bytes) in sorted {
            let start = at & !(PAGE_BYTES - 1);
            let end = at.saturating_add(bytes);
            let end = end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(end);
            match ahead.last_mut() {
                Some((_, until)) if start <= *until => *until = end.max(*until),
                _ => ahead.push((start, end)),
            }
        }
        let held: Result<Vec<_>, _> = ahead
            .iter()
            .map(|(start, end)| self.get(*start, end - start))
            .collect();
        let held = held?;
        let all = parts.iter().map(|(at, bytes)| self.get(*at, *bytes));
        let all = all.collect();
        drop(held);
        all
    }

    /// As [`Registrations::get_all`], by number: each is given back with [`Registrations::put_number`].
    ///
    /// # Errors
    /// As [`Registrations::get`].
    pub fn get_all_numbers(&self, parts: &[(usize, usize)]) -> Result<Vec<u32>, RegisterError> {
        let number = |held: Registered<'_>| ManuallyDrop::new(held).number;
        Ok(self.get_all(parts)?.into_iter().map(number).collect())
    }

    /// Nothing of `bytes` bytes at `at` is hit any more: for memory that goes away in a way that is not
    /// seen. What is held stays registered until it is given back.
    pub fn forget(&self, at: usize, bytes: usize) {
        let end = at.saturating_add(bytes);
        if self.shared.lookup.kill_all(at, end) > 0 {
            self.shared.lets_go();
        }
    }

    /// What it has done.
    #[must_use]
    pub fn sums(&self) -> RegistrationSums {
        let sums = self.shared.state().sums;
        RegistrationSums {
            gone: sums.made.saturating_sub(sums.regions + sums.evicted),
            ..sums
        }
    }

    #[cold]
    fn miss(&self, at: usize, bytes: usize) -> Result<u32, RegisterError> {
        if process::id() != self.watch.process {
            return Err(RegisterError::Forked(self.watch.process));
        }
        let pages = pages_of(at, bytes)?;
        let beyond = || LockError::Beyond {
            at: at as u64,
            bytes: bytes as u64,
        };
        let end = usize::try_from(pages.end.0).ok();
        let end = end
            .filter(|end| *end <= ADDRESSES / PAGE_BYTES)
            .ok_or_else(beyond)?;
        let (start, end) = (pages.start.0 as usize * PAGE_BYTES, end * PAGE_BYTES);
        let place = place::given();
        let shared = &self.shared;
        let (asked, most) = ((end - start) as u64, shared.limits.bytes);
        if asked > most {
            return Err(RegisterError::Large { asked, most });
        }
        let mut state = shared.state();
        for _ in 0..TRIES {
            self.watch.passes();
            state.lets_go(shared);
            // Another thread may have been quicker, or this one not have had a place.
            let hit = shared.lookup.take(self.watch.gate, place, at, bytes);
            if let Some(number) = hit {
                return Ok(number);
            }
            let (pages, small) = (start..end, shared.one_with_small(start..end));
            let mut done = self.register(&mut state, small.clone());
            if done.as_ref().is_err_and(|why| !why.is_limit()) {
                // Not every device takes a page twice.
                let all = shared.one_with(pages.clone(), |_, _| true);
                if all != small {
                    done = self.register(&mut state, all);
                }
            }
            // What it was to be one with may be going away just now, or be too much.
            if done.is_err() && pages != small {
                done = self.register(&mut state, pages);
            }
            done?;
        }
        Err(RegisterError::Restless { at: at as u64 })
    }

    /// Registers pages in place of the regions that have some of them, but for those that have one page of them and
    /// others besides.
    fn register(&self, state: &mut State, pages: Range<usize>) -> Result<(), RegisterError> {
        let (shared, watch) = (&self.shared, &self.watch);
        let lookup = &shared.lookup;
        let seen = watch.seen();
        let Range {
            start: from,
            end: until,
        } = pages;
        lookup.each(from, until, |number| {
            if !shared.is_neighbour(number, from, until) {
                lookup.kill(number);
            }
        });
        state.lets_go(shared);
        watch.watch(from, until)?;
        state.make_room(shared, (until - from) as u64)?;
        let number = state.free.pop().expect("room was made");
        let region = lookup.region(number);
        region.comes(from, until);
        lookup.place(number);
        let token = loop {
            match state.register.register(from, until - from) {
                Ok(token) => break token,
                Err(why) if why.is_limit() && state.evict(shared) => state.lets_go(shared),
                Err(why) => {
                    lookup.displace(number);
                    if region.kill() {
                        region.is_let_go();
                        state.free.push(number);
                    } else {
                        // It is among the killed: nothing of it was registered.
                        region.is_empty();
                    }
                    return Err(why);
                }
            }
        };
        state.sums.made += 1;
        state.sums.regions += 1;
        state.sums.bytes += (until - from) as u64;
        let (made, known) = (state.sums.made, lookup.passes());
        state.made[number as usize] = made;
        state.order.push_back(Turn {
            number,
            made,
            known,
        });
        if state.order.len() > 2 * state.made.len() {
            let made = &state.made;
            state
                .order
                .retain(|turn| made[turn.number as usize] == turn.made);
        }
        // What has been seen meanwhile may have been of it, before it could be found.
        if !region.lives(token) || watch.seen() != seen {
            lookup.kill(number);
        }
        Ok(())
    }
}

impl Drop for Registrations {
    fn drop(&mut self) {
        // In a child of fork there is nobody else, and nothing is registered.
        if process::id() == self.watch.process {
            self.watch.remove(&self.shared);
            self.shared.state().give_all_up(&self.shared.lookup);
        }
    }
}

impl fmt::Debug for Registrations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sums = self.sums();
        f.debug_struct("Registrations")
            .field("sums", &sums)
            .finish_non_exhaustive()
    }
}

impl Registered<'_> {
    /// The addresses that are registered: all that was asked for, in whole pages, and perhaps more.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.cache.about(self.number).0
    }

    /// What it is known by to what it is registered with.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.cache.about(self.number).1
    }

    /// Some of its memory went away since it was got, or more of it was registered together: another one is
    /// to be got.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        !self.cache.about(self.number).2
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.cache.put_number(self.number);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a region has one page of `start..end` at an end of it, and others besides: it is one of its own then.
    fn is_neighbour(&self, number: u32, start: usize, end: usize) -> bool {
        let (from, until, _) = self.lookup.region(number).about();
        (from < start && until == start + PAGE_BYTES) || (until > end && from + PAGE_BYTES == end)
    }

    /// What pages are one region with: regions that live, overlap, and are `wanted` for what it has become. Not what
    /// would be too much.
    fn one_with(
        &self,
        pages: Range<usize>,
        wanted: impl Fn(u32, &Range<usize>) -> bool,
    ) -> Range<usize> {
        let mut all = pages;
        loop {
            let mut next = all.clone();
            self.lookup.each(all.start, all.end, |number| {
                let region = self.lookup.region(number);
                let (start, end, _) = region.about();
                if region.is_alive() && wanted(number, &all) {
                    next = next.start.min(start)..next.end.max(end);
                }
            });
            if next == all || next.len() as u64 > self.limits.bytes {
                return all;
            }
            all = next;
        }
    }

    /// What pages are one region with: all that has more than a page of them, and neighbours that are no larger and not in
    /// use. So pieces that come one after the other are registered anew as often as their number has digits, and are few regions.
    fn one_with_small(&self, pages: Range<usize>) -> Range<usize> {
        self.one_with(pages, |number, all| {
            let (start, end, _) = self.lookup.region(number).about();
            !self.is_neighbour(number, all.start, all.end)
                || (end - start <= all.len() && self.lookup.is_unused(number))
        })
    }

    /// Lets go of what is dead and not used.
    fn lets_go(&self) {
        self.state().lets_go(self);
    }
}

impl State {
    fn lets_go(&mut self, shared: &Shared) {
        let before = self.leaving.len();
        for number in shared.lookup.killed() {
            shared.lookup.displace(number);
            self.leaving.push(number);
        }
        if self.leaving.is_empty() {
            return;
        }
        // Who has counted itself is seen after this. It cannot fail once it has been prepared.
        if self.leaving.len() > before && all_pass_a_barrier().is_err() {
            return;
        }
        let leaving = std::mem::take(&mut self.leaving);
        for number in leaving {
            if !shared.lookup.is_unused(number) {
                self.leaving.push(number);
                continue;
            }
            let region = shared.lookup.region(number);
            let (start, end, token) = region.about();
            if start < end {
                self.register.deregister(start, end - start, token);
                self.sums.regions -= 1;
                self.sums.bytes -= (end - start) as u64;
            }
            region.is_let_go();
            self.free.push(number);
        }
    }

    /// Gives up what was not used for longest until there is room.
    fn make_room(&mut self, shared: &Shared, bytes: u64) -> Result<(), RegisterError> {
        let limits = shared.limits;
        while self.free.is_empty() || self.sums.bytes.saturating_add(bytes) > limits.bytes {
            if !self.evict(shared) {
                return Err(RegisterError::Full {
                    asked: bytes,
                    used: self.sums.bytes,
                    most: limits.bytes,
                    regions: limits.regions as usize - self.free.len(),
                    most_regions: limits.regions,
                });
            }
            self.lets_go(shared);
        }
        Ok(())
    }

    /// Kills the one that was not used for longest. False when all are in use.
    fn evict(&mut self, shared: &Shared) -> bool {
        // Each may have been used since, once.
        for _ in 0..2 * self.order.len() {
            let Some(mut turn) = self.order.pop_front() else {
                return false;
            };
            let number = turn.number;
            if self.made[number as usize] != turn.made || !shared.lookup.region(number).is_alive() {
                continue;
            }
            let last = shared.lookup.last_used(number);
            if !shared.lookup.is_unused(number) || last > turn.known {
                turn.known = last.max(turn.known);
                self.order.push_back(turn);
            } else if shared.lookup.kill(number) {
                self.sums.evicted += 1;
                return true;
            }
        }
        false
    }

    fn give_all_up(&mut self, lookup: &Lookup) {
        lookup.kill_all(0, ADDRESSES);
        for number in lookup.killed().chain(std::mem::take(&mut self.leaving)) {
            let (start, end, token) = lookup.region(number).about();
            if start < end {
                self.register.deregister(start, end - start, token);
            }
        }
    }
}
