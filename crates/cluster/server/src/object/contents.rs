//! What is at this host of a unit, and where it goes.

use std::time::{Duration, Instant};

use farpage_object::{Access, PAGE_BYTES, PageOut, PageRange, PagerError, Supplied, Ticket};
use farpage_sys::lock;

use super::{Shared, UNREADABLE};
use crate::unit::{Places, Taken};

/// A disk that fails has many units.
const SAID_EVERY: Duration = Duration::from_secs(10);

impl Shared {
    /// All of a unit, which this host has.
    pub(super) fn contents(&self, places: &Places<'_>, unit: u64) -> Result<Box<[u8]>, PagerError> {
        let (kept, is_bad, is_new) = self.with(unit, |cell| {
            (cell.contents.clone(), cell.is_bad, cell.is_new)
        });
        match kept {
            Some(contents) => Ok(contents),
            None if is_bad => Err(UNREADABLE),
            None => match self.twin_of(unit)? {
                Some(twin) => places.all_or(self.pages_of(unit), twin),
                None => places
                    .all(self.pages_of(unit), is_new)?
                    .ok_or(PagerError::Corrupt),
            },
        }
    }

    /// As [`Shared::contents`], for another host. It gets a message without any when they cannot be read:
    /// so its threads are told, and all else goes on as it does.
    pub(super) fn contents_to_send(&self, places: &Places<'_>, unit: u64) -> Option<Box<[u8]>> {
        let contents = self.contents(places, unit);
        contents.map_err(|error| self.cannot_read(unit, error)).ok()
    }

    /// Who runs this host is told why others are told that a unit cannot be read.
    pub(super) fn cannot_read(&self, unit: u64, error: PagerError) {
        // What another host could not read is said there.
        if error == UNREADABLE {
            return;
        }
        let mut said = lock(&self.unread_said);
        if said.is_none_or(|at| at.elapsed() > SAID_EVERY) {
            *said = Some(Instant::now());
            let name = &self.about.name;
            farpage_sys::say!(
                "farpage: cannot read unit {unit} of '{name}' for another host, from the paging space or the file \
                 that has it ({error}): programs that touch it get SIGBUS; look at that disk (others of it are not \
                 named for {} s)",
                SAID_EVERY.as_secs()
            );
        }
    }

    /// Output::Withdraw: until the unit is gone from here its contents are in the cell.
    pub(super) fn withdraw(&self, places: &Places<'_>, unit: u64) -> Result<(), PagerError> {
        let contents = self.contents_to_send(places, unit);
        places.kernel.take_away(self.pages_of(unit))?;
        self.with(unit, |cell| {
            cell.is_bad = contents.is_none();
            cell.contents = contents;
        });
        if let Some(backing) = places.backing {
            backing.leaves(unit);
        }
        Ok(())
    }

    /// Others are about to be told that this host has a copy of the unit, so that contents need not
    /// be sent: the kernel may not drop it meanwhile.
    pub(super) fn keep_copy(&self, places: &Places<'_>, unit: u64) -> Result<(), PagerError> {
        let (is_owner, is_kept) =
            self.with(unit, |cell| (cell.unit.is_owner(), cell.contents.is_some()));
        if is_owner || is_kept {
            return Ok(());
        }
        let copy = places.all(self.pages_of(unit), false)?;
        self.with(unit, |cell| {
            if copy.is_none() {
                cell.unit.let_go();
                cell.unit.forget();
            }
            cell.contents = copy;
        });
        Ok(())
    }

