//! Zstandard files as sources.

use std::io::Write;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use farpage_source::{
    Cache, Compression, Reach, Source, SourceError, decompress, is_compressed, parse,
};
use proptest::prelude::*;

use crate::packed::{check, contents, damage, file, open, open_file, read, through};

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn zstd(args: &[&str], input: &[u8]) -> Vec<u8> {
    through("zstd", args, input).expect("zstd is installed")
}

/// A seekable file, whose table has the checksums of its frames or not.
fn seekable(contents: &[u8], frame: usize, args: &[&str], sums: bool) -> Vec<u8> {
    let (mut packed, mut table) = (Vec::new(), Vec::new());
    for part in contents.chunks(frame) {
        let frame = zstd(args, part);
        table.extend((frame.len() as u32).to_le_bytes());
        table.extend((part.len() as u32).to_le_bytes());
        if sums {
            let sum = xxhash_rust::xxh64::xxh64(part, 0) as u32;
            table.extend(sum.to_le_bytes());
        }
        packed.extend(frame);
    }
    let frames = contents.len().div_ceil(frame) as u32;
    packed.extend(0x184d_2a5e_u32.to_le_bytes());
    packed.extend((table.len() as u32 + 9).to_le_bytes());
    packed.extend(table);
    packed.extend(frames.to_le_bytes());
    packed.push(if sums { 0x80 } else { 0 });
    packed.extend(0x8f92_eab1_u32.to_le_bytes());
    packed
}

/// One that another library writes.
fn by_zeekstd(contents: &[u8], frame: u32) -> Vec<u8> {
    let mut packed = Vec::new();
    let policy = zeekstd::FrameSizePolicy::Uncompressed(frame);
    let options = zeekstd::EncodeOptions::new().frame_size_policy(policy);
    let mut encoder = options
        .checksum_flag(true)
        .into_encoder(&mut packed)
        .unwrap();
    encoder.write_all(contents).unwrap();
    encoder.finish().unwrap();
    packed
}

#[test]
fn any_range_of_a_seekable_file_is_what_was_compressed() {
    let (folder, contents) = (temporary(), contents(5_000_001));
    for packed in [
        by_zeekstd(&contents, 100_000),
        seekable(&contents, 1 << 20, &["-3"], true),
        seekable(&contents, 700_000, &["-1", "--no-check"], false),
    ] {
        check(&*open(folder.path(), &packed).unwrap(), &contents);
    }
}

#[test]
fn a_seekable_file_is_opened_by_its_table_alone() {
    let (folder, contents) = (temporary(), contents(3_000_000));
    let path = file(folder.path(), "packed", &by_zeekstd(&contents, 1 << 18));
    let mut called = 0;
    let source = decompress(open_file(&path), None, &mut |_, _| called += 1).unwrap();
    assert_eq!((source.size(), called), (3_000_000, 0));
    assert_eq!(source.version(), open_file(&path).version());
    assert!(source.name().ends_with("packed (decoded)"));
}

/// A file as if it were far away.
struct Far {
    file: Arc<dyn Source>,
    reads: AtomicUsize,
}

impl Source for Far {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.file.size()
    }

    fn version(&self) -> Option<String> {
        self.file.version()
    }

    fn reach(&self) -> Reach {
        Reach::Far
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.file.read_at(offset, buffer)
    }
}

#[test]
fn a_frame_that_many_threads_need_is_read_and_decoded_once() {
    let (folder, contents) = (temporary(), contents(3_000_000));
    let path = file(folder.path(), "packed", &by_zeekstd(&contents, 100_000));
    let far = Arc::new(Far {
        file: open_file(&path),
        reads: AtomicUsize::new(0),
    });
    let source = decompress(far.clone(), None, &mut |_, _| {}).unwrap();
    let before = far.reads.load(Ordering::Relaxed);
    assert!(source.reach() == Reach::Far && !source.is_at_hand(0, 1));
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for frame in 0..30 {
                    start.wait();
                    let range = frame * 100_000 + 500..frame * 100_000 + 9000;
                    assert!(read(&*source, range.clone()).unwrap() == contents[range]);
                }
            });
        }
    });
    assert_eq!(far.reads.load(Ordering::Relaxed) - before, 30);
    assert!(source.is_at_hand(0, 3_000_000));
}

