//! A fault whose page a pager in this process has, and one whose pager is another process: the same
//! pages, by turns, in one run.

use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farpage_client::pager::{About, MemoryObject, PageRequest};
use farpage_client::{Host, default_socket};
use farpage_daemon::Service;
use farpage_host::Objects;
use farpage_object::{
    DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageOut, PageRange, Pager, PagerError, Supplied,
};
use farpage_sys::uffd::with_device;
use farpage_sys::view::View;

const PAGER: &str = "FARPAGE_BENCH_PAGER";
const ROUNDS: u64 = 5;
/// Pages that are touched alone in a round.
const ALONE: u64 = 4000;
/// Pages that are read in order in a round.
const IN_ORDER: u64 = 16384;
const PAGES: u64 = ROUNDS * (ALONE + IN_ORDER);

fn fill(first: u64, buffer: &mut [u8]) {
    for (page, bytes) in buffer.chunks_mut(PAGE_BYTES).enumerate() {
        bytes.fill((first + page as u64) as u8);
    }
}

struct Inside;

impl Pager for Inside {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let pages = request.pages();
        fill(pages.start.0, request.buffer());
        Ok(Supplied::clean(pages.pages()))
    }

    fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
        Err(PagerError::Write(30))
    }

    fn is_at_hand(&self, _: ObjectId, _: PageIndex) -> bool {
        true
    }
}

struct Elsewhere;

impl MemoryObject for Elsewhere {
    fn about(&self) -> About {
        About {
            name: "outside".into(),
            bytes: PAGES * PAGE_BYTES as u64,
            writable: true,
            cluster_pages: 1,
        }
    }

    fn data_request(&self, request: PageRequest) {
        let pages = request.pages();
        let mut contents = vec![0; pages.bytes() as usize];
        fill(pages.start.0, &mut contents);
        request.supply(contents);
    }
}

/// Touches a page; its first byte is that of its number.
fn touch(words: &[AtomicU64], page: u64) {
    let word = words[page as usize * PAGE_BYTES / 8].load(Ordering::Relaxed);
    assert_eq!(word as u8, page as u8);
}

/// Nanoseconds for a page of a round: touched alone, and in order.
fn round(words: &[AtomicU64], round: u64) -> (u64, u64) {
    let first = round * (ALONE + IN_ORDER);
    let began = Instant::now();
    // 1237 has no factor in common with their number: each once, none beside the last.
    (0..ALONE).for_each(|n| touch(words, first + n * 1237 % ALONE));
    let alone = began.elapsed();
    let began = Instant::now();
    (0..IN_ORDER).for_each(|n| touch(words, first + ALONE + n));
    let in_order = began.elapsed();
    let each = |time: Duration, pages: u64| time.as_nanos() as u64 / pages;
    (each(alone, ALONE), each(in_order, IN_ORDER))
}

fn median(mut all: Vec<u64>) -> (u64, u64, u64) {
    all.sort_unstable();
    (all[all.len() / 2], all[0], all[all.len() - 1])
}

fn main() -> ExitCode {
    if std::env::var_os(PAGER).is_some() {
        let host = Host::connect(&default_socket()).expect("a host kernel");
        let offered = host
            .offer(Arc::new(Elsewhere), None)
            .expect("it is offered");
        println!("ready");
        let _ = offered.wait(None);
        return ExitCode::SUCCESS;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("host");
    let objects = Objects::start(8 << 30).expect("objects");
    let service = Service::new(objects, 8 << 30, Arc::new(Inside)).expect("a service");
    let _listening = service.listen(&socket).expect("a socket");
    std::thread::spawn(move || service.run());
    let mut child = Command::new(std::env::current_exe().expect("a path"))
        .env(PAGER, "1")
        .env("FARPAGE_HOST", &socket)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut line = String::new();
    let says = child.stdout.take().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(says), &mut line).expect("a line");
    let host = Host::connect(&socket).expect("a host kernel");
    let outside = host.open("outside").expect("it was offered");
    let object = objects.create("inside", PAGES, Arc::new(Inside), false);
    let object = object.expect("an object");
    let bytes = PAGES as usize * PAGE_BYTES;
    let inside = with_device(|device| View::map(object.descriptor(), bytes, device));
    let inside = inside.expect("a mapping");
    let faults = inside.faults().expect("a descriptor");
    let space = objects.attach(faults).expect("a userfaultfd");
    let all = PageRange::new(0, PAGES);
    let mapped = objects.map(space, &object, inside.address(), all);
    mapped.expect("it is mapped");
    let mut times = [const { Vec::new() }; 4];
    for number in 0..ROUNDS {
        for (at, words) in [inside.words(), outside.words()].into_iter().enumerate() {
            let (alone, in_order) = round(words, number);
            times[at].push(alone);
            times[at + 2].push(in_order);
        }
    }
    let [a, b, c, d] = times.map(median);
    for (what, inside, outside) in [("alone", a, b), ("in order", c, d)] {
        println!(
            "a page {what}: pager inside {} ns ({} to {}), outside {} ns ({} to {}), {:.2} times",
            inside.0,
            inside.1,
            inside.2,
            outside.0,
            outside.1,
            outside.2,
            outside.0 as f64 / inside.0 as f64
        );
    }
    // It may have ended.
    let _ = child.kill();
    let _ = child.wait();
    ExitCode::SUCCESS
}
