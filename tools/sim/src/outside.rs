//! The kernel's side of a pager in another process, and that process at its worst, by seed: it
//! answers in any order, late, not at all, refuses pages, dies between any two steps and is started
//! again with what it has stored.
//!
//! Pages may be locked against writing: then the pager is asked, and asked again after its death.
//!
//! The laws: the newest contents of a page are where they count (memory, else the default pager if
//! it keeps the page, else the pager); of a page, the pager has one write at most; when pages were clean
//! and what was kept of them is taken, the pager has what was written to them before; once all is healed
//! every request and unlock is answered, and the pager has all.

use std::collections::{BTreeMap, BTreeSet};

use farpage_object::outside::{Outcome, Outside};
use farpage_object::{PageIndex, PageRange};

use crate::rng::Rng;

const PAGES: u64 = 24;
/// Pages of a write at most.
const RUN: u64 = 4;
const STEPS: u64 = 1000;

/// What happened, to see that a test has seen it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Writes that the pager took in time.
    pub taken: u64,
    /// Writes that were late, and kept.
    pub overdue: u64,
    /// Writes that were taken while something was late.
    pub late: u64,
    /// Pages that came from the default pager.
    pub from_kept: u64,
    /// Runs that were given back.
    pub returned: u64,
    /// Deaths with something under way.
    pub deaths: u64,
    /// Requests whose time was up.
    pub expired: u64,
    /// Pages that were unlocked because somebody wanted to write to them.
    pub unlocked: u64,
    /// Those that were not in time.
    pub locked: u64,
    /// Times that the pager had all of clean pages, some of which were kept.
    pub cleaned: u64,
}

/// Contents: how often a page was written to.
type Version = u64;

#[derive(Clone, Debug)]
enum ToPager {
    Request(u64, PageRange),
    Write(u64, PageRange, Vec<Version>),
    Unlock(u64),
}

#[derive(Clone, Debug)]
enum ToKernel {
    /// Locked, perhaps.
    Provided(u64, Vec<Version>, bool),
    Unlocked(u64),
    Error(u64),
    Wrote(u64, bool),
}

struct World {
    rng: Rng,
    kernel: Outside<PageRange>,
    /// Pages in memory, and whether they are dirty.
    memory: BTreeMap<u64, (Version, bool)>,
    /// Pages that are on their way, in or out.
    coming: BTreeSet<u64>,
    leaving: BTreeSet<u64>,
    /// Pages in memory that may not be written to, and those that somebody wants to write to.
    locked: BTreeSet<u64>,
    unlocking: BTreeSet<u64>,
    /// What the default pager has.
    kept: BTreeMap<u64, Version>,
    /// What the pager has stored.
    stored: BTreeMap<u64, Version>,
    newest: BTreeMap<u64, Version>,
    /// Pages that were clean, what was kept last then, and what the pager is to have at least.
    cleanings: Vec<(PageRange, u64, Vec<Version>)>,
    to_pager: Vec<ToPager>,
    to_kernel: Vec<ToKernel>,
    /// Writes that page-out waits for, and those that are given back.
    waited: Vec<(u64, PageRange)>,
    returning: Vec<(u64, PageRange)>,
    now: u64,
    is_healed: bool,
    seen: Seen,
}

/// Runs a seed.
///
/// # Panics
/// When a law is broken.
#[must_use]
pub fn outside(seed: u64) -> Seen {
    let mut world = World {
        rng: Rng::new(seed),
        kernel: Outside::default(),
        memory: BTreeMap::new(),
        coming: BTreeSet::new(),
        leaving: BTreeSet::new(),
        locked: BTreeSet::new(),
        unlocking: BTreeSet::new(),
        kept: BTreeMap::new(),
        stored: BTreeMap::new(),
        newest: BTreeMap::new(),
        cleanings: Vec::new(),
        to_pager: Vec::new(),
        to_kernel: Vec::new(),
        waited: Vec::new(),
        returning: Vec::new(),
        now: 0,
        is_healed: false,
        seen: Seen::default(),
    };
    for _ in 0..STEPS {
        world.step();
        world.check();
        world.check_cleanings();
    }
    world.heal();
    world.seen
}

impl World {
    fn step(&mut self) {
        self.now += self.rng.below(4);
        match self.rng.below(13) {
            0 | 1 => self.access(),
            2 => self.page_out(),
            3 | 4 => self.pager_answers(),
            5 | 6 => self.kernel_hears(),
            7 => self.looks_at_writes(),
            8 => self.gives_back(),
            9 => self.expires(),
            10 => self.forgets_taken(),
            11 => self.cleans(),
            _ => {
                if self.rng.chance(100) {
                    self.dies();
                } else if !self.kernel.is_up() && self.rng.chance(500) {
                    self.kernel.comes();
                }
            }
        }
        self.sends();
    }

