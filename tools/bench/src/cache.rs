//! Random faults on an object whose contents are in the cache on disk, and that in the page cache.

use std::sync::Arc;

use farpage_kernel::embed::Embedded;
use farpage_object::PAGE_BYTES;
use farpage_source::{Cache, Options, Reach, Source, SourceError, SourcePager};

use crate::fault;

/// A far source, each page of which begins with its number.
struct Far(u64);

impl Source for Far {
    fn name(&self) -> &str {
        "far"
    }

    fn size(&self) -> u64 {
        self.0
    }

    fn version(&self) -> Option<String> {
        Some("1".into())
    }

    fn reach(&self) -> Reach {
        Reach::Far
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let first = offset / PAGE_BYTES as u64;
        for (page, bytes) in (first..).zip(buffer.chunks_mut(PAGE_BYTES)) {
            bytes.fill(0);
            bytes[..8].copy_from_slice(&page.to_le_bytes());
        }
        Ok(())
    }
}

/// Fills a cache, then faults on each of `pages` pages in random order, `runs` times; prints lines.
pub fn run(kernel: Embedded, pages: usize, runs: u64) {
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let bytes = fault::bytes(pages);
    let cache = Cache::open(folder.path(), 4 * bytes as u64).expect("a cache");
    let source = cache.keep(Arc::new(Far(bytes as u64)));
    let mut buffer = vec![0; 1 << 20];
    for at in (0..bytes).step_by(buffer.len()) {
        let part = buffer.len().min(bytes - at);
        let read = source.read_at(at as u64, &mut buffer[..part]);
        read.expect("filled");
    }
    for _ in 0..runs {
        let before = cache.usage().expect("counts").hit_bytes;
        let pager = SourcePager::new(Arc::clone(&source), &Options::default());
        let object = kernel.object(Arc::new(pager), bytes).expect("an object");
        let memory = object.map().expect("mapped");
        fault::measure(&memory, "farpage,_from_its_cache", 1, pages);
        let hits = cache.usage().expect("counts").hit_bytes - before;
        assert!(
            hits >= (pages * PAGE_BYTES) as u64,
            "{hits} bytes from the cache"
        );
    }
}
