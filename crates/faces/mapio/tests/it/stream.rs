//! A stream does what the file and an offset would do.

use std::fs::{self, File};
use std::io::{BufRead, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;

use farpage_mapio::Stream;
use proptest::prelude::*;
use tempfile::TempDir;

/// Large enough to be mapped in several chunks.
const LARGE: usize = (9 << 20) + 123;

fn folder() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

/// Bytes of which many are zero, some whole pages of them.
fn contents(bytes: usize) -> Vec<u8> {
    let byte = |at: usize| match at >> 12 & 7 {
        3 => 0,
        _ => (at * 7 + (at >> 9)) as u8 & 0x3f,
    };
    (0..bytes).map(byte).collect()
}

fn large() -> (TempDir, std::path::PathBuf, Vec<u8>) {
    let folder = folder();
    let path = folder.path().join("large");
    let bytes = contents(LARGE);
    fs::write(&path, &bytes).unwrap();
    (folder, path, bytes)
}

#[test]
fn bytes_one_by_one_are_those_of_the_file() {
    let (_folder, path, bytes) = large();
    let mut stream = Stream::open(&path, "r").unwrap();
    for (at, &byte) in bytes.iter().enumerate() {
        assert_eq!(stream.read_byte().unwrap(), Some(byte), "at {at}");
    }
    assert_eq!(stream.read_byte().unwrap(), None);
    let mut file = File::options().append(true).open(&path).unwrap();
    file.write_all(b"more").unwrap();
    assert_eq!(stream.read_byte().unwrap(), Some(b'm'));
}

#[test]
fn lines_are_those_of_the_file() {
    let (_folder, path, bytes) = large();
    let mut stream = Stream::open(&path, "r").unwrap();
    for (at, line) in bytes.split_inclusive(|&byte| byte == b'\n').enumerate() {
        let mut seen = Vec::new();
        if at % 3 == 0 {
            assert_eq!(stream.read_byte().unwrap(), Some(line[0]));
            seen.push(line[0]);
        }
        if seen != b"\n" {
            stream.read_until(b'\n', &mut seen).unwrap();
        }
        assert_eq!(seen, line, "line {at}");
    }
}

#[test]
fn a_file_that_is_cut_off_ends_early_with_an_error() {
    for (read, cut) in [
        (3 << 20, 1 << 20),
        ((3 << 20) + 77, (3 << 20) + 80),
        (5 << 20, 0),
    ] {
        let (_folder, path, bytes) = large();
        let mut stream = Stream::open(&path, "r").unwrap();
        for byte in &bytes[..read] {
            assert_eq!(stream.read_byte().unwrap(), Some(*byte));
        }
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(cut as u64)
            .unwrap();
        let mut at = read;
        let error = loop {
            match stream.read_byte() {
                Ok(Some(byte)) => assert_eq!(byte, bytes[at]),
                Ok(None) => panic!("no error at {at}"),
                Err(error) => break error,
            }
            at += 1;
        };
        // What was copied before it was cut off still comes.
        let first = read.max(cut);
        assert!(
            (first..first + 1024).contains(&at),
            "{at} after {read} and {cut}"
        );
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert!(
            error
                .to_string()
                .starts_with(&format!("cannot read on at byte {at}: "))
        );
        assert_eq!(stream.read_byte().unwrap(), None);
    }
}

#[test]
fn the_descriptor_is_where_the_stream_is_when_that_ends() {
    let (_folder, path, bytes) = large();
    let file = File::open(&path).unwrap();
    let mode = farpage_mapio::Mode::parse("r").unwrap();
    let mut stream = Stream::from_file(file.try_clone().unwrap(), mode).unwrap();
    for byte in &bytes[..2 << 20] {
        assert_eq!(stream.read_byte().unwrap(), Some(*byte));
    }
    assert!((&file).stream_position().unwrap() > 2 << 20);
    stream.close().unwrap();
    assert_eq!((&file).stream_position().unwrap(), 2 << 20);
}

#[test]
fn pipes_are_read() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mode = farpage_mapio::Mode::parse("r").unwrap();
    let mut stream =
        Stream::from_file(File::from(std::os::fd::OwnedFd::from(reader)), mode).unwrap();
    writer.write_all(b"a\nb").unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert_eq!(
        (line.as_str(), stream.read_byte().unwrap()),
        ("a\n", Some(b'b'))
    );
    drop(writer);
    assert_eq!(stream.read_byte().unwrap(), None);
}

