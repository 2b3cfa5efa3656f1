//! Paging space that takes no more: since when, and how long those who need it wait.

use core::sync::atomic::{AtomicU64, Ordering};

/// Times are kept in units of 10 ms: 32 bits last for more than a year.
const TICK_NS: u64 = 10_000_000;
/// Whoever waits looks more often than this: after it there was room meanwhile.
const STALE_TICKS: i32 = 100;

/// What those who find no room tell each other, in memory that they share. Whoever waits may die at any
/// instruction: nobody is counted.
#[repr(C)]
pub struct Full {
    /// How long somebody waits before a process has to end. 0: it ends at once; `u64::MAX`: for ever.
    pub patience_ns: AtomicU64,
    /// Since when nobody has found room, and when that was last found: 32 bits each.
    times: AtomicU64,
}

impl Full {
    /// Somebody who needs room finds none. True when that has been so for as long as it may be: then
    /// its process is to end, and all others begin to wait anew.
    pub fn finds_none(&self, now_ns: u64) -> bool {
        let (now, patience_ns) = (ticks(now_ns), self.patience_ns.load(Ordering::Relaxed));
        let mut is_over = false;
        let next = |times| {
            let since = since(times, now).unwrap_or(now);
            is_over = waited_ns(since, now) >= patience_ns;
            Some(pack(if is_over { now } else { since }, now))
        };
        // It is always something.
        let _ = self
            .times
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        is_over
    }

    /// True when somebody has ever found none: without a look at the clock.
    pub fn has_been(&self) -> bool {
        self.times.load(Ordering::Relaxed) != 0
    }

    /// For how many nanoseconds there has been no room for somebody. `None`: there is some, or nobody
    /// needs it.
    pub fn lasts_ns(&self, now_ns: u64) -> Option<u64> {
        let now = ticks(now_ns);
        let since = since(self.times.load(Ordering::Acquire), now)?;
        Some(waited_ns(since, now))
    }
}

fn ticks(now_ns: u64) -> u32 {
    (now_ns / TICK_NS) as u32
}

fn pack(since: u32, seen: u32) -> u64 {
    u64::from(since) << 32 | u64::from(seen)
}

/// Since when it lasts, if it still does.
fn since(times: u64, now: u32) -> Option<u32> {
    // Somebody else may have looked at the clock a moment later.
    let age = now.wrapping_sub(times as u32) as i32;
    (times != 0 && age <= STALE_TICKS).then_some((times >> 32) as u32)
}

fn waited_ns(since: u32, now: u32) -> u64 {
    let waited = now.wrapping_sub(since) as i32;
    waited.max(0) as u64 * TICK_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn full(patience_ns: u64) -> Full {
        Full {
            patience_ns: AtomicU64::new(patience_ns),
            times: AtomicU64::new(0),
        }
    }

    /// Somebody looks every 100 ms from one time to another. When it had to end.
    fn looks(full: &Full, from: u64, to: u64) -> Option<u64> {
        let mut times = (from..to).step_by(SECOND as usize / 10);
        times.find(|now| full.finds_none(*now))
    }

    #[test]
    fn without_patience_everybody_who_finds_no_room_ends() {
        let full = full(0);
        for _ in 0..3 {
            assert!(full.finds_none(7 * SECOND));
        }
    }

    #[test]
    fn one_ends_when_the_time_is_over_and_the_others_wait_anew() {
        let full = full(10 * SECOND);
        assert_eq!(full.lasts_ns(5 * SECOND), None);
        assert_eq!(looks(&full, 5 * SECOND, 100 * SECOND), Some(15 * SECOND));
        assert!(!full.finds_none(15 * SECOND), "that was another's end");
        assert_eq!(looks(&full, 15 * SECOND, 100 * SECOND), Some(25 * SECOND));
    }

    #[test]
    fn what_waits_for_ever_never_ends() {
        let full = full(u64::MAX);
        assert_eq!(looks(&full, SECOND, 100_000 * SECOND), None);
        assert_eq!(full.lasts_ns(100_000 * SECOND), Some(99_999 * SECOND));
    }

    #[test]
    fn it_is_over_when_nobody_looks_any_more() {
        let full = full(10 * SECOND);
        assert_eq!(looks(&full, 5 * SECOND, 14 * SECOND), None);
        assert!(full.lasts_ns(14 * SECOND).is_some());
        assert_eq!(full.lasts_ns(16 * SECOND), None, "there was room");
        assert_eq!(looks(&full, 16 * SECOND, 100 * SECOND), Some(26 * SECOND));
    }

    #[test]
    fn clocks_that_were_looked_at_in_another_order_count_as_one_time() {
        let full = full(10 * SECOND);
        assert!(!full.finds_none(50 * SECOND));
        assert!(!full.finds_none(50 * SECOND - 3 * TICK_NS));
        assert_eq!(full.lasts_ns(50 * SECOND - 3 * TICK_NS), Some(0));
        assert_eq!(full.lasts_ns(50 * SECOND + SECOND / 2), Some(SECOND / 2));
    }
}
