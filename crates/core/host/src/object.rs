//! One object: its memory file, its pager, who maps it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use farpage_object::{Access, ObjectId, PAGE_BYTES, PageIndex, PageRange};
use farpage_object::{DataRequest, PageOut, Pager, PagerError, Supplied};
use farpage_object::{GRANT_PAGES, Shared, Wanted};
use farpage_sys::buffer::Buffer;
use farpage_sys::file::{self, Fd};
use farpage_sys::mapped::Mapped;
use farpage_sys::{Errno, lock, uffd};

use crate::budget::WINDOW_MAX;
use crate::counters::{Counters, ObjectFigures, now_ns};
use crate::objects::Objects;
use crate::share::Share;
use crate::space::Mapping;
use crate::trace::{Event, Tracer, What};
use crate::waiter::{MappedBy, Thread, Waiter, Who};

/// Time between two looks at pages that are on their way.
const ON_ITS_WAY: Duration = Duration::from_micros(200);
/// Time between two messages that pages of an object cannot be had.
const BETWEEN_FAILURES: Duration = Duration::from_secs(1);

/// What is said of pages that cannot be had.
#[derive(Default)]
struct Failures {
    /// When something was said last.
    said: Option<Instant>,
    /// How many were not said since.
    unsaid: u64,
}

/// Pages of an object that its pager was asked for.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) object: ObjectId,
    pub(crate) pages: PageRange,
    /// The one that somebody waits for, and whether to write.
    pub(crate) wanted: Option<(u64, bool)>,
    /// When the pager was asked.
    pub(crate) since_ns: u64,
}

/// A memory object that several processes map.
pub struct Object {
    name: String,
    pub(crate) number: ObjectId,
    pub(crate) pager: Arc<dyn Pager>,
    pub(crate) temporary: bool,
    pub(crate) memory: Mapped,
    /// After the mapping that is registered with it.
    _faults: Option<Faults>,
    /// The file that has its size.
    sized_by: Option<OwnedFd>,
    pub(crate) host: &'static Objects,
    state: Mutex<State>,
    /// As `state` has it, for who only compares objects.
    resident: AtomicU64,
    /// Pages that came lately, or were used again before they left: what it would miss.
    recent: AtomicU64,
    /// The most pages that it may have in memory.
    most: AtomicU64,
    /// It is a part of that.
    share: OnceLock<Arc<Share>>,
    pub(crate) counters: Counters,
    pub(crate) tracer: Tracer,
    /// What is said of its pages that cannot be had.
    failures: Mutex<Failures>,
}

/// The userfaultfd of this process's own mapping.
struct Faults(Fd);

impl Drop for Faults {
    fn drop(&mut self) {
        file::close(self.0);
    }
}

pub(crate) struct State {
    pub(crate) pages: Shared<Waiter>,
    pub(crate) mappings: Vec<Arc<Mapping>>,
    /// Where the copies of pages are that are aside.
    pub(crate) aside: BTreeMap<u64, u32>,
    /// New pages that were refused: who touches them again gets SIGBUS.
    pub(crate) refused: BTreeSet<u64>,
}

thread_local! {
    /// Where pagers put pages, made when this thread first asks one.
    static BUFFER: Cell<Option<Buffer>> = const { Cell::new(None) };
}

/// More would stay in memory than may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireLimit {
    /// Whose limit: `the object`, `all objects of its user` or `all objects`.
    pub of: &'static str,
    /// What was to stay that may leave now.
    pub wanted_bytes: u64,
    /// What stays already.
    pub wired_bytes: u64,
    /// What may stay.
    pub most_bytes: u64,
}

