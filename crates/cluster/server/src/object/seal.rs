//! An object that nobody writes to any more: hosts that have a unit of it give it to others.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Instant;

use farpage_object::Access;
use farpage_rules::coherence::Message;
use farpage_sys::lock;

use super::pager::IS_SEALED;
use super::{Kind, SEALED, Shared};
use crate::cell::{Cell, Event};
use crate::holds::Due;
use crate::unit::Places;

impl Shared {
    /// This host knows that nobody is to write any more. False when it knew, or others decide: those
    /// objects cannot be sealed.
    pub(crate) fn seal(&self) -> bool {
        let is_new = match self.kind {
            Kind::Plain => !self.is_sealed.swap(true, Ordering::SeqCst),
            Kind::Twinned(_) | Kind::Mirrored(_) | Kind::Simple(_) => false,
        };
        if is_new {
            // Those that are touched from now on are told when they begin.
            for unit in self.touched() {
                // No peer has to do with it.
                let _ = self.happens(unit, Event::Seal);
            }
        }
        is_new
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.is_sealed.load(Ordering::SeqCst)
    }

    /// A message has come: if a copy is to be given, that stays until it is, or is known to have gone. True
    /// when there is something to forget then.
    pub(super) fn keeps_to_give(&self, places: &Places<'_>, unit: u64, message: &Message) -> bool {
        if !matches!(message, Message::Request(request) if request.to_copy) {
            return false;
        }
        let gives = |cell: &mut Cell| {
            let is_kept = cell.contents.is_some();
            let page = cell.unit.page()?;
            let gives = page.is_final() && !page.is_owner() && page.allowed().is_some();
            (gives && !is_kept).then_some(())
        };
        if self.with(unit, gives).is_none() {
            return false;
        }
        if let Err(error) = self.keep_copy(places, unit) {
            self.fails(unit, error);
        }
        self.carry_out(places, unit, None);
        true
    }

    /// It is given, if it was asked for. The kernel has it.
    pub(super) fn has_given(&self, unit: u64, keeps: bool) {
        if keeps {
            self.with(unit, |cell| {
                if !cell.unit.is_owner() && cell.unit.wanted() != Some(Access::Write) {
                    cell.contents = None;
                }
            });
        }
    }

    /// Output::Sealed: threads that wait to write get an error, those that wait to read do not.
    pub(super) fn refuses_to_write(&self, unit: u64) {
        lock(&self.failures).insert(unit, SEALED);
        let writes = |cell: &mut Cell| {
            let writes = cell
                .tickets
                .extract_if(.., |one| one.access() == Access::Write);
            (
                writes.collect::<Vec<_>>(),
                std::mem::take(&mut cell.waits_to_unlock),
            )
        };
        let (tickets, waits_to_unlock) = self.with(unit, writes);
        for ticket in tickets {
            ticket.fail(SEALED);
        }
        self.refuses_to_lock(unit);
        if waits_to_unlock {
            // This may be one of the kernel's threads, which has to do with the page.
            let own = Weak::clone(&self.own);
            self.shell.holds.add(Instant::now(), own, Due::Refuse(unit));
        }
    }

    /// Threads that wait to write to pages of a unit that are here get an error.
    pub(crate) fn refuses(&self, unit: u64) {
        if let Some(kernel) = self.kernel.get().and_then(Weak::upgrade) {
            kernel.unlock_fails(self.pages_of(unit), IS_SEALED);
        }
    }
}
