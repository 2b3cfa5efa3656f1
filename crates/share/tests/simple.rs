//! Objects with the simple scheduler.

mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use farpage_abi::PAGE_BYTES;
use farpage_share::{About, OpenError};
use farpage_sys::view::View;
use support::{One, Order, dies, hosts, read, simple, write};

const PAGES: u64 = 32;

#[test]
fn a_fault_costs_four_messages_at_most_and_two_for_each_copy() {
    let all = hosts(4, 16 << 20, Order::AsSent);
    let grid = simple(1, 1, 1);
    let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
    let word = |host: usize| views[host].word(0);
    let mut before = 0;
    let mut costs = || -> u64 {
        let of = |one: &One| one.server.figures(1).unwrap().sent;
        let now = all.iter().map(of).sum();
        now - std::mem::replace(&mut before, now)
    };
    word(0).store(1, Ordering::Relaxed);
    assert_eq!(costs(), 0, "at home");
    assert_eq!(word(1).load(Ordering::Relaxed), 1);
    assert_eq!(costs(), 2, "a read of what the home has");
    word(2).store(2, Ordering::Relaxed);
    assert_eq!(
        costs(),
        2 + 2,
        "a write, with a copy at home and one elsewhere"
    );
    assert_eq!(word(3).load(Ordering::Relaxed), 2);
    assert_eq!(costs(), 4, "a read of what another may write");
    word(1).store(3, Ordering::Relaxed);
    assert_eq!(costs(), 2 + 4, "a write, with two copies");
    word(2).store(4, Ordering::Relaxed);
    assert_eq!(costs(), 4, "a write, after another");
    assert_eq!(word(0).load(Ordering::Relaxed), 4);
    assert_eq!(costs(), 2, "a read at home of what another may write");
}

/// What a host has done: the last word that it wrote to each page, and how often it could not.
#[derive(Default)]
struct Done {
    written: HashMap<u64, u64>,
    lost: u64,
}

fn work(number: usize, view: &View, mut seed: u64, rounds: u64, count: &AtomicU64) -> Done {
    let mut all = Done::default();
    let mut seen: HashMap<(u64, usize), u64> = HashMap::new();
    for _ in 0..rounds {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let page = (seed >> 33) % PAGES;
        let word = |host: usize| page as usize * PAGE_BYTES + host * 8;
        count.fetch_add(1, Ordering::Relaxed);
        let other = (seed >> 50) as usize % 3;
        let Some(now) = read(view, word(other)) else {
            all.lost += 1;
            continue;
        };
        let before = seen.insert((page, other), now).unwrap_or(0);
        assert!(
            now >= before,
            "page {page}: word {other} went back from {before} to {now}"
        );
        if (seed >> 45).is_multiple_of(2) {
            let next = all.written.get(&page).copied().unwrap_or(0) + 1;
            match write(view, word(number), next) {
                true => drop(all.written.insert(page, next)),
                false => all.lost += 1,
            }
        }
    }
    all
}

/// What a host has done, and its view.
type Survivor = (usize, Done, Arc<View>);

/// One of three hosts dies; all hosts, and the others when they are done.
fn one_dies(seed: u64, victim: usize) -> (Vec<One>, Vec<Survivor>) {
    println!("seed {seed}, host {victim} dies");
    let all = hosts(3, 16 << 20, Order::Any(seed));
    let grid = simple(seed, PAGES, 1);
    let views: Vec<Arc<View>> = all.iter().map(|one| Arc::new(one.map(&grid).1)).collect();
    let count = Arc::new(AtomicU64::new(0));
    let (tell, told) = channel();
    for (number, view) in views.iter().enumerate() {
        let (view, count, tell) = (Arc::clone(view), Arc::clone(&count), tell.clone());
        let seed = seed ^ (number as u64 + 1) << 40;
        let rounds = if number == victim { u64::MAX } else { 800 };
        // One at a host that dies may wait for ever.
        thread::spawn(move || {
            let done = work(number, &view, seed, rounds, &count);
            tell.send((number, done)).unwrap();
        });
    }
    while count.load(Ordering::Relaxed) < 400 {
        thread::yield_now();
    }
    dies(&all, victim as u8, 2);
    let done = (0..2).map(|_| {
        let limit = Duration::from_secs(60);
        told.recv_timeout(limit).expect("nobody waits for ever")
    });
    let done = done.map(|(number, done)| (number, done, Arc::clone(&views[number])));
    let survivors = done.collect();
    (all, survivors)
}

#[test]
fn a_host_that_dies_takes_only_what_nobody_else_has_seen() {
    for (seed, victim) in [(1, 1), (2, 2), (3, 1)] {
        let (_all, survivors) = one_dies(seed, victim);
        for page in 0..PAGES {
            for (number, done, _) in &survivors {
                assert_eq!(done.lost, 0, "nothing is lost");
                let wanted = done.written.get(&page).copied().unwrap_or(0);
                for (_, _, view) in &survivors {
                    let word = read(view, page as usize * PAGE_BYTES + number * 8);
                    assert_eq!(word, Some(wanted), "page {page}: word {number}");
                }
            }
        }
    }
}

#[test]
fn without_its_home_nobody_waits_for_ever() {
    for seed in 1..4 {
        let (_all, survivors) = one_dies(seed, 0);
        // Who had done all by then has lost nothing that it knows of.
        for (_, _, view) in survivors {
            assert!((0..PAGES).all(|page| read(&view, page as usize * PAGE_BYTES).is_none()));
        }
    }
}

#[test]
fn the_simple_scheduler_with_two_replicas_is_refused() {
    let all = hosts(1, 1 << 20, Order::AsSent);
    let about = About {
        replicas: 2,
        ..simple(1, 1, 1)
    };
    assert!(matches!(all[0].server.open(&about), Err(OpenError::Simple)));
    assert!(all[0].server.open(&simple(1, 1, 1)).is_ok());
}
