//! Copies of any bytes of a file, and the bytes themselves, in memory.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{Read, Write, pipe};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use farpage::{Error, Kept, MappedBytes, OpenOptions, SourceError};
use farpage::{map_fd, map_fd_shared, map_url, snapshot_of_fd};
use farpage_sys::{memory_file, process};
use farpage_testkit::server::{Server, Speed};
use tempfile::TempDir;

const PAGE: u64 = 4096;
/// Of which a lease is held.
const LARGE: u64 = (2 << 20) + 77;
/// What such a file has.
const FILE: u64 = LARGE + 3 * PAGE;
const SIGBUS: i32 = 7;

unsafe extern "C" {
    fn fork() -> i32;
    fn alarm(seconds: u32) -> u32;
}

fn contents(bytes: u64) -> Vec<u8> {
    let byte = |at: u64| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8;
    (0..bytes).map(byte).collect()
}

struct Case {
    folder: TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Case {
    fn new(bytes: u64) -> Self {
        Self::within("/var/tmp".as_ref(), bytes)
    }

    fn within(folder: &Path, bytes: u64) -> Self {
        let folder = tempfile::tempdir_in(folder).unwrap();
        let path = folder.path().join("file");
        let bytes = contents(bytes);
        fs::write(&path, &bytes).unwrap();
        Self {
            folder,
            path,
            bytes,
        }
    }

    fn read(&self) -> File {
        File::open(&self.path).unwrap()
    }

    fn write(&self) -> File {
        File::options()
            .read(true)
            .write(true)
            .open(&self.path)
            .unwrap()
    }

    fn part(&self, offset: u64, bytes: u64) -> &[u8] {
        &self.bytes[offset as usize..(offset + bytes) as usize]
    }
}

fn seen(mapped: &MappedBytes) -> &[u8] {
    // SAFETY: mapped as long as it is borrowed, and written by nobody meanwhile.
    unsafe { std::slice::from_raw_parts(mapped.as_ptr(), mapped.bytes()) }
}

fn put(mapped: &MappedBytes, at: usize, byte: u8) {
    assert!(at < mapped.bytes());
    // SAFETY: inside the mapping, of which there is no reference.
    unsafe { mapped.as_ptr().add(at).write_volatile(byte) };
}

fn sealed(name: &CStr, bytes: &[u8]) -> OwnedFd {
    let mut draft = memory_file::Draft::create(name, bytes.len()).unwrap();
    draft.copy_from_slice(bytes);
    draft.seal().unwrap()
}

/// An address where nothing lies: Linux gives none there of its own choice.
fn free_place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
    NEXT.fetch_add(64 << 20, Ordering::Relaxed)
}

