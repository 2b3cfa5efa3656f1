//! Processes that share a heap, hand each other blocks, and are killed.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farpage_client::heap::{AllocateError, Block, FreeError, Heap, Kind, OpenError};
use farpage_sys::memory_file::{FIXED, Words, create, seal};

const PROGRAM: &str = "FARPAGE_HEAP_PROGRAM";
const BYTES: usize = 8 << 20;
const EXCHANGE: usize = 8;

struct Memory(Words);

impl AsRef<[AtomicU64]> for Memory {
    fn as_ref(&self) -> &[AtomicU64] {
        self.0.u64s()
    }
}

fn memory() -> OwnedFd {
    let fd = create(c"heap", BYTES).unwrap();
    seal(fd.as_fd(), FIXED).unwrap();
    fd
}

fn open(fd: &OwnedFd) -> Heap<Memory> {
    let words = Words::map_as_touched(fd.as_fd(), BYTES).unwrap();
    Heap::open(Memory(words)).unwrap()
}

/// What a block says of itself.
fn mark(heap: &Heap<Memory>, block: Block) {
    let words = heap.words(block).unwrap();
    words[0].store(!block.0, Ordering::Relaxed);
    words[words.len() - 1].store(!block.0, Ordering::Release);
}

fn free_marked(heap: &Heap<Memory>, block: Block) {
    let words = heap.words(block).unwrap();
    let ends = [&words[words.len() - 1], &words[0]];
    assert!(
        ends.iter()
            .all(|word| word.load(Ordering::Acquire) == !block.0)
    );
    heap.free(block).unwrap();
}

