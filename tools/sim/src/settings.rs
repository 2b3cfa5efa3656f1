//! How hostile and how small one run's world is; follows from the seed.

use crate::linux::WINDOW;
use crate::rng::Rng;
use crate::store::Troubles;

/// Chances are per thousand.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) budget: u64,
    pub(crate) store_pages: usize,
    pub(crate) steps: u64,
    pub(crate) threads: u64,
    pub(crate) handlers: u64,
    /// Threads of each kind that page out.
    pub(crate) pageouts: u64,
    /// Mappings at the start.
    pub(crate) maps: u64,
    pub(crate) troubles: Troubles,
    /// A userfaultfd call is cut short after a page.
    pub(crate) partial: u64,
    /// An event comes up, and blocks userfaultfd calls until it is read.
    pub(crate) events: u64,
    /// A signal wakes a thread out of a fault; a message is delivered twice.
    pub(crate) spurious: u64,
    /// A thread maps, unmaps, discards, moves, wires.
    pub(crate) calls: u64,
    /// One of those calls is a fork.
    pub(crate) forks: u64,
    /// One of those calls is an exit.
    pub(crate) exits: u64,
    /// From this page on memory belongs to an object with its own pager.
    pub(crate) own_from: u64,
    /// That pager locks, unlocks, cleans, flushes.
    pub(crate) locks: u64,
    /// It supplies a page locked.
    pub(crate) locked: u64,
    /// It does not let a thread write.
    pub(crate) refuses: u64,
    /// The pager gives a page away when it supplies it.
    pub(crate) precious: u64,
    /// What the pager supplied is put into the program without the lock.
    pub(crate) unlocked: bool,
    /// Page-out works although there is room.
    pub(crate) eager: u64,
    /// Accesses that write.
    pub(crate) writes: u64,
    /// Mappings that were there before they were managed.
    pub(crate) adopted: u64,
}

impl Settings {
    pub(crate) fn by_seed(rng: &mut Rng) -> Self {
        let quiet = rng.chance(150);
        let mut maybe = |most: u64| {
            if quiet || rng.chance(300) {
                0
            } else {
                rng.below(most + 1)
            }
        };
        let (write_fails, damages, slow) = (maybe(200), maybe(50), maybe(300));
        let (partial, events, spurious) = (maybe(100), maybe(20), maybe(30));
        let (calls, forks, precious) = (maybe(40), maybe(150), maybe(500));
        let (exits, locks, locked, refuses) = (maybe(10), maybe(50), maybe(300), maybe(600));
        Self {
            budget: rng.pick(&[24, 40, 100, 300, 700, 1300, 1300]),
            store_pages: rng.pick(&[64, 600, 20_000, 20_000]),
            steps: 2000 + rng.below(16_000),
            threads: 1 + rng.below(4),
            handlers: 1 + rng.below(3),
            pageouts: 1 + rng.below(2),
            maps: 1 + rng.below(3),
            troubles: Troubles {
                write_fails,
                damages,
                slow,
            },
            partial,
            events,
            spurious,
            calls,
            forks,
            exits,
            own_from: rng.pick(&[0, 1024, 1536, 1536, WINDOW, WINDOW, WINDOW]),
            locks,
            locked,
            refuses,
            precious,
            unlocked: rng.chance(500),
            eager: rng.pick(&[0, 10, 100]),
            writes: rng.pick(&[200, 500, 900]),
            adopted: rng.pick(&[0, 300]),
        }
    }
}
