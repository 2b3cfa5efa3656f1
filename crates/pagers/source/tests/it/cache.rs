//! The cache on the disk, in one process.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant, SystemTime};

use farpage_source::{Cache, Reach, Source, SourceError};
use farpage_testkit::Thread;
use proptest::prelude::*;
use tempfile::TempDir;

use crate::made::Made;

const BLOCK: u64 = 64 << 10;
const MIB: u64 = 1 << 20;

fn opened(limit: u64) -> (TempDir, Cache) {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let cache = Cache::open(&folder.path().join("cache"), limit).unwrap();
    (folder, cache)
}

fn object_files(cache: &Cache) -> Vec<PathBuf> {
    let files = cache.folder().read_dir().unwrap();
    let paths = files.map(|file| file.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|e| e == "kept"))
        .collect()
}

fn fetched(made: &Made) -> u64 {
    let reads = made.reads.lock().unwrap();
    reads.iter().map(|read| read.end - read.start).sum()
}

fn age(path: &Path, seconds: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let then = SystemTime::now() - Duration::from_secs(seconds);
    file.set_modified(then).unwrap();
}

#[test]
fn what_was_read_once_is_not_fetched_again_also_after_a_restart() {
    let (folder, cache) = opened(64 * MIB);
    let made = Arc::new(Made::new("a", MIB + 123));
    let kept = cache.keep(made.clone());
    assert_eq!(
        (kept.name(), kept.size(), kept.version(), kept.reach()),
        ("a", MIB + 123, Some("1".into()), Reach::Far)
    );
    assert!(!kept.is_at_hand(5000, 100));
    assert!(made.matches(&*kept, 5000, 100));
    assert!(kept.is_at_hand(5000, 100) && kept.is_at_hand(0, BLOCK));
    assert!(!kept.is_at_hand(0, BLOCK + 1));
    assert!(made.matches(&*kept, 0, BLOCK as usize));
    assert!(made.matches(&*kept, MIB, 123));
    assert_eq!(*made.reads.lock().unwrap(), [0..BLOCK, MIB..MIB + 123]);
    let other = Cache::open(&folder.path().join("cache"), 64 * MIB).unwrap();
    let mut down = Made::new("a", MIB + 123);
    down.is_down = true;
    assert_eq!(other.resident(&down), [0..BLOCK, MIB..MIB + 123]);
    let kept = other.keep(Arc::new(down));
    assert!(made.matches(&*kept, 1, BLOCK as usize - 1));
    assert!(made.matches(&*kept, MIB + 1, 122));
    let error = kept.read_at(BLOCK, &mut [0; 1]).unwrap_err();
    assert!(error.is_transient(), "{error}");
    let usage = other.usage().unwrap();
    assert_eq!((usage.objects, usage.fetched_bytes), (1, 0));
    assert_eq!(usage.hit_bytes, BLOCK - 1 + 122);
    assert_eq!(usage.bytes, 4096 + BLOCK + 4096);
}

