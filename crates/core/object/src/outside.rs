//! What is under way between the kernel and the pager of one object that is elsewhere: in another
//! process, which may be slow, lie, die at any step and come back.
//!
//! - **Requests** wait until the pager answers, or until their time is up. At most [`REQUESTS_MAX`]
//!   are with the pager; the others wait here, and so do all while there is no pager.
//! - **Unlocks**: pages that somebody wants to write to, and that the pager has locked. They wait
//!   like requests; the pager answers by locking or unlocking them, which it may do unasked.
//! - **Writes** are with the pager until it has taken them. One that is not taken in time is
//!   **overdue**.
//! - **Kept** pages are with the default pager, which took them in place of the pager, and are
//!   given to the pager when it takes pages again.
//!
//! Invariant: of a page, one write at most is with the pager. So what it takes last is newest.
//! Invariant: a kept page is forgotten only when the pager has taken its newest contents, or memory
//! has the only copy again.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use crate::{PageIndex, PageRange};

/// Requests that the pager has at a time.
pub const REQUESTS_MAX: usize = 32;
/// Writes that the pager has at a time.
pub const WRITES_MAX: usize = 8;
/// Pages that the pager is asked to unlock at a time.
pub const UNLOCKS_MAX: usize = 16;

/// What the pager may not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Answers what it was not asked, or a second time.
    Unasked(u64),
    /// Supplies no pages, or more than it was asked for.
    Length {
        /// Pages that it was asked for.
        asked: u64,
        /// Pages that it supplied; a part of one counts.
        supplied: u64,
    },
}

/// How a write stands that somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The pager has not said.
    Waits,
    /// The pager answers for the pages.
    Taken,
    /// It does not, or is gone.
    Refused,
}

/// What is under way. `T` is what a request is answered by.
pub struct Outside<T> {
    is_up: bool,
    next: u64,
    requests: BTreeMap<u64, Request<T>>,
    /// Requests that the pager does not have, in order.
    unsent: VecDeque<u64>,
    /// Numbers of requests whose time was up: the pager has them still.
    expired: BTreeSet<u64>,
    /// By page.
    unlocks: BTreeMap<u64, Unlock>,
    writes: BTreeMap<u64, Write>,
    kept: BTreeMap<u64, Kept>,
    /// Of the kept pages, those that were taken.
    taken: usize,
}

struct Request<T> {
    pages: PageRange,
    /// What the object waits for by it: what the pager does not supply of that comes to nothing.
    covers: PageRange,
    until: Option<u64>,
    is_sent: bool,
    answer: T,
}

struct Unlock {
    until: Option<u64>,
    is_sent: bool,
}

struct Write {
    pages: PageRange,
    state: WriteState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteState {
    Waited(Outcome),
    /// Nobody waits for it any more.
    Overdue,
}

#[derive(Clone, Copy)]
struct Kept {
    /// Numbers are given in order: the pager has all that was kept of the page before.
    number: u64,
    /// The write that has the same contents, if the pager has it.
    sent: Option<u64>,
    /// The pager has taken the same contents.
    taken: bool,
    /// It has refused them when they were last offered.
    refused: bool,
}

impl<T> Default for Outside<T> {
    fn default() -> Self {
        Self {
            is_up: false,
            next: 0,
            requests: BTreeMap::new(),
            unsent: VecDeque::new(),
            expired: BTreeSet::new(),
            unlocks: BTreeMap::new(),
            writes: BTreeMap::new(),
            kept: BTreeMap::new(),
            taken: 0,
        }
    }
}

impl<T> Outside<T> {
    /// There is a pager, which was told nothing so far.
    pub fn comes(&mut self) {
        self.goes();
        self.is_up = true;
    }

    /// There is none any more. What it had is to be sent again to the next one.
    pub fn goes(&mut self) {
        self.is_up = false;
        self.expired.clear();
        self.unsent = self.requests.keys().copied().collect();
        self.requests
            .values_mut()
            .for_each(|request| request.is_sent = false);
        self.unlocks
            .values_mut()
            .for_each(|unlock| unlock.is_sent = false);
        self.writes.retain(|_, write| {
            let is_waited = matches!(write.state, WriteState::Waited(_));
            if write.state == WriteState::Waited(Outcome::Waits) {
                write.state = WriteState::Waited(Outcome::Refused);
            }
            is_waited
        });
        for kept in self.kept.values_mut() {
            (kept.sent, kept.refused) = (None, false);
        }
    }

