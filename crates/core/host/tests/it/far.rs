//! A source far away, and this process in the place of a task.
#![allow(unsafe_code)]

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farpage_host::{Files, Request};
use farpage_object::maps::{PieceOf, Word};
use farpage_object::{Control, PAGE_BYTES, PageRange};
use farpage_source::{Options, Reach, Recorder, Source, SourceError, SourcePager, Trace, Traced};
use farpage_sys::file::Fd;
use farpage_sys::uffd::{self, features};
use farpage_sys::{mem, socket};

const BYTES: usize = (12 << 20) + 100;
const BUDGET: u64 = 16 << 20;

/// Every byte follows from its place.
struct Far {
    broken: AtomicBool,
    reads: AtomicU64,
}

fn byte_at(offset: usize) -> u8 {
    (offset / 4096 * 7 + offset % 251) as u8
}

impl Source for Far {
    fn name(&self) -> &str {
        "far"
    }

    fn size(&self) -> u64 {
        BYTES as u64
    }

    fn reach(&self) -> Reach {
        Reach::Far
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.broken.load(Ordering::Relaxed) {
            return Err(SourceError::Corrupt {
                name: "far".into(),
                offset,
                cause: "it is broken".into(),
            });
        }
        for (at, byte) in buffer.iter_mut().enumerate() {
            *byte = byte_at(offset as usize + at);
        }
        Ok(())
    }
}

/// A task that has the file in its memory.
struct Task {
    host: &'static Files,
    control: &'static Control,
    source: Arc<Far>,
    pager: Arc<SourcePager>,
    socket: OwnedFd,
    slot: usize,
}

impl Task {
    fn start() -> Self {
        let (_, control) = farpage_sys::control::create().unwrap();
        control.budget_bytes.store(BUDGET, Ordering::Relaxed);
        let slot = control.claim(std::process::id()).unwrap();
        let source = Arc::new(Far {
            broken: AtomicBool::new(false),
            reads: AtomicU64::new(0),
        });
        let pager = SourcePager::new(source.clone(), &Options::default());
        let pager = Arc::new(pager);
        let request = Request {
            path: "/far".into(),
            also: None,
            bytes: BYTES as u64,
            pager: pager.clone(),
        };
        let (host, socket) = Files::start(control, vec![request]).unwrap();
        Self {
            host,
            control,
            source,
            pager,
            socket,
            slot,
        }
    }

    fn say(&self, word: Word, with: Option<Fd>) {
        let to = Fd(self.socket.as_raw_fd());
        socket::send(to, &word.to_bytes(), with).unwrap();
    }

    /// Maps the whole file, as the agent does to read from it.
    fn map(&self) -> &'static [u8] {
        let (uffd, _) = uffd::open(None).unwrap();
        let offered = uffd::offered(None).unwrap();
        uffd.enable(offered & features::POISON).unwrap();
        let bytes = BYTES.next_multiple_of(PAGE_BYTES);
        let fd = self.host.descriptors()[0];
        // SAFETY: nothing existing is touched.
        let at = unsafe { mem::map(0, bytes, mem::PROT_READ, mem::MAP_PRIVATE, fd, 0) }.unwrap();
        let piece = PieceOf {
            file: 0,
            shared: false,
            reading: true,
            start: at as u64,
            end: (at + bytes) as u64,
            first: 0,
        };
        assert!(self.control.maps.add(self.slot, piece));
        // SAFETY: the host answers.
        unsafe { uffd.register_missing(at, bytes) }.unwrap();
        let word = Word {
            kind: Word::FAULTS,
            which: self.slot as u64,
            first: 0,
            pages: 0,
        };
        self.say(word, Some(uffd.0));
        // SAFETY: mapped just now and never unmapped; nobody writes to the file but the host, and
        // that before a page is there.
        unsafe { std::slice::from_raw_parts(at as *const u8, BYTES) }
    }
}

