//! Sources as memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use farpage_kernel::embed::{Embedded, Mapping, Object};
use farpage_object::{Access, DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageRange, Pager};
use farpage_source::{
    FileSource, OnFailure, OpenMode, Options, Reach, Source, SourceError, SourcePager,
};
use farpage_testkit::HANGS;

const MIB: u64 = 1 << 20;

/// What byte `at` of every test source is.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// A source behind a network: each read takes a while, and may fail as told.
#[derive(Default)]
struct Remote {
    size: u64,
    /// Reads under way, and the most that were.
    under_way: AtomicU64,
    most: AtomicU64,
    /// No read ends before there were so many under way.
    together: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    /// Reads that fail before one succeeds, as may pass.
    failing: AtomicU64,
    /// Reads of bytes from here on fail for good.
    cut_at: AtomicU64,
    /// All reads fail, as may pass, until it is cleared.
    down: AtomicBool,
    order: Mutex<Vec<u64>>,
}

impl Remote {
    fn new(size: u64) -> Arc<Self> {
        Arc::new(Self {
            size,
            cut_at: AtomicU64::new(u64::MAX),
            ..Self::default()
        })
    }
}

impl Source for Remote {
    fn name(&self) -> &str {
        "test://remote"
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn reach(&self) -> Reach {
        Reach::Far
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let now = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        self.order.lock().unwrap().push(offset);
        // How far away it is.
        farpage_testkit::pass(Duration::from_millis(2));
        let together = self.together.load(Ordering::Relaxed);
        farpage_testkit::until("as many are under way as there should be", || {
            self.most.load(Ordering::Relaxed) >= together
        });
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        let fails = self
            .failing
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        if fails.is_ok() || self.down.load(Ordering::Relaxed) {
            return Err(SourceError::Unreachable {
                name: self.name().into(),
                cause: "connection refused".into(),
                retry_after: None,
            });
        }
        let (bytes, end) = (buffer.len() as u64, self.cut_at.load(Ordering::Relaxed));
        if offset + bytes > end.min(self.size) {
            let name = self.name().into();
            return Err(SourceError::Short {
                name,
                offset,
                bytes,
                end,
            });
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        for (at, into) in (offset..).zip(buffer) {
            *into = byte(at);
        }
        Ok(())
    }
}

fn object(source: Arc<dyn Source>, options: &Options, ram: u64) -> (Object, Arc<SourcePager>) {
    let size = source.size() as usize;
    let pager = Arc::new(SourcePager::new(source, options));
    let kernel = Embedded::start(ram).unwrap();
    (kernel.object(pager.clone(), size).unwrap(), pager)
}

fn check(memory: &Mapping, offset: u64, bytes: usize) {
    let mut got = vec![0; bytes];
    memory.read(offset as usize, &mut got).unwrap();
    let wrong = (offset..).zip(&got).find(|(at, got)| **got != byte(*at));
    assert_eq!(wrong, None, "of {bytes} from {offset}");
}

fn pages(bytes: std::ops::Range<u64>) -> PageRange {
    let page = PAGE_BYTES as u64;
    PageRange::new(bytes.start / page, bytes.end.div_ceil(page))
}

/// A near source whose reads wait until it is opened.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    /// What is read, from the beginning of the read on.
    begun: Mutex<Vec<std::ops::Range<u64>>>,
}

impl Source for Gate {
    fn name(&self) -> &str {
        "gate"
    }

