//! Faults that are answered in the thread that faults.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use farpage_kernel::embed::{Embedded, Mapping};
use farpage_object::{
    Access, DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageOut, PageRange, Pager, PagerError,
    Supplied,
};

use crate::support::sigbus;

/// Pages hold their number until somebody writes to them. It takes a mutex that no thread holds
/// while it faults, and allocates only for what is written.
#[derive(Default)]
struct Numbers {
    written: Mutex<HashMap<u64, Box<[u8; PAGE_BYTES]>>>,
    in_fault: AtomicU64,
    elsewhere: AtomicU64,
    signal_safe: bool,
    allows: AtomicBool,
    asked: AtomicU64,
    missing: Option<u64>,
}

thread_local! {
    static FAULTS_HERE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Pager for Numbers {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let by = if FAULTS_HERE.get() {
            &self.in_fault
        } else {
            &self.elsewhere
        };
        by.fetch_add(1, Ordering::Relaxed);
        let written = self.written.lock().expect("no panic");
        let pages = request.pages();
        if self.missing == Some(pages.start.0) {
            return Err(PagerError::Unavailable);
        }
        let buffer = request.buffer().chunks_exact_mut(PAGE_BYTES);
        for (page, into) in pages.iter().zip(buffer) {
            match written.get(&page.0) {
                Some(bytes) => into.copy_from_slice(&bytes[..]),
                None => {
                    into.fill(0);
                    into[..8].copy_from_slice(&page.0.to_le_bytes());
                }
            }
        }
        Ok(Supplied::clean(if self.missing.is_some() {
            1
        } else {
            pages.pages()
        }))
    }

    fn is_at_hand(&self, _: ObjectId, _: PageIndex) -> bool {
        true
    }

    fn is_signal_safe(&self) -> bool {
        self.signal_safe
    }

    fn data_write(&self, _: ObjectId, out: &[PageOut<'_>]) -> Result<(), PagerError> {
        let mut written = self.written.lock().expect("no panic");
        for page in out {
            written.insert(page.page.0, Box::new(*page.bytes));
        }
        Ok(())
    }

    fn data_unlock(&self, _: ObjectId, _: PageIndex, _: Access) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.allows.load(Ordering::Relaxed)
    }
}

fn number(memory: &Mapping, page: u64) -> u64 {
    let mut word = [0; 8];
    memory
        .read(page as usize * PAGE_BYTES, &mut word)
        .expect("inside");
    u64::from_le_bytes(word)
}

const PAGES: u64 = 8192;

/// Four threads write and check 8,192 pages, of which 2,048 fit, in different orders.
fn churn(signal_safe: bool) -> Arc<Numbers> {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let pager = Arc::new(Numbers {
        signal_safe,
        ..Numbers::default()
    });
    let object = kernel
        .object(pager.clone(), PAGES as usize * PAGE_BYTES)
        .expect("an object");
    let memory = object.map_in_thread().expect("mapped");
    let begin = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (memory, begin) = (&memory, &begin);
            scope.spawn(move || {
                FAULTS_HERE.set(true);
                begin.wait();
                for round in 0..3 {
                    for i in 0..PAGES {
                        let page = (i * (2 * thread + 2 * round + 1) + 7 * thread) % PAGES;
                        assert_eq!(number(memory, page), page, "a wrong page");
                        if page % 4 == thread {
                            let at = page as usize * PAGE_BYTES + 8;
                            memory
                                .write(at, &(page + round).to_le_bytes())
                                .expect("inside");
                        }
                    }
                }
            });
        }
    });
    for page in 0..PAGES {
        let mut word = [0; 8];
        memory
            .read(page as usize * PAGE_BYTES + 8, &mut word)
            .expect("inside");
        assert_eq!(u64::from_le_bytes(word), page + 2, "a write is lost");
    }
    assert!(memory.stats().resident_pages <= 2048);
    assert!(kernel.resident_bytes() <= 8 << 20);
    memory.unmap().expect("written back");
    pager
}

#[test]
fn data_is_right_when_threads_answer_their_own_faults() {
    let pager = churn(true);
    assert!(
        pager.in_fault.load(Ordering::Relaxed) > PAGES,
        "nobody did it in the fault"
    );
}

#[test]
fn a_pager_that_is_not_signal_safe_is_called_elsewhere() {
    let pager = churn(false);
    assert_eq!(pager.in_fault.load(Ordering::Relaxed), 0);
    assert!(pager.elsewhere.load(Ordering::Relaxed) > PAGES / 512);
}