    fn newest(&self, page: u64) -> Version {
        self.newest.get(&page).copied().unwrap_or(0)
    }

    /// A thread reads a page, or writes to it.
    fn access(&mut self) {
        let page = self.rng.below(PAGES);
        if self.locked.contains(&page) {
            if self.rng.chance(600) && self.unlocking.insert(page) {
                let until = self.until();
                self.kernel.ask_unlock(page, until);
            }
            return;
        }
        if let Some((version, dirty)) = self.memory.get_mut(&page) {
            if self.rng.chance(600) && !self.leaving.contains(&page) {
                *version += 1;
                *dirty = true;
                self.newest.insert(page, *version);
            }
            return;
        }
        if self.coming.contains(&page) {
            return;
        }
        let end = (page + 1 + self.rng.below(RUN)).min(PAGES);
        let is_absent = |page: &u64| !self.memory.contains_key(page) && !self.coming.contains(page);
        let end = (page..end).take_while(is_absent).last().unwrap_or(page) + 1;
        let (is_kept, run) = self.kernel.kept_first(PageRange::new(page, end));
        if is_kept {
            // The default pager may give its copy away.
            let given = self.rng.chance(500);
            for page in run.iter().map(|page| page.0) {
                let version = self.kept[&page];
                assert_eq!(version, self.newest(page), "page {page} is kept");
                self.memory.insert(page, (version, given));
                if given {
                    self.kept.remove(&page);
                }
                self.seen.from_kept += 1;
            }
            if given {
                self.kernel.forget(run);
                // Memory has it alone again: it is not clean any more.
                self.cleanings
                    .retain(|(pages, ..)| pages.intersect(run).is_empty());
            }
            return;
        }
        self.coming.extend(run.iter().map(|page| page.0));
        let until = self.until();
        self.kernel.ask(run, run, until, run);
    }

    /// How long somebody waits.
    fn until(&mut self) -> Option<u64> {
        let is_patient = self.rng.chance(300);
        (!is_patient).then(|| self.now + 1 + self.rng.below(400))
    }

    fn sends(&mut self) {
        while let Some((id, pages, _)) = self.kernel.next_to_send() {
            if !self.is_healed && self.rng.chance(50) {
                self.kernel.was_not_sent(id);
                return;
            }
            self.to_pager.push(ToPager::Request(id, pages));
        }
        while let Some(page) = self.kernel.next_unlock_to_send() {
            if !self.is_healed && self.rng.chance(50) {
                self.kernel.unlock_was_not_sent(page);
                return;
            }
            self.to_pager.push(ToPager::Unlock(page));
        }
    }

    fn page_out(&mut self) {
        let dirty = |page: &u64| self.memory.get(page).is_some_and(|(_, dirty)| *dirty);
        let goes = |page: &u64| dirty(page) && !self.leaving.contains(page);
        let first = self.rng.clone().below(PAGES);
        self.rng.next();
        let Some(first) = (first..PAGES).find(goes) else {
            // What is clean goes without a word.
            let (leaving, unlocking) = (&self.leaving, &self.unlocking);
            self.memory.retain(|page, (_, dirty)| {
                *dirty || leaving.contains(page) || unlocking.contains(page)
            });
            self.locked.retain(|page| self.memory.contains_key(page));
            return;
        };
        let count = (first..PAGES.min(first + RUN)).take_while(goes).count() as u64;
        let pages = PageRange::new(first, first + count);
        self.leaving.extend(pages.iter().map(|page| page.0));
        match self.kernel.begin_write(pages) {
            Some(id) => {
                let versions = pages.iter().map(|page| self.memory[&page.0].0).collect();
                self.write(id, pages, versions);
                self.waited.push((id, pages));
            }
            None => self.keep(pages, None, false),
        }
    }

    fn write(&mut self, id: u64, pages: PageRange, versions: Vec<Version>) {
        for message in &self.to_pager {
            if let ToPager::Write(_, other, _) = message {
                assert!(other.intersect(pages).is_empty(), "two writes of {pages:?}");
            }
        }
        self.to_pager.push(ToPager::Write(id, pages, versions));
    }

    /// The default pager takes pages that leave.
    fn keep(&mut self, pages: PageRange, sent: Option<u64>, refused: bool) {
        for page in pages.iter().map(|page| page.0) {
            self.kept.insert(page, self.memory[&page].0);
        }
        self.kernel.keep(pages, sent, refused);
        self.left(pages);
    }

