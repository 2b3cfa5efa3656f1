//! What hosts of a cluster write to each other: greetings, and the frames of a session.

use farpage_network::frame::{Greeting, HEADER_BYTES, Header, Hello, MESSAGE_BYTES_MAX};
use farpage_network::session::Session;
use farpage_network::{Incarnation, Priority};

/// A greeting that is read is written the same.
pub(crate) fn greeting(input: &[u8]) {
    if let Ok(Some((greeting, length))) = Greeting::decode(input) {
        assert_eq!(greeting.encode(), input[..length]);
    }
}

/// A session whose peer writes anything, in pieces of any length, over several connections: what is
/// handed out is within what came, in its order, and what is kept stays within what was said.
pub(crate) fn session(input: &[u8]) {
    let mut session = Session::default();
    let mut said = 0;
    let mut bytes = Vec::new();
    let mut rest = input;
    while let [what, length, after @ ..] = rest {
        let (piece, after) = after.split_at(after.len().min(usize::from(*length)));
        rest = after;
        match what % 8 {
            0 => {
                session.push(&[b"message"]);
                said += HEADER_BYTES + 7;
            }
            1 => {
                session.push_bare();
                said += HEADER_BYTES;
            }
            2 => {
                let count = session.poll_output().len().min(usize::from(*length));
                session.handle_sent(count);
            }
            3 => {
                if session.handle_connected(u64::from(*length)).is_ok() {
                    bytes.clear();
                }
            }
            _ => {
                bytes.extend_from_slice(piece);
                take(&mut session, &mut bytes);
            }
        }
        assert!(session.owed_bytes() <= said);
        assert!(session.poll_output().len() <= session.owed_bytes());
    }
}

fn take(session: &mut Session, bytes: &mut Vec<u8>) {
    let mut messages = Vec::new();
    let before = session.expected();
    let (taken, result) = session.handle_input(bytes, &mut messages);
    assert_eq!(session.expected() - before, messages.len() as u64);
    let mut end = 0;
    for message in messages {
        assert!(message.start >= end + HEADER_BYTES && message.end <= taken);
        assert!((1..=MESSAGE_BYTES_MAX).contains(&message.len()));
        end = message.end;
    }
    bytes.drain(..taken);
    if result.is_err() {
        bytes.clear();
    }
}

pub(crate) fn greeting_seeds() -> Vec<Vec<u8>> {
    let hello = Hello {
        from: Incarnation(1),
        to: Incarnation(2),
        priority: Priority::Bulk,
        attempt: 1,
        expected: 3,
    };
    let all = [
        Greeting::Hello(hello),
        Greeting::Welcome(hello),
        Greeting::Refused("not known here yet".into()),
    ];
    all.map(|greeting| greeting.encode()).into()
}

pub(crate) fn session_seeds() -> Vec<Vec<u8>> {
    let frame = |number, acknowledged, message: &[u8]| {
        let length = message.len();
        let header = Header {
            length,
            number,
            acknowledged,
        };
        let frame = [&header.encode(), message].concat();
        [&[4, frame.len() as u8], &frame[..]].concat()
    };
    let one = [
        &frame(0, 0, b"hello")[..],
        &frame(1, 0, b""),
        &frame(1, 0, b"x"),
    ]
    .concat();
    let two = [
        &[0, 0, 0, 0, 2, 60][..],
        &frame(0, 2, b"hello"),
        &[3, 2, 0, 0],
    ]
    .concat();
    vec![one, two]
}
