//! A peer that breaks the rules ends its Link, and nothing else happens.
//!
//! The attacker speaks the protocol by hand: places in the shared memory are written out here.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use farpage_port::link::{
    ConnectError, Draft, Ended, Link, REGIONS_MAX, ReceiveError, Region, Sealed, SendError,
    VERSION, Violation,
};
use farpage_sys::memory_file::{self, Words};
use farpage_sys::{file, message};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::net::Shutdown;

use crate::support;
use crate::support::{descriptors, file_of, frame, header, number, sockets, soon};

const BYTES: usize = 4096 + 2 * 64 * 128 + 2 * 1024 * 128;
/// Words of four bytes of the connector's direction, and of the other.
const TAIL: usize = 0;
const OTHER_HEAD: usize = (256 + 128) / 4;
const FIRST_SLOT: usize = 4096 / 8;
const PLAIN: u64 = 1;

fn greeting(version: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(b"FpLk");
    bytes[4..6].copy_from_slice(&version.to_ne_bytes());
    bytes
}

/// A connector that keeps to no rule, and its victim.
struct Attacker {
    socket: OwnedFd,
    ring: OwnedFd,
    words: Words,
    wake: OwnedFd,
    /// The pipe that the victim wakes us by.
    woken: OwnedFd,
}

fn ring() -> OwnedFd {
    let ring = memory_file::create(c"ring", BYTES).unwrap();
    memory_file::seal(ring.as_fd(), memory_file::FIXED).unwrap();
    ring
}

fn attack() -> (Attacker, Link) {
    let (own, socket) = sockets();
    let victim = thread::spawn(move || Link::accept_over(socket, soon()).unwrap());
    let ring = ring();
    let (read, wake) = rustix::pipe::pipe().unwrap();
    message::send(
        own.as_fd(),
        &greeting(VERSION),
        &[ring.as_fd(), read.as_fd()],
        true,
    )
    .unwrap();
    let victim = victim.join().unwrap();
    let mut answer = message::receive(own.as_fd(), &mut [0; 64]).unwrap();
    let words = Words::map(ring.as_fd(), BYTES).unwrap();
    let attacker = Attacker {
        socket: own,
        ring,
        words,
        wake,
        woken: answer.fds.remove(0),
    };
    (attacker, victim)
}

impl Attacker {
    fn store(&self, word: usize, value: u32) {
        self.words.u32s()[word].store(value, Ordering::SeqCst);
        rustix::io::write(&self.wake, &[0]).unwrap();
    }

    /// Puts frames into the first slots, each given by its first word, its number and its body.
    fn put(&self, frames: &[(u64, u64, &[u64])]) {
        for (slot, (first, number, body)) in frames.iter().enumerate() {
            let at = FIRST_SLOT + slot * 16;
            let words = &self.words.u64s()[at..at + 16];
            words[0].store(*first, Ordering::Relaxed);
            words[1].store(*number, Ordering::Relaxed);
            for (word, value) in words[8..].iter().zip(*body) {
                word.store(*value, Ordering::Relaxed);
            }
        }
        self.store(TAIL, frames.len() as u32);
    }

