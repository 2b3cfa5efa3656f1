//! Pages that outlive the last mapping (`pager_cache`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use farpage_kernel::embed::{Embedded, Mapping, Object};
use farpage_object::{
    DataRequest, ObjectId, PAGE_BYTES, PageOut, PageRange, Pager, PagerError, Supplied,
};

/// Pages hold their number until somebody writes to them. All that the kernel does is counted.
#[derive(Default)]
struct Counted {
    written: Mutex<HashMap<u64, Box<[u8; PAGE_BYTES]>>>,
    requested: AtomicU64,
    terminated: AtomicU64,
}

impl Counted {
    fn requested(&self) -> u64 {
        self.requested.load(Ordering::Relaxed)
    }

    fn terminated(&self) -> u64 {
        self.terminated.load(Ordering::Relaxed)
    }

    fn written(&self) -> usize {
        self.written.lock().expect("no panic").len()
    }
}

impl Pager for Counted {
    fn data_request(&self, request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        self.requested.fetch_add(1, Ordering::Relaxed);
        let page = request.pages().start.0;
        match self.written.lock().expect("no panic").get(&page) {
            Some(bytes) => Ok(request.supply(&bytes[..])),
            None => Ok(request.supply(&page.to_le_bytes())),
        }
    }

    fn data_write(&self, _: ObjectId, out: &[PageOut<'_>]) -> Result<(), PagerError> {
        let mut written = self.written.lock().expect("no panic");
        for page in out {
            written.insert(page.page.0, Box::new(*page.bytes));
        }
        Ok(())
    }

    fn terminate(&self, _: ObjectId) {
        self.terminated.fetch_add(1, Ordering::Relaxed);
    }
}

fn object(kernel: &Embedded, pages: usize) -> (Arc<Counted>, Object) {
    let pager = Arc::new(Counted::default());
    let object = kernel.object(pager.clone(), pages * PAGE_BYTES);
    (pager, object.expect("an object"))
}

fn number(memory: &Mapping, page: u64) -> u64 {
    let mut word = [0; 8];
    memory
        .read(page as usize * PAGE_BYTES, &mut word)
        .expect("inside");
    u64::from_le_bytes(word)
}

fn write(memory: &Mapping, page: u64, value: u64) {
    memory
        .write(page as usize * PAGE_BYTES, &value.to_le_bytes())
        .expect("inside");
}

#[test]
fn the_next_mapping_finds_cached_pages_without_the_pager() {
    let kernel = Embedded::start(16 << 20).expect("a kernel");
    let (pager, object) = object(&kernel, 256);
    object.cache(true).expect("nothing to write");
    for in_thread in [false, true] {
        let map = || {
            if in_thread {
                object.map_in_thread()
            } else {
                object.map()
            }
        };
        let memory = map().expect("mapped");
        (0..256).for_each(|page| assert_eq!(number(&memory, page), page));
        write(&memory, 7, 7);
        drop(memory);
        assert_eq!(
            pager.written(),
            usize::from(in_thread),
            "a modified page stays, as it is"
        );
        let requested = pager.requested();
        let memory = map().expect("mapped again");
        (0..256).for_each(|page| assert_eq!(number(&memory, page), page));
        assert_eq!(memory.stats().resident_pages, 256);
        assert_eq!(pager.requested(), requested);
        assert!(matches!(
            object.map(),
            Err(farpage_kernel::embed::Error::Mapped)
        ));
    }
    // The other way to answer faults needs another place: what was kept was let go.
    assert_eq!((pager.terminated(), pager.written()), (1, 1));
}

#[test]
fn without_cache_pages_go_with_the_mapping() {
    let kernel = Embedded::start(16 << 20).expect("a kernel");
    let (pager, object) = object(&kernel, 256);
    for round in 1..3 {
        let memory = object.map().expect("mapped");
        assert_eq!(number(&memory, 3), 3);
        write(&memory, 4, 44);
        drop(memory);
        assert_eq!((pager.terminated(), pager.written()), (round, 1));
        assert_eq!(kernel.resident_bytes(), 0);
    }
    assert!(pager.requested() >= 4);
}

#[test]
fn uncaching_and_dropping_write_back_and_terminate() {
    let kernel = Embedded::start(16 << 20).expect("a kernel");
    let (pager, object) = object(&kernel, 256);
    object.cache(true).expect("nothing to write");
    let memory = object.map().expect("mapped");
    write(&memory, 1, 11);
    memory.unmap().expect("written back");
    assert_eq!(
        (pager.terminated(), pager.written()),
        (0, 1),
        "unmap writes, and keeps"
    );
    assert!(kernel.resident_bytes() > 0);
    let memory = object.map().expect("mapped");
    write(&memory, 100, 22);
    object
        .cache(false)
        .expect("it is mapped: nothing happens yet");
    object.cache(true).expect("nor now");
    drop(memory);
    assert_eq!((pager.terminated(), pager.written()), (0, 1));
    object.cache(false).expect("written back");
    assert_eq!((pager.terminated(), pager.written()), (1, 2));
    assert_eq!(kernel.resident_bytes(), 0);
    object.cache(true).expect("nothing to write");
    let memory = object.map().expect("mapped");
    assert_eq!((number(&memory, 1), number(&memory, 100)), (11, 22));
    write(&memory, 200, 33);
    drop(memory);
    drop(object);
    assert_eq!((pager.terminated(), pager.written()), (2, 3));
    assert_eq!(kernel.resident_bytes(), 0);
}

#[test]
fn cached_pages_give_way_to_others() {
    const BUDGET: u64 = 8 << 20;
    let kernel = Embedded::start(BUDGET).expect("a kernel");
    let (pager, cached) = object(&kernel, 1024);
    cached.cache(true).expect("nothing to write");
    let memory = cached.map().expect("mapped");
    (0..1024).for_each(|page| assert_eq!(number(&memory, page), page));
    (0..512).for_each(|page| write(&memory, page, page + 1_000_000));
    drop(memory);
    assert!(pager.written() < 512, "there is no need to write yet");
    let (_, other) = object(&kernel, 8192);
    let memory = other.map().expect("mapped");
    for page in 0..8192 {
        assert_eq!(number(&memory, page), page);
        assert!(kernel.resident_bytes() <= BUDGET);
    }
    assert!(pager.written() >= 512, "modified pages were written back");
    drop(memory);
    let memory = cached.map().expect("mapped");
    assert!(
        memory.stats().resident_pages < 256,
        "clean pages were dropped"
    );
    for page in 0..1024 {
        let want = if page < 512 { page + 1_000_000 } else { page };
        assert_eq!(number(&memory, page), want);
    }
    memory.flush(PageRange::new(0, 1024)).expect("flushed");
    assert_eq!(pager.terminated(), 0);
}
