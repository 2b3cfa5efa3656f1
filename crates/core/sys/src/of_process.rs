//! What a process has one of, and a forked child another.

use alloc::boxed::Box;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::process;

/// Made when it is first asked for, in each process anew: threads, locks and connections of the parent
/// are of no use to a child. No lock: another thread may have held it at the fork.
#[derive(Debug)]
pub struct OfProcess<T: 'static>(AtomicPtr<Made<T>>);

#[derive(Debug)]
struct Made<T> {
    process: u32,
    value: T,
}

impl<T: Send + Sync> OfProcess<T> {
    /// Nothing is made yet.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// That of this process. Threads that ask for it at once may each `make` one, of which one is kept.
    pub fn get(&self, make: impl Fn() -> T) -> &'static T {
        let process = process::id();
        loop {
            let now = self.0.load(Ordering::Acquire);
            // SAFETY: what was stored is whole, and never dropped: in a child, a thread that is not here may
            // have been at work in it.
            if let Some(made) = unsafe { now.as_ref() }
                && made.process == process
            {
                return &made.value;
            }
            let value = make();
            let new = Box::into_raw(Box::new(Made { process, value }));
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            if (self.0.compare_exchange(now, new, order.0, order.1)).is_err() {
                // SAFETY: it was not stored, so nobody else knows it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }
}

impl<T: Send + Sync> Default for OfProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_made_once_and_anew_where_the_process_is_another() {
        static NUMBER: OfProcess<u32> = OfProcess::new();
        let first = NUMBER.get(|| 1);
        assert_eq!((*first, *NUMBER.get(|| 2)), (1, 1));
        // As a child finds it.
        let of_parent = Box::leak(Box::new(Made {
            process: process::parent_id(),
            value: 3,
        }));
        NUMBER.0.store(of_parent, Ordering::Release);
        assert_eq!((*NUMBER.get(|| 4), *first), (4, 1));
    }
}
