extern crate std;

use std::collections::{BTreeSet, HashMap};
use std::vec;

use crate::PageIndex;

use super::*;

const PAGES: u64 = 200;
const TASKS: usize = 3;

/// What a task's mapping says of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Says {
    #[default]
    NotThere,
    Read,
    Write,
}

/// A thread of the task wants the page, to write or to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wants {
    task: usize,
    page: u64,
    write: bool,
}

/// The object, the memory file, the tasks and the pager; threads that wait are kept in a list.
struct World {
    seed: u64,
    object: Shared<Wants>,
    temporary: bool,
    says: Vec<[Says; TASKS]>,
    /// The tasks in which Linux maps what it likes of each block.
    open: Vec<[bool; TASKS]>,
    granted: BTreeSet<u64>,
    /// What the memory file has.
    file: HashMap<u64, u32>,
    /// Copies beside it.
    aside: HashMap<u64, u32>,
    pager: HashMap<u64, u32>,
    /// What was written last.
    newest: HashMap<u64, u32>,
    fetching: Vec<PageRange>,
    zeroing: Vec<PageRange>,
    leaving: Vec<PageRange>,
    leaving_aside: Vec<PageRange>,
    waiting: Vec<Wants>,
    /// Pages that the pager does not let anybody write to.
    locked: BTreeSet<u64>,
    /// What the pager is asked to unlock.
    asked: Vec<PageRange>,
    written: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let temporary = seed.is_multiple_of(2);
        Self {
            seed,
            object: Shared::new(PAGES, temporary),
            temporary,
            says: vec![[Says::default(); TASKS]; PAGES as usize],
            open: vec![[false; TASKS]; PAGES.div_ceil(GRANT_PAGES) as usize],
            granted: BTreeSet::new(),
            file: HashMap::new(),
            aside: HashMap::new(),
            pager: HashMap::new(),
            newest: HashMap::new(),
            fetching: Vec::new(),
            zeroing: Vec::new(),
            leaving: Vec::new(),
            leaving_aside: Vec::new(),
            waiting: Vec::new(),
            locked: BTreeSet::new(),
            asked: Vec::new(),
            written: 0,
        }
    }

    fn below(&mut self, below: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005);
        self.seed = self.seed.wrapping_add(1);
        (self.seed >> 33) % below
    }

    fn one_of<T>(&mut self, all: impl Fn(&mut Self) -> &mut Vec<T>) -> Option<T> {
        let count = all(self).len() as u64;
        let which = self.below(count.max(1)) as usize;
        (count > 0).then(|| all(self).swap_remove(which))
    }

    /// A thread accesses a page as Linux lets it.
    fn access(&mut self, wants: Wants) {
        let Wants { task, page, write } = wants;
        if self.open[(page / GRANT_PAGES) as usize][task] {
            self.file.entry(page).or_insert(0);
            self.says[page as usize][task] = Says::Write;
        }
        match (self.says[page as usize][task], write) {
            (Says::Write, true) => {
                assert!(!self.locked.contains(&page), "page {page} is locked");
                self.written += 1;
                self.newest.insert(page, self.written);
                *self.file.get_mut(&page).expect("mapped, so it is there") = self.written;
            }
            (Says::Read | Says::Write, false) => {
                let newest = self.newest.get(&page).copied().unwrap_or(0);
                assert_eq!(self.file.get(&page), Some(&newest), "page {page} is read");
            }
            (Says::NotThere, _) | (Says::Read, true) => self.fault(wants),
        }
    }

    fn fault(&mut self, wants: Wants) {
        let Wants { task, page, write } = wants;
        if self.below(4) == 0 && self.object.grant(page).is_some() {
            assert!(self.granted.insert(page / GRANT_PAGES));
        }
        match self.object.want(page, write, wants, 4, 32) {
            Wanted::Granted(pages) => {
                assert!(pages.contains(PageIndex(page)));
                for block in pages.start.0 / GRANT_PAGES..pages.end.0.div_ceil(GRANT_PAGES) {
                    assert!(self.granted.contains(&block));
                    self.open[block as usize][task] = true;
                }
                self.access(wants);
            }
            Wanted::There { pages, writable } => {
                assert!(pages.contains(PageIndex(page)) && (writable || !write));
                let says = if writable { Says::Write } else { Says::Read };
                let near = PageRange::new(page.saturating_sub(40), PAGES.min(page + 30));
                let around = self.object.there_around(pages, near, writable);
                assert!(around.contains(PageIndex(page)) && around.intersect(near) == around);
                for page in around.start.0..around.end.0 {
                    assert!(self.file.contains_key(&page), "page {page} is mapped");
                    if !writable {
                        assert_ne!(self.says[page as usize][task], Says::Write);
                    }
                    self.says[page as usize][task] = says;
                }
                for page in pages.start.0..pages.end.0 {
                    assert!(self.file.contains_key(&page), "page {page} is mapped");
                    self.says[page as usize][task] = says;
                }
                self.access(wants);
            }
            Wanted::Waits => self.waiting.push(wants),
            Wanted::Unlock(pages) => {
                assert!(write && self.locked.contains(&page) && pages == one(page));
                self.asked.push(pages);
                self.waiting.push(wants);
            }
            Wanted::Fetch(pages) => {
                assert!(pages.pages() <= 32 && pages.contains(PageIndex(page)));
                self.fetching.push(pages);
                self.waiting.push(wants);
            }
            Wanted::Zero(pages) => {
                assert!(self.temporary && pages.contains(PageIndex(page)));
                self.zeroing.push(pages);
                self.waiting.push(wants);
            }
            Wanted::Aside(pages) => {
                assert!(pages.contains(PageIndex(page)));
                self.waiting.push(wants);
                let done = self.below(8) > 0;
                for page in pages.iter().filter(|_| done) {
                    let copy = self.aside.remove(&page.0).expect("it is aside");
                    assert!(self.file.insert(page.0, copy).is_none(), "a second copy");
                }
                let told = self.object.put_back(pages, done);
                self.wake(told);
            }
        }
    }

    fn wake(&mut self, told: Vec<Wants>) {
        for wants in told {
            let at = self.waiting.iter().position(|other| *other == wants);
            self.waiting.swap_remove(at.expect("who is told waited"));
            self.access(wants);
        }
    }

    fn comes(&mut self, pages: PageRange, zeros: bool, supplied: u64) {
        for page in pages.start.0..pages.start.0 + supplied {
            let contents = match (zeros, self.pager.get(&page)) {
                (false, Some(contents)) => *contents,
                (false, None) => {
                    assert!(!self.temporary, "page {page} is not at the pager");
                    0
                }
                (true, _) => 0,
            };
            assert!(self.file.insert(page, contents).is_none(), "a second copy");
        }
        // A pager of temporary memory may give its copy away.
        let precious = self.temporary && !zeros && self.below(3) == 0;
        if precious {
            let given = pages.start.0..pages.start.0 + supplied;
            given.for_each(|page| assert!(self.pager.remove(&page).is_some()));
        }
        let told = self.object.came(pages, supplied, precious);
        if !zeros && supplied > 0 && self.below(3) == 0 {
            self.lock(PageRange::new(pages.start.0, pages.start.0 + supplied));
        }
        self.wake(told);
    }

    /// The pager locks pages, of which only those that are here or coming are its business.
    fn lock(&mut self, pages: PageRange) {
        while let Some(block) = self.object.granted_in(pages) {
            self.take_back(block);
        }
        let coming: Vec<PageRange> = self.fetching.iter().chain(&self.zeroing).copied().collect();
        let is_here = |world: &Self, page: u64| {
            let comes = |range: &PageRange| range.contains(PageIndex(page));
            let is_there = world.file.contains_key(&page) || world.aside.contains_key(&page);
            is_there || coming.iter().any(comes)
        };
        let here = pages.iter().map(|page| page.0);
        let here: Vec<u64> = here.filter(|page| is_here(self, *page)).collect();
        let locked = self.object.lock(pages);
        for run in locked.writable {
            assert_eq!(run.intersect(pages), run);
            self.protect(run);
        }
        self.locked.extend(here);
        self.asked.retain(|asked| asked.intersect(pages).is_empty());
        self.wake(locked.waited);
    }

    fn unlock(&mut self, pages: PageRange) {
        let within = pages.start.0..pages.end.0;
        self.locked.retain(|page| !within.contains(page));
        self.asked.retain(|asked| asked.intersect(pages).is_empty());
        let told = self.object.unlock(pages);
        self.wake(told);
    }

    /// The pager wants pages back: what is dirty of them was handed over before.
    fn flush(&mut self, pages: PageRange) {
        let mut told = Vec::new();
        if self.below(2) == 0 {
            self.asked.retain(|asked| asked.intersect(pages).is_empty());
            told = self.object.ask_again(pages);
        }
        while let Some(leaving) = self.object.choose_clean(pages.start.0..pages.end.0) {
            assert!(matches!(leaving, Leaving::Clean(_) | Leaving::Dropped(_)));
            self.leaves(leaving);
        }
        self.wake(told);
    }

    /// Another kernel gets a page: its pager takes the contents from here, and comes for the rest.
    fn goes_away(&mut self, page: u64) {
        while let Some(block) = self.object.granted_in(one(page)) {
            self.take_back(block);
        }
        self.lock(one(page));
        let newest = self.newest.get(&page).copied().unwrap_or(0);
        match self.object.here(page) {
            Some(Here::Memory) => assert_eq!(self.file[&page], newest),
            Some(Here::Aside) => assert_eq!(self.aside[&page], newest),
            None => assert_eq!(self.pager.get(&page).copied().unwrap_or(0), newest),
        }
        if self.below(2) == 0 {
            // It stays, and its pager has no copy.
            let before = self.object.dirty();
            let is_here = self.object.make_precious(page);
            assert_eq!(is_here, self.object.here(page).is_some());
            assert!(self.object.dirty() - before <= u64::from(is_here));
            if is_here {
                self.pager.remove(&page);
            }
            return;
        }
        let Some(told) = self.object.take_away(one(page)) else {
            let is_leaving = |of: &[PageRange]| of.iter().any(|p| p.contains(PageIndex(page)));
            assert!(is_leaving(&self.leaving) || is_leaving(&self.leaving_aside));
            return;
        };
        self.asked.retain(|asked| *asked != one(page));
        let was_here = self.file.remove(&page).or(self.aside.remove(&page));
        if was_here.is_some() {
            self.pager.insert(page, newest);
            self.locked.remove(&page);
        }
        self.says[page as usize] = [Says::NotThere; TASKS];
        self.wake(told);
    }

    fn gone(&mut self, pages: PageRange) {
        for page in pages.start.0..pages.end.0 {
            let newest = self.newest.get(&page).copied().unwrap_or(0);
            let kept = self.pager.get(&page).copied().unwrap_or(0);
            assert_eq!(kept, newest, "page {page} is lost");
            assert!(self.file.remove(&page).is_some());
            self.says[page as usize] = [Says::NotThere; TASKS];
        }
    }

    fn take_back(&mut self, block: PageRange) {
        let number = block.start.0 / GRANT_PAGES;
        assert!(self.granted.remove(&number));
        self.open[number as usize] = [false; TASKS];
        let touched = block.iter().filter(|page| self.file.contains_key(&page.0));
        let touched: Vec<PageRange> = touched.map(PageRange::one).collect();
        self.object.take_back(block, &touched);
    }

    /// What [`Shared::choose`] or [`Shared::choose_dirty`] says.
    fn leaves(&mut self, leaving: Leaving) {
        match leaving {
            Leaving::Clean(pages) => {
                self.gone(pages);
                self.forgets(pages);
            }
            Leaving::Dirty(pages) => {
                self.protect(pages);
                self.leaving.push(pages);
            }
            Leaving::SetAside(pages) => {
                for page in pages.iter() {
                    let contents = self.file.remove(&page.0).expect("it is there");
                    assert!(self.aside.insert(page.0, contents).is_none());
                    self.says[page.0 as usize] = [Says::NotThere; TASKS];
                }
            }
            Leaving::Aside(pages) => self.leaving_aside.push(pages),
            Leaving::Dropped(pages) => {
                self.dropped(pages);
                self.forgets(pages);
            }
            Leaving::Granted(block) => self.take_back(block),
        }
    }

    /// Clean pages went, and their locks with them.
    fn forgets(&mut self, pages: PageRange) {
        let asked = |asked: &PageRange| !asked.intersect(pages).is_empty();
        assert!(
            !self.asked.iter().any(asked),
            "who waits for {pages:?} is forgotten"
        );
        self.locked.retain(|page| !pages.contains(PageIndex(*page)));
    }

    /// Copies are not needed any more.
    fn dropped(&mut self, pages: PageRange) {
        for page in pages.iter() {
            let newest = self.newest.get(&page.0).copied().unwrap_or(0);
            let kept = self.pager.get(&page.0).copied().unwrap_or(0);
            assert_eq!(kept, newest, "page {page:?} is lost");
            assert_eq!(self.aside.remove(&page.0), Some(newest));
        }
    }

    fn protect(&mut self, pages: PageRange) {
        for page in pages.start.0..pages.end.0 {
            for says in &mut self.says[page as usize] {
                if *says == Says::Write {
                    *says = Says::Read;
                }
            }
        }
    }

    fn leave_aside(&mut self, pages: PageRange) {
        let (taken, stay) = (self.below(4) > 0, self.below(3) == 0);
        for page in pages.iter().filter(|_| taken) {
            self.pager.insert(page.0, self.aside[&page.0]);
        }
        let left = self.object.left(pages, taken, stay);
        assert!(left.gone.is_empty() || taken && !stay);
        left.gone.into_iter().for_each(|pages| self.dropped(pages));
        self.wake(left.waited);
    }

    fn leave(&mut self, pages: PageRange) {
        let (taken, stay) = (self.below(4) > 0, self.below(3) == 0);
        for page in pages.start.0..pages.end.0 {
            if taken {
                self.pager.insert(page, self.file[&page]);
            }
        }
        let left = self.object.left(pages, taken, stay);
        assert!(left.gone.is_empty() || taken && !stay);
        left.gone.into_iter().for_each(|pages| self.gone(pages));
        self.wake(left.waited);
    }

    fn discard(&mut self) {
        let start = self.below(PAGES);
        let pages = PageRange::new(start, PAGES.min(start + 1 + self.below(40)));
        let on_their_way = [
            &self.fetching,
            &self.zeroing,
            &self.leaving,
            &self.leaving_aside,
            &self.asked,
        ];
        let busy = on_their_way
            .iter()
            .any(|all| all.iter().any(|other| !other.intersect(pages).is_empty()));
        let blocks = pages.start.0 / GRANT_PAGES..pages.end.0.div_ceil(GRANT_PAGES);
        let busy = busy || self.granted.range(blocks).next().is_some();
        assert_eq!(self.object.discard(pages), !busy);
        for page in pages.start.0..pages.end.0 {
            if !busy && self.temporary {
                self.newest.remove(&page);
                self.pager.remove(&page);
            }
            if !busy {
                // What was not written back of a pager's own object is as the pager has it.
                let kept = self.pager.get(&page).copied().unwrap_or(0);
                self.newest.insert(page, kept);
                self.file.remove(&page);
                self.aside.remove(&page);
                self.locked.remove(&page);
                self.says[page as usize] = [Says::NotThere; TASKS];
            }
        }
    }

    fn step(&mut self) {
        match self.below(20) {
            0..=4 => {
                let wants = Wants {
                    task: self.below(TASKS as u64) as usize,
                    page: self.below(PAGES),
                    write: self.below(2) == 0,
                };
                self.access(wants);
            }
            5 | 6 => {
                if let Some(pages) = self.one_of(|world| &mut world.fetching) {
                    let supplied = self.below(pages.pages() + 1);
                    self.comes(pages, false, supplied);
                }
            }
            7 => {
                if let Some(pages) = self.one_of(|world| &mut world.zeroing) {
                    self.comes(pages, true, pages.pages());
                }
            }
            8 | 9 => {
                if let Some(leaving) = self.object.set_aside(|_| false) {
                    self.leaves(leaving);
                }
            }
            10 | 11 => {
                if let Some(pages) = self.one_of(|world| &mut world.leaving) {
                    self.leave(pages);
                }
            }
            12 => {
                let from = self.below(PAGES);
                let until = from + self.below(60);
                if let Some(leaving) = self.object.choose_dirty(from..until.min(PAGES)) {
                    assert!(!matches!(leaving, Leaving::Clean(_)));
                    self.leaves(leaving);
                } else if let Some(pages) = self.object.want_soon(from..until, 20) {
                    self.fetching.push(pages);
                }
            }
            13 | 14 => {
                if let Some(leaving) = self.object.choose_aside() {
                    assert!(matches!(leaving, Leaving::Aside(_) | Leaving::Dropped(_)));
                    self.leaves(leaving);
                }
            }
            15 => {
                if let Some(pages) = self.one_of(|world| &mut world.leaving_aside) {
                    self.leave_aside(pages);
                }
            }
            16 => {
                if self.below(8) == 0 {
                    self.discard();
                }
            }
            17 => {
                if let Some(pages) = self.one_of(|world| &mut world.asked) {
                    match self.below(4) {
                        0 => self.lock(pages),
                        _ => self.unlock(pages),
                    }
                }
            }
            _ => {
                let start = self.below(PAGES);
                let pages = PageRange::new(start, PAGES.min(start + 1 + self.below(40)));
                match self.below(4) {
                    0 => self.lock(pages),
                    1 => self.flush(pages),
                    2 => self.unlock(pages),
                    _ if !self.temporary => self.goes_away(start),
                    _ => {}
                }
            }
        }
        self.check();
    }

    fn check(&self) {
        let coming: u64 = self
            .fetching
            .iter()
            .chain(&self.zeroing)
            .map(|p| p.pages())
            .sum();
        let granted = self.granted.iter().flat_map(|block| {
            let first = block * GRANT_PAGES;
            first..PAGES.min(first + GRANT_PAGES)
        });
        let untouched = granted.filter(|page| !self.file.contains_key(page));
        let there = self.file.len() + untouched.count() + self.aside.len();
        assert_eq!(self.object.aside(), self.aside.len() as u64);
        let dirty = |cluster: &Cluster| u64::from(cluster.dirty.count_ones());
        let dirty: u64 = self.object.clusters.values().map(dirty).sum();
        assert_eq!(self.object.dirty(), dirty);
        assert_eq!(self.object.resident(), there as u64 + coming);
        let leaving: BTreeSet<u64> = self
            .leaving
            .iter()
            .flat_map(|pages| pages.start.0..pages.end.0)
            .collect();
        for (page, says) in (0u64..).zip(&self.says) {
            let writable = says.contains(&Says::Write);
            assert!(!(writable && leaving.contains(&page)), "page {page} leaves");
            assert!(
                !(writable && self.locked.contains(&page)),
                "page {page} is locked"
            );
        }
    }

    fn settle(&mut self) {
        for _ in 0..100_000 {
            if let Some(pages) = self.fetching.pop() {
                self.comes(pages, false, pages.pages());
            } else if let Some(pages) = self.zeroing.pop() {
                self.comes(pages, true, pages.pages());
            } else if let Some(pages) = self.leaving.pop() {
                self.leave(pages);
            } else if let Some(pages) = self.leaving_aside.pop() {
                self.leave_aside(pages);
            } else if let Some(pages) = self.asked.pop() {
                self.unlock(pages);
            } else {
                return;
            }
        }
        panic!("it never ends");
    }
}