    /// True while there is a pager.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// True when something the pager has is late.
    pub fn is_behind(&self) -> bool {
        !self.expired.is_empty() || self.is_writing_late()
    }

    /// True when it has a write that is late.
    fn is_writing_late(&self) -> bool {
        let is_overdue = |write: &Write| write.state == WriteState::Overdue;
        self.writes.values().any(is_overdue)
    }

    /// Pages are wanted, at the latest `until`, the first of those that the answer `covers`. Returns the
    /// number of the request.
    pub fn ask(
        &mut self,
        pages: PageRange,
        covers: PageRange,
        until: Option<u64>,
        answer: T,
    ) -> u64 {
        let id = self.number();
        self.unsent.push_back(id);
        let request = Request {
            pages,
            covers,
            until,
            is_sent: false,
            answer,
        };
        self.requests.insert(id, request);
        id
    }

    /// The next request to be sent, if the pager may have one more.
    pub fn next_to_send(&mut self) -> Option<(u64, PageRange, &T)> {
        let sent = self.requests.len() - self.unsent.len() + self.expired.len();
        if !self.is_up || sent >= REQUESTS_MAX {
            return None;
        }
        let id = self.unsent.pop_front()?;
        let request = self.requests.get_mut(&id)?;
        request.is_sent = true;
        Some((id, request.pages, &request.answer))
    }

    /// It could not be sent after all.
    pub fn was_not_sent(&mut self, id: u64) {
        if let Some(request) = self.requests.get_mut(&id)
            && request.is_sent
        {
            request.is_sent = false;
            self.unsent.push_front(id);
        } else {
            self.expired.remove(&id);
        }
    }

    /// Somebody wants to write to a page that is locked, at the latest `until`.
    pub fn ask_unlock(&mut self, page: u64, until: Option<u64>) {
        let is_sent = false;
        self.unlocks.insert(page, Unlock { until, is_sent });
    }

    /// The next page that the pager is to be asked to unlock, if it may be asked for one more.
    pub fn next_unlock_to_send(&mut self) -> Option<u64> {
        let sent = self.unlocks.values().filter(|unlock| unlock.is_sent);
        if !self.is_up || sent.count() >= UNLOCKS_MAX {
            return None;
        }
        let (page, unlock) = self.unlocks.iter_mut().find(|(_, one)| !one.is_sent)?;
        unlock.is_sent = true;
        Some(*page)
    }

    /// It could not be asked after all.
    pub fn unlock_was_not_sent(&mut self, page: u64) {
        if let Some(unlock) = self.unlocks.get_mut(&page) {
            unlock.is_sent = false;
        }
    }

    /// The pager has locked pages, unlocked them or had them back: who wants to write to them asks
    /// again.
    pub fn unlocked(&mut self, pages: PageRange) {
        self.unlocks
            .retain(|page, _| !pages.contains(PageIndex(*page)));
    }

    /// Pages that were not unlocked at `now`, when their time is up.
    pub fn expire_unlocks(&mut self, now: u64) -> Vec<u64> {
        let is_due = |unlock: &Unlock| unlock.until.is_some_and(|until| until <= now);
        let due = self.unlocks.iter().filter(|(_, unlock)| is_due(unlock));
        let pages = due.map(|(page, _)| *page).collect();
        self.unlocks.retain(|_, unlock| !is_due(unlock));
        pages
    }

    /// Something waits to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() || self.unlocks.values().any(|unlock| !unlock.is_sent)
    }

    /// Requests and unlocks that wait.
    pub fn waiting(&self) -> usize {
        self.requests.len() + self.unlocks.len()
    }

    /// The pager supplies so many pages, or with `None` says that it cannot. `Ok(None)`: nobody
    /// waits for them any more.
    ///
    /// # Errors
    /// It may not do that.
    pub fn answered(&mut self, id: u64, pages: Option<u64>) -> Result<Option<T>, Violation> {
        if self.expired.remove(&id) {
            return Ok(None);
        }
        let request = self.requests.get(&id).filter(|request| request.is_sent);
        let asked = request.ok_or(Violation::Unasked(id))?.pages.pages();
        if let Some(supplied) = pages
            && !(1..=asked).contains(&supplied)
        {
            return Err(Violation::Length { asked, supplied });
        }
        Ok(self.requests.remove(&id).map(|request| request.answer))
    }

