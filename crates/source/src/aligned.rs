//! Buffers that begin where a page begins: files are read and written past the page cache.

use std::ops::Deref;

use farpage_abi::PAGE_BYTES;

/// Bytes, the first at the begin of a page. Made to be used again.
#[derive(Default)]
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Aligned {
    /// Room for `bytes` bytes, in place of what it held; what they are is not said.
    pub(crate) fn room_for(&mut self, bytes: usize) -> &mut [u8] {
        if self.memory.len() < bytes + PAGE_BYTES {
            self.memory = vec![0; bytes + PAGE_BYTES];
        }
        self.start = self.memory.as_ptr().align_offset(PAGE_BYTES);
        self.bytes = bytes;
        &mut self.memory[self.start..self.start + bytes]
    }

    /// Bytes of memory that it takes.
    pub(crate) fn room_bytes(&self) -> usize {
        self.memory.len()
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_begins_with_a_page_whatever_it_was_used_for_before() {
        let mut buffer = Aligned::default();
        for bytes in [0, 1, 5000, 4096, 100_000, 17] {
            buffer.room_for(bytes).fill(7);
            assert!(buffer.as_ptr().addr().is_multiple_of(PAGE_BYTES));
            assert_eq!(*buffer, vec![7; bytes]);
        }
    }
}
