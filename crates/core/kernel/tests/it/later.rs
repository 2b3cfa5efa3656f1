//! Pagers that answer later: outstanding faults hold no thread and few bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};

use farpage_kernel::embed::{Embedded, Mapping};
use farpage_object::{
    DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageOut, PageRange, Pager, PagerError, Supplied,
    Ticket,
};

/// Counts the bytes that are allocated. All threads are counted together: who looks at it has a
/// process of its own.
struct Counting;

static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

// SAFETY: the system's allocator does all that is asked.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: forwarded.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: forwarded.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Keeps tickets until it is told to answer. Pages hold their number.
#[derive(Default)]
struct Slow {
    kept: Mutex<Vec<Ticket>>,
    came: Condvar,
    answers: AtomicBool,
    terminated: AtomicU64,
    written: AtomicU64,
}

fn contents(page: PageIndex) -> [u8; PAGE_BYTES] {
    let mut bytes = [0x5a; PAGE_BYTES];
    bytes[..8].copy_from_slice(&page.0.to_le_bytes());
    bytes
}

/// Supplies what is needed of a ticket, from bytes that start at no page.
fn supply(ticket: Ticket) -> bool {
    let first = ticket.pages().start.0;
    let needed = PageRange::new(first, first + ticket.needed());
    let mut bytes = vec![0];
    needed
        .iter()
        .for_each(|page| bytes.extend_from_slice(&contents(page)));
    ticket.supply(&bytes[1..])
}

impl Slow {
    /// Waits until tickets for all of `pages` are kept.
    fn wait_for(&self, pages: &[u64]) {
        let has = |kept: &Vec<Ticket>, page: &u64| {
            kept.iter()
                .any(|ticket| ticket.pages().contains(PageIndex(*page)))
        };
        let mut kept = self.kept.lock().expect("no panic");
        while !pages.iter().all(|page| has(&kept, page)) {
            kept = self.came.wait(kept).expect("no panic");
        }
    }

    fn take(&self) -> Vec<Ticket> {
        std::mem::take(&mut *self.kept.lock().expect("no panic"))
    }

    /// Answers all, and from now on at once.
    fn answer_all(&self) {
        self.answers.store(true, Ordering::Release);
        for ticket in self.take() {
            assert!(supply(ticket), "nobody waits");
        }
    }
}

impl Pager for Slow {
    fn data_request(&self, request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        Ok(request.later(|ticket| {
            let mut kept = self.kept.lock().expect("no panic");
            if self.answers.load(Ordering::Acquire) {
                drop(kept);
                assert!(supply(ticket), "nobody waits");
                return;
            }
            kept.push(ticket);
            self.came.notify_all();
        }))
    }

    fn is_at_hand(&self, _: ObjectId, _: PageIndex) -> bool {
        true
    }

