//! A heap in memory that the host kernel shares, larger than what it keeps in RAM.

use std::sync::atomic::Ordering;

use farpage_client::heap::{Block, Heap, Kind};
use farpage_client::{Host, Shared};

use crate::support::{PROGRAM, Program, RAM, run_host, until_gone};

/// As many as take three times what is in memory.
const BLOCKS: u64 = 3 * RAM / 8192;

/// What programs do; nothing when it is run as a test.
#[test]
fn the_program() {
    let Ok(kind) = std::env::var(PROGRAM) else {
        return;
    };
    if kind == "host" {
        run_host();
    }
    let host = Host::connect(&farpage_client::default_socket()).unwrap();
    println!("> ready");
    let mut heap: Option<Heap<Shared>> = None;
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "make" => heap = Some(host.create("heap", 8 * RAM).unwrap().heap().unwrap()),
            "open" => heap = Some(host.open("heap").unwrap().heap().unwrap()),
            "push" => push(heap.as_ref().unwrap()),
            "pop" => pop(heap.as_ref().unwrap()),
            other => panic!("no such thing: {other}"),
        }
        println!("> done");
    }
}

/// Puts blocks on a list, each with its number.
fn push(heap: &Heap<Shared>) {
    for number in 0..BLOCKS {
        let block = heap.allocate(Kind::BYTES, 8192).unwrap();
        let words = heap.words(block).unwrap();
        words[0].store(heap.root(0).load(Ordering::Relaxed), Ordering::Relaxed);
        words[1..]
            .iter()
            .for_each(|word| word.store(number, Ordering::Relaxed));
        heap.root(0).store(block.0, Ordering::Release);
    }
}

/// Takes all of them off it.
fn pop(heap: &Heap<Shared>) {
    let mut at = heap.root(0).swap(0, Ordering::Acquire);
    for number in (0..BLOCKS).rev() {
        let block = Block(at);
        let words = heap.words(block).unwrap();
        let is_right = words[1..]
            .iter()
            .all(|word| word.load(Ordering::Relaxed) == number);
        assert!(is_right, "block {number}");
        at = words[0].load(Ordering::Relaxed);
        heap.free(block).unwrap();
    }
    assert_eq!((at, heap.usage().blocks), (0, 0));
    heap.check().unwrap();
}

#[test]
fn what_a_killed_process_allocated_another_finds_and_frees() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("host");
    let kernel = Program::start("heap::host", &socket);
    let (mut one, mut other) = (
        Program::start("heap::program", &socket),
        Program::start("heap::program", &socket),
    );
    assert_eq!(one.does("make"), "done");
    assert_eq!(other.does("open"), "done");
    assert_eq!(one.does("push"), "done");
    one.dies();
    assert_eq!(other.does("pop"), "done");
    other.dies();
    let host = Host::connect(&socket).unwrap();
    until_gone(&host);
    drop(host);
    kernel.dies();
}
