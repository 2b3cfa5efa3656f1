//! Objects in a real store, open for writing.
//!
//! How the store is talked to comes from the environment, so each test runs in a process of its
//! own, to which a free address is given for it.

#![allow(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use std::{env, fs, thread};

use farpage::{
    Cache, Dtype, Error, LoadOptions, Memory, Mode, OpenOptions, Order, SourceError, load, raw,
};
use farpage_sys::process;

use crate::support::gateway::{Gateway, KEY, SECRET, gateway, gateway_at};
use crate::support::proxy::{Fault, Proxy};
use crate::support::{free_address, pattern};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
const LARGE: usize = 20 * MIB + 77;
/// The address at which a test puts its store.
const STORE: &str = "FARPAGE_TEST_STORE";
/// Set in the process that a test kills.
const VICTIM: &str = "FARPAGE_TEST_VICTIM";

/// The test called `name` again, in a process that finds a store at `address`.
fn again(name: &str, address: SocketAddr) -> Command {
    let mut child = Command::new(env::current_exe().unwrap());
    child
        .args(["--exact", &format!("store::{name}"), "--nocapture"])
        .env(STORE, address.to_string())
        .env("AWS_ENDPOINT_URL", format!("http://{address}"))
        .env("AWS_ACCESS_KEY_ID", KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("AWS_CONFIG_FILE", "/dev/null")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
    child
}

/// Runs `body` with the address of its store; returns what was said on standard error.
fn test(name: &str, body: fn(SocketAddr)) -> String {
    if let Ok(address) = env::var(STORE) {
        body(address.parse().unwrap());
        return String::new();
    }
    let output = again(name, free_address()).output().unwrap();
    let [out, said] = [output.stdout, output.stderr].map(|b| String::from_utf8(b).unwrap());
    let passed = output.status.success() && out.contains("1 passed");
    assert!(passed, "{out}{said}");
    said
}

fn options(mode: Mode) -> OpenOptions {
    OpenOptions {
        mode,
        ram: Some(8 << 20),
        deadline: Some(Duration::from_secs(120)),
        ..OpenOptions::default()
    }
}

/// Gives up on a store that is gone; one that answers has its time on a busy machine, too.
fn impatient() -> OpenOptions {
    OpenOptions {
        deadline: Some(Duration::from_secs(4)),
        ..options(Mode::Write)
    }
}

fn open(url: &str, mode: Mode) -> Memory {
    Memory::open(url, &options(mode)).unwrap()
}

fn put(memory: &Memory, at: usize, value: u8) {
    memory.write_at(at as u64, &[value]).unwrap();
}

fn all(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.size() as usize];
    memory.read_at(0, &mut bytes).unwrap();
    bytes
}

/// The file in which the store keeps the object, to tell whether it was replaced.
fn inode(gateway: &Gateway, name: &str) -> u64 {
    let file = gateway.folder().join("bucket").join(name);
    fs::metadata(file).unwrap().ino()
}

#[test]
fn what_was_flushed_another_opener_reads() {
    test("what_was_flushed_another_opener_reads", |address| {
        let gateway = gateway_at(address);
        for bytes in [5000, LARGE] {
            let (name, url) = (bytes.to_string(), format!("s3://bucket/{bytes}"));
            let mut wanted = pattern(bytes, 1);
            let first = gateway.put(&url, &wanted);
            let memory = open(&url, Mode::Write);
            assert!(memory.is_writable());
            assert_eq!(memory.version(), Some(first.clone()));
            for (at, value) in [(0, 1), (bytes / 2, 2), (bytes - 1, 3)] {
                put(&memory, at, value);
                wanted[at] = value;
            }
            assert_eq!(gateway.read(&url), pattern(bytes, 1), "before the flush");
            memory.flush().unwrap();
            assert!(gateway.read(&url) == wanted, "{url}");
            assert_ne!(memory.version(), Some(first));
            // What comes in from now on is of the new version.
            memory.discard(0..bytes as u64).unwrap();
            assert!(all(&memory) == wanted);
            assert!(all(&open(&url, Mode::Read)) == wanted);

            let (version, file) = (memory.version(), inode(&gateway, &name));
            memory.flush().unwrap();
            assert_eq!(memory.version(), version);
            assert_eq!(inode(&gateway, &name), file, "nothing was written since");
            put(&memory, 7, 9);
            wanted[7] = 9;
            memory.flush().unwrap();
            assert!(gateway.read(&url) == wanted);
        }
    });
}

