//! Memory objects with pagers of their own.

#![allow(missing_docs)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use farpage_abi::{Access, ObjectId, PAGE_BYTES, PageIndex, PageRange};
use farpage_kernel::embed::{Embedded, Error};
use farpage_pagers::{DataRequest, PageOut, Pager, PagerError, Supplied};

/// Pages hold their number until somebody writes to them.
#[derive(Default)]
struct Numbers {
    written: Mutex<HashMap<u64, Box<[u8; PAGE_BYTES]>>>,
    requests: AtomicU64,
    unlocks: AtomicU64,
    refuses: AtomicBool,
    locks: bool,
}

impl Pager for Numbers {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let written = self.written.lock().expect("no panic");
        let pages = request.pages();
        for (page, into) in pages
            .iter()
            .zip(request.buffer().chunks_exact_mut(PAGE_BYTES))
        {
            match written.get(&page.0) {
                Some(bytes) => into.copy_from_slice(&bytes[..]),
                None => {
                    into.fill(0);
                    into[..8].copy_from_slice(&page.0.to_le_bytes());
                }
            }
        }
        let locked = self.locks.then_some(Access::Write);
        Ok(Supplied {
            locked,
            ..Supplied::clean(pages.pages())
        })
    }

    fn data_write(&self, _: ObjectId, out: &[PageOut<'_>]) -> Result<(), PagerError> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(PagerError::OutOfSpace);
        }
        let mut written = self.written.lock().expect("no panic");
        for page in out {
            written.insert(page.page.0, Box::new(*page.bytes));
        }
        Ok(())
    }

    fn data_unlock(&self, _: ObjectId, _: PageIndex, _: Access) -> bool {
        self.unlocks.fetch_add(1, Ordering::Relaxed);
        true
    }
}

const ALL: PageRange = PageRange {
    start: PageIndex(0),
    end: PageIndex(u64::MAX),
};

fn number(memory: &farpage_kernel::embed::Mapping<'_>, page: usize) -> u64 {
    let mut word = [0; 8];
    memory.read(page * PAGE_BYTES, &mut word).expect("inside");
    u64::from_le_bytes(word)
}

#[test]
fn pages_come_from_the_pager_and_go_back_to_it() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let pager = Arc::new(Numbers::default());
    let object = kernel.object(pager.clone(), 64 << 20).expect("an object");
    let memory = object.map().expect("mapped");
    for page in 0..16384 {
        assert_eq!(number(&memory, page), page as u64);
    }
    for page in (0..16384).step_by(3) {
        memory
            .write(page * PAGE_BYTES, &(page as u64 + 1_000_000).to_le_bytes())
            .expect("inside");
    }
    for page in 0..16384 {
        let want = if page % 3 == 0 {
            page as u64 + 1_000_000
        } else {
            page as u64
        };
        assert_eq!(number(&memory, page), want);
    }
    assert!(memory.stats().resident_pages <= 2048);
    assert!(kernel.resident_bytes() <= 8 << 20);
    memory.unmap().expect("written back");
    let written = pager.written.lock().expect("no panic");
    assert_eq!(written.len(), 16384usize.div_ceil(3));
}

#[test]
fn clean_writes_back_and_keeps() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let pager = Arc::new(Numbers::default());
    let object = kernel.object(pager.clone(), 1 << 20).expect("an object");
    let memory = object.map().expect("mapped");
    memory.write(5 * PAGE_BYTES, &[9; 100]).expect("inside");
    memory.clean(ALL).expect("cleaned");
    assert_eq!(pager.written.lock().expect("no panic")[&5][..100], [9; 100]);
    let requests = pager.requests.load(Ordering::Relaxed);
    memory.write(5 * PAGE_BYTES, &[7; 100]).expect("inside");
    assert_eq!(
        pager.requests.load(Ordering::Relaxed),
        requests,
        "it stayed resident"
    );
    memory.flush(ALL).expect("flushed");
    assert_eq!(memory.stats().resident_pages, 0);
    let mut back = [0; 100];
    memory.read(5 * PAGE_BYTES, &mut back).expect("inside");
    assert_eq!(back, [7; 100]);
    assert!(pager.requests.load(Ordering::Relaxed) > requests);
}

