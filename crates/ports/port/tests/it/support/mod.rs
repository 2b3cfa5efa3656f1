//! Both ends of a Link, for tests.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use farpage_port::link::{Frame, HEADER_BYTES, Link};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// So late that only a fault is later.
pub fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(120))
}

/// Over already.
pub fn now() -> Option<Instant> {
    Some(Instant::now())
}

/// Two ends of a Unix socket of packets.
pub fn sockets() -> (OwnedFd, OwnedFd) {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a pair")
}

/// Both ends of a Link in this process.
pub fn pair() -> (Link, Link) {
    let (one, other) = sockets();
    let connecting = std::thread::spawn(move || Link::connect_over(one, soon()));
    let accepted = Link::accept_over(other, soon()).expect("accepted");
    (
        connecting.join().expect("no panic").expect("connected"),
        accepted,
    )
}

/// A header that begins with a number.
pub fn header(number: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&number.to_ne_bytes());
    header
}

/// A frame whose header begins with a number.
pub fn frame(number: u64, body: &[u8]) -> Frame<'_> {
    Frame {
        header: header(number),
        body,
    }
}

/// The number that a header begins with.
pub fn number(header: &[u8; HEADER_BYTES]) -> u64 {
    u64::from_ne_bytes(*header.first_chunk().expect("8 bytes"))
}

/// Descriptors that this process has.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// A file that holds just `text`.
pub fn file_of(text: &str) -> OwnedFd {
    let file = farpage_sys::memory_file::create(c"text", 0).expect("a file");
    let at = farpage_sys::file::Fd(file.as_fd().as_raw_fd());
    farpage_sys::file::pwrite_all(at, text.as_bytes(), 0).expect("written");
    file
}

/// What a file holds.
pub fn text_of(file: &OwnedFd) -> String {
    let mut bytes = [0; 64];
    let at = farpage_sys::file::Fd(file.as_fd().as_raw_fd());
    let length = farpage_sys::file::pread(at, &mut bytes, 0).expect("read");
    String::from_utf8(bytes[..length].to_vec()).expect("text")
}