#[test]
fn every_byte_of_a_large_object_can_be_written_in_a_small_budget() {
    test(
        "every_byte_of_a_large_object_can_be_written_in_a_small_budget",
        |address| {
            let gateway = gateway_at(address);
            gateway.put("s3://bucket/x", &pattern(LARGE, 1));
            let memory = open("s3://bucket/x", Mode::Write);
            let wanted = pattern(LARGE, 2);
            memory.write_at(0, &wanted).unwrap();
            assert!(memory.stats().resident_bytes <= 8 << 20);
            assert!(all(&memory) == wanted);
            memory.flush().unwrap();
            assert!(gateway.read("s3://bucket/x") == wanted);
        },
    );
}

#[test]
fn a_cache_keeps_the_versions_before_and_after_a_flush_apart() {
    test(
        "a_cache_keeps_the_versions_before_and_after_a_flush_apart",
        |address| {
            let gateway = gateway_at(address);
            let mut wanted = pattern(LARGE, 1);
            gateway.put("s3://bucket/x", &wanted);
            let folder = tempfile::tempdir().unwrap();
            let cached = |mode| OpenOptions {
                cache: Some(Cache::open(folder.path(), 100 << 20).unwrap()),
                ..options(mode)
            };
            let memory = Memory::open("s3://bucket/x", &cached(Mode::Write)).unwrap();
            for value in [1, 2] {
                assert!(all(&memory) == wanted);
                put(&memory, 9 << 20, value);
                wanted[9 << 20] = value;
                memory.flush().unwrap();
                memory.discard(0..LARGE as u64).unwrap();
                assert!(all(&memory) == wanted);
                let anew = Memory::open("s3://bucket/x", &cached(Mode::Read)).unwrap();
                assert!(all(&anew) == wanted);
                assert_eq!(anew.stats().failures, 0);
            }
        },
    );
}

#[test]
fn somebody_elses_change_is_not_overwritten_and_nothing_written_is_lost() {
    let said = test(
        "somebody_elses_change_is_not_overwritten_and_nothing_written_is_lost",
        |address| {
            let gateway = gateway_at(address);
            gateway.put("s3://bucket/x", &pattern(LARGE, 1));
            let memory = open("s3://bucket/x", Mode::Write);
            put(&memory, 5 * PAGE, 1);
            put(&memory, 9 * MIB, 2);
            memory.discard(0..MIB as u64).unwrap();
            gateway.put("s3://bucket/small", &pattern(5000, 1));
            let (small, mut byte) = (open("s3://bucket/small", Mode::Write), [0]);
            let other = open("s3://bucket/x", Mode::Write);
            put(&other, 6 * PAGE, 3);
            other.flush().unwrap();
            put(&small, 0, 4);
            gateway.put_again("s3://bucket/small", &pattern(5000, 2));
            let error = small.flush().unwrap_err().to_string();
            assert!(error.contains("copy out what you wrote"), "{error}");
            small.read_at(0, &mut byte).unwrap();
            assert_eq!(byte, [4]);
            for _ in 0..2 {
                let error = memory.flush().unwrap_err();
                let changed = matches!(error, Error::Source(SourceError::Changed { .. }));
                assert!(changed, "{error}");
                assert!(error.to_string().contains("copy out what you wrote"));
                memory.read_at(5 * PAGE as u64, &mut byte).unwrap();
                assert_eq!(byte, [1]);
                memory.read_at(9 << 20, &mut byte).unwrap();
                assert_eq!(byte, [2]);
            }
            // Of what it never had it says so, instead of mixing versions.
            assert!(memory.prefetch(15 << 20..16 << 20, |_| ()).is_err());
            let mut wanted = pattern(LARGE, 1);
            wanted[6 * PAGE] = 3;
            assert!(gateway.read("s3://bucket/x") == wanted);
        },
    );
    if env::var_os(STORE).is_none() {
        assert!(said.contains("what was written to 's3://bucket/x' is lost: "));
    }
}

