//! What a hit in the cache costs, beside reading the same bytes from a plain file; and decoding,
//! beside the tools.
//!
//! `cargo run --release -p farpage-source --example figures`

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use farpage_source::{Cache, FileSource, OpenMode, Source, decompress};

const SIZE: u64 = 256 << 20;

/// Median of the time that one of `times` calls of `act` takes, in microseconds, and quartiles.
fn timed(times: u64, mut act: impl FnMut(u64)) -> String {
    let mut all: Vec<f64> = (0..times)
        .map(|i| {
            let start = Instant::now();
            act(i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8);
            start.elapsed().as_nanos() as f64 / 1000.0
        })
        .collect();
    all.sort_by(f64::total_cmp);
    let at = |part: usize| all[all.len() * part / 4];
    format!("{:8.2} us ({:.2}..{:.2})", at(2), at(1), at(3))
}

/// Megabytes of decoded bytes a second.
fn rate(act: impl FnOnce()) -> f64 {
    let start = Instant::now();
    act();
    SIZE as f64 / 1e6 / start.elapsed().as_secs_f64()
}

/// Lines of numbers, of which gzip makes a third.
fn text() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SIZE as usize + 100);
    let mut dice = 1u64;
    while bytes.len() < SIZE as usize {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        writeln!(bytes, "{} item {:x}", dice >> 44, bytes.len()).expect("memory");
    }
    bytes.truncate(SIZE as usize);
    bytes
}

fn hits(folder: &Path, plain: &Path, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    let cache = Cache::open(folder, SIZE * 2)?;
    let inner = Arc::new(FileSource::open(plain, OpenMode::Read, None)?);
    let kept = cache.keep(inner);
    let plain = File::open(plain)?;
    let mut all = vec![0; SIZE as usize];
    kept.read_at(0, &mut all)?;
    assert!(all == bytes);
    for length in [4096, 8192, 65536, 2 << 20] {
        let place = |dice: u64| dice % (SIZE / length as u64) * length as u64;
        let mut buffer = vec![0; length];
        let bare = timed(4001, |dice| {
            plain.read_exact_at(&mut buffer, place(dice)).expect("read");
        });
        let hit = timed(4001, |dice| {
            kept.read_at(place(dice), &mut buffer).expect("read")
        });
        println!("{length:8} bytes: pread {bare}   hit {hit}");
    }
    let usage = cache.usage()?;
    assert_eq!((usage.fetched_bytes, usage.damaged_pages), (SIZE, 0));
    Ok(())
}

/// What the tool makes of `plain`, in a file.
fn packed(tool: &[&str], plain: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    let mut command = Command::new(tool[0]);
    command
        .args(&tool[1..])
        .stdin(File::open(plain)?)
        .stdout(File::create(to)?);
    assert!(command.status()?.success());
    Ok(())
}

fn decoding(what: &str, tool: &str, path: &Path, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    let by_tool = rate(|| {
        let mut command = Command::new(tool);
        command.arg("-dc").arg(path).stdout(Stdio::null());
        assert!(command.status().expect("the tool is there").success());
    });
    let folder = path.parent();
    let open = || {
        let inner = Arc::new(FileSource::open(path, OpenMode::Read, None).expect("open"));
        decompress(inner, folder, &mut |_, _| {}).expect("open")
    };
    let start = Instant::now();
    let source = open();
    let opened = start.elapsed();
    let mut piece = vec![0; 64 << 10];
    let by_source = rate(|| {
        for at in (0..SIZE).step_by(piece.len()) {
            source.read_at(at, &mut piece).expect("read");
            assert!(piece == bytes[at as usize..][..piece.len()]);
        }
    });
    let mut page = [0; 4096];
    let random = timed(301, |dice| {
        source
            .read_at(dice % (SIZE / 4096) * 4096, &mut page)
            .expect("read");
    });
    println!(
        "{what}: opened in {opened:.2?}; all of it at {by_source:.0} MB/s, {tool} {by_tool:.0}; \
         4 KiB anywhere {random}"
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let plain = folder.path().join("plain");
    let bytes = text();
    std::fs::write(&plain, &bytes)?;
    hits(&folder.path().join("cache"), &plain, &bytes)?;
    let path = folder.path().join("seekable.zst");
    let policy = zeekstd::FrameSizePolicy::Uncompressed(1 << 20);
    let options = zeekstd::EncodeOptions::new().frame_size_policy(policy);
    let mut encoder = options
        .checksum_flag(true)
        .into_encoder(File::create(&path)?)?;
    encoder.write_all(&bytes)?;
    encoder.finish()?;
    decoding("zstd, frames of 1 MiB", "zstd", &path, &bytes)?;
    let path = folder.path().join("single.zst");
    packed(&["zstd", "-c"], &plain, &path)?;
    decoding("zstd, one frame", "zstd", &path, &bytes)?;
    let path = folder.path().join("plain.gz");
    packed(&["gzip", "-c"], &plain, &path)?;
    decoding("gzip", "gzip", &path, &bytes)?;
    decoding("gzip, indexed before", "gzip", &path, &bytes)?;
    Ok(())
}
