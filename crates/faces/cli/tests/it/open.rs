//! `farpage open` of what a server has: arrays, and how much of it the cache has.

use std::fs;
use std::path::Path;
use std::process::Command;

use farpage::{Cache, Memory, OpenOptions};
use farpage_testkit::server::{Answer, Server, Speed};

/// Output, words on standard error and status, with the cache in `folder`.
fn open(folder: &Path, words: &[&str]) -> (String, String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
    command.arg("open").args(words).env("FARPAGE_CACHE", folder);
    let done = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(done.stdout), text(done.stderr), done.status.code())
}

/// 6 MiB of zeros as an array.
fn npy() -> Vec<u8> {
    let header = "{'descr': '>f8', 'fortran_order': True, 'shape': (1024, 768), }";
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{header:<117}\n").bytes());
    bytes.resize(128 + (6 << 20), 0);
    bytes
}

#[test]
fn a_server_is_looked_at_and_the_cache_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("x.npy"), npy()).unwrap();
    let server = Server::start(folder.path(), Speed::default()).unwrap();
    let (url, kept) = (server.url("/x.npy"), folder.path().join("kept"));

    let (text, _, status) = open(&kept, &[&url]);
    assert_eq!(status, Some(0));
    assert!(
        text.contains("npy, 1 array") && text.contains("far: in ranges"),
        "{text}"
    );
    assert!(
        text.contains(">f8   1024 x 768 (Fortran)  6291456"),
        "{text}"
    );
    assert!(text.contains(&format!("[{}]", ".".repeat(60))), "{text}");
    assert!(!kept.exists(), "looking made a cache");
    assert!(server.requests() <= 3, "{:?}", server.log());

    let options = OpenOptions {
        cache: Some(Cache::open(&kept, 64 << 20).unwrap()),
        ..OpenOptions::default()
    };
    let memory = Memory::open(&url, &options).unwrap();
    memory.read_at(0, &mut vec![0; 3 << 20]).unwrap();
    drop(memory);
    let (text, _, _) = open(&kept, &[&url]);
    let bar = text.lines().find_map(|line| line.trim().strip_prefix('['));
    let bar = bar.unwrap_or_else(|| panic!("{text}"));
    assert!(bar.starts_with(&"#".repeat(29)) && bar.len() == 61, "{bar}");

    let (json, _, _) = open(&kept, &["--json", &url]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["reach"], "far");
    assert_eq!(json["arrays"][0]["shape"], serde_json::json!([1024, 768]));
    assert_eq!(json["cache"]["ranges"][0][0], 0);
    assert!(json["cache"]["bytes"].as_u64().unwrap() >= 3 << 20);
}

#[test]
fn what_could_be_written_to_is_said_and_a_deadline_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    fs::write(&path, npy()).unwrap();
    let server = Server::start(folder.path(), Speed::default()).unwrap();
    let url = server.url("/x.npy");
    let (text, _, _) = open(folder.path(), &[&url]);
    assert!(
        text.contains("  write     no: what HTTP serves is only read\n"),
        "{text}"
    );
    let (json, _, _) = open(folder.path(), &["--json", path.to_str().unwrap()]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["writable"], true);

    server.always("/x.npy", Answer::Status(503, Vec::new()));
    let (_, error, status) = open(folder.path(), &["--deadline", "1", &url]);
    assert_eq!(status, Some(1));
    assert!(error.contains("did not answer within 1 s"), "{error}");
}

#[test]
fn headers_are_sent_and_failures_are_told() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("x.npy"), npy()).unwrap();
    let server = Server::start(folder.path(), Speed::default()).unwrap();
    let url = server.url("/x.npy");
    let (_, _, status) = open(folder.path(), &["--header", "X-Key: some words", &url]);
    assert_eq!(status, Some(0));
    let sent =
        |request: &farpage_testkit::server::Request| request.header("x-key") == Some("some words");
    assert!(server.log().iter().all(sent), "{:?}", server.log());

    server.always("/x.npy", Answer::Status(403, Vec::new()));
    let (text, error, status) = open(folder.path(), &[&url]);
    assert_eq!((text.as_str(), status), ("", Some(1)));
    assert!(error.starts_with("farpage: may not access"), "{error}");
    let (_, error, status) = open(folder.path(), &[&server.url("/gone")]);
    assert_eq!(status, Some(1));
    assert!(error.starts_with("farpage: cannot find"), "{error}");
}