#[test]
fn a_new_object_is_zeros_and_is_there_after_the_flush() {
    test(
        "a_new_object_is_zeros_and_is_there_after_the_flush",
        |address| {
            let gateway = gateway_at(address);
            let sized = |bytes| OpenOptions {
                size: Some(bytes),
                ..options(Mode::Create)
            };
            for bytes in [5000, LARGE] {
                let url = format!("s3://bucket/{bytes}");
                let memory = Memory::open(&url, &sized(bytes as u64)).unwrap();
                assert_eq!(memory.version(), None);
                put(&memory, 4500, 7);
                let early = Memory::open(&url, &options(Mode::Read)).err();
                let missing = matches!(early, Some(Error::Source(SourceError::NotFound { .. })));
                assert!(missing, "{early:?}");
                memory.flush().unwrap();
                let mut wanted = vec![0; bytes];
                wanted[4500] = 7;
                assert!(gateway.read(&url) == wanted);
                memory.discard(0..bytes as u64).unwrap();
                put(&memory, 3, 8);
                wanted[3] = 8;
                drop(memory);
                assert!(gateway.read(&url) == wanted, "closing writes back");
            }
            let there = Memory::open("s3://bucket/5000", &sized(10)).err().unwrap();
            assert!(there.to_string().contains("would be lost"), "{there}");
            let unsized_ = Memory::open("s3://bucket/new", &options(Mode::Create));
            assert!(unsized_.err().unwrap().to_string().contains("needs a size"));
            let grown = OpenOptions {
                size: Some(5001),
                ..options(Mode::Write)
            };
            let grown = Memory::open("s3://bucket/5000", &grown).err().unwrap();
            assert!(grown.to_string().contains("cannot grow"), "{grown}");
            // Nothing was written to it; it was to be made all the same.
            drop(Memory::open("s3://bucket/empty", &sized(100)).unwrap());
            assert_eq!(gateway.read("s3://bucket/empty"), vec![0; 100]);
        },
    );
}

#[test]
fn an_object_made_by_somebody_else_meanwhile_is_not_overwritten() {
    let said = test(
        "an_object_made_by_somebody_else_meanwhile_is_not_overwritten",
        |address| {
            let gateway = gateway_at(address);
            let create = OpenOptions {
                size: Some(100),
                ..options(Mode::Create)
            };
            let memory = Memory::open("s3://bucket/x", &create).unwrap();
            gateway.put("s3://bucket/x", b"first");
            let error = memory.flush().unwrap_err();
            let changed = matches!(error, Error::Source(SourceError::Changed { .. }));
            assert!(changed, "{error}");
            assert_eq!(gateway.read("s3://bucket/x"), b"first");
        },
    );
    if env::var_os(STORE).is_none() {
        assert!(said.contains("is lost"), "{said}");
    }
}

#[test]
fn a_flush_that_the_store_broke_off_succeeds_the_next_time() {
    test(
        "a_flush_that_the_store_broke_off_succeeds_the_next_time",
        |address| {
            let gateway = gateway();
            let proxy = Proxy::start(address, gateway.address());
            gateway.put("s3://bucket/x", &pattern(LARGE, 1));
            let memory = Memory::open("s3://bucket/x", &impatient()).unwrap();
            let mut wanted = pattern(LARGE, 1);
            for round in 0..10 {
                let at = round * 1_500_007;
                put(&memory, at, round as u8);
                wanted[at] = round as u8;
                proxy.set(Fault::After(round * 2 * MIB));
                let error = memory.flush().unwrap_err();
                assert!(matches!(error, Error::NotWritten { .. }), "{error}");
                assert!(
                    gateway.read("s3://bucket/x") == pattern(LARGE, 1),
                    "{round}"
                );
                proxy.set(Fault::Nothing);
                if round % 5 == 4 {
                    memory.discard(0..LARGE as u64).unwrap();
                    assert!(all(&memory) == wanted, "{round}");
                }
            }
            memory.flush().unwrap();
            assert!(gateway.read("s3://bucket/x") == wanted);
            assert!(all(&memory) == wanted);
        },
    );
}

#[test]
fn a_lost_last_answer_is_a_success_and_the_next_flush_too() {
    test(
        "a_lost_last_answer_is_a_success_and_the_next_flush_too",
        |address| {
            let gateway = gateway();
            let proxy = Proxy::start(address, gateway.address());
            let mut wanted = pattern(LARGE, 1);
            gateway.put("s3://bucket/x", &wanted);
            let memory = open("s3://bucket/x", Mode::Write);
            for value in [1, 2] {
                put(&memory, 12 << 20, value);
                wanted[12 << 20] = value;
                proxy.set(Fault::Unanswered("POST /bucket/x?uploadId"));
                memory.flush().unwrap();
                proxy.set(Fault::Nothing);
                assert!(gateway.read("s3://bucket/x") == wanted);
                memory.discard(0..LARGE as u64).unwrap();
                assert!(all(&memory) == wanted);
            }
        },
    );
}

