//! Local files that are only read: Linux's own pages are mapped as long as nobody may write to the
//! file.

#![allow(unsafe_code)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use farpage::{Error, Hold, Memory, OnFailure, OpenOptions, Place, Places, SourceError, lock_area};
use farpage_sys::file::Fd;
use farpage_testkit::until;
use tempfile::TempDir;

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// The number at the beginning of each page.
fn number(page: usize) -> u64 {
    (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Where the tests of this file are to be made, other than usual.
const WITHIN: &str = "FARPAGE_TEST_WITHIN";

fn folder() -> TempDir {
    let within = std::env::var_os(WITHIN);
    tempfile::tempdir_in(within.as_deref().unwrap_or("/var/tmp".as_ref())).unwrap()
}

fn file(folder: &TempDir, bytes: usize) -> PathBuf {
    let path = folder.path().join("numbers");
    let mut contents = vec![0; bytes];
    for (page, at) in (0..bytes - 8).step_by(PAGE).enumerate() {
        contents[at..at + 8].copy_from_slice(&number(page).to_le_bytes());
    }
    fs::write(&path, contents).unwrap();
    path
}

fn opened(path: &Path, options: &OpenOptions) -> Memory {
    Memory::open(path.to_str().unwrap(), options).unwrap()
}

fn open(path: &Path) -> Memory {
    opened(path, &OpenOptions::default())
}

fn get(memory: &Memory, page: usize) -> u64 {
    assert!(((page + 1) * PAGE) as u64 <= memory.size());
    // SAFETY: inside the mapping.
    unsafe {
        memory
            .as_ptr()
            .add(page * PAGE)
            .cast::<u64>()
            .read_volatile()
    }
}

fn check(memory: &Memory) {
    for page in 0..memory.size() as usize / PAGE {
        assert_eq!(get(memory, page), number(page), "page {page}");
    }
}

/// Whether this process sees the file itself at the memory's place.
fn is_covered(memory: &Memory) -> bool {
    let start = format!("{:x}-", memory.as_ptr() as usize);
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.starts_with(&start));
    line.is_some_and(|line| line.ends_with("/numbers"))
}

/// Where this process sees the file itself in the memory's place: addresses.
fn covered(memory: &Memory) -> Vec<std::ops::Range<usize>> {
    let start = memory.as_ptr() as usize;
    let all = start..start + memory.size() as usize;
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let lines = maps.lines().filter(|line| line.ends_with("/numbers"));
    let ranges = lines.filter_map(|line| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        let [from, to] = [from, to].map(|hex| usize::from_str_radix(hex, 16).unwrap());
        all.contains(&from).then_some(from..to)
    });
    ranges.collect()
}

fn covered_bytes(memory: &Memory) -> usize {
    covered(memory).iter().map(|range| range.len()).sum()
}

fn with_ram(mib: usize) -> OpenOptions {
    OpenOptions {
        ram: Some((mib * MIB) as u64),
        ..OpenOptions::default()
    }
}

/// Opens it for writing, which waits until the memory has let go of it.
fn to_write(path: &Path) -> File {
    File::options().write(true).open(path).unwrap()
}

#[test]
fn a_file_that_is_only_read_is_what_linux_has_of_it() {
    let folder = folder();
    let path = file(&folder, 8 * MIB + 100);
    let memory = open(&path);
    assert!(is_covered(&memory));
    // Linux may take some of it away at any time.
    until("all of it is there", || {
        check(&memory);
        let residency = memory.residency();
        memory.stats().resident_bytes == memory.size()
            && residency.len() == 1
            && residency[0] == (0..memory.size())
    });
    let stats = memory.stats();
    assert_eq!((stats.reads, stats.read_bytes), (0, 0), "Linux reads it");
    let parts = Places(vec![Place {
        offset: Some(4 * PAGE as u64),
        size: Some(3 * PAGE as u64),
        ..path.to_str().unwrap().into()
    }]);
    let part = Memory::open(parts, &OpenOptions::default()).unwrap();
    assert!(is_covered(&part));
    assert_eq!(get(&part, 2), number(6));
}

