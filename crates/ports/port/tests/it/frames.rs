//! What one end sends the other receives: bodies, descriptors, memory.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farpage_port::link::{
    Attached, Body, Draft, Ended, FDS_MAX, IN_LONG_RING_MAX, IN_RING_MAX, LinkSet, ReceiveError,
    Region, Sealed, SendError,
};
use farpage_testkit::Thread;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::support::{descriptors, file_of, frame, header, now, number, pair, soon, text_of};

#[test]
fn bodies_of_every_size_arrive_whole_and_in_order() {
    let (a, b) = pair();
    let sizes = [
        64 << 10,
        (64 << 10) + 1,
        0,
        1,
        63,
        64,
        65,
        127,
        192,
        193,
        4096,
        IN_RING_MAX,
        IN_RING_MAX + 1,
        IN_LONG_RING_MAX,
        IN_LONG_RING_MAX + 1,
        1 << 20,
    ];
    for (index, &size) in sizes.iter().enumerate() {
        let body: Vec<u8> = (0..size).map(|byte| (byte * 7 + index) as u8).collect();
        a.send(&frame(index as u64, &body), &[]).unwrap();
        let message = b.receive(soon()).unwrap();
        assert_eq!(number(&message.header), index as u64);
        assert_eq!(message.body[..], body[..]);
        assert_eq!(
            matches!(message.body, Body::Mapped(_)),
            size > IN_LONG_RING_MAX
        );
        b.send(&frame(0, &message.body), &[]).unwrap();
        assert_eq!(a.receive(soon()).unwrap().body[..], body[..]);
    }
}

#[test]
fn long_bodies_find_their_way_whether_their_ring_has_room_or_not() {
    let (a, b) = pair();
    let body = |n: u64| vec![n as u8; 20_000 + 977 * n as usize];
    for round in 0..20 {
        for n in 0..10 {
            a.send(&frame(n, &body(n + round)), &[]).unwrap();
        }
        for n in 0..10 {
            let message = b.receive(soon()).unwrap();
            assert_eq!(number(&message.header), n);
            assert_eq!(message.body[..], body(n + round));
        }
    }
}

#[test]
fn a_full_ring_refuses_and_what_it_refused_was_not_sent() {
    let (a, b) = pair();
    let body = vec![5; IN_RING_MAX];
    assert_eq!(a.send(&frame(0, &body), &[]), Ok(()));
    assert_eq!(a.send(&frame(1, &body), &[]), Err(SendError::Full));
    let sent = (1..=64)
        .take_while(|&n| a.send(&frame(n, &[]), &[]).is_ok())
        .count();
    assert_eq!(sent, 64 - 33);
    let file = file_of("x");
    assert_eq!(
        a.send(&frame(99, &[]), &[file.as_fd()]),
        Err(SendError::Full)
    );
    assert_eq!(
        a.send_until(&frame(99, &[]), &[], now()),
        Err(SendError::Full)
    );
    for expected in 0..=sent as u64 {
        assert_eq!(number(&b.receive(soon()).unwrap().header), expected);
    }
    assert_eq!(b.receive(now()).err(), Some(ReceiveError::TimedOut));
    a.send(&frame(7, &[]), &[file.as_fd()]).unwrap();
    assert_eq!(text_of(&b.receive(soon()).unwrap().fds[0]), "x");
}

#[test]
fn a_slow_reader_gets_all_from_a_sender_that_waits_for_room() {
    let (a, b) = pair();
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 0..3_000u64 {
                let body = vec![n as u8; n as usize * 13 % 3000];
                a.send_until(&frame(n, &body), &[], soon()).unwrap();
            }
        });
        for n in 0..3_000u64 {
            if n.is_multiple_of(100) {
                std::thread::yield_now();
            }
            let message = b.receive(soon()).unwrap();
            assert_eq!(number(&message.header), n);
            assert_eq!(message.body[..], vec![n as u8; n as usize * 13 % 3000]);
        }
    });
}

#[test]
fn many_threads_send_and_each_ones_frames_stay_in_order() {
    let (a, b) = pair();
    const THREADS: u64 = 4;
    const EACH: u64 = 2_000;
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let a = &a;
            s.spawn(move || {
                let file = file_of(&thread.to_string());
                for n in 0..EACH {
                    let fds = [file.as_fd()];
                    let fds = if n.is_multiple_of(50) { &fds[..] } else { &[] };
                    a.send_until(&frame(thread << 32 | n, &[]), fds, soon())
                        .unwrap();
                }
            });
        }
        let mut next = [0; THREADS as usize];
        for _ in 0..THREADS * EACH {
            let message = b.receive(soon()).unwrap();
            let (thread, n) = (
                number(&message.header) >> 32,
                number(&message.header) as u32,
            );
            assert_eq!(n, next[thread as usize]);
            next[thread as usize] += 1;
            assert_eq!(message.fds.len(), usize::from(n.is_multiple_of(50)));
            for file in &message.fds {
                assert_eq!(text_of(file), thread.to_string());
            }
        }
    });
}

