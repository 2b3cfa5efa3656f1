//! Memory objects with pagers of their own.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use farpage_kernel::embed::{Embedded, Error};
use farpage_object::{Access, ObjectId, PAGE_BYTES, PageIndex, PageRange};
use farpage_object::{DataRequest, PageOut, Pager, PagerError, Supplied};
use farpage_sys::mem;

/// Pages hold their number until somebody writes to them.
#[derive(Default)]
pub(crate) struct Numbers {
    written: Mutex<HashMap<u64, Box<[u8; PAGE_BYTES]>>>,
    pub(crate) requests: AtomicU64,
    unlocks: AtomicU64,
    refuses: AtomicBool,
    locks: bool,
    precious: bool,
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
            precious: self.precious,
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

pub(crate) fn number(memory: &farpage_kernel::embed::Mapping, page: usize) -> u64 {
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
fn a_pager_is_asked_for_what_is_read_and_a_run_for_more_and_more() {
    let kernel = Embedded::start(32 << 20).expect("a kernel");
    let pager = Arc::new(Numbers::default());
    let object = kernel.object(pager.clone(), 64 << 20).expect("an object");
    let memory = object.map().expect("mapped");
    // Far from each other, and one at the start of a 2 MiB block.
    for page in [512, 9000, 3001, 14_000, 7777] {
        assert_eq!(number(&memory, page), page as u64);
    }
    assert!(memory.stats().resident_pages <= 10);
    let before = pager.requests.load(Ordering::Relaxed);
    assert_eq!(before, 5);
    for page in 10_000..12_000 {
        assert_eq!(number(&memory, page), page as u64);
    }
    let for_run = pager.requests.load(Ordering::Relaxed) - before;
    assert!(for_run < 100, "{for_run} requests for 2,000 pages in a row");
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

/// Notes what it is told, in order.
#[derive(Default)]
struct Noting {
    told: Mutex<Vec<&'static str>>,
    numbers: Numbers,
    unwilling: AtomicBool,
}

impl Noting {
    fn note(&self, what: &'static str) {
        self.told.lock().expect("no panic").push(what);
    }

    fn told(&self) -> Vec<&'static str> {
        self.told.lock().expect("no panic").clone()
    }
}

impl Pager for Noting {
    fn init(&self, _: ObjectId, pages: u64) -> Result<(), PagerError> {
        assert_eq!(pages, 256);
        if self.unwilling.load(Ordering::Relaxed) {
            return Err(PagerError::OutOfSpace);
        }
        self.note("init");
        Ok(())
    }

    fn data_request(&self, request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        self.numbers.data_request(request)
    }

    fn data_write(&self, object: ObjectId, out: &[PageOut<'_>]) -> Result<(), PagerError> {
        self.note("data_write");
        self.numbers.data_write(object, out)
    }

    fn discard(&self, _: ObjectId, _: PageRange) {
        self.note("discard");
    }

    fn terminate(&self, _: ObjectId) {
        self.note("terminate");
    }
}

#[test]
fn init_may_refuse_the_object() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let pager = Arc::new(Noting::default());
    pager.unwilling.store(true, Ordering::Relaxed);
    let refused = kernel.object(pager.clone(), 1 << 20);
    assert!(matches!(
        refused,
        Err(Error::Refused(PagerError::OutOfSpace))
    ));
    drop(refused);
    assert_eq!(pager.told(), [""; 0], "what was refused does not end");
}

#[test]
fn an_object_ends_once_and_unmapping_discards_nothing() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let pager = Arc::new(Noting::default());
    let object = kernel.object(pager.clone(), 1 << 20).expect("an object");
    let memory = object.map().expect("mapped");
    memory.write(0, &[7; 8]).expect("inside");
    memory.unmap().expect("written back");
    let first = ["init", "data_write", "terminate"];
    assert_eq!(pager.told(), first);
    let memory = object.map().expect("mapped again");
    assert_eq!(number(&memory, 0), u64::from_le_bytes([7; 8]), "it is kept");
    drop(memory);
    drop(object);
    assert_eq!(pager.told()[3..], ["init", "terminate"]);
}

#[test]
fn an_object_that_was_never_mapped_ends_too() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let pager = Arc::new(Noting::default());
    drop(kernel.object(pager.clone(), 1 << 20).expect("an object"));
    assert_eq!(pager.told(), ["init", "terminate"]);
}

