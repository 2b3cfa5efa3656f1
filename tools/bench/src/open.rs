//! A local file opened for reading, beside a mapping of Linux's, which is what np.memmap is.
#![allow(unsafe_code)]

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Instant;

use farpage::{Memory, OpenOptions};
use farpage_sys::file::{Fd, forget_cached};

/// Prints lines: way, warm or cold, MiB, ms until all words were summed, opening included.
pub fn run(runs: usize, mib: usize) {
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let path = folder.path().join("file");
    let mut file = File::create(&path).expect("a file");
    let mut seed = 1u64;
    let block: Vec<u8> = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed >> 29;
        seed.to_le_bytes()
    })
    .take(1 << 17)
    .flatten()
    .collect();
    for _ in 0..mib {
        file.write_all(&block).expect("room on the disk");
    }
    file.sync_all().expect("a disk");
    drop(file);
    let wanted = summed(&block).wrapping_mul(mib as u64);
    for _ in 0..runs {
        for state in ["warm", "cold"] {
            for way in ["mmap", "farpage", "quarter"] {
                let file = File::open(&path).expect("it is there");
                match state {
                    "warm" => drop(std::fs::read(&path).expect("it can be read")),
                    _ => forget_cached(Fd(file.as_raw_fd()), 0, 0),
                }
                let start = Instant::now();
                let sum = sum_of(way, &file, &path, mib << 20);
                let ms = start.elapsed().as_nanos() as f64 / 1e6;
                assert_eq!(black_box(sum), wanted, "{way}");
                println!("{way} {state} {mib} {ms:.3}");
            }
        }
    }
}

fn sum_of(way: &str, file: &File, path: &Path, bytes: usize) -> u64 {
    if way == "mmap" {
        // SAFETY: nobody changes the file while this runs.
        let map = unsafe { memmap2::Mmap::map(file) }.expect("it can be mapped");
        return summed(&map);
    }
    let options = OpenOptions {
        ram: (way == "quarter").then_some((bytes / 4) as u64),
        ..OpenOptions::default()
    };
    let name = path.to_str().expect("a name of letters");
    let memory = Memory::open(name, &options).expect("it can be opened");
    // SAFETY: mapped, and nobody writes to it.
    summed(unsafe { std::slice::from_raw_parts(memory.as_ptr(), bytes) })
}

fn summed(bytes: &[u8]) -> u64 {
    let words = bytes.as_chunks::<8>().0;
    words.iter().fold(0, |sum: u64, word| {
        sum.wrapping_add(u64::from_le_bytes(*word))
    })
}
