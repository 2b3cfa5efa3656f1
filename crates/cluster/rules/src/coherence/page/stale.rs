//! Copies that are lent: a reader keeps one for a time, and writers do not wait for it.
//!
//! The owner does not remember to whom it has given a copy. Who has one drops it by itself
//! ([`Page::expire`]) so long after it *asked* for it: the owner answered later than that, so that what it
//! gave was the last write at a time when the copy was already wanted. So a read is never older than the
//! time for which copies are kept, by the clock of the reader's host alone. Who is to write has no use for
//! its copy, which may be old.

use farpage_object::Access;

use super::{Page, Role};

impl Page {
    /// Copies are lent. A page goes to who writes, and to nobody who reads.
    #[must_use]
    pub fn lend(self) -> Self {
        Self {
            lends: true,
            finds_migration: false,
            ..self
        }
    }

    /// The time of this host's copy is over, if it has one that is lent.
    pub fn expire(&mut self) {
        if !self.is_frozen {
            self.returns();
        }
        self.rest();
    }

    /// True when this host has a copy that is lent.
    #[must_use]
    pub fn is_borrowed(&self) -> bool {
        let is_copy = self.role == Role::Other && self.allowed == Some(Access::Read);
        self.lends && is_copy && !self.is_final
    }

    pub(super) fn returns(&mut self) {
        // What is locked nobody had written any more when it was.
        if self.is_borrowed() && self.locks().are_none() {
            self.allow(None);
        }
    }
}
