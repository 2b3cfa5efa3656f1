//! Objects with the simple scheduler.

use std::sync::atomic::{AtomicU64, Ordering};

use farpage_object::PAGE_BYTES;
use farpage_server::{About, OpenError};
use farpage_sys::view::View;

use crate::support::dying::{one_dies, work};
use crate::support::{One, Order, hosts, read, simple};

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

#[test]
fn a_host_that_dies_takes_only_what_nobody_else_has_seen() {
    for (seed, victim) in [(1, 1), (2, 2), (3, 1)] {
        let (_all, survivors) = one_dies(seed, (victim, PAGES), &simple(seed, PAGES, 1), 130, 800);
        for page in 0..PAGES {
            for (number, done, _) in &survivors {
                assert!(done.lost.is_empty(), "nothing is lost");
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
        let (_all, survivors) = one_dies(seed, (0, PAGES), &simple(seed, PAGES, 1), 130, 800);
        for (number, _, view) in survivors {
            // It may have done all before the death.
            let after = work(number, &view, PAGES, seed, 20, &AtomicU64::new(0));
            assert_eq!(after.lost.len(), 20);
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
