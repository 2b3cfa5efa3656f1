//! What a hit in the cache costs, beside reading the same bytes from a plain file.
//!
//! `cargo run --release -p farpage-source --example figures`

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use farpage_source::{Cache, FileSource, OpenMode, Source};

const SIZE: u64 = 256 << 20;

/// Median of the time that one call of `act` takes, in microseconds, and the quartiles.
fn timed(mut act: impl FnMut(u64)) -> String {
    let mut times: Vec<f64> = (0..4001u64)
        .map(|i| {
            let start = Instant::now();
            act(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            start.elapsed().as_nanos() as f64 / 1000.0
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times[times.len() * part / 4];
    format!("{:8.2} us ({:.2}..{:.2})", at(2), at(1), at(3))
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let path = folder.path().join("plain");
    let bytes: Vec<u8> = (0..SIZE).map(|i| ((i * i) >> 11) as u8).collect();
    std::fs::write(&path, &bytes)?;
    let plain = File::open(&path)?;
    let cache = Cache::open(&folder.path().join("cache"), SIZE * 2)?;
    let inner = Arc::new(FileSource::open(&path, OpenMode::Read, None)?);
    let kept = cache.keep(inner);
    let mut all = vec![0; SIZE as usize];
    kept.read_at(0, &mut all)?;
    assert!(all == bytes);
    for length in [4096, 8192, 65536, 2 << 20] {
        let place = |dice: u64| dice % (SIZE / length as u64) * length as u64;
        let mut buffer = vec![0; length];
        let bare = timed(|dice| {
            plain.read_exact_at(&mut buffer, place(dice)).expect("read");
        });
        let hit = timed(|dice| kept.read_at(place(dice), &mut buffer).expect("read"));
        println!("{length:8} bytes: pread {bare}   hit {hit}");
    }
    let usage = cache.usage()?;
    assert_eq!((usage.fetched_bytes, usage.damaged_pages), (SIZE, 0));
    Ok(())
}
