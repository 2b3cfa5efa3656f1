//! How pages leave: aside first, where who uses one finds it again, then to the pager.

use std::sync::atomic::Ordering;
use std::time::Duration;

use farpage_object::{CLUSTER_PAGES, Leaving, PAGE_BYTES, PageOut, PageRange, PagerError, Shared};
use farpage_sys::{Errno, file};

use crate::Object;
use crate::counters::now_ns;
use crate::object::State;
use crate::trace::What;
use crate::waiter::Waiter;

/// Time between two looks at pages that others write back.
pub(crate) const ON_ITS_WAY: Duration = Duration::from_millis(1);
/// Of the pages of an object in memory so many are aside for one that is.
pub(crate) const ASIDE_PART: u64 = 8;

/// Some pages were written back.
#[derive(Clone, Copy, Debug)]
pub struct Cleaned {
    /// The page after them; `None`: none was dirty that is not on its way.
    pub after: Option<u64>,
    /// Others write back pages before that just now: if they cannot, those are dirty again.
    pub passed: bool,
}

impl Object {
    /// Takes about `wanted` pages out of memory. Returns how many.
    pub fn evict(&self, wanted: u64) -> u64 {
        let mut freed = 0;
        while freed < wanted {
            let mut state = self.lock();
            let taking_out = self.host.room.take_out();
            let Some(leaving) = self.choose(&mut state) else {
                break;
            };
            match leaving {
                Leaving::Clean(pages) => {
                    self.punch(pages);
                    self.tracer.note(What::Dropped, 0, pages, 0);
                    freed += pages.pages();
                }
                Leaving::Dropped(pages) => {
                    self.forget(&mut state, pages);
                    self.tracer.note(What::Dropped, 0, pages, 0);
                    freed += pages.pages();
                }
                Leaving::Granted(block) => {
                    let before = state.pages.resident();
                    if !self.take_back(&mut state, block) {
                        break;
                    }
                    freed += before - state.pages.resident();
                }
                Leaving::SetAside(pages) => {
                    if !self.set_aside(&mut state, pages) {
                        break;
                    }
                }
                Leaving::Dirty(_) => unreachable!("what is there is set aside first"),
                Leaving::Aside(pages) => {
                    drop(taking_out);
                    let out = self.contents(&state, leaving);
                    drop(state);
                    match self.hand_over(pages, out, false) {
                        // The pager takes nothing, or all of it is wanted again: for now.
                        Err(_) | Ok(0) => break,
                        Ok(gone) => freed += gone,
                    }
                }
            }
        }
        freed
    }

    /// What leaves next. An eighth of what is in memory is aside: what is used meanwhile stays.
    fn choose(&self, state: &mut State) -> Option<Leaving> {
        let is_held = |pages| self.host.room.is_held(self.number, pages);
        let most = (state.pages.resident() / ASIDE_PART).max(CLUSTER_PAGES);
        let choose = |pages: &mut Shared<Waiter>| {
            if pages.aside() >= most || !self.host.copies.have_room(CLUSTER_PAGES) {
                return pages.choose_aside();
            }
            pages.set_aside(is_held).or_else(|| pages.choose_aside())
        };
        self.change(state, choose)
    }

    /// Copies pages, and takes them out of every mapping. False when they are where they were.
    fn set_aside(&self, state: &mut State, pages: PageRange) -> bool {
        let read = self.contents(state, Leaving::Dirty(pages));
        let copied = read.is_ok_and(|contents| {
            pages.iter().zip(&contents).all(|(page, bytes)| {
                let slot = self.host.copies.put(bytes);
                slot.is_some_and(|slot| state.aside.insert(page.0, slot).is_none())
            })
        });
        if copied {
            self.punch(pages);
            self.tracer.note(What::Aside, 0, pages, 0);
        } else {
            // Nobody waits for what is not aside yet.
            self.forget(state, pages);
            state.pages.put_back(pages, true);
        }
        copied
    }

    /// Somebody wants pages that are aside. Returns who goes on.
    pub(crate) fn put_back(&self, state: &mut State, pages: PageRange) -> Vec<Waiter> {
        let done = pages.iter().all(|page| {
            let copy = self.host.copies.get(state.aside[&page.0]);
            self.memory
                .supply(page.0 * PAGE_BYTES as u64, &copy)
                .is_ok()
        });
        let who = state.pages.put_back(pages, done);
        if !done {
            let why = "there is no memory for it";
            who.iter().for_each(|waiter| waiter.fail(self, why));
            return Vec::new();
        }
        self.forget(state, pages);
        let put_back = &self.counters.put_back;
        put_back.fetch_add(pages.pages(), Ordering::Relaxed);
        self.tracer.note(What::Back, 0, pages, 0);
        who
    }