/// What messages call alike, and what lies at different addresses.
struct Addressed(&'static str, Made);

impl Source for Addressed {
    fn name(&self) -> &str {
        "http://h/get?..."
    }

    fn identity(&self) -> String {
        self.0.into()
    }

    fn size(&self) -> u64 {
        self.1.size()
    }

    fn version(&self) -> Option<String> {
        self.1.version()
    }

    fn reach(&self) -> Reach {
        Reach::Far
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        self.1.read_at(offset, buffer)
    }
}

#[test]
fn two_addresses_of_one_name_size_and_version_are_two_objects() {
    let (_folder, cache) = opened(64 * MIB);
    for address in ["http://h/get?file=a", "http://h/get?file=b"] {
        let kept = cache.keep(Arc::new(Addressed(address, Made::new(address, MIB))));
        // As through everything that is put around it.
        assert_eq!(Arc::clone(&kept).identity(), address);
        assert!(Made::new(address, MIB).matches(&*kept, 0, MIB as usize));
    }
    assert_eq!(cache.usage().unwrap().objects, 2);
}

#[test]
fn what_the_page_cache_has_not_is_read_right() {
    let (_folder, cache) = opened(64 * MIB);
    let made = Arc::new(Made::new("a", 2 * MIB + 100));
    let kept = cache.keep(made.clone());
    assert!(made.matches(&*kept, 0, 2 << 20));
    assert!(made.matches(&*kept, 2 * MIB, 100));
    let file = fs::File::open(&object_files(&cache)[0]).unwrap();
    let forget = || {
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    };
    let mut space = vec![0; (2 << 20) + 4096];
    let from = space.as_ptr().align_offset(4096);
    let mut must = vec![0; 1 << 20];
    for (at, bytes) in [(4096, 1 << 20), (8192, 4096), (5, 70_000), (2 * MIB, 100)] {
        forget();
        let buffer = &mut space[from..from + bytes];
        kept.read_at(at, buffer).unwrap();
        made.fill(at, &mut must[..bytes]);
        assert!(buffer == &must[..bytes], "{at} {bytes}");
    }
    assert_eq!(fetched(&made), 2 * MIB + 100);
    assert_eq!(cache.usage().unwrap().damaged_pages, 0);
}

#[test]
fn a_large_read_fetches_runs_of_what_is_missing() {
    let (_folder, cache) = opened(64 * MIB);
    let made = Arc::new(Made::new("a", 4 * MIB));
    let kept = cache.keep(made.clone());
    assert!(made.matches(&*kept, MIB + 3, 5));
    assert!(made.matches(&*kept, 0, 4 << 20));
    let reads = made.reads.lock().unwrap().clone();
    assert_eq!(reads, [MIB..MIB + BLOCK, 0..MIB, MIB + BLOCK..4 * MIB]);
}

#[test]
fn a_block_that_many_threads_miss_is_fetched_once() {
    let (_folder, cache) = opened(64 * MIB);
    let made = Arc::new(Made::new("a", 8 * MIB));
    let kept = cache.keep(made.clone());
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (made, kept, start) = (&made, &kept, &start);
            scope.spawn(move || {
                for block in 0..8 * MIB / BLOCK {
                    start.wait();
                    assert!(made.matches(&**kept, block * BLOCK + thread * 4096, 4096));
                }
            });
        }
    });
    assert_eq!(fetched(&made), 8 * MIB);
    assert_eq!(cache.usage().unwrap().bytes, 8 * MIB + 4096);
}

#[test]
fn an_error_reaches_the_reader_and_nothing_is_kept() {
    let (_folder, cache) = opened(MIB);
    let mut down = Made::new("a", MIB);
    down.is_down = true;
    let down = Arc::new(down);
    let kept = cache.keep(down.clone());
    let error = kept.read_at(0, &mut [0; 4096]).unwrap_err();
    assert!(matches!(error, SourceError::Unreachable { .. }), "{error}");
    let error = kept.read_at(MIB - 1, &mut [0; 2]).unwrap_err();
    assert!(matches!(error, SourceError::Short { .. }), "{error}");
    assert!(kept.read_at(u64::MAX, &mut [0; 2]).is_err());
    assert!(cache.resident(&*down).is_empty());
    assert!(kept.read_at(MIB, &mut []).is_ok());
}

#[test]
fn a_source_without_a_version_is_not_kept() {
    struct Plain;
    impl Source for Plain {
        fn name(&self) -> &str {
            "plain"
        }
        fn size(&self) -> u64 {
            10
        }
        fn read_at(&self, _: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
            buffer.fill(7);
            Ok(())
        }
    }
    let (_folder, cache) = opened(MIB);
    let kept = cache.keep(Arc::new(Plain));
    kept.read_at(0, &mut [0; 10]).unwrap();
    assert!(object_files(&cache).is_empty() && cache.resident(&kept).is_empty());
}

#[test]
fn beyond_the_limit_nothing_is_kept_and_everything_is_read() {
    let (_folder, cache) = opened(MIB);
    let made = Arc::new(Made::new("a", 4 * MIB));
    let kept = cache.keep(made.clone());
    for at in (0..4 * MIB).step_by(BLOCK as usize) {
        assert!(made.matches(&*kept, at, BLOCK as usize));
        assert!(cache.usage().unwrap().bytes <= MIB);
    }
    let usage = cache.usage().unwrap();
    assert_eq!(usage.not_kept_bytes, 3 * MIB + BLOCK);
    let there = cache.resident(&*made);
    assert_eq!((there.len(), there[0].clone()), (1, 0..MIB - BLOCK));
}

#[test]
fn what_was_not_used_for_longest_is_thrown_out_for_something_new() {
    let (_folder, cache) = opened(3 * MIB + 3 * 4096);
    let mades = ["a", "b", "c", "d"].map(|name| Arc::new(Made::new(name, MIB)));
    for (i, made) in mades[..3].iter().enumerate() {
        let known = object_files(&cache);
        assert!(made.matches(&*cache.keep(made.clone()), 0, 1 << 20));
        let files = object_files(&cache);
        let new = files.iter().find(|file| !known.contains(file)).unwrap();
        age(new, [2000, 3000, 1000][i]);
    }
    let last = cache.keep(mades[3].clone());
    assert!(mades[3].matches(&*last, 0, 1 << 20));
    let there = mades.each_ref().map(|made| cache.resident(&**made).len());
    assert_eq!(there, [1, 0, 1, 1]);
    assert_eq!(object_files(&cache).len(), 3);
}

