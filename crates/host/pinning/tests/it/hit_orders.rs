//! Hits under every order of loads and stores that the memory model allows.
//!
//! The file of the hits itself is compiled again here, with the atomics of the model checker. Every thread
//! passing a barrier (`membarrier`) is as if each thread had a full fence where it has a light one.

#![allow(missing_docs, dead_code)]

mod atomic {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

    pub fn light_barrier() {
        fence(Ordering::SeqCst);
    }
}
#[path = "../../src/hits.rs"]
mod hits;

use atomic::{AtomicU32, AtomicU64, Ordering, light_barrier as barrier};
use hits::{OPEN, Region, Use, is_unused};
use loom::sync::Arc;

struct Shared {
    gate: AtomicU32,
    region: Region,
    places: [Use; 2],
    /// What the registration is of: 0 after it has been given up.
    registered: AtomicU64,
}

fn shared() -> Arc<Shared> {
    let shared = Shared {
        gate: AtomicU32::new(OPEN),
        region: Region::default(),
        places: Default::default(),
        registered: AtomicU64::new(1),
    };
    shared.region.comes(0, 10);
    assert!(shared.region.lives(1));
    Arc::new(shared)
}

impl Shared {
    /// Uses the region if it is hit: then it is registered until it is given back.
    fn hits(&self, place: usize) -> bool {
        let hit = self.places[place].take(&self.region, &self.gate, 1, 2, 3);
        if hit {
            let (start, end, token) = self.region.about();
            assert_eq!((start, end), (0, 10));
            assert_eq!(self.registered.load(Ordering::Relaxed), token);
        }
        hit
    }

    /// Lets go of the region if nobody uses it.
    fn lets_go(&self) -> bool {
        barrier();
        let unused = is_unused(self.places.iter());
        if unused {
            self.registered.store(0, Ordering::Relaxed);
        }
        unused
    }
}

#[test]
fn a_region_that_is_used_is_not_let_go_of() {
    loom::model(|| {
        let shared = shared();
        let other = Arc::clone(&shared);
        // Who misses looks for regions to let go of anyhow.
        let user =
            loom::thread::spawn(move || !other.hits(0) || other.places[0].give_back(&other.region));
        assert!(shared.region.kill());
        let gone = shared.lets_go();
        let looks = user.join().unwrap();
        // Who kills it, or gives it back last, knows that it can be let go of.
        assert!(gone || looks);
        assert!(is_unused(shared.places.iter()));
    });
}

#[test]
fn what_one_thread_takes_another_may_give_back() {
    loom::model(|| {
        let shared = shared();
        assert!(shared.hits(0));
        let other = Arc::clone(&shared);
        let gives = loom::thread::spawn(move || {
            assert_eq!(other.registered.load(Ordering::Relaxed), 1);
            other.places[1].give_back(&other.region)
        });
        assert!(shared.region.kill());
        let gone = shared.lets_go();
        assert!(gives.join().unwrap() || gone);
        assert!(is_unused(shared.places.iter()));
    });
}

#[test]
fn a_region_that_is_used_for_other_memory_is_not_hit_for_the_first() {
    loom::model(|| {
        let shared = shared();
        let other = Arc::clone(&shared);
        let user = loom::thread::spawn(move || {
            if other.places[0].take(&other.region, &other.gate, 1, 2, 3) {
                let (start, end, token) = other.region.about();
                assert_eq!((start, end, token), (0, 10, 1));
                assert_eq!(other.registered.load(Ordering::Relaxed), 1);
                other.places[0].give_back(&other.region);
            }
        });
        shared.region.kill();
        if shared.lets_go() {
            shared.region.is_let_go();
            shared.registered.store(2, Ordering::Relaxed);
            shared.region.comes(20, 30);
            assert!(shared.region.lives(2));
        }
        user.join().unwrap();
    });
}

#[test]
fn nothing_is_hit_after_its_memory_has_gone() {
    loom::model(|| {
        let shared = shared();
        let gone = Arc::new(AtomicU32::new(0));
        let (other, tells) = (Arc::clone(&shared), Arc::clone(&gone));
        // Who reads what the kernel says: behind the closed gate the memory goes, and the region is killed.
        let watch = loom::thread::spawn(move || {
            other.gate.store(0, Ordering::SeqCst);
            tells.store(1, Ordering::Release);
            other.region.kill();
            other.gate.store(OPEN, Ordering::Release);
        });
        if gone.load(Ordering::Acquire) == 1 {
            assert!(!shared.hits(0));
        }
        watch.join().unwrap();
    });
}
