//! What a page costs: `cargo bench -p farpage-default-pager`.
//!
//! First each kind of data through the compressed tier, with zstd beside it, in processor time;
//! then paging files in the temporary directory (set TMPDIR), beside plain writes in the same run.

#[path = "../tests/it/support/mod.rs"]
#[allow(dead_code, reason = "its other half is for tests")]
mod support;

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Instant;

use farpage_default_pager::DefaultPager;
use farpage_object::Pager;
use farpage_sys::buffer::Buffer;
use support::*;

const PAGES: u64 = 16384;
const FILE_PAGES: u64 = 131_072;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// A page of typical data.
fn data(kind: &str, page: u64) -> Page {
    let mut state = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = [0; 4096];
    if kind == "text" {
        const WORDS: [&str; 16] = [
            "the ", "of ", "memory ", "page ", "and ", "a ", "kernel ", "in ", "object ", "to ",
            "pager ", "is ", "write ", "fault ", "that ", "program ",
        ];
        let mut text = String::new();
        while text.len() < 4096 {
            text.push_str(WORDS[random(&mut state) as usize % 16]);
        }
        bytes.copy_from_slice(&text.as_bytes()[..4096]);
        return bytes;
    }
    for (index, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let at = page * 512 + index as u64;
        *word = match kind {
            "small ints, half zero" => random(&mut state) % 1000 * (at / 64 % 2),
            "sorted ints" => at * 7 + random(&mut state) % 7,
            "doubles 0..1" => (random(&mut state) as f64 / u64::MAX as f64).to_bits(),
            "doubles, rounded" => ((random(&mut state) % 10_000) as f64 / 100.0).to_bits(),
            "pointers" => 0x7f12_3450_0000 + random(&mut state) % (1 << 20) * 16,
            _ => random(&mut state),
        }
        .to_le_bytes();
    }
    bytes
}

fn us_per_page(seconds: f64, pages: u64) -> f64 {
    seconds * 1e6 / pages as f64
}

fn tier() {
    println!(
        "{:24} {:>8} {:>8} {:>7} | {:>8} {:>8} {:>7}",
        "data, 64 MiB", "out us", "in us", "ratio", "zstd us", "back us", "ratio"
    );
    for kind in [
        "text",
        "small ints, half zero",
        "sorted ints",
        "pointers",
        "doubles, rounded",
        "doubles 0..1",
        "noise",
    ] {
        let control = control(256 * MIB);
        let _kept = add_file(control, 0, unlinked(&std::env::temp_dir()), 1 << 12);
        let pager = DefaultPager::new(control, 0).unwrap();
        let all: Vec<_> = (0..PAGES).map(|page| (page, data(kind, page))).collect();
        let mut out = 0.0;
        for part in all.chunks(64) {
            out += timed_write(&pager, part, cpu);
        }
        let counters = &control.tasks[0].counters;
        let ins = counters.compress_in_bytes.load(Ordering::Relaxed) as f64;
        let outs = counters.compress_out_bytes.load(Ordering::Relaxed) as f64;
        let back = timed_read(&pager, PAGES, cpu);
        let (dense, undense, dense_ratio) = zstd(&all);
        println!(
            "{kind:24} {:8.2} {:8.2} {:7.2} | {dense:8.2} {undense:8.2} {dense_ratio:7.2}",
            out * 1e6 / PAGES as f64,
            back * 1e6 / PAGES as f64,
            ins / outs
        );
    }
}

fn zstd(pages: &[(u64, Page)]) -> (f64, f64, f64) {
    let mut context = zstd_safe::CCtx::create();
    let mut back = zstd_safe::DCtx::create();
    let mut room = vec![0u8; 8192];
    let (mut packed, mut bytes) = (Vec::new(), 0);
    let start = cpu();
    for (_, page) in pages.iter().step_by(8) {
        let length = context.compress(&mut room[..], page, 1).unwrap();
        bytes += length;
        packed.push(room[..length].to_vec());
    }
    let out = us_per_page(cpu() - start, pages.len() as u64 / 8);
    let start = cpu();
    for record in &packed {
        back.decompress(&mut room[..4096], record).unwrap();
    }
    let undone = us_per_page(cpu() - start, pages.len() as u64 / 8);
    (out, undone, (packed.len() * 4096) as f64 / bytes as f64)
}

type Clock = fn() -> f64;

/// Seconds that went by.
fn wall() -> f64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Seconds of processor time of this thread: other load does not count.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// Seconds in `data_write` alone.
fn timed_write(pager: &DefaultPager, pages: &[(u64, Page)], clock: Clock) -> f64 {
    let mut buffer = Buffer::new(pages.len() * 4096).unwrap();
    for (place, (_, page)) in buffer.chunks_exact_mut(4096).zip(pages) {
        place.copy_from_slice(page);
    }
    let outs: Vec<_> = (buffer.as_chunks().0.iter())
        .zip(pages)
        .map(|(bytes, (page, _))| farpage_object::PageOut {
            page: farpage_object::PageIndex(*page),
            bytes,
        })
        .collect();
    let start = clock();
    pager.data_write(OBJECT, &outs).unwrap();
    clock() - start
}

