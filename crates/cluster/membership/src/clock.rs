//! The clock that fencing goes by.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A moment of this host's clock since it was started (`CLOCK_BOOTTIME`), which nobody can set and
/// which goes on while the machine is suspended. Of no meaning on another host.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Moment {
    ns: u64,
}

impl Moment {
    /// Before everything.
    pub(crate) const NEVER: Self = Self { ns: 0 };

    /// Now.
    #[must_use]
    pub fn now() -> Self {
        let at = clock_gettime(ClockId::Boottime);
        Self {
            ns: at.tv_sec.unsigned_abs() * 1_000_000_000 + at.tv_nsec.unsigned_abs(),
        }
    }

    /// From nanoseconds since the start, as a message carries them.
    #[must_use]
    pub const fn from_ns(ns: u64) -> Self {
        Self { ns }
    }

    /// Nanoseconds since the start.
    #[must_use]
    pub const fn as_ns(self) -> u64 {
        self.ns
    }

    /// How long after `earlier`; nothing when it is not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.ns.saturating_sub(earlier.ns))
    }

    /// So much later.
    #[must_use]
    pub fn plus(self, length: Duration) -> Self {
        let ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        Self {
            ns: self.ns.saturating_add(ns),
        }
    }
}

/// Until when this host may act, for any thread to ask.
#[derive(Debug)]
pub(crate) struct Fence {
    /// Nanoseconds; 0 once it is fenced, and that for good.
    until_ns: AtomicU64,
}

impl Fence {
    pub(crate) fn new(until: Moment) -> Self {
        Self {
            until_ns: AtomicU64::new(until.ns),
        }
    }

    pub(crate) fn until(&self) -> Moment {
        Moment::from_ns(self.until_ns.load(Ordering::Acquire))
    }

    pub(crate) fn is_up(&self) -> bool {
        Moment::now() >= self.until()
    }

    /// Moves the moment, unless it has passed.
    pub(crate) fn set(&self, until: Moment) {
        let move_it = |old: u64| (Moment::now().ns < old).then_some(until.ns);
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let _ = self.until_ns.fetch_update(order.0, order.1, move_it);
    }

    pub(crate) fn close(&self) {
        self.until_ns.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_goes_up_by_itself_and_stays_up_once_closed() {
        let fence = Fence::new(Moment::now().plus(Duration::from_secs(3600)));
        assert!(!fence.is_up());
        fence.set(Moment::now().plus(Duration::from_secs(7200)));
        assert!(!fence.is_up());
        fence.set(Moment::now());
        assert!(fence.is_up());
        fence.set(Moment::now().plus(Duration::from_secs(3600)));
        assert!(fence.is_up());
        let fence = Fence::new(Moment::now().plus(Duration::from_secs(3600)));
        fence.close();
        fence.set(Moment::now().plus(Duration::from_secs(3600)));
        assert!(fence.is_up());
    }

    #[test]
    fn moments_do_not_overflow() {
        let last = Moment::from_ns(u64::MAX);
        assert_eq!(last.plus(Duration::MAX), last);
        assert_eq!(Moment::NEVER.since(last), Duration::ZERO);
    }
}
