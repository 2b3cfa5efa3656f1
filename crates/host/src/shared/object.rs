//! One object: its memory file, its pager, who maps it.

use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard};

use farpage_abi::{Access, ObjectId, PAGE_BYTES, PageIndex, PageRange};
use farpage_object::{Leaving, Shared, Wanted};
use farpage_pagers::{DataRequest, PageOut, Pager, PagerError};
use farpage_sys::file::{self, Fd};
use farpage_sys::mapped::Mapped;
use farpage_sys::{Errno, uffd};

use super::Space;
use crate::host::lock;

/// Pages that are brought in together at most.
const WINDOW: u64 = 64;

/// A memory object that several processes map.
pub struct Object {
    number: ObjectId,
    pager: Arc<dyn Pager>,
    memory: Mapped,
    state: Mutex<State>,
}

struct State {
    pages: Shared<Waiter>,
    mappings: Vec<Arc<Mapping>>,
}

/// Pages of an object in the memory of a process.
pub struct Mapping {
    /// Whose.
    pub space: Arc<Space>,
    /// Where, the address of the first page.
    pub address: usize,
    /// Which pages.
    pub pages: PageRange,
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
}

impl Object {
    /// An object of `pages` pages. A `temporary` one begins as zeros; its pager has only what is
    /// handed to it.
    ///
    /// # Errors
    /// When Linux gives no memory file or userfaultfd, or the pager refuses.
    pub fn new(
        name: &CStr,
        number: ObjectId,
        pages: u64,
        pager: Arc<dyn Pager>,
        temporary: bool,
    ) -> Result<Self, Errno> {
        let (own, _) = uffd::open(None)?;
        own.enable(0)?;
        let memory = Mapped::create(name, pages * PAGE_BYTES as u64, own)?;
        pager.init(number, pages).map_err(|_| Errno::EPERM)?;
        let pages = Shared::new(pages, temporary);
        Ok(Self {
            number,
            pager,
            memory,
            state: Mutex::new(State {
                pages,
                mappings: Vec::new(),
            }),
        })
    }

    /// The memory file, for who is to map it.
    pub fn descriptor(&self) -> Fd {
        self.memory.fd()
    }

    /// Pages in memory.
    pub fn resident(&self) -> u64 {
        self.lock().pages.resident()
    }

    /// A process has mapped pages of it.
    pub fn add(&self, mapping: Arc<Mapping>) {
        self.lock().mappings.push(mapping);
    }

    /// A process has it no more in its memory, or is no more.
    pub fn forget(&self, space: &Arc<Space>) {
        let keep = |mapping: &Arc<Mapping>| !Arc::ptr_eq(&mapping.space, space);
        self.lock().mappings.retain(keep);
    }

    /// A thread has faulted at `address` of a mapping, to `write` or to read.
    pub fn fault(&self, mapping: &Arc<Mapping>, address: usize, write: bool) {
        match mapping.page_at(address) {
            Some(page) => self.want(Waiter {
                mapping: Arc::clone(mapping),
                page,
                write,
            }),
            None => mapping.space.wake(address, PAGE_BYTES),
        }
    }

    fn want(&self, waiter: Waiter) {
        let mut all = vec![waiter];
        while let Some(waiter) = all.pop() {
            let (mapping, page, write) = (Arc::clone(&waiter.mapping), waiter.page, waiter.write);
            let mut state = self.lock();
            match state.pages.want(page, write, waiter, 1, WINDOW) {
                Wanted::There { pages, writable } => {
                    if let Some((at, bytes)) = mapping.part(pages) {
                        // A process that is gone, or has unmapped it, needs nothing.
                        let _ = mapping.space.let_in(at, bytes, writable);
                    }
                }
                Wanted::Waits => {}
                Wanted::Zero(pages) => {
                    let (at, bytes) = (pages.start.0 * PAGE_BYTES as u64, pages.bytes());
                    let there = file::allocate(self.memory.fd(), at, bytes);
                    let supplied = there.map_or(0, |()| pages.pages());
                    all.extend(self.came(state, pages, supplied));
                }
                Wanted::Fetch(pages) => {
                    drop(state);
                    all.extend(self.fetch(pages, page, write));
                }
            }
        }
    }

    /// Has the pager bring pages in, of which `page` is wanted. Returns who goes on.
    fn fetch(&self, pages: PageRange, page: u64, write: bool) -> Vec<Waiter> {
        let mut buffer = vec![0; pages.bytes() as usize];
        let needed = page + 1 - pages.start.0;
        let access = if write { Access::Write } else { Access::Read };
        let request = DataRequest::new(self.number, pages, needed, access, &mut buffer);
        let supplied = match self.pager.data_request(request) {
            Ok(supplied) if supplied.pages > 0 && supplied.pages <= pages.pages() => supplied.pages,
            Ok(_) => return self.cannot(pages, page, PagerError::Violation),
            Err(error) => return self.cannot(pages, page, error),
        };
        let contents = &buffer[..supplied as usize * PAGE_BYTES];
        let offset = pages.start.0 * PAGE_BYTES as u64;
        if self.memory.supply(offset, contents).is_err() {
            return self.cannot(pages, page, PagerError::OutOfSpace);
        }
        self.came(self.lock(), pages, supplied)
    }

    fn came(
        &self,
        mut state: MutexGuard<'_, State>,
        pages: PageRange,
        supplied: u64,
    ) -> Vec<Waiter> {
        state.pages.came(pages, supplied)
    }

    /// `page` cannot be had. Who waits for it gets a signal, and the others ask again.
    fn cannot(&self, pages: PageRange, page: u64, error: PagerError) -> Vec<Waiter> {
        let waiting = self.lock().pages.came(pages, 0);
        let (failed, others) = waiting.into_iter().partition(|waiter| waiter.page == page);
        let failed: Vec<Waiter> = failed;
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
            match state.pages.choose(|_| false) {
                None => break,
                Some(Leaving::Clean(pages)) => {
                    self.punch(pages);
                    freed += pages.pages();
                }
                Some(Leaving::Dirty(pages)) => {
                    protect(&state, pages);
                    drop(state);
                    let gone = self.page_out(pages, false);
                    if gone == 0 {
                        break;
                    }
                    freed += gone;
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

    fn page_out(&self, pages: PageRange, stay: bool) -> u64 {
        self.hand_over(pages, stay).unwrap_or(0)
    }

    /// Hands pages that leave, and are protected, to the pager. Returns how many are gone.
    fn hand_over(&self, pages: PageRange, stay: bool) -> Result<u64, PagerError> {
        let mut contents = vec![[0; PAGE_BYTES]; pages.pages() as usize];
        let offset = pages.start.0 * PAGE_BYTES as u64;
        let read = file::pread(self.memory.fd(), contents.as_flattened_mut(), offset);
        let out: Vec<PageOut<'_>> = pages
            .iter()
            .zip(&contents)
            .map(|(page, bytes)| PageOut { page, bytes })
            .collect();
        let taken = match read {
            Ok(bytes) if bytes as u64 == pages.bytes() => self.pager.data_write(self.number, &out),
            Ok(_) => Err(PagerError::Write(Errno::EIO.0)),
            Err(errno) => Err(PagerError::Write(errno.0)),
        };
        let mut state = self.lock();
        let left = state.pages.left(pages, taken.is_ok(), stay);
        // With the lock held: nobody brings them in again before they are out.
        left.gone.iter().for_each(|pages| self.punch(*pages));
        drop(state);
        left.waited.into_iter().for_each(|waiter| self.want(waiter));
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
        self.pager.terminate(self.number);
    }
}