/// Seconds to read all pages in order, 64 at a time.
fn timed_read(pager: &DefaultPager, pages: u64, clock: Clock) -> f64 {
    let mut buffer = Buffer::new(64 * 4096).unwrap();
    let start = clock();
    let mut page = 0;
    while page < pages {
        let range = farpage_object::PageRange::new(page, (page + 64).min(pages));
        let bytes = &mut buffer[..range.bytes() as usize];
        let access = farpage_object::Access::Read;
        let request = farpage_object::DataRequest::new(OBJECT, range, 1, access, bytes);
        page += pager.data_request(request).unwrap().pages;
    }
    clock() - start
}

fn gigabytes(pages: u64, seconds: f64) -> f64 {
    (pages * 4096) as f64 / seconds / 1e9
}

fn plain_writes() {
    let file = unlinked(&std::env::temp_dir());
    let mut buffer = Buffer::new(1 << 20).unwrap();
    buffer.fill(7);
    for (size, what) in [
        (256 << 10, "new file"),
        (1 << 20, "again"),
        (256 << 10, "again"),
    ] {
        let start = wall();
        for at in (0..FILE_PAGES * 4096).step_by(size) {
            file.write_all_at(&buffer[..size], at).unwrap();
        }
        let speed = gigabytes(FILE_PAGES, wall() - start);
        println!(
            "plain pwrite of {} KiB, {what}: {speed:.2} GB/s",
            size >> 10
        );
    }
    let start = wall();
    let mut state = 1;
    for _ in 0..4000 {
        let at = random(&mut state) % FILE_PAGES * 4096;
        file.read_exact_at(&mut buffer[..4096], at).unwrap();
    }
    println!(
        "plain random pread of 4 KiB: {:.1} us",
        us_per_page(wall() - start, 4000)
    );
}

fn files() {
    plain_writes();
    for (threads, batch) in [(1, 16), (1, 64), (1, 256), (2, 64), (2, 256), (4, 256)] {
        let (_control, _kept, pager) = with_file(0, 1 << 12);
        let noise: Vec<_> = (0..batch).map(|page| (page, data("noise", page))).collect();
        let start = wall();
        std::thread::scope(|s| {
            for thread in 0..threads {
                let (pager, mut own) = (&pager, noise.clone());
                s.spawn(move || write_many(pager, &mut own, thread, threads));
            }
        });
        let out = gigabytes(FILE_PAGES, wall() - start);
        let back = gigabytes(FILE_PAGES, timed_read(&pager, FILE_PAGES, wall));
        println!(
            "raw pages, {threads} threads, {batch} at a time: out {out:.2} GB/s, \
            in order, 64 at a time: {back:.2} GB/s"
        );
        if batch == 256 && threads == 1 {
            println!(
                "raw page at random: {:.1} us",
                random_reads(&pager, FILE_PAGES)
            );
        }
    }
    let (control, _kept, pager) = with_file(16 * MIB, 1 << 12);
    let mut out = 0.0;
    for first in (0..FILE_PAGES).step_by(64) {
        let part: Vec<_> = (first..first + 64).map(|p| (p, data("text", p))).collect();
        out += timed_write(&pager, &part, wall);
    }
    println!(
        "text through a tier of 16 MiB to a file: out {:.2} us a page ({} segments)",
        out * 1e6 / FILE_PAGES as f64,
        held(control)
    );
    println!(
        "compressed page at random from a file: {:.1} us",
        random_reads(&pager, FILE_PAGES / 2)
    );
    println!(
        "in order, 64 at a time: {:.2} us a page",
        timed_read(&pager, FILE_PAGES / 2, wall) * 1e6 / (FILE_PAGES / 2) as f64
    );
}

/// One thread's share of [`FILE_PAGES`] pages.
fn write_many(pager: &DefaultPager, pages: &mut [(u64, Page)], thread: u64, threads: u64) {
    let batch = pages.len() as u64;
    let mut buffer = Buffer::new(pages.len() * 4096).unwrap();
    for (place, (_, page)) in buffer.chunks_exact_mut(4096).zip(pages.iter()) {
        place.copy_from_slice(page);
    }
    for first in (thread * batch..FILE_PAGES).step_by((threads * batch) as usize) {
        let outs: Vec<_> = (buffer.as_chunks().0.iter())
            .zip(first..)
            .map(|(bytes, page)| farpage_object::PageOut {
                page: farpage_object::PageIndex(page),
                bytes,
            })
            .collect();
        pager.data_write(OBJECT, &outs).unwrap();
    }
}

fn random_reads(pager: &DefaultPager, pages: u64) -> f64 {
    let mut buffer = Buffer::new(4096).unwrap();
    let mut state = 99;
    let start = wall();
    for _ in 0..4000 {
        let page = random(&mut state) % pages;
        let range = farpage_object::PageRange::new(page, page + 1);
        let access = farpage_object::Access::Read;
        let request = farpage_object::DataRequest::new(OBJECT, range, 1, access, &mut buffer);
        let _ = pager.data_request(request);
    }
    us_per_page(wall() - start, 4000)
}

fn main() {
    tier();
    files();
}
