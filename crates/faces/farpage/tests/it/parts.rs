//! Several files and addresses as one memory, and parts of them.

use std::fs;
use std::path::{Path, PathBuf};

use farpage::{
    Dtype, Error, LoadOptions, Memory, Mode, OpenOptions, Order, Place, Places, SourceError, load,
    raw,
};
use farpage_testkit::server::{Answer, Server, Speed};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn byte(at: usize) -> u8 {
    (at / 4096 * 7 + at % 251) as u8
}

/// A file of these of the bytes that all tests know.
fn file(folder: &TempDir, name: &str, bytes: std::ops::Range<usize>) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, bytes.map(byte).collect::<Vec<u8>>()).unwrap();
    path
}

fn whole(path: &Path) -> Place {
    path.to_str().unwrap().into()
}

fn part(path: &Path, offset: u64, size: u64) -> Place {
    Place {
        offset: Some(offset),
        size: Some(size),
        ..whole(path)
    }
}

fn writing() -> OpenOptions {
    OpenOptions {
        mode: Mode::Write,
        ram: Some(4 << 20),
        ..OpenOptions::default()
    }
}

fn all(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.size() as usize];
    memory.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn parts_near_and_far_read_as_one_memory() {
    let folder = folder();
    let server = Server::start(folder.path(), Speed::default()).unwrap();
    let (a, b) = (1_000_001, 3_000_003);
    let first = file(&folder, "a", 0..a);
    file(&folder, "b", a..b);
    let last = file(&folder, "c", b - 10_000..b + 50_000);
    let places = Places(vec![
        whole(&first),
        server.url("/b").as_str().into(),
        Place {
            offset: Some(10_000),
            ..whole(&last)
        },
    ]);
    let options = OpenOptions {
        ram: Some(8 << 20),
        ..OpenOptions::default()
    };
    let memory = Memory::open(places, &options).unwrap();
    assert_eq!(memory.size(), 3_050_003);
    let name = memory.name();
    assert!(
        name.contains("/a .. ") && name.ends_with("(3 parts)"),
        "{name}"
    );
    let wanted: Vec<u8> = (0..3_050_003).map(byte).collect();
    assert!(all(&memory) == wanted);
    memory.discard(0..memory.size()).unwrap();
    assert_eq!(
        memory.prefetch(0..memory.size(), |_| ()).unwrap(),
        3_050_003
    );
    let stats = memory.stats();
    assert!(stats.reads > 1 && stats.failures == 0, "{stats:?}");
    assert_eq!(stats.resident_bytes, 3_050_003);
    let version = memory.version().unwrap();
    assert_eq!(version.matches(" bytes changed ").count(), 2, "{version}");
}

#[test]
fn a_part_of_a_server_s_file_is_all_that_is_fetched() {
    let folder = folder();
    let server = Server::start(folder.path(), Speed::default()).unwrap();
    file(&folder, "x", 0..4 << 20);
    let place = Place {
        offset: Some(1 << 20),
        size: Some(8192),
        ..server.url("/x").as_str().into()
    };
    let memory = Memory::open(Places(vec![place]), &OpenOptions::default()).unwrap();
    assert_eq!(
        all(&memory),
        ((1 << 20)..(1 << 20) + 8192).map(byte).collect::<Vec<u8>>()
    );
    assert_eq!(memory.stats().read_bytes, 8192);
    assert!(memory.name().ends_with("/x[1048576..1056768]"));
}

#[test]
fn a_file_of_arrays_that_was_cut_loads_whole() {
    let folder = folder();
    let header = "{'descr': '<i4', 'fortran_order': False, 'shape': (3000, 100), }";
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{header:<117}\n").bytes());
    bytes.extend((0..300_000i32).flat_map(i32::to_le_bytes));
    let (head, tail) = bytes.split_at(500_001);
    let parts = [("x.npy.0", head), ("x.npy.1", tail)].map(|(name, bytes)| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        whole(&path)
    });
    let numbers = parts.clone();
    let loaded = load(Places(parts.to_vec()), &LoadOptions::default()).unwrap();
    let tensor = &loaded.arrays[0].tensor;
    assert_eq!(tensor.shape, [3000, 100]);
    let mut last = [0; 4];
    loaded
        .memory
        .read_at(tensor.offset + 4 * 299_999, &mut last)
        .unwrap();
    assert_eq!(i32::from_le_bytes(last), 299_999);

    let mut numbers = numbers.to_vec();
    numbers[0].offset = Some(128);
    let number = (Dtype::I32, Order::Little);
    let loaded = raw(
        Places(numbers),
        number,
        &[-1, 1000],
        &LoadOptions::default(),
    )
    .unwrap();
    assert_eq!(loaded.arrays[0].tensor.shape, [300, 1000]);
    // As many as the shape takes, from there on.
    let begins = Place {
        offset: Some(128 + 4000),
        ..parts[0].clone()
    };
    let loaded = raw(
        Places(vec![begins]),
        number,
        &[10, 5],
        &LoadOptions::default(),
    )
    .unwrap();
    loaded.memory.read_at(0, &mut last).unwrap();
    assert_eq!(
        (loaded.memory.size(), i32::from_le_bytes(last)),
        (200, 1000)
    );
}

