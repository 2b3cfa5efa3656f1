//! Local files as sources.

use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;

use farpage_object::{ObjectId, PageIndex, Pager};
use farpage_source::{Concat, FileSource, OpenMode, Options, Source, SourceError, SourcePager};
use farpage_sys::file::{Fd, cached_pages};
use tempfile::TempDir;

/// A file of `bytes` bytes, each a digest of its offset.
fn made(bytes: usize) -> (TempDir, PathBuf, Vec<u8>) {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("file");
    let contents: Vec<u8> = (0..bytes)
        .map(|i| ((i * 2_654_435_761) >> 7) as u8)
        .collect();
    fs::write(&path, &contents).unwrap();
    (folder, path, contents)
}

fn read(source: &FileSource, offset: u64, bytes: usize) -> Result<Vec<u8>, SourceError> {
    // One page more, so that a part of it is aligned as direct reads want it.
    let mut space = vec![0; bytes + 4096];
    let from = space.as_ptr().align_offset(4096);
    source.read_at(offset, &mut space[from..from + bytes])?;
    Ok(space[from..from + bytes].to_vec())
}

#[test]
fn any_range_reads_as_the_file_does_cached_or_not() {
    let (_folder, path, contents) = made(300_001);
    let file = fs::File::open(&path).unwrap();
    file.sync_all().unwrap();
    let source = FileSource::open(&path, OpenMode::Read, None).unwrap();
    for cold in [true, false] {
        if cold {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        for (offset, bytes) in [
            (0, 4096),
            (8192, 290_000),
            (5, 5),
            (299_000, 1001),
            (4096, 0),
        ] {
            let got = read(&source, offset, bytes).unwrap();
            assert_eq!(
                got,
                contents[offset as usize..][..bytes],
                "{offset} {bytes}"
            );
        }
    }
}

#[test]
fn what_is_read_and_written_does_not_stay_in_the_page_cache() {
    let (_folder, path, contents) = made(8 << 20);
    let file = fs::File::open(&path).unwrap();
    file.sync_all().unwrap();
    let cached = || cached_pages(Fd(file.as_raw_fd()), 0, 8 << 20).unwrap();
    assert_eq!(cached(), 2048, "a file that was just made is there");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert_eq!(cached(), 0);
    let source = FileSource::open(&path, OpenMode::Write, None).unwrap();
    for at in (0..8 << 20).step_by(1 << 20) {
        let mut space = vec![0; (256 << 10) + 4096];
        let from = space.as_ptr().align_offset(4096);
        let space = &mut space[from..from + (256 << 10)];
        source.read_at(at, space).unwrap();
        assert_eq!(*space, contents[at as usize..][..256 << 10]);
        space.reverse();
        source.write_at(at + (512 << 10), space).unwrap();
    }
    assert_eq!(cached(), 0);
    let mut reversed = contents[1 << 20..][..256 << 10].to_vec();
    reversed.reverse();
    assert_eq!(
        fs::read(&path).unwrap()[3 << 19..][..256 << 10],
        reversed[..]
    );
}

#[test]
fn a_page_is_quick_while_the_page_cache_has_it() {
    let (_folder, path, _) = made(300_001);
    let file = fs::File::open(&path).unwrap();
    file.sync_all().unwrap();
    let source = Arc::new(FileSource::open(&path, OpenMode::Read, None).unwrap());
    let parts: [Arc<dyn Source>; 2] = [source.clone(), source.clone()];
    let twice = Concat::new(parts.to_vec()).unwrap();
    let pager = SourcePager::new(source.clone(), &Options::default());
    for cached in [true, false] {
        if cached {
            let _ = fs::read(&path).unwrap();
        } else {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        for (offset, bytes) in [(0, 4096), (5000, 9000), (299_000, 1001)] {
            assert_eq!(source.is_in_memory(offset, bytes), cached, "{offset}");
            assert_eq!(twice.is_in_memory(1001 + offset, bytes), cached);
        }
        for page in [0, 73] {
            assert_eq!(pager.is_quick(ObjectId(1), PageIndex(page)), cached);
        }
        assert!(
            !pager.is_at_hand(ObjectId(1), PageIndex(0)),
            "a file is no memory"
        );
    }
}

#[test]
fn a_file_that_was_cut_is_short() {
    let (_folder, path, _) = made(100_000);
    let source = FileSource::open(&path, OpenMode::Read, None).unwrap();
    OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(50_000)
        .unwrap();
    let error = read(&source, 49_152, 4096).unwrap_err();
    assert!(
        matches!(error, SourceError::Short { end: 50_000, .. }),
        "{error}"
    );
}

#[test]
fn a_file_that_was_written_to_has_changed() {
    let (_folder, path, _) = made(100_000);
    let source = FileSource::open(&path, OpenMode::Read, None).unwrap();
    read(&source, 0, 4096).unwrap();
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    writer.write_all_at(b"other", 10).unwrap();
    writer
        .set_modified(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    let error = read(&source, 0, 4096).unwrap_err();
    assert!(matches!(error, SourceError::Changed { .. }), "{error}");
    assert!(error.to_string().contains("open it again"), "{error}");
}

#[test]
fn a_file_that_was_replaced_by_another_stays_readable() {
    let (folder, path, contents) = made(10_000);
    let source = FileSource::open(&path, OpenMode::Read, None).unwrap();
    let other = folder.path().join("other");
    fs::write(&other, [0; 10_000]).unwrap();
    fs::rename(&other, &path).unwrap();
    assert_eq!(read(&source, 0, 10_000).unwrap(), contents);
}

#[test]
fn a_new_file_has_its_size_and_takes_no_disk_until_it_is_written() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("new");
    let size = 1 << 30;
    let source = FileSource::open(&path, OpenMode::Create, Some(size)).unwrap();
    assert_eq!(read(&source, size - 4096, 4096).unwrap(), vec![0; 4096]);
    source.write_at(1 << 20, &[7; 8192]).unwrap();
    let mut mixed = vec![0; 3 * 4096];
    mixed[4096] = 1;
    source.write_at(2 << 20, &mixed).unwrap();
    source.sync().unwrap();
    assert_eq!(read(&source, 2 << 20, mixed.len()).unwrap(), mixed);
    let on_disk = fs::metadata(&path).unwrap().blocks() * 512;
    assert!(on_disk <= 3 * 4096, "{on_disk} bytes on disk");
    assert_eq!(fs::metadata(&path).unwrap().len(), size);
}

#[test]
fn zeros_over_data_are_read_as_zeros() {
    let (_folder, path, mut contents) = made(20_000);
    let source = FileSource::open(&path, OpenMode::Write, None).unwrap();
    source.write_at(4096, &[0; 4096]).unwrap();
    contents[4096..8192].fill(0);
    assert_eq!(read(&source, 0, 20_000).unwrap(), contents);
}

#[test]
fn a_file_opened_for_writing_grows_and_takes_no_byte_beyond() {
    let (_folder, path, _) = made(10_000);
    let source = FileSource::open(&path, OpenMode::Write, Some(50_000)).unwrap();
    assert_eq!(
        (source.size(), fs::metadata(&path).unwrap().len()),
        (50_000, 50_000)
    );
    assert!(source.write_at(49_999, &[1]).is_ok());
    assert!(matches!(
        source.write_at(49_999, &[1; 2]),
        Err(SourceError::Short { .. })
    ));
    let shorter = FileSource::open(&path, OpenMode::Write, Some(10)).unwrap();
    assert_eq!(shorter.size(), 50_000, "nothing is cut off");
}

#[test]
fn what_is_no_file_is_refused_with_a_reason() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let pipe = folder.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let text = |path, mode, size| match FileSource::open(path, mode, size) {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    };
    let cases = [
        (text(&pipe, OpenMode::Read, None), "it is a pipe"),
        (
            text(folder.path(), OpenMode::Read, None),
            "it is a directory",
        ),
        (
            text(&folder.path().join("none"), OpenMode::Read, None),
            "cannot find",
        ),
        (
            text(&folder.path().join("new"), OpenMode::Create, None),
            "needs a size",
        ),
    ];
    for (message, wanted) in cases {
        assert!(message.contains(wanted), "{message}");
    }
    let (_keep, path, _) = made(1);
    let source = FileSource::open(&path, OpenMode::Read, None).unwrap();
    assert!(matches!(
        source.write_at(0, &[1]),
        Err(SourceError::ReadOnly { .. })
    ));
}