    /// Answers the tickets that an access is enough for, from what is at this host, and has paging
    /// space keep what the kernel did not want of contents that an owner has to keep. False when
    /// the contents are not here; then the tickets stay.
    pub(super) fn supply(
        &self,
        places: &Places<'_>,
        unit: u64,
        access: Access,
        is_owner: bool,
    ) -> Result<bool, PagerError> {
        let (contents, is_bad, is_new, may_write) = self.with(unit, |cell| {
            let may_write = cell.unit.allowed() == Some(Access::Write);
            (cell.contents.take(), cell.is_bad, cell.is_new, may_write)
        });
        if is_bad {
            self.supply_fails(unit, access);
            return Ok(true);
        }
        let tickets = self.with(unit, |cell| cell.tickets_for(access));
        if let Some(contents) = contents.as_deref().filter(|_| is_owner) {
            // First, since who is let in may write.
            let kept = self.keep_unwanted(places, unit, contents, &tickets);
            if let Err(error) = kept {
                self.with(unit, |cell| {
                    cell.contents = Some(contents.into());
                    cell.tickets.extend(tickets);
                });
                return Err(error);
            }
        }
        let mut tickets = tickets.into_iter();
        while let Some(ticket) = tickets.next() {
            let pages = self.pages_of(unit).intersect(ticket.pages());
            let found = match &contents {
                Some(contents) => Ok(Some((self.part_of(unit, contents, pages), is_owner))),
                None => match self.found(places, pages, is_owner && is_new) {
                    Ok(None) => self.found_in_twin(unit, pages),
                    found => found,
                },
            };
            match found {
                Ok(Some((bytes, precious))) => {
                    let locked = (!may_write).then_some(Access::Write);
                    let clean = Supplied::clean(0);
                    let how = Supplied {
                        precious,
                        locked,
                        ..clean
                    };
                    ticket.supply_as(&bytes, how);
                    if precious {
                        places.were_given(pages, &bytes)?;
                    }
                }
                Ok(None) if !is_owner => {
                    self.with(unit, |cell| {
                        cell.tickets.push(ticket);
                        cell.tickets.extend(tickets);
                    });
                    return Ok(false);
                }
                Ok(None) => {
                    ticket.fail(PagerError::Corrupt);
                }
                Err(error) => {
                    ticket.fail(error);
                }
            }
        }
        let waits_to_write = self.with(unit, |cell| cell.unit.wanted() == Some(Access::Write));
        match contents {
            Some(_) if is_owner => {}
            // A copy that others were told of.
            Some(contents) if waits_to_write => {
                self.with(unit, |cell| cell.contents = Some(contents));
            }
            Some(contents) if self.about.unit_pages > 1 => {
                self.keep_rest(places, unit, &contents)?;
            }
            Some(_) | None => {}
        }
        Ok(true)
    }

    /// The unit has come, and not its contents. Who touches a copy of it the next time asks again.
    fn supply_fails(&self, unit: u64, access: Access) {
        lock(&self.failures).insert(unit, UNREADABLE);
        let tickets = self.with(unit, |cell| {
            let tickets = cell.tickets_for(access);
            if !cell.unit.is_owner() {
                cell.unit.let_go();
                cell.unit.forget();
            }
            tickets
        });
        for ticket in tickets {
            ticket.fail(UNREADABLE);
        }
    }

    /// Pages that no ticket is for stay at this host all the same: it owns them.
    fn keep_unwanted(
        &self,
        places: &Places<'_>,
        unit: u64,
        contents: &[u8],
        tickets: &[Ticket],
    ) -> Result<(), PagerError> {
        let (parts, _) = contents.as_chunks::<PAGE_BYTES>();
        for (page, bytes) in self.pages_of(unit).iter().zip(parts) {
            if !tickets.iter().any(|ticket| ticket.pages().contains(page)) {
                places.keep(PageRange::one(page), bytes)?;
            }
        }
        Ok(())
    }

    /// Pages of a copy that the kernel did not ask for yet go to paging space: it will.
    fn keep_rest(&self, places: &Places<'_>, unit: u64, bytes: &[u8]) -> Result<(), PagerError> {
        let (parts, _) = bytes.as_chunks();
        let mut out = Vec::new();
        for (page, bytes) in self.pages_of(unit).iter().zip(parts) {
            let mut unused = [0; PAGE_BYTES];
            if !places.kernel.contents_of(page, &mut unused)? {
                out.push(PageOut { page, bytes });
            }
        }
        match out.is_empty() {
            true => Ok(()),
            false => places.paging_space.data_write(places.number, &out),
        }
    }

    fn part_of(&self, unit: u64, contents: &[u8], pages: PageRange) -> Vec<u8> {
        let first = (pages.start.0 - unit * self.about.unit_pages) as usize * PAGE_BYTES;
        contents[first..first + pages.bytes() as usize].to_vec()
    }

    /// Pages of a copy that tasks here may write to, and have not: they go without a word.
    fn found_in_twin(
        &self,
        unit: u64,
        pages: PageRange,
    ) -> Result<Option<(Vec<u8>, bool)>, PagerError> {
        let twin = self.twin_of(unit)?;
        let page = PageRange::one(pages.start);
        Ok(twin.map(|twin| (self.part_of(unit, &twin, page), false)))
    }

    /// What is at this host of `pages`, which the kernel has not, from the first; and whether it is
    /// nowhere else any more.
    fn found(
        &self,
        places: &Places<'_>,
        pages: PageRange,
        is_new: bool,
    ) -> Result<Option<(Vec<u8>, bool)>, PagerError> {
        let mut bytes = vec![0; pages.bytes() as usize];
        let (parts, _) = bytes.as_chunks_mut();
        let (mut count, mut given) = (0, false);
        for (page, into) in pages.iter().zip(parts) {
            match places.take_out(page, into)? {
                Some(taken) => given |= taken == Taken::Away,
                None if places.at_rest(page, into, is_new)? => {}
                None => break,
            }
            count += 1;
        }
        bytes.truncate(count * PAGE_BYTES);
        Ok((count > 0).then_some((bytes, given)))
    }
}