#[test]
fn bytes_come_and_go_as_they_are_told() {
    let folder = folder();
    let path = file(&folder, 32 * MIB);
    File::open(&path).unwrap().sync_all().unwrap();
    let memory = open(&path);
    // Linux keeps what somebody holds just then.
    until("nothing of it is there", || {
        memory.discard(0..memory.size()).unwrap();
        memory.stats().resident_bytes == 0
    });
    let range = 5 * MIB as u64 + 10..21 * MIB as u64;
    until("what was asked for is there", || {
        let mut told = Vec::new();
        let came = memory.prefetch(range.clone(), |bytes| told.push(bytes));
        assert_eq!(came.unwrap(), range.end - range.start);
        assert!(told.len() > 1 && told.is_sorted(), "{told:?}");
        let residency = memory.residency();
        residency
            .first()
            .is_some_and(|run| run.start <= range.start && run.end >= range.end)
    });
    assert!(memory.stats().resident_bytes < memory.size());
    check(&memory);
}

#[test]
fn who_wants_to_write_waits_until_pages_are_read_when_they_are_touched() {
    let folder = folder();
    let path = file(&folder, 4 * MIB);
    let memory = open(&path);
    assert_eq!(get(&memory, 3), number(3));
    let writer = to_write(&path);
    assert!(!is_covered(&memory), "nobody may write to what is mapped");
    assert_eq!((get(&memory, 3), get(&memory, 4)), (number(3), number(4)));
    assert!(memory.stats().reads > 0);
    // What came stays as it was; what did not is of another version.
    writer.write_all_at(&[7; 20 * PAGE], 0).unwrap();
    assert_eq!((get(&memory, 3), get(&memory, 4)), (number(3), number(4)));
    match memory.prefetch(2 * MIB as u64..3 * MIB as u64, |_| ()) {
        Err(Error::NotRead {
            why: SourceError::Changed { .. },
        }) => {}
        other => panic!("{other:?}"),
    }
    // Opened anew it is not covered before the writer is gone.
    let again = open(&path);
    assert!(!is_covered(&again) && get(&again, 0) == u64::from_le_bytes([7; 8]));
    drop((writer, again));
    assert!(is_covered(&open(&path)));
}

#[test]
fn of_a_file_that_is_cut_off_no_byte_is_made_up() {
    let folder = folder();
    let path = file(&folder, 4 * MIB);
    let memory = open(&path);
    assert_eq!(get(&memory, 700), number(700));
    let cut = ["-c", "import os, sys; os.truncate(sys.argv[1], 1 << 20)"];
    let cut = Command::new("python3").args(cut).arg(&path).status();
    assert!(cut.unwrap().success() && !is_covered(&memory));
    match memory.prefetch(2 * MIB as u64..3 * MIB as u64, |_| ()) {
        Err(Error::NotRead {
            why: SourceError::Short { end, .. },
        }) => assert_eq!(end, MIB as u64),
        other => panic!("{other:?}"),
    }
    let options = OpenOptions {
        on_failure: OnFailure::Zero,
        ..OpenOptions::default()
    };
    let zeros = opened(&file(&folder, 4 * MIB), &options);
    assert!(!is_covered(&zeros), "its pager answers for what is missing");
    to_write(&path).set_len(MIB as u64).unwrap();
    assert_eq!(get(&zeros, 700), 0);
}

#[test]
fn files_in_the_layers_of_a_container_are_covered_as_well() {
    if let Some(layers) = std::env::var_os(WITHIN) {
        return is_covered_in(Path::new(&layers));
    }
    let folder = folder();
    let lower = tempfile::tempdir_in(&folder).unwrap();
    file(&lower, 4 * MIB);
    // The mounts are gone with the processes that see them.
    let script = "mount -t tmpfs farpage-test \"$1\" && cd \"$1\" && mkdir upper work merged && \
                  mount -t overlay -o lowerdir=\"$2\",upperdir=upper,workdir=work farpage-test merged \
                  || exit 77; export FARPAGE_TEST_WITHIN=\"$1\"/merged; shift 2; exec \"$@\"";
    let place = folder.path().join("place");
    fs::create_dir(&place).unwrap();
    let mut run = Command::new("unshare");
    run.args(["--mount", "sh", "-c", script, "sh"]);
    run.arg(&place).arg(lower.path());
    run.arg(std::env::current_exe().unwrap());
    run.args(["--exact", "--nocapture", "--test-threads", "1"]);
    let done = run
        .args(IN_LAYERS.map(|name| format!("cover::{name}")))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    if !rustix::process::geteuid().is_root() && !done.status.success() {
        return println!("skipped: only root mounts file systems");
    }
    let all = format!("{} passed", IN_LAYERS.len());
    let why = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains(&all), "{said}{why}");
}

