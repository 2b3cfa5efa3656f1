//! gzip files as sources.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farpage_source::{Cache, Source, SourceError, decompress, parse};
use proptest::prelude::*;

use crate::packed::{Dice, check, contents, damage, file, open, open_file, read, through};

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn gzip(args: &[&str], input: &[u8]) -> Vec<u8> {
    through("gzip", args, input).expect("gzip is installed")
}

fn indices(folder: &Path) -> Vec<PathBuf> {
    let files = folder.read_dir().unwrap();
    let paths = files.map(|file| file.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|e| e == "index"))
        .collect()
}

/// Opens a file and tells how much of it had to be decoded.
fn open_counted(path: &Path, folder: &Path) -> (Arc<dyn Source>, u64) {
    let mut decoded = 0;
    let progress = &mut |done, _| decoded = done;
    (
        decompress(open_file(path), Some(folder), progress).unwrap(),
        decoded,
    )
}

#[test]
fn any_range_of_a_gzip_file_is_what_was_compressed() {
    let (folder, contents) = (temporary(), contents(7_000_001));
    for level in ["-1", "-6", "-9"] {
        let packed = gzip(&[level], &contents);
        check(&*open(folder.path(), &packed).unwrap(), &contents);
    }
}

#[test]
fn members_one_after_another_are_read_as_one() {
    let (folder, contents) = (temporary(), contents(5_000_000));
    let mut packed = gzip(&[], &[]);
    for part in contents.chunks(700_000) {
        packed.extend(gzip(&["-5"], part));
        packed.extend(gzip(&[], &[]));
    }
    // As a tape leaves it.
    packed.extend([0; 1000]);
    check(&*open(folder.path(), &packed).unwrap(), &contents);
    let padded = |part: &[u8]| [gzip(&["-5"], part), vec![0; 512]].concat();
    let packed: Vec<u8> = contents.chunks(700_000).flat_map(padded).collect();
    check(&*open(folder.path(), &packed).unwrap(), &contents);
    assert_eq!(open(folder.path(), &gzip(&[], &[])).unwrap().size(), 0);
}

#[test]
fn a_bgzf_file_is_read() {
    let (folder, contents) = (temporary(), contents(5_000_000));
    let Some(packed) = through("bgzip", &["-c"], &contents) else {
        println!("skipped: bgzip is not installed");
        return;
    };
    check(&*open(folder.path(), &packed).unwrap(), &contents);
}

#[test]
fn headers_with_all_their_fields_are_understood() {
    let (folder, contents) = (temporary(), contents(100_000));
    let plain = gzip(&["-n"], &contents);
    let mut packed = plain[..10].to_vec();
    packed[3] = 0b1_1110;
    packed.extend([3, 0, 1, 2, 3]);
    packed.extend(b"name\0comment\0");
    packed.extend([0, 0]);
    packed.extend(&plain[10..]);
    check(&*open(folder.path(), &packed).unwrap(), &contents);
    packed[3] |= 0x20;
    let error = open(folder.path(), &packed).err().unwrap();
    assert!(
        matches!(error, SourceError::Corrupt { offset: 0, .. }),
        "{error}"
    );
}

#[test]
fn the_index_is_made_once() {
    let (folder, contents) = (temporary(), contents(6_000_000));
    let packed = gzip(&[], &contents);
    let path = file(folder.path(), "packed", &packed);
    let (first, decoded) = open_counted(&path, folder.path());
    assert_eq!(decoded, packed.len() as u64);
    let files = indices(folder.path());
    assert_eq!(files.len(), 1);
    let length = fs::metadata(&files[0]).unwrap().len();
    assert!(length < contents.len() as u64 / 30, "{length}");
    let (second, decoded) = open_counted(&path, folder.path());
    assert_eq!((decoded, second.name()), (0, first.name()));
    check(&*second, &contents);
    // Another version of the file has another index.
    let packed = gzip(&[], &contents[1..]);
    let path = file(folder.path(), "packed", &packed);
    let (third, decoded) = open_counted(&path, folder.path());
    assert_eq!(decoded, packed.len() as u64);
    check(&*third, &contents[1..]);
}

#[test]
fn an_index_that_is_damaged_is_made_again_or_noticed() {
    let (folder, contents) = (temporary(), contents(4_000_000));
    let path = file(folder.path(), "packed", &gzip(&[], &contents));
    open_counted(&path, folder.path());
    let index = indices(folder.path()).remove(0);
    let right = fs::read(&index).unwrap();
    let mut dice = Dice(5);
    let (mut again, mut noticed) = (0, 0);
    for time in 0..60 {
        let mut bytes = right.clone();
        match time % 3 {
            0 => bytes.truncate(dice.below(right.len())),
            // The points and the footer.
            1 => bytes[right.len() - 1 - dice.below(200)] ^= 1 << dice.below(8),
            _ => bytes[dice.below(right.len())] ^= 1 << dice.below(8),
        }
        fs::write(&index, &bytes).unwrap();
        let (source, decoded) = open_counted(&path, folder.path());
        again += usize::from(decoded > 0);
        match read(&*source, 0..contents.len()) {
            Ok(is) => assert!(is == contents),
            Err(error) => {
                assert!(error.to_string().contains("index"), "{error}");
                noticed += 1;
            }
        }
    }
    assert!(again >= 40 && noticed > 5, "{again} {noticed}");
}

