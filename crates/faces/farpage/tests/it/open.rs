//! Files and servers as memory and as arrays.

#![allow(unsafe_code)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use farpage::{
    Dtype, Error, LoadOptions, Memory, Mode, OpenOptions, Order, SourceError, Trace, load, raw,
};
use farpage_testkit::server::{Answer, Server, Speed};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

/// Bytes of an npy file of version 1.
fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    let length = (header.len() + 11).next_multiple_of(64) - 10;
    bytes.extend((length as u16).to_le_bytes());
    bytes.extend(format!("{header:<width$}\n", width = length - 1).bytes());
    bytes.extend(data);
    bytes
}

/// Bytes of a safetensors file.
fn safetensors(tensors: &[(&str, &str, usize, &[u8])]) -> Vec<u8> {
    let mut at = 0;
    let entries: Vec<String> = tensors
        .iter()
        .map(|(name, dtype, length, data)| {
            let begin = at;
            at += data.len();
            format!(
                r#""{name}":{{"dtype":"{dtype}","shape":[{length}],"data_offsets":[{begin},{at}]}}"#
            )
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    tensors
        .iter()
        .for_each(|(_, _, _, data)| bytes.extend(*data));
    bytes
}

fn write(folder: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn text(path: &std::path::Path) -> &str {
    path.to_str().unwrap()
}

fn floats(array: &farpage::Array) -> Vec<f32> {
    let at = array.as_ptr().cast::<f32>();
    // SAFETY: inside the mapping; nobody writes to it.
    let element = |i| unsafe { at.add(i).read_unaligned() };
    (0..array.tensor.elements() as usize).map(element).collect()
}

#[test]
fn one_answer_of_503_changes_nothing_whichever_request_it_is_for() {
    let folder = folder();
    let numbers: Vec<f32> = (0..100_000).map(|n| n as f32 / 3.0).collect();
    let data: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    let path = write(&folder, "x.npy", &npy("<f4", "(100, 1000)", &data));
    let packed = Command::new("gzip").arg("-k").arg(&path).status().unwrap();
    assert!(packed.success());
    for name in ["/x.npy", "/x.npy.gz"] {
        let read = |busy: Option<u64>| {
            let server = Server::start(folder.path(), Speed::default()).unwrap();
            if let Some(busy) = busy {
                server.rule(name, busy..busy + 1, Answer::Status(503, Vec::new()));
            }
            let loaded = load(&server.url(name), &LoadOptions::default());
            let loaded = loaded.unwrap_or_else(|error| panic!("{name} {busy:?}: {error}"));
            (floats(&loaded.arrays[0]), server.requests())
        };
        let (found, requests) = read(None);
        assert_eq!(found, numbers);
        for busy in 0..requests {
            let (found, with_one_more) = read(Some(busy));
            assert_eq!(found, numbers, "{name} {busy}");
            assert!(with_one_more > busy + 1, "{name} {busy}");
        }
    }
}

#[test]
fn an_array_reads_as_it_was_saved() {
    let folder = folder();
    let numbers: Vec<f32> = (0..100_000).map(|n| n as f32 / 3.0).collect();
    let data: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    let path = write(&folder, "x.npy", &npy("<f4", "(100, 1000)", &data));
    let loaded = load(text(&path), &LoadOptions::default()).unwrap();
    let array = &loaded.arrays[0];
    assert_eq!(array.tensor.shape, [100, 1000]);
    assert_eq!(floats(array), numbers);
    assert!(!loaded.memory.is_writable());
}

#[test]
fn big_endian_and_bf16_are_presented_as_the_processors_own() {
    let folder = folder();
    let numbers: Vec<f32> = (0..5000).map(|n| n as f32).collect();
    let data: Vec<u8> = numbers.iter().flat_map(|n| n.to_be_bytes()).collect();
    let path = write(&folder, "x.npy", &npy(">f4", "(5000,)", &data));
    let loaded = load(text(&path), &LoadOptions::default()).unwrap();
    assert_eq!(loaded.arrays[0].tensor.element.order(), Some(Order::Little));
    assert_eq!(floats(&loaded.arrays[0]), numbers);

    let halves: Vec<u8> = (0..3000u32)
        .flat_map(|n| ((n as f32).to_bits() >> 16).to_le_bytes()[..2].to_vec())
        .collect();
    let plain = 7.5f32.to_le_bytes().repeat(1000);
    let file = safetensors(&[("a", "BF16", 3000, &halves), ("b", "F32", 1000, &plain)]);
    let path = write(&folder, "x.safetensors", &file);
    let options = LoadOptions {
        bf16_as_f32: true,
        ..LoadOptions::default()
    };
    let loaded = load(text(&path), &options).unwrap();
    let a = floats(loaded.array("a").unwrap());
    assert_eq!(
        a[100..256],
        (100..256).map(|n| n as f32).collect::<Vec<_>>()
    );
    assert_eq!(floats(loaded.array("b").unwrap()), [7.5; 1000]);
    let stored = load(text(&path), &LoadOptions::default()).unwrap();
    assert_eq!(stored.arrays[0].tensor.element.dtype(), Some(Dtype::Bf16));
}

#[test]
fn a_new_file_is_written_flushed_and_read_again() {
    let folder = folder();
    let path = folder.path().join("new.bin");
    let create = LoadOptions {
        open: OpenOptions {
            mode: Mode::Create,
            ram: Some(8 << 20),
            ..OpenOptions::default()
        },
        ..LoadOptions::default()
    };
    let number = (Dtype::F32, Order::Little);
    let made = raw(text(&path), number, &[1000, 5000], &create).unwrap();
    let at = made.arrays[0].as_ptr().cast::<f32>();
    for i in 0..5_000_000usize {
        // SAFETY: inside the mapping, and this thread's alone.
        unsafe { at.add(i).write(i as f32) };
    }
    made.memory.flush().unwrap();
    let stats = made.memory.stats();
    assert!(
        stats.resident_bytes <= 8 << 20 && stats.written_bytes >= 20_000_000,
        "{stats:?}"
    );
    let again = raw(text(&path), number, &[-1, 5000], &LoadOptions::default()).unwrap();
    assert_eq!(again.arrays[0].tensor.shape, [1000, 5000]);
    let wanted: Vec<f32> = (0..5_000_000).map(|n| n as f32).collect();
    assert_eq!(floats(&again.arrays[0]), wanted);
}

#[test]
fn a_private_copy_is_written_and_the_file_is_not() {
    let folder = folder();
    let path = write(&folder, "x", &[1; 20 << 20]);
    let options = OpenOptions {
        mode: Mode::Copy,
        ram: Some(4 << 20),
        ..OpenOptions::default()
    };
    let memory = Memory::open(text(&path), &options).unwrap();
    for at in (0..20 << 20).step_by(4096) {
        // SAFETY: inside the mapping, and this thread's alone.
        unsafe { memory.as_ptr().add(at).write(2) };
    }
    for at in 0..20 << 20 {
        // SAFETY: as above.
        let byte = unsafe { memory.as_ptr().add(at).read() };
        assert_eq!(byte, if at % 4096 == 0 { 2 } else { 1 }, "at {at}");
    }
    drop(memory);
    assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 1));
}

#[test]
fn what_was_recorded_comes_in_by_itself() {
    let folder = folder();
    let path = write(&folder, "x", &vec![3; 32 << 20]);
    let trace = folder.path().join("trace");
    let options = OpenOptions {
        ram: Some(64 << 20),
        ..OpenOptions::default()
    };
    let memory = Memory::open(text(&path), &options).unwrap();
    memory.record(&trace).unwrap();
    let touched = [5 << 20, 30 << 20, 1 << 20, 17 << 20];
    for at in touched {
        // SAFETY: inside the mapping.
        assert_eq!(unsafe { memory.as_ptr().add(at).read_volatile() }, 3);
    }
    drop(memory);
    let recorded = Trace::read(&trace).unwrap();
    let firsts: Vec<u64> = recorded.runs.iter().map(|run| run.start.0 << 12).collect();
    assert_eq!(firsts, touched.map(|at| at as u64));
    let options = OpenOptions {
        replay: Some(Arc::new(recorded)),
        ..options
    };
    let memory = Memory::open(text(&path), &options).unwrap();
    farpage_testkit::until("what was recorded comes", || {
        memory.residency().len() >= touched.len()
    });
    // A source that has become shorter: what it still has of it.
    drop(memory);
    let cut = fs::OpenOptions::new().write(true).open(&path).unwrap();
    cut.set_len((17 << 20) + 100).unwrap();
    let memory = Memory::open(text(&path), &options).unwrap();
    let last = 17 << 20..(17 << 20) + 100;
    farpage_testkit::until("what is left of it comes", || memory.residency().len() >= 3);
    assert_eq!(memory.residency().last(), Some(&last));
}

#[test]
fn pinned_bytes_stay_and_too_many_are_refused() {
    let folder = folder();
    let path = write(&folder, "x", &vec![3; 32 << 20]);
    let options = OpenOptions {
        ram: Some(8 << 20),
        ..OpenOptions::default()
    };
    let memory = Memory::open(text(&path), &options).unwrap();
    memory.pin(0..2 << 20).unwrap();
    let refused = memory.pin(8 << 20..16 << 20).unwrap_err();
    assert!(
        refused.to_string().contains("half of the budget"),
        "{refused}"
    );
    for at in (4 << 20..32 << 20).step_by(4096) {
        // SAFETY: inside the mapping.
        assert_eq!(unsafe { memory.as_ptr().add(at).read_volatile() }, 3);
    }
    let first = memory.residency().first().cloned();
    assert!(
        first
            .as_ref()
            .is_some_and(|run| run.start == 0 && run.end >= 2 << 20),
        "{first:?}"
    );
    memory.unpin(0..2 << 20).unwrap();
    memory.discard(0..32 << 20).unwrap();
    assert_eq!(memory.stats().resident_bytes, 0);
}

#[test]
fn what_makes_no_sense_is_refused_with_a_reason() {
    let folder = folder();
    let path = write(&folder, "x.txt", b"hello");
    let default = LoadOptions::default();
    let write_far = LoadOptions {
        open: OpenOptions {
            mode: Mode::Write,
            ..OpenOptions::default()
        },
        ..LoadOptions::default()
    };
    let number = (Dtype::F64, Order::Little);
    let cases = [
        (load(text(&path), &default).err(), "give its dtype"),
        (load("/nowhere", &default).err(), "cannot find"),
        (load("gopher://x/y", &default).err(), "no way to read"),
        (
            load("http://127.0.0.1:1/x", &write_far).err(),
            "only local files",
        ),
        (raw(text(&path), number, &[-1], &default).err(), "5"),
    ];
    for (error, wanted) in cases {
        let message = error.expect("refused").to_string();
        assert!(message.contains(wanted), "{message}");
    }
}

#[test]
fn a_file_that_is_cut_fails_prefetch_with_the_reason() {
    let folder = folder();
    let path = write(&folder, "x", &vec![3; 8 << 20]);
    let memory = Memory::open(text(&path), &OpenOptions::default()).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let error = memory.prefetch(4 << 20..8 << 20, |_| ()).unwrap_err();
    let Error::NotRead { why } = &error else {
        panic!("{error}");
    };
    assert!(matches!(why, SourceError::Short { .. }), "{why}");
    // What failed is named once.
    assert_eq!(error.to_string().matches(text(&path)).count(), 1, "{error}");
}

#[test]
fn copying_bytes_that_cannot_be_had_is_an_error_and_no_signal() {
    let folder = folder();
    let path = write(&folder, "x", &vec![3; 8 << 20]);
    let memory = Memory::open(text(&path), &OpenOptions::default()).unwrap();
    let mut bytes = vec![0; (3 << 20) + 5];
    memory.read_at((1 << 20) - 7, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 3));
    let refused = memory.write_at(0, &[1]).unwrap_err();
    assert!(
        matches!(refused, Error::Source(SourceError::ReadOnly { .. })),
        "{refused}"
    );
    for (offset, bytes) in [(8 << 20, 1), (u64::MAX, 2), ((8 << 20) - 1, 2)] {
        let outside = memory.read_at(offset, &mut vec![0; bytes]);
        assert!(matches!(outside, Err(Error::Argument { .. })), "{offset}");
    }
    memory.discard(0..8 << 20).unwrap();
    let cut = fs::OpenOptions::new().write(true).open(&path).unwrap();
    cut.set_len(1 << 20).unwrap();
    let error = memory.read_at(2 << 20, &mut bytes).unwrap_err();
    assert!(error.to_string().contains("ends at byte"), "{error}");
    // Somebody has touched such a page, though not by a load, which would raise the signal.
    let lost = memory.as_ptr().addr() + (5 << 20);
    assert!(farpage_sys::copy::from(lost, &mut [0; 8]).is_err());
    let error = memory.read_at(5 << 20, &mut bytes[..8]).unwrap_err();
    assert!(error.to_string().contains("ends at byte"), "{error}");
}