#[test]
fn whatever_happens_what_was_written_last_is_read_and_nobody_is_forgotten() {
    for seed in 0..400 {
        let mut world = World::new(seed);
        for _ in 0..600 {
            world.step();
        }
        world.settle();
        assert_eq!(world.waiting, [], "seed {seed}");
        let choose = |object: &mut Shared<Wants>| {
            let aside = object.choose_aside();
            aside.or_else(|| object.set_aside(|_| false))
        };
        while let Some(leaving) = choose(&mut world.object) {
            world.leaves(leaving);
            world.settle();
        }
        assert_eq!((world.object.resident(), world.object.dirty()), (0, 0));
        assert!(world.file.is_empty(), "seed {seed}");
        assert!(world.object.discard(PageRange::new(0, PAGES)));
        assert!(world.object.clusters.is_empty(), "seed {seed}");
    }
}

fn there(pages: u64) -> Shared<()> {
    let mut object = Shared::new(PAGES, false);
    for page in 0..pages {
        if let Wanted::Fetch(pages) = object.want(page, false, (), 1, 1) {
            object.came(pages, pages.pages(), false);
        }
    }
    object
}

/// The oldest pages leave, by way of a copy aside if they need one.
fn leaves(object: &mut Shared<()>, is_held: impl Fn(PageRange) -> bool) -> Option<Leaving> {
    match object.set_aside(is_held)? {
        Leaving::SetAside(_) => object.choose_aside(),
        other => Some(other),
    }
}

