//! Memory in slots of equal size that are appended to, read by many, and cleared.
//!
//! The rules that make this safe live in one word per slot: bytes below `filled` never change while
//! anybody reads, bytes above belong to the one appender, and a slot is cleared or patched only
//! when nobody reads it.

use alloc::vec::Vec;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::mem;
use crate::raw::{Errno, Result};

const FILLED: u64 = (1 << 32) - 1;
const BUSY: u64 = 1 << 32;
const PIN: u64 = 1 << 40;

/// A fixed number of slots, reserved at once; memory is taken as slots are filled.
pub struct Arena {
    base: usize,
    slot_bytes: usize,
    words: Vec<AtomicU64>,
}

impl Arena {
    /// `slots` slots of `slot_bytes` each (a multiple of the page size), empty.
    ///
    /// # Errors
    /// `ENOMEM` when the addresses cannot be had.
    pub fn new(slots: usize, slot_bytes: usize) -> Result<Self> {
        let mut words = Vec::new();
        words.try_reserve_exact(slots).map_err(|_| Errno::ENOMEM)?;
        words.resize_with(slots, || AtomicU64::new(0));
        let base = mem::map_anonymous((slots * slot_bytes).max(1))?;
        // Huge pages would take memory that no slot asked for. In a core nobody looks for it.
        for advice in [mem::MADV_NOHUGEPAGE, mem::MADV_DONTDUMP] {
            // SAFETY: this advice changes no contents.
            let _ = unsafe { mem::advise(base, slots * slot_bytes, advice) };
        }
        Ok(Self {
            base,
            slot_bytes,
            words,
        })
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.words.len()
    }

    /// Bytes in `slot` so far.
    pub fn filled(&self, slot: usize) -> usize {
        (self.words[slot].load(Ordering::Acquire) & FILLED) as usize
    }

    /// Takes the memory of a whole slot from the system in one call instead of page by page.
    pub fn populate(&self, slot: usize) {
        assert!(slot < self.words.len(), "no such slot");
        let at = self.base + slot * self.slot_bytes;
        // SAFETY: this advice changes no contents; when it fails, pages come one by one.
        let _ = unsafe { mem::advise(at, self.slot_bytes, mem::MADV_POPULATE_WRITE) };
    }