#[test]
fn an_object_in_use_stays_unless_it_was_not_used_for_long() {
    let (_folder, cache) = opened(MIB + 2 * 4096);
    let (a, b) = (Arc::new(Made::new("a", MIB)), Arc::new(Made::new("b", MIB)));
    let kept_a = cache.keep(a.clone());
    assert!(a.matches(&*kept_a, 0, 1 << 20));
    let file = object_files(&cache).remove(0);
    assert!(b.matches(&*cache.keep(b.clone()), 0, 1 << 20));
    assert_eq!(
        (cache.resident(&*a).len(), cache.resident(&*b).len()),
        (1, 0)
    );
    age(&file, 3600);
    // Another handle: this one knows that there was no room.
    let other = Cache::open(cache.folder(), MIB + 2 * 4096).unwrap();
    assert!(b.matches(&*other.keep(b.clone()), 0, 1 << 20));
    assert_eq!(
        (cache.resident(&*a).len(), cache.resident(&*b).len()),
        (0, 1)
    );
    assert!(
        a.matches(&*kept_a, 0, 1 << 20),
        "the emptied file is a miss"
    );
    assert_eq!(fetched(&a), 2 * MIB);
    assert!(!kept_a.is_at_hand(0, 4096));
    assert_eq!(other.usage().unwrap().damaged_pages, 0);
}

#[test]
fn clearing_empties_the_cache_under_its_readers() {
    let (_folder, cache) = opened(8 * MIB);
    let made = Arc::new(Made::new("a", MIB));
    let kept = cache.keep(made.clone());
    assert!(made.matches(&*kept, 0, 1 << 20));
    cache.clear().unwrap();
    assert_eq!(cache.usage().unwrap().bytes, 0);
    assert!(made.matches(&*kept, 0, 1 << 20));
    assert_eq!(fetched(&made), 2 * MIB);
    drop(kept);
    cache.clear().unwrap();
    assert!(object_files(&cache).is_empty());
}

#[test]
fn only_its_user_may_look_into_it() {
    let (_folder, cache) = opened(MIB);
    let made = Arc::new(Made::new("a", MIB));
    made.matches(&*cache.keep(made.clone()), 0, 4096);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(cache.folder()), 0o700);
    assert_eq!(mode(&object_files(&cache)[0]), 0o600);
}

#[test]
fn a_process_that_was_stopped_with_the_lock_stops_no_reader() {
    let (_folder, cache) = opened(64 * MIB);
    let made = Arc::new(Made::new("a", 8 * MIB));
    let kept = cache.keep(made.clone());
    let lock = fs::File::open(cache.folder().join("lock")).unwrap();
    lock.lock().unwrap();
    let (start, own) = (Instant::now(), Thread::current());
    let slept = own.sleeps();
    for at in (0..8 * MIB).step_by(BLOCK as usize) {
        assert!(made.matches(&*kept, at, BLOCK as usize));
    }
    // One each second waits 200 ms, a millisecond at a time: not each of 128.
    let (slept, took) = (own.sleeps() - slept, start.elapsed());
    let most = 300 * (took.as_secs() + 2);
    assert!(slept < most, "{slept} pauses in {took:?}");
    assert!(cache.resident(&*made).is_empty());
    let error = cache.usage().unwrap_err().to_string();
    assert!(error.contains("holds the lock"), "{error}");
    lock.unlock().unwrap();
    let other = Cache::open(cache.folder(), 64 * MIB).unwrap();
    assert!(made.matches(&*other.keep(made.clone()), 0, 100));
    assert_eq!(other.usage().unwrap().bytes, BLOCK + 4096);
}

