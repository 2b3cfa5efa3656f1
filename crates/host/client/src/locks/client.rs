//! A process's side.

use std::ops::Range;
use std::os::fd::AsFd;

use farpage_object::PAGE_BYTES;
use farpage_port::SendRight;
use farpage_port::interface::{Both, Fd, InvokeError};

use super::{Block, Hold, LockAbout, LockWanted, LocksListed};
use crate::client::OfProcess;
use crate::interface::{KernelClient, LockedClient, Tried};
use crate::{Error, Host, Refusal};

/// A part of shared memory that stays in memory, or in its frames, until this is dropped, also for all
/// others who have it mapped. A child of fork has nothing of it.
#[derive(Debug)]
pub struct SegmentLock {
    about: LockAbout,
    lock: OfProcess<LockedClient>,
}

impl Host {
    /// Has bytes of shared memory stay where they are: of `memfd_create`, `shm_open` or a file in a tmpfs, which
    /// this process has open. To be pinned it must be open for writing. All pages that have some of the bytes
    /// are in memory when this returns. What several processes lock is locked and charged once.
    ///
    /// # Errors
    /// [`Refusal::Lock`], and then nothing of it is locked.
    pub fn lock_file(
        &self,
        file: impl AsFd,
        bytes: Range<u64>,
        hold: Hold,
    ) -> Result<SegmentLock, Error> {
        let file = file.as_fd().try_clone_to_owned();
        let file = file.map_err(|error| Refusal::Failed(error.to_string()))?;
        // It may take long: only the end of the host kernel ends it.
        let kernel = self.kernel_without_limit()?;
        let given = kernel.lock_file(Fd(file), wanted(bytes, hold))?;
        Ok(SegmentLock::new(given.0?))
    }

    /// As [`Host::lock_file`], of a segment of System V. Its mode has to allow this user to read it, and to
    /// write to it when it is to be pinned.
    ///
    /// # Errors
    /// As there.
    pub fn lock_segment(
        &self,
        number: u32,
        bytes: Range<u64>,
        hold: Hold,
    ) -> Result<SegmentLock, Error> {
        let kernel = self.kernel_without_limit()?;
        let given = kernel.lock_segment(number, wanted(bytes, hold))?;
        Ok(SegmentLock::new(given.0?))
    }

    /// Has a share of a lock that another process of this user lends ([`SegmentLock::lend`]). It is locked until
    /// the last process that has a share has given it up or ended; nothing more is charged.
    ///
    /// # Errors
    /// [`Refusal::Lock`].
    pub fn borrow_lock(&self, name: &str) -> Result<SegmentLock, Error> {
        let given = self.kernel_without_limit()?.borrow_lock(name.into())?;
        Ok(SegmentLock::new(given.0?))
    }

    /// What processes of this user have locked of shared memory; of all users for root.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn locks(&self) -> Result<LocksListed, Error> {
        Ok(self.kernel_without_limit()?.locks()?.0?)
    }

    fn kernel_without_limit(&self) -> Result<KernelClient, Error> {
        Ok(KernelClient::new(self.kernel_right()?))
    }
}

fn wanted(bytes: Range<u64>, hold: Hold) -> LockWanted {
    LockWanted {
        offset: bytes.start,
        bytes: bytes.end.saturating_sub(bytes.start),
        pinned: hold == Hold::Pinned,
    }
}

impl SegmentLock {
    fn new(given: Both<LockAbout, SendRight>) -> Self {
        let Both(about, right) = given;
        let lock = OfProcess::new(LockedClient::new(right));
        Self { about, lock }
    }

    fn ask<T>(
        &self,
        ask: impl FnOnce(&LockedClient) -> Result<Tried<T>, InvokeError>,
    ) -> Result<T, Error> {
        self.lock.ask_lock(ask)
    }

    /// Lets other processes of this user borrow it by a name ([`Host::borrow_lock`]), also when this process has
    /// given it up, as long as another has it.
    ///
    /// # Errors
    /// [`Refusal::Lock`] for a name that is taken, or is none, or when it is lent already.
    pub fn lend(&self, name: &str) -> Result<(), Error> {
        self.ask(|lock| lock.lend(name.into()))
    }

    /// Whether it still is the memory that was locked.
    ///
    /// # Errors
    /// [`Refusal::Lock`] when some of it was discarded or cut off by who shares it; [`Error::Unlocked`] when the host
    /// kernel has gone, and the lock with it.
    pub fn check(&self) -> Result<(), Error> {
        self.ask(LockedClient::check)
    }

    /// The bytes of its pages.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        const PAGE: u64 = PAGE_BYTES as u64;
        self.about.first * PAGE..(self.about.first + self.about.pages) * PAGE
    }

    /// How it is held.
    #[must_use]
    pub fn hold(&self) -> Hold {
        match self.about.pinned {
            true => Hold::Pinned,
            false => Hold::Resident,
        }
    }

    /// The frame of each page, 4096 bytes each, as the host kernel tells it. Unless it is pinned they may be
    /// others the next moment.
    ///
    /// # Errors
    /// [`Refusal::Lock`] where this process is not told (`farpage up --frames`), or as [`SegmentLock::check`].
    pub fn frames(&self) -> Result<Vec<u64>, Error> {
        let mut frames: Vec<u64> = Vec::new();
        while (frames.len() as u64) < self.about.pages {
            let more = self.ask(|lock| lock.frames(frames.len() as u64, u64::MAX))?;
            if more.is_empty() {
                return Err(Refusal::Failed("it tells too few frames".into()).into());
            }
            frames.extend(more);
        }
        Ok(frames)
    }

    /// The same as runs of consecutive frames, of at most `most` each.
    ///
    /// # Errors
    /// As [`SegmentLock::frames`].
    ///
    /// # Panics
    /// When `most` is 0.
    pub fn blocks(&self, most: u64) -> Result<Vec<Block>, Error> {
        Ok(farpage_pinning::blocks(self.frames()?, most))
    }
}