#[test]
fn mapping_again_may_be_refused() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let pager = Arc::new(Noting::default());
    let object = kernel.object(pager.clone(), 1 << 20).expect("an object");
    drop(object.map().expect("mapped"));
    pager.unwilling.store(true, Ordering::Relaxed);
    assert!(matches!(object.map(), Err(Error::Refused(_))));
    pager.unwilling.store(false, Ordering::Relaxed);
    object.map().expect("mapped again");
}

#[test]
fn all_of_an_object_can_be_asked_for_without_its_size() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let object = kernel.object(Arc::new(Numbers::default()), 3 << 20);
    let memory = object.expect("an object").map().expect("mapped");
    assert_eq!(memory.prefetch([ALL], |_| ()).expect("a buffer"), 768);
    let beyond = PageRange::new(768, 1000);
    assert_eq!(memory.prefetch([beyond], |_| ()).expect("a buffer"), 0);
    assert_eq!(memory.residency(), [PageRange::new(0, 768)]);
}

/// Supplies a good second page; of the others nothing, or what it may not.
struct Liar(Result<Supplied, PagerError>);

impl Pager for Liar {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        request.buffer().fill(1);
        if request.pages().start == PageIndex(1) {
            return Ok(Supplied::clean(1));
        }
        self.0
    }

    fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
        Ok(())
    }
}

const LIES: [(&str, &str); 5] = [
    ("nothing", "supplied no page, or more than it was asked for"),
    ("much", "supplied no page, or more than it was asked for"),
    ("locked", "a lock that is not against writing"),
    ("unavailable", "has no contents at this place"),
    ("broken", "reading failed with system error 5"),
];

fn lie(name: &str) -> Result<Supplied, PagerError> {
    match name {
        "nothing" => Ok(Supplied::clean(0)),
        "much" => Ok(Supplied::clean(1_000_000)),
        "locked" => Ok(Supplied {
            locked: Some(Access::Read),
            ..Supplied::clean(1)
        }),
        "unavailable" => Err(PagerError::Unavailable),
        "broken" => Err(PagerError::Read(5)),
        other => panic!("no lie {other}"),
    }
}

/// Runs a test of this file again, in a process of its own that finds `value` in `variable`.
fn in_a_process(test: &str, variable: &str, value: &str) -> std::process::Output {
    let own = std::env::current_exe().expect("a path");
    let mut again = std::process::Command::new(own);
    again.args(["--exact", &format!("objects::{test}"), "--nocapture"]);
    again.env(variable, value).output().expect("started")
}

/// Run in a process of its own: the page that is lost raises SIGBUS there.
#[test]
fn a_page_that_cannot_be_had_raises_sigbus_and_shows_nothing() {
    const LIE: &str = "FARPAGE_TEST_LIE";
    if let Ok(name) = std::env::var(LIE) {
        let kernel = Embedded::start(8 << 20).expect("a kernel");
        let liar = Arc::new(Liar(lie(&name)));
        let object = kernel.object(liar, 1 << 20).expect("an object");
        let memory = object.map().expect("mapped");
        println!("good {:#x}", number(&memory, 1));
        println!("read {}", number(&memory, 0));
        return;
    }
    for (name, message) in LIES {
        let test = "a_page_that_cannot_be_had_raises_sigbus_and_shows_nothing";
        let output = in_a_process(test, LIE, name);
        let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(signal, Some(7), "{name}: {said}");
        assert!(said.contains("cannot page in the memory at"), "{said}");
        assert!(said.contains(message), "{name}: {said}");
        let saw = String::from_utf8_lossy(&output.stdout);
        assert!(saw.contains("good 0x101010101010101"), "{name}: {saw}");
        assert!(!saw.contains("read "), "{name}: {saw}");
    }
}

/// Has 16 pages asked for where one is needed, and none of those that begin with page 32.
struct Clustered(PagerError);

impl Pager for Clustered {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let pages = request.pages();
        println!("request {} {}", pages.start.0, pages.end.0);
        if pages.start == PageIndex(32) {
            return Err(self.0);
        }
        request.buffer()[..8].copy_from_slice(&pages.start.0.to_le_bytes());
        Ok(Supplied::clean(1))
    }

    fn cluster_pages(&self, _: ObjectId, _: PageIndex) -> u64 {
        16
    }

    fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
        Ok(())
    }
}

