//! Nodes of one process: what rights and messages do.

use std::future::Future;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use farpage_port::link::{Draft, Region, Sealed};
use farpage_port::{
    CallError, Lent, Memory, Message, Node, Notice, ReceiveError, ReceiveRight, Right, SendError,
    SendRight, Sender,
};
use farpage_testkit::{until, until_or};

use crate::support::{descriptors, file_of, sockets, text_of};

/// So long that only a fault is longer.
const LONG: Option<Duration> = Some(Duration::from_secs(120));
const NOW: Option<Duration> = Some(Duration::ZERO);

/// Two Nodes, and the second one's right to a port of the first.
fn joined() -> (Node, ReceiveRight, Node, SendRight) {
    let (server, client) = (Node::new().unwrap(), Node::new().unwrap());
    let port = server.port();
    let right = meet(&server, &port, &client);
    (server, port, client, right)
}

/// Gives `to` a right to `port` of `of`.
fn meet(of: &Node, port: &ReceiveRight, to: &Node) -> SendRight {
    let (one, other) = sockets();
    of.offer_over(one, &port.make_send()).unwrap();
    to.connect_over(other, LONG).unwrap()
}

fn with(id: u32, rights: Vec<Right>) -> Message {
    Message {
        rights,
        ..Message::new(id)
    }
}

#[test]
fn a_call_is_answered_and_the_sender_is_known() {
    let (_server, port, _client, right) = joined();
    std::thread::scope(|s| {
        s.spawn(|| {
            for n in 0..100 {
                let mut call = port.receive(LONG).unwrap();
                assert_eq!(call.id, n);
                let Sender::Peer { pid, forwards, .. } = call.sender else {
                    panic!("{call:?}");
                };
                assert_eq!((pid, forwards), (std::process::id(), None));
                let bytes = std::mem::take(&mut call.bytes);
                let answer = Message {
                    bytes,
                    ..Message::new(n + 1)
                };
                assert!(call.answer(answer).unwrap());
            }
        });
        for n in 0..100u32 {
            let bytes = vec![n as u8; n as usize * 650];
            let message = Message {
                bytes: bytes.clone(),
                ..Message::new(n)
            };
            let answer = right.call(message, LONG).unwrap();
            assert_eq!((answer.id, answer.bytes), (n + 1, bytes));
        }
    });
}

#[test]
fn what_is_not_answered_is_told() {
    let (_server, port, _client, right) = joined();
    std::thread::scope(|s| {
        s.spawn(|| drop(port.receive(LONG).unwrap()));
        let answer = right.call(Message::new(1), LONG);
        assert!(matches!(answer, Err(CallError::Unanswered)), "{answer:?}");
    });
    let late = right.call(Message::new(2), Some(Duration::from_millis(20)));
    assert!(matches!(late, Err(CallError::TimedOut)), "{late:?}");
    let mut call = port.receive(LONG).unwrap();
    call.answer(Message::new(3)).unwrap();
    drop(port);
    until("the right is dead", || right.is_dead());
    let answer = right.call(Message::new(4), LONG);
    assert!(matches!(answer, Err(CallError::Refused(SendError::Dead))));
}