    fn left(&mut self, pages: PageRange) {
        for page in pages.iter().map(|page| page.0) {
            self.leaving.remove(&page);
            self.memory.remove(&page);
        }
    }

    fn looks_at_writes(&mut self) {
        if self.waited.is_empty() {
            return;
        }
        let at = self.rng.below(self.waited.len() as u64) as usize;
        let (id, pages) = self.waited[at];
        match self.kernel.outcome(id) {
            Outcome::Waits if !self.is_healed && self.rng.chance(300) => {
                let sent = self.kernel.is_overdue(id).then_some(id);
                self.seen.overdue += 1;
                self.keep(pages, sent, false);
            }
            Outcome::Waits => return,
            Outcome::Taken => {
                self.kernel.forget(pages);
                self.kept
                    .retain(|page, _| !pages.contains(PageIndex(*page)));
                self.seen.taken += 1;
                self.left(pages);
            }
            Outcome::Refused => self.keep(pages, None, true),
        }
        self.waited.swap_remove(at);
    }

    fn gives_back(&mut self) {
        if let Some((id, pages)) = self.returning.pop() {
            match self.kernel.outcome(id) {
                Outcome::Waits if !self.is_healed && self.rng.chance(300) => {
                    self.kernel.is_overdue(id);
                }
                Outcome::Waits => self.returning.push((id, pages)),
                Outcome::Taken => {
                    self.kernel.end_return(id, pages, true);
                    self.seen.returned += 1;
                }
                Outcome::Refused => self.kernel.end_return(id, pages, false),
            }
        } else if let Some((id, pages)) = self.kernel.begin_return(RUN) {
            let versions = pages.iter().map(|page| self.kept[&page.0]).collect();
            self.write(id, pages, versions);
            self.returning.push((id, pages));
        }
    }

    /// Pages are clean: the pager has them, or the default pager keeps them for it.
    fn cleans(&mut self) {
        let first = self.rng.below(PAGES);
        let pages = PageRange::new(first, (first + 1 + self.rng.below(RUN)).min(PAGES));
        let is_clean = |page: u64| {
            let is_dirty = self.memory.get(&page).is_some_and(|(_, dirty)| *dirty);
            !is_dirty && !self.leaving.contains(&page)
        };
        if pages.iter().all(|page| is_clean(page.0)) && self.kernel.keeps_some(pages) {
            let versions = pages.iter().map(|page| self.newest(page.0)).collect();
            let last = self.kernel.last_kept();
            self.cleanings.push((pages, last, versions));
        }
    }

    /// Where nothing is kept any more, the pager has what it is to have.
    fn check_cleanings(&mut self) {
        let (kernel, stored, seen) = (&self.kernel, &self.stored, &mut self.seen);
        self.cleanings.retain(|(pages, last, versions)| {
            if kernel.keeps_since(*pages, *last) {
                return true;
            }
            seen.cleaned += 1;
            for (page, version) in pages.iter().map(|page| page.0).zip(versions) {
                let has = stored.get(&page).copied().unwrap_or(0);
                assert!(
                    has >= *version,
                    "page {page} is clean: {has}, not {version}"
                );
            }
            false
        });
    }

    fn forgets_taken(&mut self) {
        for pages in self.kernel.taken() {
            self.kept
                .retain(|page, _| !pages.contains(PageIndex(*page)));
        }
    }

    fn expires(&mut self) {
        for (pages, _) in self.kernel.expire(self.now) {
            self.seen.expired += 1;
            self.coming.retain(|page| !pages.contains(PageIndex(*page)));
        }
        for page in self.kernel.expire_unlocks(self.now) {
            self.seen.locked += 1;
            assert!(self.unlocking.remove(&page), "nobody wants page {page}");
        }
    }

    /// The pager takes any message that has come, and answers.
    fn pager_answers(&mut self) {
        if self.to_pager.is_empty() || !self.is_healed && self.rng.chance(300) {
            return;
        }
        let at = self.rng.below(self.to_pager.len() as u64) as usize;
        let answer = match self.to_pager.swap_remove(at) {
            ToPager::Request(id, _) if !self.is_healed && self.rng.chance(100) => {
                ToKernel::Error(id)
            }
            ToPager::Request(id, pages) => {
                let count = 1 + self.rng.below(pages.pages());
                let run = pages.start.0..pages.start.0 + count;
                let stored = run.map(|page| self.stored.get(&page).copied().unwrap_or(0));
                let stored = stored.collect();
                ToKernel::Provided(id, stored, self.rng.chance(400))
            }
            ToPager::Unlock(page) => ToKernel::Unlocked(page),
            ToPager::Write(id, ..) if !self.is_healed && self.rng.chance(100) => {
                ToKernel::Wrote(id, false)
            }
            ToPager::Write(id, pages, versions) => {
                let pages = pages.iter().map(|page| page.0);
                self.stored.extend(pages.zip(versions));
                ToKernel::Wrote(id, true)
            }
        };
        self.to_kernel.push(answer);
    }

