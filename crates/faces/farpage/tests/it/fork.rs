//! Children of fork: they find what their parent had mapped, at the same addresses.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::{fs, thread};

use farpage::{Cache, Error, LoadOptions, Memory, Mode, OpenOptions, Source, SourceError, load};
use farpage_sys::process;
use farpage_testkit::server::{Server, Speed};
use farpage_testkit::until_or;
use tempfile::TempDir;

const PAGE: usize = 4096;
const SIGKILL: u32 = 9;
const SIGSEGV: i32 = 11;
/// A child that hangs ends after so many seconds, which is after its test has failed.
const LIMIT_S: u32 = 240;

unsafe extern "C" {
    fn fork() -> i32;
    fn alarm(seconds: u32) -> u32;
}

/// A process that was forked and is waited for.
#[must_use]
struct Child(u32);

/// Runs `body` in a child, which exits with 0 when it returns and with 1 when it panics.
fn child(body: impl FnOnce()) -> Child {
    // SAFETY: the child runs `body` alone, and exits.
    match unsafe { fork() } {
        -1 => panic!("cannot fork"),
        0 => {
            // SAFETY: takes no pointer.
            unsafe { alarm(LIMIT_S) };
            let done = catch_unwind(AssertUnwindSafe(body));
            process::exit(u32::from(done.is_err()))
        }
        id => Child(id as u32),
    }
}

impl Child {
    /// The status of `waitpid(2)`.
    fn status(self) -> i32 {
        until_or(|| self.ended_with_what_it_did(), || self.has_ended());
        process::wait(self.0).unwrap()
    }

    fn has_ended(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap();
        stat.rsplit(')').next().unwrap().starts_with(" Z")
    }

    /// What the threads of one that hangs do. It hangs no more: nothing waits for it.
    fn ended_with_what_it_did(&self) -> String {
        let all = fs::read_dir(format!("/proc/{}/task", self.0)).unwrap();
        let threads = all.flatten().map(|thread| {
            let said = |what| fs::read_to_string(thread.path().join(what)).unwrap_or_default();
            let (name, call) = (said("comm"), said("syscall"));
            let (waits, stack) = (said("wchan"), said("stack"));
            format!("{} {call} {waits}\n{stack}", name.trim_end())
        });
        let told = threads.collect();
        process::kill(self.0, SIGKILL).unwrap();
        told
    }

    fn succeeds(self) {
        assert_eq!(self.status(), 0, "the child failed");
    }
}

fn folder() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

/// The byte at `at` of every file here.
fn byte(at: usize) -> u8 {
    (at / PAGE * 7 + at % 251) as u8
}

fn contents(bytes: usize) -> Vec<u8> {
    (0..bytes).map(byte).collect()
}

fn file(folder: &TempDir, name: &str, bytes: usize) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, contents(bytes)).unwrap();
    path
}

fn open(path: &std::path::Path, mode: Mode) -> Memory {
    let options = OpenOptions {
        mode,
        ram: Some(8 << 20),
        ..OpenOptions::default()
    };
    Memory::open(path.to_str().unwrap(), &options).unwrap()
}

fn get(memory: &Memory, at: usize) -> u8 {
    assert!((at as u64) < memory.size());
    // SAFETY: inside the mapping.
    unsafe { memory.as_ptr().add(at).read_volatile() }
}

fn put(memory: &Memory, at: usize, value: u8) {
    assert!((at as u64) < memory.size());
    // SAFETY: inside the mapping, which only this test writes to.
    unsafe { memory.as_ptr().add(at).write_volatile(value) };
}

fn check_all(memory: &Memory) {
    for at in (0..memory.size() as usize).step_by(509) {
        assert_eq!(get(memory, at), byte(at), "at {at}");
    }
}

fn tell(mut to: PipeWriter) {
    to.write_all(&[1]).unwrap();
}

fn hear(mut from: PipeReader) -> bool {
    from.read_exact(&mut [0]).is_ok()
}

#[test]
fn a_child_reads_a_local_file_and_so_does_its_child() {
    farpage_testkit::in_own_process!();
    let folder = folder();
    let path = file(&folder, "x", (20 << 20) + 77);
    let memory = open(&path, Mode::Read);
    (0..2 << 20).step_by(PAGE).for_each(|at| {
        get(&memory, at);
    });
    child(|| {
        check_all(&memory);
        assert_eq!(memory.prefetch(0..1 << 20, |_| ()).unwrap(), 1 << 20);
        child(|| check_all(&memory)).succeeds();
        drop(memory.clone());
    })
    .succeeds();
    check_all(&memory);
}