/// What programs do, until they are killed; nothing when it is run as a test.
#[test]
fn the_program() {
    let Ok(seed) = std::env::var(PROGRAM) else {
        return;
    };
    let heap = open(&std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let mut random: u64 = seed.parse::<u64>().unwrap() * 2 + 1;
    let mut own = Vec::new();
    loop {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let bytes = match random % 50 {
            0 => 300_000,
            1..10 => random >> 8 & 0x7fff,
            _ => random >> 8 & 0x1ff,
        };
        match heap.allocate(Kind((random >> 40 & 1) as u16), bytes) {
            Ok(block) => {
                mark(&heap, block);
                own.push(block);
            }
            Err(AllocateError::Full { .. }) => own.drain(..).for_each(|it| free_marked(&heap, it)),
            Err(error) => panic!("{error}"),
        }
        let at = (random >> 16) as usize % own.len().max(1);
        if random >> 30 & 1 == 1 && at < own.len() {
            // What somebody else has left there is freed here.
            let given = own.swap_remove(at).0;
            let root = heap.root((random >> 50) as usize % EXCHANGE);
            match root.swap(given, Ordering::AcqRel) {
                0 => {}
                taken => free_marked(&heap, Block(taken)),
            }
        }
    }
}

fn start(fd: &OwnedFd, seed: u64) -> Child {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "heap_processes::the_program", "--nocapture"]);
    program.env(PROGRAM, seed.to_string());
    program.stdin(Stdio::from(fd.try_clone().unwrap()));
    program.stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn processes_that_are_killed_at_any_time_leave_a_heap_that_is_whole() {
    let fd = memory();
    let heap = open(&fd);
    let mut running: Vec<Child> = (0..3).map(|seed| start(&fd, seed)).collect();
    for round in 3..60 {
        farpage_testkit::pass(Duration::from_micros(round * 7919 % 60_000));
        let mut victim = running.remove(0);
        // Whoever ended by itself has found something wrong.
        assert!(victim.try_wait().unwrap().is_none());
        victim.kill().unwrap();
        victim.wait().unwrap();
        running.push(start(&fd, round));
    }
    for mut victim in running {
        assert!(victim.try_wait().unwrap().is_none());
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    assert!(heap.recover() > 0);
    heap.check().unwrap();
    let there: Vec<Block> = heap.blocks().map(|(block, _)| block).collect();
    for root in 0..EXCHANGE {
        let block = heap.root(root).load(Ordering::Relaxed);
        assert!(
            block == 0 || there.contains(&Block(block)),
            "a block that was given is lost"
        );
    }
    there
        .into_iter()
        .for_each(|block| heap.free(block).unwrap());
    heap.check().unwrap();
    let usage = heap.usage();
    assert_eq!((usage.free_bytes, usage.processes), (usage.bytes, 1));
}

#[test]
fn threads_of_one_process_share_its_heap() {
    let fd = memory();
    let heap = open(&fd);
    std::thread::scope(|scope| {
        for seed in 0..4u64 {
            let heap = &heap;
            scope.spawn(move || {
                for round in 0..20_000u64 {
                    let bytes = (round * 31 + seed * 17) % 700;
                    let block = heap.allocate(Kind::BYTES, bytes).unwrap();
                    mark(heap, block);
                    free_marked(heap, block);
                }
            });
        }
    });
    heap.check().unwrap();
    assert_eq!(heap.usage().blocks, 0);
}

#[test]
fn what_is_no_block_and_no_heap_is_refused() {
    let memory: Vec<AtomicU64> = (0..1 << 16).map(|_| AtomicU64::new(0)).collect();
    let heap = Heap::open(&memory[..]).unwrap();
    let block = heap.allocate(Kind(7), 100).unwrap();
    let large = heap.allocate(Kind(8), 100_000).unwrap();
    assert_eq!(
        (heap.bytes(block), heap.kind(block)),
        (Ok(112), Ok(Kind(7)))
    );
    assert_eq!(
        (heap.bytes(large), heap.kind(large)),
        (Ok(131_072), Ok(Kind(8)))
    );
    for wrong in [
        0,
        8,
        block.0 + 16,
        block.0 + 112,
        large.0 + 65_536,
        1 << 19,
        u64::MAX,
    ] {
        assert_eq!(heap.free(Block(wrong)), Err(FreeError::NotAllocated(wrong)));
    }
    for block in [block, large] {
        heap.free(block).unwrap();
        assert_eq!(heap.free(block), Err(FreeError::NotAllocated(block.0)));
    }
    for bytes in [1 << 19, u64::MAX] {
        let full = heap.allocate(Kind::BYTES, bytes).unwrap_err();
        assert_eq!(full, AllocateError::Full { bytes });
    }
    drop(heap);
    let cut = Heap::open(&memory[..1 << 15]).unwrap_err();
    assert!(matches!(cut, OpenError::Cut { .. }), "{cut}");
    let small = Heap::open(&memory[..100]).unwrap_err();
    assert!(
        matches!(small, OpenError::TooSmall { bytes: 800 }),
        "{small}"
    );
    let other: Vec<AtomicU64> = (0..1 << 16).map(AtomicU64::new).collect();
    other[0].store(5, Ordering::Relaxed);
    assert!(matches!(Heap::open(&other[..]), Err(OpenError::NotAHeap)));
}

#[test]
fn a_heap_is_found_again_by_its_roots() {
    let fd = memory();
    let heap = open(&fd);
    let block = heap.allocate(Kind::BYTES, 40).unwrap();
    mark(&heap, block);
    heap.root(3).store(block.0, Ordering::Release);
    drop(heap);
    let again = open(&fd);
    let block = Block(again.root(3).load(Ordering::Acquire));
    free_marked(&again, block);
    assert_eq!(again.usage().free_bytes, again.usage().bytes);
}

#[test]
fn what_is_full_says_so_and_what_is_freed_is_used_again_for_other_sizes() {
    let fd = memory();
    let heap = open(&fd);
    for bytes in [16, 1000, 32_768, 200_000] {
        let mut blocks = Vec::new();
        while let Ok(block) = heap.allocate(Kind::BYTES, bytes) {
            blocks.push(block);
        }
        let used = blocks.len() as u64 * heap.bytes(blocks[0]).unwrap();
        assert!(used > heap.usage().bytes * 9 / 10, "{bytes}: {used}");
        blocks
            .into_iter()
            .for_each(|block| heap.free(block).unwrap());
    }
    // A slab that this process allocates from is free when nothing else is left.
    heap.allocate(Kind::BYTES, heap.usage().bytes).unwrap();
}