fn check(bytes: &[u8], from: usize) {
    let wrong = bytes
        .iter()
        .enumerate()
        .find(|(at, byte)| **byte != byte_at(from + at));
    assert_eq!(wrong, None, "from {from}");
}

#[test]
fn what_is_replayed_comes_in_its_order_half_the_budget_at_most() {
    let task = Task::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    let source = Traced {
        size: BYTES as u64,
        ..Traced::default()
    };
    let recorder = Arc::new(Recorder::new(&path, &[source]).unwrap());
    let noted = Arc::clone(&recorder);
    task.pager.watch_requests(move |pages| noted.note(0, pages));
    let half = BUDGET / 2 / PAGE_BYTES as u64;
    let runs = [(2000, 2500), (0, 2000), (2500, 3000)];
    let runs = runs.map(|(start, end)| (0, PageRange::new(start, end)));
    task.host.replay(runs.to_vec()).unwrap();
    farpage_testkit::until("half comes ahead", || {
        task.host.figures()[0].ahead_bytes >= half * PAGE_BYTES as u64
    });
    recorder.flush().unwrap();
    let mut asked: Vec<u64> = Vec::new();
    for run in Trace::read(&path).unwrap().runs {
        asked.extend(run.start.0..run.end.0);
    }
    let order: Vec<u64> = (2000..2500).chain(0..2000).take(half as usize).collect();
    assert_eq!(asked, order);
    let bytes = task.map();
    let figures = || task.host.figures().remove(0);
    check(&bytes[..1548 * PAGE_BYTES], 0);
    assert_eq!(figures().page_ins, 0, "all of that was replayed");
    check(bytes, 0);
    assert!(figures().page_ins > 0 && figures().ahead_bytes == half * PAGE_BYTES as u64);
}

#[test]
fn pages_that_come_later_are_right_within_the_budget_and_can_be_wanted_before() {
    let task = Task::start();
    let bytes = task.map();
    let most = |task: &Task| task.host.figures()[0].resident_max_bytes;
    check(&bytes[5 << 20..6 << 20], 5 << 20);
    for _ in 0..2 {
        check(bytes, 0);
        for at in (0..BYTES - 100).rev().step_by(300_007) {
            check(&bytes[at..at + 100], at);
        }
    }
    assert!(most(&task) <= BUDGET, "{}", most(&task));
}

#[test]
fn wanting_pages_brings_them_in_without_a_fault() {
    let task = Task::start();
    let word = Word {
        kind: Word::SOON,
        which: 0,
        first: 100,
        pages: 200,
    };
    task.say(word, None);
    farpage_testkit::until("all pages come", || {
        task.host.figures()[0].brought_bytes >= 200 * PAGE_BYTES as u64
    });
    let bytes = task.map();
    let reads = task.source.reads.load(Ordering::Relaxed);
    check(&bytes[100 * PAGE_BYTES..300 * PAGE_BYTES], 100 * PAGE_BYTES);
    assert_eq!(task.source.reads.load(Ordering::Relaxed), reads);
}

#[test]
fn who_reads_what_cannot_be_had_gets_an_error_and_others_go_on() {
    if !farpage_sys::uffd::serves_system_calls() {
        return println!("skipped: this user's userfaultfd does not serve system calls");
    }
    let task = Task::start();
    let bytes = task.map();
    check(&bytes[..4096], 0);
    task.source.broken.store(true, Ordering::Relaxed);
    let mut copy = tempfile::tempfile().unwrap();
    let refused = copy.write(&bytes[8 << 20..][..4096]);
    assert_eq!(
        refused.err().and_then(|e| e.raw_os_error()),
        Some(14),
        "EFAULT"
    );
    assert!(task.pager.counts().failures > 0);
    check(&bytes[..4096], 0);
    task.source.broken.store(false, Ordering::Relaxed);
    check(&bytes[9 << 20..][..4096], 9 << 20);
}