    fn size(&self) -> u64 {
        16 * MIB
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let bytes = offset..offset + buffer.len() as u64;
        self.begun.lock().unwrap().push(bytes);
        let waited = self
            .opened
            .wait_while(self.open.lock().unwrap(), |open| !*open);
        drop(waited.unwrap());
        buffer.fill(7);
        Ok(())
    }
}

#[test]
fn what_somebody_comes_to_wait_for_goes_before_prefetches_of_a_near_source() {
    let gate = Arc::new(Gate::default());
    let (object, pager) = object(gate.clone(), &Options::default(), 64 * MIB);
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    pager.watch_requests(move |pages| {
        count.fetch_add(pages.pages(), Ordering::Release);
    });
    let memory = object.map().unwrap();
    let (all, last) = (pages(0..16 * MIB), 16 * MIB - 1);
    let comes = |what: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !what() && began.elapsed() < HANGS {
            std::thread::yield_now();
        }
        what()
    };
    let begun = |at: u64| gate.begun.lock().unwrap().iter().any(|r| r.contains(&at));
    std::thread::scope(|scope| {
        let prefetch = scope.spawn(|| memory.prefetch([all], |_| ()).unwrap());
        let queued = comes(&|| asked.load(Ordering::Acquire) == all.pages() && begun(0));
        let early = begun(last);
        pager.hasten(ObjectId(0), PageIndex(last / PAGE_BYTES as u64));
        let hastened = comes(&|| begun(last));
        *gate.open.lock().unwrap() = true;
        gate.opened.notify_all();
        assert!(queued && !early, "it had to wait");
        assert!(hastened, "it waits for the others");
        assert_eq!(prefetch.join().unwrap(), all.pages());
    });
}

#[test]
fn a_far_source_reads_right_forward_backward_and_anywhere() {
    let remote = Remote::new(40 * MIB + 123);
    let (object, _) = object(remote.clone(), &Options::default(), 16 * MIB);
    let memory = object.map().unwrap();
    // How many reads are under way at a time depends on how fast the reader is: the plan's own tests
    // have a clock for that.
    check(&memory, 0, remote.size as usize);
    for at in (0..26).rev().map(|step| step * 3 * MIB / 2) {
        check(&memory, at, 5000);
    }
    for i in 0..200u64 {
        check(&memory, i.wrapping_mul(0x9e37_79b9) % (39 * MIB), 100);
    }
}

#[test]
fn prefetch_brings_pages_and_says_how_far_it_is() {
    let remote = Remote::new(32 * MIB);
    let (object, _) = object(remote.clone(), &Options::default(), 64 * MIB);
    let memory = object.map().unwrap();
    remote.together.store(4, Ordering::Relaxed);
    let mut seen = Vec::new();
    let came = memory
        .prefetch([pages(4 * MIB..20 * MIB)], |done| seen.push(done))
        .unwrap();
    assert_eq!(came, 16 * MIB / PAGE_BYTES as u64);
    assert_eq!(memory.residency(), [pages(4 * MIB..20 * MIB)]);
    assert!(seen.is_sorted() && seen.last() == Some(&came), "{seen:?}");
    let reads = remote.reads.load(Ordering::Relaxed);
    check(&memory, 4 * MIB, 16 * MIB as usize);
    assert_eq!(
        remote.reads.load(Ordering::Relaxed),
        reads,
        "nothing is read twice"
    );
    assert!(remote.most.load(Ordering::Relaxed) >= 4);
}

#[test]
fn prefetch_of_more_than_half_of_the_budget_stops_there() {
    let remote = Remote::new(64 * MIB);
    let (object, _) = object(remote, &Options::default(), 16 * MIB);
    let memory = object.map().unwrap();
    let came = memory.prefetch([pages(0..64 * MIB)], |_| ()).unwrap();
    let half = 8 * MIB / PAGE_BYTES as u64;
    assert!((half / 2..=half + 512).contains(&came), "{came} of {half}");
    assert!(memory.residency()[0].start.0 == 0, "the first ones stay");
    check(&memory, 0, 64 * MIB as usize);
}

#[test]
fn an_extent_comes_whole_when_it_is_touched() {
    let remote = Remote::new(32 * MIB);
    let options = Options {
        extents: vec![0..8 * MIB, 8 * MIB..9 * MIB],
        ..Options::default()
    };
    let (object, _) = object(remote.clone(), &options, 64 * MIB);
    let memory = object.map().unwrap();
    check(&memory, 3 * MIB, 10);
    check(&memory, 7 * MIB, 10);
    farpage_testkit::until("the rest of it has come", || {
        remote.read_bytes.load(Ordering::Relaxed) >= 5 * MIB
    });
    let read = remote.read_bytes.load(Ordering::Relaxed);
    assert!(
        (5 * MIB..=6 * MIB).contains(&read),
        "{read}: its rest, and nothing of the next"
    );
}

