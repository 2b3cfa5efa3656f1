//! How a registration is found again: without a lock and without a call of the system.
//!
//! Each thread counts for itself what it uses, in a place of its own; who wants to let go of a region adds
//! the places up. It first kills the region and has every thread pass a barrier: who counted before is seen,
//! who counts after sees that it is dead. So the threads that hit need no barrier, and write to nothing
//! that another one reads.

use super::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, light_barrier};

const FREE: u32 = 0;
const COMING: u32 = 1;
const ALIVE: u32 = 2;
const DEAD: u32 = 3;

/// The gate is open: memory that goes away has gone, and all regions that had some of it are dead.
pub const OPEN: u32 = 1;

/// Memory that is registered, or is about to be.
#[derive(Default)]
#[repr(align(32))]
pub struct Region {
    state: AtomicU32,
    /// For a list of those that were killed.
    pub next: AtomicU32,
    start: AtomicUsize,
    end: AtomicUsize,
    token: AtomicU64,
}

impl Region {
    /// It is to be `start..end`: it can be killed from now on, and not be hit. Nobody may use it, and the
    /// caller decides alone over regions that are free.
    pub fn comes(&self, start: usize, end: usize) {
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.state.store(COMING, Ordering::Release);
    }

    /// It can be hit from now on. False when it was killed meanwhile.
    pub fn lives(&self, token: u64) -> bool {
        self.token.store(token, Ordering::Relaxed);
        let (to, kept) = (Ordering::Release, Ordering::Relaxed);
        let lives = self.state.compare_exchange(COMING, ALIVE, to, kept);
        lives.is_ok()
    }

    /// It is not hit again: its memory has gone, or its place is needed. False when it was dead, or free.
    pub fn kill(&self) -> bool {
        let set = Ordering::AcqRel;
        [ALIVE, COMING].into_iter().any(|was| {
            let killed = self
                .state
                .compare_exchange(was, DEAD, set, Ordering::Relaxed);
            killed.is_ok()
        })
    }

    /// It has no memory: a dead one that was never registered.
    pub fn is_empty(&self) {
        self.start.store(0, Ordering::Relaxed);
        self.end.store(0, Ordering::Relaxed);
    }

    /// Nobody uses it, and it is registered nowhere.
    pub fn is_let_go(&self) {
        self.state.store(FREE, Ordering::Release);
    }

    /// True while it can be hit.
    #[inline]
    pub fn is_alive(&self) -> bool {
        self.state.load(Ordering::Acquire) == ALIVE
    }

    /// Its addresses, and what it was given when it was registered. For who uses it, or decides over it.
    #[inline]
    pub fn about(&self) -> (usize, usize, u64) {
        let load = |word: &AtomicUsize| word.load(Ordering::Relaxed);
        let token = self.token.load(Ordering::Relaxed);
        (load(&self.start), load(&self.end), token)
    }

    /// Has all of `at..end`, and can be hit.
    #[inline]
    fn has(&self, at: usize, end: usize) -> bool {
        self.is_alive() && {
            let (start, until, _) = self.about();
            start <= at && end <= until
        }
    }
}

/// What a thread uses of a region: its place alone writes it.
#[derive(Default)]
pub struct Use {
    /// Less than none when it gave back what another thread has taken.
    count: AtomicU32,
    last: AtomicU32,
}

impl Use {
    /// Uses the region once more, if it has all of `at..end`, lives, and the gate is open. `now` is
    /// remembered as the time of the last use.
    #[inline]
    pub fn take(&self, region: &Region, gate: &AtomicU32, now: u32, at: usize, end: usize) -> bool {
        self.add(1);
        light_barrier();
        if gate.load(Ordering::Acquire) == OPEN && region.has(at, end) {
            self.last.store(now, Ordering::Relaxed);
            return true;
        }
        self.give_back(region);
        false
    }

    /// Uses it once less. True when it is dead, so that somebody has to look whether it is let go of.
    #[inline]
    pub fn give_back(&self, region: &Region) -> bool {
        self.add(u32::MAX);
        light_barrier();
        !region.is_alive()
    }

    /// How often it is used, and when last.
    pub fn seen(&self) -> (u32, u32) {
        let last = self.last.load(Ordering::Relaxed);
        (self.count.load(Ordering::Acquire), last)
    }

    #[inline]
    fn add(&self, one: u32) {
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count.wrapping_add(one), Ordering::Release);
    }
}

/// True when nobody uses a region that was killed before every thread passed a barrier: then nobody will.
pub fn is_unused<'a>(uses: impl Iterator<Item = &'a Use>) -> bool {
    // From here on counts only become less, so none that is used is added up to zero.
    uses.fold(0_u32, |sum, one| sum.wrapping_add(one.seen().0)) == 0
}