    fn kernel_hears(&mut self) {
        if self.to_kernel.is_empty() {
            return;
        }
        let at = self.rng.below(self.to_kernel.len() as u64) as usize;
        let late = self.kernel.is_behind();
        match self.to_kernel.swap_remove(at) {
            ToKernel::Provided(id, versions, locked) => {
                let count = versions.len() as u64;
                let asked = self.kernel.answered(id, Some(count));
                if let Some(asked) = asked.expect("an honest pager") {
                    self.came(asked, &versions);
                    let first = asked.start.0;
                    self.locked
                        .extend((first..first + count).filter(|_| locked));
                }
            }
            ToKernel::Unlocked(page) => {
                self.kernel.unlocked(PageRange::new(page, page + 1));
                self.locked.remove(&page);
                self.seen.unlocked += u64::from(self.unlocking.remove(&page));
            }
            ToKernel::Error(id) => {
                let asked = self.kernel.answered(id, None);
                if let Some(asked) = asked.expect("an honest pager") {
                    self.came(asked, &[]);
                }
            }
            ToKernel::Wrote(id, taken) => {
                self.kernel.wrote(id, taken).expect("an honest pager");
                self.seen.late += u64::from(late && taken);
            }
        }
    }

    /// The first of the pages that were asked for came, the others did not.
    fn came(&mut self, asked: PageRange, versions: &[Version]) {
        for (page, version) in asked.iter().map(|page| page.0).zip(versions) {
            assert_eq!(
                *version,
                self.newest(page),
                "page {page} comes from the pager"
            );
            self.memory.insert(page, (*version, false));
        }
        self.coming.retain(|page| !asked.contains(PageIndex(*page)));
    }

    /// The pager dies; what was on its way is lost, and of what it was taking, some is stored.
    fn dies(&mut self) {
        if !self.kernel.is_up() {
            return;
        }
        self.seen.deaths += u64::from(!self.to_pager.is_empty());
        for message in std::mem::take(&mut self.to_pager) {
            if let ToPager::Write(_, pages, versions) = message {
                let some = self.rng.below(pages.pages() + 1) as usize;
                let pages = pages.iter().map(|page| page.0);
                self.stored.extend(pages.zip(versions).take(some));
            }
        }
        self.to_kernel.clear();
        self.kernel.goes();
    }

    fn check(&self) {
        for page in 0..PAGES {
            let newest = self.newest(page);
            if let Some((version, _)) = self.memory.get(&page) {
                assert_eq!(*version, newest, "page {page} in memory");
                continue;
            }
            let one = PageRange::new(page, page + 1);
            if self.kernel.keeps_some(one) {
                assert_eq!(self.kept.get(&page), Some(&newest), "page {page} is kept");
            } else {
                let stored = self.stored.get(&page).copied().unwrap_or(0);
                assert_eq!(stored, newest, "page {page} is with the pager");
            }
        }
    }

    /// No more trouble: everything must come to rest.
    fn heal(&mut self) {
        self.is_healed = true;
        if !self.kernel.is_up() {
            self.kernel.comes();
        }
        for _ in 0..1000 {
            self.sends();
            self.pager_answers();
            self.kernel_hears();
            self.looks_at_writes();
            self.gives_back();
            self.forgets_taken();
            self.page_out();
            self.check();
            self.check_cleanings();
        }
        assert!(self.cleanings.is_empty(), "a cleaning waits for ever");
        assert_eq!(self.kernel.owed(), 0, "pages are kept for ever");
        assert_eq!(self.kernel.waiting(), 0, "requests are never answered");
        assert!(self.coming.is_empty() && self.leaving.is_empty() && self.memory.is_empty());
        assert!(
            self.unlocking.is_empty(),
            "who wants to write waits for ever"
        );
        for page in 0..PAGES {
            let stored = self.stored.get(&page).copied().unwrap_or(0);
            assert_eq!(stored, self.newest(page), "page {page} at the end");
        }
    }
}
