//! The place where a thread counts what it uses.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use farpage_pinning::PLACES;

/// The place of threads that have none of their own: with the cache's lock only.
pub(super) const SHARED: usize = 0;

/// A bit for each place that is given, or is nobody's. No lock: a thread that is not in a child of fork
/// may have held it.
static GIVEN: [AtomicU64; PLACES / WORD] = {
    let mut given = [const { AtomicU64::new(0) }; PLACES / WORD];
    given[SHARED / WORD] = AtomicU64::new(1 << (SHARED % WORD));
    given
};
const WORD: usize = u64::BITS as usize;

/// Gives the place back when the thread ends: what it has counted stays.
struct Own(usize);

thread_local! {
    static PLACE: Cell<usize> = const { Cell::new(SHARED) };
    static OWN: Option<Own> = own();
}

fn own() -> Option<Own> {
    (0..PLACES).find_map(|place| {
        let bit = 1 << (place % WORD);
        let before = GIVEN[place / WORD].fetch_or(bit, Ordering::Acquire);
        // Not made where it is another's: that would give it back.
        (before & bit == 0).then(|| Own(place))
    })
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = PLACE.try_with(|place| place.set(SHARED));
        let bit = 1 << (self.0 % WORD);
        GIVEN[self.0 / WORD].fetch_and(!bit, Ordering::Release);
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn threads_have_places_of_their_own() {
        let all_have_one = Barrier::new(5);
        let one = || {
            let first = given();
            all_have_one.wait();
            assert_eq!((place(), given()), (first, first));
            first
        };
        for _ in 0..3 {
            let places = thread::scope(|scope| {
                let others: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
                let mut places = BTreeSet::from([one()]);
                places.extend(others.into_iter().map(|other| other.join().unwrap()));
                places
            });
            assert!(!places.contains(&SHARED), "{places:?}");
            assert_eq!(places.len(), 5, "{places:?}");
        }
    }
}