/// Run in a process of its own, as above.
#[test]
fn of_pages_that_fail_together_the_one_that_was_touched_is_lost_and_no_other() {
    const ERRNO: &str = "FARPAGE_TEST_ERRNO";
    if let Ok(errno) = std::env::var(ERRNO) {
        let kernel = Embedded::start(8 << 20).expect("a kernel");
        let pager = Arc::new(Clustered(PagerError::Read(
            errno.parse().expect("a number"),
        )));
        let object = kernel.object(pager, 1 << 20).expect("an object");
        let memory = object.map().expect("mapped");
        println!("read {}", number(&memory, 37));
        return;
    }
    let run = |errno: &str| {
        let test = "of_pages_that_fail_together_the_one_that_was_touched_is_lost_and_no_other";
        let output = in_a_process(test, ERRNO, errno);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status, text(&output.stdout), text(&output.stderr))
    };
    // The first page cannot be read: the one that is wanted can.
    let (status, saw, said) = run("5");
    assert!(status.success(), "{said}");
    assert!(
        saw.contains("request 32 48\nrequest 37 38\nread 37"),
        "{saw}"
    );
    // Nothing can be read: that is found out, and said, once.
    let (status, saw, said) = run("110");
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(7), "{said}");
    assert_eq!(saw.matches("request").count(), 1, "{saw}");
    assert_eq!(said.matches("cannot page in").count(), 1, "{said}");
    assert!(said.contains("25000"), "the address of page 37: {said}");
}

/// Locks what it supplies, and answers whether it may be written as it is told.
struct Guard {
    asked: std::sync::mpsc::SyncSender<u64>,
    answers: Mutex<std::sync::mpsc::Receiver<bool>>,
    numbers: Numbers,
}

impl Guard {
    fn new() -> (
        Arc<Self>,
        std::sync::mpsc::Receiver<u64>,
        std::sync::mpsc::SyncSender<bool>,
    ) {
        let (asked, questions) = std::sync::mpsc::sync_channel(16);
        let (answer, answers) = std::sync::mpsc::sync_channel(16);
        let numbers = Numbers {
            locks: true,
            ..Numbers::default()
        };
        let guard = Self {
            asked,
            answers: Mutex::new(answers),
            numbers,
        };
        (Arc::new(guard), questions, answer)
    }
}

impl Pager for Guard {
    fn data_request(&self, request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        self.numbers.data_request(request)
    }

    fn data_write(&self, object: ObjectId, out: &[PageOut<'_>]) -> Result<(), PagerError> {
        self.numbers.data_write(object, out)
    }

    fn data_unlock(&self, _: ObjectId, page: PageIndex, access: Access) -> bool {
        assert_eq!(access, Access::Write);
        self.asked.send(page.0).expect("the test runs");
        let answers = self.answers.lock().expect("no panic");
        answers.recv().expect("the test runs")
    }
}

#[test]
fn a_refused_writer_waits_until_the_lock_is_lifted() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let (pager, questions, answer) = Guard::new();
    let object = kernel.object(pager, 1 << 20).expect("an object");
    let memory = object.map().expect("mapped");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| memory.write(3 * PAGE_BYTES, &[9; 8]).expect("inside"));
        answer.send(false).expect("the pager lives");
        assert_eq!(questions.recv(), Ok(3));
        // This waits until the answer is told.
        memory.clean(PageRange::new(3, 4)).expect("nothing dirty");
        assert_eq!(number(&memory, 3), 3, "nothing was written");
        assert!(!writer.is_finished());
        memory.unlock(PageRange::new(3, 4)).expect("unlocked");
        writer.join().expect("it went on");
    });
    assert_eq!(number(&memory, 3), u64::from_le_bytes([9; 8]));
    assert!(questions.try_recv().is_err(), "asked once");
}

#[test]
fn a_pager_that_thinks_about_a_lock_holds_up_nobody_else() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let (pager, questions, answer) = Guard::new();
    let object = kernel.object(pager, 1 << 20).expect("an object");
    let memory = object.map().expect("mapped");
    std::thread::scope(|scope| {
        let writers = [1, 1, 2].map(|page| {
            let memory = &memory;
            scope.spawn(move || memory.write(page * PAGE_BYTES, &[9; 8]).expect("inside"))
        });
        questions.recv().expect("asked");
        assert_eq!(number(&memory, 77), 77, "a fault is answered meanwhile");
        (0..3).for_each(|_| answer.send(true).expect("the pager lives"));
        for writer in writers {
            writer.join().expect("it went on");
        }
    });
    for page in [1, 2] {
        assert_eq!(number(&memory, page), u64::from_le_bytes([9; 8]));
    }
}

