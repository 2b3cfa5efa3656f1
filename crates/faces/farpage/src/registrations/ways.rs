//! What memory is registered with.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farpage_pinning::system::Places;

use crate::{LockError, locks};

use super::error::RegisterError;

/// What memory is registered with: a device's driver, a ring. Called by one thread at a time.
pub trait Register: Send {
    /// Registers `bytes` bytes at `at`, whole pages. What it is known by from then on.
    ///
    /// # Errors
    /// [`RegisterError`], usually [`RegisterError::Refused`].
    fn register(&mut self, at: usize, bytes: usize) -> Result<u64, RegisterError>;

    /// Gives it up. The memory may be gone.
    fn deregister(&mut self, at: usize, bytes: usize, token: u64);
}

/// The frames stay that the memory had when it was registered. The pages are not locked, so that they may be
/// discarded, which is seen; and each registration is one of its own: memory that came to where other memory
/// went away is registered anew, also while somebody still has the old registration.
#[derive(Default)]
pub struct Pinning {
    places: Places,
    /// What each registration has, by its first place.
    held: HashMap<u64, Vec<u32>>,
}

impl Pinning {
    /// By rings of its own.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Register for Pinning {
    fn register(&mut self, at: usize, bytes: usize) -> Result<u64, RegisterError> {
        let pages = locks::pages_of(at, bytes)?;
        let held = self.places.hold_all(pages)?;
        let token = u64::from(held[0]);
        self.held.insert(token, held);
        Ok(token)
    }

    fn deregister(&mut self, _: usize, _: usize, token: u64) {
        let held = self.held.remove(&token).into_iter().flatten();
        held.for_each(|place| self.places.release(place));
    }
}

/// Registered buffers of an `io_uring` of the caller's: what it is known by is the index of its buffer, for
/// `IORING_OP_READ_FIXED` and the like.
///
/// A ring has one of these at a time, as the places of its table are given once each.
#[derive(Debug)]
pub struct RingBuffers {
    ring: OwnedFd,
    identity: Identity,
    free: Vec<u32>,
    all: u32,
}

/// What tells rings apart: each has an inode of its own.
type Identity = (u64, u64);

/// Rings whose tables are used.
fn rings() -> MutexGuard<'static, Vec<Identity>> {
    static RINGS: Mutex<Vec<Identity>> = Mutex::new(Vec::new());
    RINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RingBuffers {
    /// Uses the first `buffers` places of the ring's table of buffers, which was registered sparse: what is there
    /// is replaced.
    ///
    /// # Errors
    /// [`RegisterError::Ring`] when it is no ring, or has no table, or a smaller one, or is used so already.
    pub fn new(ring: impl AsFd, buffers: u32) -> Result<Self, RegisterError> {
        let refused = |why: String| RegisterError::Ring { buffers, why };
        let failed = |error: std::io::Error| refused(error.to_string());
        if buffers == 0 {
            return Err(refused("none is of no use; give 1 or more".into()));
        }
        let ring = ring.as_fd().try_clone_to_owned().map_err(failed)?;
        locks::has_table(&ring, buffers).map_err(|why| refused(why.into()))?;
        let file = File::from(ring);
        let about = file.metadata().map_err(failed)?;
        let identity = (about.dev(), about.ino());
        let mut rings = rings();
        if rings.contains(&identity) {
            let why = "another cache has them already, here or in the parent; share that one, or use another ring";
            return Err(refused(why.into()));
        }
        rings.push(identity);
        Ok(Self {
            ring: file.into(),
            identity,
            free: (0..buffers).rev().collect(),
            all: buffers,
        })
    }
}

impl Drop for RingBuffers {
    fn drop(&mut self) {
        rings().retain(|ring| *ring != self.identity);
    }
}

impl Register for RingBuffers {
    fn register(&mut self, at: usize, bytes: usize) -> Result<u64, RegisterError> {
        let pages = locks::pages_of(at, bytes)?;
        let slot = self.free.pop().ok_or(LockError::Full(self.all))?;
        if let Err(why) = locks::put(&self.ring, slot, Some(pages)) {
            self.free.push(slot);
            return Err(why.into());
        }
        Ok(u64::from(slot))
    }

    fn deregister(&mut self, _: usize, _: usize, token: u64) {
        let slot = token as u32;
        if locks::put(&self.ring, slot, None).is_ok() {
            self.free.push(slot);
        }
    }
}
