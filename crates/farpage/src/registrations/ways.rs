//! What memory is registered with.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};

use farpage_locked::system::Places;

use crate::LockError;
use crate::locks;

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
    /// Made when it is first needed.
    places: Option<Places>,
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
        let places = match &mut self.places {
            Some(places) => places,
            none => none.insert(Places::new()?),
        };
        let held = places.hold_all(pages)?;
        let token = u64::from(held[0]);
        self.held.insert(token, held);
        Ok(token)
    }

    fn deregister(&mut self, _: usize, _: usize, token: u64) {
        if let (Some(places), Some(held)) = (&mut self.places, self.held.remove(&token)) {
            held.into_iter().for_each(|place| places.release(place));
        }
    }
}

/// Registered buffers of an `io_uring` of the caller's: what it is known by is the index of its buffer, for
/// `IORING_OP_READ_FIXED` and the like.
#[derive(Debug)]
pub struct RingBuffers {
    ring: OwnedFd,
    free: Vec<u32>,
    all: u32,
}

impl RingBuffers {
    /// Uses the first `buffers` places of the ring's table of buffers, which was registered sparse.
    ///
    /// # Errors
    /// When the descriptor cannot be duplicated.
    pub fn new(ring: impl AsFd, buffers: u32) -> std::io::Result<Self> {
        Ok(Self {
            ring: ring.as_fd().try_clone_to_owned()?,
            free: (0..buffers).rev().collect(),
            all: buffers,
        })
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
