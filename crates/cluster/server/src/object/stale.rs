//! Copies that are lent: what a host reads may be old, by so much.

use std::sync::Weak;
use std::time::Instant;

use farpage_rules::coherence::Message;

use super::Shared;
use crate::cell::{Cell, Event};
use crate::holds::Due;

impl Shared {
    /// A message is about to be sent: if it asks for a copy, that may be had for so long from now on.
    pub(super) fn asks_at(&self, unit: u64, message: &Message) {
        if self.about.stale.is_some()
            && let Message::Request(request) = message
            && request.by == self.shell.own
            && !request.to_write
        {
            self.with(unit, |cell| cell.asked = Some(Instant::now()));
        }
    }

    /// Threads are let in: to a copy that is lent, for so long; at least as long as threads may keep what
    /// they were let in to, or an answer that took long would be of no use.
    pub(super) fn lent_until(&self, unit: u64) {
        let Some(stale) = self.about.stale else {
            return;
        };
        let least = Instant::now() + self.about.hold;
        let until = |cell: &mut Cell| {
            let asked = cell.asked.take()?;
            let until = least.max(asked + stale);
            // Else somebody will look then, and again.
            cell.lent.replace(until).is_none().then_some(until)
        };
        if let Some(until) = self.with(unit, until) {
            self.looks_at(unit, until);
        }
    }

    /// It is time to look whether a copy is too old.
    pub(crate) fn expires(&self, unit: u64) {
        // No peer has to do with it.
        let _ = self.happens(unit, Event::Expire);
    }

    pub(super) fn expire(&self, unit: u64) {
        let now = Instant::now();
        let later = |cell: &mut Cell| {
            let later = cell.lent.filter(|until| now < *until);
            if later.is_none() {
                cell.lent = None;
                cell.returns();
            }
            later
        };
        if let Some(until) = self.with(unit, later) {
            self.looks_at(unit, until);
        }
    }

    fn looks_at(&self, unit: u64, until: Instant) {
        let own = Weak::clone(&self.own);
        self.shell.holds.add(until, own, Due::Expire(unit));
    }
}
