//! What may go on while hosts come to terms after a death, and what may not.

use std::cell::Cell;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

thread_local! {
    /// How often this thread is in a gate.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Threads that act on units are in it; who closes it waits until none is. A thread that is in it may
/// enter again, and goes through then even while somebody waits to close it.
#[derive(Default)]
pub(crate) struct Gate(RwLock<()>);

/// This thread is in the gate.
pub(crate) struct Entered<'a>(
    #[expect(dead_code, reason = "held")] Option<RwLockReadGuard<'a, ()>>,
);

/// Nobody is in the gate but this thread.
pub(crate) struct Closed<'a>(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'a, ()>);

impl Gate {
    pub(crate) fn enter(&self) -> Entered<'_> {
        let before = DEPTH.get();
        let guard = (before == 0).then(|| self.0.read().unwrap_or_else(PoisonError::into_inner));
        DEPTH.set(before + 1);
        Entered(guard)
    }

    /// The same, if that needs no waiting.
    pub(crate) fn try_enter(&self) -> Option<Entered<'_>> {
        let before = DEPTH.get();
        let guard = match before {
            0 => Some(self.0.try_read().ok()?),
            _ => None,
        };
        DEPTH.set(before + 1);
        Some(Entered(guard))
    }

    /// # Panics
    /// When this thread is in it.
    pub(crate) fn close(&self) -> Closed<'_> {
        assert_eq!(DEPTH.get(), 0, "who is in it cannot close it");
        let guard = self.0.write().unwrap_or_else(PoisonError::into_inner);
        DEPTH.set(1);
        Closed(guard)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn who_closes_it_waits_and_who_is_in_it_enters_again() {
        let (gate, closed) = (Gate::default(), AtomicBool::new(false));
        let first = gate.enter();
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| {
                let held = gate.close();
                closed.store(true, Ordering::SeqCst);
                drop(gate.enter());
                assert!(gate.try_enter().is_some());
                drop(held);
            });
            for _ in 0..100 {
                drop(gate.enter());
                std::thread::yield_now();
            }
            let other = scope.spawn(|| while gate.try_enter().is_some() {});
            other.join().unwrap();
            assert!(!closed.load(Ordering::SeqCst));
            drop(first);
            closing.join().unwrap();
        });
        assert!(closed.load(Ordering::SeqCst));
        assert_eq!(DEPTH.get(), 0);
    }
}