#[test]
fn a_child_reads_from_a_server_with_a_cache_and_without() {
    farpage_testkit::in_own_process!();
    let folder = folder();
    file(&folder, "x", 3 << 20);
    let served = Server::start(folder.path(), Speed::default()).unwrap();
    for cached in [false, true] {
        let cache = cached.then(|| Cache::open(&folder.path().join("kept"), 64 << 20).unwrap());
        let options = OpenOptions {
            cache: cache.clone(),
            ..OpenOptions::default()
        };
        let memory = Memory::open(&served.url("/x"), &options).unwrap();
        get(&memory, 1 << 20);
        child(|| check_all(&memory)).succeeds();
        child(|| {
            let anew = Memory::open(&served.url("/x"), &options).unwrap();
            check_all(&anew);
            // What was read while the parent held the lock is kept when it is read again.
            farpage_testkit::until("all of it is kept", || {
                anew.discard(0..anew.size()).unwrap();
                check_all(&anew);
                let usage = cache.as_ref().map(|cache| cache.usage().unwrap());
                usage.is_none_or(|usage| usage.bytes >= 3 << 20)
            });
        })
        .succeeds();
        check_all(&memory);
    }
}

/// Returns when a thread that has sent its number sleeps.
fn wait_until_it_sleeps(numbers: &Receiver<PathBuf>) {
    let task = PathBuf::from("/proc").join(numbers.recv().unwrap());
    let state = || {
        let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
        stat.rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next())
    };
    farpage_testkit::until("the thread waits", || state() == Some('S'));
}

#[test]
fn a_child_uses_a_cache_that_another_thread_had_locked() {
    farpage_testkit::in_own_process!();
    let folder = folder();
    let cache = Cache::open(folder.path(), 64 << 20).unwrap();
    // Whoever wants the cache's lock waits for this one, and keeps other threads out meanwhile.
    let lock = fs::File::open(folder.path().join("lock")).unwrap();
    lock.lock().unwrap();
    let (number, numbers) = channel();
    let waiting = cache.clone();
    let thread = thread::spawn(move || {
        number
            .send(fs::read_link("/proc/thread-self").unwrap())
            .unwrap();
        waiting.usage().is_ok()
    });
    wait_until_it_sleeps(&numbers);
    let of_child = child(|| while cache.usage().is_err() {});
    lock.unlock().unwrap();
    of_child.succeeds();
    thread.join().unwrap();
}

#[test]
fn a_child_finds_translated_arrays_where_they_were() {
    farpage_testkit::in_own_process!();
    let folder = folder();
    let header = "{'descr': '>f4', 'fortran_order': False, 'shape': (100000,), }";
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{header:<117}\n").bytes());
    bytes.extend((0..100_000).flat_map(|n| (n as f32).to_be_bytes()));
    fs::write(folder.path().join("x.npy"), bytes).unwrap();
    let served = Server::start(folder.path(), Speed::default()).unwrap();
    let local = folder.path().join("x.npy").display().to_string();
    for address in [local, served.url("/x.npy")] {
        let loaded = load(&address, &LoadOptions::default()).unwrap();
        let at = loaded.arrays[0].as_ptr().cast::<f32>();
        child(|| {
            for n in 0..100_000 {
                // SAFETY: inside the mapping.
                assert_eq!(unsafe { at.add(n).read() }, n as f32);
            }
        })
        .succeeds();
    }
}

#[test]
fn what_was_written_to_a_file_is_there_and_a_child_may_not_write_more() {
    farpage_testkit::in_own_process!();
    let folder = folder();
    let path = file(&folder, "x", 8 << 20);
    let memory = open(&path, Mode::Write);
    (0..8 << 20)
        .step_by(8 * PAGE)
        .for_each(|at| put(&memory, at, 99));
    child(|| {
        assert!(!memory.is_writable());
        memory.flush().unwrap();
        for at in 0..8 << 20 {
            let wanted = if at % (8 * PAGE) == 0 { 99 } else { byte(at) };
            assert_eq!(get(&memory, at), wanted, "at {at}");
        }
    })
    .succeeds();
    assert_eq!(child(|| put(&memory, 5, 1)).status() & 0x7f, SIGSEGV);
    assert!(memory.is_writable());
    put(&memory, 5, 77);
    memory.flush().unwrap();
    assert_eq!(fs::read(&path).unwrap()[5], 77);
}

