//! One object: its memory file, its pager, who maps it.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use farpage_abi::{Access, ObjectId, PAGE_BYTES, PageIndex, PageRange};
use farpage_object::{Leaving, Plan, Shared, Streams, Wanted};
use farpage_pagers::{DataRequest, Later, PageOut, Pager, PagerError};
use farpage_sys::file::{self, Fd};
use farpage_sys::mapped::Mapped;
use farpage_sys::{Errno, uffd};

use super::space::Space;
use crate::host::lock;

/// Pages that are brought in together at most.
const WINDOW: u64 = 64;
/// Pages that are there and are let in with one that is wanted, where they are: that costs a
/// fifteenth of a fault each.
const AROUND: u64 = 16;

/// Pages of an object that its pager was asked for.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) object: ObjectId,
    pages: PageRange,
    /// The one that somebody waits for.
    page: u64,
}

/// What requests to pagers need: who takes answers that come later, and what they are of.
pub(super) struct Desk {
    pub(super) answers: &'static dyn Later,
    pub(super) asked: Mutex<HashMap<u64, Asked>>,
    pub(super) next: AtomicU64,
    /// Pages in memory, of all objects.
    pub(super) resident: AtomicU64,
}

/// A memory object that several processes map.
pub struct Object {
    number: ObjectId,
    pager: Arc<dyn Pager>,
    memory: Mapped,
    /// After the mapping that is registered with it.
    _faults: Faults,
    desk: &'static Desk,
    state: Mutex<State>,
}

/// The userfaultfd of this process's own mapping.
struct Faults(Fd);

impl Drop for Faults {
    fn drop(&mut self) {
        file::close(self.0);
    }
}

struct State {
    pages: Shared<Waiter>,
    mappings: Vec<Arc<Mapping>>,
}

/// Pages of an object in the memory of a process.
pub struct Mapping {
    /// Whose.
    pub(super) space: Arc<Space>,
    /// What.
    pub(super) object: Arc<Object>,
    /// Where, the address of the first page.
    pub(super) address: usize,
    /// Which pages.
    pub(super) pages: PageRange,
    /// How its threads go through pages that are there.
    pub(super) streams: Mutex<Streams>,
}

/// A thread that waits for a page.
struct Waiter {
    mapping: Arc<Mapping>,
    page: u64,
    write: bool,
}

impl Mapping {
    /// The part of `pages` that it maps: where, and how many bytes.
    fn part(&self, pages: PageRange) -> Option<(usize, usize)> {
        let part = self.pages.intersect(pages);
        let before = part.start.0.checked_sub(self.pages.start.0)? as usize;
        let bytes = part.bytes() as usize;
        (bytes > 0).then(|| (self.address + before * PAGE_BYTES, bytes))
    }

    /// The page at an address.
    fn page_at(&self, address: usize) -> Option<u64> {
        let before = address.checked_sub(self.address)? / PAGE_BYTES;
        let page = self.pages.start.0 + before as u64;
        self.pages.contains(PageIndex(page)).then_some(page)
    }

    /// Pages to let in with `page` as far as they are there: more and more in a run.
    fn plan(&self, page: u64) -> PageRange {
        match lock(&self.streams).fault(page) {
            Plan::Forward(count) => PageRange::new(page, page + count.max(AROUND)),
            Plan::Backward(count) => {
                PageRange::new((page + 1).saturating_sub(count.max(AROUND)), page + 1)
            }
            Plan::Alone | Plan::Strided { .. } => {
                let start = page / AROUND * AROUND;
                PageRange::new(start, start + AROUND)
            }
        }
    }

    fn lets_in(&self, pages: PageRange) {
        lock(&self.streams).brought(pages.start.0, pages.end.0);
    }

    /// True when `address` lies in it.
    pub(super) fn has(&self, address: usize) -> bool {
        self.page_at(address).is_some()
    }

    /// A thread has faulted at `address`, to `write` or to read.
    pub(super) fn fault(self: &Arc<Self>, address: usize, write: bool) {
        match self.page_at(address) {
            Some(page) => self.object.want(vec![Waiter {
                mapping: Arc::clone(self),
                page,
                write,
            }]),
            None => self.space.wake(address, PAGE_BYTES),
        }
    }
}

impl Object {
    pub(super) fn new(
        name: &CStr,
        number: ObjectId,
        pages: u64,
        pager: Arc<dyn Pager>,
        temporary: bool,
        desk: &'static Desk,
    ) -> Result<Self, Errno> {
        let (own, _) = uffd::open(None)?;
        let faults = Faults(own.0);
        own.enable(0)?;
        let memory = Mapped::create(name, pages * PAGE_BYTES as u64, own)?;
        let state = State {
            pages: Shared::new(pages, temporary),
            mappings: Vec::new(),
        };
        Ok(Self {
            number,
            pager,
            memory,
            _faults: faults,
            desk,
            state: Mutex::new(state),
        })
    }