#[test]
fn an_index_lies_in_the_cache_and_is_counted_there() {
    let (folder, contents) = (temporary(), contents(3_000_000));
    let path = file(folder.path(), "packed", &gzip(&[], &contents));
    let cache = Cache::open(&folder.path().join("cache"), 1 << 30).unwrap();
    let inner = cache.keep(open_file(&path));
    let source = decompress(inner, Some(cache.folder()), &mut |_, _| {}).unwrap();
    check(&*source, &contents);
    let index = fs::metadata(&indices(cache.folder())[0]).unwrap().len();
    let usage = cache.usage().unwrap();
    let packed = fs::metadata(&path).unwrap().len().next_multiple_of(4096);
    assert_eq!((usage.objects, usage.bytes), (2, packed + 4096 + index));
    cache.clear().unwrap();
    assert!(indices(cache.folder()).is_empty());
    check(&*source, &contents);
}

#[test]
fn a_block_too_long_for_an_index_is_decoded_into_a_file() {
    let folder = temporary();
    // One block with fixed codes: a zero, and then 300,000 matches of 258 zeros before them. The
    // codes of a zero, of that length, of the distance 1, and of the end.
    let mut bits = vec![1, 1, 0];
    bits.extend([0, 0, 1, 1, 0, 0, 0, 0]);
    for _ in 0..300_000 {
        bits.extend([1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0]);
    }
    bits.extend([0; 7]);
    let mut packed = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3];
    let byte = |bits: &[u8]| bits.iter().rev().fold(0, |sum, bit| sum << 1 | bit);
    packed.extend(bits.chunks(8).map(byte));
    let size = 1 + 258 * 300_000u32;
    let zeros = vec![0; size as usize];
    packed.extend(crc32fast::hash(&zeros).to_le_bytes());
    packed.extend(size.to_le_bytes());
    let source = open(folder.path(), &packed).unwrap();
    assert_eq!(source.size(), u64::from(size));
    assert!(read(&*source, 70_000_000..70_100_000).unwrap() == zeros[..100_000]);
    assert!(indices(folder.path()).is_empty());
}

#[test]
fn damage_is_an_error_and_never_wrong_bytes() {
    let (folder, contents) = (temporary(), contents(600_000));
    let two = [
        gzip(&[], &contents[..300_000]),
        gzip(&["-1"], &contents[300_000..]),
    ]
    .concat();
    for packed in [gzip(&["-6"], &contents), two] {
        let whole = damage(folder.path(), &packed, &contents, 300);
        assert!(whole < 30, "{whole} of 300 were read whole");
    }
}

#[test]
fn damage_after_indexing_is_noticed() {
    let (folder, contents) = (temporary(), contents(4_000_000));
    let packed = gzip(&[], &contents);
    let path = file(folder.path(), "packed", &packed);
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    open_counted(&path, folder.path());
    let disk = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let mut dice = Dice(3);
    let mut errors = 0;
    for _ in 0..100 {
        let at = dice.below(packed.len());
        let flipped = [packed[at] ^ 1 << dice.below(8)];
        disk.write_all_at(&flipped, at as u64).unwrap();
        disk.set_modified(modified).unwrap();
        let (source, decoded) = open_counted(&path, folder.path());
        assert_eq!(decoded, 0);
        match read(&*source, 0..contents.len()) {
            Ok(is) => assert!(is == contents, "byte {at}"),
            Err(error) => {
                assert!(matches!(
                    error,
                    SourceError::Corrupt { .. } | SourceError::Short { .. }
                ));
                errors += 1;
            }
        }
        disk.write_all_at(&[packed[at]], at as u64).unwrap();
    }
    assert!(errors > 90, "{errors}");
}

proptest! {
    #[test]
    fn the_index_parser_takes_any_bytes(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        points in 0..8u32,
        length in 0..1000u64,
    ) {
        let _ = (parse::index_bytes(&bytes), parse::Index::decode(&bytes, length));
        // With a right footer.
        let mut index: Vec<u8> = bytes.iter().copied().cycle().take(bytes.len().min(1) * (40 * points as usize + 48)).collect();
        index.extend(points.to_le_bytes());
        index.extend(farpage_sys::crc32c(&index).to_le_bytes());
        index.extend(b"FPGZIDX1");
        let _ = parse::Index::decode(&index, index.len() as u64 + length);
    }
}