    /// What is to be handed over: nobody writes to it from now on.
    fn contents(&self, state: &State, leaving: Leaving) -> Result<Vec<[u8; PAGE_BYTES]>, Errno> {
        let (Leaving::Dirty(pages) | Leaving::Aside(pages)) = leaving else {
            unreachable!("nothing else is handed over");
        };
        let mut contents = vec![[0; PAGE_BYTES]; pages.pages() as usize];
        if let Leaving::Aside(_) = leaving {
            for (page, into) in pages.iter().zip(&mut contents) {
                into.copy_from_slice(&self.host.copies.get(state.aside[&page.0]));
            }
            return Ok(contents);
        }
        protect(state, pages);
        let offset = pages.start.0 * PAGE_BYTES as u64;
        let bytes = file::pread(self.memory.fd(), contents.as_flattened_mut(), offset)?;
        match bytes as u64 == pages.bytes() {
            true => Ok(contents),
            false => Err(Errno::EIO),
        }
    }

    /// Writes back what is dirty of `pages`; it stays in memory. What others write back just then is
    /// waited for.
    ///
    /// # Errors
    /// The first error of the pager.
    pub fn clean(&self, pages: PageRange) -> Result<(), PagerError> {
        let (mut left, mut passed) = (pages, false);
        loop {
            let cleaned = self.clean_some(left)?;
            passed |= cleaned.passed;
            left = match cleaned.after {
                Some(after) => PageRange::new(after, pages.end.0),
                None if passed => {
                    std::thread::sleep(ON_ITS_WAY);
                    passed = false;
                    pages
                }
                None => return Ok(()),
            };
        }
    }

    /// Writes back the first of `pages` that are dirty, a few at most; they stay in memory.
    ///
    /// # Errors
    /// The error of the pager.
    pub fn clean_some(&self, pages: PageRange) -> Result<Cleaned, PagerError> {
        loop {
            let mut state = self.lock();
            let chosen = state.pages.choose_dirty(pages.start.0..pages.end.0);
            match chosen {
                None => {
                    let (after, passed) = (None, state.pages.is_leaving(pages));
                    return Ok(Cleaned { after, passed });
                }
                Some(Leaving::Granted(block)) => {
                    if !self.take_back(&mut state, block) {
                        return Err(PagerError::OutOfSpace);
                    }
                }
                Some(leaving @ (Leaving::Dirty(run) | Leaving::Aside(run))) => {
                    let before = PageRange::new(pages.start.0, run.start.0);
                    let passed = state.pages.is_leaving(before);
                    let out = self.contents(&state, leaving);
                    drop(state);
                    self.hand_over(run, out, true)?;
                    let after = Some(run.end.0);
                    return Ok(Cleaned { after, passed });
                }
                Some(Leaving::Clean(_) | Leaving::Dropped(_) | Leaving::SetAside(_)) => {
                    unreachable!("it is dirty, and stays")
                }
            }
        }
    }

    /// Writes back what is dirty of `pages`, and lets go of all of them that are not wired, or
    /// written to meanwhile, which a lock prevents.
    ///
    /// # Errors
    /// As [`Object::clean`]; nothing is let go of then.
    pub fn flush(&self, pages: PageRange) -> Result<(), PagerError> {
        self.clean(pages)?;
        self.let_go(pages);
        Ok(())
    }

    /// Clean ones of `pages` stay in memory, since somebody has wired them.
    pub fn are_held(&self, pages: PageRange) -> bool {
        self.lock().pages.are_held(pages)
    }

    /// Lets go of those of `pages` that are clean and not wired.
    pub fn let_go(&self, pages: PageRange) {
        let mut state = self.lock();
        let waited = state.pages.ask_again(pages);
        let within = pages.start.0..pages.end.0;
        let clean = |all: &mut Shared<_>| all.choose_clean(within.clone());
        while let Some(leaving) = self.change(&mut state, clean) {
            match leaving {
                Leaving::Dropped(pages) => self.forget(&mut state, pages),
                Leaving::Clean(pages) => self.punch(pages),
                _ => unreachable!("it is clean"),
            }
        }
        drop(state);
        self.want_all(waited);
    }

    /// Those of `pages` that are on their way in, in runs.
    pub fn coming(&self, pages: PageRange) -> impl Iterator<Item = PageRange> + use<> {
        self.lock().pages.coming(pages).into_iter()
    }

