//! The server is as slow as it was told.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use farpage_testkit::server::{Server, Speed};
use farpage_testkit::until;

/// Fetches a file of `bytes` bytes and says how long it took.
fn fetch(speed: Speed, bytes: usize) -> Duration {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), vec![7; bytes]).unwrap();
    let server = Server::start(folder.path(), speed).unwrap();
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let start = Instant::now();
    stream.write_all(b"GET /a HTTP/1.1\r\n\r\n").unwrap();
    let mut read = 0;
    let mut buffer = vec![0; 1 << 16];
    while read < bytes {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "the server ended at {read}");
        read += count;
    }
    start.elapsed()
}

#[test]
fn a_connection_has_its_rate_and_no_more() {
    let speed = Speed {
        bytes_per_s: Some(60_000_000),
        ..Speed::default()
    };
    // All but the last step have been waited for. A machine that does much else takes longer, but
    // not always.
    until("it has its rate", || {
        let took = fetch(speed, 12_000_000);
        assert!(took > Duration::from_millis(197), "{took:?}");
        took < Duration::from_secs(2)
    });
}

#[test]
fn the_first_byte_is_late() {
    let speed = Speed {
        latency: Duration::from_millis(30),
        ..Speed::default()
    };
    assert!(fetch(speed, 10) >= Duration::from_millis(30));
}