#[test]
fn descriptors_come_with_the_frame_that_announced_them() {
    let (a, b) = pair();
    let files: Vec<_> = (0..FDS_MAX).map(|n| file_of(&n.to_string())).collect();
    for n in 0..=FDS_MAX {
        let fds: Vec<_> = files[..n].iter().map(AsFd::as_fd).collect();
        a.send(&frame(n as u64, &[]), &fds).unwrap();
    }
    for n in 0..=FDS_MAX {
        let message = b.receive(soon()).unwrap();
        let texts: Vec<_> = message.fds.iter().map(text_of).collect();
        assert_eq!(texts, (0..n).map(|n| n.to_string()).collect::<Vec<_>>());
    }
    let more = vec![files[0].as_fd(); FDS_MAX + 1];
    assert_eq!(
        a.send(&frame(0, &[]), &more),
        Err(SendError::TooManyDescriptors(17))
    );
}

#[test]
fn donated_memory_is_the_receivers_and_nobody_can_change_what_it_sees() {
    let (a, b) = pair();
    let mut draft = Draft::create(c"donated", 3 << 20).unwrap();
    draft.fill(9);
    let sealed = Sealed::new(draft).unwrap();
    let file = file_of("along");
    a.donate(&frame(1, b"with it"), &sealed, &[file.as_fd()])
        .unwrap();
    a.donate(&frame(2, &[3; 100]), &sealed, &[]).unwrap();
    let (first, second) = (b.receive(soon()).unwrap(), b.receive(soon()).unwrap());
    assert_eq!(
        (&first.body[..], &second.body[..]),
        (&b"with it"[..], &[3; 100][..])
    );
    assert_eq!(text_of(&first.fds[0]), "along");
    let (Attached::Memory(mut one), Attached::Memory(two)) = (first.attached, second.attached)
    else {
        panic!("no memory");
    };
    one[5] = 1;
    assert_eq!(
        (one.len(), one[5], two[5], one[(3 << 20) - 1]),
        (3 << 20, 1, 9, 9)
    );
}

#[test]
fn a_loan_is_seen_where_it_lies_and_comes_back() {
    let (a, b) = pair();
    let mut region = Region::create(1 << 20).unwrap();
    region[4096..4100].copy_from_slice(b"loan");
    let first = a.lend(header(1), &region, 4096..8192).unwrap();
    let second = a.lend(header(2), &region, 0..1 << 20).unwrap();
    let mut loans = Vec::new();
    for n in 1..=2 {
        let message = b.receive(soon()).unwrap();
        assert_eq!(number(&message.header), n);
        let Attached::Loan(loan) = message.attached else {
            panic!("no loan");
        };
        loans.push(loan);
    }
    let mut seen = [0; 4];
    loans[0].copy_to(0, &mut seen);
    assert_eq!(
        (&seen, loans[0].bytes(), loans[1].bytes()),
        (b"loan", 4096, 1 << 20)
    );
    region[4096] = b'm';
    loans[1].copy_to(4096, &mut seen);
    assert_eq!(&seen, b"moan");
    for (expected, loan) in [second, first].into_iter().zip(loans.into_iter().rev()) {
        b.give_back(header(3), loan).unwrap();
        let message = a.receive(soon()).unwrap();
        assert!(matches!(message.attached, Attached::Returned(id) if id == expected));
    }
}

#[test]
fn closing_delivers_what_was_sent_and_then_says_closed() {
    let (a, b) = pair();
    let file = file_of("last");
    a.send(&frame(1, &[]), &[file.as_fd()]).unwrap();
    // Descriptors that the closing side never takes must not spoil those that it sent.
    b.send(&frame(9, &[]), &[file.as_fd()]).unwrap();
    drop(a);
    assert_eq!(
        b.send(&frame(2, &[]), &[]),
        Err(SendError::Ended(Ended::Closed))
    );
    assert_eq!(text_of(&b.receive(soon()).unwrap().fds[0]), "last");
    assert_eq!(
        b.receive(soon()).err(),
        Some(ReceiveError::Ended(Ended::Closed))
    );
    assert_eq!(b.try_receive().err(), Some(Ended::Closed));
}

#[test]
fn whoever_sleeps_is_woken_by_a_frame_and_by_the_end() {
    let (a, b) = pair();
    std::thread::scope(|s| {
        let (tells, told) = std::sync::mpsc::channel();
        let b = &b;
        let sleeper = s.spawn(move || {
            tells.send(Thread::current()).unwrap();
            let first = b.receive(soon()).map(|message| number(&message.header));
            tells.send(Thread::current()).unwrap();
            (first, b.receive(soon()).err())
        });
        told.recv().unwrap().until_it_waits("who waits for a frame");
        a.send(&frame(4, &[]), &[]).unwrap();
        told.recv().unwrap().until_it_waits("who waits for the end");
        drop(a);
        let seen = sleeper.join().unwrap();
        assert_eq!(seen, (Ok(4), Some(ReceiveError::Ended(Ended::Closed))));
    });
}

