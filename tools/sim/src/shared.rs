//! What the step machines share: processes, the pager, the budget, chance.

use farpage_object::{PageIndex, PageRange, Pages, State};

use crate::coverage::{Coverage, Event};
use crate::linux::{Space, WINDOW};
use crate::program::Program;
use crate::rng::Rng;
use crate::settings::Settings;
use crate::store::{Slot, Store};

/// Names a step machine; the holder of a lock.
pub(crate) type ActorId = usize;

/// Pages that the tree may have in memory, and has.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) limit: u64,
    pub(crate) charged: u64,
    /// A fault could not be charged: page-out must make room.
    pub(crate) starved: bool,
}

impl Budget {
    /// Charges `pages`, or leaves all as it is.
    pub(crate) fn take(&mut self, pages: u64) -> bool {
        let fits = self.charged + pages <= self.limit;
        if fits {
            self.charged += pages;
        } else {
            self.starved = true;
        }
        fits
    }

    pub(crate) fn give(&mut self, pages: u64) {
        assert!(pages <= self.charged, "more given back than was charged");
        self.charged -= pages;
        self.starved &= pages == 0;
    }

    /// True when page-out should work.
    pub(crate) fn is_tight(&self) -> bool {
        self.starved || self.charged * 8 > self.limit * 7
    }
}

/// One simulated process: its memory, and what the agent in it knows.
pub(crate) struct Proc {
    pub(crate) pages: Pages,
    pub(crate) space: Space,
    pub(crate) lock: Option<ActorId>,
    /// The agent's address map, in order.
    pub(crate) maps: Vec<PageRange>,
    /// What the pager has, by page.
    pub(crate) slots: Vec<Option<Slot>>,
    /// What the program must see.
    pub(crate) program: Program,
    /// Messages that handlers have taken and not answered.
    pub(crate) in_hand: Vec<u64>,
    /// Transfers and questions to a pager that are under way.
    pub(crate) in_flight: u64,
    /// A fork is under way: nothing new may start.
    pub(crate) frozen: bool,
    /// The program has ended.
    pub(crate) exited: bool,
}

impl Proc {
    pub(crate) fn new(partial: u64) -> Self {
        Self {
            pages: Pages::new(),
            space: Space::new(partial),
            lock: None,
            maps: Vec::new(),
            slots: vec![None; WINDOW as usize],
            program: Program::new(),
            in_hand: Vec::new(),
            in_flight: 0,
            frozen: false,
            exited: false,
        }
    }

    /// The mapping that holds `page`.
    pub(crate) fn mapping(&self, page: u64) -> Option<PageRange> {
        self.maps
            .iter()
            .find(|map| map.contains(PageIndex(page)))
            .copied()
    }

    pub(crate) fn state(&self, page: u64) -> State {
        self.pages.state(PageIndex(page))
    }

    /// Pages charged according to their states.
    pub(crate) fn charged(&self) -> u64 {
        let pages = self.pages.existing(PageRange::new(0, WINDOW));
        pages.filter(|&p| self.pages.state(p).is_charged()).count() as u64
    }
}

/// Everything but the machines themselves.
pub(crate) struct Core {
    pub(crate) rng: Rng,
    pub(crate) settings: Settings,
    pub(crate) procs: Vec<Proc>,
    pub(crate) store: Store,
    pub(crate) budget: Budget,
    /// Nothing goes wrong any more, and the program starts nothing new.
    pub(crate) healing: bool,
    /// Machines made in this step.
    pub(crate) spawned: Vec<crate::world::Actor>,
    pub(crate) log: Option<Box<dyn FnMut(String)>>,
    pub(crate) faults: u64,
    pub(crate) coverage: Coverage,
    /// Grows with every step.
    pub(crate) now: u64,
}

impl Core {
    /// True when `page` belongs to an object with its own pager.
    pub(crate) fn is_own(&self, page: u64) -> bool {
        page >= self.settings.own_from
    }

    /// Takes the lock of a process, if it is free.
    pub(crate) fn lock(&mut self, proc: usize, actor: ActorId) -> bool {
        let lock = &mut self.procs[proc].lock;
        let free = lock.is_none();
        if free {
            *lock = Some(actor);
        }
        free
    }

    /// The same for somebody who begins something new: not while a fork is under way.
    pub(crate) fn lock_to_begin(&mut self, proc: usize, actor: ActorId) -> bool {
        !self.procs[proc].frozen && self.lock(proc, actor)
    }

    pub(crate) fn unlock(&mut self, proc: usize, actor: ActorId) {
        let lock = &mut self.procs[proc].lock;
        assert_eq!(*lock, Some(actor), "unlocked by another");
        *lock = None;
    }

    /// Charges what does not wait for room: what a fork or an adopted mapping brings.
    pub(crate) fn charge_anyway(&mut self, pages: u64) {
        self.budget.charged += pages;
        self.budget.starved |= self.budget.charged > self.budget.limit;
    }

    /// The pager's copy of a page is of no use any more.
    pub(crate) fn release_slot(&mut self, proc: usize, page: u64) {
        if let Some(slot) = self.procs[proc].slots[page as usize].take() {
            self.store.release(slot);
        }
    }

    pub(crate) fn note(&mut self, event: Event) {
        self.coverage.note(event);
    }

    /// Something that happens per thousand, while things may go wrong.
    pub(crate) fn trouble(&mut self, per_thousand: u64) -> bool {
        !self.healing && self.rng.chance(per_thousand)
    }
}

/// Writes a line to the log of a run that is replayed.
macro_rules! say {
    ($core:expr, $($arg:tt)*) => {
        if let Some(log) = $core.log.as_mut() {
            log(format!("{:6} {}", $core.now, format_args!($($arg)*)));
        }
    };
}
pub(crate) use say;

/// The longest runs of set bits of a cluster's mask, as ranges of pages.
pub(crate) fn first_run(first: PageIndex, mask: u16) -> PageRange {
    let start = u64::from(mask.trailing_zeros());
    let length = u64::from((mask >> start).trailing_ones());
    PageRange::new(first.0 + start, first.0 + start + length)
}

/// `mask` without the pages of `range`.
pub(crate) fn without(first: PageIndex, mask: u16, range: PageRange) -> u16 {
    let gone = range.iter().map(|p| 1 << (p.0 - first.0));
    mask & !gone.fold(0u16, |a, bit| a | bit)
}
