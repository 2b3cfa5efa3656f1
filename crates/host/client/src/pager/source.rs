//! Whatever has bytes at offsets, as a memory object.

use std::sync::Arc;

use farpage_object::PAGE_BYTES;
use farpage_source::Source;

use super::serve::{About, Kernel, MemoryObject, PageRequest};

/// A memory object with the bytes of a source. What is written to it goes to the source, and is
/// durable when the kernel has let go of it.
pub struct SourceObject {
    name: String,
    source: Arc<dyn Source>,
    cluster_pages: u32,
}

impl SourceObject {
    /// The bytes of `source`, to be called `name`. `cluster_pages`, up to 64, are brought in where
    /// one is wanted.
    #[must_use]
    pub fn new(name: &str, source: Arc<dyn Source>, cluster_pages: u32) -> Self {
        let name = name.to_owned();
        Self {
            name,
            source,
            cluster_pages,
        }
    }
}

impl MemoryObject for SourceObject {
    fn about(&self) -> About {
        About {
            name: self.name.clone(),
            bytes: self.source.size(),
            writable: self.source.is_writable(),
            cluster_pages: self.cluster_pages,
        }
    }

    fn data_request(&self, request: PageRequest) {
        let (pages, size) = (request.pages(), self.source.size());
        let offset = pages.start.0.saturating_mul(PAGE_BYTES as u64);
        let bytes = pages.bytes().min(size.saturating_sub(offset)) as usize;
        if bytes == 0 {
            return request.fail("it ends before");
        }
        let mut contents = vec![0; bytes];
        match self.source.read_at(offset, &mut contents) {
            Ok(()) => request.supply(contents),
            Err(error) => request.fail(&error.to_string()),
        }
    }

    fn data_write(&self, _: &Kernel, offset: u64, bytes: &[u8]) -> Result<(), String> {
        // The last page may be longer than what is left of the source.
        let left = self.source.size().saturating_sub(offset);
        let bytes = &bytes[..(bytes.len() as u64).min(left) as usize];
        let written = self.source.write_at(offset, bytes);
        written.map_err(|error| error.to_string())
    }

    fn terminate(&self, _: &Kernel) {
        if self.source.is_writable()
            && let Err(error) = self.source.sync()
        {
            farpage_sys::say!("farpage: '{}' may not be durable: {error}", self.name);
        }
    }
}