/// Those of this file that are run there.
const IN_LAYERS: [&str; 6] = [
    "a_file_that_is_only_read_is_what_linux_has_of_it",
    "who_wants_to_write_waits_until_pages_are_read_when_they_are_touched",
    "of_a_file_that_is_cut_off_no_byte_is_made_up",
    "the_same_where_only_windows_are_covered",
    "a_child_of_fork_has_the_file_and_lets_go_of_it_by_itself",
    "files_in_the_layers_of_a_container_are_covered_as_well",
];

/// A file of the lower layer, of which writing makes another one in the upper.
fn is_covered_in(layers: &Path) {
    let path = layers.join("numbers");
    let memory = open(&path);
    assert!(is_covered(&memory));
    check(&memory);
    let writer = to_write(&path);
    assert!(!is_covered(&memory));
    for _ in 0..2 {
        assert_eq!(get(&memory, 3), number(3));
        writer.write_all_at(&[7; 20 * PAGE], 0).unwrap();
    }
    drop(writer);
    let again = open(&path);
    assert!(is_covered(&again));
    assert_eq!(
        (get(&again, 3), get(&again, 20)),
        (u64::from_le_bytes([7; 8]), number(20))
    );
}

#[test]
fn threads_that_read_while_others_begin_to_write_see_every_page_as_it_was() {
    read_while_others_begin_to_write(2 * MIB, &OpenOptions::default());
}

#[test]
fn the_same_where_only_windows_are_covered() {
    read_while_others_begin_to_write(16 * MIB, &with_ram(8));
}

/// Readers end when this goes, also when a test fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn read_while_others_begin_to_write(bytes: usize, options: &OpenOptions) {
    let folder = folder();
    let path = file(&folder, bytes);
    for round in 0..40 {
        let memory = opened(&path, options);
        let (done, begun) = (AtomicBool::new(false), Barrier::new(4));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    begun.wait();
                    while !done.load(Ordering::Relaxed) {
                        check(&memory);
                    }
                });
            }
            let _done = Done(&done);
            begun.wait();
            if round % 2 == 0 {
                thread::yield_now();
            }
            drop(to_write(&path));
            assert_eq!(covered_bytes(&memory), 0);
            check(&memory);
        });
        assert!(memory.stats().resident_bytes > 0);
    }
}

#[test]
fn what_only_a_pager_can_do_is_left_to_one() {
    let folder = folder();
    let path = file(&folder, 12 * MIB);
    let pinned = open(&path);
    assert!(is_covered(&pinned));
    pinned.pin(0..MIB as u64).unwrap();
    assert!(!is_covered(&pinned));
    let recorded = open(&path);
    recorded.record(&folder.path().join("trace")).unwrap();
    assert!(!is_covered(&recorded));
    check(&recorded);
    let pipe = folder.path().join("empty");
    fs::write(&pipe, "").unwrap();
    assert_eq!(open(&pipe).size(), 0);
}

