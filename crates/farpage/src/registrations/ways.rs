//! What memory is registered with.

use std::os::fd::{AsFd, OwnedFd};

use farpage_locked::Handle;

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

/// The frames stay: they are pinned as those of `Hold::Pinned`, but their pages are not locked, so that
/// they may be discarded, which is seen.
#[derive(Debug, Default)]
pub struct Pinning(());

impl Pinning {
    /// By the ring of this process.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Register for Pinning {
    fn register(&mut self, at: usize, bytes: usize) -> Result<u64, RegisterError> {
        Ok(locks::pin_only(locks::pages_of(at, bytes)?)?.0)
    }

    fn deregister(&mut self, _: usize, _: usize, token: u64) {
        locks::unpin(Handle(token));
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
