//! A few things of one kind, any of which will do.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use farpage_sys::futex::{Guard, Mutex};

/// Made once, lent out one user at a time.
pub(crate) struct Pool<T> {
    items: Vec<Mutex<T>>,
    turn: AtomicUsize,
}

impl<T> Pool<T> {
    /// `count` things, made from their numbers; `None` when one cannot be made.
    pub(crate) fn new(count: usize, make: impl Fn(usize) -> Option<T>) -> Option<Self> {
        let mut items = Vec::new();
        items.try_reserve_exact(count).ok()?;
        for number in 0..count {
            items.push(Mutex::new(make(number)?));
        }
        Some(Self {
            items,
            turn: AtomicUsize::new(0),
        })
    }

    /// Visits each, waiting for those that are lent out.
    pub(crate) fn each(&self, mut visit: impl FnMut(&mut T)) {
        for item in &self.items {
            visit(&mut item.lock());
        }
    }

    /// One that is free, else waits for one. The first are preferred: their memory is warm.
    pub(crate) fn lend(&self) -> Guard<'_, T> {
        for item in &self.items {
            if let Some(guard) = item.try_lock() {
                return guard;
            }
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.items[turn % self.items.len()].lock()
    }
}
