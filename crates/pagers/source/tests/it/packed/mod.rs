//! Files made by the tools, and readers of them.

use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use farpage_source::{FileSource, OpenMode, Source, SourceError, decompress};

/// Bytes of which some compress well and some do not at all.
pub fn contents(bytes: usize) -> Vec<u8> {
    let mut dice = 1u64;
    let mut all = Vec::with_capacity(bytes + 100_000);
    while all.len() < bytes {
        dice = dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        let length = (dice >> 40) as usize % 60_000;
        match dice >> 62 {
            0 => all.resize(all.len() + length, b' '),
            1 => all.extend((0..length as u64).map(|i| (dice.wrapping_mul(i * i + 7) >> 33) as u8)),
            _ => {
                let words = (0..length as u64 / 8).map(|i| (dice >> (i % 23)) % 10_000);
                all.extend(words.flat_map(|word| format!("{word:07} ").into_bytes()));
            }
        }
    }
    all.truncate(bytes);
    all
}

/// What `tool` makes of `input`; `None` where it is not installed.
pub fn through(tool: &str, args: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    let mut command = Command::new(tool);
    command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input).unwrap());
        child.wait_with_output().unwrap()
    });
    assert!(output.status.success(), "{tool} {args:?}");
    Some(output.stdout)
}

/// A file of these bytes.
pub fn file(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

pub fn open_file(path: &Path) -> Arc<dyn Source> {
    Arc::new(FileSource::open(path, OpenMode::Read, None).unwrap())
}

/// Opens what `packed` holds.
pub fn open(folder: &Path, packed: &[u8]) -> Result<Arc<dyn Source>, SourceError> {
    let path = file(folder, "packed", packed);
    decompress(open_file(&path), Some(folder), &mut |_, _| {})
}

pub fn read(source: &dyn Source, range: Range<usize>) -> Result<Vec<u8>, SourceError> {
    let mut bytes = vec![0; range.len()];
    source.read_at(range.start as u64, &mut bytes)?;
    Ok(bytes)
}

/// Pseudo-random numbers.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    pub fn range(&mut self, end: usize, bytes_max: usize) -> Range<usize> {
        let start = self.below(end);
        start..(start + self.below(bytes_max)).min(end)
    }
}

/// Reads all of it and many ranges, from several threads.
pub fn check(source: &dyn Source, contents: &[u8]) {
    assert_eq!(source.size(), contents.len() as u64);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || {
                let mut dice = Dice(thread);
                for _ in 0..100 {
                    let range = dice.range(contents.len(), 200_000);
                    let is = read(source, range.clone()).unwrap();
                    assert!(is == contents[range.clone()], "{range:?}");
                }
            });
        }
    });
    assert!(read(source, 0..contents.len()).unwrap() == contents);
    let end = contents.len();
    let beyond = read(source, end..end + 1).unwrap_err();
    assert!(matches!(beyond, SourceError::Short { .. }), "{beyond}");
}

/// Damages `packed` at many places. Each read then is right or an error; returns how many of the
/// files could be opened and read whole.
pub fn damage(folder: &Path, packed: &[u8], contents: &[u8], times: u64) -> usize {
    let mut whole = 0;
    for time in 0..times {
        let mut dice = Dice(time);
        let mut other = packed.to_vec();
        match time % 4 {
            0 => other.truncate(dice.below(packed.len())),
            1 => {
                let at = dice.range(packed.len(), 100);
                other[at].fill(0);
            }
            _ => other[dice.below(packed.len())] ^= 1 << dice.below(8),
        }
        let Ok(source) = open(folder, &other) else {
            continue;
        };
        let size = contents.len().min(source.size() as usize);
        for _ in 0..3 {
            let range = dice.range(size.max(1), 100_000);
            if let Ok(is) = read(&*source, range.clone()) {
                assert!(is == contents[range.clone()], "time {time} {range:?}");
            }
        }
        if let Ok(is) = read(&*source, 0..source.size() as usize) {
            assert!(is == contents, "time {time}: {} bytes", is.len());
            whole += 1;
        }
    }
    whole
}
