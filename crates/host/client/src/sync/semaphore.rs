//! Semaphores.

use std::time::Duration;

use farpage_rules::sync::{Give, Kind, Take, Taken};

use super::{Place, SyncError, until};
use crate::{Host, Shared, passes};

/// So many places. A place is the process's that took it: what one had that died is free again.
#[derive(Clone)]
pub struct Semaphore(Place);

impl Semaphore {
    /// What one of so many places takes.
    #[must_use]
    pub fn bytes(places: u32) -> u64 {
        u64::from(farpage_rules::sync::Layout(Kind::Semaphore(places)).words()) * 8
    }

    /// The semaphore at a byte of shared memory, a multiple of 64. Zeros are one of which all places are
    /// free.
    ///
    /// # Errors
    /// [`SyncError`].
    pub fn at(shared: &Shared, offset: u64, places: u32) -> Result<Self, SyncError> {
        Place::at(shared, offset, Kind::Semaphore(places)).map(Self)
    }

    /// As [`super::Mutex::named`].
    ///
    /// # Errors
    /// [`SyncError`].
    pub fn named(host: &Host, name: &str, places: u32, replicas: u8) -> Result<Self, SyncError> {
        Place::named(host, name, replicas, Kind::Semaphore(places)).map(Self)
    }

    /// The memory that it lies in.
    #[must_use]
    pub fn shared(&self) -> &Shared {
        &self.0.shared
    }

    /// Takes a place, and waits for one so long at most; not at all for no time, and `None` for ever.
    /// False: the time was over.
    ///
    /// # Errors
    /// [`SyncError::Lost`], [`SyncError::Host`].
    pub fn acquire(&self, limit: Option<Duration>) -> Result<bool, SyncError> {
        let waits = limit != Some(Duration::ZERO);
        let take = Take::new(self.0.own()?, self.0.layout.cells(), waits);
        match self.0.runs(take, 0, until(limit))? {
            Taken::Taken { .. } => {
                if let Err(error) = passes::acquired() {
                    self.gives_back()?;
                    return Err(error.into());
                }
                Ok(true)
            }
            Taken::Busy => Ok(false),
        }
    }

    /// Gives a place back.
    ///
    /// # Errors
    /// [`SyncError::NotHeld`] when this process has none; [`SyncError::Lost`].
    pub fn release(&self) -> Result<(), SyncError> {
        let released = passes::released();
        self.gives_back()?;
        Ok(released?)
    }

    fn gives_back(&self) -> Result<(), SyncError> {
        let give = Give::new(self.0.own()?, self.0.layout.cells(), false);
        match self.0.runs(give, 0, None)? {
            true => Ok(()),
            false => Err(SyncError::NotHeld(self.0.kind())),
        }
    }
}