    fn pass(&self, number: u64, fds: &[&OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        message::send(self.socket.as_fd(), &number.to_ne_bytes(), &fds, false).unwrap();
    }
}

fn first(kind: u64, fds: u64, bytes: u64) -> u64 {
    kind | fds << 8 | bytes << 32
}

/// The violation that ends the victim's Link, for receiving and then also for sending.
fn violation(victim: &Link) -> Violation {
    for _ in 0..100 {
        match victim.receive(soon()) {
            Ok(_) => {}
            Err(ReceiveError::Ended(Ended::Violation(violation))) => {
                let ended = Ended::Violation(violation);
                assert_eq!(
                    victim.send(&frame(0, &[]), &[]),
                    Err(SendError::Ended(ended))
                );
                assert_eq!(victim.try_receive().err(), Some(ended));
                return violation;
            }
            Err(other) => panic!("{other}"),
        }
    }
    panic!("no end of it");
}

#[test]
fn long_bodies_that_are_not_there_are_violations() {
    const LONG_TAIL: usize = 2048 / 4;
    const IN_LONG_RING: u64 = 7;
    let most = farpage_port::link::IN_LONG_RING_MAX as u64;
    for (tail, bytes) in [(0, 1), (1, 129), (1024, most + 1), (1024, u64::MAX)] {
        let (attacker, victim) = attack();
        attacker.store(LONG_TAIL, tail);
        attacker.put(&[(first(IN_LONG_RING, 0, 8), 0, &[bytes])]);
        assert!(matches!(violation(&victim), Violation::Length { slots, .. } if slots == tail));
    }
    let (attacker, victim) = attack();
    attacker.store(LONG_TAIL, 1025);
    attacker.put(&[(first(IN_LONG_RING, 0, 8), 0, &[1])]);
    let index = 1025;
    assert_eq!(violation(&victim), Violation::Index { index, own: 0 });
    let (attacker, victim) = attack();
    attacker.store(LONG_TAIL, 1);
    attacker.put(&[(first(IN_LONG_RING, 0, 8), 0, &[128])]);
    assert_eq!(victim.receive(soon()).unwrap().body[..], [0; 128]);
}

#[test]
fn impossible_indices_are_violations() {
    for index in [65, u32::MAX, 1 << 31] {
        let (attacker, victim) = attack();
        attacker.store(TAIL, index);
        assert_eq!(violation(&victim), Violation::Index { index, own: 0 });
        let (attacker, victim) = attack();
        attacker.store(OTHER_HEAD, index);
        let mut sent = (0..200).map(|n| victim.send_until(&frame(n, &[]), &[], soon()));
        let error = sent.find_map(Result::err);
        let lie = Violation::Index { index, own: 64 };
        assert_eq!(error, Some(SendError::Ended(lie.into())));
    }
}

#[test]
fn impossible_frames_are_violations() {
    for word in [
        0,
        9,
        first(PLAIN, 17, 0),
        first(PLAIN, 0, 0) | 1 << 20,
        first(6, 0, 9),
    ] {
        let (attacker, victim) = attack();
        attacker.put(&[(word, 0, &[])]);
        assert_eq!(violation(&victim), Violation::Frame(word));
    }
    for bytes in [65u32, 4096, 4161, 1 << 20, u32::MAX] {
        let (attacker, victim) = attack();
        attacker.put(&[(first(PLAIN, 0, bytes.into()), 0, &[])]);
        assert_eq!(violation(&victim), Violation::Length { bytes, slots: 1 });
    }
}

#[test]
fn a_ring_that_is_scribbled_over_all_the_time_neither_hangs_nor_harms() {
    for seed in 1..40u64 {
        let (attacker, victim) = attack();
        let stop = AtomicBool::new(false);
        thread::scope(|s| {
            s.spawn(|| {
                let mut random = seed;
                while !stop.load(Ordering::Relaxed) {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let word = (random >> 40) as usize;
                    let small = random as u32 % 80;
                    match seed % 3 {
                        0 => attacker.words.u64s()[word % (BYTES / 8)]
                            .store(random, Ordering::Relaxed),
                        1 => attacker.words.u32s()[word % 1024].store(small, Ordering::Relaxed),
                        _ => {
                            let at = FIRST_SLOT + word % 64 * 16;
                            let kind = random % 8;
                            attacker.words.u64s()[at].store(kind, Ordering::Relaxed);
                            attacker.words.u32s()[TAIL].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    let _ = rustix::io::write(&attacker.wake, &[0; 1]);
                    let _ = rustix::io::read(&attacker.woken, &mut [0; 64]);
                }
            });
            let until = std::time::Instant::now() + std::time::Duration::from_millis(20);
            while std::time::Instant::now() < until {
                let received = victim.receive(Some(until));
                let sent = victim.send(&frame(1, &[2; 300]), &[]);
                if received.is_err() && sent.is_err() {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn memory_that_could_shrink_is_refused_and_what_was_taken_cannot_shrink() {
    let not_sealed = memory_file::create(c"ring", BYTES).unwrap();
    let large = memory_file::create(c"ring", BYTES + 4096).unwrap();
    memory_file::seal(large.as_fd(), memory_file::FIXED).unwrap();
    let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    for bad in [not_sealed, large, null] {
        let (own, socket) = sockets();
        let (read, _write) = rustix::pipe::pipe().unwrap();
        message::send(
            own.as_fd(),
            &greeting(VERSION),
            &[bad.as_fd(), read.as_fd()],
            true,
        )
        .unwrap();
        let refused = Link::accept_over(socket, soon());
        assert!(
            matches!(refused, Err(ConnectError::Greeting(_))),
            "{refused:?}"
        );
    }
    let (attacker, victim) = attack();
    assert!(rustix::fs::ftruncate(&attacker.ring, 0).is_err());
    victim.send(&frame(1, &[]), &[]).unwrap();
    // Holes read as zeros: all indices are back at the beginning, where they were.
    let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&attacker.ring, holes, 0, BYTES as u64).unwrap();
    attacker.put(&[(0, 0, &[])]);
    assert_eq!(violation(&victim), Violation::Frame(0));
}

#[test]
fn something_else_than_a_pipe_is_refused() {
    let null = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let (own, socket) = sockets();
    message::send(
        own.as_fd(),
        &greeting(VERSION),
        &[ring().as_fd(), null.as_fd()],
        true,
    )
    .unwrap();
    let refused = Link::accept_over(socket, soon());
    assert!(
        matches!(refused, Err(ConnectError::Greeting(_))),
        "{refused:?}"
    );
}

#[test]
fn flags_of_what_is_shared_and_a_full_pipe_make_nobody_wait() {
    let (attacker, victim) = attack();
    for fd in [&attacker.socket, &attacker.woken, &attacker.wake] {
        let flags = rustix::fs::fcntl_getfl(fd).unwrap();
        rustix::fs::fcntl_setfl(fd, flags ^ OFlags::NONBLOCK).unwrap();
    }
    // The attacker opens the other end of the pipe that it only reads from, and fills it.
    let path = format!("/proc/self/fd/{}", attacker.woken.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK;
    let filling = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap();
    while rustix::io::write(&filling, &[0; 4096]).is_ok() {}
    let flag = 1;
    for n in 0..64 {
        attacker.store(256 / 4 + flag, 1);
        victim.send(&frame(n, &[]), &[]).unwrap();
    }
    assert_eq!(victim.send(&frame(64, &[]), &[]), Err(SendError::Full));
    attacker.put(&[(first(PLAIN, 0, 0), 0, &[])]);
    assert!(victim.receive(soon()).is_ok());
}

#[test]
fn half_a_socket_is_a_violation_and_a_closed_one_is_death() {
    let (attacker, victim) = attack();
    attacker.put(&[(first(PLAIN, 0, 0), 0, &[])]);
    rustix::net::shutdown(&attacker.socket, Shutdown::Write).unwrap();
    assert_eq!(violation(&victim), Violation::Shutdown);
    let (attacker, victim) = attack();
    attacker.put(&[(first(PLAIN, 0, 0), 0, &[])]);
    drop(attacker);
    assert!(victim.receive(soon()).is_ok(), "it was sent before");
    assert_eq!(
        victim.receive(soon()).err(),
        Some(ReceiveError::Ended(Ended::Died))
    );
}

#[test]
fn descriptors_that_do_not_fit_their_frame_are_violations_and_are_closed() {
    let own = std::env::current_exe().unwrap();
    let test = [
        "--exact",
        "attacks::descriptors_are_counted",
        "--nocapture",
        "--ignored",
    ];
    let output = std::process::Command::new(own).args(test).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
#[ignore = "needs a process of its own: run by the test before"]
fn descriptors_are_counted() {
    let file = file_of("x");
    let before = descriptors();
    let claims = |announced: u64, number: u64, sent: &[(u64, usize)]| {
        let (attacker, victim) = attack();
        for &(number, count) in sent {
            attacker.pass(number, &vec![&file; count]);
        }
        attacker.put(&[(first(PLAIN, announced, 0), number, &[])]);
        let found = violation(&victim);
        assert!(matches!(found, Violation::Descriptors { .. }), "{found:?}");
    };
    claims(1, 1, &[]);
    claims(1, 1, &[(1, 0)]);
    claims(1, 1, &[(1, 2)]);
    claims(2, 1, &[(1, 253)]);
    claims(1, 1, &[(2, 1)]);
    claims(1, 2, &[(2, 1)]);
    claims(1, 1, &[(7, 3), (1, 1)]);
    let (attacker, victim) = attack();
    // More than a message of the protocol, and a flood that nobody announced.
    let fds = [file.as_fd()];
    while message::send(attacker.socket.as_fd(), &[1; 100], &fds, false).is_ok() {}
    attacker.put(&[(first(PLAIN, 0, 0), 0, &[]), (first(PLAIN, 1, 0), 1, &[])]);
    assert!(victim.receive(soon()).is_ok(), "the flood is not looked at");
    assert!(matches!(violation(&victim), Violation::Descriptors { .. }));
    drop((attacker, victim));
    assert_eq!(descriptors(), before);
}

#[test]
fn memory_that_is_not_what_it_is_said_to_be_is_a_violation() {
    let mut draft = Draft::create(c"x", 8192).unwrap();
    draft.fill(1);
    let sealed = draft.seal().unwrap();
    let open = memory_file::create(c"x", 8192).unwrap();
    let only_write = memory_file::create(c"x", 8192).unwrap();
    memory_file::seal(only_write.as_fd(), memory_file::WRITE).unwrap();
    for kind in [2, 3] {
        for (fd, bytes) in [(&sealed, 8191), (&open, 8192), (&only_write, 8192)] {
            let (attacker, victim) = attack();
            attacker.pass(1, &[fd]);
            attacker.put(&[(first(kind, 1, 8), 1, &[bytes])]);
            assert!(matches!(violation(&victim), Violation::Memory(_)));
        }
        let (attacker, victim) = attack();
        attacker.pass(1, &[&sealed]);
        attacker.put(&[(first(kind, 1, 8), 1, &[8192])]);
        assert!(victim.receive(soon()).is_ok());
    }
}

#[test]
fn loans_beyond_what_was_announced_are_violations() {
    let region = memory_file::Region::create(c"r", 8192).unwrap();
    let region = region.fd().try_clone_to_owned().unwrap();
    let announce = |number| (first(4, 1, 16), number + 1, [number, 8192]);
    let (fine, _) = (announce(0), ());
    let loan = first(5, 0, 32);
    for body in [
        [0, 1, 0, 1],
        [0, 0, 0, 8193],
        [0, 0, 8192, 1],
        [0, 0, u64::MAX, 2],
    ] {
        let (attacker, victim) = attack();
        attacker.pass(1, &[&region]);
        attacker.put(&[
            (fine.0, fine.1, &fine.2),
            (loan, 0, &[3, 0, 4096, 4096]),
            (loan, 0, &body),
        ]);
        assert!(victim.receive(soon()).is_ok());
        let [_, region, offset, bytes] = body;
        let expected = Violation::Region {
            region,
            offset,
            bytes,
        };
        assert_eq!(violation(&victim), expected);
    }
    let (attacker, victim) = attack();
    attacker.put(&[(first(6, 0, 8), 0, &[0])]);
    assert_eq!(violation(&victim), Violation::Loan(0));
    // A borrower that could write, and one region too many.
    let writable = memory_file::create(c"r", 8192).unwrap();
    memory_file::seal(writable.as_fd(), memory_file::FIXED).unwrap();
    let (attacker, victim) = attack();
    attacker.pass(1, &[&writable]);
    attacker.put(&[(fine.0, fine.1, &fine.2)]);
    assert!(matches!(violation(&victim), Violation::Memory(_)));
    let (attacker, victim) = attack();
    let all: Vec<_> = (0..=REGIONS_MAX as u64).map(announce).collect();
    all.iter()
        .for_each(|(_, number, _)| attacker.pass(*number, &[&region]));
    let frames: Vec<_> = all
        .iter()
        .map(|(word, n, body)| (*word, *n, &body[..]))
        .collect();
    attacker.put(&frames);
    assert!(matches!(
        violation(&victim),
        Violation::Region { region: 16, .. }
    ));
}

#[test]
fn greetings_of_another_version_or_none_are_refused_with_the_reason() {
    let (own, socket) = sockets();
    message::send(own.as_fd(), &greeting(VERSION + 1), &[], true).unwrap();
    let error = Link::accept_over(socket, soon()).err();
    assert_eq!(
        error,
        Some(ConnectError::Version {
            ours: VERSION,
            theirs: VERSION + 1
        })
    );
    let text = "the peer speaks version 3 of the Link protocol, this program 2: update the older";
    assert_eq!(error.unwrap().to_string(), text);
    let mut answer = [0; 16];
    message::receive(own.as_fd(), &mut answer).unwrap();
    assert_eq!(answer, greeting(VERSION), "the other side is told, too");

    let (own, socket) = sockets();
    message::send(own.as_fd(), &greeting(7), &[], true).unwrap();
    let error = Link::connect_over(socket, soon()).err();
    assert_eq!(
        error,
        Some(ConnectError::Version {
            ours: VERSION,
            theirs: 7
        })
    );

    let (own, socket) = sockets();
    message::send(own.as_fd(), b"GET / HTTP/1.1\r\n\r\n", &[], false).unwrap();
    assert!(matches!(
        Link::accept_over(socket, soon()),
        Err(ConnectError::Greeting(_))
    ));
    let (own, socket) = sockets();
    drop(own);
    assert_eq!(
        Link::accept_over(socket, soon()).err(),
        Some(ConnectError::Closed)
    );
    let (_own, socket) = sockets();
    assert_eq!(
        Link::accept_over(socket, support::now()).err(),
        Some(ConnectError::TimedOut)
    );
    let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let error = Link::accept_over(stream.into(), soon());
    assert!(matches!(error, Err(ConnectError::Greeting(_))));
}

#[test]
fn a_borrower_cannot_write_to_what_it_is_lent() {
    let (a, b) = support::pair();
    let region = Region::create(8192).unwrap();
    a.lend(header(1), &region, 0..8192).unwrap();
    assert_eq!(number(&b.receive(soon()).unwrap().header), 1);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let lent: Vec<_> = maps
        .lines()
        .filter(|l| l.contains("farpage-region"))
        .collect();
    assert!(lent.iter().any(|line| line.contains("r--s")), "{lent:?}");
    let draft = Draft::create(c"x", 4096).unwrap();
    let sealed = Sealed::new(draft).unwrap();
    assert_eq!(sealed.bytes(), 4096);
    let raw = file::Fd(region_fd());
    assert!(file::pwrite_all(raw, &[1], 0).is_err());
}

/// The descriptor of a region, as a borrower that finds it in `/proc` would.
fn region_fd() -> i32 {
    let mut all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let found = all.find(|entry| {
        let target = std::fs::read_link(entry.path());
        target.is_ok_and(|path| path.to_string_lossy().contains("farpage-region"))
    });
    found
        .unwrap()
        .file_name()
        .to_string_lossy()
        .parse()
        .unwrap()
}
