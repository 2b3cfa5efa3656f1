//! A part of the memory: what all objects of a user may have of it.

use std::sync::atomic::{AtomicU64, Ordering};

use farpage_object::PAGE_BYTES;

/// Objects that belong to it ([`crate::Object::belongs_to`]) have no more in memory together.
pub struct Share {
    most: AtomicU64,
    resident: AtomicU64,
    pub(crate) wired: AtomicU64,
}

impl Share {
    /// One of `bytes`.
    pub fn new(bytes: u64) -> Self {
        Self {
            most: AtomicU64::new(bytes / PAGE_BYTES as u64),
            resident: AtomicU64::new(0),
            wired: AtomicU64::new(0),
        }
    }

    /// What its objects have in memory.
    pub fn resident_bytes(&self) -> u64 {
        self.resident.load(Ordering::Relaxed) * PAGE_BYTES as u64
    }

    /// Pages that are there.
    pub(crate) fn pages(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// True when so many pages more are a small part of it.
    pub(crate) fn has(&self, pages: u64) -> bool {
        self.resident.load(Ordering::Relaxed) + pages <= self.pages() / 4 * 3
    }

    /// Pages above it.
    pub(crate) fn excess(&self) -> u64 {
        let resident = self.resident.load(Ordering::Relaxed);
        resident.saturating_sub(self.pages())
    }

    /// So much above it that who brings more pages in is to wait.
    pub(crate) fn is_overfull(&self) -> bool {
        self.excess() > self.pages() / 8
    }

    /// An object of it has other pages in memory than before.
    pub(crate) fn changes(&self, before: u64, now: u64) {
        let change = now.wrapping_sub(before);
        self.resident.fetch_add(change, Ordering::Relaxed);
    }
}