    /// Appends `parts` in order; returns where the first begins. `None` when they do not fit.
    ///
    /// # Panics
    /// When another thread is appending to, clearing or patching the slot.
    pub fn append(&self, slot: usize, parts: &[&[u8]]) -> Option<usize> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let word = &self.words[slot];
        let before = word.fetch_or(BUSY, Ordering::Acquire);
        assert!(before & BUSY == 0, "two threads change one slot");
        let start = (before & FILLED) as usize;
        if start + total > self.slot_bytes {
            word.fetch_and(!BUSY, Ordering::Release);
            return None;
        }
        let mut at = self.base + slot * self.slot_bytes + start;
        for part in parts {
            // SAFETY: the target lies inside the slot, above `filled`: nobody reads it, and BUSY
            // keeps other writers away.
            unsafe { core::ptr::copy_nonoverlapping(part.as_ptr(), at as *mut u8, part.len()) };
            at += part.len();
        }
        word.fetch_add(total as u64, Ordering::Release);
        word.fetch_and(!BUSY, Ordering::Release);
        Some(start)
    }

    /// The bytes of a slot, which stay as they are while the answer lives.
    pub fn read(&self, slot: usize) -> Reading<'_> {
        let filled = (self.words[slot].fetch_add(PIN, Ordering::Acquire) & FILLED) as usize;
        Reading {
            arena: self,
            slot,
            filled,
        }
    }

    /// Undoes [`Reading::keep`] of a slot of this arena.
    pub fn release(&self, kept: Kept) {
        let before = self.words[kept.slot].fetch_sub(PIN, Ordering::Release);
        assert!(before >= PIN, "a slot that nobody kept");
    }

    /// Empties a slot; with `give_back` its memory goes to the system. False when it is in use.
    pub fn clear(&self, slot: usize, give_back: bool) -> bool {
        if self.hide(slot).is_none() {
            return false;
        }
        if give_back {
            let at = self.base + slot * self.slot_bytes;
            // SAFETY: the slot is empty and busy: nobody relies on its contents.
            let given = unsafe { mem::advise(at, self.slot_bytes, mem::MADV_DONTNEED) };
            if given == Err(Errno::EINVAL) {
                // The process is wired.
                // SAFETY: as above.
                let _ = unsafe { mem::advise(at, self.slot_bytes, mem::MADV_DONTNEED_LOCKED) };
            }
        }
        self.words[slot].fetch_and(!BUSY, Ordering::Release);
        true
    }

    /// Overwrites bytes that are already there. False when the slot is in use.
    ///
    /// # Panics
    /// When `offset .. offset + bytes.len()` is not all there.
    pub fn patch(&self, slot: usize, offset: usize, bytes: &[u8]) -> bool {
        let Some(filled) = self.hide(slot) else {
            return false;
        };
        let fits = offset + bytes.len() <= filled;
        if fits {
            let at = self.base + slot * self.slot_bytes + offset;
            // SAFETY: inside the slot; while hidden and busy nobody reads or writes it.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        }
        self.words[slot].fetch_add(filled as u64, Ordering::Release);
        self.words[slot].fetch_and(!BUSY, Ordering::Release);
        assert!(fits, "patching bytes that are not there");
        true
    }

    /// Makes a slot that nobody uses look empty and busy; returns what was filled.
    fn hide(&self, slot: usize) -> Option<usize> {
        let word = &self.words[slot];
        let seen = word.load(Ordering::Acquire);
        if seen >= BUSY {
            return None;
        }
        word.compare_exchange(seen, BUSY, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(|filled| filled as usize)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let bytes = (self.words.len() * self.slot_bytes).max(1);
        // SAFETY: readers borrow the arena, so there are none.
        let _ = unsafe { mem::unmap(self.base, bytes) };
    }
}

/// The bytes of one slot, kept as they are.
pub struct Reading<'a> {
    arena: &'a Arena,
    slot: usize,
    filled: usize,
}

impl Deref for Reading<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let at = self.arena.base + self.slot * self.arena.slot_bytes;
        // SAFETY: these bytes are mapped, and the pin keeps them unchanged.
        unsafe { core::slice::from_raw_parts(at as *const u8, self.filled) }
    }
}

impl Reading<'_> {
    /// Keeps the bytes as they are, and the memory, until [`Arena::release`].
    pub fn keep(self) -> Kept {
        let slot = self.slot;
        core::mem::forget(self);
        Kept { slot }
    }
}

/// A slot that stays as it is.
#[must_use]
pub struct Kept {
    slot: usize,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.arena.words[self.slot].fetch_sub(PIN, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_not_cleared_under_its_reader() {
        let arena = Arena::new(2, 4096).unwrap();
        assert_eq!(arena.append(1, &[b"ab", b"cd"]), Some(0));
        let reading = arena.read(1);
        assert_eq!(arena.append(1, &[b"ef"]), Some(4));
        assert_eq!(&*reading, b"abcd", "a reader sees what was there");
        assert!(!arena.clear(1, true));
        assert!(!arena.patch(1, 0, b"x"));
        drop(reading);
        assert!(arena.patch(1, 0, b"x"));
        assert_eq!(&*arena.read(1), b"xbcdef");
        assert!(arena.clear(1, true));
        assert_eq!(arena.filled(1), 0);
    }

    #[test]
    fn a_kept_slot_is_not_cleared_before_it_is_released() {
        let arena = Arena::new(1, 4096).unwrap();
        arena.append(0, &[b"ab"]);
        let kept = arena.read(0).keep();
        assert!(!arena.clear(0, true));
        arena.release(kept);
        assert!(arena.clear(0, true));
    }

    #[test]
    fn a_full_slot_takes_nothing() {
        let arena = Arena::new(1, 4096).unwrap();
        assert_eq!(arena.append(0, &[&[1; 4090]]), Some(0));
        assert_eq!(arena.append(0, &[&[2; 7]]), None);
        assert_eq!(arena.append(0, &[&[2; 6]]), Some(4090));
        arena.populate(0);
        assert_eq!(arena.filled(0), 4096);
    }
}