#[test]
fn what_may_pass_is_tried_again() {
    let remote = Remote::new(MIB);
    remote.failing.store(3, Ordering::Relaxed);
    let (object, pager) = object(remote, &Options::default(), 16 * MIB);
    check(&object.map().unwrap(), 0, MIB as usize);
    assert_eq!(pager.last_failure(), None);
}

#[test]
fn a_server_that_stays_away_times_out_and_prefetch_says_so() {
    let remote = Remote::new(MIB);
    remote.down.store(true, Ordering::Relaxed);
    let options = Options {
        deadline: Duration::from_millis(200),
        ..Options::default()
    };
    let (object, pager) = object(remote.clone(), &options, 16 * MIB);
    let memory = object.map().unwrap();
    assert_eq!(memory.prefetch([pages(0..MIB)], |_| ()).unwrap(), 0);
    let failure = pager.last_failure().unwrap();
    assert!(matches!(failure, SourceError::TimedOut { .. }), "{failure}");
    // A prefetch that failed poisons nothing.
    remote.down.store(false, Ordering::Relaxed);
    check(&memory, 0, MIB as usize);
}

#[test]
fn who_waits_gets_it_when_the_server_is_back() {
    let remote = Remote::new(MIB);
    remote.down.store(true, Ordering::Relaxed);
    let options = Options {
        on_failure: OnFailure::Wait,
        deadline: Duration::from_millis(100),
        ..Options::default()
    };
    let (object, _) = object(remote.clone(), &options, 16 * MIB);
    let memory = object.map().unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| check(&memory, 0, 1000));
        farpage_testkit::until("four requests are made", || {
            remote.order.lock().unwrap().len() >= 4
        });
        assert!(!reader.is_finished(), "beyond the deadline");
        remote.down.store(false, Ordering::Relaxed);
    });
}

#[test]
fn zeros_are_read_where_they_were_asked_for() {
    let remote = Remote::new(4 * MIB);
    remote.cut_at.store(MIB + 5000, Ordering::Relaxed);
    let options = Options {
        on_failure: OnFailure::Zero,
        ..Options::default()
    };
    let (object, pager) = object(remote, &options, 16 * MIB);
    let memory = object.map().unwrap();
    check(&memory, 0, MIB as usize);
    let mut lost = [1; 100];
    memory.read(3 * MIB as usize, &mut lost).unwrap();
    assert_eq!(lost, [0; 100]);
    assert!(matches!(
        pager.last_failure(),
        Some(SourceError::Short { .. })
    ));
}

/// A source nearby of which nothing can be read.
struct Broken;

impl Source for Broken {
    fn name(&self) -> &str {
        "test://broken"
    }

    fn size(&self) -> u64 {
        MIB
    }

    fn read_at(&self, offset: u64, _: &mut [u8]) -> Result<(), SourceError> {
        Err(SourceError::Unreachable {
            name: self.name().into(),
            cause: format!("no answer for {offset}"),
            retry_after: None,
        })
    }
}

#[test]
fn a_failure_explains_the_pages_that_were_asked_for_with_it_and_no_others() {
    let pager = SourcePager::new(Arc::new(Broken), &Options::default());
    let fail = |first: u64, end: u64| {
        let pages = PageRange::new(first, end);
        let mut buffer = vec![0; pages.bytes() as usize];
        let request = DataRequest::new(ObjectId(1), pages, 1, Access::Read, &mut buffer);
        assert!(pager.data_request(request).is_err());
    };
    let why = |page: u64| {
        let mut why = String::new();
        let known = pager.explain(ObjectId(1), PageIndex(page), &mut why);
        assert_eq!(known, !why.is_empty());
        why
    };
    fail(4, 8);
    fail(20, 21);
    for page in [4, 7] {
        assert!(why(page).contains("no answer for 16384"), "{}", why(page));
    }
    assert!(why(20).contains("no answer for 81920"));
    for page in [3, 8, 19, 21] {
        assert_eq!(why(page), "", "page {page} has not failed");
    }
    fail(6, 9);
    assert!(
        why(7).contains("no answer for 24576"),
        "the last failure of a page counts"
    );
    assert!(why(5).contains("no answer for 16384"));
}