#[test]
fn what_came_first_leaves_first_and_who_was_held_is_young() {
    let mut object = Shared::new(PAGES, false);
    for page in [100, 20, 60] {
        let Wanted::Fetch(pages) = object.want(page, false, (), 1, 1) else {
            panic!("it was not there");
        };
        object.came(pages, 1, false);
    }
    assert_eq!(object.set_aside(|_| true), None);
    let held = |pages: PageRange| pages.contains(PageIndex(100));
    let first = PageRange::one(PageIndex(20));
    assert_eq!(leaves(&mut object, held), Some(Leaving::Dropped(first)));
    let rest = core::iter::from_fn(|| match leaves(&mut object, |_| false)? {
        Leaving::Dropped(pages) => Some(pages.start.0),
        other => panic!("{other:?}"),
    });
    assert_eq!(rest.collect::<Vec<_>>(), [60, 100]);
}

#[test]
fn what_is_used_while_it_is_aside_is_young_again() {
    let mut object = there(3 * CLUSTER_PAGES);
    let cluster = |number: u64| cluster_pages(number);
    for number in [0, 1] {
        let aside = Some(Leaving::SetAside(cluster(number)));
        assert_eq!(object.set_aside(|_| false), aside);
    }
    let wanted = object.want(5, false, (), 1, 1);
    assert_eq!(wanted, Wanted::Aside(cluster(0)));
    assert_eq!(object.put_back(cluster(0), true).len(), 1);
    assert_eq!((object.aside(), object.resident()), (16, 48));
    let dropped = Some(Leaving::Dropped(cluster(1)));
    assert_eq!(
        (object.choose_aside(), object.choose_aside()),
        (dropped, None)
    );
    let order = core::iter::from_fn(|| object.set_aside(|_| false));
    let order: Vec<Leaving> = order.collect();
    assert_eq!(
        order,
        [2, 0].map(|number| Leaving::SetAside(cluster(number)))
    );
}

