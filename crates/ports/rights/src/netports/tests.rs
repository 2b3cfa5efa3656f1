//! What one host tells another, step by step; and hosts that tell what they should not.

use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use crate::netports::packet::{Head, Kind, MemoryHead, Packet, Port, Ref, Stay};
use crate::netports::table::{Given, Output, Table, Taken, UNIT_BYTES, Violation, WINDOW, units};

const A: Stay = Stay(1);
const B: Stay = Stay(2);
const C: Stay = Stay(3);

fn table(own: Stay) -> Table {
    let mut table = Table::new(own);
    let all = BTreeSet::from([A, B, C]);
    let others = all.into_iter().filter(|stay| *stay != own).collect();
    table.sees(1, &others);
    table
}

fn outputs(table: &mut Table) -> Vec<Output> {
    core::iter::from_fn(|| table.poll_output()).collect()
}

fn message(to: u64, bytes: u32, rights: Vec<Ref>) -> Packet {
    let head = Head {
        bytes,
        rights,
        ..Head::default()
    };
    let released = 0;
    Packet::Message { to, released, head }
}

const OURS: Ref = Ref::Mine {
    number: 7,
    kind: Kind::Send,
};

#[test]
fn a_right_that_was_given_and_released_is_dropped() {
    let mut home = table(A);
    assert_eq!(home.give(B, Given::Own(7, Kind::Send)), OURS);
    assert_eq!(home.give(B, Given::Own(7, Kind::Send)), OURS);
    let release = |times| Packet::Release { number: 7, times };
    assert_eq!(home.handle(B, &release(1)), Ok(false));
    assert_eq!(outputs(&mut home), []);
    assert_eq!(home.handle(B, &release(1)), Ok(false));
    assert_eq!(outputs(&mut home), [Output::Drop(7)]);
    assert_eq!(home.handle(B, &release(1)), Err(Violation::NotHeld));
}

#[test]
fn a_right_that_comes_home_is_the_real_one() {
    let mut home = table(A);
    home.give(B, Given::Own(7, Kind::Send));
    let mut other = table(B);
    let port = Port { home: A, number: 7 };
    assert_eq!(other.take(A, OURS), Ok(Taken::Proxy(port, Kind::Send)));
    let back = other.give(A, Given::Proxy(port));
    assert_eq!(home.take(B, back), Ok(Taken::Own(7)));
    assert_eq!(home.take(C, back), Err(Violation::NotHeld));
}

#[test]
fn who_gives_a_third_hosts_right_keeps_it_until_it_is_claimed() {
    let (mut home, mut giver, mut taker) = (table(A), table(B), table(C));
    let port = Port { home: A, number: 7 };
    let right = home.give(B, Given::Own(7, Kind::Send));
    giver.take(A, right).unwrap();
    let third = giver.give(C, Given::Proxy(port));
    giver.unused(port);
    assert_eq!(outputs(&mut giver), [], "it is kept");
    assert_eq!(taker.take(B, third), Ok(Taken::Proxy(port, Kind::Send)));
    assert!(!taker.is_open(port));
    let claim = Packet::Claim { number: 7 };
    assert_eq!(outputs(&mut taker), [Output::Send(A, claim.clone())]);
    home.handle(C, &claim).unwrap();
    let claimed = Packet::Claimed { number: 7 };
    assert_eq!(outputs(&mut home), [Output::Send(C, claimed.clone())]);
    taker.handle(A, &claimed).unwrap();
    assert!(taker.is_open(port));
    let unpin = Packet::Unpin { port };
    let told = [Output::Send(B, unpin.clone()), Output::Open(port)];
    assert_eq!(outputs(&mut taker), told);
    giver.handle(C, &unpin).unwrap();
    let release = Packet::Release {
        number: 7,
        times: 1,
    };
    assert_eq!(outputs(&mut giver), [Output::Send(A, release)]);
    assert_eq!(taker.handle(A, &claimed), Err(Violation::Contradiction));
}