#[test]
fn a_source_that_was_cut_reads_up_to_there() {
    let remote = Remote::new(4 * MIB);
    remote.cut_at.store(MIB + 4096, Ordering::Relaxed);
    let (object, pager) = object(remote, &Options::default(), 16 * MIB);
    let memory = object.map().unwrap();
    check(&memory, 0, MIB as usize + 4096);
    assert_eq!(
        memory
            .prefetch([pages(MIB + 8192..2 * MIB)], |_| ())
            .unwrap(),
        0
    );
    assert!(matches!(
        pager.last_failure(),
        Some(SourceError::Short { .. })
    ));
}

#[test]
fn what_is_written_to_a_file_is_there_after_flush_and_drop() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("file");
    let size = 48 * MIB + 77;
    let source = Arc::new(FileSource::open(&path, OpenMode::Create, Some(size)).unwrap());
    let (object, _) = object(source, &Options::default(), 16 * MIB);
    let memory = object.map().unwrap();
    let all: Vec<u8> = (0..size).map(byte).collect();
    memory.write(0, &all).unwrap();
    check(&memory, 0, size as usize);
    memory.unmap().unwrap();
    assert!(std::fs::read(&path).unwrap() == all);
}

#[test]
fn the_barrier_sees_every_page_before_the_file_does() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("file");
    let size = 24 * MIB;
    let source = Arc::new(FileSource::open(&path, OpenMode::Create, Some(size)).unwrap());
    // What the file may hold: for each page what went through the barrier last.
    let log: Arc<Mutex<HashMap<u64, [u8; PAGE_BYTES]>>> = Arc::default();
    let (watch, logged) = (path.clone(), Arc::clone(&log));
    let early = Arc::new(AtomicU64::new(0));
    let seen_early = Arc::clone(&early);
    let pager = SourcePager::new(source, &Options::default()).with_barrier(move |pages| {
        let file = std::fs::File::open(&watch).unwrap();
        let mut logged = logged.lock().unwrap();
        for out in pages {
            let mut before = [1; PAGE_BYTES];
            let offset = out.page.0 * PAGE_BYTES as u64;
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut before, offset).unwrap();
            let last = logged.insert(out.page.0, *out.bytes);
            let as_logged = last.unwrap_or([0; PAGE_BYTES]) == before;
            seen_early.fetch_add(u64::from(!as_logged), Ordering::Relaxed);
        }
        Ok(())
    });
    let kernel = Embedded::start(8 * MIB).unwrap();
    let object = kernel.object(Arc::new(pager), size as usize).unwrap();
    let memory = object.map().unwrap();
    memory.write(0, &vec![7; size as usize]).unwrap();
    memory.unmap().unwrap();
    assert_eq!(
        early.load(Ordering::Relaxed),
        0,
        "written before the barrier"
    );
    assert_eq!(log.lock().unwrap().len() as u64, size / PAGE_BYTES as u64);
    assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn while_the_barrier_refuses_nothing_is_written_and_nothing_lost() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("file");
    let source = Arc::new(FileSource::open(&path, OpenMode::Create, Some(MIB)).unwrap());
    let open = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&open);
    let pager = SourcePager::new(source, &Options::default()).with_barrier(move |pages| {
        if gate.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(SourceError::Callback {
            name: "log".into(),
            offset: pages[0].page.0,
            cause: "the log is full".into(),
        })
    });
    let kernel = Embedded::start(8 * MIB).unwrap();
    let object = kernel.object(Arc::new(pager), MIB as usize).unwrap();
    let memory = object.map().unwrap();
    memory.write(0, &[7; 100]).unwrap();
    assert!(memory.clean(pages(0..MIB)).is_err());
    assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
    open.store(true, Ordering::Relaxed);
    memory.clean(pages(0..MIB)).unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[..100], [7; 100]);
}