#[test]
fn a_locked_page_waits_until_the_lock_is_lifted() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let pager = Arc::new(Numbers::default());
    let object = kernel.object(pager.clone(), 1 << 20).expect("an object");
    let memory = object.map_in_thread().expect("mapped");
    assert_eq!(number(&memory, 3), 3);
    memory.lock(PageRange::new(3, 4)).expect("locked");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| memory.write(3 * PAGE_BYTES, &[9]).expect("inside"));
        farpage_testkit::until("the pager is asked", || {
            pager.asked.load(Ordering::Relaxed) > 0
        });
        assert_eq!(number(&memory, 3), 3, "it may be read, and has not changed");
        assert!(!writer.is_finished());
        memory.unlock(PageRange::new(3, 4)).expect("unlocked");
    });
    assert_eq!(
        pager.asked.load(Ordering::Relaxed),
        1,
        "a pager that refused is asked once"
    );
    assert_eq!(number(&memory, 3), 9);
    pager.allows.store(true, Ordering::Relaxed);
    memory.lock(PageRange::new(3, 4)).expect("locked");
    memory.write(3 * PAGE_BYTES, &[1]).expect("inside");
    assert_eq!(pager.asked.load(Ordering::Relaxed), 2);
}

#[test]
fn a_system_call_on_an_absent_page_fails() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let object = kernel
        .object(Arc::new(Numbers::default()), 1 << 20)
        .expect("an object");
    let memory = object.map_in_thread().expect("mapped");
    let null = std::fs::File::open("/dev/zero").expect("a file");
    // SAFETY: the bytes lie in the mapping and nobody else uses them.
    let into = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), 16) };
    let refused = std::io::Read::read(&mut &null, into).expect_err("not in memory");
    assert_eq!(refused.raw_os_error(), Some(14), "EFAULT");
    assert_eq!(number(&memory, 0), 0);
    memory.write(0, &[1]).expect("inside");
    assert_eq!(
        std::io::Read::read(&mut &null, into).expect("in memory"),
        16
    );
}

/// Runs `test` again in a process of its own, as `role`.
fn again(test: &str, role: &str) -> std::process::Output {
    let own = std::env::current_exe().expect("a path");
    let mut again = std::process::Command::new(own);
    again
        .args(["--exact", &format!("in_thread::{test}"), "--nocapture"])
        .env("FARPAGE_TEST_ROLE", role);
    again.output().expect("started")
}

fn bad_page() -> ! {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let pager = Arc::new(Numbers {
        missing: Some(5),
        ..Numbers::default()
    });
    let object = kernel.object(pager, 1 << 20).expect("an object");
    let memory = object.map_in_thread().expect("mapped");
    assert_eq!(number(&memory, 4), 4);
    println!("read {}", number(&memory, 5));
    std::process::exit(0)
}

#[test]
fn a_lost_page_raises_sigbus_for_the_program() {
    match std::env::var("FARPAGE_TEST_ROLE").as_deref() {
        Ok("default") => bad_page(),
        Ok("handler") => {
            sigbus::exit_on_sigbus(42);
            bad_page()
        }
        _ => {}
    }
    let name = "a_lost_page_raises_sigbus_for_the_program";
    for (role, signal, code) in [("default", Some(7), None), ("handler", None, Some(42))] {
        let output = again(name, role);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.status.signal(), output.status.code()),
            (signal, code),
            "{said}"
        );
        assert!(said.contains("cannot page in"), "{said}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("read "));
    }
}

#[test]
fn sigbus_of_other_memory_reaches_its_handler() {
    match std::env::var("FARPAGE_TEST_ROLE").as_deref() {
        Ok("default") => {}
        Ok("handler") => sigbus::exit_on_sigbus(43),
        _ => {
            let name = "sigbus_of_other_memory_reaches_its_handler";
            assert_eq!(again(name, "default").status.signal(), Some(7));
            assert_eq!(again(name, "handler").status.code(), Some(43));
            return;
        }
    }
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let object = kernel
        .object(Arc::new(Numbers::default()), 1 << 20)
        .expect("an object");
    let memory = object.map_in_thread().expect("mapped");
    assert_eq!(number(&memory, 4), 4);
    sigbus::read_behind_the_end_of_a_file();
}
