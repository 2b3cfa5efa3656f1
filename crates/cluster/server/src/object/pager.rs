//! What the kernel asks of a shared object.

use std::fmt;
use std::sync::Weak;
use std::time::Instant;

use farpage_object::{
    Access, DataRequest, ObjectId, PageIndex, PageOut, Pager, PagerError, Supplied, Ticket,
};
use farpage_rules::coherence::Twinned;
use farpage_sys::lock;

use super::{FENCED, HOMELESS, LOST, SEALED, Shared, UNREADABLE};
use crate::cell::Event;
use crate::counters::count;
use crate::holds::Due;
use crate::server::Stage;
use crate::unit::{Kept, Places};

/// Why nobody may write.
pub(super) const IS_SEALED: &str = "it is sealed: its contents are final; write to other memory";

impl Pager for Shared {
    fn init(&self, object: ObjectId, pages: u64) -> Result<(), PagerError> {
        self.number.get_or_init(|| object);
        if self.keeps_aside() {
            let kept = Kept::number_of(object);
            self.shell.paging_space.init(kept, pages)?;
        }
        self.shell.paging_space.init(object, pages)
    }

    fn data_request(&self, request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let unit = request.pages().start.0 / self.about.unit_pages;
        Ok(request.later(|ticket| {
            // No peer has to do with it.
            let _ = self.happens(unit, Event::Wanted(ticket));
        }))
    }

    fn explain(&self, _: ObjectId, page: PageIndex, into: &mut dyn fmt::Write) -> bool {
        let unit = page.0 / self.about.unit_pages;
        let failure = lock(&self.failures).get(&unit).copied();
        // Of what was asked for together, the first was told.
        let failure = failure.or_else(|| match self.shell.stage() {
            Stage::Stays => self.over(),
            Stage::Gives | Stage::Closed | Stage::Goes => Some(FENCED),
        });
        failure.is_some_and(|error| {
            let said = match error {
                LOST if self.is_mirrored() => write!(
                    into,
                    "its last contents were on hosts that died one right after the other (replicas=2 outlives \
                     one at a time)"
                ),
                LOST => write!(
                    into,
                    "its last contents were on a host that died, and nowhere else (replicas=1)"
                ),
                FENCED => write!(
                    into,
                    "this host is out of the cluster, or leaves it, and others may change it; start \
                     the program again when the host is in the cluster"
                ),
                UNREADABLE => into.write_str(
                    "the host that has its last contents cannot read them from its paging space, or file, and \
                     says there why",
                ),
                HOMELESS if self.is_durable() => write!(
                    into,
                    "the host that has its file left the cluster; what was flushed is in the file: close it \
                     everywhere, and make it anew with that"
                ),
                HOMELESS => write!(
                    into,
                    "its home was a host that died, and its contents were there (scheduler simple)"
                ),
                SEALED => into.write_str(IS_SEALED),
                error => write!(into, "{error}"),
            };
            said.is_ok()
        })
    }

    fn cluster_pages(&self, _: ObjectId, _: PageIndex) -> u64 {
        self.about.unit_pages
    }

    /// A unit may be locked by another host, and the next one by this one.
    fn answers_clusters_apart(&self) -> bool {
        true
    }

    fn data_write(&self, object: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        self.shell.paging_space.data_write(object, pages)
    }

    fn data_unlock(&self, _: ObjectId, page: PageIndex, _: Access) -> bool {
        let unit = page.0 / self.about.unit_pages;
        // The page stays while this lasts. Who is in the gate may wait for it to go, so this does not
        // wait for the gate.
        match self.shell.gate.try_enter() {
            Some(_entered) => self.unlocks(unit),
            None => {
                let own = Weak::clone(&self.own);
                self.shell.holds.add(Instant::now(), own, Due::Unlock(unit));
            }
        }
        false
    }

    fn locks_pages(&self) -> bool {
        true
    }

    fn terminate(&self, object: ObjectId) {
        self.shell.paging_space.terminate(object);
        if self.keeps_aside() {
            self.shell.paging_space.terminate(Kept::number_of(object));
        }
    }
}

impl Shared {
    /// A thread waits to write to a page of a unit that is here.
    pub(crate) fn unlocks(&self, unit: u64) {
        // No peer has to do with it.
        let _ = self.happens(unit, Event::Unlock);
    }

    /// The kernel wants pages of the unit.
    pub(super) fn wanted(
        &self,
        places: &Places<'_>,
        unit: u64,
        ticket: Ticket,
    ) -> Result<(), PagerError> {
        let access = ticket.access();
        let (allowed, is_owner) = self.with(unit, |cell| {
            let (allowed, is_owner) = (cell.unit.allowed(), cell.unit.is_owner());
            cell.tickets.push(ticket);
            (allowed, is_owner)
        });
        match (allowed, access) {
            (Some(allowed @ Access::Write), _) | (Some(allowed @ Access::Read), Access::Read) => {
                if self.supply(places, unit, allowed, is_owner)? {
                    return Ok(());
                }
                // The copy has gone, as copies may.
                self.with(unit, |cell| {
                    cell.unit.let_go();
                    cell.unit.forget();
                });
            }
            (Some(Access::Read), Access::Write) => self.keep_copy(places, unit)?,
            (None, Access::Read | Access::Write) => {}
        }
        self.counts_miss(unit, access);
        self.with(unit, |cell| cell.unit.fault(access));
        Ok(())
    }

    fn counts_miss(&self, unit: u64, access: Access) {
        let allowed = self.with(unit, |cell| {
            let allowed = cell.unit.allowed();
            cell.counts.miss(allowed, access);
            allowed
        });
        count(match (allowed, access) {
            (Some(_), _) => &self.counters.upgrades,
            (None, Access::Read) => &self.counters.read_misses,
            (None, Access::Write) => &self.counters.write_misses,
        });
    }

    /// A thread wants to write to a page of the unit that is here.
    pub(super) fn unlock(&self, places: &Places<'_>, unit: u64) -> Result<(), PagerError> {
        self.with(unit, |cell| cell.waits_to_unlock = true);
        self.take_over(places, unit)
    }

    /// This host is to write to the unit, or to have it as who does.
    pub(super) fn take_over(&self, places: &Places<'_>, unit: u64) -> Result<(), PagerError> {
        self.asks_to(places, unit, Access::Write)
    }

    /// No thread touches the unit, and it is to come as if one did.
    pub(super) fn asks_to(
        &self,
        places: &Places<'_>,
        unit: u64,
        access: Access,
    ) -> Result<(), PagerError> {
        let allowed = self.with(unit, |cell| cell.unit.allowed());
        if allowed == Some(Access::Read) && access == Access::Write {
            self.keep_copy(places, unit)?;
            self.counts_miss(unit, access);
        }
        self.with(unit, |cell| cell.unit.fault(access));
        Ok(())
    }

    /// True when something of it is in paging space that no task is to see.
    fn keeps_aside(&self) -> bool {
        self.is_in_line() || self.twins().is_some()
    }

    /// Event::TakeOver.
    pub(super) fn is_to_take(&self, places: &Places<'_>, unit: u64) -> Result<(), PagerError> {
        let is_twinned = self.with(unit, |cell| cell.unit.twinned().map(Twinned::take_over));
        match is_twinned {
            Some(()) => Ok(()),
            None => self.take_over(places, unit),
        }
    }
}
