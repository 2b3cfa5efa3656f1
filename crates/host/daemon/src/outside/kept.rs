//! Modified pages: to the pager, or to the default pager, which keeps them until the pager takes
//! them.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use farpage_object::outside::Outcome;
use farpage_object::{
    Access, DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageOut, PageRange, PagerError, Supplied,
};
use farpage_sys::lock;

use super::pager::{AGAIN, Outside};

/// A pager has so much time to take pages while page-out waits: then the default pager keeps them.
const TAKING: Duration = Duration::from_millis(50);
/// Pages of a write: they fit into a message.
const WRITE_PAGES: u64 = 8;

impl Outside {
    /// Modified pages leave: to the pager if it takes them in time, else to the default pager.
    pub(super) fn write(&self, object: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        let follows = |one: &PageOut<'_>, next: &PageOut<'_>| one.page.0 + 1 == next.page.0;
        let runs = pages.chunk_by(follows);
        let runs = runs.flat_map(|run| run.chunks(WRITE_PAGES as usize));
        let range = |run: &[PageOut<'_>]| {
            let first = run[0].page.0;
            PageRange::new(first, first + run.len() as u64)
        };
        let writes = runs.map(|run| (run, range(run), self.send(range(run), run)));
        let writes: Vec<_> = writes.collect();
        let until = Instant::now() + TAKING;
        let mut result = Ok(());
        for (run, pages, sent) in writes {
            let taken = match sent {
                Some(id) => self.wait(id, until),
                None => Err(None),
            };
            match taken {
                Ok(()) => self.forget_kept(object, pages),
                Err(late) => {
                    let refused = sent.is_some() && late.is_none();
                    result = result.and(self.keep(object, pages, run, late, refused));
                }
            }
        }
        result
    }

    /// Pages that are kept, the first of the request among them. They are kept until their pager has taken
    /// them: it is told then that it has all that was written before.
    pub(super) fn request_kept(
        &self,
        request: &mut DataRequest<'_>,
    ) -> Option<Result<Supplied, PagerError>> {
        let _keeping = lock(&self.keeping);
        let state = self.state();
        let (is_kept, run) = state.under_way.kept_first(request.pages());
        if !is_kept {
            return None;
        }
        // The pager may have locked them before they left, or since: it is asked who may write to them.
        let locked = state.locks.then_some(Access::Write);
        drop(state);
        let (object, access) = (request.object(), request.access());
        let needed = request.needed().min(run.pages());
        let buffer = &mut request.buffer()[..run.bytes() as usize];
        let copied = DataRequest::new(object, run, needed, access, buffer).copied();
        let mut supplied = match self.paging_space.data_request(copied) {
            Ok(supplied) => Supplied { locked, ..supplied },
            Err(error) => return Some(Err(error)),
        };
        if supplied.precious {
            // It is one that gives all away. Without room for it there memory has the only copy again.
            let given = &request.buffer()[..supplied.pages as usize * PAGE_BYTES];
            supplied.precious = self.take_back(object, run.start, given).is_err();
            if supplied.precious {
                let end = run.start.0 + supplied.pages;
                let pages = PageRange::new(run.start.0, end);
                self.state().under_way.forget(pages);
                self.all.press_orders();
            }
        }
        Some(Ok(supplied))
    }

