//! A Node whose peer says anything.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use farpage_port::link::{Frame, HEADER_BYTES, Link, SendError};
use farpage_port::{Node, ReceiveRight, SendRight};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// As in `crates/ports/port/src/node/packet.rs`.
const OWN: u8 = 0x80;
const HELLO: u8 = 1;
const INTRODUCE: u8 = 6;
const UNKNOWN: u8 = 8;
/// A task that nobody knows.
const NOBODY: u64 = 1 << 32 | 1;

struct Victim {
    node: Node,
    port: ReceiveRight,
    right: SendRight,
}

fn victim() -> &'static Victim {
    static VICTIM: OnceLock<Victim> = OnceLock::new();
    VICTIM.get_or_init(|| {
        let node = Node::new().expect("a Node");
        let port = node.port();
        let right = port.make_send();
        Victim { node, port, right }
    })
}

/// A peer that says hello and then anything is heard to the end, or its Link ends; the Node goes on
/// either way.
pub(crate) fn run(input: &[u8]) {
    let Victim { node, port, right } = victim();
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (own, socket) =
        rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a pair");
    node.offer_over(socket, right).expect("offered");
    let link = Link::connect_over(own, None).expect("a Link");
    let file = std::fs::File::open("/dev/null").expect("a file").into();
    let hello = say(HELLO, u64::from(std::process::id()) << 32 | 0xffff_ffff);
    let mut went = put(&link, hello, &[], 0, &file);
    let mut rest = input;
    while let Some((&[fds, length], after)) = rest.split_first_chunk()
        && went
    {
        let (header, after) = after.split_at(after.len().min(HEADER_BYTES));
        let (body, after) = after.split_at(after.len().min(usize::from(length)));
        let mut whole = [0; HEADER_BYTES];
        whole[..header.len()].copy_from_slice(header);
        went = put(&link, whole, body, usize::from(fds & 3), &file);
        rest = after;
    }
    if went && put(&link, say(INTRODUCE, NOBODY), &[], 0, &file) {
        until_heard(&link);
    }
    drop(link);
    while port.receive(Some(Duration::ZERO)).is_ok() {}
}

fn say(what: u8, task: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..3].copy_from_slice(&[OWN, what, 1]);
    header[8..16].copy_from_slice(&task.to_le_bytes());
    header
}

/// False when the Link has ended.
fn put(link: &Link, header: [u8; HEADER_BYTES], body: &[u8], fds: usize, file: &OwnedFd) -> bool {
    let fds = vec![file.as_fd(); fds];
    let until = Some(Instant::now() + Duration::from_secs(5));
    match link.send_until(&Frame { header, body }, &fds, until) {
        Ok(()) => true,
        Err(SendError::Ended(_)) => false,
        Err(error) => panic!("the Node does not hear: {error}"),
    }
}

/// What was said last is answered last.
fn until_heard(link: &Link) {
    let until = Some(Instant::now() + Duration::from_secs(5));
    loop {
        match link.receive(until) {
            Ok(message) if message.header[..2] == [OWN, UNKNOWN] => return,
            Ok(_) => {}
            Err(farpage_port::link::ReceiveError::Ended(_)) => return,
            Err(error) => panic!("the Node does not answer: {error}"),
        }
    }
}

/// What Nodes say to each other, and frames of rights.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let record = |fds: u8, header: [u8; HEADER_BYTES], body: &[u8]| {
        [&[fds, body.len() as u8], &header[..], body].concat()
    };
    let said = (1..=8).map(|what| record(u8::from(what == 7), say(what, NOBODY), &[]));
    let mut seeds: Vec<_> = said.collect();
    for frame in super::rights::seeds() {
        let mut header = [0; HEADER_BYTES];
        let (head, body) = frame.split_at(frame.len().min(HEADER_BYTES));
        header[..head.len()].copy_from_slice(head);
        seeds.push(record(0, header, body));
    }
    seeds
}
