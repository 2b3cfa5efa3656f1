//! Waiting a little before sleeping: a sleeper takes microseconds to wake, an idle processor tens.

use std::time::{Duration, Instant};

/// Longest time to look for an answer from another processor.
const SPIN: Duration = Duration::from_micros(20);
/// How often the processor is left to a peer that runs on the same one, before sleeping.
const YIELDS: u32 = 3;
/// Somebody else has the processor when the peer takes so long: sleepers get it back sooner.
const LONG_YIELD: Duration = Duration::from_micros(50);
/// After so many waits in vain...
const MISSES: u32 = 4;
/// ... only one in so many is tried.
const SELDOM: u32 = 32;
/// Waking another processor takes most of such a time.
const SHORT_SLEEP: Duration = Duration::from_micros(100);
/// One in so many waits on one processor is timed, and each one after a miss.
const TIMED: u32 = 8;
/// Looks between two at the clock and the processors.
const LOOKS: u32 = 16;

/// What experience says about waiting.
#[derive(Default)]
pub(super) struct Patience {
    misses: u32,
    /// Waits that were not tried since the last one that was.
    passed: u32,
    waits: u32,
}

/// The processor that this thread runs on.
pub(super) fn processor() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

impl Patience {
    /// A sleep has taken so long. After a short one it is more likely that lingering helps.
    pub(super) fn has_slept(&mut self, long: Duration) {
        if long < SHORT_SLEEP {
            self.passed += SELDOM / 4 - 1;
        }
    }

    /// Waits a little for `came`, when the peer is awake on processor `peer`. True when it came.
    pub(super) fn wait(&mut self, peer: impl Fn() -> Option<u32>, came: impl Fn() -> bool) -> bool {
        self.waits = self.waits.wrapping_add(1);
        let Some(processor_of_peer) = peer() else {
            return false;
        };
        if self.misses >= MISSES {
            self.passed += 1;
            if self.passed < SELDOM {
                return false;
            }
            self.passed = 0;
        }
        let (came, was_worth_it) = if processor_of_peer == processor() {
            // The clock costs more than the rest: most waits are taken to be like the last.
            let timed = self.misses > 0 || self.waits.is_multiple_of(TIMED);
            let start = timed.then(Instant::now);
            let came = yields(came);
            let was_short = start.is_none_or(|start| start.elapsed() < LONG_YIELD);
            (came, came && was_short)
        } else {
            let came = spin(peer, came);
            (came, came)
        };
        self.misses = if was_worth_it { 0 } else { self.misses + 1 };
        came
    }
}

fn yields(came: impl Fn() -> bool) -> bool {
    (0..YIELDS).any(|_| {
        rustix::thread::sched_yield();
        came()
    })
}

fn spin(peer: impl Fn() -> Option<u32>, came: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..LOOKS {
            if came() {
                return true;
            }
            std::hint::spin_loop();
        }
        let apart = peer().is_some_and(|processor_of_peer| processor_of_peer != processor());
        if !apart || start.get_or_insert_with(Instant::now).elapsed() >= SPIN {
            return false;
        }
    }
}