#[test]
fn of_a_file_larger_than_its_budget_what_is_read_in_order_is_what_linux_has_of_it() {
    let folder = folder();
    let path = file(&folder, 64 * MIB);
    File::open(&path).unwrap().sync_all().unwrap();
    let memory = opened(&path, &with_ram(8));
    assert_eq!(covered_bytes(&memory), 0, "nothing is read yet");
    let pages = memory.size() as usize / PAGE;
    let fits = || {
        let stats = memory.stats();
        assert!(covered_bytes(&memory) <= 8 * MIB);
        assert!(stats.resident_bytes <= 8 << 20, "{stats:?}");
        let residency = memory.residency();
        assert!(
            residency.is_sorted_by(|a, b| a.end <= b.start),
            "{residency:?}"
        );
        let bytes: u64 = residency.iter().map(|run| run.end - run.start).sum();
        assert!(bytes <= 8 << 20, "{residency:?}");
    };
    let paged = || memory.stats().read_bytes as usize;
    for _ in 0..2 {
        let before = paged();
        for page in 0..pages {
            assert_eq!(get(&memory, page), number(page));
            if page % 1000 == 0 {
                fits();
            }
        }
        assert!(covered_bytes(&memory) > 4 * MIB);
        assert!(
            paged() - before < 2 * MIB,
            "the beginning of the run: {}, {:?}",
            paged() - before,
            memory.stats()
        );
    }
    let before = paged();
    for page in (0..pages).rev() {
        assert_eq!(get(&memory, page), number(page));
    }
    fits();
    assert!(
        paged() - before < 8 * MIB,
        "backwards: {}",
        paged() - before
    );
    // Pages here and there are read alone, between windows.
    let mut at = 1usize;
    for _ in 0..4000 {
        at = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at >> 29;
        assert_eq!(get(&memory, at % pages), number(at % pages));
    }
    fits();
    check(&memory);
    memory.discard(0..memory.size()).unwrap();
    assert_eq!(
        (covered_bytes(&memory), memory.stats().resident_bytes),
        (0, 0)
    );
    check(&memory);
    let part = 10 * MIB as u64..12 * MIB as u64;
    assert_eq!(memory.prefetch(part, |_| ()).unwrap(), 2 << 20);
    memory.pin(20 * MIB as u64..21 * MIB as u64).unwrap();
    assert_eq!(covered_bytes(&memory), 0);
    check(&memory);
    fits();
}

#[test]
fn for_pieces_here_and_there_linux_reads_little_in_vain() {
    use std::os::fd::AsRawFd;
    let folder = folder();
    let path = file(&folder, 64 * MIB);
    let read = File::open(&path).unwrap();
    read.sync_all().unwrap();
    let fd = Fd(read.as_raw_fd());
    farpage_sys::file::forget_cached(fd, 0, 0);
    let cached = || {
        let pages = farpage_sys::file::cached_pages(fd, 0, (64 * MIB) as u64);
        pages.unwrap() as usize * PAGE
    };
    assert!(cached() < MIB);
    let memory = opened(&path, &with_ram(16));
    for piece in 0..8 {
        let first = (piece * 8 + 3) * MIB / PAGE;
        for page in first..first + 256 * 1024 / PAGE {
            assert_eq!(get(&memory, page), number(page));
        }
    }
    assert!(covered_bytes(&memory) > 0);
    let brought = cached() + memory.stats().read_bytes as usize;
    // A plain mapping has Linux read the whole file, where 8 MiB are its read-ahead.
    assert!(brought <= 6 * MIB, "{brought} bytes for 2 MiB");
}

#[test]
fn what_is_locked_stays() {
    let folder = folder();
    let path = file(&folder, 32 * MIB);
    let memory = opened(&path, &with_ram(8));
    check(&memory);
    let locked = covered(&memory)[0].start + 7 * PAGE;
    unsafe extern "C" {
        fn mlock(at: usize, bytes: usize) -> i32;
    }
    // SAFETY: changes no contents.
    assert_eq!(unsafe { mlock(locked, PAGE) }, 0);
    for _ in 0..2 {
        check(&memory);
        assert!(covered(&memory).iter().any(|range| range.contains(&locked)));
        assert!(memory.stats().resident_bytes <= 8 << 20);
    }
    // Areas hold the memory's own pages: others may write to the file.
    for memory in [&memory, &open(&path)] {
        let at = memory.as_ptr() as usize;
        let area = lock_area(at, 2 * PAGE, Hold::Resident).unwrap();
        assert_eq!(covered_bytes(memory), 0);
        drop(to_write(&path));
        assert!(area.check().is_ok());
        assert_eq!(get(memory, 1), number(1));
    }
}