#[test]
fn what_was_read_ahead_of_a_socket_stays_when_it_is_written_to_or_cannot_seek() {
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mode = farpage_mapio::Mode::parse("r+").unwrap();
    let mut stream = Stream::from_file(File::from(std::os::fd::OwnedFd::from(ours)), mode).unwrap();
    theirs.write_all(b"a\nb\nc\nd").unwrap();
    let mut line = || {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(line(), "a\n");
    stream.write_all(b"x").unwrap();
    stream.flush().unwrap();
    let mut line = || {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(line(), "b\n");
    let large = vec![b'y'; 1 << 17];
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let mut got = vec![0; large.len() + 1];
            theirs.read_exact(&mut got).unwrap();
            got
        });
        stream.write_all(&large).unwrap();
        let got = reads.join().unwrap();
        assert!(got[0] == b'x' && got[1..] == large);
    });
    for to in [
        SeekFrom::Start(0),
        SeekFrom::Current(1 << 20),
        SeekFrom::End(0),
    ] {
        let error = stream.seek(to).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotSeekable, "{to:?}");
    }
    assert_eq!(stream.read_byte().unwrap(), Some(b'c'));
}

#[test]
fn offsets_that_no_file_has_are_refused() {
    let (_folder, path, bytes) = large();
    for used in [1, 2 << 20] {
        let mut stream = Stream::open(&path, "r").unwrap();
        for _ in 0..used {
            stream.read_byte().unwrap();
        }
        for offset in [u64::MAX, u64::MAX - 4096, 1 << 63] {
            let error = stream.seek(SeekFrom::Start(offset)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{offset}");
        }
        stream.seek(SeekFrom::Start(5)).unwrap();
        assert_eq!(stream.read_byte().unwrap(), Some(bytes[5]));
    }
}

/// Linux takes all locks that a process has of a file when it closes any descriptor of that file.
#[test]
fn a_map_leaves_the_locks_of_its_process() {
    let folder = folder();
    let path = folder.path().join("locked");
    let mut stream = Stream::open(&path, "w+").unwrap();
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::fcntl_lock(&stream, lock).unwrap();
    drop(stream.map(1 << 20).unwrap());
    let is_locked = std::process::Command::new("python3")
        .args([
            "-c",
            "import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print('locked')",
        ])
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(is_locked.stdout, b"locked\n", "{is_locked:?}");
}

#[test]
fn what_the_mode_forbids_is_refused() {
    let folder = folder();
    let path = folder.path().join("file");
    let mut stream = Stream::open(&path, "w").unwrap();
    let why = stream.read_byte().unwrap_err();
    assert_eq!(
        why.to_string(),
        "cannot read this stream: it was opened without r or +; open it again with it"
    );
    let again = Stream::open(&path, "wx").map(drop).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    let mut stream = Stream::open(&path, "r").unwrap();
    let why = stream.write(b"a").unwrap_err();
    assert_eq!(
        why.to_string(),
        "cannot write to this stream: it was opened without w, a or +; open it again with it"
    );
}

#[test]
fn a_map_grows_and_is_what_is_written_and_read() {
    let folder = folder();
    let path = folder.path().join("file");
    let mut stream = Stream::open(&path, "w+").unwrap();
    stream.write_all(b"abc").unwrap();
    let map = stream.map(10_000).unwrap();
    let mut seen = [1; 4];
    map.copy_to(0, &mut seen);
    assert_eq!((&seen, map.bytes()), (b"abc\0", 10_000));
    map.copy_from(9_998, b"yz");
    stream.write_all(b"d").unwrap();
    map.copy_to(0, &mut seen);
    assert_eq!(&seen, b"abcd");
    stream.seek(SeekFrom::End(-3)).unwrap();
    let mut end = Vec::new();
    stream.read_to_end(&mut end).unwrap();
    assert_eq!(end, b"\0yz");
    let why = stream.write(b"!").unwrap_err();
    assert!(
        why.to_string()
            .ends_with("of which 10000 are mapped: map more"),
        "{why}"
    );
    assert!(stream.seek(SeekFrom::Start(10_001)).is_err());
    assert_eq!(stream.map(20_000).unwrap().bytes(), 20_000);
    stream.write_all(b"!").unwrap();
    stream.close().unwrap();
    let bytes = fs::read(&path).unwrap();
    assert_eq!((bytes.len(), &bytes[9_998..10_001]), (20_000, &b"yz!"[..]));
}

#[test]
fn a_map_of_a_file_that_is_cut_off_is_zeros_and_says_so() {
    let (_folder, path, bytes) = large();
    let mut stream = Stream::open(&path, "r").unwrap();
    let map = stream.map(0).unwrap();
    assert_eq!(map.bytes(), LARGE);
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(5000)
        .unwrap();
    let mut seen = vec![1; LARGE];
    map.copy_to(0, &mut seen);
    assert!(map.is_lost() && seen[..5000] == bytes[..5000]);
    assert!(seen[5000..].iter().all(|&byte| byte == 0));
}

/// Once the buffer lay just behind the mapped part of a file, so that its first byte was taken for that part's end.
#[test]
fn a_stream_is_where_it_is_wherever_its_buffer_lies() {
    const CHUNK: u64 = 4 << 20;
    const ALIGNED_PAGES: usize = (2 << 20) / 4096;
    let folder = folder();
    let path = folder.path().join("zeros");
    File::create(&path).unwrap().set_len(CHUNK).unwrap();
    // What is mapped later lies a page lower each time.
    let pages = (0..ALIGNED_PAGES).map(|_| farpage_sys::mem::map_anonymous(4096).unwrap());
    for page in pages {
        let mut stream = Stream::open(&path, "r").unwrap();
        read_exactly(&mut stream, 600_000);
        assert_eq!(stream.read_byte().unwrap(), Some(0));
        for at in [1_000_000, 1_048_576] {
            assert_eq!(stream.seek(SeekFrom::Start(at)).unwrap(), at);
            assert_eq!(stream.stream_position().unwrap(), at, "{page:#x}");
        }
    }
}

#[derive(Clone, Debug)]
enum Call {
    Byte(usize),
    Read(usize),
    Line,
    Write(usize),
    Seek(SeekFrom),
    Flush,
    Position,
}

fn call() -> impl Strategy<Value = Call> {
    let near = -6000i64..6000;
    prop_oneof![
        3 => (1usize..3000).prop_map(Call::Byte),
        2 => (1_000_000usize..2_000_000).prop_map(Call::Byte),
        3 => (0usize..9000).prop_map(Call::Read),
        1 => (60_000usize..700_000).prop_map(Call::Read),
        2 => Just(Call::Line),
        2 => (0usize..100).prop_map(Call::Write),
        1 => (60_000usize..200_000).prop_map(Call::Write),
        2 => near.clone().prop_map(|by| Call::Seek(SeekFrom::Current(by))),
        1 => (0u64..5_000_000).prop_map(|at| Call::Seek(SeekFrom::Start(at))),
        1 => near.prop_map(|by| Call::Seek(SeekFrom::End(by))),
        1 => Just(Call::Flush),
        2 => Just(Call::Position),
    ]
}

/// A file and an offset.
struct Model {
    bytes: Vec<u8>,
    at: usize,
}

impl Model {
    fn read(&mut self, most: usize) -> Vec<u8> {
        let end = (self.at + most).min(self.bytes.len());
        let read = self.bytes.get(self.at..end).unwrap_or_default().to_vec();
        self.at += read.len();
        read
    }

    fn write(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            // Nothing is written, and a file does not grow by that.
            return;
        }
        let end = self.at + bytes.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[self.at..end].copy_from_slice(bytes);
        self.at = end;
    }

    fn line(&mut self) -> Vec<u8> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let end = rest.iter().position(|&byte| byte == b'\n');
        self.read(end.map_or(rest.len(), |at| at + 1))
    }

    fn seek(&mut self, to: SeekFrom) -> Option<u64> {
        let (from, by) = match to {
            SeekFrom::Start(at) => (0, at as i64),
            SeekFrom::Current(by) => (self.at as i64, by),
            SeekFrom::End(by) => (self.bytes.len() as i64, by),
        };
        self.at = usize::try_from(from + by).ok()?;
        Some(self.at as u64)
    }
}