    /// Requests whose time is up at `now`, with their pages.
    pub fn expire(&mut self, now: u64) -> Vec<(PageRange, T)> {
        let is_due = |request: &Request<T>| request.until.is_some_and(|until| until <= now);
        let mut due = Vec::new();
        let ids = self.requests.iter().filter(|(_, request)| is_due(request));
        for id in ids.map(|(id, _)| *id).collect::<Vec<_>>() {
            let Some(request) = self.requests.remove(&id) else {
                continue;
            };
            match request.is_sent {
                true => {
                    self.expired.insert(id);
                }
                false => self.unsent.retain(|other| *other != id),
            }
            due.push((request.pages, request.answer));
        }
        due
    }

    /// When the time of the first request or unlock is up.
    pub fn next_deadline(&self) -> Option<u64> {
        let requests = self.requests.values().filter_map(|request| request.until);
        let unlocks = self.unlocks.values().filter_map(|unlock| unlock.until);
        requests.chain(unlocks).min()
    }

    /// Pages are to go to the pager, newer than all that it has. `None`: to the default pager, for
    /// there is no pager, or it does not keep up.
    pub fn begin_write(&mut self, pages: PageRange) -> Option<u64> {
        let takes = self.is_up && !self.is_writing_late() && self.writes.len() < WRITES_MAX;
        if !takes || self.owed() > 0 || self.is_with_pager(pages) {
            return None;
        }
        Some(self.write(pages))
    }

    /// How a write of [`Outside::begin_write`] or [`Outside::begin_return`] stands. Its end is told
    /// once.
    pub fn outcome(&mut self, id: u64) -> Outcome {
        let outcome = match self.writes.get(&id).map(|write| write.state) {
            Some(WriteState::Waited(outcome)) => outcome,
            Some(WriteState::Overdue) | None => Outcome::Refused,
        };
        if outcome != Outcome::Waits {
            self.writes.remove(&id);
        }
        outcome
    }

    /// Nobody waits for the write any more; its pages are to be kept. False when it is not with the
    /// pager.
    pub fn is_overdue(&mut self, id: u64) -> bool {
        match self.writes.get_mut(&id) {
            Some(write) if write.state == WriteState::Waited(Outcome::Waits) => {
                write.state = WriteState::Overdue;
                true
            }
            Some(_) | None => false,
        }
    }

    /// The write was not sent, and nobody asks for its outcome.
    pub fn withdraw(&mut self, id: u64) {
        self.writes.remove(&id);
        let kept = self.kept.values_mut().filter(|kept| kept.sent == Some(id));
        kept.for_each(|kept| kept.sent = None);
    }

    /// The pager has taken a write, or not.
    ///
    /// # Errors
    /// It has no such write.
    pub fn wrote(&mut self, id: u64, taken: bool) -> Result<(), Violation> {
        let write = self.writes.get_mut(&id).ok_or(Violation::Unasked(id))?;
        match write.state {
            WriteState::Waited(Outcome::Waits) => {
                write.state = WriteState::Waited(match taken {
                    true => Outcome::Taken,
                    false => Outcome::Refused,
                });
            }
            WriteState::Waited(Outcome::Taken | Outcome::Refused) => {
                return Err(Violation::Unasked(id));
            }
            WriteState::Overdue => {
                let pages = write.pages;
                self.writes.remove(&id);
                self.settle(id, pages, taken);
            }
        }
        Ok(())
    }

    /// The pages of write `id`, which are kept, were taken or not.
    fn settle(&mut self, id: u64, pages: PageRange, taken: bool) {
        for (_, kept) in self.kept.range_mut(pages.start.0..pages.end.0) {
            if kept.sent == Some(id) {
                kept.sent = None;
                (kept.taken, kept.refused) = (taken, !taken);
                self.taken += usize::from(taken);
            } else if taken {
                // It was written to since. What was kept before the write began is taken.
                kept.number = kept.number.max(id);
            }
        }
    }

    /// The default pager is about to take the newest contents of pages: those of write `sent`, when
    /// the pager has it, or that it has `refused`.
    pub fn keep(&mut self, pages: PageRange, sent: Option<u64>, refused: bool) {
        let sent = sent.filter(|id| self.writes.contains_key(id));
        let number = self.number();
        for page in pages.iter() {
            let before = self.kept.get(&page.0);
            let older = before.filter(|before| !before.taken);
            let number = older.map_or(number, |older| older.number);
            let kept = Kept {
                number,
                sent,
                taken: false,
                refused,
            };
            let before = self.kept.insert(page.0, kept);
            self.taken -= usize::from(before.is_some_and(|before| before.taken));
        }
    }