#[test]
fn bytes_that_were_copied_in_are_written_back() {
    let folder = folder();
    let path = write(&folder, "x", &vec![3; 8 << 20]);
    let options = OpenOptions {
        mode: Mode::Write,
        ram: Some(4 << 20),
        ..OpenOptions::default()
    };
    let memory = Memory::open(text(&path), &options).unwrap();
    memory.write_at(4095, &vec![9; 6 << 20]).unwrap();
    memory.flush().unwrap();
    let after = fs::read(&path).unwrap();
    let wanted = |at: usize| {
        if (4095..4095 + (6 << 20)).contains(&at) {
            9
        } else {
            3
        }
    };
    let differs = after
        .iter()
        .enumerate()
        .find(|(at, byte)| **byte != wanted(*at));
    assert_eq!((differs, after.len()), (None, 8 << 20));
}

/// Runs forwards and backwards, single reads, writes and flushes, by seed, in an eighth of the
/// memory: what is read ahead is never older than what was written.
#[test]
fn a_file_that_is_read_ahead_and_written_is_as_a_plain_array() {
    const BYTES: usize = 32 << 20;
    let folder = folder();
    for seed in 1..4u64 {
        let mut model: Vec<u8> = (0..BYTES).map(|i| (i * 7 / 5) as u8).collect();
        let path = write(&folder, "file", &model);
        let options = OpenOptions {
            mode: Mode::Write,
            ram: Some(4 << 20),
            ..OpenOptions::default()
        };
        let memory = Memory::open(text(&path), &options).unwrap();
        // SAFETY: the mapping has BYTES bytes, and only this thread uses it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), BYTES) };
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut below = |bound: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as usize % bound
        };
        for _ in 0..60 {
            let (start, length) = (below(BYTES - (4 << 20)), below(4 << 20));
            let run = start..start + length;
            let step = 1 + below(6000);
            let at = run.clone().step_by(step);
            match below(5) {
                0 => assert!(bytes[run.clone()] == model[run], "seed {seed}"),
                1 => assert!(at.rev().all(|i| bytes[i] == model[i]), "seed {seed}"),
                2 => assert!((0..99).all(|_| {
                    let i = below(BYTES);
                    bytes[i] == model[i]
                })),
                3 => memory.flush().unwrap(),
                _ => at.for_each(|i| {
                    bytes[i] = bytes[i].wrapping_add(1);
                    model[i] = model[i].wrapping_add(1);
                }),
            }
        }
        memory.flush().unwrap();
        assert!(fs::read(&path).unwrap() == model, "seed {seed}");
    }
}