#[test]
fn a_run_is_brought_in_ever_larger_parts() {
    let mut object = Shared::new(10_000, false);
    let (mut page, mut fetched) = (0, Vec::new());
    while page < 5000 {
        let Wanted::Fetch(pages) = object.want(page, false, (), 16, 512) else {
            panic!("page {page}");
        };
        assert_eq!(object.came(pages, pages.pages(), false).len(), 1);
        fetched.push(pages.pages());
        page = pages.end.0;
    }
    assert!(fetched.len() < 20 && fetched.contains(&512), "{fetched:?}");
}

#[test]
fn wired_pages_stay_until_they_are_unwired_as_often() {
    let mut object = there(40);
    let wired = PageRange::new(3, 20);
    object.wire(wired);
    object.wire(PageRange::new(3, 4));
    object.unwire(wired);
    let mut gone = Vec::new();
    while let Some(Leaving::Dropped(pages)) = leaves(&mut object, |_| false) {
        gone.push((pages.start.0, pages.end.0));
    }
    assert_eq!(gone, [(16, 32), (32, 40)]);
    object.unwire(PageRange::new(3, 4));
    let last = Leaving::Dropped(PageRange::new(0, 16));
    assert_eq!(leaves(&mut object, |_| false), Some(last));
}

#[test]
fn who_writes_to_a_page_on_its_way_out_waits_and_finds_it_there() {
    let mut object = there(2);
    let both = PageRange::new(0, 2);
    let written = Wanted::There {
        pages: PageRange::new(0, 1),
        writable: true,
    };
    assert_eq!(object.want(0, true, (), 1, 1), written, "it alone");
    assert_eq!(object.dirty(), 1);
    let first = PageRange::new(0, 1);
    assert_eq!(object.choose_dirty(0..2), Some(Leaving::Dirty(first)));
    assert_eq!(object.want(0, true, (), 1, 1), Wanted::Waits);
    let readable = Wanted::There {
        pages: both,
        writable: false,
    };
    assert_eq!(object.want(0, false, (), 1, 1), readable, "it may be read");
    let left = object.left(first, true, false);
    assert_eq!((left.gone, left.waited.len()), (Vec::new(), 1));
    assert_eq!((object.dirty(), object.resident()), (0, 2));
    assert_eq!(object.want(0, true, (), 1, 1), written);
}

