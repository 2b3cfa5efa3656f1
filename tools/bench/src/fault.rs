//! Random faults on a memory object, each timed by the thread that faults.

use std::sync::{Arc, Barrier};
use std::time::Instant;

use farpage_kernel::embed::{Embedded, Mapping};
use farpage_object::{
    DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageOut, Pager, PagerError, Supplied,
};

/// Pages that queue together: the last one of each is touched, so that nothing is prefetched.
pub const CLUSTER: usize = 16;

/// Supplies every page at once, from memory.
pub struct Source;

impl Pager for Source {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let page = request.pages().start.0;
        request.buffer()[..8].copy_from_slice(&page.to_le_bytes());
        Ok(Supplied::precious(1))
    }

    fn is_at_hand(&self, _: ObjectId, _: PageIndex) -> bool {
        true
    }

    fn is_signal_safe(&self) -> bool {
        true
    }

    fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
        Err(PagerError::OutOfSpace)
    }
}

/// A kernel with room for `pages` pages.
pub fn kernel(pages: usize) -> Embedded {
    Embedded::start(2 * (pages * PAGE_BYTES) as u64 + (64 << 20)).expect("a kernel")
}

/// Bytes of an object on which `pages` faults are taken.
pub fn bytes(pages: usize) -> usize {
    pages * CLUSTER * PAGE_BYTES
}

/// Faults once on each of `pages` pages in random order, by `threads` threads, and prints a line.
/// `in_thread`: the threads answer their faults themselves.
pub fn run(kernel: Embedded, threads: usize, pages: usize, in_thread: bool) {
    let object = kernel.object(Arc::new(Source), bytes(pages));
    let object = object.expect("an object");
    let (memory, name) = if in_thread {
        (object.map_in_thread(), "farpage_kernel,_in_thread")
    } else {
        (object.map(), "farpage_kernel")
    };
    measure(&memory.expect("mapped"), name, threads, pages);
}

/// Nanoseconds of the median fault of one thread on `pages` pages.
pub fn median(kernel: Embedded, pages: usize) -> u64 {
    let object = kernel.object(Arc::new(Source), bytes(pages));
    let memory = object.expect("an object").map().expect("mapped");
    let (latencies, _) = latencies(&memory, 1, pages);
    latencies[latencies.len() / 2]
}

/// Faults once on each of `pages` pages of `memory`, which begin with their number.
pub fn measure(memory: &Mapping, name: &str, threads: usize, pages: usize) {
    let (latencies, wall) = latencies(memory, threads, pages);
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize];
    let rate = pages as f64 / (wall as f64 / 1e9) / 1e3;
    println!(
        "{name} {threads} 0 {pages} {} {} {rate:.1}",
        at(0.5),
        at(0.99)
    );
}

/// Nanoseconds of each fault, in order of their length, and of all together.
fn latencies(memory: &Mapping, threads: usize, pages: usize) -> (Vec<u64>, u64) {
    let order = shuffled(pages);
    let begin = Barrier::new(threads + 1);
    let mut latencies = Vec::with_capacity(pages);
    let mut wall = 0;
    std::thread::scope(|scope| {
        let (order, begin) = (&order, &begin);
        let faulters: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    begin.wait();
                    order
                        .iter()
                        .skip(thread)
                        .step_by(threads)
                        .map(|&page| touch(memory, page))
                        .collect()
                })
            })
            .collect();
        begin.wait();
        let started = Instant::now();
        for faulter in faulters {
            let part: Vec<u64> = faulter.join().expect("no panic");
            latencies.extend(part);
        }
        wall = started.elapsed().as_nanos() as u64;
    });
    latencies.sort_unstable();
    (latencies, wall)
}

fn touch(memory: &Mapping, page: usize) -> u64 {
    let mut word = [0; 8];
    let started = Instant::now();
    memory.read(page * PAGE_BYTES, &mut word).expect("inside");
    let took = started.elapsed().as_nanos() as u64;
    assert_eq!(u64::from_le_bytes(word), page as u64, "a wrong page");
    took
}

/// The last pages of clusters, each once.
pub fn shuffled(pages: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (1..=pages).map(|i| i * CLUSTER - 1).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for i in (1..pages).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(i, (state % (i as u64 + 1)) as usize);
    }
    order
}
