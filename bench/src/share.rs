//! Programs of hosts that have memory in common, and the bare round trip between two hosts: what
//! `cargo xtask bench share` starts on each of them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use farpage_services::cluster::{Scheduler, Wanted};
use farpage_services::sync::Mutex;
use farpage_services::{Host, Shared};

const PAGE: usize = 4096;
/// Bytes that a question has; an answer has a page.
const ASKED: usize = 64;

/// Maps `pages` pages of all hosts, and does what it is told on its standard input, a line each:
/// `read` or `write` every page once in random order, `add N` to the first word, or take a lock in the
/// last page so often (`turns N`).
/// Prints: the median and the 99th percentile of one, in nanoseconds.
pub fn host(socket: &str, name: &str, pages: u64) {
    let host = Host::connect(Path::new(socket)).expect("a host kernel");
    let wanted = Wanted {
        bytes: pages * PAGE as u64,
        unit_bytes: PAGE as u64,
        scheduler: Scheduler::Distributed,
        replicas: 1,
        hold_us: None,
        stale_us: None,
        stays: false,
        note: String::new(),
    };
    let (shared, _) = host
        .shared(name, Some(wanted))
        .expect("memory of the cluster");
    println!("ready");
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let times = match line.split_once(' ') {
            Some(("add", count)) => add(&shared, count.parse().expect("a number")),
            Some(("turns", count)) => turns(&shared, pages, count.parse().expect("a number")),
            _ if line == "read" => touch(&shared, pages, false),
            _ if line == "write" => touch(&shared, pages, true),
            _ => panic!("{line}?"),
        };
        print(times);
    }
}

fn print(mut times: Vec<u64>) {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    println!("{} {}", at(50), at(99));
}

fn touch(shared: &Shared, pages: u64, writes: bool) -> Vec<u64> {
    let mut order: Vec<u64> = (0..pages).collect();
    let mut seed = 7u64;
    for at in (1..order.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        order.swap(at, (seed >> 33) as usize % (at + 1));
    }
    let one = |page: u64| {
        let word = &shared.words()[page as usize * PAGE / 8];
        let began = Instant::now();
        match writes {
            true => word.store(page, Ordering::Relaxed),
            false => drop(std::hint::black_box(word.load(Ordering::Relaxed))),
        }
        began.elapsed().as_nanos() as u64
    };
    order.into_iter().map(one).collect()
}

fn turns(shared: &Shared, pages: u64, count: u64) -> Vec<u64> {
    // Behind what is written to each page.
    let lock = Mutex::at(shared, (pages - 1) * PAGE as u64 + 2048).expect("zeros");
    let turn = |_| {
        let began = Instant::now();
        drop(lock.lock().expect("it is not lost"));
        began.elapsed().as_nanos() as u64
    };
    (0..count).map(turn).collect()
}

fn add(shared: &Shared, count: u64) -> Vec<u64> {
    let began = Instant::now();
    for _ in 0..count {
        shared.words()[0].fetch_add(1, Ordering::Relaxed);
    }
    vec![began.elapsed().as_nanos() as u64 / count.max(1)]
}

/// Answers each question with a page, over TCP.
pub fn echo(address: &str) {
    let listener = TcpListener::bind(address).expect("an address of this host");
    println!("ready");
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_nodelay(true).expect("a socket");
    let mut asked = [0; ASKED];
    while stream.read_exact(&mut asked).is_ok() {
        stream.write_all(&[7; PAGE]).expect("a peer");
    }
}

/// Asks so often. Prints as [`host`].
pub fn ask(address: &str, count: u64) {
    let mut stream = TcpStream::connect(address).expect("a host that answers");
    stream.set_nodelay(true).expect("a socket");
    let mut answer = [0; PAGE];
    let mut one = || {
        let began = Instant::now();
        stream.write_all(&[1; ASKED]).expect("a peer");
        stream.read_exact(&mut answer).expect("a peer");
        began.elapsed().as_nanos() as u64
    };
    print((0..count).map(|_| one()).collect());
}
