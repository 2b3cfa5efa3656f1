//! Interfaces: typed calls, other versions, garbage.

use std::thread::JoinHandle;
use std::time::Duration;

use farpage_port::interface::{Answer, Both, Contents, Fd, InvokeError};
use farpage_port::link::{Draft, Sealed};
use farpage_port::{
    CallError, Memory, Message, Node, Notice, ReceiveError, ReceiveRight, Received, Right,
    SendRight, Sender, interface,
};
use serde::{Deserialize, Serialize};

use crate::support::{file_of, sockets, text_of};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    key: String,
    values: Vec<u64>,
    next: Option<Box<Entry>>,
}

interface! {
    /// All kinds of arguments.
    trait Store, client StoreClient, proxy StoreProxy, "test.store" version 2 {
        /// The entry with its values doubled, and the process that asks.
        fn double(entry: Entry, times: u8) -> (Entry, u32);
        /// Nothing.
        fn nothing() -> ();
        /// Everything that is no bytes.
        fn pass(right: SendRight, port: ReceiveRight, file: Fd, memory: Memory, any: Right)
            -> Both<Both<SendRight, ReceiveRight>, Both<Fd, Memory>>;
        /// As many bytes.
        fn long(bytes: Vec<u8>) -> Vec<u8>;
    }
}

mod older {
    farpage_port::interface! {
        /// What the interface was.
        pub trait Store, client StoreClient, "test.store" version 1 {
            /// Had no arguments.
            fn double() -> u8;
        }
    }
    farpage_port::interface! {
        /// Another one.
        pub trait Other, client OtherClient, "test.other" version 2 {
            /// The same method.
            fn nothing() -> ();
        }
    }
    farpage_port::interface! {
        /// Lies about its version.
        pub trait Liar, client LiarClient, "test.store" version 2 {
            /// Other arguments.
            fn double(number: u64) -> ();
            /// More arguments.
            fn nothing(number: u64) -> ();
            /// Fewer.
            fn pass() -> ();
            /// Others.
            fn long(length: u64) -> ();
            /// Not there.
            fn more() -> ();
        }
    }
}

struct Server;

impl Store for Server {
    fn double(&mut self, caller: Sender, mut entry: Entry, times: u8) -> (Entry, u32) {
        let Sender::Peer { pid, .. } = caller else {
            panic!("{caller:?}");
        };
        for value in &mut entry.values {
            *value *= 1 << times;
        }
        (entry, pid)
    }

    fn nothing(&mut self, _: Sender) {}

    fn pass(
        &mut self,
        _: Sender,
        right: SendRight,
        port: ReceiveRight,
        file: Fd,
        memory: Memory,
        any: Right,
    ) -> Both<Both<SendRight, ReceiveRight>, Both<Fd, Memory>> {
        assert!(matches!(any, Right::SendOnce(_)));
        Both(Both(right, port), Both(file, memory))
    }

    fn long(&mut self, _: Sender, mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.reverse();
        bytes
    }
}

/// A right of `client` to a port of `server` that `serve` gets, until nobody has a right any more.
fn served(
    client: &Node,
    server: Node,
    serve: impl FnOnce(&ReceiveRight) -> Result<Box<Received>, ReceiveError> + Send + 'static,
) -> (SendRight, JoinHandle<()>) {
    let port = server.port();
    let (one, other) = sockets();
    server.offer_over(one, &port.make_send()).unwrap();
    let right = client.connect_over(other, None).unwrap();
    let serving = std::thread::spawn(move || {
        port.notify_no_senders(1, &port);
        let notice = serve(&port).unwrap().notice();
        assert!(matches!(notice, Some(Notice::NoSenders(_))), "{notice:?}");
        drop(server);
    });
    (right, serving)
}

/// Passes all on.
struct Passes;

impl StoreProxy for Passes {}

/// The test meets the server itself, and a proxy of it.
fn with_server(test: impl Fn(&Node, SendRight)) {
    let (client, between) = (Node::new().unwrap(), Node::new().unwrap());
    let (right, serving) = served(&client, Node::new().unwrap(), |port| Server.serve(port));
    test(&client, right);
    serving.join().unwrap();
    let (behind, serving) = served(&between, Node::new().unwrap(), |port| Server.serve(port));
    let forward_all = move |port: &ReceiveRight| Passes.forward_all(port, &behind);
    let (right, passing) = served(&client, between, forward_all);
    test(&client, right);
    passing.join().unwrap();
    serving.join().unwrap();
}