#[test]
fn what_is_written_goes_to_the_parts_and_nowhere_else() {
    let folder = folder();
    let a = file(&folder, "a", 0..10_000);
    let b = file(&folder, "b", 0..20_000);
    // The middle of `b` twice over: before and after `a`.
    let places = vec![part(&b, 5_000, 3_000), whole(&a), part(&b, 8_000, 4_096)];
    let memory = Memory::open(Places(places), &writing()).unwrap();
    assert!(memory.is_writable());
    memory.write_at(2_990, &[9; 20]).unwrap();
    memory.write_at(12_999, &[8; 2]).unwrap();
    memory.flush().unwrap();
    assert!(memory.stats().written_bytes > 0);
    let wanted = |size: usize, changed: &[(std::ops::Range<usize>, u8)]| {
        let mut bytes: Vec<u8> = (0..size).map(byte).collect();
        for (range, value) in changed {
            bytes[range.clone()].fill(*value);
        }
        bytes
    };
    let in_a = wanted(10_000, &[(0..10, 9), (9_999..10_000, 8)]);
    let in_b = wanted(20_000, &[(7_990..8_000, 9), (8_000..8_001, 8)]);
    assert!(fs::read(&a).unwrap() == in_a && fs::read(&b).unwrap() == in_b);

    let copy = OpenOptions {
        mode: Mode::Copy,
        ..OpenOptions::default()
    };
    let memory = Memory::open(Places(vec![whole(&a), whole(&a)]), &copy).unwrap();
    memory.write_at(0, &[77; 20_000]).unwrap();
    assert_eq!(all(&memory), [77; 20_000]);
    drop(memory);
    assert!(fs::read(&a).unwrap() == in_a);
}

#[test]
fn parts_that_make_no_sense_are_refused_with_a_reason() {
    let folder = folder();
    let a = file(&folder, "a", 0..1000);
    let b = file(&folder, "b", 0..1000);
    let read = OpenOptions::default();
    let create = OpenOptions {
        mode: Mode::Create,
        size: Some(2000),
        ..OpenOptions::default()
    };
    let grow = OpenOptions {
        size: Some(2001),
        ..writing()
    };
    let both = vec![whole(&a), whole(&b)];
    let store = vec![whole(&a), "s3://bucket/key".into()];
    let linked = folder.path().join("linked");
    fs::hard_link(&a, &linked).unwrap();
    let cases = [
        (
            vec![whole(&a), whole(&linked)],
            &writing(),
            "two have the same bytes of '",
        ),
        (vec![], &read, "parts: there are none; name at least one"),
        (
            vec![whole(&a), whole(&folder.path().join("none"))],
            &read,
            "/none'",
        ),
        (
            vec![part(&a, 900, 101)],
            &read,
            "bytes 900 to 1001 are not inside '",
        ),
        (
            vec![part(&a, 1001, 0)],
            &read,
            "which has 1000; give a range inside",
        ),
        (
            vec![part(&a, u64::MAX, u64::MAX)],
            &read,
            "give a range inside",
        ),
        (both.clone(), &create, "make each file by itself"),
        (
            both,
            &grow,
            "has 2000 bytes, not 2001, and parts do not grow",
        ),
        (
            vec![part(&a, 0, 600), whole(&b), part(&a, 599, 1)],
            &writing(),
            "two have the same bytes of '",
        ),
        (
            store,
            &writing(),
            "mode: objects in stores are replaced as a whole",
        ),
    ];
    for (places, options, wanted) in cases {
        let error = Memory::open(Places(places), options)
            .err()
            .expect("refused");
        let message = error.to_string();
        assert!(message.contains(wanted), "{message}");
    }
    assert_eq!(fs::read(&a).unwrap().len(), 1000);
    // The edges of what is inside.
    let edges = vec![part(&a, 1000, 0), part(&a, 0, 600), part(&a, 600, 400)];
    assert_eq!(
        Memory::open(Places(edges), &writing()).unwrap().size(),
        1000
    );
}

#[test]
fn a_part_that_changes_is_named() {
    let folder = folder();
    let server = Server::start(folder.path(), Speed::default()).unwrap();
    file(&folder, "b", 0..1 << 20);
    file(&folder, "c", 0..1 << 20);
    let places = ["/b", "/c"].map(|name| Place::from(server.url(name).as_str()));
    let memory = Memory::open(Places(places.to_vec()), &OpenOptions::default()).unwrap();
    server.always("/c", Answer::Tagged("\"other\"".into()));
    let error = memory.read_at(1 << 20, &mut [0; 10]).unwrap_err();
    let Error::NotRead { why } = &error else {
        panic!("{error}");
    };
    assert!(
        matches!(why, SourceError::Changed { name, .. } if name.ends_with("/c")),
        "{why}"
    );
    memory.read_at(0, &mut [0; 10]).unwrap();
}

#[test]
fn a_slice_s_version_says_where_it_begins() {
    let folder = folder();
    let path = file(&folder, "x", 0..10_000);
    let version = |offset| {
        let places = Places(vec![part(&path, offset, 100)]);
        let memory = Memory::open(places, &OpenOptions::default()).unwrap();
        memory.version().unwrap()
    };
    assert_eq!(version(8), version(8));
    assert_ne!(version(8), version(16));
}

#[test]
fn what_is_compressed_is_refused_for_writing_and_left_as_it_is() {
    let folder = folder();
    let path = folder.path().join("x.gz");
    // The head of a gzip file, and nothing behind it.
    let packed = b"\x1f\x8b\x08\x00\0\0\0\0\0\x03 and more";
    fs::write(&path, packed).unwrap();
    let address = path.display().to_string();
    let open = |mode, decompress| {
        let options = OpenOptions {
            mode,
            decompress,
            size: (mode == Mode::Create).then_some(5),
            ..OpenOptions::default()
        };
        Memory::open(address.as_str(), &options)
    };
    for (mode, decompress) in [
        (Mode::Write, None),
        (Mode::Write, Some(true)),
        (Mode::Create, Some(true)),
        (Mode::Create, None),
    ] {
        let error = open(mode, decompress).err().unwrap().to_string();
        assert!(error.contains("what is compressed is only read"), "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), packed);
    assert_eq!(
        open(Mode::Write, Some(false)).unwrap().size(),
        packed.len() as u64
    );
}