    /// Sends a run of pages to the pager; the number of that, unless they are to be kept.
    fn send(&self, pages: PageRange, contents: &[PageOut<'_>]) -> Option<u64> {
        let mut state = self.state();
        let id = state.under_way.begin_write(pages)?;
        let bytes = contents.iter().flat_map(|page| page.bytes).copied();
        let bytes: Vec<u8> = bytes.collect();
        let session = state.session.as_ref();
        let sent = session.is_some_and(|session| {
            let sent = session.pager.data_write(id, pages.start.0, bytes.into());
            sent.is_ok()
        });
        if !sent {
            state.under_way.withdraw(id);
        }
        sent.then_some(id)
    }

    /// Waits for the pager to take a write, until `until`: `Err` with its number when the pager has
    /// it still, and without when it was refused.
    fn wait(&self, id: u64, until: Instant) -> Result<(), Option<u64>> {
        let mut state = self.state();
        loop {
            match state.under_way.outcome(id) {
                Outcome::Taken => return Ok(()),
                Outcome::Refused => return Err(None),
                Outcome::Waits => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let is_overdue = state.under_way.is_overdue(id);
                return Err(is_overdue.then_some(id));
            }
            let waited = self.wrote.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The default pager takes pages in place of the pager, which has them as write `sent`, or has
    /// `refused` them.
    fn keep(
        &self,
        object: ObjectId,
        pages: PageRange,
        contents: &[PageOut<'_>],
        sent: Option<u64>,
        refused: bool,
    ) -> Result<(), PagerError> {
        let _keeping = lock(&self.keeping);
        self.paging_space.data_write(object, contents)?;
        self.state().under_way.keep(pages, sent, refused);
        self.all.press();
        Ok(())
    }

    /// The pager has the newest contents of pages: what is kept of them is old.
    fn forget_kept(&self, object: ObjectId, pages: PageRange) {
        if self.state().under_way.keeps_some(pages) {
            let _keeping = lock(&self.keeping);
            self.state().under_way.forget(pages);
            self.paging_space.discard(object, pages);
            self.all.press_orders();
        }
    }

    /// Gives some of the kept pages to the pager. True when it took them in time, and there can be more.
    pub(super) fn gives_back(&self) -> bool {
        let Some(object) = self.number.get().copied() else {
            return false;
        };
        let taken = lock_and(&self.keeping, || {
            let taken = self.state().under_way.taken();
            for pages in &taken {
                self.paging_space.discard(object, *pages);
            }
            !taken.is_empty()
        });
        if taken {
            self.all.press_orders();
            if !self.owes() {
                self.all.has_given_back();
            }
        }
        let Some((id, pages)) = self.begin_return(object) else {
            return false;
        };
        match self.wait(id, Instant::now() + TAKING) {
            Ok(()) => {
                self.end_return(id, pages, true);
                true
            }
            Err(None) => {
                self.end_return(id, pages, false);
                false
            }
            // It may take them still.
            Err(Some(_)) => false,
        }
    }

    fn end_return(&self, id: u64, pages: PageRange, taken: bool) {
        let mut state = self.state();
        state.under_way.end_return(id, pages, taken);
        if state.orders > 0 {
            self.all.press_orders();
        }
    }

    /// Waits until the pager has taken what is kept for it, as long as there is one. Returns the
    /// pages that it has not.
    pub(super) fn waits_until_taken(&self, until: Instant) -> u64 {
        let mut state = self.state();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let owed = state.under_way.owed();
            if owed == 0 || left.is_zero() || !state.under_way.is_up() {
                return owed as u64;
            }
            // What is given back ends without a word: looked at from time to time.
            let waited = self.wrote.wait_timeout(state, left.min(TAKING));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends the next kept pages.
    fn begin_return(&self, object: ObjectId) -> Option<(u64, PageRange)> {
        let _keeping = lock(&self.keeping);
        let mut state = self.state();
        if state.again.is_some_and(|again| Instant::now() < again) {
            return None;
        }
        let (id, pages) = state.under_way.begin_return(WRITE_PAGES)?;
        drop(state);
        let contents = self.read_kept(object, pages);
        let mut state = self.state();
        let sent = contents.is_ok_and(|contents| {
            let session = state.session.as_ref();
            session.is_some_and(|session| {
                let sent = session.pager.data_write(id, pages.start.0, contents.into());
                sent.is_ok()
            })
        });
        if !sent {
            state.under_way.withdraw(id);
            let again = Instant::now() + AGAIN;
            state.again = Some(again);
            self.all.arm(again);
            return None;
        }
        Some((id, pages))
    }

    /// Paging space has given pages away, which it is to keep.
    fn take_back(
        &self,
        object: ObjectId,
        first: PageIndex,
        contents: &[u8],
    ) -> Result<(), PagerError> {
        let pages = (first.0..).zip(contents.as_chunks::<PAGE_BYTES>().0);
        let pages: Vec<PageOut<'_>> = pages
            .map(|(page, bytes)| PageOut {
                page: PageIndex(page),
                bytes,
            })
            .collect();
        self.paging_space.data_write(object, &pages)
    }

    /// What paging space has of kept pages; it has them still after that.
    fn read_kept(&self, object: ObjectId, pages: PageRange) -> Result<Vec<u8>, PagerError> {
        let mut contents = vec![0; pages.bytes() as usize];
        let mut at = pages.start.0;
        while at < pages.end.0 {
            let rest = PageRange::new(at, pages.end.0);
            let begin = (at - pages.start.0) as usize * PAGE_BYTES;
            let buffer = &mut contents[begin..];
            let request = DataRequest::new(object, rest, rest.pages(), Access::Read, buffer);
            let request = request.copied();
            let supplied = self.paging_space.data_request(request)?;
            if supplied.pages == 0 || supplied.pages > rest.pages() {
                return Err(PagerError::Violation);
            }
            if supplied.precious {
                let end = begin + supplied.pages as usize * PAGE_BYTES;
                let given = &contents[begin..end];
                // It had them a moment ago: there is room, or will be.
                while self.take_back(object, PageIndex(at), given).is_err() {
                    std::thread::sleep(TAKING);
                }
            }
            at += supplied.pages;
        }
        Ok(contents)
    }
}

fn lock_and<T>(mutex: &Mutex<()>, act: impl FnOnce() -> T) -> T {
    let _guard = lock(mutex);
    act()
}