#[test]
fn a_far_file_is_at_hand_when_its_compressed_bytes_are() {
    let (folder, contents) = (temporary(), contents(40 << 20));
    let path = file(folder.path(), "packed", &by_zeekstd(&contents, 1 << 20));
    let cache = Cache::open(&folder.path().join("cache"), 1 << 30).unwrap();
    let far = Arc::new(Far {
        file: open_file(&path),
        reads: AtomicUsize::new(0),
    });
    let source = decompress(cache.keep(far), None, &mut |_, _| {}).unwrap();
    assert!(!source.is_at_hand(5 << 20, 4096));
    assert!(read(&*source, 0..40 << 20).unwrap() == contents);
    // The decoded bytes of that are not kept any more, the compressed ones are.
    assert!(source.is_at_hand(5 << 20, 4096) && source.is_at_hand(0, 40 << 20));
    cache.clear().unwrap();
    assert!(read(&*source, 5 << 20..6 << 20).unwrap() == contents[5 << 20..6 << 20]);
}

#[test]
fn frames_without_a_table_are_found() {
    let (folder, contents) = (temporary(), contents(4_000_000));
    let mut packed = Vec::new();
    for part in contents.chunks(900_000) {
        packed.extend(zstd(&[], part));
        // A frame of somebody's own, which is left out.
        packed.extend(0x184d_2a53_u32.to_le_bytes());
        packed.extend(5u32.to_le_bytes());
        packed.extend(b"other");
    }
    check(&*open(folder.path(), &packed).unwrap(), &contents);
    let sized = sized_frames(&contents, 900_000);
    let path = file(folder.path(), "sized", &sized);
    let none = folder.path().join("there is no such folder");
    let source = decompress(open_file(&path), Some(&none), &mut |_, _| {}).unwrap();
    check(&*source, &contents);
}

#[test]
fn every_way_to_write_a_length_is_understood() {
    let (folder, contents) = (temporary(), contents(300_000));
    let mut at = 0;
    let mut packed = Vec::new();
    for bytes in [1, 255, 256, 257, 0, 65_791, 65_792, 100_000] {
        let mut space = vec![0; bytes + 1000];
        let part = &contents[at..at + bytes];
        let length = zstd_safe::compress(&mut space[..], part, 1).unwrap();
        let header = parse::header(&space[..length]);
        let Some(parse::Header::Data { bytes: said, .. }) = header else {
            panic!("{bytes}: {header:?}")
        };
        assert_eq!(said, Some(bytes as u64));
        packed.extend(&space[..length]);
        at += bytes;
    }
    let path = file(folder.path(), "packed", &packed);
    let none = folder.path().join("there is no such folder");
    let source = decompress(open_file(&path), Some(&none), &mut |_, _| {}).unwrap();
    check(&*source, &contents[..at]);
}

/// Frames that say how long they are.
fn sized_frames(contents: &[u8], frame: usize) -> Vec<u8> {
    let pack = |part: &[u8]| {
        let size = format!("--stream-size={}", part.len());
        zstd(&[&size], part)
    };
    contents.chunks(frame).flat_map(pack).collect()
}