#[test]
fn readers_of_several_places_share_a_budget() {
    let folder = folder();
    let path = file(&folder, 64 * MIB);
    let memory = opened(&path, &with_ram(16));
    let random = opened(&path, &with_ram(4));
    thread::scope(|scope| {
        for part in 0..4 {
            let (memory, random) = (&memory, &random);
            scope.spawn(move || {
                let pages = memory.size() as usize / PAGE;
                let first = pages / 4 * part;
                for page in (first..pages).chain(0..first) {
                    assert_eq!(get(memory, page), number(page));
                    if page % 64 == part {
                        let other = page * 7919 % pages;
                        assert_eq!(get(random, other), number(other));
                    }
                }
            });
        }
    });
    assert!(memory.stats().resident_bytes <= 16 << 20);
    let covered = covered_bytes(&memory);
    assert!(covered > 4 * MIB, "{covered}, {:?}", memory.stats());
}

#[test]
fn a_child_of_fork_has_the_file_and_lets_go_of_it_by_itself() {
    farpage_testkit::in_own_process!();
    fork_and_let_go(&OpenOptions::default());
}

#[test]
fn so_has_one_of_windows_of_it() {
    farpage_testkit::in_own_process!();
    fork_and_let_go(&with_ram(4));
}

fn fork_and_let_go(options: &OpenOptions) {
    let folder = folder();
    let path = file(&folder, 8 * MIB);
    let memory = opened(&path, options);
    check(&memory);
    assert!(covered_bytes(&memory) > MIB);
    let (mut heard, mut tell) = std::io::pipe().unwrap();
    let (mut go, mut says) = std::io::pipe().unwrap();
    unsafe extern "C" {
        fn fork() -> i32;
        fn alarm(seconds: u32) -> u32;
    }
    use std::io::{Read, Write};
    // SAFETY: the child reads the memory and exits.
    let child = unsafe { fork() };
    if child == 0 {
        // SAFETY: takes no pointer.
        unsafe { alarm(120) };
        let whole = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            check(&memory);
            assert!(covered_bytes(&memory) > MIB);
            tell.write_all(&[1]).unwrap();
            go.read_exact(&mut [0]).unwrap();
            assert_eq!(covered_bytes(&memory), 0);
            check(&memory);
        }));
        farpage_sys::process::exit(u32::from(whole.is_err()));
    }
    heard.read_exact(&mut [0]).unwrap();
    // The parent's is gone; the child's keeps writers out until it has let go.
    drop(memory);
    let (opened, is_open) = channel();
    let to_open = path.clone();
    let writer = thread::spawn(move || opened.send(to_write(&to_open)).unwrap());
    let writing = is_open.recv().unwrap();
    writer.join().unwrap();
    says.write_all(&[1]).unwrap();
    assert_eq!(farpage_sys::process::wait(child as u32), Ok(0));
    drop(writing);
}

#[test]
fn a_child_that_is_forked_while_threads_ask_goes_on() {
    farpage_testkit::in_own_process!();
    const CHILDREN: usize = 100;
    let folder = folder();
    let path = file(&folder, MIB);
    let memory = open(&path);
    let forked = AtomicBool::new(false);
    unsafe extern "C" {
        fn fork() -> i32;
        fn alarm(seconds: u32) -> u32;
    }
    thread::scope(|scope| {
        for asker in 0..3 {
            let (memory, forked, path) = (&memory, &forked, &path);
            scope.spawn(move || {
                while !forked.load(Ordering::Relaxed) {
                    match asker {
                        0 => assert!(memory.stats().resident_bytes <= memory.size()),
                        1 => memory.discard(0..memory.size()).unwrap(),
                        // Covers come and go.
                        _ => open(path).pin(0..PAGE as u64).unwrap(),
                    }
                }
            });
        }
        let _done = Done(&forked);
        for _ in 0..CHILDREN {
            // SAFETY: the child reads the memory and exits.
            let child = unsafe { fork() };
            if child == 0 {
                // SAFETY: takes no pointer.
                unsafe { alarm(120) };
                let whole = (0..MIB / PAGE).all(|page| get(&memory, page) == number(page));
                farpage_sys::process::exit(u32::from(!(whole && is_covered(&memory))));
            }
            assert_eq!(farpage_sys::process::wait(child as u32), Ok(0));
        }
    });
}