/// Pages go aside, come back, go to the pager and come back: dirty, clean and precious ones.
#[test]
fn a_page_keeps_its_lock_wherever_it_goes() {
    (0..2).for_each(|kind| keeps_its_lock(kind == 1));
}

fn keeps_its_lock(precious: bool) {
    const PAGES: usize = 16384;
    let kernel = Embedded::start(48 << 20).expect("a kernel");
    let pager = Arc::new(Numbers {
        precious,
        ..Numbers::default()
    });
    let object = kernel
        .object(pager.clone(), PAGES * PAGE_BYTES)
        .expect("an object");
    let memory = object.map().expect("mapped");
    for page in 0..PAGES {
        let word = (page as u64 + 1_000_000).to_le_bytes();
        memory.write(page * PAGE_BYTES, &word).expect("inside");
    }
    memory.lock(ALL).expect("locked");
    let mut at = 1u64;
    for _ in 0..2 * PAGES {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let page = (at >> 33) as usize % PAGES;
        assert_eq!(number(&memory, page), page as u64 + 1_000_000);
    }
    assert_eq!(pager.unlocks.load(Ordering::Relaxed), 0);
    for page in 0..PAGES {
        let word = (page as u64 + 2_000_000).to_le_bytes();
        memory.write(page * PAGE_BYTES, &word).expect("inside");
        let unlocks = pager.unlocks.load(Ordering::Relaxed);
        assert_eq!(unlocks, page as u64 + 1, "no write without a question");
    }
    for page in 0..PAGES {
        assert_eq!(number(&memory, page), page as u64 + 2_000_000);
    }
}

/// Run as a user who may have no second thread; only root can become one.
#[test]
fn a_kernel_without_threads_is_refused_with_what_to_do() {
    const ALONE: &str = "FARPAGE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        println!("{}", Embedded::start(8 << 20).err().expect("no thread"));
        return;
    }
    if std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() != 0) {
        println!("skipped: only root can take threads away from itself");
        return;
    }
    let own = std::env::current_exe().expect("a path");
    let copy = std::env::temp_dir().join(format!("farpage-alone-{}", std::process::id()));
    farpage_testkit::name_program(own, &copy).expect("a copy that anybody may execute");
    let mut alone = std::process::Command::new("setpriv");
    alone.args(["--reuid=54321", "--clear-groups", "prlimit", "--nproc=1"]);
    let test = "objects::a_kernel_without_threads_is_refused_with_what_to_do";
    alone
        .arg(&copy)
        .args(["--test-threads=1", "--exact", test, "--nocapture"]);
    let output = alone.env(ALONE, "1").output().expect("setpriv");
    std::fs::remove_file(copy).expect("removed");
    let saw = String::from_utf8_lossy(&output.stdout);
    assert!(saw.contains("cannot start a thread: EAGAIN"), "{output:?}");
    assert!(saw.contains("raise the limit on processes"), "{output:?}");
}

#[test]
fn pages_that_the_program_drops_behind_the_kernel_come_from_the_pager_again() {
    let kernel = Embedded::start(8 << 20).expect("a kernel");
    let pager = Arc::new(Numbers::default());
    let object = kernel.object(pager, 1 << 20).expect("an object");
    let memory = object.map().expect("mapped");
    for page in 0..64 {
        assert_eq!(number(&memory, page), page as u64);
    }
    memory.write(7 * PAGE_BYTES, &[1; 8]).expect("inside");
    let at = memory.as_ptr() as usize;
    // SAFETY: nobody has a reference there.
    unsafe { mem::advise(at, 32 * PAGE_BYTES, mem::MADV_DONTNEED) }.expect("dropped");
    let (tells, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let numbers: Vec<_> = (0..64).map(|page| number(&memory, page)).collect();
        memory.write(9 * PAGE_BYTES, &[1; 8]).expect("inside");
        let _ = tells.send((numbers, number(&memory, 9)));
    });
    let (numbers, written) = told
        .recv_timeout(std::time::Duration::from_secs(120))
        .expect("the thread goes on");
    assert_eq!(numbers, (0..64).collect::<Vec<_>>());
    assert_eq!(written, 0x0101_0101_0101_0101);
}
