//! A durable object: its home has what was flushed in a file.

use std::fs::File;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use farpage_object::{Access, PagerError};
use farpage_sys::lock;

use super::{Shared, UNREADABLE};
use crate::cell::Event;
use crate::durable::{FlushError, Flushed};
use crate::unit::Places;

/// Units that are read at a time to be flushed.
const AT_ONCE: usize = 64;
/// Between two looks whether the object is still open.
const LOOK: Duration = Duration::from_secs(1);

impl Shared {
    /// It has a file, at this host or another.
    pub(crate) fn is_durable(&self) -> bool {
        self.about.is_durable
    }

    /// True when this is its file, which this host has.
    pub(crate) fn has_this_file(&self, file: &File) -> bool {
        self.backing
            .as_ref()
            .is_some_and(|backing| backing.is(file))
    }

    /// True when it ends with this host, which has its file.
    pub(crate) fn has_file(&self) -> bool {
        self.backing.is_some()
    }

    /// Its home has gone, if it is one that cannot be without.
    pub(super) fn loses_home(&self) {
        if self.about.is_durable {
            self.is_homeless.store(true, Ordering::Release);
        }
    }

    pub(super) fn is_without_home(&self) -> bool {
        self.is_homeless.load(Ordering::Acquire)
    }

    /// All that any host wrote before this is in the file when it returns. How many bytes went there.
    ///
    /// # Errors
    /// [`FlushError`]; the file is as of the last flush then.
    pub(crate) fn flush(&self) -> Result<u64, FlushError> {
        let Some(backing) = &self.backing else {
            return Err(match self.is_durable() {
                true => FlushError::Homeless,
                false => FlushError::Volatile,
            });
        };
        let _alone = lock(&self.flushes);
        backing.finishes()?;
        let read = backing
            .modified()
            .chunks(AT_ONCE)
            .try_for_each(|units| self.flush_some(units));
        if let Err(error) = read {
            backing.gives_up();
            return Err(error);
        }
        Ok(backing.commits()?)
    }

    fn flush_some(&self, units: &[u64]) -> Result<(), FlushError> {
        let (tells, told) = channel();
        for unit in units {
            let flushed = Flushed::by(tells.clone());
            // No peer has to do with it.
            let _ = self.happens(*unit, Event::Flush(flushed));
        }
        drop(tells);
        // All are waited for: what comes late would be in the journal of the next flush.
        let mut done = Ok(());
        for _ in units {
            done = done.and(self.next_told(&told));
        }
        done
    }

    /// The next that tells: each does once, unless this host, or the object, is gone.
    fn next_told(&self, told: &Receiver<Result<(), FlushError>>) -> Result<(), FlushError> {
        loop {
            match told.recv_timeout(LOOK) {
                Ok(one) => return one,
                Err(RecvTimeoutError::Timeout) if self.is_open() => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(FlushError::Homeless);
                }
            }
        }
    }

    fn is_open(&self) -> bool {
        let kernel = self.kernel.get();
        kernel.is_some_and(|kernel| kernel.strong_count() > 0)
    }

    /// The unit is to be flushed: what it is now, or once that has come.
    pub(super) fn flush_unit(
        &self,
        places: &Places<'_>,
        unit: u64,
        flushed: Flushed,
    ) -> Result<(), PagerError> {
        self.with(unit, |cell| cell.flushed = Some(flushed));
        if self.with(unit, |cell| cell.unit.allowed()) == Some(Access::Write) {
            // Who writes from now on is seen to.
            self.with(unit, |cell| cell.unit.page().map(|page| page.mirror()));
            self.carry_out(places, unit, None);
        }
        if self.with(unit, |cell| cell.unit.allowed()).is_some() {
            self.flushes_waiting(places, unit)?;
        }
        if self.with(unit, |cell| cell.flushed.is_some()) {
            self.with(unit, |cell| cell.unit.fault(Access::Read));
        }
        Ok(())
    }

    /// The unit may be read here: who waits to flush it has it. It stays to be had when it is not here
    /// after all, as copies may go.
    pub(super) fn flushes_waiting(&self, places: &Places<'_>, unit: u64) -> Result<(), PagerError> {
        let Some(backing) = &self.backing else {
            return Ok(());
        };
        if self.with(unit, |cell| cell.flushed.is_none()) {
            return Ok(());
        }
        if self.with(unit, |cell| cell.is_bad) {
            let flushed = self.with(unit, |cell| cell.flushed.take());
            flushed.into_iter().for_each(|one| one.fails(UNREADABLE));
            return Ok(());
        }
        let contents = match self.with(unit, |cell| cell.contents.clone()) {
            Some(contents) => contents,
            None => match places.all(self.pages_of(unit), self.with(unit, |cell| cell.is_new))? {
                Some(contents) => contents,
                None => {
                    self.with(unit, |cell| {
                        cell.unit.let_go();
                        cell.unit.forget();
                    });
                    return Ok(());
                }
            },
        };
        let (flushed, allowed) = self.with(unit, |cell| (cell.flushed.take(), cell.unit.allowed()));
        let changes = allowed == Some(Access::Write);
        if let Some(flushed) = flushed {
            flushed.is(backing.takes(unit, &contents, changes));
        }
        Ok(())
    }
}
