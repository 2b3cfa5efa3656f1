//! Every order of events of a very small world: a few pages of one cluster, two threads. They are
//! temporary memory; or the first page belongs to an object with its own pager, which locks it.
//!
//! Lock sections are atomic here, transfers are not. A world is rebuilt from its history to be
//! expanded, so that only histories are kept.

use std::collections::HashSet;

use farpage_object::{Answer, Filled, Mapping, PageIndex, PageRange, Pages, State, Victim};

const FIRST: u64 = 512;
const THREADS: usize = 2;

/// Something that may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Access {
        thread: usize,
        page: u64,
        write: bool,
    },
    Handle {
        thread: usize,
    },
    Evict {
        most: u64,
        /// Clean pages are moved aside, too.
        spares: bool,
    },
    Begin,
    Out {
        page: u64,
    },
    OutZero {
        page: u64,
    },
    OutFailed {
        page: u64,
    },
    Put {
        page: u64,
        clean: bool,
    },
    Told {
        page: u64,
    },
    NotSupplied {
        page: u64,
    },
    Discard {
        page: u64,
    },
    Wire {
        wired: bool,
    },
    /// The pager locks or unlocks the first page.
    Lock {
        locked: bool,
    },
    /// The pager answers whether the first page may be written.
    Answer {
        allowed: bool,
    },
}