#[test]
fn private_copies_go_apart_after_a_fork() {
    farpage_testkit::in_own_process!();
    let folder = folder();
    let path = file(&folder, "x", 16 << 20);
    let memory = open(&path, Mode::Copy);
    let pages = (16 << 20) / PAGE;
    (0..pages / 2).for_each(|page| put(&memory, page * PAGE, 1));
    let (written, wrote) = pipe().unwrap();
    let of_child = child(|| {
        assert!(hear(written));
        assert!(memory.is_writable());
        let seen = |page| get(&memory, page * PAGE);
        (0..pages / 2).for_each(|page| assert_eq!(seen(page), 1, "page {page}"));
        (pages / 2..pages).for_each(|page| assert_eq!(seen(page), byte(page * PAGE)));
        (0..pages).for_each(|page| put(&memory, page * PAGE, 3));
        (0..pages).for_each(|page| assert_eq!(seen(page), 3, "page {page}"));
    });
    (pages / 4..pages).for_each(|page| put(&memory, page * PAGE, 2));
    tell(wrote);
    of_child.succeeds();
    for page in 0..pages {
        let wanted = if page < pages / 4 { 1 } else { 2 };
        assert_eq!(get(&memory, page * PAGE), wanted, "page {page}");
        assert_eq!(get(&memory, page * PAGE + 1), byte(page * PAGE + 1));
    }
    drop(memory);
    assert_eq!(fs::read(&path).unwrap(), contents(16 << 20));
}

#[test]
fn a_child_of_a_child_finds_what_its_parent_wrote_to_a_private_copy() {
    farpage_testkit::in_own_process!();
    let folder = folder();
    let path = file(&folder, "x", 1 << 20);
    let memory = open(&path, Mode::Copy);
    put(&memory, 0, 1);
    child(|| {
        put(&memory, 5 * PAGE, 2);
        child(|| {
            let seen = [0, 5 * PAGE, 6 * PAGE].map(|at| get(&memory, at));
            assert_eq!(seen, [1, 2, byte(6 * PAGE)]);
        })
        .succeeds();
    })
    .succeeds();
    assert_eq!(get(&memory, 5 * PAGE), byte(5 * PAGE));
}

/// Where a caller computes bytes itself.
struct Computed;

impl Source for Computed {
    fn name(&self) -> &str {
        "computed"
    }

    fn size(&self) -> u64 {
        1 << 30
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let bytes = buffer.iter_mut().zip(offset as usize..);
        bytes.for_each(|(to, at)| *to = byte(at));
        Ok(())
    }
}

#[test]
fn a_child_asks_a_source_of_the_programs_own() {
    farpage_testkit::in_own_process!();
    let options = OpenOptions {
        ram: Some(8 << 20),
        ..OpenOptions::default()
    };
    let memory = Memory::of_source(Arc::new(Computed), &options).unwrap();
    child(|| {
        for at in (0..1 << 30).step_by((8 << 20) - 13) {
            assert_eq!(get(&memory, at), byte(at), "at {at}");
        }
    })
    .succeeds();
}

#[test]
fn forks_while_other_threads_read_write_and_prefetch() {
    farpage_testkit::in_own_process!();
    let folder = folder();
    let path = file(&folder, "x", 12 << 20);
    let served = Server::start(folder.path(), Speed::default()).unwrap();
    let far = OpenOptions {
        ram: Some(6 << 20),
        cache: Some(Cache::open(&folder.path().join("kept"), 64 << 20).unwrap()),
        ..OpenOptions::default()
    };
    let memories = [
        open(&path, Mode::Read),
        open(&path, Mode::Copy),
        Memory::open(&served.url("/x"), &far).unwrap(),
    ];
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = Ends(&stop);
        for memory in &memories {
            scope.spawn(|| {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    let start = round * 7919 * PAGE as u64 % (10 << 20);
                    memory.prefetch(start..start + (1 << 20), |_| ()).unwrap();
                    if memory.is_writable() {
                        let at = start as usize;
                        put(memory, at, byte(at));
                    }
                    memory.discard(start..start + (2 << 20)).unwrap();
                    round += 1;
                }
            });
        }
        for round in 0..30 {
            let of_child = child(|| {
                for memory in &memories {
                    for at in (round * 300..12 << 20).step_by(333_331) {
                        assert_eq!(get(memory, at), byte(at), "{} at {at}", memory.name());
                    }
                }
            });
            of_child.succeeds();
        }
    });
    memories.iter().for_each(check_all);
}

