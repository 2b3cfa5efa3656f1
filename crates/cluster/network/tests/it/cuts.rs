//! Hosts whose connections are cut behind any byte, on their way.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use farpage_network::{Incarnation, Priority};

use Priority::{Bulk, Urgent};

use crate::support::{Host, new_key, number};

/// A connection lives for so many bytes, in both directions together; later ones for ever. The first
/// are cut in the midst of TLS's handshake, of greetings, and of messages.
const CUTS: [usize; 14] = [
    1, 300, 1500, 2900, 3100, 3200, 3300, 5000, 9000, 20_000, 50_000, 4000, 130_000, 3500,
];

/// Passes on what comes to `to`.
fn relay(listener: &TcpListener, to: SocketAddr) {
    std::thread::scope(|scope| {
        for (socket, life) in listener
            .incoming()
            .zip(CUTS.into_iter().chain([usize::MAX; 2]))
        {
            scope.spawn(move || {
                let ends = [socket.unwrap(), TcpStream::connect(to).unwrap()];
                let left = AtomicUsize::new(life);
                std::thread::scope(|scope| {
                    for (from, into) in [(0, 1), (1, 0)] {
                        let (from, into, left) = (&ends[from], &ends[into], &left);
                        scope.spawn(move || pass_on(from, into, left));
                    }
                });
            });
        }
    });
}

fn pass_on(mut from: &TcpStream, mut into: &TcpStream, left: &AtomicUsize) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let take = |left: usize| Some(left.saturating_sub(count));
        let before = left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
            .unwrap();
        let passed = into.write_all(&bytes[..count.min(before)]);
        if passed.is_err() || before <= count {
            break;
        }
    }
    for end in [from, into] {
        let _ = end.shutdown(Shutdown::Both);
    }
}

#[test]
fn connections_that_are_cut_behind_any_byte_lose_nothing_and_double_nothing() {
    let key = new_key();
    let (one, two) = (Host::start(&key, 1), Host::start(&key, 2));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let to = two.network.local_address();
    // It ends by itself, when both hosts have closed what lives for ever.
    std::thread::spawn(move || relay(&listener, to));
    two.meet(&one);
    one.network.meet(Incarnation(2), address).unwrap();
    let page = |n: u32| [number(n), vec![n as u8; 4092]].concat();
    for n in 0..200 {
        for (from, to) in [(&one, 2), (&two, 1)] {
            from.send(to, Urgent, &number(n));
            from.send(to, Bulk, &page(n));
        }
    }
    for host in [&one, &two] {
        assert_eq!(
            host.notes.messages(Urgent, 200),
            (0..200).map(number).collect::<Vec<_>>()
        );
        assert!(host.notes.messages(Bulk, 200) == (0..200).map(page).collect::<Vec<_>>());
    }
}