#[test]
fn what_the_pager_does_not_take_stays_dirty() {
    let mut object = there(1);
    object.want(0, true, (), 1, 1);
    let page = PageRange::new(0, 1);
    assert_eq!(object.choose_dirty(0..PAGES), Some(Leaving::Dirty(page)));
    let left = object.left(page, false, false);
    assert_eq!((left.gone, object.dirty()), (Vec::new(), 1));
    let again = Some(Leaving::Dirty(page));
    assert_eq!(object.choose_dirty(0..PAGES), again, "another time");
    let left = object.left(page, true, true);
    assert_eq!((left.gone, object.dirty()), (Vec::new(), 0), "it stays");
}

#[test]
fn zeros_that_nobody_wrote_to_are_never_written_out() {
    let mut object: Shared<()> = Shared::new(PAGES, true);
    let cluster = PageRange::new(16, 32);
    assert_eq!(object.want(20, false, (), 1, 1), Wanted::Zero(cluster));
    assert_eq!(object.came(cluster, 16, false).len(), 1);
    assert_eq!(object.set_aside(|_| false), Some(Leaving::Clean(cluster)));
    assert_eq!(object.want(20, true, (), 1, 1), Wanted::Zero(cluster));
    object.came(cluster, 16, false);
    let all = Wanted::There {
        pages: cluster,
        writable: true,
    };
    assert_eq!(object.want(20, true, (), 1, 1), all, "and those beside it");
    let left = Some(Leaving::Aside(cluster));
    assert_eq!(leaves(&mut object, |_| false), left);
    assert_eq!(object.left(cluster, true, false).gone, [cluster]);
    assert_eq!(
        object.want(16, false, (), 1, 1),
        Wanted::Fetch(PageRange::new(16, 17))
    );
}