#[test]
fn a_port_that_dies_kills_its_proxies_and_so_does_its_host() {
    let mut home = table(A);
    home.give(B, Given::Own(7, Kind::Send));
    home.name(7, true);
    assert!(home.died(7), "it had a name");
    let gone = Packet::Gone { number: 7 };
    let told = [Output::Drop(7), Output::Send(B, gone.clone())];
    assert_eq!(outputs(&mut home), told);
    // What was on its way goes nowhere, and is no crime.
    assert_eq!(home.handle(B, &message(7, 0, vec![])), Ok(false));
    let mut other = table(B);
    let port = Port { home: A, number: 7 };
    other.take(A, OURS).unwrap();
    other.handle(A, &gone).unwrap();
    let release = Packet::Release {
        number: 7,
        times: 1,
    };
    let told = [Output::Send(A, release), Output::Kill(port)];
    assert_eq!(outputs(&mut other), told);
    other
        .take(
            C,
            Ref::Mine {
                number: 9,
                kind: Kind::Once,
            },
        )
        .unwrap();
    other.sees(2, &BTreeSet::from([A]));
    let of_it = Port { home: C, number: 9 };
    assert_eq!(outputs(&mut other), [Output::Kill(of_it)]);
    assert!(!other.look_up(of_it));
    assert_eq!(outputs(&mut other), [Output::Kill(of_it)]);
}

#[test]
fn what_a_dead_host_held_goes_when_all_others_have_handled_what_it_sent() {
    let mut home = table(A);
    home.give(B, Given::Own(7, Kind::Once));
    home.sees(2, &BTreeSet::from([C]));
    assert_eq!(outputs(&mut home), [], "it may have given it to the third");
    home.saw(C, 2);
    assert_eq!(outputs(&mut home), [Output::Drop(7)]);
}

#[test]
fn a_host_sends_as_much_as_there_is_room_for() {
    let mut home = table(A);
    home.give(B, Given::Own(7, Kind::Send));
    let big = u32::try_from(UNIT_BYTES * 40).unwrap();
    for _ in 0..2 {
        assert_eq!(home.handle(B, &message(7, big, vec![])), Ok(true));
    }
    let more = message(7, 0, vec![]);
    assert_eq!(home.handle(B, &more), Err(Violation::NoRoom));
    let mut other = table(B);
    other.take(A, OURS).unwrap();
    let port = Port { home: A, number: 7 };
    let mut sent = 0;
    while other.is_open(port) {
        other.sends(port, 1);
        sent += 1;
    }
    assert_eq!(sent, WINDOW / 2 + 1);
    let credit = |units| Packet::Credit { number: 7, units };
    other.handle(A, &credit(1)).unwrap();
    assert_eq!(outputs(&mut other), [Output::Open(port)]);
    // Nobody needs it: it is released when all has been taken, which its home is asked for.
    other.unused(port);
    let drain = Packet::Drain { number: 7 };
    assert_eq!(outputs(&mut other), [Output::Send(A, drain)]);
    other.handle(A, &credit(sent - 1)).unwrap();
    let release = Packet::Release {
        number: 7,
        times: 1,
    };
    assert_eq!(outputs(&mut other), [Output::Send(A, release)]);
    assert_eq!(units(u64::MAX), WINDOW / 2);
}

#[test]
fn what_contradicts_is_refused() {
    let mut home = table(A);
    for packet in [message(7, 0, vec![]), Packet::Drain { number: 7 }] {
        assert_eq!(home.handle(B, &packet), Err(Violation::NotHeld));
    }
    let own = Ref::Third {
        port: Port { home: A, number: 7 },
        kind: Kind::Send,
    };
    assert_eq!(home.take(B, own), Err(Violation::Contradiction));
    let once = Ref::Mine {
        number: 8,
        kind: Kind::Once,
    };
    assert!(home.take(B, once).is_ok());
    assert_eq!(home.take(B, once), Err(Violation::Contradiction));
    let times = 0;
    home.give(B, Given::Own(7, Kind::Send));
    let release = Packet::Release { number: 7, times };
    assert_eq!(home.handle(B, &release), Err(Violation::Count));
    let vain = (100..5000).find_map(|number| home.handle(C, &Packet::Claim { number }).err());
    assert_eq!(vain, Some(Violation::Vain));
    // Who is expelled is not heard, and its ports are dead.
    outputs(&mut home);
    home.expel(B);
    let told = [
        Output::Send(B, Packet::Bye),
        Output::Kill(Port { home: B, number: 8 }),
    ];
    assert_eq!(outputs(&mut home), told);
    assert_eq!(home.handle(B, &message(7, 0, vec![])), Ok(false));
    assert_eq!(outputs(&mut home), []);
}

