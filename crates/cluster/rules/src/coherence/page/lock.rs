//! A page that is locked at a host: nobody takes it away before its locks are given back.
//!
//! A lock for reading keeps this host's copy, one for writing its ownership. It is taken on what the host
//! may do already: a thread faults, and locks what it was answered, before [`Page::let_go`]. Nothing
//! is said to others. What would take the page away waits here as it does while threads that were
//! answered have not run, and giving the last lock back does it:
//!
//! | here | asked for | by a lock for reading | by one for writing |
//! |---|---|---|---|
//! | a copy | to drop it, by who is to write | waits | cannot be: it owns the page |
//! | the page | to read | is answered | waits |
//! | the page | to write | waits | waits |
//! | the page, sealed | anything | is answered: contents stay | cannot be: sealing waits |
//!
//! So a host is granted a page for writing only with the consent of all who have it locked, and that is to
//! give it back ([`Page::is_awaited`] says that somebody waits for it). Nobody takes a lock from who
//! lives. Who dies, or is cut off from its cluster, has none: its locks go with its pages.
//!
//! Nobody waits in a circle when each host takes the pages that it locks at a time in one order, and
//! all of them before it waits for anything else. A lock for reading is not exchanged for one for
//! writing: two hosts that did would wait for one another. What is locked may be locked again for as much,
//! also while others wait, since who has it may not wait for itself.

use farpage_object::Access;

use super::{Later, Page, Role, allows};
use crate::coherence::message::Request;

/// How many locks a host has on a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Locks {
    to_read: u32,
    to_write: u32,
}

impl Locks {
    const NONE: Self = Self {
        to_read: 0,
        to_write: 0,
    };

    pub(super) fn are_none(self) -> bool {
        self == Self::NONE
    }

    fn of(&mut self, access: Access) -> &mut u32 {
        match access {
            Access::Read => &mut self.to_read,
            Access::Write => &mut self.to_write,
        }
    }
}

impl Page {
    /// Keeps the page here for at least this access until [`Page::unlock`]; locks are counted. False when
    /// this host may not do so much now, has a copy that is only lent, or would exchange a lock for reading for
    /// one for writing.
    pub fn lock(&mut self, access: Access) -> bool {
        let is_exchanged = access == Access::Write && self.locked() == Some(Access::Read);
        // A second copy of what is locked for writing was made: its owner may write again at once.
        let may = allows(self.allowed, access) || self.locked() == Some(Access::Write);
        let may = may && !is_exchanged && !self.is_borrowed();
        if may {
            *self.now().locks.of(access) += 1;
        }
        may
    }

    /// Gives a lock back.
    ///
    /// # Panics
    /// When the page has no such lock.
    pub fn unlock(&mut self, access: Access) {
        let count = self.now().locks.of(access);
        *count = count.checked_sub(1).expect("it is locked");
        if self.is_sealed {
            self.seal();
        }
        self.catch_up();
        self.rest();
    }

    /// For which access the page is locked here.
    #[must_use]
    pub fn locked(&self) -> Option<Access> {
        match self.locks() {
            Locks { to_write: 1.., .. } => Some(Access::Write),
            Locks { to_read: 1.., .. } => Some(Access::Read),
            Locks::NONE => None,
        }
    }

    /// True when it is locked here for just this access.
    #[must_use]
    pub fn has_lock(&self, access: Access) -> bool {
        *self.locks().of(access) > 0
    }

    pub(super) fn locks(&self) -> Locks {
        self.under_way.as_ref().map_or(Locks::NONE, |now| now.locks)
    }

    /// True when a lock does not consent to what somebody asks its owner for.
    pub(super) fn forbids(&self, request: Request) -> bool {
        match self.locked() {
            _ if self.is_final => false,
            Some(Access::Write) => true,
            Some(Access::Read) => request.to_write,
            None => false,
        }
    }

    /// True when somebody waits for a lock to be given back.
    pub(super) fn is_lock_awaited(&self) -> bool {
        let waits = |later: &Later| match (later, self.role) {
            (Later::Request(request), Role::Owner { .. }) => self.forbids(*request),
            (Later::Invalidate { .. }, _) => self.locked().is_some(),
            (Later::Request(_), Role::Other | Role::Becoming { .. } | Role::Lost) => false,
        };
        let now = self.under_way.as_ref();
        now.is_some_and(|now| now.later.iter().any(waits))
    }
}
