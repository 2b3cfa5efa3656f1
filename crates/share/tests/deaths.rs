//! Hosts that die while others go on.

mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use farpage_abi::PAGE_BYTES;
use farpage_sys::view::View;
use support::{Order, about, dies, hosts, read, write};

const PAGES: u64 = 64;

/// What a host has done: the last word that it wrote to each page, and pages that it cannot have.
#[derive(Default)]
struct Done {
    written: HashMap<u64, u64>,
    lost: Vec<u64>,
}

/// Adds to its own word of random pages, and looks at those of others, which never go back.
fn work(number: usize, view: &View, mut seed: u64, rounds: u64, done: &AtomicU64) -> Done {
    let mut all = Done::default();
    let mut seen: HashMap<(u64, usize), u64> = HashMap::new();
    for _ in 0..rounds {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let page = (seed >> 33) % PAGES;
        let word = |host: usize| page as usize * PAGE_BYTES + host * 8;
        done.fetch_add(1, Ordering::Relaxed);
        let other = (seed >> 50) as usize % 3;
        let Some(now) = read(view, word(other)) else {
            all.lost.push(page);
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
                false => all.lost.push(page),
            }
        }
    }
    all
}

fn one_dies(seed: u64, victim: u8) {
    println!("seed {seed}, host {victim} dies");
    let all = hosts(3, 16 << 20, Order::Any(seed));
    let grid = about(seed, PAGES, 1);
    let views: Vec<Arc<View>> = all.iter().map(|one| Arc::new(one.map(&grid).1)).collect();
    let count = Arc::new(AtomicU64::new(0));
    let (tell, told) = channel();
    for (number, view) in views.iter().enumerate() {
        let (view, count, tell) = (Arc::clone(view), Arc::clone(&count), tell.clone());
        let seed = seed ^ (number as u64 + 1) << 40;
        // One at a host that dies may wait for ever.
        thread::spawn(move || {
            let rounds = if number == usize::from(victim) {
                u64::MAX
            } else {
                1500
            };
            let done = work(number, &view, seed, rounds, &count);
            tell.send((number, done)).unwrap();
        });
    }
    while count.load(Ordering::Relaxed) < 600 {
        thread::yield_now();
    }
    dies(&all, victim, 2);
    let mut done = HashMap::new();
    for _ in 0..2 {
        let (number, one) = told
            .recv_timeout(Duration::from_secs(60))
            .expect("nobody waits for ever");
        done.insert(number, one);
    }
    let mut lost = 0;
    for page in 0..PAGES {
        for (number, one) in &done {
            let other = views[*done.keys().find(|other| *other != number).unwrap()].as_ref();
            let word = page as usize * PAGE_BYTES + number * 8;
            let wanted = one.written.get(&page).copied().unwrap_or(0);
            match read(other, word) {
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
    (1..5).for_each(|seed| one_dies(seed, 2));
}

#[test]
fn the_home_may_die() {
    (1..4).for_each(|seed| one_dies(seed, 0));
}
