//! The shared words. Every access goes through here, one atomic step each.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Memory that several processes change.
pub(crate) struct Words<M>(pub(crate) M);

impl<M: AsRef<[AtomicU64]>> Words<M> {
    fn at(&self, index: usize) -> &AtomicU64 {
        #[cfg(test)]
        crate::heap::sim::step();
        &self.0.as_ref()[index]
    }

    pub(crate) fn load(&self, index: usize) -> u64 {
        self.at(index).load(SeqCst)
    }

    pub(crate) fn store(&self, index: usize, value: u64) {
        self.at(index).store(value, SeqCst);
    }

    /// True when it was `old`, and is `new` now.
    pub(crate) fn replace(&self, index: usize, old: u64, new: u64) -> bool {
        let at = self.at(index);
        at.compare_exchange(old, new, SeqCst, SeqCst).is_ok()
    }

    /// Sets bits; true when none of them was set.
    pub(crate) fn set(&self, index: usize, bits: u64) -> bool {
        self.at(index).fetch_or(bits, SeqCst) & bits == 0
    }

    /// Clears bits; returns what was set.
    pub(crate) fn clear(&self, index: usize, bits: u64) -> u64 {
        self.at(index).fetch_and(!bits, SeqCst)
    }
}
