//! What is under way, counted, for those who wait until it is less.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A number of things that have begun and not ended.
#[derive(Debug, Default)]
pub struct UnderWay {
    count: Mutex<u64>,
    fewer: Condvar,
}

impl UnderWay {
    /// `count` more have begun.
    pub fn begin(&self, count: u64) {
        *self.lock() += count;
    }

    /// `count` of them have ended.
    ///
    /// # Panics
    /// When there were not so many.
    pub fn end(&self, count: u64) {
        let mut now = self.lock();
        *now = now.checked_sub(count).expect("they have begun");
        drop(now);
        self.fewer.notify_all();
    }

    /// Returns when there are no more than `most`.
    pub fn wait_for_at_most(&self, most: u64) {
        let many = |count: &mut u64| *count > most;
        let waited = self.fewer.wait_while(self.lock(), many);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_goes_on_when_few_enough_are_left_and_not_before() {
        let under_way = UnderWay::default();
        under_way.wait_for_at_most(0);
        under_way.begin(5);
        under_way.wait_for_at_most(5);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| under_way.wait_for_at_most(1));
            under_way.end(3);
            assert!(!waiter.is_finished(), "two are left");
            under_way.end(1);
        });
        under_way.end(1);
        assert!(std::panic::catch_unwind(|| under_way.end(1)).is_err());
    }
}