/// The store takes the new object, and is gone before it says so, and for longer than a flush waits.
#[test]
fn a_flush_that_arrived_after_all_is_not_taken_for_somebody_elses_change() {
    test(
        "a_flush_that_arrived_after_all_is_not_taken_for_somebody_elses_change",
        |address| {
            let gateway = gateway();
            let proxy = Proxy::start(address, gateway.address());
            let mut wanted = pattern(LARGE, 1);
            gateway.put("s3://bucket/x", &wanted);
            let memory = Memory::open("s3://bucket/x", &impatient()).unwrap();
            for (value, reads) in [(1, true), (2, false)] {
                put(&memory, 12 << 20, value);
                wanted[12 << 20] = value;
                memory.pin(2 << 20..(2 << 20) + 1).unwrap();
                proxy.set(Fault::LastWords("POST /bucket/x?uploadId"));
                let error = memory.flush().unwrap_err();
                assert!(error.to_string().contains("did not answer"), "{error}");
                assert!(gateway.read("s3://bucket/x") == wanted);
                put(&memory, 2 << 20, value);
                wanted[2 << 20] = value;
                assert!(memory.flush().is_err(), "it is still gone");
                proxy.set(Fault::Nothing);
                memory.discard(0..LARGE as u64).unwrap();
                if reads {
                    assert!(all(&memory) == wanted);
                }
                memory.flush().unwrap();
                assert!(gateway.read("s3://bucket/x") == wanted);
                assert!(all(&memory) == wanted);
            }
        },
    );
}

#[test]
fn a_program_killed_before_the_flush_leaves_the_old_object() {
    const NAME: &str = "a_program_killed_before_the_flush_leaves_the_old_object";
    test(NAME, |address| {
        if env::var_os(VICTIM).is_some() {
            let memory = open("s3://bucket/x", Mode::Write);
            memory.write_at(0, &pattern(LARGE, 2)).unwrap();
            memory.discard(0..LARGE as u64).unwrap();
            println!("\nwritten");
            loop {
                thread::park();
            }
        }
        let gateway = gateway_at(address);
        gateway.put("s3://bucket/x", &pattern(LARGE, 1));
        let mut victim = again(NAME, address);
        let mut victim = victim
            .env(VICTIM, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let written = lines.map_while(Result::ok).any(|line| line == "written");
        victim.kill().unwrap();
        victim.wait().unwrap();
        assert!(written, "it ended before");
        assert!(gateway.read("s3://bucket/x") == pattern(LARGE, 1));
    });
}

/// One page of each MiB holds a number, which a thread raises, one page after another, while others
/// flush. A flush must send what was there when it was called at least.
#[test]
fn what_is_written_during_a_flush_is_in_it_or_in_the_next() {
    test(
        "what_is_written_during_a_flush_is_in_it_or_in_the_next",
        |address| {
            let gateway = gateway_at(address);
            gateway.put("s3://bucket/x", &vec![0; LARGE]);
            let memory = open("s3://bucket/x", Mode::Write);
            let (round, stop) = (AtomicU64::new(0), AtomicBool::new(false));
            let sent = || -> Vec<u64> {
                let bytes = gateway.read("s3://bucket/x");
                let at = |mib: usize| bytes[mib * MIB..][..8].try_into().unwrap();
                (0..20).map(|mib| u64::from_le_bytes(at(mib))).collect()
            };
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let next = round.load(Ordering::Relaxed) + 1;
                        for mib in 0..20 {
                            memory.write_at(mib << 20, &next.to_le_bytes()).unwrap();
                        }
                        round.store(next, Ordering::Release);
                    }
                });
                for _ in 0..10 {
                    let before = round.load(Ordering::Acquire);
                    memory.flush().unwrap();
                    let after = round.load(Ordering::Acquire) + 1;
                    for (mib, number) in sent().into_iter().enumerate() {
                        let range = before..=after;
                        assert!(range.contains(&number), "{mib}: {number} of {range:?}");
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
            let last = round.load(Ordering::Acquire);
            assert!(last > 0);
            memory.flush().unwrap();
            assert_eq!(sent(), [last; 20]);
            assert_eq!(all(&memory), gateway.read("s3://bucket/x"));
        },
    );
}

