//! The bytes of a file added up, as `tools/bench/c/stdio.c` does it, by what Rust programs have.

use std::fs::File;
use std::hint::black_box;
use std::io::{BufReader, Read};
use std::time::Instant;

use farpage_mapio::Stream;
use rustix::time::{ClockId, clock_gettime};

/// Prints: bytes, sum, processor ms, ms, and two zeros for what is not looked at here.
pub fn stdio(way: &str, path: &str) {
    let (processor, wall) = (processor_ms(), Instant::now());
    let (bytes, sum) = match way {
        "bufreader" => by_bufreader(path),
        "memmap2" => by_memmap2(path),
        "stream" => by_stream(path),
        other => panic!("{other}?"),
    };
    let wall = wall.elapsed().as_secs_f64() * 1e3;
    println!(
        "{bytes} {sum} {:.4} {wall:.4} 0 0",
        processor_ms() - processor
    );
}

fn processor_ms() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

fn by_bufreader(path: &str) -> (u64, u64) {
    let file = BufReader::new(File::open(path).expect("a file"));
    let (mut bytes, mut sum) = (0, 0);
    for byte in file.bytes() {
        sum += u64::from(byte.expect("it can be read"));
        bytes += 1;
    }
    (bytes, sum)
}

#[allow(unsafe_code)]
fn by_memmap2(path: &str) -> (u64, u64) {
    let file = File::open(path).expect("a file");
    // SAFETY: nobody changes the file while this runs.
    let map = unsafe { memmap2::Mmap::map(&file) }.expect("it can be mapped");
    let mut sum = 0;
    for byte in &map[..] {
        // One after the other, as in C.
        sum = black_box(sum + u64::from(*byte));
    }
    (map.len() as u64, sum)
}

fn by_stream(path: &str) -> (u64, u64) {
    let mut stream = Stream::open(path, "r").expect("a file");
    let (mut bytes, mut sum) = (0, 0);
    while let Some(byte) = stream.read_byte().expect("it can be read") {
        sum += u64::from(byte);
        bytes += 1;
    }
    (bytes, sum)
}
