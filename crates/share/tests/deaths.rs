//! Hosts that die while others go on.

mod support;

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use farpage_abi::PAGE_BYTES;
use support::dying::one_dies;
use support::{Order, about, die_in_turn, hosts, read, write};

const PAGES: u64 = 64;

/// What survivors do not have is lost to all; the rest is as they wrote it.
fn others_go_on(seed: u64, victim: usize) {
    let (_all, survivors) = one_dies(seed, victim, &about(seed, PAGES, 1), 600, 1500);
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
    assert!(
        lost / 2 < PAGES,
        "some were nowhere near the host that died"
    );
}

#[test]
fn what_others_have_outlives_a_host_and_nobody_waits_for_ever() {
    (1..5).for_each(|seed| others_go_on(seed, 2));
}

#[test]
fn the_home_may_die() {
    (1..4).for_each(|seed| others_go_on(seed, 0));
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
    let (tells, told) = channel();
    thread::spawn(move || {
        for page in 0.. {
            let word = read(&one.1, page % MANY as usize * PAGE_BYTES);
            if tells.send(word).is_err() {
                return;
            }
        }
    });
    let dying: Vec<u8> = (2..HOSTS).rev().collect();
    let mut takes = Duration::ZERO;
    for (round, hosts) in (0..).zip(dying.chunks(AT_ONCE)) {
        let began = Instant::now();
        let lag = takes * round / ROUNDS;
        die_in_turn(&all, hosts, 2 + u64::from(round) * AT_ONCE as u64, lag);
        if round == 0 {
            takes = began.elapsed() / 4;
        }
        while told.try_recv().is_ok() {}
        for _ in 0..3 {
            let word = told.recv_timeout(Duration::from_secs(30));
            assert_eq!(word, Ok(Some(1)), "after the deaths of {hosts:?}");
        }
    }
}
