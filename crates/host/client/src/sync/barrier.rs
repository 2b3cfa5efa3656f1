//! Barriers.

use std::time::Duration;

use farpage_rules::sync::{Arrive, Arrived, Kind, Reset};

use super::{Place, SyncError, until};
use crate::{Host, Shared, passes};

/// A place that so many threads reach before any goes on, time and again.
#[derive(Clone)]
pub struct Barrier(Place);

impl Barrier {
    /// What one for so many takes.
    #[must_use]
    pub fn bytes(parties: u32) -> u64 {
        u64::from(farpage_rules::sync::Layout(Kind::Barrier(parties)).words()) * 8
    }

    /// The barrier at a byte of shared memory, a multiple of 64. Zeros are one that nobody has reached.
    ///
    /// # Errors
    /// [`SyncError`].
    pub fn at(shared: &Shared, offset: u64, parties: u32) -> Result<Self, SyncError> {
        Place::at(shared, offset, Kind::Barrier(parties)).map(Self)
    }

    /// As [`super::Mutex::named`].
    ///
    /// # Errors
    /// [`SyncError`].
    pub fn named(host: &Host, name: &str, parties: u32, replicas: u8) -> Result<Self, SyncError> {
        Place::named(host, name, replicas, Kind::Barrier(parties)).map(Self)
    }

    /// The memory that it lies in.
    #[must_use]
    pub fn shared(&self) -> &Shared {
        &self.0.shared
    }

    /// Waits until all are there, and returns a number from 0 on that no other of them gets. Who does
    /// not wait any longer breaks it, and so does a party that was here before and has died; one that
    /// died before it ever came is not known.
    ///
    /// # Errors
    /// [`SyncError::Broken`], [`SyncError::Lost`], [`SyncError::Host`].
    pub fn wait(&self, limit: Option<Duration>) -> Result<u32, SyncError> {
        passes::released()?;
        let arrive = Arrive::new(self.0.own()?, self.0.layout.cells());
        match self.0.runs(arrive, 0, until(limit))? {
            Arrived::All(number) => {
                passes::acquired()?;
                Ok(number)
            }
            Arrived::Broken => Err(SyncError::Broken),
        }
    }

    /// Breaks it: all who wait, and all who come, are told.
    ///
    /// # Errors
    /// [`SyncError::Lost`], [`SyncError::Host`].
    pub fn abort(&self) -> Result<(), SyncError> {
        let reset = Reset::new(self.0.layout.cells(), false);
        self.0.runs(reset, 0, None)
    }

    /// Breaks it for all who wait, and makes it as new.
    ///
    /// # Errors
    /// As [`Barrier::abort`].
    pub fn reset(&self) -> Result<(), SyncError> {
        let reset = Reset::new(self.0.layout.cells(), true);
        self.0.runs(reset, 0, None)
    }
}