#[test]
fn every_offset_and_length_has_the_bytes_that_pread_reads() {
    let case = Case::new(4 * PAGE);
    let (file, sealed) = (case.read(), sealed(c"sealed", &case.bytes));
    for offset in 0..PAGE {
        for bytes in [1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 1717] {
            let wanted = case.part(offset, bytes);
            let ways: [(BorrowedFd<'_>, Kept); 2] = [
                (file.as_fd(), Kept::Copied),
                (sealed.as_fd(), Kept::Unchanging),
            ];
            for (fd, kept) in ways {
                let mapped = map_fd(fd, offset, bytes, None).unwrap();
                assert_eq!(mapped.kept(), kept);
                assert!(seen(&mapped) == wanted, "{offset} {bytes} {kept:?}");
            }
        }
        let shared = map_fd_shared(file.as_fd(), offset, PAGE, None).unwrap();
        assert!(seen(&shared) == case.part(offset, PAGE), "{offset} shared");
    }
}

#[test]
fn large_ranges_come_when_they_are_touched() {
    farpage_testkit::in_own_process!();
    let case = Case::new(FILE);
    for offset in [0, 1, 511, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE] {
        let mapped = map_fd(case.read().as_fd(), offset, LARGE, None).unwrap();
        assert_eq!(mapped.kept(), Kept::Leased);
        assert!(seen(&mapped) == case.part(offset, LARGE), "{offset}");
    }
}

/// What a writer does to the file.
const CHANGES: [fn(&Case); 4] = [
    |case| {
        case.write()
            .write_all_at(&vec![0xEE; FILE as usize], 0)
            .unwrap()
    },
    |case| case.write().set_len(0).unwrap(),
    |case| case.write().set_len(2 * FILE).unwrap(),
    |case| fs::write(&case.path, b"other").unwrap(),
];

#[test]
fn a_copy_stays_as_it_was_whatever_others_do_to_the_file() {
    farpage_testkit::in_own_process!();
    for change in CHANGES {
        for (offset, bytes) in [(4095, LARGE), (3, 9000)] {
            let case = Case::new(FILE);
            let mapped = map_fd(case.read().as_fd(), offset, bytes, None).unwrap();
            let mut wanted = case.part(offset, bytes).to_vec();
            // Some is there already, some was written to, most was never touched.
            assert_eq!(seen(&mapped)[8000], wanted[8000]);
            put(&mapped, 5000, 1);
            wanted[5000] = 1;
            change(&case);
            assert!(seen(&mapped) == wanted, "{offset} {bytes}");
            // Once it is moved away nobody is held up any more, and it is still the same.
            case.write().write_all_at(b"again", 0).unwrap();
            assert!(seen(&mapped) == wanted, "{offset} {bytes}");
        }
    }
}

#[test]
fn what_is_written_to_a_copy_does_not_reach_the_file() {
    farpage_testkit::in_own_process!();
    let case = Case::new(FILE);
    let fds = [OwnedFd::from(case.read()), sealed(c"sealed", &case.bytes)];
    for fd in &fds {
        for bytes in [100, LARGE] {
            let (one, other) = (
                map_fd(fd.as_fd(), 17, bytes, None).unwrap(),
                map_fd(fd.as_fd(), 17, bytes, None).unwrap(),
            );
            assert!(one.is_writable());
            put(&one, 50, !case.bytes[67]);
            assert_eq!(seen(&one)[50], !case.bytes[67]);
            assert_eq!(seen(&other)[50], case.bytes[67]);
        }
    }
    drop(fds);
    assert!(fs::read(&case.path).unwrap() == case.bytes);
}

#[test]
fn a_file_that_is_open_for_writing_is_copied_at_once() {
    farpage_testkit::in_own_process!();
    let case = Case::new(FILE);
    let writer = case.write();
    let mapped = map_fd(case.read().as_fd(), 5, LARGE, None).unwrap();
    assert_eq!(mapped.kept(), Kept::Copied);
    writer.write_all_at(&vec![0; FILE as usize], 0).unwrap();
    writer.set_len(10).unwrap();
    assert!(seen(&mapped) == case.part(5, LARGE));
    // More goes to a file.
    let bytes = 65 << 20;
    writer.set_len(bytes + 1).unwrap();
    writer.write_all_at(b"end", bytes - 2).unwrap();
    let mapped = map_fd(writer.as_fd(), 1, bytes, None).unwrap();
    assert_eq!(mapped.kept(), Kept::Copied);
    writer.set_len(0).unwrap();
    put(&mapped, 0, 9);
    let seen = seen(&mapped);
    assert_eq!((seen[0], &seen[bytes as usize - 3..]), (9, &b"end"[..]));
}

#[test]
fn a_shared_mapping_is_the_file() {
    let case = Case::new(4 * PAGE);
    let file = case.write();
    let mapped = map_fd_shared(file.as_fd(), 4099, 5000, None).unwrap();
    assert_eq!((mapped.kept(), mapped.is_writable()), (Kept::Shared, true));
    put(&mapped, 4999, 0xAB);
    file.write_all_at(&[0xCD], 4099).unwrap();
    assert_eq!(seen(&mapped)[0], 0xCD);
    assert_eq!(fs::read(&case.path).unwrap()[4099 + 4999], 0xAB);
    let reads = map_fd_shared(case.read().as_fd(), 4099, 5000, None).unwrap();
    assert!(!reads.is_writable());
    assert!(seen(&reads) == seen(&mapped));
}

#[test]
fn bytes_lie_where_they_are_wanted_and_take_nobodys_place() {
    farpage_testkit::in_own_process!();
    let case = Case::new(FILE);
    let sealed = sealed(c"sealed", &case.bytes);
    let file = case.read();
    for offset in [0, 1, 4095, 4096] {
        for (fd, bytes) in [
            (file.as_fd(), 9000),
            (sealed.as_fd(), 9000),
            (file.as_fd(), LARGE),
        ] {
            let at = free_place();
            let mapped = map_fd(fd, offset, bytes, Some(at)).unwrap();
            assert_eq!(mapped.as_ptr().addr(), at);
            assert!(
                seen(&mapped) == case.part(offset, bytes),
                "{offset} {bytes}"
            );
            let again = map_fd(fd, offset, bytes, Some(at))
                .err()
                .unwrap()
                .to_string();
            assert!(
                again.contains("lies at") && again.contains("let Linux"),
                "{again}"
            );
            assert!(
                seen(&mapped) == case.part(offset, bytes),
                "{offset} {bytes}"
            );
        }
    }
    let at = free_place();
    let shared = map_fd_shared(file.as_fd(), PAGE, 100, Some(at)).unwrap();
    assert_eq!(shared.as_ptr().addr(), at);
    let odd = map_fd_shared(file.as_fd(), 5, 100, Some(free_place()));
    assert!(odd.err().unwrap().to_string().contains("begins no page"));
}

fn refused(fd: BorrowedFd<'_>, (offset, bytes): (u64, u64), at: Option<usize>) -> [String; 2] {
    let text = |mapped: Result<MappedBytes, Error>| mapped.err().unwrap().to_string();
    [
        text(map_fd(fd, offset, bytes, at)),
        text(map_fd_shared(fd, offset, bytes, at)),
    ]
}

#[test]
fn what_cannot_be_mapped_is_refused_with_a_reason_and_a_way_out() {
    let case = Case::new(100);
    let file = case.read();
    let folder = File::open(case.folder.path()).unwrap();
    let (reader, _writer) = pipe().unwrap();
    let null = File::open("/dev/null").unwrap();
    let only = File::options().write(true).open(&case.path).unwrap();
    for (fd, range, at, words) in [
        (
            file.as_fd(),
            (90, 11),
            None,
            "bytes 90 to 101 are not inside",
        ),
        (file.as_fd(), (u64::MAX, 2), None, "are not inside"),
        (file.as_fd(), (0, u64::MAX), None, "are not inside"),
        (file.as_fd(), (0, 0), None, "ask for one at least"),
        (
            file.as_fd(),
            (0, 1),
            Some(0x1234_5678),
            "give a multiple of 4096",
        ),
        (file.as_fd(), (0, 1), Some(0), "let Linux find"),
        (folder.as_fd(), (0, 1), None, "it is a directory"),
        (reader.as_fd(), (0, 1), None, "it is a pipe"),
        (null.as_fd(), (0, 1), None, "or a device"),
        (only.as_fd(), (0, 1), None, "open the file for reading too"),
    ] {
        for text in refused(fd, range, at) {
            assert!(text.contains(words) && text.contains(';'), "{text}");
        }
    }
    let options = OpenOptions::default();
    let missing = case.folder.path().join("missing");
    let missing = map_url(missing.to_str().unwrap(), 0, None, None, &options);
    assert!(matches!(
        missing.err(),
        Some(Error::Source(SourceError::NotFound { .. }))
    ));
    let path = case.path.to_str().unwrap();
    let beyond = map_url(path, 100, None, None, &options).err().unwrap();
    assert!(beyond.to_string().contains("has 100"), "{beyond}");
}

#[test]
fn addresses_are_mapped_from_any_byte_on() {
    farpage_testkit::in_own_process!();
    let case = Case::new(FILE);
    let server = Server::start(case.folder.path(), Speed::default()).unwrap();
    let url = server.url("/file");
    let options = OpenOptions::default();
    for (address, kept) in [
        (url.as_str(), Kept::Fetched),
        (case.path.to_str().unwrap(), Kept::Leased),
    ] {
        let mapped = map_url(address, 4097, Some(LARGE), None, &options).unwrap();
        assert_eq!(mapped.kept(), kept);
        assert!(seen(&mapped) == case.part(4097, LARGE));
        let at = free_place();
        let rest = map_url(address, 1, None, Some(at), &options).unwrap();
        assert_eq!((rest.bytes() as u64, rest.as_ptr().addr()), (FILE - 1, at));
        put(&rest, 7, !case.bytes[8]);
        assert!(seen(&rest)[8..] == case.bytes[9..]);
        let beyond = map_url(address, FILE, Some(1), None, &options)
            .err()
            .unwrap();
        assert!(beyond.to_string().contains("not inside"), "{beyond}");
    }
    assert!(fs::read(&case.path).unwrap() == case.bytes);
}

#[test]
fn what_is_to_be_read_stays_as_it_was_too() {
    farpage_testkit::in_own_process!();
    let case = Case::new(FILE);
    let sealed = sealed(c"sealed", &case.bytes);
    let (file, writer) = (case.read(), case.write());
    let copied = snapshot_of_fd(file.as_fd(), 9, LARGE).unwrap();
    drop(writer);
    let leased = snapshot_of_fd(file.as_fd(), 9, LARGE).unwrap();
    let sealed = snapshot_of_fd(sealed.as_fd(), 9, LARGE).unwrap();
    case.write().set_len(0).unwrap();
    for source in [copied, leased, sealed] {
        let mut bytes = vec![0; LARGE as usize];
        source.read_at(0, &mut bytes).unwrap();
        assert!(bytes == case.part(9, LARGE));
        assert!(source.read_at(LARGE, &mut [0]).is_err());
    }
}

/// Runs `body` in a child, which exits with 0 when it returns and with 1 when it panics.
fn child(body: impl FnOnce()) -> u32 {
    // SAFETY: the child runs `body` alone, and exits.
    match unsafe { fork() } {
        -1 => panic!("cannot fork"),
        0 => {
            // SAFETY: takes no pointer.
            unsafe { alarm(120) };
            let done = catch_unwind(AssertUnwindSafe(body));
            process::exit(u32::from(done.is_err()))
        }
        id => id as u32,
    }
}

#[test]
fn a_child_of_fork_keeps_its_copy_by_itself() {
    farpage_testkit::in_own_process!();
    for bytes in [9000, LARGE] {
        let case = Case::new(FILE);
        let mapped = map_fd(case.read().as_fd(), 4095, bytes, None).unwrap();
        put(&mapped, 100, 7);
        let mut wanted = case.part(4095, bytes).to_vec();
        wanted[100] = 7;
        let ((mut at_work, mut tell), (mut go_on, mut let_go)) = (pipe().unwrap(), pipe().unwrap());
        let id = child(|| {
            put(&mapped, 101, 8);
            tell.write_all(b"x").unwrap();
            go_on.read_exact(&mut [0]).unwrap();
            let mut wanted = wanted.clone();
            wanted[101] = 8;
            assert!(seen(&mapped) == wanted, "of the child");
        });
        at_work.read_exact(&mut [0]).unwrap();
        // The parent's goes away, and the child alone holds up who writes.
        assert!(seen(&mapped) == wanted, "of the parent");
        drop(mapped);
        case.write()
            .write_all_at(&vec![0; FILE as usize], 0)
            .unwrap();
        let_go.write_all(b"x").unwrap();
        assert_eq!(process::wait(id).unwrap(), 0, "the child of {bytes}");
    }
}

#[test]
fn what_cannot_be_kept_is_a_signal_and_no_other_bytes() {
    farpage_testkit::in_own_process!();
    let case = Case::new(FILE);
    let id = child(|| {
        let mapped = map_fd(case.read().as_fd(), 0, LARGE, None).unwrap();
        // SAFETY: no other thread of this process reads its environment.
        unsafe { std::env::set_var("TMPDIR", "/no/such/folder") };
        case.write().write_all_at(&[1], LARGE - 1).unwrap();
        let last = seen(&mapped)[LARGE as usize - 1];
        process::exit(u32::from(last) + 100);
    });
    assert_eq!(process::wait(id).unwrap() & 0x7F, SIGBUS);
}

/// Where the test below finds a file system that makes clones.
const CLONING: &str = "FARPAGE_TEST_CLONING";

#[test]
fn a_file_is_cloned_where_its_file_system_can() {
    if let Some(folder) = std::env::var_os(CLONING) {
        return is_cloned_in(folder.as_ref());
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let (image, place) = (folder.path().join("image"), folder.path().join("place"));
    fs::create_dir(&place).unwrap();
    File::create(&image).unwrap().set_len(400 << 20).unwrap();
    // The mount is gone with the processes that see it.
    let script = "mkfs.xfs -q \"$1\" && mount -o loop \"$1\" \"$2\" || exit 77; exec \"$3\" --exact \
                  --nocapture map_fd::a_file_is_cloned_where_its_file_system_can";
    let mut run = Command::new("unshare");
    run.args(["--mount", "sh", "-c", script, "sh"]);
    run.args([&image, &place, &std::env::current_exe().unwrap()]);
    let done = run.env(CLONING, &place).output();
    match done {
        Ok(done) if done.status.success() => {}
        Ok(done) if done.status.code() != Some(77) && process_is_root() => {
            panic!("{}", String::from_utf8_lossy(&done.stderr))
        }
        _ => println!("skipped: XFS cannot be mounted here"),
    }
}

fn process_is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

fn is_cloned_in(folder: &Path) {
    let case = Case::within(folder, FILE);
    let writer = case.write();
    for offset in [0, 1, 4095] {
        let mapped = map_fd(writer.as_fd(), offset, LARGE, None).unwrap();
        assert_eq!(mapped.kept(), Kept::Unchanging);
        writer.write_all_at(&vec![0; FILE as usize], 0).unwrap();
        writer.set_len(1).unwrap();
        put(&mapped, 0, 9);
        assert!(
            seen(&mapped)[1..] == case.part(offset, LARGE)[1..],
            "{offset}"
        );
        fs::write(&case.path, &case.bytes).unwrap();
        let placed = map_fd(writer.as_fd(), offset, LARGE, Some(free_place())).unwrap();
        assert!(seen(&placed) == case.part(offset, LARGE), "{offset}");
    }
    let named = fs::read_dir(case.folder.path()).unwrap().count();
    assert_eq!(named, 1, "clones have no names");
}