impl Object {
    pub(crate) fn new(
        name: String,
        number: ObjectId,
        bytes: u64,
        pager: Arc<dyn Pager>,
        temporary: bool,
        sized_by: Option<OwnedFd>,
        host: &'static Objects,
    ) -> Result<Self, Errno> {
        let last = name.rsplit('/').next().unwrap_or_default();
        let short: Vec<u8> = last.bytes().filter(|b| *b != 0).take(200).collect();
        let label = CString::new(short).unwrap_or_default();
        let (memory, faults) = match sized_by {
            Some(_) => (Mapped::sparse(&label)?, None),
            None if host.is_for_calls => (Mapped::unmapped(&label, bytes)?, None),
            None => {
                let (own, _) = uffd::with_device(uffd::open)?;
                let faults = Faults(own.0);
                own.enable(0)?;
                (Mapped::create(&label, bytes, own)?, Some(faults))
            }
        };
        let pages = bytes.div_ceil(PAGE_BYTES as u64);
        let state = State {
            pages: Shared::new(pages, temporary),
            mappings: Vec::new(),
            aside: BTreeMap::new(),
            refused: BTreeSet::new(),
        };
        Ok(Self {
            name,
            number,
            pager,
            temporary,
            memory,
            _faults: faults,
            sized_by,
            host,
            state: Mutex::new(state),
            resident: AtomicU64::new(0),
            recent: AtomicU64::new(0),
            most: AtomicU64::new(u64::MAX),
            share: OnceLock::new(),
            counters: Counters::default(),
            tracer: Tracer::default(),
            failures: Mutex::default(),
        })
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.name
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

    /// The same, borrowed.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    /// What it has in memory and has not used lately, and what it has there at all: who has most gives first.
    pub(crate) fn idle(&self) -> (u64, u64) {
        let resident = self.resident();
        let recent = self.recent.load(Ordering::Relaxed);
        (resident.saturating_sub(recent), resident)
    }

    /// What came lately counts half from now on.
    pub(crate) fn ages(&self) {
        // What comes meanwhile may be lost: it is an estimate.
        let recent = self.recent.load(Ordering::Relaxed);
        self.recent.store(recent / 2, Ordering::Relaxed);
    }

    /// Pages in memory.
    pub fn resident(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    /// It may have so much in memory from now on.
    ///
    /// # Errors
    /// Bytes of it that are wired, when that is more than half.
    pub fn set_most(&self, bytes: u64) -> Result<(), u64> {
        let most = bytes / PAGE_BYTES as u64;
        let state = self.lock();
        let wired = state.pages.wired();
        if wired > most / 2 {
            return Err(wired * PAGE_BYTES as u64);
        }
        self.most.store(most, Ordering::Relaxed);
        drop(state);
        self.host.has_limits();
        self.host.press();
        Ok(())
    }

    /// What it has in memory is a part of `share`, too. Only the first is; to be called before
    /// anybody uses the object.
    pub fn belongs_to(&self, share: Arc<Share>) {
        // It has one.
        let _ = self.share.set(share);
        self.host.has_limits();
    }

    /// `pages`, and those of the same clusters, stay in memory once they are there, until
    /// [`Object::unwire`] was called as often.
    ///
    /// # Errors
    /// [`WireLimit`]; nothing has changed then.
    ///
    /// # Panics
    /// When the object does not have them.
    pub fn wire(&self, pages: PageRange) -> Result<(), WireLimit> {
        let mut state = self.lock();
        assert!(pages.end.0 <= state.pages.pages(), "beyond the end");
        let new = state.pages.would_wire(pages);
        let share = self.share.get();
        let parts = [
            ("the object", state.pages.wired(), self.own_most()),
            (
                "all objects of its user",
                share.map_or(0, |share| share.wired.load(Ordering::Relaxed)),
                share.map_or(u64::MAX, |share| share.pages()),
            ),
            (
                "all objects",
                self.host.wired.load(Ordering::Relaxed),
                self.host.room.bytes() / PAGE_BYTES as u64,
            ),
        ];
        for (of, wired, most) in parts {
            if wired + new > most / 2 {
                let bytes = |pages| pages * PAGE_BYTES as u64;
                return Err(WireLimit {
                    of,
                    wanted_bytes: bytes(new),
                    wired_bytes: bytes(wired),
                    most_bytes: bytes(most / 2),
                });
            }
        }
        state.pages.wire(pages);
        self.wired_changes(new as i64);
        Ok(())
    }

    /// The opposite of [`Object::wire`].
    ///
    /// # Panics
    /// When one of them is not wired.
    pub fn unwire(&self, pages: PageRange) {
        let mut state = self.lock();
        state.pages.unwire(pages);
        self.wired_changes(-(state.pages.would_wire(pages) as i64));
        drop(state);
        if self.excess() > 0 {
            self.host.press();
        }
    }

    fn wired_changes(&self, change: i64) {
        let all = core::iter::once(&self.host.wired);
        for wired in all.chain(self.share.get().map(|share| &share.wired)) {
            wired.fetch_add(change as u64, Ordering::Relaxed);
        }
    }

    /// Pages in memory beyond what it may have, itself or with others.
    fn excess(&self) -> u64 {
        let shared = self.share.get().map_or(0, |share| share.excess());
        self.own_excess().max(shared)
    }

    /// Pages in memory beyond what it may have itself.
    pub(crate) fn own_excess(&self) -> u64 {
        self.resident().saturating_sub(self.own_most())
    }

    /// What it is a part of.
    pub(crate) fn share(&self) -> Option<&Arc<Share>> {
        self.share.get()
    }

    /// So much beyond what it may have that who brings more pages in is to wait.
    pub(crate) fn is_overfull(&self) -> bool {
        self.own_excess() > self.own_most() / 8
    }

    /// What it may have itself, if that was set.
    pub fn most_bytes(&self) -> Option<u64> {
        let most = Some(self.own_most()).filter(|most| *most != u64::MAX);
        most.map(|pages| pages * PAGE_BYTES as u64)
    }

    /// True when a block of pages may be given away whole.
    fn may_grant(&self) -> bool {
        let own = self.own_most() / 4 * 3;
        let is_small = self.resident() + GRANT_PAGES <= own;
        let is_free = is_small && !self.pager.locks_pages();
        is_free && self.share.get().is_none_or(|share| share.has(GRANT_PAGES))
    }

    fn own_most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// The most that there ever were.
    pub(crate) fn resident_max(&self) -> u64 {
        self.lock().pages.resident_max()
    }

    /// What is counted of it.
    pub fn figures(&self) -> ObjectFigures {
        let state = self.lock();
        let pages = &state.pages;
        let (dirty, aside, wired) = (pages.dirty(), pages.aside(), pages.wired());
        let (resident, resident_max) = (pages.resident(), pages.resident_max());
        drop(state);
        ObjectFigures {
            resident,
            resident_max,
            dirty,
            aside,
            wired,
            ..self.counters.figures()
        }
    }

    /// Its messages from number `from` on, `most` at most, and the number of the first of them:
    /// more than `from` when some are lost. They are kept for some seconds after the last call.
    pub fn trace(&self, from: u64, most: usize) -> (u64, Vec<Event>) {
        self.tracer.look(from, most)
    }

    /// Nobody looks any more: messages are forgotten, and none is kept.
    pub fn stop_trace(&self) {
        self.tracer.stop();
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn host(&self) -> &'static Objects {
        self.host
    }

    /// Device and inode number of the memory file.
    ///
    /// # Errors
    /// As `fstat(2)`.
    pub fn identity(&self) -> Result<(u64, u64), Errno> {
        self.memory.identity()
    }

    /// True while somebody maps it.
    pub fn is_mapped(&self) -> bool {
        !self.lock().mappings.is_empty()
    }

    /// True when a file has its size.
    pub(crate) fn is_sized(&self) -> bool {
        self.sized_by.is_some()
    }

    /// Its file has another size, perhaps: pages that are beyond it lose their contents.
    pub fn look_at_size(&self) {
        let Some(pages) = self.pages_of_file() else {
            return;
        };
        let mut before = self.pages();
        while pages != before {
            if pages < before {
                self.zero(PageRange::new(pages, before));
            }
            let mut state = self.lock();
            before = state.pages.pages();
            if self.set_pages(&mut state, pages) {
                return;
            }
        }
    }

    /// `page` is in it, perhaps since its file has grown.
    fn reaches(&self, page: u64) -> bool {
        if page < self.pages() {
            return true;
        }
        let pages = self.pages_of_file();
        let mut state = self.lock();
        let now = state.pages.pages();
        if let Some(pages) = pages.filter(|pages| *pages > now) {
            self.set_pages(&mut state, pages);
        }
        page < state.pages.pages()
    }

    /// Sets the number of pages. False when pages beyond that are there again.
    fn set_pages(&self, state: &mut State, pages: u64) -> bool {
        let now = state.pages.pages();
        let last = now.min(pages);
        let at_end = PageRange::new(last.saturating_sub(1), last);
        if let Some(block) = state.pages.granted_in(at_end)
            && !self.take_back(state, block)
        {
            return false;
        }
        if pages < now && !self.change(state, |all| all.discard(PageRange::new(pages, now))) {
            return false;
        }
        self.change(state, |all| all.set_pages(pages));
        true
    }

    fn pages_of_file(&self) -> Option<u64> {
        let status = file::status(Fd(self.sized_by.as_ref()?.as_raw_fd())).ok()?;
        Some(status.bytes.div_ceil(PAGE_BYTES as u64))
    }

    /// The contents of `pages` are zeros from now on. Waits for what is on its way.
    pub fn zero(&self, pages: PageRange) {
        loop {
            let mut state = self.lock();
            let pages = pages.intersect(PageRange::new(0, state.pages.pages()));
            if pages.is_empty() {
                return;
            }
            while let Some(block) = state.pages.granted_in(pages) {
                if !self.take_back(&mut state, block) {
                    break;
                }
            }
            if self.change(&mut state, |all| all.discard(pages)) {
                // With the lock held: nobody brings them in, or hands them over, meanwhile.
                self.forget(&mut state, pages);
                self.punch(pages);
                self.pager.discard(self.number, pages);
                return;
            }
            drop(state);
            std::thread::sleep(ON_ITS_WAY);
        }
    }

    /// First contents, whole pages from `first` on, of a temporary object that nobody maps yet.
    ///
    /// # Errors
    /// As the pager has no room for them.
    pub fn begin_with(&self, first: u64, contents: &[[u8; PAGE_BYTES]]) -> Result<(), PagerError> {
        let pages = PageRange::new(first, first + contents.len() as u64);
        let pairs = pages.iter().zip(contents);
        let out: Vec<PageOut<'_>> = pairs.map(|(page, bytes)| PageOut { page, bytes }).collect();
        self.pager.data_write(self.number, &out)?;
        self.lock().pages.are_out(pages);
        Ok(())
    }

    /// One of its pages cannot be had. Whether that is to be said, and then how many were not since
    /// the last that was: nobody reads a line for each page of a large object.
    pub(crate) fn failure(&self) -> Option<u64> {
        let mut failures = lock(&self.failures);
        if failures
            .said
            .is_some_and(|at| at.elapsed() < BETWEEN_FAILURES)
        {
            failures.unsaid += 1;
            return None;
        }
        failures.said = Some(Instant::now());
        Some(std::mem::take(&mut failures.unsaid))
    }

    pub(crate) fn add(&self, mapping: Arc<Mapping>) {
        self.lock().mappings.push(mapping);
    }

    pub(crate) fn remove(&self, mapping: &Arc<Mapping>) {
        let keep = |other: &Arc<Mapping>| !Arc::ptr_eq(other, mapping);
        self.lock().mappings.retain(keep);
    }

    /// Somebody wants a page. What is there is let in; the rest is had for it.
    pub(crate) fn want(&self, waiter: Waiter) {
        self.want_all(vec![waiter]);
    }

    pub(crate) fn want_all(&self, mut all: Vec<Waiter>) {
        while let Some(waiter) = all.pop() {
            let (page, write, since_ns) = (waiter.page, waiter.write, waiter.since_ns);
            let who = waiter.who.clone();
            if !self.reaches(page) {
                waiter.is_beyond();
                continue;
            }
            let cluster = self.pager.cluster_pages(self.number, PageIndex(page));
            let (alone, window) = match self.pager.answers_clusters_apart() {
                true => (cluster, 0),
                false => {
                    let alone = cluster.max(self.host.room.neighbours());
                    let window = self.host.room.window(self.host);
                    (alone, window.min((self.own_most() / 4).max(alone)))
                }
            };
            let takes_new = !self.temporary || self.host.takes_new();
            let mut state = self.lock();
            if !takes_new && state.pages.is_new(page) {
                drop(state);
                self.host.has_wait(self.number, waiter);
                continue;
            }
            if let Who::Thread(Thread {
                mapped_by: MappedBy::Host(mapping),
                ..
            }) = &who
                && takes_new
                && mapping.space.can_be_left()
                && self.host.room.is_plenty(self.host)
                && self.may_grant()
            {
                self.change(&mut state, |pages| pages.grant(page));
            }
            let want = |pages: &mut Shared<_>| pages.want(page, write, waiter, alone, window);
            match self.change(&mut state, want) {
                Wanted::There { pages, writable } => {
                    let woken = self.goes_on(&state, &who, page, pages, writable);
                    if writable && self.host.is_full() {
                        self.give_up_old(&mut state, pages);
                    }
                    drop(state);
                    self.counters.faults.add(now_ns().saturating_sub(since_ns));
                    if let (Who::Thread(thread), Some((at, bytes))) = (&who, woken) {
                        thread.space.wake(at, bytes);
                    }
                }
                Wanted::Granted(pages) => match &who {
                    Who::Thread(thread) if thread.is_left(pages) => {
                        drop(state);
                        self.counters.faults.add(now_ns().saturating_sub(since_ns));
                        // Linux wakes those who wait when it first leaves the range. A thread
                        // that was on its way into a fault then begins to wait after that.
                        thread.wake();
                    }
                    Who::Thread(_) | Who::Call(_) => {
                        let waiter = Waiter {
                            page,
                            write,
                            since_ns,
                            who,
                        };
                        let block = state.pages.block_of(page);
                        match self.take_back(&mut state, block) {
                            true => all.push(waiter),
                            false => waiter.fail(self, "too much is mapped"),
                        }
                    }
                },
                Wanted::Unlock(pages) => {
                    drop(state);
                    self.tracer.note(What::Unlock, 0, pages, 0);
                    let page = pages.start;
                    if self.pager.data_unlock(self.number, page, Access::Write) {
                        all.extend(self.unlocked(pages));
                    }
                }
                Wanted::Waits => {
                    drop(state);
                    // It may have been for nobody so far.
                    self.pager.hasten(self.number, PageIndex(page));
                }
                Wanted::Aside(pages) => all.extend(self.put_back(&mut state, pages)),
                Wanted::Zero(pages) => {
                    drop(state);
                    self.tracer.note(What::Zeros, 0, pages, 0);
                    self.host.room.charge(pages.pages(), self.host);
                    let (at, bytes) = (pages.start.0 * PAGE_BYTES as u64, pages.bytes());
                    let there = file::allocate(self.memory.fd(), at, bytes);
                    let asked = self.asked(pages, Some((page, write)));
                    all.extend(match there {
                        Ok(()) => self.came(pages, Supplied::clean(pages.pages())),
                        Err(_) => self.cannot(asked, PagerError::OutOfSpace),
                    });
                }
                Wanted::Fetch(pages) => {
                    drop(state);
                    self.counters.page_ins.fetch_add(1, Ordering::Relaxed);
                    self.host.room.charge(pages.pages(), self.host);
                    all.extend(self.request(self.asked(pages, Some((page, write)))));
                }
            }
        }
    }

    /// Does what somebody waited for with `pages`, which are there, `page` among them. Where to wake
    /// threads, after the lock is gone.
    fn goes_on(
        &self,
        state: &State,
        who: &Who,
        page: u64,
        pages: PageRange,
        writable: bool,
    ) -> Option<(usize, usize)> {
        match who {
            Who::Thread(thread) => match &thread.mapped_by {
                MappedBy::Host(mapping) => Some(self.let_in(state, mapping, page, pages, writable)),
                MappedBy::Linux { .. } => Some((thread.address, PAGE_BYTES)),
            },
            Who::Call(call) => {
                call.acts(self.memory.fd(), page);
                None
            }
        }
    }

    /// Somebody will want pages: asks for the first of them that are at the pager, `most` at most,
    /// for which there is room. Returns them.
    pub(crate) fn want_soon(&self, within: PageRange, most: u64) -> Option<PageRange> {
        let want = |pages: &mut Shared<_>| pages.want_soon(within.start.0..within.end.0, most);
        self.change(&mut self.lock(), want)
    }

    /// Asks the pager ahead of need for pages of [`Object::want_soon`] that were charged.
    pub(crate) fn request_soon(&self, pages: PageRange) {
        let go_on = self.request(self.asked(pages, None));
        self.want_all(go_on);
    }

    fn asked(&self, pages: PageRange, wanted: Option<(u64, bool)>) -> Asked {
        Asked {
            object: self.number,
            pages,
            wanted,
            since_ns: 0,
        }
    }

    /// Asks the pager for pages that were charged. Returns who goes on.
    fn request(&self, mut asked: Asked) -> Vec<Waiter> {
        let bytes = asked.pages.bytes() as usize;
        let kept = BUFFER.take();
        let buffer = kept.map_or_else(|| Buffer::new(WINDOW_MAX as usize * PAGE_BYTES), Ok);
        let Ok(mut buffer) = buffer else {
            return self.cannot(asked, PagerError::OutOfSpace);
        };
        asked.since_ns = self.counters.pager.asked();
        self.tracer.note(What::Request, 0, asked.pages, 0);
        let (needed, access) = match asked.wanted {
            Some((page, true)) => (page + 1 - asked.pages.start.0, Access::Write),
            Some((page, false)) => (page + 1 - asked.pages.start.0, Access::Read),
            None => (1, Access::Read),
        };
        let number = || self.host.ask(asked);
        let into = buffer.room(bytes);
        let mut request = DataRequest::new(self.number, asked.pages, needed, access, into);
        if asked.wanted.is_none() {
            request = request.ahead_of_need();
            self.host.under_way.begin(asked.pages.pages());
        }
        let go_on = match self
            .pager
            .data_request(request.or_later(self.host, &number))
        {
            // A ticket: the answer comes to `supplied` or `failed`.
            Ok(supplied) if supplied.pages == 0 => Vec::new(),
            Ok(supplied) if supplied.pages <= asked.pages.pages() => {
                let contents = &buffer[..supplied.pages as usize * PAGE_BYTES];
                self.answered(asked, supplied.pages, None);
                self.put_in(asked, contents, supplied)
            }
            Ok(_) => self.refused(asked, PagerError::Violation),
            Err(error) => self.refused(asked, error),
        };
        BUFFER.set(Some(buffer));
        go_on
    }

    /// A late answer: the first of the pages, whole.
    pub(crate) fn supplied(&self, asked: Asked, contents: &[u8], how: Supplied) {
        let fits = contents.len() as u64 <= asked.pages.bytes() && !contents.is_empty();
        let go_on = match fits {
            true => {
                self.answered(asked, (contents.len() / PAGE_BYTES) as u64, None);
                self.put_in(asked, contents, how)
            }
            false => self.refused(asked, PagerError::Violation),
        };
        self.want_all(go_on);
    }

    /// A late refusal.
    pub(crate) fn failed(&self, asked: Asked, error: PagerError) {
        self.want_all(self.refused(asked, error));
    }

    /// The pager has answered.
    fn answered(&self, asked: Asked, supplied: u64, error: Option<PagerError>) {
        self.counters.pager.answered(asked.since_ns, error);
        let took_ns = now_ns().saturating_sub(asked.since_ns);
        let start = asked.pages.start.0;
        let (what, pages) = match error {
            None => (What::Supply, PageRange::new(start, start + supplied)),
            Some(_) => (What::Unavailable, asked.pages),
        };
        self.tracer.note(what, 0, pages, took_ns);
    }

    /// The pager says that it has them not.
    fn refused(&self, asked: Asked, error: PagerError) -> Vec<Waiter> {
        self.answered(asked, 0, Some(error));
        self.cannot(asked, error)
    }

    fn put_in(&self, asked: Asked, contents: &[u8], how: Supplied) -> Vec<Waiter> {
        if !matches!(how.locked, None | Some(Access::Write)) {
            return self.cannot(asked, PagerError::Violation);
        }
        let offset = asked.pages.start.0 * PAGE_BYTES as u64;
        if self.memory.supply(offset, contents).is_err() {
            return self.cannot(asked, PagerError::OutOfSpace);
        }
        let pages = (contents.len() / PAGE_BYTES) as u64;
        let brought = &self.counters.brought;
        brought.fetch_add(pages, Ordering::Relaxed);
        if asked.wanted.is_none() {
            let ahead = &self.counters.ahead;
            ahead.fetch_add(pages, Ordering::Relaxed);
            self.host.under_way.end(asked.pages.pages());
        }
        self.came(asked.pages, Supplied { pages, ..how })
    }

    /// The first `supplied` of `pages` came, and the others did not. Wakes whom that is enough for;
    /// returns who asks again.
    fn came(&self, pages: PageRange, supplied: Supplied) -> Vec<Waiter> {
        let came = |all: &mut Shared<_>| {
            let (start, count) = (pages.start.0, supplied.pages);
            let who = all.came(pages, count, supplied.precious);
            if supplied.locked.is_some() {
                // Nobody has them mapped, or waits for their pager.
                all.lock(PageRange::new(start, start + count));
            }
            who
        };
        let all = self.change(&mut self.lock(), came);
        let (go_on, woken): (Vec<Waiter>, Vec<Waiter>) =
            all.into_iter().partition(Waiter::is_served_here);
        for waiter in &woken {
            let took = now_ns().saturating_sub(waiter.since_ns);
            self.counters.faults.add(took);
            if let Who::Thread(thread) = &waiter.who {
                thread.wake();
            }
        }
        go_on
    }

    /// The pages cannot be had, or not together. Who waits for the one that was wanted gets an
    /// error; returns who asks again.
    fn cannot(&self, asked: Asked, error: PagerError) -> Vec<Waiter> {
        let (start, end) = (asked.pages.start.0, asked.pages.end.0);
        let Some((page, write)) = asked.wanted else {
            self.host.under_way.end(asked.pages.pages());
            return self.came(asked.pages, Supplied::clean(0));
        };
        if asked.pages.pages() > 1 && !error.is_of_the_object() {
            // Only what somebody waits for matters, and it may be had alone.
            let others = [PageRange::new(start, page), PageRange::new(page + 1, end)];
            let others = others.into_iter().filter(|pages| !pages.is_empty());
            let mut go_on: Vec<Waiter> = others
                .flat_map(|pages| self.came(pages, Supplied::clean(0)))
                .collect();
            let alone = PageRange::one(PageIndex(page));
            go_on.extend(self.request(self.asked(alone, Some((page, write)))));
            return go_on;
        }
        let left = |all: &mut Shared<_>| all.came(asked.pages, 0, false);
        let failed = self.change(&mut self.lock(), left);
        let mut why = String::new();
        if !self.pager.explain(self.number, PageIndex(page), &mut why) {
            why = error.to_string();
        }
        failed.iter().for_each(|waiter| waiter.fail(self, &why));
        Vec::new()
    }

    /// Lets the process of a mapping in to pages that are there, `page` of the mapping among them,
    /// and to those around them. Returns where, and how many bytes: who waits there is to be woken.
    fn let_in(
        &self,
        state: &State,
        mapping: &Mapping,
        page: u64,
        pages: PageRange,
        writable: bool,
    ) -> (usize, usize) {
        let within = mapping.plan(page);
        let pages = state.pages.there_around(pages, within, writable);
        lock(&mapping.streams).brought(page, pages.start.0, pages.end.0);
        let part = mapping.part(pages);
        let (at, bytes) = part.expect("the page is of the mapping");
        if mapping.space.let_in(at, bytes, writable) == Err(Errno::EFAULT) {
            // Somebody who has the file has taken the contents out of it: they are zeros now, and
            // who wants them would fault for ever.
            let page = mapping.page_at(at).expect("part of it");
            let there = file::allocate(self.memory.fd(), page * PAGE_BYTES as u64, bytes as u64);
            // A process that is gone, or has unmapped it, needs nothing.
            let _ = there.and_then(|()| mapping.space.let_in(at, bytes, writable));
        }
        (at, bytes)
    }

    /// Does something by which pages may come or go. Room is given back here, and taken by whoever
    /// begins to bring pages in, without the lock.
    pub(crate) fn change<T>(
        &self,
        state: &mut State,
        act: impl FnOnce(&mut Shared<Waiter>) -> T,
    ) -> T {
        let (before, aside) = (state.pages.resident(), state.pages.aside());
        let done = act(&mut state.pages);
        let now = state.pages.resident();
        self.resident.store(now, Ordering::Relaxed);
        if now >= before {
            let back = aside.saturating_sub(state.pages.aside());
            self.recent
                .fetch_add(now - before + back, Ordering::Relaxed);
        }
        self.resident_changes(before, now);
        done
    }

    fn resident_changes(&self, before: u64, now: u64) {
        if let Some(share) = self.share.get() {
            share.changes(before, now);
        }
        self.host.resident_changes(before, now);
        if now > before && self.excess() > 0 {
            self.host.press();
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let state = state.unwrap_or_else(PoisonError::into_inner);
        for slot in std::mem::take(&mut state.aside).into_values() {
            self.host.copies.forget(slot);
        }
        self.host.remove(self);
        self.resident_changes(self.resident(), 0);
        let wired = self.lock().pages.wired();
        self.wired_changes(-(wired as i64));
        self.pager.terminate(self.number);
    }
}
