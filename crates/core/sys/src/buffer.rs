//! Page-aligned memory of one owner, for direct I/O.

use core::ops::{Deref, DerefMut};

use farpage_object::PAGE_BYTES;

use crate::mem;
use crate::raw::Result;

/// An anonymous mapping, zeros at first, taken from the system page by page as it is touched.
pub struct Buffer {
    at: usize,
    bytes: usize,
    /// Bytes from the start that may have taken memory: they were lent.
    lent: usize,
}

impl Buffer {
    /// A buffer of `bytes` bytes (at least 1), aligned to a page.
    ///
    /// # Errors
    /// As `mmap(2)`.
    pub fn new(bytes: usize) -> Result<Self> {
        let at = mem::map_anonymous(bytes)?;
        let lent = 0;
        Ok(Self { at, bytes, lent })
    }

    /// Its first `bytes` bytes, to be written to.
    ///
    /// # Panics
    /// When it has not so many.
    pub fn room(&mut self, bytes: usize) -> &mut [u8] {
        assert!(bytes <= self.bytes, "the buffer is too small");
        self.lent = self.lent.max(bytes);
        // SAFETY: the mapping is this buffer's own, and `&mut self` makes the access the only one.
        unsafe { core::slice::from_raw_parts_mut(self.at as *mut u8, bytes) }
    }

    /// Gives the memory of all but the first `kept` bytes back to the system, if more were lent.
    /// What lay there is zeros afterwards, or as it was where memory is wired.
    pub fn shrink(&mut self, kept: usize) {
        if self.lent <= kept {
            return;
        }
        self.lent = kept;
        let kept = kept.next_multiple_of(PAGE_BYTES).min(self.bytes);
        // SAFETY: this buffer's own, and nobody borrows it. Linux refuses for wired memory.
        let _ = unsafe { mem::advise(self.at + kept, self.bytes - kept, mem::MADV_DONTNEED) };
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is this buffer's own, readable, and lives as long as it.
        unsafe { core::slice::from_raw_parts(self.at as *const u8, self.bytes) }
    }
}

impl DerefMut for Buffer {
    /// All of it; [`Buffer::room`] lends less.
    fn deref_mut(&mut self) -> &mut [u8] {
        self.room(self.bytes)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: nobody borrows the buffer any more.
        let _ = unsafe { mem::unmap(self.at, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_zero() {
        let mut buffer = Buffer::new(8192).unwrap();
        assert_eq!(buffer.as_ptr() as usize % 4096, 0);
        assert!(buffer.iter().all(|&byte| byte == 0));
        buffer[8191] = 7;
        assert_eq!(buffer[8191], 7);
    }

    #[test]
    fn a_buffer_that_shrinks_keeps_its_first_pages() {
        let mut buffer = Buffer::new(4 * 4096).unwrap();
        buffer.fill(7);
        buffer.shrink(4097);
        let there = [0, 8191, 8192, 16383].map(|at: usize| buffer[at]);
        assert_eq!(there, [7, 7, 0, 0]);
        buffer.shrink(1 << 20);
        assert_eq!(buffer[8191], 7);
    }
}