    /// Its number.
    pub fn number(&self) -> ObjectId {
        self.number
    }

    /// Its size.
    pub fn pages(&self) -> u64 {
        self.lock().pages.pages()
    }

    /// The memory file, for who is to map it.
    pub fn descriptor(&self) -> Fd {
        self.memory.fd()
    }

    /// Pages in memory.
    pub fn resident(&self) -> u64 {
        self.lock().pages.resident()
    }

    pub(super) fn add(&self, mapping: Arc<Mapping>) {
        self.lock().mappings.push(mapping);
    }

    pub(super) fn remove(&self, mapping: &Arc<Mapping>) {
        let keep = |other: &Arc<Mapping>| !Arc::ptr_eq(other, mapping);
        self.lock().mappings.retain(keep);
    }

    /// Threads want pages. What is there is let in; the rest is had for them.
    fn want(&self, mut all: Vec<Waiter>) {
        while let Some(waiter) = all.pop() {
            let (mapping, page, write) = (Arc::clone(&waiter.mapping), waiter.page, waiter.write);
            let mut state = self.lock();
            let want = |pages: &mut Shared<_>| pages.want(page, write, waiter, 1, WINDOW);
            match self.change(&mut state, want) {
                Wanted::There { pages, writable } => {
                    let within = mapping.plan(page).intersect(mapping.pages);
                    let pages = state.pages.there_around(pages, within, writable);
                    mapping.lets_in(pages);
                    if let Some((at, bytes)) = mapping.part(pages) {
                        // A process that is gone, or has unmapped it, needs nothing.
                        let _ = mapping.space.let_in(at, bytes, writable);
                    }
                }
                Wanted::Waits => {}
                Wanted::Zero(pages) => {
                    let (at, bytes) = (pages.start.0 * PAGE_BYTES as u64, pages.bytes());
                    let there = file::allocate(self.memory.fd(), at, bytes);
                    drop(state);
                    match there {
                        Ok(()) => all.extend(self.came(pages, pages.pages())),
                        Err(_) => all.extend(self.cannot(pages, page, PagerError::OutOfSpace)),
                    }
                }
                Wanted::Fetch(pages) => {
                    drop(state);
                    all.extend(self.fetch(pages, page, write));
                }
            }
        }
    }

    /// Asks the pager for pages, of which `page` is wanted. Returns who goes on.
    fn fetch(&self, pages: PageRange, page: u64, write: bool) -> Vec<Waiter> {
        let mut buffer = vec![0; pages.bytes() as usize];
        let needed = page + 1 - pages.start.0;
        let access = if write { Access::Write } else { Access::Read };
        let asked = Asked {
            object: self.number,
            pages,
            page,
        };
        let number = || {
            let number = self.desk.next.fetch_add(1, Ordering::Relaxed);
            lock(&self.desk.asked).insert(number, asked);
            number
        };
        let request = DataRequest::new(self.number, pages, needed, access, &mut buffer);
        match self
            .pager
            .data_request(request.or_later(self.desk.answers, &number))
        {
            // A ticket: the answer comes to `supplied` or `failed`.
            Ok(supplied) if supplied.pages == 0 => Vec::new(),
            Ok(supplied) if supplied.pages <= pages.pages() => {
                self.put_in(asked, &buffer[..supplied.pages as usize * PAGE_BYTES])
            }
            Ok(_) => self.cannot(pages, page, PagerError::Violation),
            Err(error) => self.cannot(pages, page, error),
        }
    }

    /// A late answer: the first of the pages, whole.
    pub(super) fn supplied(&self, asked: Asked, contents: &[u8]) {
        let fits = contents.len() as u64 <= asked.pages.bytes() && !contents.is_empty();
        let go_on = match fits {
            true => self.put_in(asked, contents),
            false => self.cannot(asked.pages, asked.page, PagerError::Violation),
        };
        self.want(go_on);
    }

    /// A late refusal.
    pub(super) fn failed(&self, asked: Asked, error: PagerError) {
        self.want(self.cannot(asked.pages, asked.page, error));
    }

    fn put_in(&self, asked: Asked, contents: &[u8]) -> Vec<Waiter> {
        let offset = asked.pages.start.0 * PAGE_BYTES as u64;
        match self.memory.supply(offset, contents) {
            Ok(()) => self.came(asked.pages, (contents.len() / PAGE_BYTES) as u64),
            Err(_) => self.cannot(asked.pages, asked.page, PagerError::OutOfSpace),
        }
    }

