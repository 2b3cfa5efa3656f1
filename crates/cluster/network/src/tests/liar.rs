//! A host of the cluster that does not keep to the protocol.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Queue, Sender, channel};
use std::time::Duration;

use crate::frame::{Greeting, HEADER_BYTES, Header, Hello};
use crate::line::{Broken, Transport};
use crate::tls::Tls;
use crate::{ClusterKey, Config, Incarnation, Network, Priority, Receiver};

struct Notes(Sender<String>);

impl Receiver for Notes {
    fn received(&self, _: Incarnation, _: Priority, message: &[u8]) {
        self.0.send(format!("{} bytes", message.len())).unwrap();
    }

    fn link_changed(&self, _: Incarnation, _: Priority, _: bool, why: &str) {
        self.0.send(why.into()).unwrap();
    }

    fn refused(&self, _: SocketAddr, why: &str) {
        self.0.send(why.into()).unwrap();
    }
}

/// Host 2, which has met incarnation 1, and what it is told.
fn host() -> (Network, Queue<String>, ClusterKey) {
    let folder = tempfile::tempdir().unwrap();
    let key = ClusterKey::create(folder.path()).unwrap();
    let (sender, told) = channel();
    let config = Config::new("127.0.0.1:0".parse().unwrap(), key.clone(), Incarnation(2));
    let network = Network::start(config, Arc::new(Notes(sender))).unwrap();
    network
        .meet(Incarnation(1), "127.0.0.1:1".parse().unwrap())
        .unwrap();
    (network, told, key)
}

fn hello() -> Hello {
    Hello {
        from: Incarnation(1),
        to: Incarnation(2),
        priority: Priority::Urgent,
        attempt: 1,
        expected: 0,
    }
}

/// Connects to `host` with a certificate of `own`.
fn connect(host: &Network, key: &ClusterKey, own: u64) -> Tls {
    let socket = TcpStream::connect(host.local_address()).unwrap();
    let identity = key.identity(Incarnation(own)).unwrap();
    let mut tls = Tls::client(socket, &identity, Incarnation(2)).unwrap();
    tls.shake_hands().unwrap();
    while tls.is_handshaking() {
        tls.read(&mut Vec::new(), Some(1)).unwrap();
    }
    tls
}

fn greet(tls: &mut Tls, hello: Hello) -> Greeting {
    tls.write(&Greeting::Hello(hello).encode()).unwrap();
    let mut plain = Vec::new();
    loop {
        if let Some((greeting, _)) = Greeting::decode(&plain).unwrap() {
            return greeting;
        }
        tls.read(&mut plain, Some(1)).unwrap();
    }
}

fn wait_for(told: &Queue<String>, words: &str) {
    let mut all = Vec::new();
    while let Ok(said) = told.recv_timeout(Duration::from_secs(120)) {
        if said.contains(words) {
            return;
        }
        all.push(said);
    }
    panic!("no {words} in {all:?}");
}

fn until_closed(tls: &mut Tls) {
    while !matches!(
        tls.read(&mut Vec::new(), Some(1)),
        Err(Broken::Ended | Broken::System(_))
    ) {}
}

#[test]
fn frames_that_cannot_be_end_the_connection_with_words_and_the_next_is_taken() {
    let (network, told, key) = host();
    let head = |length, number, acknowledged| {
        let header = Header {
            length,
            number,
            acknowledged,
        };
        header.encode().to_vec()
    };
    let wrong = [
        (head(1 << 30, 0, 0), "a message of 1073741824 bytes"),
        (
            [head(1, 7, 0), vec![0]].concat(),
            "message 7 when message 0 was due",
        ),
        (head(0, 0, 9), "acknowledged 9 messages"),
    ];
    for (attempt, (bytes, words)) in (1..).zip(wrong) {
        let mut tls = connect(&network, &key, 1);
        let greeting = greet(&mut tls, Hello { attempt, ..hello() });
        assert!(matches!(greeting, Greeting::Welcome(_)), "{greeting:?}");
        tls.write(&bytes).unwrap();
        wait_for(&told, words);
        until_closed(&mut tls);
    }
    let mut tls = connect(&network, &key, 1);
    greet(
        &mut tls,
        Hello {
            attempt: 9,
            ..hello()
        },
    );
    tls.write(&[head(3, 0, 0), vec![0; 3]].concat()).unwrap();
    wait_for(&told, "3 bytes");
    assert_eq!(head(3, 0, 0).len(), HEADER_BYTES);
}

#[test]
fn a_greeting_that_is_not_due_is_refused_with_words_on_both_sides() {
    let (network, told, key) = host();
    let refused = |own, hello, words: &str| {
        let mut tls = connect(&network, &key, own);
        match greet(&mut tls, hello) {
            Greeting::Refused(why) => assert!(why.contains(words), "{why}"),
            Greeting::Hello(_) | Greeting::Welcome(_) => panic!("it is taken"),
        }
        wait_for(&told, words);
        until_closed(&mut tls);
    };
    let of = |from| Hello {
        from: Incarnation(from),
        ..hello()
    };
    refused(3, of(1), "the certificate is not that of incarnation 1");
    refused(0, of(0), "incarnation 0 is not known here yet");
    refused(
        3,
        of(3),
        "incarnation 2 connects to 3, not the other way round",
    );
    let to = Incarnation(8);
    refused(1, Hello { to, ..hello() }, "this is incarnation 2, not 8");
    let expected = 5;
    refused(
        1,
        Hello {
            expected,
            ..hello()
        },
        "it acknowledged 5 messages",
    );
    let mut tls = connect(&network, &key, 1);
    greet(&mut tls, hello());
    refused(1, hello(), "there is a later connection");
}

#[test]
fn what_is_no_greeting_ends_the_connection() {
    let (network, told, key) = host();
    let mut tls = connect(&network, &key, 1);
    tls.write(b"GET / HTTP/1.1").unwrap();
    wait_for(&told, "does not speak this version");
    until_closed(&mut tls);
}

#[test]
fn a_peer_that_falls_silent_is_noticed() {
    let (network, told, key) = host();
    let mut tls = connect(&network, &key, 1);
    greet(&mut tls, hello());
    wait_for(&told, "connected");
    wait_for(&told, "nothing was heard of the peer for too long");
    until_closed(&mut tls);
}