fn any_packet() -> impl Strategy<Value = Packet> {
    let number = || 0..4u64;
    let port = || {
        (1..4u64, number()).prop_map(|(home, number)| Port {
            home: Stay(home),
            number,
        })
    };
    let kind = || prop_oneof![Just(Kind::Send), Just(Kind::Once)];
    let right = prop_oneof![
        Just(Ref::Dead),
        (number(), kind()).prop_map(|(number, kind)| Ref::Mine { number, kind }),
        (number(), 0..3u64).prop_map(|(number, released)| Ref::Yours { number, released }),
        (port(), kind()).prop_map(|(port, kind)| Ref::Third { port, kind }),
    ];
    let rights = proptest::collection::vec(right, 0..3);
    prop_oneof![
        (number(), 0..3u64, rights).prop_map(|(to, released, rights)| {
            let bytes = 1 << 20;
            let memory = vec![MemoryHead {
                is_lent: true,
                bytes: 9,
            }];
            let head = Head {
                bytes,
                rights,
                memory,
                ..Head::default()
            };
            Packet::Message { to, released, head }
        }),
        (number(), 0..3u64).prop_map(|(number, times)| Packet::Release { number, times }),
        number().prop_map(|number| Packet::Claim { number }),
        number().prop_map(|number| Packet::Claimed { number }),
        number().prop_map(|number| Packet::Gone { number }),
        port().prop_map(|port| Packet::Unpin { port }),
        (number(), 0..40u32).prop_map(|(number, units)| Packet::Credit { number, units }),
        number().prop_map(|number| Packet::Drain { number }),
    ]
}

proptest! {
    #[test]
    fn no_host_brings_another_down(
        packets in proptest::collection::vec((2..4u64, any_packet(), 0..6u8), 0..200)
    ) {
        let mut home = table(A);
        for (number, kind) in [(0, Kind::Send), (1, Kind::Once), (2, Kind::Send)] {
            home.give(B, Given::Own(number, kind));
        }
        for (from, packet, what) in packets {
            let from = Stay(from);
            if let Packet::Message { head, .. } = &packet {
                let taken: Result<Vec<Taken>, Violation> =
                    head.rights.iter().map(|right| home.take(from, *right)).collect();
                if let Ok(taken) = taken {
                    for one in taken {
                        if let (Taken::Proxy(port, _), true) = (one, what < 3) {
                            home.unused(port);
                        }
                    }
                }
            }
            // As if it went on being heard: worse than what the shell does.
            if let Ok(true) = home.handle(from, &packet)
                && let Packet::Message { to, head, .. } = packet
                && what > 1
            {
                home.taken(to, from, units(head.follows().unwrap()));
            }
            if what == 5 {
                home.died(2);
            }
            outputs(&mut home);
        }
        home.expel(B);
        home.sees(9, &BTreeSet::from([C]));
        home.saw(C, 9);
    }

    #[test]
    fn packets_come_as_they_were_sent(packet in any_packet(), more in 0..2usize) {
        let mut bytes = packet.encode();
        let follows = match &packet {
            Packet::Message { head, .. } => head.follows().unwrap() as usize,
            _ => 0,
        };
        bytes.resize(bytes.len() + follows + more, 0);
        let decoded = Packet::decode(&bytes).ok().map(|(packet, _)| packet);
        prop_assert_eq!(decoded, (more == 0).then_some(packet));
    }

    #[test]
    fn anything_is_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let _ = Packet::decode(&bytes);
    }
}
