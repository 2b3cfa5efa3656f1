//! A unit at this host: its scheduler, and what waits for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farpage_object::{Access, Ticket};
use farpage_rules::coherence::{Host, Message, Page, TwinMessage};

use crate::changed::Watch;
use crate::durable::Flushed;
use crate::object::Locking;
use crate::scheduled::Scheduled;
use crate::seen::UnitCounts;
use crate::twins::{Call, Twins};

/// What happens to a unit.
pub(crate) enum Event {
    /// The kernel wants pages of it.
    Wanted(Ticket),
    /// A thread waits to write to a page of it that is here.
    Unlock,
    /// A host that leaves gives it to this one.
    TakeOver,
    /// Somebody wants it to stay at this host.
    Lock(Arc<Locking>),
    /// It does not want that any more.
    GiveUp(Arc<Locking>),
    /// It need not any more, for this access.
    GiveBack(Access),
    /// It need not, whoever wanted it: this host leaves.
    GiveAllBack,
    /// Nobody is to write to it any more.
    Seal,
    /// A copy may be too old.
    Expire,
    /// Somebody wants to know what this host changes of it.
    Watch,
    /// What it is now goes to the object's file.
    Flush(Flushed),
    /// A peer sent a message, and contents where they belong to it.
    Came {
        from: Host,
        message: Message,
        contents: Option<Box<[u8]>>,
    },
    /// Threads that were let in had time enough.
    LetGo,
    /// A peer sent a message of an object with release consistency.
    Twin {
        from: Host,
        message: TwinMessage,
        /// Contents, or a diff, where they belong to it.
        came: Option<Box<[u8]>>,
    },
    /// What was written here is to be with its owner.
    Release(Call),
    /// What may be old is not to be read any more.
    Acquire(Call),
    /// A diff is in it, or could not be put there.
    Put { apply: u64, is_put: bool },
}

pub(crate) struct Cell {
    pub(crate) unit: Scheduled,
    pub(crate) inbox: VecDeque<Event>,
    /// Somebody is at work.
    pub(crate) is_busy: bool,
    /// What the kernel waits for.
    pub(crate) tickets: Vec<Ticket>,
    /// Who waits to have it locked at this host.
    pub(crate) locking: Vec<Arc<Locking>>,
    /// Contents that are neither with the kernel nor in paging space: they have just come, or are
    /// a copy that another host was told of.
    pub(crate) contents: Option<Box<[u8]>>,
    /// They came as such that the host that had them cannot read, and are nowhere here.
    pub(crate) is_bad: bool,
    /// Nobody but this host has ever had it: what is nowhere is zeros.
    pub(crate) is_new: bool,
    /// Since when threads that were let in may keep the unit.
    let_in: Option<Instant>,
    /// When it last asked for a copy that is lent.
    pub(crate) asked: Option<Instant>,
    /// Until when it may have that.
    pub(crate) lent: Option<Instant>,
    /// It will be told when those have had their time.
    pub(crate) is_timed: bool,
    /// Threads wait to write to pages that are here.
    pub(crate) waits_to_unlock: bool,
    pub(crate) counts: UnitCounts,
    /// Somebody wants to know what this host changes of it.
    pub(crate) watch: Option<Box<Watch>>,
    /// Who waits for what it is, to flush it.
    pub(crate) flushed: Option<Flushed>,
    /// Of an object with release consistency.
    pub(crate) twins: Option<Box<Twins>>,
}

impl Cell {
    pub(crate) fn new(unit: Scheduled, is_new: bool) -> Self {
        Self {
            unit,
            inbox: VecDeque::new(),
            is_busy: false,
            tickets: Vec::new(),
            locking: Vec::new(),
            contents: None,
            is_bad: false,
            is_new,
            let_in: None,
            asked: None,
            lent: None,
            is_timed: false,
            waits_to_unlock: false,
            counts: UnitCounts::default(),
            watch: None,
            flushed: None,
            twins: None,
        }
    }

    /// What it needs beside its scheduler, with release consistency.
    pub(crate) fn twins(&mut self) -> &mut Twins {
        self.twins.get_or_insert_default()
    }

    /// Threads are let in now. Others who wait for those of before are not put off by it: a writer
    /// that is let in again and again would keep the unit for ever.
    pub(crate) fn lets_in(&mut self) {
        if self.let_in.is_none() || !self.unit.is_awaited() {
            self.let_in = Some(Instant::now());
        }
    }

    /// Those who were let in have no more right to the unit than others.
    pub(crate) fn has_let_in(&mut self) {
        self.let_in = None;
    }

    /// When those who were let in will have had `time`; `None` when they have.
    pub(crate) fn until(&self, time: Duration) -> Option<Instant> {
        let until = self.let_in? + time;
        (Instant::now() < until).then_some(until)
    }

    /// Gives up a copy that is lent. False when there is none.
    pub(crate) fn returns(&mut self) -> bool {
        let page = self.unit.page().filter(|page| page.is_borrowed());
        page.map(Page::expire).is_some()
    }

    /// The tickets that an access is enough for.
    pub(crate) fn tickets_for(&mut self, allowed: Access) -> Vec<Ticket> {
        let fits = |ticket: &mut Ticket| allowed == Access::Write || ticket.access() == allowed;
        self.tickets.extract_if(.., fits).collect()
    }
}

#[cfg(test)]
mod tests {
    use farpage_rules::coherence::{Epoch, Request};

    use super::*;

    const HOLD: Duration = Duration::from_secs(3600);

    #[test]
    fn who_waits_is_not_put_off_by_threads_that_are_let_in_again() {
        let mut page = Page::new(Host(0), Host(0));
        assert!(page.hold(Access::Write));
        let mut cell = Cell::new(Scheduled::Distributed(page), true);
        cell.lets_in();
        let early = cell.until(HOLD).unwrap();
        cell.lets_in();
        let first = cell.until(HOLD).unwrap();
        assert!(first > early, "nobody waits yet");
        let request = Request {
            by: Host(1),
            to_write: false,
            has_copy: false,
            known: Epoch(0),
            hops: 0,
            to_copy: false,
        };
        let page = cell.unit.page().unwrap();
        page.handle(Host(1), Message::Request(request)).unwrap();
        cell.lets_in();
        assert_eq!(cell.until(HOLD), Some(first), "somebody waits");
        cell.has_let_in();
        assert_eq!(cell.until(HOLD), None);
        cell.lets_in();
        assert!(cell.until(HOLD).unwrap() > first, "it is another time");
    }
}
