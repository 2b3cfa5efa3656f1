//! The place where a thread counts what it uses.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farpage_locked::PLACES;

/// The place of threads that have none of their own: with the cache's lock only.
pub(super) const SHARED: usize = 0;

static FREE: Mutex<Free> = Mutex::new(Free {
    given: Vec::new(),
    next: SHARED + 1,
});

struct Free {
    given: Vec<usize>,
    next: usize,
}

/// Gives the place back when the thread ends: what it has counted stays.
struct Own(usize);

thread_local! {
    static PLACE: Cell<usize> = const { Cell::new(SHARED) };
    static OWN: Option<Own> = own();
}

fn free() -> MutexGuard<'static, Free> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn own() -> Option<Own> {
    let mut free = free();
    let place = match free.given.pop() {
        Some(place) => place,
        None if free.next < PLACES => {
            free.next += 1;
            free.next - 1
        }
        None => return None,
    };
    Some(Own(place))
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = PLACE.try_with(|place| place.set(SHARED));
        free().given.push(self.0);
    }
}

/// This thread's, or [`SHARED`].
#[inline]
pub(super) fn place() -> usize {
    PLACE.with(Cell::get)
}

/// As [`place`], after giving it one.
pub(super) fn given() -> usize {
    // It may be ending.
    let own = OWN.try_with(|own| own.as_ref().map(|own| own.0));
    let place = own.ok().flatten().unwrap_or(SHARED);
    PLACE.with(|of_thread| of_thread.set(place));
    place
}