    fn data_write(&self, _: ObjectId, out: &[PageOut<'_>]) -> Result<(), PagerError> {
        self.written.fetch_add(out.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn terminate(&self, _: ObjectId) {
        self.terminated.fetch_add(1, Ordering::Relaxed);
    }
}

const ALL: PageRange = PageRange {
    start: PageIndex(0),
    end: PageIndex(u64::MAX),
};

fn number(memory: &Mapping, page: u64) -> u64 {
    let mut word = [0; 8];
    memory
        .read(page as usize * PAGE_BYTES, &mut word)
        .expect("inside");
    u64::from_le_bytes(word)
}

fn threads_of_this_process() -> usize {
    std::fs::read_dir("/proc/self/task").expect("/proc").count()
}

/// `faults` threads fault on as many pages; the pager answers none until all were asked for.
fn many_faults_wait(faults: u64, in_thread: bool) {
    let kernel = Embedded::start(64 << 20).expect("a kernel");
    let pager = Arc::new(Slow::default());
    // Room for the tickets beforehand: the pager's list is not what is counted.
    *pager.kept.lock().expect("no panic") = Vec::with_capacity(4 * faults as usize);
    let object = kernel.object(pager.clone(), 1 << 30).expect("an object");
    let memory = if in_thread {
        object.map_in_thread()
    } else {
        object.map()
    };
    let memory = memory.expect("mapped");
    // The last page of every cluster, in no order: nothing is asked for ahead.
    let pages: Vec<u64> = (0..faults).map(|i| 16 * (i * 617 % faults) + 15).collect();
    let begin = Barrier::new(faults as usize + 1);
    let (more_threads, bytes) = std::thread::scope(|scope| {
        for &page in &pages {
            let (memory, begin) = (&memory, &begin);
            let small = std::thread::Builder::new().stack_size(32 << 10);
            let fault = move || {
                begin.wait();
                assert_eq!(number(memory, page), page, "a wrong page");
            };
            small.spawn_scoped(scope, fault).expect("a thread");
        }
        let threads = threads_of_this_process();
        let bytes = LIVE_BYTES.load(Ordering::Relaxed);
        begin.wait();
        pager.wait_for(&pages);
        let bytes = LIVE_BYTES.load(Ordering::Relaxed) - bytes;
        let more_threads = threads_of_this_process().saturating_sub(threads);
        pager.answer_all();
        (more_threads, bytes)
    });
    assert!(
        more_threads <= 8,
        "{more_threads} threads wait for the pager"
    );
    // The page table of the pages comes on top: they lie far apart.
    let least = 32 * faults as i64;
    let most = 256 * faults as i64 + (64 << 10);
    assert!(
        (least..=most).contains(&bytes),
        "{bytes} bytes for {faults} faults"
    );
    assert!(memory.stats().resident_pages >= faults);
    memory.unmap().expect("unmapped");
    assert_eq!(pager.terminated.load(Ordering::Relaxed), 1);
}

#[test]
fn two_thousand_faults_wait_in_a_few_hundred_bytes_each() {
    farpage_testkit::in_own_process!();
    many_faults_wait(2000, false);
}

#[test]
fn two_hundred_faults_wait_in_their_own_threads() {
    farpage_testkit::in_own_process!();
    many_faults_wait(200, true);
}

/// Waits until `thread` sleeps.
fn wait_until_it_sleeps(thread: &AtomicU64) {
    let state = |thread: u64| {
        let path = format!("/proc/self/task/{thread}/stat");
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        stat.rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next())
    };
    farpage_testkit::until(
        "the thread waits",
        || matches!(thread.load(Ordering::Acquire), id if id != 0 && state(id) == Some('S')),
    );
}

#[test]
fn flush_and_lock_wait_for_outstanding_pages() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let pager = Arc::new(Slow::default());
    let object = kernel.object(pager.clone(), 1 << 20).expect("an object");
    let memory = object.map().expect("mapped");
    let page = PageRange::new(5, 6);
    for lock in [false, true] {
        pager.answers.store(false, Ordering::Release);
        let (done, id) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(number(&memory, 5), 5));
            pager.wait_for(&[5]);
            scope.spawn(|| {
                id.store(farpage_sys::process::thread_id().into(), Ordering::Release);
                let waited = if lock {
                    memory.lock(page)
                } else {
                    memory.flush(page)
                };
                waited.expect("done");
                done.store(true, Ordering::Release);
            });
            wait_until_it_sleeps(&id);
            assert!(!done.load(Ordering::Acquire), "the page is under way");
            pager.answer_all();
        });
        assert!(done.load(Ordering::Acquire));
        assert_eq!(number(&memory, 5), 5);
        memory.flush(ALL).expect("flushed");
    }
    memory.unlock(page).expect("unlocked");
    memory.write(5 * PAGE_BYTES + 8, &[1]).expect("inside");
    memory.flush(ALL).expect("flushed");
    assert_eq!(memory.stats().resident_pages, 0);
    assert_eq!(pager.written.load(Ordering::Relaxed), 1);
}

/// Reads every 20th page of `pages`.
fn read_strided(memory: &Mapping, pages: std::ops::Range<u64>) {
    for page in pages.step_by(20) {
        assert_eq!(number(memory, page), page, "a wrong page");
    }
}