#[test]
fn what_is_there_in_the_same_way_is_found_over_many_clusters() {
    let mut object = there(100);
    let page = PageRange::new(50, 51);
    let near = PageRange::new(10, 90);
    assert_eq!(object.there_around(page, near, false), near);
    object.want(20, true, (), 1, 1);
    object.want(77, true, (), 1, 1);
    assert_eq!(
        object.there_around(page, near, false),
        PageRange::new(21, 77)
    );
    let written = PageRange::new(20, 21);
    assert_eq!(object.there_around(written, near, true), written);
}

#[test]
fn new_pages_are_filled_in_ever_larger_parts() {
    let mut object: Shared<()> = Shared::new(10_000, true);
    let (mut page, mut filled) = (1000, Vec::new());
    while page < 5000 {
        let Wanted::Zero(pages) = object.want(page, true, (), 1, 1) else {
            panic!("page {page}");
        };
        object.came(pages, pages.pages(), false);
        filled.push(pages.pages());
        page = pages.end.0;
    }
    assert!(filled.len() < 20 && filled.contains(&512), "{filled:?}");
}

#[test]
fn of_a_granted_block_that_is_taken_back_only_what_was_touched_stays() {
    let mut object: Shared<()> = Shared::new(2 * GRANT_PAGES + 5, true);
    assert_eq!(object.grant(3), Some(GRANT_PAGES));
    assert_eq!(object.grant(4), None, "it is granted");
    let block = PageRange::new(0, GRANT_PAGES);
    assert_eq!(object.want(9, true, (), 1, 1), Wanted::Granted(block));
    assert_eq!(
        object.grant(2 * GRANT_PAGES),
        Some(5),
        "the last is shorter"
    );
    assert!(!object.discard(PageRange::new(7, 8)));
    assert_eq!(object.set_aside(|_| false), Some(Leaving::Granted(block)));
    object.take_back(block, &[PageRange::new(3, 20)]);
    assert_eq!((object.resident(), object.dirty()), (17 + 5, 17 + 5));
    let first = PageRange::new(3, 16);
    assert_eq!(leaves(&mut object, |_| false), Some(Leaving::Aside(first)));
    assert_eq!(object.grant(3), None, "some of it leaves");
    assert_eq!(object.left(first, true, false).gone, [first]);
    assert_eq!(object.grant(3), None, "some of it is at the pager");
    let last = PageRange::new(2 * GRANT_PAGES, 2 * GRANT_PAGES + 5);
    object.take_back(last, &[]);
    assert_eq!(object.resident(), 4);
    assert_eq!(
        object.want(last.start.0, false, (), 1, 1),
        Wanted::Zero(last)
    );
}