#[test]
fn a_full_disk_costs_fetches_and_no_read() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let mount = |args: &[&str]| {
        let mut mount = Command::new("mount");
        let made = mount.args(args).arg(folder.path()).output();
        made.is_ok_and(|output| output.status.success())
    };
    if !mount(&["-t", "tmpfs", "-o", "size=2m", "tmpfs"]) {
        println!("skipped: mounting needs root");
        return;
    }
    let result = std::panic::catch_unwind(|| {
        let cache = Cache::open(&folder.path().join("cache"), 1 << 30).unwrap();
        let made = Arc::new(Made::new("a", 8 * MIB));
        let kept = cache.keep(made.clone());
        for _ in 0..2 {
            for at in (0..8 * MIB).step_by(4096 * 16) {
                assert!(made.matches(&*kept, at, 4096 * 16));
            }
        }
        let usage = cache.usage().unwrap();
        assert!(usage.not_kept_bytes >= 12 * MIB, "{usage:?}");
        assert!(usage.hit_bytes >= MIB, "{usage:?}");
        assert!(usage.bytes <= 2 * MIB, "{usage:?}");
        cache.clear().unwrap();
        assert!(made.matches(&*kept, 0, 4096) && kept.is_at_hand(0, 4096));
    });
    let gone = Command::new("umount").arg("-l").arg(folder.path()).status();
    assert!(gone.unwrap().success());
    result.unwrap();
}

/// What happens to a cache.
#[derive(Clone, Debug)]
enum Step {
    Read(u64, usize),
    /// A bit flips, somewhere in a file of the folder.
    Flip(usize, u64),
    Cut(usize, u64),
    Reopen,
    Clear,
}

const SIZE: u64 = 5 * BLOCK + 1234;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..SIZE, 0..3 * BLOCK as usize).prop_map(|(at, bytes)| Step::Read(at, bytes)),
        2 => (0..3usize, any::<u64>()).prop_map(|(file, bit)| Step::Flip(file, bit)),
        1 => (0..3usize, 0..9 * BLOCK).prop_map(|(file, bytes)| Step::Cut(file, bytes)),
        1 => Just(Step::Reopen),
        1 => Just(Step::Clear),
    ]
}

fn damage(folder: &Path, step: &Step) {
    let mut files: Vec<PathBuf> = folder
        .read_dir()
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    let (Step::Flip(file, _) | Step::Cut(file, _)) = step else {
        return;
    };
    let how = OpenOptions::new().read(true).write(true).clone();
    let file = how.open(&files[file % files.len()]).unwrap();
    let length = file.metadata().unwrap().len();
    match step {
        Step::Flip(_, bit) if length > 0 => {
            let (at, mut byte) = (bit / 8 % length, [0]);
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1 << (bit % 8)], at).unwrap();
        }
        Step::Cut(_, bytes) => file.set_len(*bytes.min(&length)).unwrap(),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn whatever_happens_to_its_files_every_read_is_right(
        steps in proptest::collection::vec(step(), 1..40),
        limit in prop_oneof![Just(3 * BLOCK), Just(64 * MIB)],
    ) {
        let (_folder, mut cache) = opened(limit);
        let mades = ["a", "b"].map(|name| Arc::new(Made::new(name, SIZE)));
        let mut kept = mades.each_ref().map(|made| cache.keep(made.clone()));
        for (i, step) in steps.iter().enumerate() {
            match step {
                Step::Read(at, bytes) => {
                    let bytes = (*bytes as u64).min(SIZE - at) as usize;
                    prop_assert!(mades[i % 2].matches(&*kept[i % 2], *at, bytes), "{i}");
                }
                Step::Flip(..) | Step::Cut(..) => damage(cache.folder(), step),
                Step::Reopen => {
                    cache = Cache::open(cache.folder(), limit).unwrap();
                    kept = mades.each_ref().map(|made| cache.keep(made.clone()));
                }
                Step::Clear => cache.clear().unwrap(),
            }
        }
    }
}

#[test]
fn every_flipped_bit_of_a_page_is_noticed_and_the_page_fetched_again() {
    let (_folder, cache) = opened(MIB);
    let made = Arc::new(Made::new("a", BLOCK));
    let kept = cache.keep(made.clone());
    assert!(made.matches(&*kept, 0, BLOCK as usize));
    let path = object_files(&cache).remove(0);
    let how = OpenOptions::new().read(true).write(true).clone();
    let file = how.open(path).unwrap();
    let length = file.metadata().unwrap().len();
    for bit in (0..4096 * 8).step_by(97) {
        let (at, mut byte) = (length - 4096 + bit / 8, [0]);
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1 << (bit % 8)], at).unwrap();
        assert!(made.matches(&*kept, BLOCK - 10, 10), "bit {bit}");
        assert!(made.matches(&*kept, 0, BLOCK as usize), "bit {bit}");
    }
    let damaged = cache.usage().unwrap().damaged_pages;
    assert_eq!(damaged, (4096u64 * 8).div_ceil(97));
    assert_eq!(fetched(&made), (damaged + 1) * BLOCK);
}
