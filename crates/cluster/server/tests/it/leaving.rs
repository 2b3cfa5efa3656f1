//! Hosts that leave in good order, and what others have then.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use farpage_object::PAGE_BYTES;
use farpage_server::{About, Left, Why};
use farpage_sys::view::View;

use crate::support::{One, Order, about, dies, hosts, mirrored, read, simple, write};

const WITHIN: Duration = Duration::from_secs(120);

/// So many worlds, or more.
fn seeds(few: u64) -> std::ops::Range<u64> {
    let given = std::env::var("FARPAGE_SEEDS").map(|seeds| seeds.parse().unwrap());
    1..1 + given.unwrap_or(few)
}

fn leaves(one: &One) -> Vec<Left> {
    one.server.leave(WITHIN, &|_| true, &|_| {})
}

fn word(view: &View, page: u64) -> Option<u64> {
    read(view, page as usize * PAGE_BYTES)
}

/// A host writes to every other page, and leaves; the others have all as it was.
fn all_is_there_when_it_left(of: fn(u64, u64, u64) -> About, leaver: usize) {
    for (seed, unit_pages) in [(1, 1), (2, 4), (3, 64)] {
        let all = hosts(3, 4 << 20, Order::Any(seed));
        let pages = 800;
        let grid = of(seed, pages, unit_pages);
        let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
        for page in (0..pages).step_by(2) {
            let by = if page % 10 == 4 {
                (leaver + 1) % 3
            } else {
                leaver
            };
            assert!(write(&views[by], page as usize * PAGE_BYTES, page + 1));
        }
        assert_eq!(word(&views[(leaver + 2) % 3], 8), Some(9), "a copy");
        assert_eq!(leaves(&all[leaver]), []);
        dies(&all, leaver as u8, 2);
        let others = (0..3).filter(|host| *host != leaver);
        for page in 0..pages {
            let wanted = if page % 2 == 0 { page + 1 } else { 0 };
            for host in others.clone() {
                assert_eq!(word(&views[host], page), Some(wanted), "page {page}");
            }
        }
    }
}

#[test]
fn what_a_host_wrote_and_what_nobody_wrote_is_there_when_it_has_left() {
    for leaver in 0..3 {
        all_is_there_when_it_left(about, leaver);
    }
}

#[test]
fn so_it_is_with_two_replicas() {
    for leaver in 0..3 {
        all_is_there_when_it_left(mirrored, leaver);
    }
}

#[test]
fn so_it_is_with_the_simple_scheduler_while_its_home_stays() {
    for leaver in 1..3 {
        all_is_there_when_it_left(simple, leaver);
    }
}

#[test]
fn with_the_simple_scheduler_it_is_said_that_all_goes_with_its_home() {
    let all = hosts(2, 4 << 20, Order::AsSent);
    let grid = simple(1, 10, 1);
    let _views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
    let left = leaves(&all[0]);
    assert_eq!((left[0].bytes, left[0].why), (grid.bytes, Why::Simple));
}

#[test]
fn one_host_leaves_after_the_other_and_the_last_has_all() {
    let all = hosts(4, 4 << 20, Order::Any(7));
    let grid = about(1, 400, 1);
    let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
    for page in (0..400).step_by(3) {
        let by = &views[page as usize % 4];
        assert!(write(by, page as usize * PAGE_BYTES, page + 1));
    }
    for leaver in 0..3 {
        assert_eq!(leaves(&all[leaver]), []);
        dies(&all, leaver as u8, 2 + leaver as u64);
        // Some of it is touched at each home for the first time.
        assert_eq!(word(&views[3], 1 + 3 * leaver as u64), Some(0));
        assert!(write(&views[3], (2 + 3 * leaver) * PAGE_BYTES, 5));
    }
    for page in 0..400 {
        let wanted = match page {
            2 | 5 | 8 => 5,
            page if page % 3 == 0 => page + 1,
            _ => 0,
        };
        assert_eq!(word(&views[3], page), Some(wanted), "page {page}");
    }
}

#[test]
fn what_a_later_host_takes_with_it_is_lost_and_no_zeros() {
    let all = hosts(3, 4 << 20, Order::Any(3));
    let grid = about(1, 8, 1);
    let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
    assert!(write(&views[0], 0, 1));
    assert!(write(&views[2], PAGE_BYTES, 2));
    assert_eq!(leaves(&all[0]), []);
    dies(&all, 0, 2);
    assert!(write(&views[2], 2 * PAGE_BYTES, 3));
    assert_eq!(word(&views[1], 3), Some(0));
    dies(&all, 2, 3);
    assert_eq!(word(&views[1], 1), None, "it was written at the first home");
    assert_eq!(word(&views[1], 2), None, "and this at the second");
    assert_eq!(word(&views[1], 3), Some(0));
    assert_eq!(word(&views[1], 4), Some(0), "nobody ever touched it");
}

