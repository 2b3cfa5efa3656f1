//! A private copy of the bytes of a file, beside reading them and a private mapping of Linux's.
#![allow(unsafe_code)]

use std::fs::File;
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::Instant;

const PAGE: usize = 4096;
/// No page's.
const OFFSET: usize = 77;
/// Of so many pages one is looked at in the second step.
const FEW: usize = 64;

/// Prints lines: way, MiB, and ms since the start until the first byte, some pages and all pages had
/// been looked at.
pub fn run(runs: usize, mib: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    let mut file = File::create(&path).expect("a file");
    let block: Vec<u8> = (0..1 << 20).map(|at: usize| (at * 7) as u8).collect();
    for _ in 0..=mib {
        file.write_all(&block).expect("room on the disk");
    }
    file.sync_all().expect("a disk");
    drop(file);
    let bytes = mib << 20;
    for _ in 0..runs {
        for way in ["read", "mmap", "map_fd"] {
            let file = File::open(&path).expect("it is there");
            let start = Instant::now();
            let times = match way {
                "read" => {
                    let mut skipped = [0; OFFSET];
                    (&file).read_exact(&mut skipped).expect("it is long enough");
                    let mut copy = Vec::with_capacity(bytes);
                    let got = (&file).take(bytes as u64).read_to_end(&mut copy);
                    assert_eq!(got.expect("it can be read"), bytes);
                    looked(&copy, start)
                }
                "mmap" => {
                    let mut options = memmap2::MmapOptions::new();
                    options.offset(OFFSET as u64).len(bytes);
                    // SAFETY: nobody changes the file while this runs.
                    let map = unsafe { options.map_copy(&file) }.expect("it can be mapped");
                    looked(&map, start)
                }
                _ => {
                    let map = farpage::map_fd(file.as_fd(), OFFSET as u64, bytes as u64, None);
                    let map = map.expect("it can be mapped");
                    // SAFETY: mapped, and nobody writes to it.
                    let bytes = unsafe { std::slice::from_raw_parts(map.as_ptr(), map.bytes()) };
                    looked(bytes, start)
                }
            };
            let [first, few, all] = times.map(|ns| ns / 1e6);
            println!("{way} {mib} {first:.4} {few:.4} {all:.4}");
        }
    }
}

fn looked(bytes: &[u8], start: Instant) -> [f64; 3] {
    let since = || start.elapsed().as_nanos() as f64;
    let sum = |step: usize| {
        let sum: u64 = bytes
            .iter()
            .step_by(step)
            .map(|byte| u64::from(*byte))
            .sum();
        black_box(sum);
        since()
    };
    black_box(bytes[0]);
    [since(), sum(FEW * PAGE), sum(PAGE)]
}
