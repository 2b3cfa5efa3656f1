//! Hosts on one machine, over real sockets.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use farpage_network::{
    Config, Gone, Incarnation, MESSAGE_BYTES_MAX, MeetError, Network, NetworkError, Priority,
    Receiver,
};
use rustix::event::{PollFd, PollFlags, poll};

use Priority::{Bulk, Urgent};

use crate::support::{Host, Notes, Told, new_key, number, pair};

#[test]
fn messages_come_in_order_of_their_priority_in_both_directions() {
    let (one, two) = pair();
    for n in 0..1000 {
        one.send(2, Urgent, &number(n));
        two.send(1, Bulk, &number(n));
    }
    let all: Vec<_> = (0..1000).map(number).collect();
    assert_eq!(two.notes.messages(Urgent, 1000), all);
    assert_eq!(one.notes.messages(Bulk, 1000), all);
}

#[test]
fn a_message_is_its_parts_one_behind_the_other() {
    let (one, two) = pair();
    let parts: [&[u8]; 4] = [b"a", b"", &[7; 5000], b"z"];
    one.network.send(Incarnation(2), Urgent, &parts).unwrap();
    assert_eq!(two.notes.messages(Urgent, 1), [parts.concat()]);
}

#[test]
fn messages_may_be_sent_before_there_is_a_connection() {
    let key = new_key();
    let (one, two) = (Host::start(&key, 1), Host::start(&key, 2));
    two.meet(&one);
    two.send(1, Urgent, b"early");
    one.meet(&two);
    assert_eq!(one.notes.messages(Urgent, 1), [b"early"]);
}

#[test]
fn who_is_not_met_yet_is_told_so_and_comes_through_later() {
    let key = new_key();
    let (one, two) = (Host::start(&key, 1), Host::start(&key, 2));
    one.meet(&two);
    one.notes
        .wait_for_link(false, "incarnation 1 is not known here yet");
    two.notes
        .wait_for_refused("incarnation 1 is not known here yet");
    two.meet(&one);
    one.notes.wait_for_link(true, "connected");
}

#[test]
fn the_longest_messages_come_whole_beside_small_ones() {
    let (one, two) = pair();
    let large = |n: u8| vec![n; MESSAGE_BYTES_MAX];
    for n in 0..20 {
        one.send(2, Bulk, &large(n));
        one.send(2, Urgent, &number(n.into()));
        one.send(2, Bulk, &[n]);
    }
    let urgent: Vec<_> = (0..20).map(number).collect();
    assert_eq!(two.notes.messages(Urgent, 20), urgent);
    for (n, pair) in (0..).zip(two.notes.messages(Bulk, 40).chunks(2)) {
        assert!(pair[0] == large(n) && pair[1] == [n], "{n}");
    }
}

#[test]
fn what_was_taken_is_owed_no_more() {
    let (one, two) = pair();
    one.send(2, Bulk, &[0; 100_000]);
    two.notes.messages(Bulk, 1);
    // The word of it comes with the peer's next one at the latest; this waits for no clock.
    farpage_testkit::until("nothing is owed", || one.owed(2, Bulk) == 0);
}

#[test]
fn nothing_can_be_sent_to_who_was_not_met_or_is_parted_from() {
    let (one, _two) = pair();
    let text = one
        .network
        .send(Incarnation(9), Urgent, &[b"x"])
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("incarnation 9 is gone, or was never met"),
        "{text}"
    );
    one.network.part(Incarnation(2));
    let gone = Gone(Incarnation(2));
    assert_eq!(one.network.send(gone.0, Urgent, &[b"x"]), Err(gone));
    assert_eq!(one.network.owed_bytes(gone.0, Bulk), Err(gone));
}

