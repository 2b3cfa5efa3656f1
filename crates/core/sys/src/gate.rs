//! A gate that many pass together and that one can close until all have left.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::futex::Event;

const CLOSED: u32 = 1 << 31;

/// Operations pass it; whoever must see none of them under way (fork) closes it.
#[derive(Default)]
pub struct Gate {
    inside: AtomicU32,
    moved: Event,
}

impl Gate {
    /// An open gate with nobody inside.
    pub const fn new() -> Self {
        Self {
            inside: AtomicU32::new(0),
            moved: Event::new(),
        }
    }

    /// Waits while the gate is closed, then goes in. A thread that is inside must not enter again.
    pub fn enter(&self) -> Inside<'_> {
        loop {
            let moved = self.moved.seen();
            let seen = self.inside.load(Ordering::Relaxed);
            if seen & CLOSED != 0 {
                self.moved.wait(moved, None);
                continue;
            }
            let entered = self.inside.compare_exchange_weak(
                seen,
                seen + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if entered.is_ok() {
                return Inside { gate: self };
            }
        }
    }

    /// Closes the gate, after whoever closed it before has opened it, and waits until nobody is
    /// inside.
    pub fn close(&self) {
        loop {
            let moved = self.moved.seen();
            if self.inside.fetch_or(CLOSED, Ordering::Acquire) & CLOSED == 0 {
                break;
            }
            self.moved.wait(moved, None);
        }
        loop {
            let moved = self.moved.seen();
            if self.inside.load(Ordering::Acquire) == CLOSED {
                return;
            }
            self.moved.wait(moved, None);
        }
    }

    /// Opens the closed gate.
    pub fn open(&self) {
        self.inside.fetch_and(!CLOSED, Ordering::Release);
        self.moved.notify();
    }
}

/// Being inside a [`Gate`].
pub struct Inside<'a> {
    gate: &'a Gate,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if self.gate.inside.fetch_sub(1, Ordering::Release) == CLOSED + 1 {
            self.gate.moved.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn nobody_is_inside_a_closed_gate() {
        let gate = Gate::new();
        let inside = AtomicU64::new(0);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for _ in 0..5_000 {
                        let _in = gate.enter();
                        inside.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..2 {
                s.spawn(|| {
                    for _ in 0..500 {
                        gate.close();
                        assert_eq!(inside.load(Ordering::SeqCst), 0);
                        gate.open();
                    }
                });
            }
        });
    }
}