#[test]
fn a_single_frame_is_decoded_into_a_file_that_vanishes() {
    let (folder, contents) = (temporary(), contents(6_000_000));
    let packed = zstd(&[], &contents);
    let mut calls = Vec::new();
    let path = file(folder.path(), "packed", &packed);
    let progress = &mut |done, all| calls.push((done, all));
    let source = decompress(open_file(&path), Some(folder.path()), progress).unwrap();
    check(&*source, &contents);
    let size = packed.len() as u64;
    assert_eq!(calls.last(), Some(&(size, size)));
    assert!(calls.is_sorted() && calls.len() > 2);
    let names = folder.path().read_dir().unwrap().count();
    assert_eq!(names, 1, "only what was put there");
    let none = folder.path().join("there is no such folder");
    let error = decompress(open_file(&path), Some(&none), &mut |_, _| {}).err();
    assert!(matches!(error, Some(SourceError::NotFound { .. })));
    let empty = zstd(&[], &[]);
    assert_eq!(open(folder.path(), &empty).unwrap().size(), 0);
}

#[test]
fn damage_is_an_error_and_never_wrong_bytes() {
    let (folder, contents) = (temporary(), contents(600_000));
    for packed in [
        by_zeekstd(&contents, 100_000),
        seekable(&contents, 100_000, &["--no-check"], true),
        sized_frames(&contents, 100_000),
        zstd(&[], &contents),
    ] {
        let whole = damage(folder.path(), &packed, &contents, 300);
        assert!(whole < 60, "{whole} of 300 were read whole");
    }
}

#[test]
fn the_error_says_where_the_damage_is() {
    let (folder, contents) = (temporary(), contents(600_000));
    let mut packed = seekable(&contents, 100_000, &["-1"], true);
    let frames = parse::seek_table(&packed[packed.len() - 8 - 72 - 9..], packed.len() as u64);
    let frame = frames.unwrap()[3];
    packed[frame.at as usize + 1000] ^= 1;
    let source = open(folder.path(), &packed).unwrap();
    assert!(read(&*source, 0..300_000).unwrap() == contents[..300_000]);
    let error = read(&*source, 299_990..300_010).unwrap_err();
    let SourceError::Corrupt { name, offset, .. } = &error else {
        panic!("{error}")
    };
    assert!(name.ends_with("packed") && *offset == frame.at, "{error}");
}

#[test]
fn what_is_compressed_is_known_by_its_first_bytes() {
    let folder = temporary();
    let kind = |bytes: &[u8]| is_compressed(&*open_file(&file(folder.path(), "x", bytes))).unwrap();
    assert_eq!(kind(&zstd(&[], b"text")), Some(Compression::Zstd));
    let mut led = vec![0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    assert_eq!(kind(&led), None);
    led.extend(zstd(&[], b"text"));
    assert_eq!(kind(&led), Some(Compression::Zstd));
    let gzip = through("gzip", &[], b"text").unwrap();
    assert_eq!(kind(&gzip), Some(Compression::Gzip));
    assert_eq!(
        (kind(b""), kind(b"plain text, and more of it")),
        (None, None)
    );
    let error = open(folder.path(), b"plain text").err().unwrap();
    assert!(matches!(error, SourceError::Unsupported { .. }), "{error}");
}

proptest! {
    #[test]
    fn parsers_take_any_bytes(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        frames in 0..20u32,
    ) {
        let _ = (parse::table_bytes(&bytes), parse::seek_table(&bytes, 1 << 20));
        let _ = parse::header(&bytes);
        // Nearly a table.
        let mut table = vec![0x5e, 0x2a, 0x4d, 0x18];
        table.extend((frames * 8 + 9).to_le_bytes());
        table.extend(bytes.iter().cycle().take(if bytes.is_empty() { 0 } else { frames as usize * 8 }));
        table.extend(frames.to_le_bytes());
        table.push(0);
        table.extend(0x8f92_eab1_u32.to_le_bytes());
        let right = parse::seek_table(&table, u64::MAX);
        prop_assert!(right.is_none());
        for (at, mask) in flips {
            let at = at % table.len();
            table[at] ^= mask;
        }
        if let Some(frames) = parse::seek_table(&table, 1 << 20) {
            let packed: u64 = frames.iter().map(|frame| frame.packed).sum();
            prop_assert_eq!(packed + table.len() as u64, 1 << 20);
        }
    }
}
