//! Programs of hosts that have memory in common, and the bare round trip between two hosts: what
//! `cargo xtask bench share` starts on each of them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use farpage_client::cluster::{Consistency, Scheduler, Wanted};
use farpage_client::sync::Mutex;
use farpage_client::{Host, Shared};

/// Bytes that a question has; an answer has a page.
const ASKED: usize = 64;

/// Maps `pages` pages of all hosts, of `unit` bytes each, and does what it is told on its standard
/// input, a line each: `read` or `write` a word of every page once in random order, `copy` or
/// `fill` every page whole, `add N` to the first word, or take a lock in the last page so often
/// (`turns N`).
/// Prints: the median and the 99th percentile of one, in nanoseconds.
pub fn host(socket: &str, name: &str, pages: u64, unit: u64) {
    let host = Host::connect(Path::new(socket)).expect("a host kernel");
    let wanted = Wanted {
        bytes: pages * unit,
        unit_bytes: unit,
        scheduler: Scheduler::Distributed,
        replicas: 1,
        hold_us: None,
        stale_us: None,
        consistency: Consistency::Strict,
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
            Some(("turns", count)) => {
                let last = (pages - 1) * unit;
                turns(&shared, last, count.parse().expect("a number"))
            }
            _ if line == "read" => each(pages, |page| touch(&shared, page * unit, false)),
            _ if line == "write" => each(pages, |page| touch(&shared, page * unit, true)),
            _ if line == "copy" => {
                let mut copy = vec![0; unit as usize / 8];
                each(pages, |page| copy_out(&shared, page * unit, &mut copy))
            }
            _ if line == "fill" => each(pages, |page| fill(&shared, page * unit, unit)),
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

/// How long `one` takes for each page, in random order.
fn each(pages: u64, mut one: impl FnMut(u64)) -> Vec<u64> {
    let mut order: Vec<u64> = (0..pages).collect();
    let mut seed = 7u64;
    for at in (1..order.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        order.swap(at, (seed >> 33) as usize % (at + 1));
    }
    let timed = |page| {
        let began = Instant::now();
        one(page);
        began.elapsed().as_nanos() as u64
    };
    order.into_iter().map(timed).collect()
}

fn touch(shared: &Shared, at: u64, writes: bool) {
    let word = &shared.words()[at as usize / 8];
    match writes {
        true => word.store(at, Ordering::Relaxed),
        false => drop(std::hint::black_box(word.load(Ordering::Relaxed))),
    }
}

fn copy_out(shared: &Shared, at: u64, to: &mut [u64]) {
    for (to, word) in to.iter_mut().zip(&shared.words()[at as usize / 8..]) {
        *to = word.load(Ordering::Relaxed);
    }
    std::hint::black_box(to);
}

fn fill(shared: &Shared, at: u64, bytes: u64) {
    for word in &shared.words()[at as usize / 8..(at + bytes) as usize / 8] {
        word.store(at, Ordering::Relaxed);
    }
}

fn turns(shared: &Shared, page: u64, count: u64) -> Vec<u64> {
    // Behind what is written to each page.
    let lock = Mutex::at(shared, page + 2048).expect("zeros");
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

/// Answers each question with a page of `unit` bytes, over TCP.
pub fn echo(address: &str, unit: u64) {
    let listener = TcpListener::bind(address).expect("an address of this host");
    println!("ready");
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_nodelay(true).expect("a socket");
    let mut asked = [0; ASKED];
    let page = vec![7; unit as usize];
    while stream.read_exact(&mut asked).is_ok() {
        stream.write_all(&page).expect("a peer");
    }
}

/// Asks so often. Prints as [`host`].
pub fn ask(address: &str, count: u64, unit: u64) {
    let mut stream = TcpStream::connect(address).expect("a host that answers");
    stream.set_nodelay(true).expect("a socket");
    let mut answer = vec![0; unit as usize];
    let mut one = || {
        let began = Instant::now();
        stream.write_all(&[1; ASKED]).expect("a peer");
        stream.read_exact(&mut answer).expect("a peer");
        began.elapsed().as_nanos() as u64
    };
    print((0..count).map(|_| one()).collect());
}

/// Sets and gets a value of `unit` bytes so often at a Redis server.
/// Prints as [`host`], a line for `SET` and one for `GET`.
pub fn redis(address: &str, count: u64, unit: u64) {
    let mut stream = TcpStream::connect(address).expect("a Redis server");
    stream.set_nodelay(true).expect("a socket");
    let mut set = format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${unit}\r\n").into_bytes();
    set.resize(set.len() + unit as usize, b'7');
    set.extend(b"\r\n");
    let get = b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
    // The length, the value, the end of its line.
    let mut value = vec![0; format!("${unit}\r\n").len() + unit as usize + 2];
    let mut ok = *b"+OK\r\n";
    let mut asks = |question: &[u8], answer: &mut [u8]| {
        let began = Instant::now();
        stream.write_all(question).expect("a server");
        stream.read_exact(answer).expect("a server");
        began.elapsed().as_nanos() as u64
    };
    print((0..count).map(|_| asks(&set, &mut ok)).collect());
    assert_eq!(&ok, b"+OK\r\n");
    print((0..count).map(|_| asks(get, &mut value)).collect());
    assert!(value.starts_with(format!("${unit}\r\n7").as_bytes()));
}