#[test]
fn arguments_and_answers_go_there_and_back() {
    with_server(|node, right| {
        let store = StoreClient::new(right).with_timeout(Duration::from_secs(120));
        let inner = Entry {
            key: "inner".into(),
            values: vec![],
            next: None,
        };
        let mut entry = Entry {
            key: "outer".into(),
            values: vec![1, u64::from(u32::MAX)],
            next: Some(Box::new(inner)),
        };
        let (doubled, pid) = store.double(entry.clone(), 3).unwrap();
        entry.values = vec![8, u64::from(u32::MAX) * 8];
        assert_eq!((doubled, pid), (entry, std::process::id()));
        store.nothing().unwrap();
        for length in [0, 1, 65_000, 65_536, 200_000, 5 << 20] {
            let mut bytes: Vec<u8> = (0..length).map(|at| (at * 7) as u8).collect();
            let back = store.long(bytes.clone()).unwrap();
            bytes.reverse();
            assert_eq!(back, bytes);
        }
        let (inbox, moving) = (node.port(), node.port());
        let mut draft = Draft::create(c"x", 8192).unwrap();
        draft.fill(9);
        let memory = Memory::Donated(Sealed::new(draft).unwrap().into());
        let Both(Both(right, port), Both(file, memory)) = store
            .pass(
                inbox.make_send(),
                moving,
                Fd(file_of("text")),
                memory,
                inbox.make_send_once().into(),
            )
            .unwrap();
        right.send(Message::new(5), None).unwrap();
        let mut came = [0; 2].map(|_| inbox.receive(None).unwrap());
        came.sort_by_key(|message| message.notice().is_some());
        assert_eq!(came[0].id, 5);
        assert_eq!(came[1].notice(), Some(Notice::SendOnce));
        assert_eq!(text_of(&file.0), "text");
        assert_eq!(memory.bytes(), 8192);
        port.make_send().send(Message::new(4), None).unwrap();
        assert_eq!(port.receive(None).unwrap().id, 4);
    });
}

#[test]
fn another_version_is_told_by_both_numbers() {
    with_server(|_, right| {
        let older = older::StoreClient::new(right.clone());
        let error = older.double().unwrap_err();
        let InvokeError::Version { ours, theirs, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((*ours, *theirs), (1, 2));
        let text = error.to_string();
        assert!(text.contains("version 2 of test.store") && text.contains("version 1"));
        let other = older::OtherClient::new(right.clone());
        let error = other.nothing().unwrap_err();
        assert!(matches!(error, InvokeError::Interface("test.other")));
        StoreClient::new(right).nothing().unwrap();
    });
}

#[test]
fn garbled_arguments_are_answered_and_the_server_goes_on() {
    with_server(|_, right| {
        let liar = older::LiarClient::new(right.clone());
        let results = [
            liar.double(1),
            liar.nothing(1),
            liar.pass(),
            liar.long(1000),
            liar.more(),
        ];
        for result in results {
            assert!(
                matches!(result, Err(InvokeError::Garbled("arguments", _))),
                "{result:?}"
            );
        }
        for length in 0..20 {
            let message = Message {
                bytes: vec![1; length],
                ..Message::new(1)
            };
            assert_eq!(right.call(message, None).unwrap().bytes.len(), 12);
        }
        StoreClient::new(right).nothing().unwrap();
    });
}

#[test]
fn arguments_that_cost_their_sender_nothing_are_not_read() {
    const BYTES: usize = 65 << 20;
    with_server(|node, right| {
        let own = StoreClient::new(right.clone());
        let error = own.long(vec![0; BYTES]).unwrap_err();
        assert!(error.to_string().contains("64 MiB"), "{error}");
        let port = node.port();
        let asks = StoreClient::new(port.make_send()).with_timeout(Duration::ZERO);
        asks.nothing().unwrap_err();
        let mut bytes = port.receive(None).unwrap().bytes;
        // They are in memory that comes along.
        bytes[7] = 1;
        let sparse = Sealed::new(Draft::create(c"sparse", BYTES).unwrap()).unwrap();
        let message = Message {
            bytes,
            memory: vec![Memory::Donated(sparse.into())],
            ..Message::new(StoreClient::INTERFACE.number("long"))
        };
        let answer = right.call(message, None).unwrap();
        let garbled = 2;
        assert_eq!((answer.bytes.len(), answer.bytes[6]), (12, garbled));
    });
}

#[test]
fn a_server_that_dies_is_an_error_of_the_call() {
    let node = Node::new().unwrap();
    let port = node.port();
    let store = StoreClient::new(port.make_send());
    drop(port);
    let error = store.nothing().unwrap_err();
    assert!(matches!(error, InvokeError::Call(CallError::Refused(_))));
}

interface! {
    /// Messages, and answers that come later.
    trait Slow, client SlowClient, proxy SlowProxy, "test.slow" version 1 {
        /// Nobody answers.
        fn note(number: u64, bytes: Contents);
        /// Answered with the sum of all notes, when there are so many.
        fn sum(of: usize) => (u64, usize);
        /// Answered at once.
        fn count() -> usize;
    }
}

mod newer {
    farpage_port::interface! {
        /// What the interface will be.
        pub trait Slow, client SlowClient, "test.slow" version 2 {
            /// Has fewer arguments.
            fn note(number: u64);
        }
    }
}

#[derive(Default)]
struct Notes {
    numbers: Vec<u64>,
    bytes: usize,
    waits: Vec<(usize, Answer<(u64, usize)>)>,
}

impl Notes {
    fn answer_some(&mut self) {
        let (sum, count) = (self.numbers.iter().sum(), self.numbers.len());
        for (_, answer) in self.waits.extract_if(.., |(of, _)| *of <= count) {
            assert!(answer.give((sum, self.bytes)));
        }
    }
}

impl Slow for Notes {
    fn note(&mut self, _: Sender, number: u64, bytes: Contents) {
        let right = bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8);
        assert!(right, "{} bytes", bytes.len());
        self.numbers.push(number);
        self.bytes += bytes.len();
        self.answer_some();
    }

    fn sum(&mut self, _: Sender, of: usize, answer: Answer<(u64, usize)>) {
        match of {
            // The caller is told.
            0 => drop(answer),
            of => self.waits.push((of, answer)),
        }
        self.answer_some();
    }

    fn count(&mut self, _: Sender) -> usize {
        self.numbers.len()
    }
}