#[test]
fn a_home_that_dies_after_one_that_left_takes_what_nobody_touched() {
    let all = hosts(3, 4 << 20, Order::Any(4));
    let grid = about(1, 8, 1);
    let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
    assert_eq!(leaves(&all[0]), []);
    dies(&all, 0, 2);
    assert_eq!(word(&views[2], 1), Some(0));
    dies(&all, 1, 3);
    assert_eq!(word(&views[2], 1), Some(0), "it has a copy");
    assert_eq!(word(&views[2], 2), None, "the other may have written to it");
}

#[test]
fn hosts_that_leave_at_once_go_one_after_the_other() {
    for seed in seeds(5) {
        let all = hosts(4, 4 << 20, Order::Any(seed));
        let grid = about(1, 200, 1);
        let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
        for page in 0..150 {
            let by = &views[page as usize % 4];
            assert!(write(by, page as usize * PAGE_BYTES, page + 1));
        }
        let order = std::sync::Mutex::new(Vec::new());
        thread::scope(|scope| {
            for leaver in [2, 0, 1] {
                let (all, order) = (&all, &order);
                scope.spawn(move || {
                    assert_eq!(leaves(&all[leaver]), []);
                    let mut order = order.lock().unwrap();
                    order.push(leaver);
                    dies(all, leaver as u8, 1 + order.len() as u64);
                });
            }
        });
        println!("{:?}", order.lock().unwrap());
        for page in 0..200 {
            let wanted = if page < 150 { page + 1 } else { 0 };
            assert_eq!(
                word(&views[3], page),
                Some(wanted),
                "seed {seed}: page {page}"
            );
        }
    }
}

#[test]
fn others_go_on_meanwhile_and_lose_nothing() {
    for seed in seeds(3) {
        let all = hosts(3, 4 << 20, Order::Any(seed));
        let grid = about(1, 64, 1);
        let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
        thread::scope(|scope| {
            let add = |host: usize, rounds: u64| {
                let view = &views[host];
                scope.spawn(move || {
                    for round in 0..rounds {
                        let page = (round * 7 + host as u64) % 64;
                        let at = page as usize * PAGE_BYTES;
                        view.word(at).fetch_add(1, Ordering::Relaxed);
                    }
                })
            };
            add(0, 500).join().unwrap();
            let (one, two) = (add(1, 3000), add(2, 3000));
            assert_eq!(leaves(&all[0]), []);
            dies(&all, 0, 2);
            one.join().unwrap();
            two.join().unwrap();
        });
        let sum: u64 = (0..64).map(|page| word(&views[1], page).unwrap()).sum();
        assert_eq!(sum, 6500);
    }
}

#[test]
fn when_who_takes_over_dies_another_does() {
    for seed in seeds(3) {
        let all = hosts(3, 4 << 20, Order::Any(seed));
        let grid = about(1, 3000, 1);
        let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
        for page in 0..3000 {
            assert!(write(&views[0], page as usize * PAGE_BYTES, page + 1));
        }
        thread::scope(|scope| {
            let leaving = scope.spawn(|| leaves(&all[0]));
            farpage_testkit::until("a hundred pages are owned", || {
                all[1].server.figures(1).unwrap().owned >= 100
            });
            dies(&all, 1, 2);
            assert_eq!(leaving.join().unwrap(), []);
        });
        dies(&all, 0, 3);
        let has: Vec<Option<u64>> = (0..3000).map(|page| word(&views[2], page)).collect();
        let right =
            |(page, has): (usize, &Option<u64>)| has.is_none_or(|has| has == page as u64 + 1);
        assert!(has.iter().enumerate().all(right));
        let lost = has.iter().filter(|has| has.is_none()).count();
        println!("{lost} of 3000 were with the host that died");
        assert!((1..2900).contains(&lost), "{lost}");
    }
}

#[test]
fn what_nobody_takes_is_said() {
    let all = hosts(2, 4 << 20, Order::AsSent);
    let grid = about(1, 100, 4);
    let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
    assert!(write(&views[0], 0, 1));
    assert!(write(&views[0], 50 * PAGE_BYTES, 1));
    let left = all[0].server.leave(Duration::ZERO, &|_| true, &|_| {});
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].bytes, left[0].why), (2 * 4 * 4096, Why::Late));
    assert!(
        !write(&views[0], 8 * PAGE_BYTES, 1),
        "programs here get no more"
    );
    dies(&all, 0, 2);
    assert_eq!(word(&views[1], 0), None);
    assert_eq!(word(&views[1], 51), None);
    assert_eq!(word(&views[1], 4), Some(0), "nobody had touched it");
}

#[test]
fn the_last_host_waits_for_nobody() {
    let all = hosts(1, 4 << 20, Order::AsSent);
    let grid = about(1, 10, 1);
    let view = all[0].map(&grid).1;
    assert!(write(&view, 0, 1));
    let left = leaves(&all[0]);
    assert_eq!((left[0].bytes, left[0].why), (4096, Why::Alone));
    assert_eq!(
        hosts(1, 4 << 20, Order::AsSent)[0]
            .server
            .leave(WITHIN, &|_| true, &|_| {}),
        []
    );
}
