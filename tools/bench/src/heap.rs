//! `malloc` in shared memory, beside the C library's in memory of the process's own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use farpage_client::heap::{Block, Heap, Kind};
use farpage_sys::memory_file::{FIXED, Words, create, seal};

const BYTES: usize = 256 << 20;
/// Blocks that are allocated at a time.
const LIVE: usize = 10_000;
const MIXED: &str = "16_to_1039_bytes";

struct Memory(Words);

impl AsRef<[AtomicU64]> for Memory {
    fn as_ref(&self) -> &[AtomicU64] {
        self.0.u64s()
    }
}

fn open(fd: &OwnedFd) -> Heap<Memory> {
    let words = Words::map_as_touched(fd.as_fd(), BYTES).expect("a mapping");
    Heap::open(Memory(words)).expect("a heap")
}

/// Which sizes are asked for, one after another.
#[derive(Clone, Copy)]
enum Sizes {
    /// 64 bytes.
    One,
    /// 16 to 1,039.
    Mixed,
}

impl Sizes {
    fn get(self, random: &mut u64) -> usize {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        match self {
            Self::One => 64,
            Self::Mixed => 16 + (*random >> 20) as usize % 1024,
        }
    }
}

/// Nanoseconds of freeing the oldest of the live blocks, or one at random, and allocating another.
fn measure<T: Copy>(
    sizes: Sizes,
    pairs: usize,
    allocate: impl Fn(usize) -> T,
    free: impl Fn(T, usize),
) -> f64 {
    let mut random = 88_172_645_463_325_252;
    let one = |random: &mut u64| {
        let size = sizes.get(random);
        (allocate(size), size)
    };
    let mut live: Vec<(T, usize)> = (0..LIVE).map(|_| one(&mut random)).collect();
    let began = Instant::now();
    for _ in 0..pairs {
        let size = sizes.get(&mut random);
        let at = (random >> 33) as usize % LIVE;
        let (block, length) = live[at];
        free(block, length);
        live[at] = (allocate(size), size);
    }
    let ns = began.elapsed().as_nanos() as f64 / pairs as f64;
    live.into_iter().for_each(|(block, size)| free(block, size));
    ns
}

fn of_heap(heap: &Heap<Memory>, sizes: Sizes, pairs: usize) -> f64 {
    let allocate = |bytes| heap.allocate(Kind::BYTES, bytes as u64).expect("room");
    let free = |block: Block, _| heap.free(block).expect("a block");
    measure(sizes, pairs, allocate, free)
}

#[expect(unsafe_code, reason = "the interface of an allocator")]
fn of_malloc(sizes: Sizes, pairs: usize) -> f64 {
    let layout = |bytes| Layout::from_size_align(bytes, 16).expect("a layout");
    // SAFETY: no size is zero.
    let allocate = |bytes| unsafe { System.alloc(layout(bytes)) };
    // SAFETY: allocated above with this layout.
    let free = |block, bytes| unsafe { System.dealloc(block, layout(bytes)) };
    measure(sizes, pairs, allocate, free)
}

/// A process that allocates and frees in the same heap for ever: `heap-program`.
pub fn program() {
    let heap = open(
        &std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .expect("a file"),
    );
    loop {
        of_heap(&heap, Sizes::Mixed, 1 << 20);
    }
}

fn other(fd: &OwnedFd) -> Child {
    let own = std::env::current_exe().expect("a path");
    let mut command = Command::new(own);
    let file = fd.try_clone().expect("a file");
    command.arg("heap-program").stdin(Stdio::from(file));
    command.spawn().expect("a process")
}

/// Prints lines `PROCESSES NAME SIZES PAIRS NS` for each of `runs` runs.
pub fn run(runs: u64, pairs: usize) {
    for _ in 0..runs {
        let fd = create(c"heap", BYTES).expect("memory");
        seal(fd.as_fd(), FIXED).expect("sealed");
        let heap = open(&fd);
        for (name, sizes) in [("64_bytes", Sizes::One), (MIXED, Sizes::Mixed)] {
            println!("one malloc {name} {pairs} {:.1}", of_malloc(sizes, pairs));
            println!(
                "one farpage {name} {pairs} {:.1}",
                of_heap(&heap, sizes, pairs)
            );
        }
        let mut other = other(&fd);
        while heap.usage().processes < 2 {
            std::thread::yield_now();
        }
        let sizes = Sizes::Mixed;
        println!("two malloc {MIXED} {pairs} {:.1}", of_malloc(sizes, pairs));
        println!(
            "two farpage {MIXED} {pairs} {:.1}",
            of_heap(&heap, sizes, pairs)
        );
        other.kill().expect("its own");
        other.wait().expect("its own");
        drop(heap);
        open(&fd).check().expect("whole");
    }
}
