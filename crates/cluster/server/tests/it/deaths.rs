//! Hosts that die while others go on.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use farpage_testkit::HANGS;

use farpage_object::PAGE_BYTES;
use farpage_sys::view::View;

use crate::support::dying::one_dies;
use crate::support::{Order, about, die_in_turn, dies, hosts, hosts_that_see, read, view, write};

const PAGES: u64 = 64;

/// What survivors do not have is lost to all; the rest is as they wrote it.
fn others_go_on(seed: u64, victim: usize) {
    // What is in its other half is nowhere near the host that dies.
    let near = PAGES / 2;
    let (_all, survivors) = one_dies(seed, (victim, near), &about(seed, PAGES, 1), 200, 1500);
    let mut lost = 0;
    for page in 0..PAGES {
        for (number, done, _) in &survivors {
            let other = survivors.iter().find(|(other, ..)| other != number);
            let (.., view) = other.unwrap();
            let word = page as usize * PAGE_BYTES + number * 8;
            let wanted = done.written.get(&page).copied().unwrap_or(0);
            match read(view, word) {
                Some(read) => assert_eq!(read, wanted, "page {page}: word {number}"),
                None => lost += 1,
            }
        }
    }
    println!("{} of {PAGES} pages are lost", lost / 2);
    assert!(lost / 2 < PAGES, "some were nowhere near it");
}

#[test]
fn what_others_have_outlives_a_host_and_nobody_waits_for_ever() {
    (1..5).for_each(|seed| others_go_on(seed, 2));
}

#[test]
fn the_home_may_die() {
    (1..4).for_each(|seed| others_go_on(seed, 0));
}

/// Reads a word of each page in turn, again and again.
fn reads_on(view: View, pages: u64) -> Receiver<Option<u64>> {
    let (tells, told) = channel();
    thread::spawn(move || {
        for page in (0..pages as usize).cycle() {
            if tells.send(read(&view, page * PAGE_BYTES)).is_err() {
                return;
            }
        }
    });
    told
}

/// What is read from now on comes, and is 1.
fn goes_on(told: &Receiver<Option<u64>>, after: &str) {
    while told.try_recv().is_ok() {}
    for _ in 0..3 {
        let word = told.recv_timeout(HANGS);
        assert_eq!(word, Ok(Some(1)), "after {after}");
    }
}

#[test]
fn who_is_heard_of_before_it_is_seen_takes_part() {
    let first = |host| match host {
        0 | 1 => view(1, 0..2),
        _ => view(2, 0..3),
    };
    let all = hosts_that_see(3, 16 << 20, Order::AsSent, first);
    for one in &all[..2] {
        // The third has said where it began.
        one.until_it_hears_of(2);
        assert!(one.server.sees(view(2, 0..3)).is_empty());
    }
    let about = about(1, 64, 1);
    let (zero, two) = (all[0].map(&about), all[2].map(&about));
    assert!((0..64).all(|page| write(&two.1, page * PAGE_BYTES, 1)));
    let told = reads_on(zero.1, 64);
    goes_on(&told, "it was seen");
    dies(&all, 1, 3);
    goes_on(&told, "the death of another");
    assert!((0..64).all(|page| write(&two.1, page * PAGE_BYTES, 1)));
    goes_on(&told, "it wrote again");
}

/// While a host tells what it has it sees the next death.
#[test]
fn all_go_on_when_hosts_die_faster_than_they_can_be_recovered_from() {
    const MANY: u64 = 8192;
    const HOSTS: u8 = 62;
    const AT_ONCE: usize = 2;
    const ROUNDS: u32 = HOSTS as u32 / 2;
    let all = hosts(HOSTS, 64 << 20, Order::AsSent);
    let about = about(1, MANY, 1);
    let (zero, one) = (all[0].map(&about), all[1].map(&about));
    assert!((0..MANY as usize).all(|page| write(&zero.1, page * PAGE_BYTES, 1)));
    // The other has about as much to do.
    assert!((0..MANY as usize).all(|page| read(&one.1, page * PAGE_BYTES) == Some(1)));
    let told = reads_on(one.1, MANY);
    let dying: Vec<u8> = (2..HOSTS).rev().collect();
    let mut takes = Duration::ZERO;
    for (round, hosts) in (0..).zip(dying.chunks(AT_ONCE)) {
        let began = Instant::now();
        let lag = takes * round / ROUNDS;
        die_in_turn(&all, hosts, 2 + u64::from(round) * AT_ONCE as u64, lag);
        if round == 0 {
            takes = began.elapsed() / 4;
        }
        goes_on(&told, &format!("the deaths of {hosts:?}"));
    }
}
