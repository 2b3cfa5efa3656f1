//! What is counted of each object.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use farpage_object::{Histogram, PagerError, Times};

/// Nanoseconds since some moment, without a system call: faults take a few thousand.
pub(crate) fn now_ns() -> u64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// What has come so far.
#[derive(Default)]
pub(crate) struct Counters {
    /// Requests for pages that somebody waited for.
    pub(crate) page_ins: AtomicU64,
    /// Pages that came.
    pub(crate) brought: AtomicU64,
    /// Those of them that nobody had waited for when they were asked for.
    pub(crate) ahead: AtomicU64,
    /// Pages that the pager took.
    pub(crate) taken: AtomicU64,
    /// Pages that were used while they were aside.
    pub(crate) put_back: AtomicU64,
    /// Threads that were told that a page cannot be had.
    pub(crate) failed: AtomicU64,
    /// From a fault's arrival here to its answer.
    pub(crate) faults: Histogram,
    pub(crate) pager: PagerSide,
}

/// How the pager of an object does.
#[derive(Default)]
pub(crate) struct PagerSide {
    /// Calls and tickets that are not answered yet.
    open: AtomicU32,
    /// When something was last asked while nothing was open, or answered.
    heard_ns: AtomicU64,
    calls: AtomicU64,
    errors: AtomicU64,
    last_error: Mutex<Option<PagerError>>,
    times: Histogram,
}

impl PagerSide {
    /// The pager is asked. Returns when.
    pub(crate) fn asked(&self) -> u64 {
        let now = now_ns();
        if self.open.fetch_add(1, Ordering::Relaxed) == 0 {
            self.heard_ns.store(now, Ordering::Relaxed);
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        now
    }

    /// It has answered what it was asked then.
    pub(crate) fn answered(&self, asked_ns: u64, error: Option<PagerError>) {
        let now = now_ns();
        self.heard_ns.store(now, Ordering::Relaxed);
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.times.add(now.saturating_sub(asked_ns));
        if error.is_some() {
            self.errors.fetch_add(1, Ordering::Relaxed);
            let last = self.last_error.lock();
            *last.unwrap_or_else(PoisonError::into_inner) = error;
        }
    }

    fn figures(&self) -> PagerFigures {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let open = self.open.load(Ordering::Relaxed);
        let silent = now_ns().saturating_sub(of(&self.heard_ns));
        let last = self.last_error.lock();
        PagerFigures {
            calls: of(&self.calls),
            open: open.into(),
            silent_ns: if open > 0 { silent } else { 0 },
            errors: of(&self.errors),
            last_error: *last.unwrap_or_else(PoisonError::into_inner),
            times: self.times.counts(),
        }
    }
}

/// How a pager does, for one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PagerFigures {
    /// Requests and returns so far.
    pub calls: u64,
    /// Those that are not answered yet.
    pub open: u64,
    /// Nanoseconds since it was last heard of, while something is open; else 0.
    pub silent_ns: u64,
    /// Answers that were errors.
    pub errors: u64,
    /// The last of them.
    pub last_error: Option<PagerError>,
    /// From asking to the answer.
    pub times: Times,
}

/// What is counted of an object, in pages where nothing else is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectFigures {
    /// In memory, what is aside included.
    pub resident: u64,
    /// The most that there ever was.
    pub resident_max: u64,
    /// Of those in memory, the ones whose only right contents are here.
    pub dirty: u64,
    /// Of those in memory, the ones that are next to leave, and mapped nowhere.
    pub aside: u64,
    /// That stay.
    pub wired: u64,
    /// Requests to the pager that somebody waited for.
    pub page_ins: u64,
    /// That came from the pager.
    pub brought: u64,
    /// That the pager took.
    pub taken: u64,
    /// That were used while they were aside.
    pub put_back: u64,
    /// Threads that were told that a page cannot be had.
    pub failed: u64,
    /// Faults, from their arrival to their answer.
    pub faults: Times,
    /// How it does.
    pub pager: PagerFigures,
}

impl Counters {
    /// What is counted here; the rest is left empty.
    pub(crate) fn figures(&self) -> ObjectFigures {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ObjectFigures {
            page_ins: of(&self.page_ins),
            brought: of(&self.brought),
            taken: of(&self.taken),
            put_back: of(&self.put_back),
            failed: of(&self.failed),
            faults: self.faults.counts(),
            pager: self.pager.figures(),
            ..ObjectFigures::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pager_is_silent_while_something_is_open_and_not_answered() {
        let side = PagerSide::default();
        let first = side.asked();
        while now_ns() < first + 1_000_000 {}
        let figures = side.figures();
        assert!(
            figures.open == 1 && figures.silent_ns >= 1_000_000,
            "{figures:?}"
        );
        side.answered(first, Some(PagerError::Dead));
        let figures = side.figures();
        assert_eq!((figures.open, figures.silent_ns, figures.errors), (0, 0, 1));
        assert_eq!(figures.last_error, Some(PagerError::Dead));
        assert_eq!((figures.calls, figures.times.count()), (1, 1));
    }
}