fn read_exactly(stream: &mut Stream, bytes: usize) -> Vec<u8> {
    let mut seen = Vec::new();
    stream.take(bytes as u64).read_to_end(&mut seen).unwrap();
    seen
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_calls_do_what_an_offset_and_a_file_would_do(
        calls in prop::collection::vec(call(), 1..40),
        bytes in prop_oneof![0usize..9000, 2_000_000usize..6_000_000],
    ) {
        let folder = folder();
        let path = folder.path().join("file");
        let mut model = Model { bytes: contents(bytes), at: 0 };
        fs::write(&path, &model.bytes).unwrap();
        let mut stream = Stream::open(&path, "r+").unwrap();
        for call in calls {
            match call {
                Call::Byte(count) => for byte in model.read(count) {
                    prop_assert_eq!(stream.read_byte().unwrap(), Some(byte));
                },
                Call::Read(count) => {
                    prop_assert!(read_exactly(&mut stream, count) == model.read(count));
                }
                Call::Line => {
                    let mut line = Vec::new();
                    stream.read_until(b'\n', &mut line).unwrap();
                    prop_assert!(line == model.line());
                }
                Call::Write(count) => {
                    let new: Vec<u8> = (0..count).map(|at| at as u8).collect();
                    stream.write_all(&new).unwrap();
                    model.write(&new);
                }
                Call::Seek(to) => {
                    let before = model.at;
                    let seen = stream.seek(to).ok();
                    let right = model.seek(to);
                    prop_assert_eq!(seen, right);
                    if right.is_none() {
                        model.at = before;
                    }
                }
                Call::Flush => stream.flush().unwrap(),
                Call::Position => {
                    prop_assert_eq!(stream.stream_position().unwrap(), model.at as u64);
                }
            }
        }
        let offset = stream.as_fd().try_clone_to_owned().unwrap();
        stream.close().unwrap();
        prop_assert_eq!(File::from(offset).stream_position().unwrap(), model.at as u64);
        prop_assert!(fs::read(&path).unwrap() == model.bytes);
    }
}