/// The header of an npy file shifts its numbers, so that pages in memory are not pages of the file.
#[test]
fn arrays_in_a_store_are_written_in_the_order_of_the_file() {
    test(
        "arrays_in_a_store_are_written_in_the_order_of_the_file",
        |address| {
            let gateway = gateway_at(address);
            let header = "{'descr': '>f4', 'fortran_order': False, 'shape': (100000,), }";
            let file = |of: &dyn Fn(usize) -> f32| {
                let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
                bytes.extend(format!("{header:<117}\n").bytes());
                bytes.extend((0..100_000).flat_map(|n| of(n).to_be_bytes()));
                bytes
            };
            gateway.put("s3://bucket/x.npy", &file(&|n| n as f32));
            let write = LoadOptions {
                open: options(Mode::Write),
                ..LoadOptions::default()
            };
            let loaded = load("s3://bucket/x.npy", &write).unwrap();
            for n in (0..100_000).step_by(500) {
                let bytes = (-(n as f32)).to_le_bytes();
                loaded.memory.write_at(n * 4, &bytes).unwrap();
            }
            loaded.memory.flush().unwrap();
            let wanted = |n: usize| match n % 500 {
                0 => -(n as f32),
                _ => n as f32,
            };
            assert!(gateway.read("s3://bucket/x.npy") == file(&wanted));

            let create = LoadOptions {
                open: options(Mode::Create),
                ..LoadOptions::default()
            };
            let kind = (Dtype::F32, Order::Little);
            let new = raw("s3://bucket/new", kind, &[1000, 2], &create).unwrap();
            new.memory.write_at(4, &1.5f32.to_le_bytes()).unwrap();
            drop(new);
            assert_eq!(gateway.read("s3://bucket/new")[4..8], 1.5f32.to_le_bytes());
        },
    );
}

unsafe extern "C" {
    fn fork() -> i32;
    fn alarm(seconds: u32) -> u32;
}

/// Runs `body` in a child of fork.
fn child(body: impl FnOnce()) {
    // SAFETY: the child runs `body` alone, and exits.
    match unsafe { fork() } {
        -1 => panic!("cannot fork"),
        0 => {
            // SAFETY: takes no pointer.
            unsafe { alarm(120) };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            process::exit(u32::from(done.is_err()))
        }
        id => assert_eq!(process::wait(id as u32).unwrap(), 0, "the child failed"),
    }
}

#[test]
fn a_child_of_fork_sees_what_was_written_and_sends_nothing() {
    test(
        "a_child_of_fork_sees_what_was_written_and_sends_nothing",
        |address| {
            let gateway = gateway_at(address);
            let mut wanted = pattern(LARGE, 1);
            gateway.put("s3://bucket/x", &wanted);
            let memory = open("s3://bucket/x", Mode::Write);
            for flushed in [false, true] {
                put(&memory, 3 * PAGE, 1 + u8::from(flushed));
                wanted[3 * PAGE] = 1 + u8::from(flushed);
                if flushed {
                    memory.flush().unwrap();
                    put(&memory, 11 << 20, 5);
                    wanted[11 << 20] = 5;
                }
                child(|| {
                    assert!(!memory.is_writable());
                    assert!(all(&memory) == wanted);
                    child(|| assert!(all(&memory) == wanted));
                    memory.flush().unwrap();
                });
            }
            let mut sent = wanted.clone();
            sent[11 << 20] = pattern(LARGE, 1)[11 << 20];
            assert!(gateway.read("s3://bucket/x") == sent);
            memory.flush().unwrap();
            assert!(gateway.read("s3://bucket/x") == wanted);

            let create = OpenOptions {
                size: Some(10_000),
                ..options(Mode::Create)
            };
            let new = Memory::open("s3://bucket/new", &create).unwrap();
            put(&new, 5000, 1);
            child(|| {
                let bytes = all(&new);
                assert_eq!(bytes.iter().map(|b| u32::from(*b)).sum::<u32>(), 1);
                assert_eq!(bytes[5000], 1);
            });
        },
    );
}