#[test]
fn unmapping_withdraws_what_is_outstanding() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let pager = Arc::new(Slow::default());
    let object = kernel.object(pager.clone(), 8 << 20).expect("an object");
    let memory = object.map().expect("mapped");
    pager.answer_all();
    read_strided(&memory, 0..1000);
    memory.flush(ALL).expect("flushed");
    // Reading on in the same steps has the next pages asked for ahead; those are not answered.
    pager.answers.store(false, Ordering::Release);
    std::thread::scope(|scope| {
        scope.spawn(|| read_strided(&memory, 0..101));
        for page in (0..101).step_by(20) {
            pager.wait_for(&[page]);
            let mut kept = pager.kept.lock().expect("no panic");
            let waited = |ticket: &mut Ticket| ticket.pages().start.0 <= page;
            let answered: Vec<Ticket> = kept.extract_if(.., waited).collect();
            drop(kept);
            answered
                .into_iter()
                .for_each(|ticket| assert!(supply(ticket)));
        }
    });
    pager.wait_for(&[120]);
    assert_eq!(pager.terminated.load(Ordering::Relaxed), 0);
    memory
        .unmap()
        .expect("unmapped, though the pager has not answered");
    assert_eq!(pager.terminated.load(Ordering::Relaxed), 1);
    assert_eq!(
        kernel.resident_bytes(),
        0,
        "what was charged for them is given back"
    );
    let late = pager.take();
    assert!(!late.is_empty());
    for ticket in late {
        assert!(!supply(ticket), "nobody waits any more");
    }
    pager.answer_all();
    let memory = object.map().expect("mapped again");
    assert_eq!(number(&memory, 100), 100);
}

/// Answers badly, in three ways.
struct Bad(String);

impl Pager for Bad {
    fn data_request(&self, request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let later = request.later(|ticket| match self.0.as_str() {
            "drops" => drop(ticket),
            "drops elsewhere" => drop(std::thread::spawn(move || drop(ticket))),
            _ => assert!(ticket.fail(PagerError::Unavailable)),
        });
        if self.0 == "drops" {
            Err(PagerError::Corrupt)
        } else {
            Ok(later)
        }
    }

    fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
        Ok(())
    }
}

#[test]
fn a_dropped_or_failed_ticket_raises_sigbus() {
    const HOW: &str = "FARPAGE_TEST_TICKET";
    if let Ok(how) = std::env::var(HOW) {
        let kernel = Embedded::start(8 << 20).expect("a kernel");
        let object = kernel
            .object(Arc::new(Bad(how)), 1 << 20)
            .expect("an object");
        let memory = object.map().expect("mapped");
        println!("read {}", number(&memory, 0));
        return;
    }
    let said_of = [
        ("drops", "the pager is gone"),
        ("drops elsewhere", "the pager is gone"),
        ("fails", "has no contents at this place"),
    ];
    for (how, want) in said_of {
        let own = std::env::current_exe().expect("a path");
        let mut again = std::process::Command::new(own);
        again.args([
            "--exact",
            "later::a_dropped_or_failed_ticket_raises_sigbus",
            "--nocapture",
        ]);
        let output = again.env(HOW, how).output().expect("started");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(7), "{how}: {said}");
        assert!(said.contains(want), "{how}: {said}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("read "));
    }
}

#[test]
fn a_last_part_of_a_page_is_filled_up_with_zeros() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let pager = Arc::new(Slow::default());
    let object = kernel.object(pager.clone(), 1 << 20).expect("an object");
    let memory = object.map().expect("mapped");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut bytes = [1; 16];
            memory.read(3 * PAGE_BYTES, &mut bytes).expect("inside");
            bytes
        });
        pager.wait_for(&[3]);
        for ticket in pager.take() {
            assert!(ticket.supply(&[9; 10]));
        }
        let want = [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0, 0, 0, 0, 0, 0];
        assert_eq!(reader.join().expect("no panic"), want);
    });
}