#[test]
fn who_was_parted_from_is_not_met_again_and_told_why() {
    let (one, two) = pair();
    one.notes.wait_for_link(true, "connected");
    two.network.part(Incarnation(1));
    one.notes
        .wait_for_link(false, "incarnation 1 was parted from: it has to start anew");
    let again = two
        .network
        .meet(Incarnation(1), one.network.local_address());
    assert_eq!(again, Err(MeetError::Parted(Incarnation(1))));
    let own = one
        .network
        .meet(Incarnation(1), one.network.local_address());
    assert_eq!(own, Err(MeetError::Itself(Incarnation(1))));
}

#[test]
fn nothing_comes_from_a_peer_after_it_was_parted_from() {
    let (one, two) = pair();
    std::thread::scope(|scope| {
        let sender = &one.network;
        scope.spawn(move || {
            (0..20_000).for_each(|n| sender.send(Incarnation(2), Urgent, &[&number(n)]).unwrap());
        });
        two.notes.messages(Urgent, 100);
        two.network.part(Incarnation(1));
        let told = two.notes.told();
        one.notes.wait_for_link(false, "was parted from");
        let count = told.len();
        let after = two.notes.told();
        let is_new = |told: &&Told| matches!(told, Told::Message(..) | Told::Link(..));
        assert_eq!(after[count..].iter().find(is_new), None);
    });
}

#[test]
fn a_host_of_another_cluster_is_refused_with_words_on_both_sides() {
    let (one, two) = (Host::start(&new_key(), 1), Host::start(&new_key(), 2));
    one.meet(&two);
    two.meet(&one);
    one.notes
        .wait_for_link(false, "another cluster; copy the same cluster.key");
    two.notes
        .wait_for_refused("another cluster; copy the same cluster.key");
}

#[test]
fn another_incarnation_at_an_address_is_refused_with_words_on_both_sides() {
    let key = new_key();
    let (one, three) = (Host::start(&key, 1), Host::start(&key, 3));
    one.network
        .meet(Incarnation(2), three.network.local_address())
        .unwrap();
    one.notes
        .wait_for_link(false, "another incarnation answers there");
    three
        .notes
        .wait_for_refused("expected another incarnation here");
}