    /// The contents of pages are elsewhere: with the pager, or only in memory.
    pub fn forget(&mut self, pages: PageRange) {
        for page in pages.iter() {
            let before = self.kept.remove(&page.0);
            self.taken -= usize::from(before.is_some_and(|before| before.taken));
        }
    }

    /// True when the default pager has the newest contents of the first of `pages`; and the run of
    /// those of which the same is true.
    pub fn kept_first(&self, pages: PageRange) -> (bool, PageRange) {
        let is_kept = |page: u64| self.kept.contains_key(&page);
        let first = pages.start.0;
        let same = |page: &u64| is_kept(*page) == is_kept(first);
        let end = (first..pages.end.0).take_while(same).last();
        let end = end.map_or(first, |last| last + 1);
        (is_kept(first), PageRange::new(first, end))
    }

    /// True when the default pager has one of them.
    pub fn keeps_some(&self, pages: PageRange) -> bool {
        let mut kept = self.kept.range(pages.start.0..pages.end.0);
        kept.next().is_some()
    }

    /// The number of the pages that were kept last.
    pub fn last_kept(&self) -> u64 {
        self.next
    }

    /// True when the default pager has one of them, with contents that were kept no later than `last`.
    pub fn keeps_since(&self, pages: PageRange, last: u64) -> bool {
        let mut kept = self.kept.range(pages.start.0..pages.end.0);
        kept.any(|(_, kept)| kept.number <= last)
    }

    /// The same of those that the pager has refused.
    pub fn refuses_since(&self, pages: PageRange, last: u64) -> bool {
        let mut kept = self.kept.range(pages.start.0..pages.end.0);
        kept.any(|(_, kept)| kept.number <= last && kept.refused)
    }

    /// True when requests that the pager is to answer cover all of them.
    pub fn are_asked_for(&self, pages: PageRange) -> bool {
        let mut from = pages.start;
        while from < pages.end {
            let covers = self.requests.values().map(|request| request.covers);
            match covers.into_iter().find(|covers| covers.contains(from)) {
                Some(covers) => from = covers.end,
                None => return false,
            }
        }
        true
    }

    /// Kept pages that the pager has not taken.
    pub fn owed(&self) -> usize {
        self.kept.len() - self.taken
    }

    /// The next pages that are to be given back to the pager, at most `most`, as a write that
    /// somebody waits for. `None`: there are none, or it has enough.
    pub fn begin_return(&mut self, most: u64) -> Option<(u64, PageRange)> {
        if !self.is_up || self.is_writing_late() {
            return None;
        }
        let is_ready = |kept: &Kept| kept.sent.is_none() && !kept.taken;
        let first = *self.kept.iter().find(|(_, kept)| is_ready(kept))?.0;
        let run = self.kept.range(first..).zip(first..first + most);
        let run = run.take_while(|((page, kept), at)| *page == at && is_ready(kept));
        let pages = PageRange::new(first, first + run.count() as u64);
        if self.is_with_pager(pages) {
            return None;
        }
        let id = self.write(pages);
        for (_, kept) in self.kept.range_mut(first..pages.end.0) {
            kept.sent = Some(id);
            kept.refused = false;
        }
        Some((id, pages))
    }

    /// A write of [`Outside::begin_return`] came to this.
    pub fn end_return(&mut self, id: u64, pages: PageRange, taken: bool) {
        self.settle(id, pages, taken);
    }

    /// Kept pages that the pager has taken, in runs: the default pager may forget them after
    /// this.
    pub fn taken(&mut self) -> Vec<PageRange> {
        let mut runs: Vec<PageRange> = Vec::new();
        self.kept.retain(|page, kept| {
            if kept.taken {
                match runs.last_mut() {
                    Some(run) if run.end.0 == *page => run.end.0 += 1,
                    Some(_) | None => runs.push(PageRange::new(*page, page + 1)),
                }
            }
            !kept.taken
        });
        self.taken = 0;
        runs
    }

    /// All requests, which nobody will answer. Nobody waits for unlocks any more either.
    pub fn take_requests(&mut self) -> Vec<(PageRange, T)> {
        self.unsent.clear();
        self.unlocks.clear();
        let all = core::mem::take(&mut self.requests).into_values();
        all.map(|request| (request.pages, request.answer)).collect()
    }

    /// True when a write of one of them is with the pager: kept pages that it was sent, that came
    /// into memory meanwhile and leave again, are such.
    fn is_with_pager(&self, pages: PageRange) -> bool {
        let mut writes = self.writes.values();
        writes.any(|write| !write.pages.intersect(pages).is_empty())
    }