#[test]
fn a_set_waits_for_all_its_links_at_once_and_none_starves() {
    let (near, far): (Vec<_>, Vec<_>) = (0..20).map(|_| pair()).unzip();
    let mut set = LinkSet::new().unwrap();
    for (name, link) in near.into_iter().enumerate() {
        set.insert(name as u64, Arc::new(link)).unwrap();
    }
    let mut ready = Vec::new();
    set.wait(now(), &mut ready).unwrap();
    assert!(ready.is_empty());
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            // One that never lets up.
            while !stop.load(Ordering::Relaxed) {
                let _ = far[0].send(&frame(0, &[]), &[]);
            }
        });
        for round in 1..200u64 {
            let quiet = 1 + round as usize % 19;
            far[quiet].send(&frame(round, &[]), &[]).unwrap();
            let mut found = false;
            while !found {
                set.wait(soon(), &mut ready).unwrap();
                assert!(!ready.is_empty(), "round {round}");
                for &name in &ready {
                    let link = set.remove(name).unwrap();
                    if let Some(message) = link.try_receive().unwrap() {
                        let is_quiet = name == quiet as u64;
                        assert!(is_quiet && number(&message.header) == round || name == 0);
                        found |= is_quiet;
                    }
                    set.insert(name, link).unwrap();
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(far);
    let mut gone = std::collections::HashSet::new();
    while gone.len() < 20 {
        set.wait(soon(), &mut ready).unwrap();
        for &name in &ready {
            let link = set.remove(name).unwrap();
            match link.try_receive() {
                Err(Ended::Closed) => assert!(gone.insert(name)),
                Ok(_) => set.insert(name, link).unwrap(),
                Err(other) => panic!("{other}"),
            }
        }
    }
}

#[test]
fn a_set_sleeps_until_a_link_that_was_quiet_says_something() {
    let (a, b) = pair();
    let mut set = LinkSet::new().unwrap();
    set.insert(3, Arc::new(b)).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 0..2_000 {
                a.send_until(&frame(n, &[]), &[], soon()).unwrap();
                if n % 7 == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let (mut ready, mut next) = (Vec::new(), 0);
        let link = set.remove(3).unwrap();
        set.insert(3, link.clone()).unwrap();
        while next < 2_000 {
            set.wait(soon(), &mut ready).unwrap();
            assert_eq!(ready, [3], "at {next}");
            while let Some(message) = link.try_receive().unwrap() {
                assert_eq!(number(&message.header), next);
                next += 1;
            }
        }
    });
}

#[test]
fn its_descriptor_becomes_readable_for_a_frame_and_for_the_end() {
    let (a, b) = pair();
    let readable = |seconds| {
        let mut fds = [PollFd::new(&b, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        };
        rustix::event::poll(&mut fds, Some(&limit)).unwrap() == 1
    };
    for n in 0..5 {
        assert_eq!(b.prepare_to_wait(), Ok(true));
        assert!(!readable(0));
        a.send(&frame(n, &[]), &[]).unwrap();
        assert!(readable(30));
        assert_eq!(b.prepare_to_wait(), Ok(false));
        assert_eq!(number(&b.try_receive().unwrap().unwrap().header), n);
    }
    assert_eq!(b.prepare_to_wait(), Ok(true));
    drop(a);
    assert!(readable(30));
    assert_eq!(b.prepare_to_wait(), Ok(false));
    assert_eq!(b.try_receive().err(), Some(Ended::Closed));
}

#[test]
fn a_link_leaves_no_descriptor_behind() {
    // Other tests of this process have theirs: run alone.
    let own = std::env::current_exe().unwrap();
    let test = [
        "--exact",
        "frames::descriptors_are_counted",
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
#[ignore = "needs a process of its own: run by a_link_leaves_no_descriptor_behind"]
fn descriptors_are_counted() {
    let before = descriptors();
    for _ in 0..50 {
        let (a, b) = pair();
        let file = file_of("x");
        let region = Region::create(8192).unwrap();
        for _ in 0..10 {
            a.send(&frame(0, &[0; 100]), &[file.as_fd(), file.as_fd()])
                .unwrap();
        }
        a.send(&frame(0, &[0; 10_000]), &[]).unwrap();
        a.lend(header(0), &region, 0..100).unwrap();
        (0..4).for_each(|_| drop(b.receive(soon()).unwrap()));
        // The others are in the socket when it closes.
    }
    assert_eq!(descriptors(), before);
}