/// A copy of a page: true when it is what the program last wrote.
type Copy = Option<bool>;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Place {
    program: Copy,
    protected: bool,
    aside: Copy,
    pager: Copy,
    /// Holds zeros.
    zero: bool,
    /// Put into the program by a page-in that was not told; true: clean.
    put: Option<bool>,
    /// Its pager has forbidden writing.
    locked: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Thread {
    Runs,
    /// Its message is on its way.
    Faulted {
        page: u64,
        protection: bool,
    },
    /// The handler said that it has to wait.
    Waits {
        page: u64,
    },
    /// The pager did not allow it to write.
    Refused {
        page: u64,
    },
}

struct World {
    /// The first page belongs to an object with its own pager.
    own: bool,
    pages: Pages,
    places: Vec<Place>,
    threads: [Thread; THREADS],
}

fn one(page: u64) -> PageRange {
    PageRange::new(FIRST + page, FIRST + page + 1)
}

fn index(page: u64) -> PageIndex {
    PageIndex(FIRST + page)
}

impl World {
    fn new(count: usize, own: bool) -> Self {
        let mut world = Self {
            own,
            pages: Pages::new(),
            places: vec![Place::default(); count],
            threads: [Thread::Runs; THREADS],
        };
        (0..count as u64).for_each(|page| world.places[page as usize] = world.untouched(page));
        world
    }

    fn is_own(&self, page: u64) -> bool {
        self.own && page == 0
    }

    /// A page that nobody has touched: the pager has it, or it is zeros and nowhere.
    fn untouched(&self, page: u64) -> Place {
        let own = self.is_own(page);
        Place {
            pager: own.then_some(true),
            zero: !own,
            ..Place::default()
        }
    }

    fn replay(count: usize, own: bool, history: &[Action]) -> Self {
        let mut world = Self::new(count, own);
        history.iter().for_each(|&action| world.act(action));
        world
    }

    fn count(&self) -> u64 {
        self.places.len() as u64
    }

    fn state(&self, page: u64) -> State {
        self.pages.state(index(page))
    }

    fn key(&self) -> (Vec<(u8, Place)>, [Thread; THREADS], u64) {
        let bytes = (0..self.count()).map(|p| (self.pages.byte(index(p)), self.places[p as usize]));
        (bytes.collect(), self.threads, self.pages.clusters_queued())
    }

    fn actions(&self) -> Vec<Action> {
        let mut all = vec![Action::Begin];
        for most in [1, 16] {
            all.extend([true, false].map(|spares| Action::Evict { most, spares }));
        }
        all.extend([true, false].map(|wired| Action::Wire { wired }));
        for (thread, at) in self.threads.iter().enumerate() {
            match at {
                Thread::Runs => {
                    for page in 0..self.count() {
                        let both = [true, false];
                        all.extend(both.map(|write| Action::Access {
                            thread,
                            page,
                            write,
                        }));
                    }
                }
                Thread::Faulted { .. } => all.push(Action::Handle { thread }),
                Thread::Waits { .. } | Thread::Refused { .. } => {}
            }
        }
        if self.pages.asked(index(0)) {
            all.extend([true, false].map(|allowed| Action::Answer { allowed }));
        } else if self.own && !self.pages.busy(one(0)) {
            let locked = !self.places[0].locked;
            all.push(Action::Lock { locked });
        }
        for page in 0..self.count() {
            let place = &self.places[page as usize];
            match self.state(page) {
                State::PagingOut | State::PagingOutMapped => {
                    all.extend([Action::Out { page }, Action::OutFailed { page }]);
                    if place.zero {
                        all.push(Action::OutZero { page });
                    }
                }
                State::PagingIn if place.put.is_some() => all.push(Action::Told { page }),
                State::PagingIn => {
                    all.extend([true, false].map(|clean| Action::Put { page, clean }));
                    all.push(Action::NotSupplied { page });
                }
                _ if self.pages.busy(one(page)) => {}
                _ => all.push(Action::Discard { page }),
            }
        }
        all
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Access {
                thread,
                page,
                write,
            } => self.access(thread, page, write),
            Action::Handle { thread } => self.handle(thread),
            Action::Evict { most, spares } => self.evict(most, spares),
            Action::Begin => {
                let outs = self.pages.page_out_begins();
                let spare = outs.map_or(0, |outs| outs.spare);
                for (page, place) in self.places.iter_mut().enumerate() {
                    if spare >> page & 1 == 1 {
                        place.aside = None;
                    }
                }
            }
            Action::Out { page } => {
                let place = &mut self.places[page as usize];
                place.pager = place.aside.take();
                let (_, awaited) = self.pages.paged_out(index(page));
                if awaited {
                    self.wake(page);
                }
            }
            Action::OutZero { page } => {
                if self.pages.paged_out_zero(index(page)) {
                    self.places[page as usize].aside = None;
                }
            }
            Action::OutFailed { page } => {
                if self.pages.page_out_failed(index(page)) {
                    self.places[page as usize].aside = None;
                    let locked = self.pages.is_locked(index(page));
                    self.places[page as usize].protected = locked;
                    self.wake(page);
                }
            }
            Action::Put { page, clean } => {
                let place = &mut self.places[page as usize];
                place.program = place.pager;
                place.protected = clean || place.locked;
                place.put = Some(clean);
                self.wake(page);
            }
            Action::Told { page } => self.told(page),
            Action::NotSupplied { page } => {
                if self.pages.page_in_ends(one(page)) {
                    self.wake(page);
                }
            }
            Action::Discard { page } => {
                self.places[page as usize] = self.untouched(page);
                self.pages.discard(one(page));
                self.lifted(page);
                self.wake(page);
            }
            Action::Lock { locked } => {
                self.pages.lock_writes(one(0), locked);
                self.places[0].locked = locked;
                if self.state(0) == State::Resident {
                    self.places[0].protected = locked;
                }
                self.lifted(0);
                self.wake(0);
            }
            Action::Answer { allowed } => self.answer(allowed),
            Action::Wire { wired } => self.pages.wire(one(0), wired),
        }
    }

    fn told(&mut self, page: u64) {
        let clean = self.places[page as usize].put.take();
        let clean = clean.expect("only what was put is told");
        if !clean {
            self.places[page as usize].pager = None;
        }
        if self.pages.paged_in(one(page), clean) {
            self.wake(page);
        }
    }

    fn answer(&mut self, allowed: bool) {
        if self.pages.unlock_ends(index(0), allowed) {
            self.places[0].protected = false;
        }
        if allowed {
            self.places[0].locked = false;
            self.lifted(0);
            self.wake(0);
            return;
        }
        for thread in &mut self.threads {
            if *thread == (Thread::Waits { page: 0 }) {
                *thread = Thread::Refused { page: 0 };
            }
        }
    }

    /// A lock is lifted, or set anew: writers that were refused ask again.
    fn lifted(&mut self, page: u64) {
        for thread in &mut self.threads {
            if *thread == (Thread::Refused { page }) {
                *thread = Thread::Runs;
            }
        }
    }

    fn wake(&mut self, woken: u64) {
        for thread in &mut self.threads {
            match *thread {
                Thread::Faulted { page, .. } | Thread::Waits { page } if page == woken => {
                    *thread = Thread::Runs;
                }
                Thread::Runs
                | Thread::Faulted { .. }
                | Thread::Waits { .. }
                | Thread::Refused { .. } => {}
            }
        }
    }

    fn access(&mut self, thread: usize, page: u64, write: bool) {
        let place = &mut self.places[page as usize];
        let Some(current) = place.program else {
            self.threads[thread] = Thread::Faulted {
                page,
                protection: false,
            };
            return;
        };
        assert!(current, "page {page} is not what was last written");
        if write && place.protected {
            self.threads[thread] = Thread::Faulted {
                page,
                protection: true,
            };
        } else if write {
            assert!(!place.locked, "page {page} is written though it is locked");
            place.zero = false;
            place.aside = place.aside.map(|_| false);
            place.pager = place.pager.map(|_| false);
        }
    }

    fn handle(&mut self, thread: usize) {
        let Thread::Faulted { page, protection } = self.threads[thread] else {
            unreachable!("only faults are handled");
        };
        let whole = PageRange::new(FIRST, FIRST + self.count());
        let limits = match (self.own, page) {
            (false, _) => whole,
            (true, 0) => one(0),
            (true, _) => PageRange::new(FIRST + 1, whole.end.0),
        };
        let mapping = Mapping {
            pages: limits,
            temporary: !self.is_own(page),
        };
        // Asked again, so that the history of streams does not matter.
        match self.pages.fault(index(page), protection, mapping, true) {
            Answer::Wake => {
                let place = &self.places[page as usize];
                let works = place.program.is_some() && !(protection && place.protected);
                assert!(works, "woken for nothing");
                self.wake(page);
            }
            Answer::Wait => self.threads[thread] = Thread::Waits { page },
            Answer::Zero(pages) => {
                self.each(pages, |place| place.program = Some(true));
                self.pages.filled(pages, Filled::Zero);
            }
            Answer::Restore(pages) => {
                self.each(pages, |place| place.program = place.aside.take());
                self.pages.restored(pages);
            }
            Answer::RestoreProtected(pages) => {
                self.each(pages, |place| {
                    place.program = place.aside.take();
                    place.protected = true;
                });
                self.pages.restored(pages);
            }
            Answer::Unlock(at) => {
                self.pages.unlock_begins(at);
                self.threads[thread] = Thread::Waits { page };
            }
            Answer::CopyBack(at) => {
                let place = &mut self.places[page as usize];
                place.program = place.aside;
                place.protected = true;
                self.pages.copied_back(at);
                self.wake(page);
            }
            Answer::PageIn { pages, .. } => {
                self.pages.page_in_begins(pages, Some(index(page)));
                self.threads[thread] = Thread::Waits { page };
            }
            Answer::Unprotect(pages) => {
                self.each(pages, |place| {
                    place.protected = false;
                    place.pager = None;
                });
                self.pages.dirtied(pages);
            }
            answer @ (Answer::Grant(_) | Answer::Fail) => panic!("{answer:?} in a small mapping"),
        }
    }

    fn each(&mut self, pages: PageRange, change: impl Fn(&mut Place)) {
        for page in pages.iter() {
            change(&mut self.places[(page.0 - FIRST) as usize]);
            self.wake(page.0 - FIRST);
        }
    }

    fn evict(&mut self, most: u64, spares: bool) {
        let Some(Victim::Cluster {
            first,
            clean,
            dirty,
        }) = self.pages.choose()
        else {
            return;
        };
        let mut moved = 0;
        for page in 0..self.count() {
            let place = &mut self.places[page as usize];
            let is_clean = clean >> page & 1 == 1;
            if is_clean && !spares {
                *place = Place {
                    pager: place.pager,
                    zero: place.zero,
                    locked: place.locked,
                    ..Place::default()
                };
                self.pages.dropped(index(page));
            } else if (is_clean || dirty >> page & 1 == 1) && moved < most {
                moved += 1;
                place.aside = place.program.take();
                place.protected = false;
                self.pages.moved_aside(index(page));
            }
        }
        self.pages.requeue(first);
    }

    /// What holds after every action.
    fn check(&self) {
        self.pages.check();
        for (page, place) in self.places.iter().enumerate() {
            let good = Some(true);
            let held = (place.program, place.aside, place.pager);
            let state = self.state(page as u64);
            let fine = match state {
                State::Absent => {
                    let pager = self.is_own(page as u64).then_some(true);
                    held == (None, None, pager) && (place.zero || pager.is_some())
                }
                State::Resident => held == (good, None, None) && place.protected == place.locked,
                State::Clean => held == (good, None, good) && place.protected,
                State::Aside | State::PagingOut => held == (None, good, None),
                State::Spare => held == (None, good, good),
                State::PagingOutMapped => held == (good, good, None) && place.protected,
                State::PagingIn if place.put.is_some() => place.program == good,
                State::PagingIn | State::Out => held == (None, None, good),
                State::Granted | State::Failed => false,
            };
            assert!(fine, "page {page} is {state:?} and lies at {held:?}");
            assert_eq!(self.pages.is_locked(index(page as u64)), place.locked);
        }
        for thread in &self.threads {
            if let Thread::Waits { page } = *thread {
                let comes = matches!(self.state(page), State::PagingIn | State::PagingOutMapped);
                let comes = comes || self.pages.asked(index(page));
                assert!(comes, "a thread waits for ever for page {page}");
            }
            if let Thread::Refused { page } = *thread {
                let locked = self.places[page as usize].locked;
                assert!(
                    locked,
                    "a thread waits to write to page {page}, which is not locked"
                );
            }
        }
    }
}

/// Explores every history of `pages` pages, of which the first may belong to an object with its
/// own pager, and returns how many different worlds there are.
///
/// # Panics
/// When a law is broken; the message before says by which history.
pub fn explore(pages: usize, own: bool, report: &mut dyn FnMut(String)) -> usize {
    let mut seen = HashSet::new();
    let mut frontier: Vec<Vec<Action>> = vec![Vec::new()];
    seen.insert(World::new(pages, own).key());
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for history in frontier {
            for action in World::replay(pages, own, &history).actions() {
                let mut longer = history.clone();
                longer.push(action);
                let tried = std::panic::catch_unwind(|| {
                    let world = World::replay(pages, own, &longer);
                    world.check();
                    world.key()
                });
                let Ok(key) = tried else {
                    report(format!("broken by {longer:?}"));
                    panic!("a law is broken after {} actions", longer.len());
                };
                if seen.insert(key) {
                    next.push(longer);
                }
            }
        }
        report(format!("{} worlds", seen.len()));
        frontier = next;
    }
    seen.len()
}
