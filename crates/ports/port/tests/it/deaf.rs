//! A client that asks and takes nothing of what it is answered: it loses its Link when it is owed
//! too much, and nobody else notices.

use std::os::fd::OwnedFd;
use std::time::Duration;

use farpage_port::link::{Frame, HEADER_BYTES, Link, ReceiveError, SendError};
use farpage_port::{Message, Node, ReceiveRight};
use farpage_rights::{ExportId, Frame as Rights, MessageFrame, RightKind, WireRight};

use crate::support::{descriptors, file_of, header, sockets, soon};

/// What a client may be owed, and what the ring, the socket and one answer take beside.
const OWED_BYTES: usize = 64 << 20;
const OWED_DESCRIPTORS: usize = 512;
const BESIDE: usize = 5 << 20;
const LONG: Option<Duration> = Some(Duration::from_secs(120));

/// A client that speaks the protocol by hand, once it has the right that it asks by.
struct Deaf {
    link: Link,
    to: ExportId,
    asked: u64,
}

impl Deaf {
    fn new(node: &Node, port: &ReceiveRight) -> Self {
        let (own, socket) = sockets();
        node.offer_over(socket, &port.make_send()).unwrap();
        let link = Link::connect_over(own, soon()).unwrap();
        // Hello, of the largest task: the Node decides.
        let mut hello = header(0x80 | 1 << 8 | 1 << 16);
        let task = u64::from(std::process::id()) << 32 | 0xffff_ffff;
        hello[8..16].copy_from_slice(&task.to_le_bytes());
        let hello = Frame {
            header: hello,
            body: &[],
        };
        link.send(&hello, &[]).unwrap();
        let to = loop {
            let came = link.receive(soon()).unwrap();
            let whole = [&came.header[..], &came.body[..]].concat();
            if let Ok(Rights::Offer { right, .. }) = Rights::decode(&whole)
                && let WireRight::Mine { export, .. } = right
            {
                break export;
            }
        };
        let asked = 0;
        Self { link, to, asked }
    }

    fn ask(&mut self) -> Result<(), SendError> {
        self.asked += 1;
        let reply = WireRight::Mine {
            export: ExportId(1 << 32 | self.asked),
            kind: RightKind::SendOnce,
            credits: 0,
        };
        let message = Rights::Message(MessageFrame {
            to: self.to,
            reply: Some(reply),
            id: 1,
            origin: None,
            hops: 0,
            bytes: vec![1; 8],
            rights: Vec::new(),
            descriptors: 0,
            memory: Vec::new(),
        });
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let (first, body) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
        let header = *first;
        self.link.send(&Frame { header, body }, &[])
    }

    /// Asks until its Link is ended; how often it was answered.
    fn ask_on(mut self, port: &ReceiveRight, mut answer: impl FnMut() -> Message) -> usize {
        for answered in 0.. {
            match self.ask() {
                Ok(()) => {}
                Err(SendError::Ended(_)) => return answered,
                Err(error) => panic!("{error}"),
            }
            match port.receive(Some(Duration::from_secs(20))) {
                Ok(mut call) => drop(call.answer(answer()).unwrap()),
                // It was ended before it noticed: all that comes now is what was on its way.
                Err(_) => {
                    while self.link.receive(soon()).is_ok() {}
                    let ended = self.link.receive(soon());
                    assert!(matches!(ended, Err(ReceiveError::Ended(_))));
                    return answered;
                }
            }
        }
        unreachable!("it is ended before")
    }
}

/// A server, and another client of it that takes what it is answered.
fn server() -> (Node, ReceiveRight, impl Fn(&ReceiveRight)) {
    let node = Node::new().unwrap();
    let port = node.port();
    let (own, socket) = sockets();
    node.offer_over(socket, &port.make_send()).unwrap();
    let client = Node::new().unwrap();
    let right = client.connect_over(own, LONG).unwrap();
    let is_served = move |port: &ReceiveRight| {
        std::thread::scope(|scope| {
            let calling = scope.spawn(|| right.call(Message::new(5), LONG).unwrap().id);
            let mut call = port.receive(LONG).unwrap();
            assert_eq!(call.id, 5);
            call.answer(Message::new(6)).unwrap();
            assert_eq!(calling.join().unwrap(), 6);
        });
    };
    (node, port, is_served)
}

#[test]
fn who_takes_no_answers_is_owed_64_mib_and_then_ended() {
    farpage_testkit::in_own_process!();
    let (node, port, is_served) = server();
    let answer = || Message {
        bytes: vec![7; 64 << 10],
        ..Message::new(2)
    };
    let answered = Deaf::new(&node, &port).ask_on(&port, answer);
    let bytes = answered * (64 << 10);
    let owed = OWED_BYTES - BESIDE..OWED_BYTES + BESIDE;
    assert!(owed.contains(&bytes), "{bytes} bytes were kept for it");
    is_served(&port);
}

#[test]
fn who_takes_no_descriptors_is_ended_and_they_are_closed() {
    farpage_testkit::in_own_process!();
    let (node, port, is_served) = server();
    is_served(&port);
    let before = descriptors();
    let file = file_of("x");
    let mut most = 0;
    let answer = || {
        most = most.max(descriptors());
        let copies = (0..200).map(|_| file.try_clone().unwrap());
        Message {
            descriptors: copies.collect::<Vec<OwnedFd>>(),
            ..Message::new(2)
        }
    };
    let answered = Deaf::new(&node, &port).ask_on(&port, answer);
    assert!(answered > OWED_DESCRIPTORS / 200);
    assert!(
        most < before + OWED_DESCRIPTORS + 2 * 200,
        "{most} descriptors at a time"
    );
    drop(file);
    is_served(&port);
    assert!(descriptors() <= before + 8, "{} remain", descriptors());
}

#[test]
fn who_takes_answers_late_gets_them_all() {
    farpage_testkit::in_own_process!();
    let (node, port, _) = server();
    let mut client = Deaf::new(&node, &port);
    // Again and again: the answers go on when the ring has room, or the socket, whichever is last.
    for _ in 0..20 {
        for _ in 0..200 {
            client.ask().unwrap();
            let mut call = port.receive(LONG).unwrap();
            let bytes = vec![7; 64 << 10];
            let answer = Message {
                bytes,
                ..Message::new(2)
            };
            call.answer(answer).unwrap();
        }
        let mut answers = 0;
        while answers < 200 {
            let came = client.link.receive(soon()).unwrap();
            answers += usize::from(came.body.len() > 64 << 10);
        }
    }
}
