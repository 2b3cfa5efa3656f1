//! What may be in memory.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use farpage_object::maps::Maps;
use farpage_object::{Control, GRANT_PAGES, ObjectId, PAGE_BYTES, PageRange};
use farpage_sys::lock;

use crate::budget::Budget;
use crate::objects::Objects;

/// Pages that one request brings at most where the objects have a budget of their own.
const WINDOW: u64 = 64;
/// Pages of a file that are worth bringing in where one is wanted.
const NEIGHBOURS: u64 = 16;
/// Longest time between two looks at what the programs use.
const LOOK_NS: u64 = 50_000_000;
/// After this long without room pages come all the same: progress comes first.
const STARVED: Duration = Duration::from_secs(2);
/// The same when that was so less than [`STARVED`] ago: what must be in memory at one time does not
/// fit, and waiting longer for each page of it would not change that.
const STARVED_AGAIN: Duration = Duration::from_millis(20);

/// Where the memory of objects comes from.
pub(crate) enum Room {
    /// This many pages are theirs.
    Own(AtomicU64),
    /// They share the budget of a tree with its programs.
    Tree(Tree),
}

/// The budget of a tree.
pub(crate) struct Tree {
    control: &'static Control,
    pub(crate) budget: Budget,
    /// When pages last came though there was no room.
    starved: Mutex<Option<Instant>>,
    /// Pages that ever came so.
    pub(crate) beyond: AtomicU64,
    /// One takes pages out at a time.
    taking_out: Mutex<()>,
}

/// While it lives the tasks of a tree know that pages are being taken out.
pub(crate) struct TakingOut<'a> {
    maps: &'static Maps,
    _alone: MutexGuard<'a, ()>,
}

impl Drop for TakingOut<'_> {
    fn drop(&mut self) {
        self.maps.taking_out.fetch_add(1, Ordering::SeqCst);
    }
}

impl Tree {
    pub(crate) fn new(control: &'static Control, budget: Budget) -> Self {
        Self {
            control,
            budget,
            starved: Mutex::default(),
            beyond: AtomicU64::new(0),
            taking_out: Mutex::default(),
        }
    }

    /// Takes `pages` of the budget, when there is room for them.
    fn charge(&self, pages: u64, host: &Objects) {
        let started = Instant::now();
        let last = *lock(&self.starved);
        let lately = last.is_some_and(|last| last.elapsed() < STARVED);
        let patience = match lately {
            // The programs are known to have all: this much is theirs no more.
            true if host.resident() <= self.budget.floor() => Duration::ZERO,
            true => STARVED_AGAIN,
            false => STARVED,
        };
        loop {
            let starved = started.elapsed() > patience;
            if self.budget.charge(pages, starved) {
                if starved {
                    self.beyond.fetch_add(pages, Ordering::Relaxed);
                    *lock(&self.starved) = Some(Instant::now());
                }
                return;
            }
            let excess = self.budget.excess(pages) / PAGE_BYTES as u64 + 1;
            let gone = match host.resident() > self.budget.floor() + pages {
                true => host.evict(excess),
                false => 0,
            };
            self.budget.gave(gone);
            if gone == 0 {
                self.budget.press();
                host.evict(pages);
            }
        }
    }

    /// Gives memory back that the programs need, once; waits for them to need it, but not long.
    pub(crate) fn give_way(&self, seen: &mut u32, host: &Objects) {
        let asked = self.budget.asked(seen, LOOK_NS);
        host.evict(asked.min(host.resident()));
        let spare = host.resident().saturating_sub(self.budget.floor());
        let excess = self.budget.excess(0) / PAGE_BYTES as u64;
        self.budget.gave(host.evict(excess.min(spare)));
    }
}

impl Room {
    /// All that there is, as it is now.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Own(most) => most.load(Ordering::Relaxed) * PAGE_BYTES as u64,
            Self::Tree(tree) => tree.budget.bytes(),
        }
    }

    /// The same in pages.
    pub(crate) fn pages(&self) -> u64 {
        self.bytes() / PAGE_BYTES as u64
    }

    /// True when there is room for so many pages more.
    pub(crate) fn has(&self, pages: u64, host: &Objects) -> bool {
        match self {
            Self::Own(most) => host.resident() + pages <= most.load(Ordering::Relaxed),
            Self::Tree(tree) => tree.budget.excess(pages) == 0,
        }
    }

    /// Pages that one request may bring.
    pub(crate) fn window(&self, host: &Objects) -> u64 {
        let Self::Tree(tree) = self else {
            return WINDOW;
        };
        let window = tree.budget.window();
        let is_full = tree.budget.excess(window) > 0;
        match is_full && host.resident() <= tree.budget.floor() {
            // The programs have all: what is needed comes, and little else.
            true => NEIGHBOURS,
            false => window,
        }
    }

    /// Pages that are worth bringing in where one is wanted, whoever their pager is.
    pub(crate) fn neighbours(&self) -> u64 {
        match self {
            Self::Own(_) => 1,
            Self::Tree(_) => NEIGHBOURS,
        }
    }

    /// Takes room for `pages`. Waits for it where programs could need it as well.
    pub(crate) fn charge(&self, pages: u64, host: &Objects) {
        match self {
            Self::Own(_) => {
                if self.excess(host) > 0 {
                    host.press();
                }
            }
            Self::Tree(tree) => tree.charge(pages, host),
        }
    }

    /// Gives it back.
    pub(crate) fn uncharge(&self, pages: u64) {
        match self {
            Self::Own(_) => {}
            Self::Tree(tree) => tree.budget.uncharge(pages),
        }
    }

    /// True when so much is free that a block of pages may be given away whole.
    pub(crate) fn is_plenty(&self, host: &Objects) -> bool {
        match self {
            Self::Own(most) => {
                host.resident() + GRANT_PAGES <= most.load(Ordering::Relaxed) / 4 * 3
            }
            Self::Tree(_) => false,
        }
    }

    /// Pages in memory above an own budget.
    pub(crate) fn excess(&self, host: &Objects) -> u64 {
        match self {
            Self::Own(most) => host.resident().saturating_sub(most.load(Ordering::Relaxed)),
            Self::Tree(_) => 0,
        }
    }

    /// So far above it that who brings more pages in is to wait.
    pub(crate) fn is_overfull(&self, host: &Objects) -> bool {
        match self {
            Self::Own(most) => self.excess(host) > most.load(Ordering::Relaxed) / 8,
            Self::Tree(_) => false,
        }
    }

    /// Pages are about to be taken out. Ask [`Room::is_held`] after this.
    pub(crate) fn take_out(&self) -> Option<TakingOut<'_>> {
        let Self::Tree(tree) = self else {
            return None;
        };
        let _alone = lock(&tree.taking_out);
        let maps = &tree.control.maps;
        maps.taking_out.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Some(TakingOut { maps, _alone })
    }

    /// True when a program needs pages of an object to stay.
    pub(crate) fn is_held(&self, object: ObjectId, pages: PageRange) -> bool {
        let Self::Tree(tree) = self else {
            return false;
        };
        let (start, end) = (pages.start.0, pages.end.0);
        tree.control.maps.is_held(object.0 as usize, start, end)
    }
}