    /// Nothing of a granted block is mapped any more without being asked for here. False when that
    /// cannot be had, because a process has more mappings than Linux allows.
    pub(crate) fn take_back(&self, state: &mut State, block: PageRange) -> bool {
        // From then on nothing comes into the block that is not there.
        if !state
            .mappings
            .iter()
            .all(|mapping| mapping.take_back(block))
        {
            return false;
        }
        let offset = block.start.0 * PAGE_BYTES as u64;
        let Ok(contents) = self.memory.contents(offset, block.bytes() as usize) else {
            return false;
        };
        let page = |offset: u64| offset / PAGE_BYTES as u64;
        let there = contents
            .iter()
            .map(|part| PageRange::new(page(part.start), page(part.end)));
        let there: Vec<PageRange> = there.collect();
        let mut from = block.start.0;
        for run in there
            .iter()
            .copied()
            .chain([PageRange::new(block.end.0, block.end.0)])
        {
            let gap = PageRange::new(from, run.start.0);
            if !gap.is_empty() {
                // It may have memory that was never touched.
                self.punch(gap);
            }
            from = run.end.0;
        }
        self.change(state, |pages| pages.take_back(block, &there));
        true
    }

    /// Hands pages that leave to the pager. Returns how many are gone.
    fn hand_over(
        &self,
        pages: PageRange,
        contents: Result<Vec<[u8; PAGE_BYTES]>, Errno>,
        stay: bool,
    ) -> Result<u64, PagerError> {
        let since_ns = self.counters.pager.asked();
        self.tracer.note(What::Return, 0, pages, 0);
        let taken = contents
            .map_err(|errno| PagerError::Write(errno.0))
            .and_then(|contents| {
                let pairs = pages.iter().zip(&contents);
                let out = pairs.map(|(page, bytes)| PageOut { page, bytes });
                let out: Vec<PageOut<'_>> = out.collect();
                self.pager.data_write(self.number, &out)
            });
        self.counters.pager.answered(since_ns, taken.err());
        let took_ns = now_ns().saturating_sub(since_ns);
        let what = if taken.is_ok() {
            What::Taken
        } else {
            What::Refused
        };
        self.tracer.note(what, 0, pages, took_ns);
        let mut state = self.lock();
        let were_aside = state.aside.contains_key(&pages.start.0);
        let left = self.change(&mut state, |all| all.left(pages, taken.is_ok(), stay));
        // With the lock held: nobody brings them in again before they are out.
        for gone in &left.gone {
            match were_aside {
                true => self.forget(&mut state, *gone),
                false => self.punch(*gone),
            }
        }
        drop(state);
        match taken {
            Ok(()) => {
                let taken = &self.counters.taken;
                taken.fetch_add(pages.pages(), Ordering::Relaxed);
                self.host.pager_has_room();
            }
            Err(_) if self.temporary => self.host.pager_is_full(),
            Err(_) => {}
        }
        self.want_all(left.waited);
        let gone = left.gone.iter().map(|pages| pages.pages()).sum();
        taken.map(|()| gone)
    }

    /// Pages are written to, and paging space is short: the old contents that the pager has of them
    /// give it some. With the lock held, so that it is done before it is given newer ones.
    pub(crate) fn give_up_old(&self, state: &mut State, pages: PageRange) {
        if !self.temporary {
            return;
        }
        for page in pages.iter() {
            if state.pages.give_up_old(page.0) {
                self.pager.discard(self.number, PageRange::one(page));
            }
        }
    }

    /// Somebody who wants a new page gets none. False when it is there meanwhile.
    pub(crate) fn refuse(&self, waiter: Waiter) -> bool {
        let mut state = self.lock();
        if !state.pages.is_new(waiter.page) {
            drop(state);
            self.want(waiter);
            return false;
        }
        state.refused.insert(waiter.page);
        drop(state);
        waiter.fail(self, "there is no room: memory and paging space are full");
        true
    }

    /// There is room again: who was refused a new page may touch it again.
    pub(crate) fn forgive(&self) {
        let mut state = self.lock();
        for page in std::mem::take(&mut state.refused) {
            if state.pages.is_new(page) {
                // Takes away what Linux has in its place, too, wherever that is.
                self.punch(PageRange::new(page, page + 1));
            }
        }
    }

    /// Copies are not needed any more.
    pub(crate) fn forget(&self, state: &mut State, pages: PageRange) {
        let within = pages.start.0..pages.end.0;
        while let Some((&page, &slot)) = state.aside.range(within.clone()).next() {
            state.aside.remove(&page);
            self.host.copies.forget(slot);
        }
    }

    pub(crate) fn punch(&self, pages: PageRange) {
        let offset = pages.start.0 * PAGE_BYTES as u64;
        if let Err(errno) = self.memory.take_out(offset, pages.bytes() as usize) {
            let name = self.name();
            farpage_sys::say!("farpage: cannot take pages of '{name}' out ({errno})");
        }
    }
}

pub(crate) fn protect(state: &State, pages: PageRange) {
    for mapping in &state.mappings {
        if let Some((at, bytes)) = mapping.part(pages) {
            // One that is gone writes no more.
            let _ = mapping.space.protect(at, bytes);
        }
    }
}