#[test]
fn a_locked_page_waits_for_its_pager() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let pager = Arc::new(Numbers {
        locks: true,
        ..Numbers::default()
    });
    let object = kernel.object(pager.clone(), 1 << 20).expect("an object");
    let memory = object.map().expect("mapped");
    assert_eq!(number(&memory, 3), 3);
    memory.write(3 * PAGE_BYTES, &[1]).expect("inside");
    assert_eq!(pager.unlocks.load(Ordering::Relaxed), 1);
    memory.write(3 * PAGE_BYTES, &[2]).expect("inside");
    assert_eq!(pager.unlocks.load(Ordering::Relaxed), 1, "asked once");
    memory.lock(PageRange::new(3, 4)).expect("locked");
    memory.write(3 * PAGE_BYTES, &[3]).expect("inside");
    assert_eq!(pager.unlocks.load(Ordering::Relaxed), 2);
}

#[test]
fn a_pager_that_refuses_loses_nothing() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let pager = Arc::new(Numbers::default());
    let object = kernel.object(pager.clone(), 1 << 20).expect("an object");
    let memory = object.map().expect("mapped");
    memory.write(0, &[5; 10]).expect("inside");
    pager.refuses.store(true, Ordering::Relaxed);
    assert!(memory.clean(ALL).is_err());
    let mut back = [0; 10];
    memory.read(0, &mut back).expect("inside");
    assert_eq!(back, [5; 10]);
    pager.refuses.store(false, Ordering::Relaxed);
    memory.clean(ALL).expect("taken now");
}

#[test]
fn mistakes_are_refused() {
    assert!(matches!(
        Embedded::start(1 << 20),
        Err(Error::Budget { .. })
    ));
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let object = kernel
        .object(Arc::new(Numbers::default()), 1 << 20)
        .expect("an object");
    let memory = object.map().expect("mapped");
    assert!(matches!(object.map(), Err(Error::Mapped)));
    assert!(matches!(
        memory.read(1 << 20, &mut [0]),
        Err(Error::Outside { .. })
    ));
    drop(memory);
    object.map().expect("mapped again");
}

/// Supplies nothing, or more than it is asked for.
struct Liar(u64);

impl Pager for Liar {
    fn data_request(&self, _: DataRequest<'_>) -> Result<Supplied, PagerError> {
        Ok(Supplied::clean(self.0))
    }

    fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
        Ok(())
    }
}

/// Run in a process of its own: the page that is lost raises SIGBUS there.
#[test]
fn a_lying_pager_raises_sigbus_and_shows_nothing() {
    const PAGES: &str = "FARPAGE_TEST_LIAR";
    if let Ok(pages) = std::env::var(PAGES) {
        let kernel = Embedded::start(8 << 20).expect("a kernel");
        let liar = Arc::new(Liar(pages.parse().expect("a number")));
        let object = kernel.object(liar, 1 << 20).expect("an object");
        let memory = object.map().expect("mapped");
        println!("read {}", number(&memory, 0));
        return;
    }
    for pages in ["0", "1000000"] {
        let own = std::env::current_exe().expect("a path");
        let mut again = std::process::Command::new(own);
        again.args([
            "--exact",
            "a_lying_pager_raises_sigbus_and_shows_nothing",
            "--nocapture",
        ]);
        let output = again.env(PAGES, pages).output().expect("started");
        let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(signal, Some(7), "{said}");
        assert!(
            said.contains("supplied no page, or more than it was asked for"),
            "{said}"
        );
        assert!(!String::from_utf8_lossy(&output.stdout).contains("read "));
    }
}