#[test]
fn blocks_of_an_object_of_its_pagers_are_granted_once_all_of_it_is_dirty() {
    let mut object = there(2 * GRANT_PAGES);
    for page in 0..GRANT_PAGES {
        assert_eq!(object.grant(0), None, "page {page} is clean");
        object.want(page, true, (), 1, 1);
    }
    assert_eq!(object.grant(0), Some(0));
    let block = PageRange::new(0, GRANT_PAGES);
    let beyond = PageRange::new(GRANT_PAGES, GRANT_PAGES + 1);
    let (from, all) = (GRANT_PAGES, PageRange::new(0, 2 * GRANT_PAGES));
    let rest = PageRange::new(from, 2 * GRANT_PAGES);
    assert_eq!(object.there_around(beyond, all, false), rest);
    object.want(from, true, (), 1, 1);
    assert_eq!(
        object.there_around(beyond, all, true),
        beyond,
        "not granted"
    );
    assert_eq!(object.choose_dirty(0..PAGES), Some(Leaving::Granted(block)));
    object.take_back(block, &[block]);
    assert_eq!(object.dirty(), GRANT_PAGES + 1);
}

#[test]
fn an_object_grows_with_zeros_and_forgets_what_is_cut_off() {
    let mut object: Shared<u8> = Shared::new(10, true);
    let zeros = |object: &mut Shared<u8>, page| match object.want(page, false, 0, 1, 1) {
        Wanted::Zero(pages) => pages,
        other => panic!("{other:?}"),
    };
    let first = zeros(&mut object, 9);
    object.came(first, first.pages(), false);
    assert!(matches!(
        object.want(9, true, 0, 1, 1),
        Wanted::There { writable: true, .. }
    ));
    object.set_pages(40);
    let second = zeros(&mut object, 39);
    assert!(
        !object.discard(PageRange::new(5, 40)),
        "some are on their way"
    );
    object.came(second, second.pages(), false);
    assert!(object.discard(PageRange::new(5, 40)));
    object.set_pages(5);
    object.set_pages(10);
    assert!(zeros(&mut object, 9).contains(PageIndex(9)));
}

