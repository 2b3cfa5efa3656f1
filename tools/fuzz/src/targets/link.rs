//! A Link whose peer writes anything into the memory that they share.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use farpage_port::link::{Frame, HEADER_BYTES, Link, VERSION};
use farpage_sys::memory_file::{self, Words};
use farpage_sys::message;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Where things lie, as in `crates/ports/port/src/link/layout.rs`.
const BYTES: usize = 4096 + 2 * 64 * 128 + 2 * 1024 * 128;
const TAIL: usize = 0;
const OTHER_HEAD: usize = (256 + 128) / 4;
const LONG_TAIL: usize = 2048 / 4;
const FIRST_SLOT: usize = 4096 / 8;
/// Bytes of the input before the slots: the ring's tail, that of the ring of long bodies, the
/// other ring's head, descriptors.
const HEAD: usize = 4;

/// Whatever is there, the Link takes messages or ends, and an end is one for good.
pub(crate) fn run(input: &[u8]) {
    let Some((&[tail, long, head, fds], slots)) = input.split_first_chunk::<HEAD>() else {
        return;
    };
    let (socket, words, victim) = attack();
    let to = &words.u64s()[FIRST_SLOT..FIRST_SLOT + 64 * 16];
    for (to, bytes) in to.iter().zip(slots.chunks(8)) {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        to.store(u64::from_ne_bytes(word), Ordering::Relaxed);
    }
    for number in 1..=u64::from(fds & 3) {
        let file = file(fds);
        message::send(
            socket.as_fd(),
            &number.to_ne_bytes(),
            &[file.as_fd()],
            false,
        )
        .expect("passed");
    }
    let words = words.u32s();
    words[LONG_TAIL].store(u32::from(long), Ordering::Relaxed);
    words[OTHER_HEAD].store(u32::from(head), Ordering::Relaxed);
    words[TAIL].store(u32::from(tail), Ordering::Release);
    for _ in 0..65 {
        match victim.try_receive() {
            Ok(Some(message)) => drop(message.body.len()),
            Ok(None) => break,
            Err(ended) => {
                assert_eq!(victim.try_receive().err(), Some(ended));
                break;
            }
        }
    }
    let frame = Frame {
        header: [0; HEADER_BYTES],
        body: b"to who lies",
    };
    let _ = victim.send(&frame, &[]);
}

/// A connector that keeps to no rule, and its victim.
fn attack() -> (OwnedFd, Words, Link) {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (own, socket) =
        rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a pair");
    let ring = memory_file::create(c"ring", BYTES).expect("memory");
    memory_file::seal(ring.as_fd(), memory_file::FIXED).expect("sealed");
    let (read, _wake) = rustix::pipe::pipe().expect("a pipe");
    let mut greeting = [0; 16];
    greeting[..4].copy_from_slice(b"FpLk");
    greeting[4..6].copy_from_slice(&VERSION.to_ne_bytes());
    let fds = [ring.as_fd(), read.as_fd()];
    message::send(own.as_fd(), &greeting, &fds, true).expect("greeted");
    let victim = Link::accept_over(socket, None).expect("a Link");
    let words = Words::map(ring.as_fd(), BYTES).expect("mapped");
    (own, words, victim)
}

/// Memory of one page, sealed or not.
fn file(what: u8) -> OwnedFd {
    let file = memory_file::create(c"page", 4096).expect("memory");
    if what & 4 != 0 {
        let seals = memory_file::FIXED | memory_file::WRITE;
        memory_file::seal(file.as_fd(), seals).expect("sealed");
    }
    file
}

/// A frame of each kind, and one that takes two slots.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let kinds: [(u8, u8, u32, &[u64]); 8] = [
        (1, 0, 5, &[7]),
        (1, 0, 100, &[7]),
        (2, 1, 8, &[4096]),
        (3, 1, 8, &[4096]),
        (4, 1, 16, &[0, 4096]),
        (5, 0, 32, &[0, 0, 0, 1]),
        (6, 0, 8, &[0]),
        (7, 0, 8, &[128]),
    ];
    let seed = |(kind, fds, bytes, body): (u8, u8, u32, &[u64])| {
        let head = u64::from(kind) | u64::from(fds) << 8 | u64::from(bytes) << 32;
        let mut words = vec![head, u64::from(fds)];
        words.extend([0; 6]);
        words.extend(body);
        let mut seed = vec![1 + u8::from(bytes > 64), 1, 0, fds | 4];
        seed.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        seed
    };
    kinds.map(seed).into()
}