    fn came(&self, pages: PageRange, supplied: u64) -> Vec<Waiter> {
        self.change(&mut self.lock(), |all| all.came(pages, supplied))
    }

    /// `page` cannot be had. Who waits for it gets a signal, and the others ask again.
    fn cannot(&self, pages: PageRange, page: u64, error: PagerError) -> Vec<Waiter> {
        let (failed, others): (Vec<Waiter>, _) = self
            .came(pages, 0)
            .into_iter()
            .partition(|waiter| waiter.page == page);
        if !failed.is_empty() {
            let mut why = String::new();
            if !self.pager.explain(self.number, PageIndex(page), &mut why) {
                why = error.to_string();
            }
            eprintln!(
                "farpage: cannot page in page {page} of object {}: {why}",
                self.number.0
            );
        }
        for waiter in failed {
            if let Some((at, _)) = waiter.mapping.part(PageRange::one(PageIndex(page))) {
                let _ = waiter.mapping.space.refuse(at);
            }
        }
        others
    }

    /// Takes about `wanted` pages out of memory. Returns how many.
    pub fn evict(&self, wanted: u64) -> u64 {
        let mut freed = 0;
        while freed < wanted {
            let mut state = self.lock();
            match self.change(&mut state, |pages| pages.choose(|_| false)) {
                None => break,
                Some(Leaving::Clean(pages)) => {
                    self.punch(pages);
                    freed += pages.pages();
                }
                Some(Leaving::Dirty(pages)) => {
                    protect(&state, pages);
                    drop(state);
                    match self.hand_over(pages, false) {
                        // The pager takes nothing, or all of it is wanted again: for now.
                        Err(_) | Ok(0) => break,
                        Ok(gone) => freed += gone,
                    }
                }
            }
        }
        freed
    }

    /// Writes back what is dirty of `pages`; it stays in memory.
    ///
    /// # Errors
    /// The first error of the pager.
    pub fn clean(&self, pages: PageRange) -> Result<(), PagerError> {
        loop {
            let mut state = self.lock();
            let Some(run) = state.pages.choose_dirty(pages.start.0..pages.end.0) else {
                return Ok(());
            };
            protect(&state, run);
            drop(state);
            self.hand_over(run, true)?;
        }
    }

    /// Hands pages that leave, and are protected, to the pager. Returns how many are gone.
    fn hand_over(&self, pages: PageRange, stay: bool) -> Result<u64, PagerError> {
        let mut contents = vec![[0; PAGE_BYTES]; pages.pages() as usize];
        let offset = pages.start.0 * PAGE_BYTES as u64;
        let read = file::pread(self.memory.fd(), contents.as_flattened_mut(), offset);
        let pairs = pages.iter().zip(&contents);
        let out: Vec<PageOut<'_>> = pairs.map(|(page, bytes)| PageOut { page, bytes }).collect();
        let taken = match read {
            Ok(bytes) if bytes as u64 == pages.bytes() => self.pager.data_write(self.number, &out),
            Ok(_) => Err(PagerError::Write(Errno::EIO.0)),
            Err(errno) => Err(PagerError::Write(errno.0)),
        };
        let mut state = self.lock();
        let left = self.change(&mut state, |all| all.left(pages, taken.is_ok(), stay));
        // With the lock held: nobody brings them in again before they are out.
        left.gone.iter().for_each(|pages| self.punch(*pages));
        drop(state);
        self.want(left.waited);
        let gone = left.gone.iter().map(|pages| pages.pages()).sum();
        taken.map(|()| gone)
    }

    fn punch(&self, pages: PageRange) {
        let offset = pages.start.0 * PAGE_BYTES as u64;
        if let Err(errno) = self.memory.take_out(offset, pages.bytes() as usize) {
            eprintln!(
                "farpage: cannot take pages of object {} out ({errno})",
                self.number.0
            );
        }
    }

    /// Does something by which pages may come or go.
    fn change<T>(&self, state: &mut State, act: impl FnOnce(&mut Shared<Waiter>) -> T) -> T {
        let before = state.pages.resident();
        let done = act(&mut state.pages);
        let change = state.pages.resident().wrapping_sub(before);
        self.desk.resident.fetch_add(change, Ordering::Relaxed);
        done
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn protect(state: &State, pages: PageRange) {
    for mapping in &state.mappings {
        if let Some((at, bytes)) = mapping.part(pages) {
            // One that is gone writes no more.
            let _ = mapping.space.protect(at, bytes);
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let resident = self.resident();
        self.desk.resident.fetch_sub(resident, Ordering::Relaxed);
        self.pager.terminate(self.number);
    }
}