#[test]
#[should_panic = "pages beyond the end are there"]
fn pages_that_are_there_are_not_cut_off() {
    let mut object: Shared<u8> = Shared::new(32, true);
    object.want(20, true, 0, 1, 1);
    object.set_pages(16);
}

#[test]
fn first_contents_are_fetched_and_the_rest_is_zeros() {
    let mut object: Shared<u8> = Shared::new(32, true);
    object.are_out(PageRange::new(3, 5));
    assert!(matches!(object.want(4, false, 0, 1, 1), Wanted::Fetch(_)));
    assert!(matches!(object.want(5, false, 0, 1, 1), Wanted::Zero(_)));
}

#[test]
fn what_is_flushed_is_clean_there_and_not_wired() {
    let mut object: Shared<u32> = Shared::new(40, false);
    for first in [0, 16] {
        let Wanted::Fetch(pages) = object.want(first, false, 1, 16, 16) else {
            panic!("page {first} is not there");
        };
        object.came(pages, pages.pages(), false);
    }
    assert!(matches!(
        object.want(3, true, 1, 16, 16),
        Wanted::There { writable: true, .. }
    ));
    object.wire(PageRange::new(20, 21));
    let mut gone = vec![];
    while let Some(Leaving::Clean(pages)) = object.choose_clean(2..24) {
        gone.extend(pages.iter().map(|page| page.0));
    }
    let stays = |page: &u64| *page != 3 && *page < 16;
    assert_eq!(gone, (2..24).filter(stays).collect::<vec::Vec<_>>());
    assert_eq!(object.resident(), 32 - gone.len() as u64);
    assert_eq!(
        object.want(5, false, 1, 1, 1),
        Wanted::Fetch(PageRange::new(5, 6))
    );
}