    fn write(&mut self, pages: PageRange) -> u64 {
        let id = self.number();
        let state = WriteState::Waited(Outcome::Waits);
        self.writes.insert(id, Write { pages, state });
        id
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(start: u64, end: u64) -> PageRange {
        PageRange::new(start, end)
    }

    fn up() -> Outside<&'static str> {
        let mut outside = Outside::default();
        outside.comes();
        outside
    }

    #[test]
    fn an_answer_is_to_a_request_that_was_sent_once_and_of_its_length() {
        let mut outside = up();
        let id = outside.ask(pages(0, 4), pages(0, 4), None, "a");
        assert_eq!(outside.answered(id, Some(1)), Err(Violation::Unasked(id)));
        assert_eq!(outside.next_to_send(), Some((id, pages(0, 4), &"a")));
        for supplied in [0, 5] {
            let wrong = Violation::Length { asked: 4, supplied };
            assert_eq!(outside.answered(id, Some(supplied)), Err(wrong));
        }
        assert_eq!(outside.answered(id, Some(4)), Ok(Some("a")));
        assert_eq!(outside.answered(id, Some(4)), Err(Violation::Unasked(id)));
    }

    #[test]
    fn what_is_late_is_ignored_once_and_takes_its_place_until_then() {
        let mut outside = up();
        let ids: Vec<u64> = (0..REQUESTS_MAX as u64 + 1)
            .map(|page| {
                outside.ask(
                    pages(page, page + 1),
                    pages(page, page + 1),
                    Some(10 + page),
                    "a",
                )
            })
            .collect();
        while outside.next_to_send().is_some() {}
        assert_eq!(outside.next_deadline(), Some(10));
        assert_eq!(outside.expire(9), []);
        assert_eq!(outside.expire(11).len(), 2);
        assert!(outside.is_behind() && outside.next_to_send().is_none());
        assert_eq!(outside.answered(ids[0], Some(1)), Ok(None));
        assert_eq!(
            outside.next_to_send().map(|(id, _, _)| id),
            ids.last().copied()
        );
        assert_eq!(
            outside.answered(ids[0], None),
            Err(Violation::Unasked(ids[0]))
        );
    }

    #[test]
    fn the_next_pager_is_asked_all_that_waits_in_order() {
        let mut outside = up();
        let ids = [0, 1, 2]
            .map(|page| outside.ask(pages(page, page + 1), pages(page, page + 1), None, "a"));
        assert_eq!(outside.next_to_send().map(|(id, _, _)| id), Some(ids[0]));
        outside.goes();
        assert_eq!(outside.next_to_send(), None);
        assert_eq!(
            outside.answered(ids[0], Some(1)),
            Err(Violation::Unasked(1))
        );
        outside.comes();
        for id in ids {
            assert_eq!(outside.next_to_send().map(|(id, _, _)| id), Some(id));
        }
    }

    #[test]
    fn the_next_pager_is_asked_to_unlock_what_the_last_one_did_not() {
        let mut outside = up();
        for page in 0..UNLOCKS_MAX as u64 + 1 {
            outside.ask_unlock(page, Some(10 + page));
        }
        let sent = core::iter::from_fn(|| outside.next_unlock_to_send());
        assert_eq!(sent.collect::<Vec<_>>(), (0..16).collect::<Vec<_>>());
        assert!(outside.has_unsent());
        outside.unlocked(pages(3, 5));
        assert_eq!(outside.next_unlock_to_send(), Some(16));
        assert_eq!(outside.expire_unlocks(12), [0, 1, 2]);
        assert_eq!((outside.next_deadline(), outside.waiting()), (Some(15), 12));
        outside.unlock_was_not_sent(9);
        assert_eq!(outside.next_unlock_to_send(), Some(9));
        outside.goes();
        assert_eq!(outside.next_unlock_to_send(), None);
        outside.comes();
        assert_eq!(outside.next_unlock_to_send(), Some(5));
    }