/// Says at its end that it is over, also when that is a failure.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A child has none of the threads that may hold what a request needs.
#[test]
fn children_ask_a_server_that_threads_of_their_parent_ask_all_the_time() {
    farpage_testkit::in_own_process!();
    let folder = folder();
    file(&folder, "x", 3 * PAGE);
    let served = Server::start(folder.path(), Speed::default()).unwrap();
    let asks = || {
        let memory = Memory::open(&served.url("/x"), &OpenOptions::default()).unwrap();
        assert_eq!(get(&memory, PAGE + 1), byte(PAGE + 1));
    };
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = Ends(&stop);
        for _ in 0..8 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    asks();
                }
            });
        }
        for _ in 0..100 {
            child(asks).succeeds();
        }
    });
}

/// Threads that begin and end hold locks of the standard library meanwhile, of which a child finds some
/// held for ever. It begins threads all the same: those that answer its faults, and those that fetch.
#[test]
fn children_of_a_parent_whose_threads_begin_and_end_all_the_time() {
    farpage_testkit::in_own_process!();
    let folder = folder();
    let path = file(&folder, "x", 3 << 20);
    let served = Server::start(folder.path(), Speed::default()).unwrap();
    let far = Memory::open(&served.url("/x"), &OpenOptions::default()).unwrap();
    let near = open(&path, Mode::Copy);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _ends = Ends(&stop);
        for _ in 0..8 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    thread::spawn(|| ()).join().unwrap();
                }
            });
        }
        for round in 0..300 {
            let at = round * 31 % 700 * PAGE;
            child(|| {
                for memory in [&near, &far] {
                    memory.prefetch(0..1 << 20, |_| ()).unwrap();
                    assert_eq!(get(memory, at), byte(at), "{}", memory.name());
                }
            })
            .succeeds();
        }
    });
}

/// Open files that have no name any more.
fn unnamed_files() -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = all.filter_map(|entry| fs::read_link(entry.path()).ok());
    let unnamed = targets.filter(|to| to.to_string_lossy().ends_with("(deleted)"));
    unnamed.count()
}

#[test]
fn two_hundred_forks_one_after_another() {
    farpage_testkit::in_own_process!();
    let folder = folder();
    let path = file(&folder, "x", 1 << 20);
    let (copy, plain) = (open(&path, Mode::Copy), open(&path, Mode::Read));
    let before = unnamed_files();
    for round in 0..200usize {
        let at = round % 256 * PAGE;
        put(&copy, at, round as u8);
        child(|| {
            let first = round.saturating_sub(20);
            (first..=round).for_each(|n| assert_eq!(get(&copy, n * PAGE), n as u8));
            assert_eq!(get(&plain, at), byte(at));
        })
        .succeeds();
    }
    assert!(
        unnamed_files() <= before + 16,
        "of {before}: {}",
        unnamed_files()
    );
}

#[test]
fn a_child_outlives_its_parent() {
    farpage_testkit::in_own_process!();
    let folder = folder();
    let path = file(&folder, "x", 4 << 20);
    let served = Server::start(folder.path(), Speed::default()).unwrap();
    let (done, succeeded) = pipe().unwrap();
    let parent = child(|| {
        let memories = [
            open(&path, Mode::Copy),
            Memory::open(&served.url("/x"), &OpenOptions::default()).unwrap(),
        ];
        put(&memories[0], 0, byte(0));
        let (alive, held) = pipe().unwrap();
        // It ends with the last process that has this end: the parent.
        let held = Cell::new(Some(held));
        let _ = child(|| {
            drop(held.take());
            assert!(!hear(alive), "the parent lives");
            memories.iter().for_each(check_all);
            tell(succeeded);
        });
    });
    parent.succeeds();
    assert!(hear(done), "the orphan failed");
}

#[test]
fn a_child_without_the_parents_writes_is_told_instead_of_misled() {
    struct Refuses;
    impl Source for Refuses {
        fn name(&self) -> &str {
            "refuses"
        }

        fn size(&self) -> u64 {
            1 << 20
        }

        fn read_at(&self, _: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
            buffer.fill(1);
            Ok(())
        }

        fn is_writable(&self) -> bool {
            true
        }
    }
    farpage_testkit::in_own_process!();
    let options = OpenOptions {
        mode: Mode::Write,
        ..OpenOptions::default()
    };
    let memory = Memory::of_source(Arc::new(Refuses), &options).unwrap();
    put(&memory, 0, 2);
    child(|| {
        let refused = memory.prefetch(0..4096, |_| ());
        assert!(
            matches!(refused, Err(Error::Argument { .. })),
            "{refused:?}"
        );
        assert_eq!(memory.stats().resident_bytes, 0);
    })
    .succeeds();
    assert_eq!(
        child(|| assert_eq!(get(&memory, 0), 2)).status() & 0x7f,
        SIGSEGV
    );
    assert_eq!(get(&memory, 0), 2);
}
