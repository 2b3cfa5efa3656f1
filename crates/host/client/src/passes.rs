//! Locks and barriers carry what was written to memory with release consistency.
//!
//! Whoever gives back a lock or a place of a semaphore, waits for a condition or comes to a barrier
//! releases before that all such memory that this process has open, wherever the lock lies; whoever has
//! taken a lock or a place, or has passed a barrier, acquires it. So a program whose threads change what
//! they share under locks needs no other call, and one without such memory pays nothing.

use farpage_sys::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::client::{Error, Shared, WeakShared};

/// What this process has open of it.
static OPEN: Mutex<Vec<WeakShared>> = Mutex::new(Vec::new());
/// How many at most; what is closed may be among them.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Memory with release consistency is mapped here.
pub(crate) fn is_open(shared: &Shared) {
    let mut open = lock(&OPEN);
    open.retain(|one| one.upgrade().is_some());
    open.push(shared.downgrade());
    COUNT.store(open.len(), Ordering::Release);
}

/// What was written to all of it is seen by who acquires it from now on.
pub(crate) fn released() -> Result<(), Error> {
    each(Shared::release)
}

/// What others have released of all of it is seen from now on.
pub(crate) fn acquired() -> Result<(), Error> {
    each(Shared::acquire)
}

/// The error is the first; all are tried.
fn each(does: fn(&Shared) -> Result<(), Error>) -> Result<(), Error> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    let open: Vec<Shared> = lock(&OPEN).iter().filter_map(WeakShared::upgrade).collect();
    // A child of fork has nothing of its parent's that it did not map anew.
    let own = open.iter().filter(|one| one.is_own());
    own.map(does).fold(Ok(()), Result::and)
}
