//! Buffers that begin where a page begins: files are read and written past the page cache.

use std::alloc::{Layout, handle_alloc_error};
use std::ops::Deref;

use farpage_object::PAGE_BYTES;
use farpage_sys::buffer::Buffer;

/// Bytes, the first at the begin of a page. Made to be used again. A mapping of its own, and no part of
/// the heap: threads that end their turn give it back, where the heap would keep it for each of them.
#[derive(Default)]
pub(crate) struct Aligned {
    memory: Option<Buffer>,
    bytes: usize,
}

impl Aligned {
    /// Room for `bytes` bytes, in place of what it held; what they are is not said.
    pub(crate) fn room_for(&mut self, bytes: usize) -> &mut [u8] {
        self.bytes = bytes;
        if self.room_bytes() < bytes {
            self.memory = None;
        }
        let memory = self.memory.get_or_insert_with(|| mapped(bytes));
        memory.room(bytes)
    }

    /// Bytes of memory that it takes.
    pub(crate) fn room_bytes(&self) -> usize {
        self.memory.as_deref().map_or(0, <[u8]>::len)
    }
}

/// As the heap would: without memory there is no way on.
fn mapped(bytes: usize) -> Buffer {
    let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
    Buffer::new(bytes).unwrap_or_else(|_| {
        let layout = Layout::from_size_align(bytes, PAGE_BYTES);
        handle_alloc_error(layout.unwrap_or(Layout::new::<u8>()))
    })
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Some(memory) => &memory[..self.bytes],
            None => &[],
        }
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
