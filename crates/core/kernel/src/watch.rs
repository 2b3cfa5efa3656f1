//! Who waits for faults, and on which processors.
//!
//! Waking a handler on another, idle processor costs ten times as much as on the faulting thread's
//! own. But a thread that a handler has waked is often moved away from it, to the processor that is
//! idle, and back by the next one: so there is a watch on each processor where threads fault, up to
//! two. More would be waked for nothing: Linux wakes all who wait, and one gets the fault.

use core::sync::atomic::{AtomicU32, Ordering};

use farpage_sys::futex::Event;

/// Watches at most.
const WATCHES: usize = 2;
/// A watch that is not on any processor yet.
const NOWHERE: u32 = u32::MAX;

/// The places for handlers that wait for faults.
pub(crate) struct Watches {
    /// Bit n: watch n may be taken.
    free: AtomicU32,
    /// Watches that there are; the others open when threads fault on more processors.
    open: AtomicU32,
    /// The processor of each watch.
    cpus: [AtomicU32; WATCHES],
    /// Handlers that wait for a free watch, or were started and will.
    coming: AtomicU32,
    /// Handlers on watch that have no fault to answer.
    idle: AtomicU32,
    freed: Event,
}

impl Watches {
    pub(crate) const fn new() -> Self {
        Self {
            free: AtomicU32::new(1),
            open: AtomicU32::new(1),
            cpus: [const { AtomicU32::new(NOWHERE) }; WATCHES],
            coming: AtomicU32::new(0),
            idle: AtomicU32::new(0),
            freed: Event::new(),
        }
    }

    /// In a forked child, which has no handlers.
    pub(crate) fn reset(&self) {
        self.free.store(1, Ordering::Relaxed);
        self.open.store(1, Ordering::Relaxed);
        for cpu in &self.cpus {
            cpu.store(NOWHERE, Ordering::Relaxed);
        }
        self.coming.store(0, Ordering::Relaxed);
        self.idle.store(0, Ordering::Relaxed);
    }

    /// A handler will [`Watches::take`] one.
    pub(crate) fn comes(&self) {
        self.coming.fetch_add(1, Ordering::AcqRel);
    }

    /// It will not after all.
    pub(crate) fn comes_not(&self) {
        self.coming.fetch_sub(1, Ordering::AcqRel);
    }

    /// Waits for a free one and takes it.
    pub(crate) fn take(&self) -> usize {
        loop {
            let seen = self.freed.seen();
            let without_lowest = |free: u32| (free != 0).then(|| free & (free - 1));
            let (taken, looked) = (Ordering::AcqRel, Ordering::Acquire);
            if let Ok(free) = self.free.fetch_update(taken, looked, without_lowest) {
                self.coming.fetch_sub(1, Ordering::AcqRel);
                return free.trailing_zeros() as usize;
            }
            self.freed.wait(seen, None);
        }
    }

    /// Makes `watch` free for another handler.
    pub(crate) fn give_back(&self, watch: usize) {
        self.free.fetch_or(1 << watch, Ordering::AcqRel);
        self.freed.notify_one();
    }

    /// True when one is free and nobody comes to take it.
    pub(crate) fn wants_another(&self) -> bool {
        let free = self.free.load(Ordering::Acquire).count_ones();
        free > self.coming.load(Ordering::Acquire)
    }

    /// Runs `wait_for_fault` as a handler on watch that has nothing to do.
    pub(crate) fn idle<T>(&self, wait_for_fault: impl FnOnce() -> T) -> T {
        self.idle.fetch_add(1, Ordering::AcqRel);
        let came = wait_for_fault();
        self.idle.fetch_sub(1, Ordering::AcqRel);
        came
    }

    /// True when somebody is there for the next fault.
    pub(crate) fn is_kept(&self) -> bool {
        self.idle.load(Ordering::Acquire) > 0
    }

    /// The processor of `watch`.
    pub(crate) fn cpu(&self, watch: usize) -> Option<u32> {
        let cpu = self.cpus[watch].load(Ordering::Relaxed);
        (cpu != NOWHERE).then_some(cpu)
    }

    /// A thread faulted on `cpu`, and `watch` had it: where no watch is, one opens, or this one
    /// moves there. True when there was none.
    pub(crate) fn seen_on(&self, cpu: u32, watch: usize) -> bool {
        let all = || self.cpus.iter().map(|cpu| cpu.load(Ordering::Relaxed));
        if all().any(|other| other == cpu) {
            return false;
        }
        let placed = self.cpu(watch).is_some();
        let one_more = |open: u32| (placed && (open as usize) < WATCHES).then(|| open + 1);
        let (taken, looked) = (Ordering::AcqRel, Ordering::Acquire);
        match self.open.fetch_update(taken, looked, one_more) {
            Ok(opened) => {
                self.cpus[opened as usize].store(cpu, Ordering::Relaxed);
                self.give_back(opened as usize);
            }
            Err(_) => self.cpus[watch].store(cpu, Ordering::Relaxed),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_opens_on_a_second_processor_and_one_moves_to_a_third() {
        let watches = Watches::new();
        watches.comes();
        let first = watches.take();
        assert!(watches.seen_on(5, first), "the first watch goes there");
        assert!(!watches.seen_on(5, first) && !watches.wants_another());
        assert!(watches.seen_on(7, first) && watches.wants_another());
        watches.comes();
        let second = watches.take();
        assert_eq!(
            (watches.cpu(first), watches.cpu(second)),
            (Some(5), Some(7))
        );
        assert!(!watches.seen_on(5, second), "somebody is there");
        assert!(watches.seen_on(6, second), "one of the two moves");
        assert_eq!(
            (watches.cpu(first), watches.cpu(second)),
            (Some(5), Some(6))
        );
        assert!(!watches.wants_another());
    }

    #[test]
    fn who_gives_up_a_watch_has_another_come() {
        let watches = Watches::new();
        watches.comes();
        let watch = watches.take();
        assert!(!watches.is_kept() && watches.idle(|| watches.is_kept()));
        watches.give_back(watch);
        assert!(watches.wants_another());
        watches.comes();
        assert!(!watches.wants_another());
    }
}