#[test]
fn messages_are_not_answered_and_calls_may_be_later() {
    let client = Node::new().unwrap();
    let serve = |port: &ReceiveRight| Notes::default().serve(port);
    let (right, serving) = served(&client, Node::new().unwrap(), serve);
    let slow = SlowClient::new(right);
    let asks = slow.clone();
    let waits = std::thread::spawn(move || asks.sum(5).unwrap());
    // Of another version: nobody is told, and nothing is done.
    newer::SlowClient::new(slow.right().clone())
        .note(9)
        .unwrap();
    let lengths = [0, 1, 4096, 65_000, 300_000];
    for (number, length) in lengths.iter().enumerate() {
        let bytes: Vec<u8> = (0..*length).map(|at: usize| at as u8).collect();
        slow.note(number as u64, bytes.into()).unwrap();
    }
    assert_eq!(waits.join().unwrap(), (10, lengths.iter().sum()));
    let error = slow.sum(0).unwrap_err();
    assert!(
        matches!(error, InvokeError::Call(CallError::Unanswered)),
        "{error}"
    );
    assert_eq!(slow.count().unwrap(), 5);
    drop(slow);
    serving.join().unwrap();
}

/// Sees what is passed on, doubles small notes, lets large ones not through, nor sums of 9.
#[derive(Default)]
struct Watches(Vec<String>);

impl SlowProxy for Watches {
    fn note(&mut self, caller: Sender, number: &mut u64, bytes: &mut Contents) -> bool {
        assert!(matches!(caller, Sender::Peer { pid, .. } if pid == std::process::id()));
        self.0.push(format!("note {number} of {}", bytes.len()));
        *number *= 2;
        bytes.len() < 100
    }

    fn sum(&mut self, _: Sender, of: &mut usize) -> bool {
        self.0.push(format!("sum {of}"));
        *of != 9
    }
}

#[test]
fn a_proxy_sees_changes_and_refuses_and_the_server_answers_the_caller() {
    let (client, between) = (Node::new().unwrap(), Node::new().unwrap());
    let serve = |port: &ReceiveRight| Notes::default().serve(port);
    let (behind, serving) = served(&between, Node::new().unwrap(), serve);
    let (told, seen) = std::sync::mpsc::channel();
    let (right, passing) = served(&client, between, move |port| {
        let mut watches = Watches::default();
        let ended = watches.forward_all(port, &behind);
        told.send(watches.0).unwrap();
        ended
    });
    let slow = SlowClient::new(right);
    let asks = slow.clone();
    let waits = std::thread::spawn(move || asks.sum(2).unwrap());
    let error = slow.sum(9).unwrap_err();
    assert!(
        matches!(error, InvokeError::Refused("test.slow")),
        "{error}"
    );
    for (number, length) in [(4, 8), (5, 100), (6, 9)] {
        let bytes: Vec<u8> = (0..length).collect();
        slow.note(number, bytes.into()).unwrap();
    }
    assert_eq!(waits.join().unwrap(), (20, 17));
    assert_eq!(slow.count().unwrap(), 2);
    assert!(matches!(
        slow.sum(0),
        Err(InvokeError::Call(CallError::Unanswered))
    ));
    drop(slow);
    passing.join().unwrap();
    serving.join().unwrap();
    let mut seen = seen.recv().unwrap();
    seen.sort();
    let all = [
        "note 4 of 8",
        "note 5 of 100",
        "note 6 of 9",
        "sum 0",
        "sum 2",
        "sum 9",
    ];
    assert_eq!(seen, all);
}

#[test]
fn behind_a_proxy_a_server_that_is_gone_is_an_error_of_the_call() {
    let (client, between) = (Node::new().unwrap(), Node::new().unwrap());
    let gone = between.port();
    let behind = gone.make_send();
    drop(gone);
    let forward_all = move |port: &ReceiveRight| Passes.forward_all(port, &behind);
    let (right, passing) = served(&client, between, forward_all);
    let error = StoreClient::new(right).nothing().unwrap_err();
    assert!(
        matches!(error, InvokeError::Call(CallError::Unanswered)),
        "{error}"
    );
    passing.join().unwrap();
}