#[test]
fn a_full_queue_gives_the_message_back_and_room_lets_it_go() {
    let (_server, port, _client, right) = joined();
    port.set_limit(2);
    let file = file_of("kept");
    let mut sent = 0;
    let refused = loop {
        let message = Message {
            descriptors: vec![file.as_fd().try_clone_to_owned().unwrap()],
            bytes: vec![5; 10],
            ..Message::new(sent)
        };
        match right.send(message, NOW) {
            Ok(()) => sent += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.error, SendError::TimedOut);
    assert!((2..=5).contains(&sent), "{sent}");
    let message = *refused.message;
    assert_eq!(message.bytes, [5; 10]);
    assert_eq!(text_of(&message.descriptors[0]), "kept");
    std::thread::scope(|s| {
        s.spawn(|| right.send(message, LONG).unwrap());
        for n in 0..=sent {
            let received = port.receive(LONG).unwrap();
            assert_eq!((received.id, received.sequence), (n, n));
            assert_eq!(text_of(&received.descriptors[0]), "kept");
        }
    });
    assert_eq!(port.receive(NOW).unwrap_err(), ReceiveError::TimedOut);
}

#[test]
fn messages_too_large_for_a_frame_arrive_and_beyond_the_limit_are_refused() {
    let (_server, port, _client, right) = joined();
    for bytes in [0, 1, 16, 17, 4096, 4200, 20_000, 65_536] {
        let body: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        let fds = (0..40).map(|n| file_of(&format!("file {n}"))).collect();
        let message = Message {
            bytes: body.clone(),
            descriptors: fds,
            ..Message::new(1)
        };
        right.send(message, LONG).unwrap();
        let received = port.receive(LONG).unwrap();
        assert_eq!(received.bytes, body);
        for (n, file) in received.descriptors.iter().enumerate() {
            assert_eq!(text_of(file), format!("file {n}"));
        }
        assert_eq!(received.descriptors.len(), 40);
    }
    let message = Message {
        bytes: vec![0; 65_537],
        ..Message::new(1)
    };
    let refused = right.send(message, LONG).unwrap_err();
    assert_eq!(refused.error, SendError::TooLarge);
    assert_eq!(refused.message.bytes.len(), 65_537);
}

#[test]
fn donated_memory_is_the_receivers_and_lent_memory_comes_back() {
    let (_server, port, _client, right) = joined();
    let mut draft = Draft::create(c"large", 8 << 20).unwrap();
    draft.fill(7);
    let mut region = Region::create(1 << 16).unwrap();
    region[100] = 42;
    let (lent, ticket) = Lent::new(&region, 100..1000);
    let donated = Sealed::new(draft).unwrap().into();
    let message = Message {
        memory: vec![Memory::Lent(lent), Memory::Donated(donated)],
        descriptors: vec![file_of("beside")],
        ..Message::new(1)
    };
    right.send(message, LONG).unwrap();
    let mut received = port.receive(LONG).unwrap();
    assert_eq!(text_of(&received.descriptors[0]), "beside");
    let Memory::Donated(donated) = received.memory.pop().unwrap() else {
        panic!("{received:?}");
    };
    let mut map = donated.map().unwrap();
    assert_eq!((map.len(), map[0], map[(8 << 20) - 1]), (8 << 20, 7, 7));
    map[0] = 8;
    let Memory::Lent(lent) = received.memory.pop().unwrap() else {
        panic!("{received:?}");
    };
    region[101] = 43;
    let mut bytes = [0; 2];
    lent.copy_to(0, &mut bytes).unwrap();
    assert_eq!((lent.bytes(), bytes), (900, [42, 43]));
    assert!(!ticket.is_back());
    drop(lent);
    assert!(ticket.wait(LONG), "it was given back");
    // Never received: it comes back all the same.
    let (lent, ticket) = Lent::new(&region, 0..10);
    let message = Message {
        memory: vec![Memory::Lent(lent)],
        ..Message::new(2)
    };
    right.send(message, LONG).unwrap();
    drop(port);
    assert!(ticket.wait(LONG));
}

#[test]
fn memory_goes_on_to_a_third_node_as_it_is_or_as_a_copy() {
    let (_a, at_a, b, to_a) = joined();
    let c = Node::new().unwrap();
    let at_b = b.port();
    let to_b = meet(&b, &at_b, &c);
    let region = Region::create(4096).unwrap();
    let (lent, ticket) = Lent::new(&region, 0..4096);
    let message = Message {
        memory: vec![Memory::Lent(lent)],
        ..Message::new(1)
    };
    to_b.send(message, LONG).unwrap();
    let memory = at_b.receive(LONG).unwrap().memory;
    to_a.send(
        Message {
            memory,
            ..Message::new(2)
        },
        LONG,
    )
    .unwrap();
    let memory = at_a.receive(LONG).unwrap().memory;
    assert!(matches!(&memory[..], [Memory::Donated(donated)] if donated.bytes() == 4096));
    assert!(ticket.wait(LONG), "the copy needs the loan no more");
}

#[test]
fn threads_of_one_node_send_to_each_other() {
    let node = Node::new().unwrap();
    let port = node.port();
    let right = port.make_send();
    std::thread::scope(|s| {
        let senders: Vec<_> = (0..4)
            .map(|_| {
                let right = right.clone();
                s.spawn(move || (0..500).for_each(|n| right.send(Message::new(n), LONG).unwrap()))
            })
            .collect();
        let receivers: Vec<_> = (0..3)
            .map(|_| {
                s.spawn(|| {
                    let mut count = 0;
                    while port.receive(LONG).unwrap().id != 1000 {
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        senders.into_iter().for_each(|it| it.join().unwrap());
        (0..3).for_each(|_| right.send(Message::new(1000), LONG).unwrap());
        let counts: Vec<u32> = receivers.into_iter().map(|it| it.join().unwrap()).collect();
        assert_eq!(counts.iter().sum::<u32>(), 2000);
    });
}

#[test]
fn a_set_receives_for_its_members() {
    let (server, port, client, right) = joined();
    let (set, other) = (server.port_set(), server.port());
    let to_other = meet(&server, &other, &client);
    set.insert(&port);
    set.insert(&other);
    right.send(Message::new(1), LONG).unwrap();
    to_other.send(Message::new(2), LONG).unwrap();
    let (a, b) = (set.receive(LONG).unwrap(), set.receive(LONG).unwrap());
    let mut came = [(a.id, a.port), (b.id, b.port)];
    came.sort_by_key(|it| it.0);
    assert_eq!(came, [(1, port.name()), (2, other.name())]);
    assert_eq!(port.receive(LONG).unwrap_err(), ReceiveError::InSet);
    set.remove(&port);
    right.send(Message::new(3), LONG).unwrap();
    assert_eq!(port.receive(LONG).unwrap().id, 3);
    assert_eq!(set.receive(NOW).unwrap_err(), ReceiveError::TimedOut);
}

#[test]
fn two_nodes_that_connect_often_share_one_link() {
    let (server, _port, client, _right) = joined();
    let folder = tempfile::tempdir().unwrap();
    let before = descriptors();
    let ports: Vec<_> = (0..20).map(|_| server.port()).collect();
    let rights: Vec<_> = ports
        .iter()
        .enumerate()
        .map(|(n, port)| {
            let path = folder.path().join(n.to_string());
            let _listening = server.listen(&path, &port.make_send()).unwrap();
            client.connect(&path, LONG).unwrap()
        })
        .collect();
    for (n, right) in rights.iter().enumerate() {
        right.send(Message::new(n as u32), LONG).unwrap();
        assert_eq!(ports[n].receive(LONG).unwrap().id, n as u32);
    }
    // And the other way round, both at a time.
    let at_client = client.port();
    std::thread::scope(|s| {
        s.spawn(|| meet(&client, &at_client, &server));
        s.spawn(|| meet(&server, &ports[0], &client));
    });
    let now = || format!("{} descriptors, {before} before", descriptors());
    until_or(now, || descriptors() <= before + 2);
}

#[test]
fn a_right_to_a_third_node_is_used_without_the_one_who_gave_it() {
    let (a, at_a, b, to_a) = joined();
    let c = Node::new().unwrap();
    let at_b = b.port();
    let to_b = meet(&b, &at_b, &c);
    let inbox = c.port();
    to_b.send(with(1, vec![inbox.make_send().into()]), LONG)
        .unwrap();
    let to_c = at_b.receive(LONG).unwrap().rights.remove(0);
    to_a.send(with(2, vec![to_c]), LONG).unwrap();
    let to_c = at_a.receive(LONG).unwrap().rights.remove(0).into_send();
    let to_c = to_c.unwrap();
    to_c.send(Message::new(3), LONG).unwrap();
    let received = inbox.receive(LONG).unwrap();
    assert_eq!(received.id, 3);
    assert!(matches!(
        received.sender,
        Sender::Peer { forwards: None, .. }
    ));
    // The one between goes: the others do not notice.
    drop((at_b, to_a, b));
    std::thread::scope(|s| {
        s.spawn(|| {
            inbox
                .receive(LONG)
                .unwrap()
                .answer(Message::new(5))
                .unwrap()
        });
        assert_eq!(to_c.call(Message::new(4), LONG).unwrap().id, 5);
    });
    drop(a);
}

#[test]
fn a_receive_right_moves_with_its_queue_and_its_senders_follow() {
    let (_a, at_a, b, to_a) = joined();
    let moving = b.port();
    let c = Node::new().unwrap();
    let right = meet(&b, &moving, &c);
    for n in 0..3 {
        right.send(Message::new(n), LONG).unwrap();
    }
    to_a.send(with(9, vec![moving.into()]), LONG).unwrap();
    for n in 3..20 {
        right.send(Message::new(n), None).unwrap();
        if n == 5 {
            break;
        }
    }
    let moved = at_a.receive(LONG).unwrap().rights.remove(0);
    let moved = moved.into_receive().unwrap();
    std::thread::scope(|s| {
        s.spawn(|| (6..20).for_each(|n| right.send(Message::new(n), LONG).unwrap()));
        for n in 0..20 {
            assert_eq!(moved.receive(LONG).unwrap().id, n, "in order");
        }
    });
}

#[test]
fn notices_come_once_and_are_not_believed_of_peers() {
    let (server, port, client, right) = joined();
    let (at_server, at_client) = (server.port(), client.port());
    right.notify_dead(&at_client);
    port.notify_no_senders(0, &at_server);
    let made = port.make_send();
    drop(made);
    // A peer says just what a Node would: no notice.
    let forged = Message {
        bytes: right.name().to_bits().to_le_bytes().into(),
        ..Message::new(0o110)
    };
    right.send(forged, LONG).unwrap();
    assert_eq!(port.receive(LONG).unwrap().notice(), None);
    let name = right.name();
    drop(port);
    let notice = at_client.receive(LONG).unwrap().notice();
    assert_eq!(notice, Some(Notice::Dead(name)));
    assert_eq!(at_client.receive(NOW).unwrap_err(), ReceiveError::TimedOut);
    let unused = at_server.receive(LONG).unwrap().notice();
    assert_eq!(unused, Some(Notice::SendOnce), "it had senders to the end");

    let port = server.port();
    let right = meet(&server, &port, &client);
    port.notify_no_senders(1, &at_server);
    let copy = right.clone();
    drop(right);
    drop(copy);
    let notice = at_server.receive(LONG).unwrap().notice();
    assert_eq!(notice, Some(Notice::NoSenders(1)));
    let kept = server.port();
    kept.notify_destroyed(&at_server);
    drop(kept);
    let mut notice = at_server.receive(LONG).unwrap();
    assert_eq!(notice.notice(), Some(Notice::Destroyed));
    assert!(notice.rights.remove(0).into_receive().is_some());
}

#[test]
fn rights_that_died_on_their_way_arrive_dead_and_go_on_dead() {
    let (_server, port, client, right) = joined();
    let doomed = client.port();
    right
        .send(with(1, vec![doomed.make_send().into()]), LONG)
        .unwrap();
    drop(doomed);
    // Its death follows the message by the same Link.
    let deadline = Instant::now() + Duration::from_secs(120);
    let mut received = port.receive(LONG).unwrap().rights;
    while let Some(Right::Send(right)) = received.first() {
        assert!(Instant::now() < deadline);
        if right.is_dead() {
            break;
        }
    }
    let other = client.port();
    let dead = vec![Right::Dead, received.remove(0)];
    let to_other = other.make_send();
    drop(dead);
    to_other.send(with(2, vec![Right::Dead]), LONG).unwrap();
    assert!(matches!(
        other.receive(LONG).unwrap().rights[..],
        [Right::Dead]
    ));
}

#[test]
fn rights_of_another_node_are_refused() {
    let (_server, port, _client, right) = joined();
    let refused = right.send(with(1, vec![port.make_send().into()]), LONG);
    let refused = refused.unwrap_err();
    assert_eq!(refused.error, SendError::Foreign);
    assert_eq!(refused.message.rights.len(), 1);
}

/// Wakes a thread.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::park();
    }
}

#[test]
fn futures_need_no_thread_that_waits() {
    let (_server, port, _client, right) = joined();
    port.set_limit(1);
    std::thread::scope(|s| {
        s.spawn(|| {
            block_on(async {
                for n in 0..200 {
                    let mut call = port.receive_async().await.unwrap();
                    assert_eq!(call.id, n);
                    call.answer(Message::new(n)).unwrap();
                }
                for n in 0..50 {
                    assert_eq!(port.receive_async().await.unwrap().id, n);
                }
            });
        });
        block_on(async {
            for n in 0..200 {
                assert_eq!(right.call_async(Message::new(n)).await.unwrap().id, n);
            }
            for n in 0..50 {
                right.send_async(Message::new(n)).await.unwrap();
            }
        });
    });
    // One that gives up passes on what it was woken for.
    {
        let mut first = pin!(port.receive_async());
        let mut context = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut context).is_pending());
    }
    right.send(Message::new(7), LONG).unwrap();
    assert_eq!(block_on(port.receive_async()).unwrap().id, 7);
}

#[test]
fn a_descriptor_says_when_there_is_something() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (_server, port, _client, right) = joined();
    let mut readiness = port.readiness().unwrap();
    let readable = |readiness: &farpage_port::node::Readiness, seconds| {
        let mut fds = [PollFd::new(readiness, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&limit)).unwrap() == 1
    };
    for n in 0..20 {
        assert!(readiness.prepare());
        assert!(!readable(&readiness, 0));
        right.send(Message::new(n), LONG).unwrap();
        assert!(readable(&readiness, 30));
        assert_eq!(port.receive(NOW).unwrap().id, n);
    }
    right.send(Message::new(1), LONG).unwrap();
    while readiness.prepare() {
        assert!(readable(&readiness, 30));
    }
    assert!(readable(&readiness, 0));
}

#[test]
fn a_silent_stranger_keeps_nobody_waiting() {
    let (server, client) = (Node::new().unwrap(), Node::new().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("port");
    let port = server.port();
    let _listening = server.listen(&path, &port.make_send()).unwrap();
    let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
    let strangers: Vec<_> = (0..300)
        .map(|n| {
            let (one, _other) = sockets();
            drop(one);
            let socket = rustix::net::socket_with(
                rustix::net::AddressFamily::UNIX,
                rustix::net::SocketType::SEQPACKET,
                rustix::net::SocketFlags::CLOEXEC,
                None,
            )
            .unwrap();
            rustix::net::connect(&socket, &address).unwrap();
            if n % 3 == 0 {
                let mut file = std::fs::File::from(socket.try_clone().unwrap());
                let _ = file.write_all(&[n as u8; 16]);
            }
            assert!(socket.as_raw_fd() > 0);
            socket
        })
        .collect();
    let right = client.connect(&path, LONG).unwrap();
    right.send(Message::new(1), LONG).unwrap();
    assert_eq!(port.receive(LONG).unwrap().id, 1);
    drop(strangers);
    assert!(server.listen(&path, &port.make_send()).is_err(), "in use");
    assert!(client.connect(&folder.path().join("none"), LONG).is_err());
}

#[test]
fn nobody_is_at_home_at_ones_own_path() {
    let node = Node::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("port");
    let port = node.port();
    let _listening = node.listen(&path, &port.make_send()).unwrap();
    assert!(node.connect(&path, LONG).is_err());
}

#[test]
fn a_proxy_port_takes_only_what_can_go_to_another_host() {
    let (server, client) = (Node::new().unwrap(), Node::new().unwrap());
    let port = server.proxy_port();
    let right = meet(&server, &port, &client);
    // Over a third Node, too, to which the right is sent.
    let third = Node::new().unwrap();
    let inbox = third.port();
    let to_third = meet(&third, &inbox, &client);
    let rights = vec![Right::Send(right.clone())];
    to_third.send(with(1, rights), LONG).unwrap();
    let mut got = inbox.receive(LONG).unwrap();
    let there = got.rights.pop().unwrap().into_send().unwrap();
    there.send(Message::new(3), LONG).unwrap();
    assert_eq!(port.receive(LONG).unwrap().id, 3, "it has come through");
    let local = port.make_send();
    for (node, right) in [(&client, &right), (&third, &there), (&server, &local)] {
        let mut descriptor = Message::new(1);
        descriptor.descriptors.push(file_of("x"));
        let moved = with(1, vec![Right::Receive(node.port())]);
        let mut much = Message::new(1);
        let region = Region::create((64 << 20) + 1).unwrap();
        let bytes = region.len();
        much.memory
            .push(Memory::Lent(Lent::new(&region, 0..bytes).0));
        for message in [descriptor, moved, much] {
            let refused = right.send(message, LONG).unwrap_err();
            assert_eq!(refused.error, SendError::Elsewhere);
        }
        right
            .send(with(2, vec![Right::Send(right.clone())]), LONG)
            .unwrap();
        assert_eq!(port.receive(LONG).unwrap().id, 2);
    }
    let once = port.make_send_once();
    assert_eq!(once.port(), Some(port.name()));
    let mut descriptor = Message::new(1);
    descriptor.descriptors.push(file_of("x"));
    assert_eq!(
        once.send(descriptor).unwrap_err().error,
        SendError::Elsewhere
    );
    // The right was dropped unused.
    assert_eq!(port.receive(LONG).unwrap().notice(), Some(Notice::SendOnce));
}

#[test]
fn who_waits_for_room_is_woken_when_there_is_some() {
    struct Woken(std::sync::mpsc::Sender<()>);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.send(()).unwrap();
        }
    }
    let (_server, port, _client, right) = joined();
    port.set_limit(1);
    while right
        .send(Message::new(1), Some(Duration::from_secs(1)))
        .is_ok()
    {}
    let (tell, told) = std::sync::mpsc::channel();
    let room = right.wake_on_room(Waker::from(Arc::new(Woken(tell.clone()))));
    assert!(told.try_recv().is_err());
    while port.receive(Some(Duration::from_millis(50))).is_ok() {}
    told.recv_timeout(Duration::from_secs(120)).unwrap();
    drop(room);
    // Nobody is woken who does not wait any more; who asks when the port is dead is at once.
    while right
        .send(Message::new(1), Some(Duration::from_secs(1)))
        .is_ok()
    {}
    drop(right.wake_on_room(Waker::from(Arc::new(Woken(tell.clone())))));
    port.receive(LONG).unwrap();
    assert!(told.recv_timeout(Duration::from_millis(100)).is_err());
    drop(port);
    while right
        .send(Message::new(1), NOW)
        .is_err_and(|it| it.error != SendError::Dead)
    {}
    let _room = right.wake_on_room(Waker::from(Arc::new(Woken(tell))));
    told.recv_timeout(Duration::from_secs(120)).unwrap();
}