    #[test]
    fn what_is_not_taken_in_time_is_kept_until_it_is() {
        let mut outside = up();
        let id = outside.begin_write(pages(0, 2)).unwrap();
        assert_eq!(outside.outcome(id), Outcome::Waits);
        assert!(outside.is_overdue(id));
        outside.keep(pages(0, 2), Some(id), false);
        // Meanwhile nothing goes there, not even those.
        assert_eq!(outside.begin_write(pages(5, 6)), None);
        assert_eq!(outside.begin_return(8), None);
        // Page 1 is written again: what the pager has of it is old.
        outside.keep(pages(1, 2), None, false);
        assert_eq!(outside.wrote(id, true), Ok(()));
        assert_eq!(outside.taken(), [pages(0, 1)]);
        assert_eq!(outside.owed(), 1);
        let (id, returned) = outside.begin_return(8).unwrap();
        assert_eq!(returned, pages(1, 2));
        assert_eq!(outside.wrote(id, true), Ok(()));
        assert_eq!(outside.wrote(id, true), Err(Violation::Unasked(id)));
        assert_eq!(outside.outcome(id), Outcome::Taken);
        outside.end_return(id, returned, true);
        assert_eq!(outside.taken(), [pages(1, 2)]);
        assert!(outside.begin_write(pages(5, 6)).is_some());
    }

    #[test]
    fn what_was_kept_before_is_told_from_what_is_kept_since() {
        let mut outside = up();
        outside.keep(pages(0, 2), None, false);
        let last = outside.last_kept();
        assert!(outside.keeps_since(pages(1, 9), last));
        assert!(!outside.keeps_since(pages(2, 9), last));
        let (id, returned) = outside.begin_return(8).unwrap();
        assert_eq!(outside.wrote(id, true), Ok(()));
        assert_eq!(outside.outcome(id), Outcome::Taken);
        outside.end_return(id, returned, true);
        // The default pager has it until it is told that it may forget it.
        assert!(outside.keeps_since(pages(0, 1), last));
        assert_eq!(outside.taken(), [returned]);
        assert!(!outside.keeps_since(pages(0, 1), last));
        outside.keep(pages(0, 1), None, false);
        assert!(!outside.keeps_since(pages(0, 1), last));
        assert!(outside.keeps_since(pages(0, 1), outside.last_kept()));
    }

    #[test]
    fn pages_are_asked_for_from_when_they_are_wanted_until_they_are_answered() {
        let mut outside = up();
        outside.ask(pages(0, 2), pages(0, 2), None, "a");
        let id = outside.ask(pages(4, 5), pages(4, 5), None, "b");
        assert!(outside.are_asked_for(pages(0, 2)) && !outside.are_asked_for(pages(1, 3)));
        while outside.next_to_send().is_some() {}
        assert!(outside.are_asked_for(pages(4, 5)));
        assert_eq!(outside.answered(id, Some(1)), Ok(Some("b")));
        assert!(!outside.are_asked_for(pages(4, 5)));
    }

    #[test]
    fn a_page_that_is_being_given_back_is_not_written_a_second_time() {
        let mut outside = up();
        outside.keep(pages(4, 5), None, false);
        let (id, _) = outside.begin_return(8).unwrap();
        // It comes into memory, the default pager keeps no copy, and it leaves again.
        outside.forget(pages(4, 5));
        assert_eq!(outside.begin_write(pages(4, 5)), None);
        outside.keep(pages(4, 5), None, false);
        assert_eq!(outside.begin_return(8), None);
        assert_eq!(outside.wrote(id, true), Ok(()));
        assert_eq!(outside.outcome(id), Outcome::Taken);
        outside.end_return(id, pages(4, 5), true);
        assert_eq!(outside.owed(), 1, "the pager has the older");
        assert_eq!(
            outside.begin_return(8).map(|(_, run)| run),
            Some(pages(4, 5))
        );
    }

    #[test]
    fn a_pager_that_dies_in_a_write_has_taken_nothing() {
        let mut outside = up();
        let (waited, late) = (
            outside.begin_write(pages(0, 1)),
            outside.begin_write(pages(3, 5)),
        );
        let (waited, late) = (waited.unwrap(), late.unwrap());
        assert!(outside.is_overdue(late));
        outside.keep(pages(3, 5), Some(late), false);
        outside.goes();
        assert_eq!(outside.outcome(waited), Outcome::Refused);
        assert_eq!(outside.wrote(late, true), Err(Violation::Unasked(late)));
        assert_eq!((outside.owed(), outside.begin_return(9)), (2, None));
        assert_eq!(outside.kept_first(pages(2, 9)), (false, pages(2, 3)));
        assert_eq!(outside.kept_first(pages(3, 9)), (true, pages(3, 5)));
        outside.comes();
        assert_eq!(
            outside.begin_return(1).map(|(_, run)| run),
            Some(pages(3, 4))
        );
    }
}