#[test]
fn nobody_at_an_address_is_told_with_the_address() {
    let one = Host::start(&new_key(), 1);
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    one.network.meet(Incarnation(2), address).unwrap();
    one.notes
        .wait_for_link(false, &format!("cannot connect to 2 at {address}"));
    let key = new_key();
    let two = Host::start(&key, 2);
    let listen = two.network.local_address();
    let config = Config::new(listen, key, Incarnation(3));
    match Network::start(config, Arc::new(Notes::default())) {
        Err(error @ NetworkError::Listen { .. }) => {
            assert!(error.to_string().contains("a port that is free"), "{error}");
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("two listen at one address"),
    }
}

#[test]
fn garbage_ends_its_connection_and_no_other() {
    let (one, two) = pair();
    let address = two.network.local_address();
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger
        .write_all(b"GET / HTTP/1.1\r\nHost: farpage\r\n\r\n")
        .unwrap();
    two.notes.wait_for_refused("it does not speak TLS");
    let mut rest = Vec::new();
    let _ = stranger.read_to_end(&mut rest);
    one.send(2, Urgent, b"still here");
    assert_eq!(two.notes.messages(Urgent, 1), [b"still here"]);
}

#[test]
fn who_says_nothing_is_closed_and_so_are_too_many() {
    let host = Host::start(&new_key(), 1);
    let address = host.network.local_address();
    let mut silent: Vec<_> = (0..80)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    host.notes
        .wait_for_refused("too many connections are being made at once");
    host.notes
        .wait_for_refused("it did not say in time who it is");
    for stranger in &mut silent {
        let mut rest = Vec::new();
        let _ = stranger.read_to_end(&mut rest);
    }
}

/// Sends each message back, and the bytes of it as messages of their own.
struct Echo(OnceLock<Weak<Network>>);

impl Receiver for Echo {
    fn received(&self, from: Incarnation, priority: Priority, message: &[u8]) {
        let network = self.0.get().and_then(Weak::upgrade).unwrap();
        network.send(from, priority, &[message]).unwrap();
        assert!(!network.turn(), "a turn in a callback does nothing");
        if message == b"part" {
            network.part(from);
        }
    }
}

#[test]
fn a_receiver_may_send_and_part_and_a_thread_that_waits_may_turn() {
    let key = new_key();
    let notes = Arc::new(Notes::default());
    let any = "127.0.0.1:0".parse().unwrap();
    let mut config = Config::new(any, key.clone(), Incarnation(1));
    config.own_thread = false;
    let one = Network::start(config, notes.clone()).unwrap();
    let echo = Arc::new(Echo(OnceLock::new()));
    let config = Config::new(any, key, Incarnation(2));
    let two = Arc::new(Network::start(config, echo.clone()).unwrap());
    echo.0.set(Arc::downgrade(&two)).unwrap();
    one.meet(Incarnation(2), two.local_address()).unwrap();
    two.meet(Incarnation(1), one.local_address()).unwrap();
    let turn_until = |done: &dyn Fn(&[Told]) -> bool| {
        while !done(&notes.told()) {
            let descriptor = one.descriptor();
            let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
            poll(&mut fds, None).unwrap();
            one.turn();
        }
    };
    let came = |word: &'static [u8]| {
        move |told: &[Told]| told.contains(&Told::Message(2, Urgent, word.to_vec()))
    };
    one.send(Incarnation(2), Urgent, &[b"ping"]).unwrap();
    turn_until(&came(b"ping"));
    one.send(Incarnation(2), Urgent, &[b"part"]).unwrap();
    turn_until(&|told| {
        let is_down = |told: &Told| matches!(told, Told::Link(2, Urgent, false, _));
        told.iter().any(is_down)
    });
    assert!(one.descriptor().as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn a_batch_leaves_when_it_is_closed_and_in_order() {
    let (one, two) = pair();
    one.notes.wait_for_link(true, "connected");
    let batch = one.network.batch();
    let inner = one.network.batch();
    (0..100).for_each(|n| one.send(2, Urgent, &number(n)));
    drop(inner);
    assert!(one.owed(2, Urgent) >= 100 * 24, "nothing was taken yet");
    drop(batch);
    let all: Vec<_> = (0..100).map(number).collect();
    assert_eq!(two.notes.messages(Urgent, 100), all);
}

#[test]
fn several_threads_send_turn_and_none_overtakes_itself() {
    let (one, two) = pair();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let network = &one.network;
            scope.spawn(move || {
                for n in 0..2000 {
                    let message: [&[u8]; 2] = [&[thread], &number(n)];
                    network.send(Incarnation(2), Urgent, &message).unwrap();
                }
            });
            let network = &two.network;
            scope.spawn(move || {
                for _ in 0..200 {
                    network.turn_within(Duration::from_millis(1));
                }
            });
        }
    });
    let all = two.notes.messages(Urgent, 8000);
    for thread in 0..4 {
        let own = all.iter().filter(|message| message[0] == thread);
        let own: Vec<_> = own.map(|message| message[1..].to_vec()).collect();
        assert_eq!(own, (0..2000).map(number).collect::<Vec<_>>());
    }
}

#[test]
fn many_hosts_talk_to_each_other() {
    let key = new_key();
    let hosts: Vec<_> = (1..=5).map(|number| Host::start(&key, number)).collect();
    for (one, two) in hosts
        .iter()
        .flat_map(|one| hosts.iter().map(move |two| (one, two)))
    {
        if one.number != two.number {
            one.meet(two);
            one.send(two.number, Urgent, &[one.number as u8]);
        }
    }
    for host in &hosts {
        let mut all = host.notes.messages(Urgent, 4).concat();
        all.sort_unstable();
        let others = (1..=5).filter(|n| u64::from(*n) != host.number);
        assert_eq!(all, others.collect::<Vec<u8>>());
    }
}
