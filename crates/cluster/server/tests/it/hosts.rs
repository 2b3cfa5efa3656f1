//! One memory on several hosts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use farpage_object::PAGE_BYTES;
use farpage_server::{About, Holds};
use farpage_sys::view::View;

use crate::support::{One, Order, about, dies, hosts, mirrored, read, simple};

const SEED: &str = "FARPAGE_SEED";

fn word(view: &View, page: u64) -> &AtomicU64 {
    view.word(page as usize * PAGE_BYTES)
}

#[test]
fn what_one_host_writes_the_others_read() {
    let all = hosts(3, 16 << 20, Order::AsSent);
    let grid = about(1, 64, 1);
    let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
    for round in 1..=3 {
        for (number, view) in views.iter().enumerate() {
            for page in 0..64 {
                word(view, page).store(round * 100 + number as u64, Ordering::Relaxed);
            }
            for other in &views {
                for page in 0..64 {
                    let read = word(other, page).load(Ordering::Relaxed);
                    assert_eq!(read, round * 100 + number as u64, "page {page}");
                }
            }
        }
    }
}

#[test]
fn a_fault_costs_as_many_messages_as_it_should() {
    let all = hosts(4, 16 << 20, Order::AsSent);
    let grid = about(1, 1, 1);
    let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
    let sent = |all: &[One]| -> u64 {
        let of = |one: &One| one.server.figures(1).unwrap().sent;
        all.iter().map(of).sum()
    };
    let mut before = 0;
    let mut costs = |all: &[One]| {
        let now = sent(all);
        now - std::mem::replace(&mut before, now)
    };
    word(&views[0], 0).store(1, Ordering::Relaxed);
    assert_eq!(costs(&all), 0, "at home");
    assert_eq!(word(&views[1], 0).load(Ordering::Relaxed), 1);
    assert_eq!(costs(&all), 2, "a read");
    assert_eq!(word(&views[2], 0).load(Ordering::Relaxed), 1);
    assert_eq!(costs(&all), 2, "another");
    word(&views[3], 0).store(2, Ordering::Relaxed);
    assert_eq!(costs(&all), 2 + 4, "a write, with two copies");
    assert_eq!(word(&views[0], 0).load(Ordering::Relaxed), 2);
    assert_eq!(costs(&all), 2, "a read by who was owner");
    word(&views[0], 0).store(3, Ordering::Relaxed);
    assert_eq!(costs(&all), 2, "who has the only copy writes");
    let figures = all[0].server.figures(1).unwrap();
    assert_eq!(
        (figures.read_misses, figures.upgrades, figures.write_misses),
        (1, 1, 0)
    );
}

#[test]
fn hosts_that_read_and_then_write_in_turn_send_two_messages_each() {
    let all = hosts(2, 16 << 20, Order::AsSent);
    let grid = about(1, 1, 1);
    let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
    let figures = || all.iter().map(|one| one.server.figures(1).unwrap());
    let turn = |host: usize| {
        let word = word(&views[host], 0);
        let read = word.load(Ordering::Relaxed);
        word.store(read + 1, Ordering::Relaxed);
    };
    // Once each, to see that they do.
    [0, 1].into_iter().for_each(turn);
    let sent = |one: farpage_server::Figures| one.sent;
    let before: u64 = figures().map(sent).sum();
    (0..30).for_each(|number| turn(number % 2));
    assert_eq!(figures().map(sent).sum::<u64>() - before, 30 * 2);
    assert_eq!(word(&views[0], 0).load(Ordering::Relaxed), 32);
}

/// Threads of all hosts add to words of all pages, in any order, and see none that was smaller.
fn add_up(hosts_count: u8, grid: &About, ram_bytes: u64, seed: u64, rounds: u64) {
    println!("{SEED}={seed}");
    let pages = grid.bytes / PAGE_BYTES as u64;
    let all = hosts(hosts_count, ram_bytes, Order::Any(seed));
    let views: Vec<View> = all.iter().map(|one| one.map(grid).1).collect();
    thread::scope(|scope| {
        for (number, view) in views.iter().enumerate() {
            for thread in 0..2 {
                scope.spawn(move || {
                    let mut seed = seed ^ (number as u64 * 2 + thread) << 32;
                    let mut seen = vec![0; pages as usize];
                    for _ in 0..rounds {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let page = (seed >> 33) % pages;
                        let now = match (seed >> 20) % 3 {
                            0 => word(view, page).load(Ordering::Relaxed),
                            _ => word(view, page).fetch_add(1, Ordering::Relaxed) + 1,
                        };
                        assert!(now >= seen[page as usize], "page {page} went back");
                        seen[page as usize] = now;
                    }
                });
            }
        }
    });
    let mut wanted = 0;
    for number in 0..u64::from(hosts_count) * 2 {
        let mut seed = seed ^ number << 32;
        for _ in 0..rounds {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            wanted += u64::from(!(seed >> 20).is_multiple_of(3));
        }
    }
    for view in &views {
        let sum: u64 = (0..pages)
            .map(|page| word(view, page).load(Ordering::Relaxed))
            .sum();
        assert_eq!(sum, wanted);
    }
}

#[test]
fn nothing_that_any_host_adds_is_lost_whatever_order_messages_come_in() {
    for of in [about, mirrored, simple] {
        (1..4).for_each(|seed| add_up(3, &of(seed, 8, 1), 16 << 20, seed, 500));
    }
}

#[test]
fn nothing_is_lost_when_pages_leave_memory_meanwhile() {
    for of in [about, mirrored, simple] {
        (1..3).for_each(|seed| add_up(3, &of(seed, 512, 1), 1 << 20, seed, 2000));
    }
}

#[test]
fn units_of_several_pages_go_together() {
    for of in [about, mirrored, simple] {
        add_up(3, &of(1, 256, 16), 1 << 20, 1, 1000);
        add_up(2, &of(9, 1500, 512), 4 << 20, 9, 200);
    }
}

#[test]
fn whoever_touches_any_page_of_a_host_that_is_fenced_is_told_why() {
    for page in 0..8 {
        let all = hosts(2, 16 << 20, Order::AsSent);
        let (_object, view, space) = all[1].map_in(&about(1, 8, 2));
        all[1].server.fence();
        let (says, said) = channel();
        let told = move |_: &str, _: u64, why: &str| drop(says.send(why.to_owned()));
        all[1].objects.tell_of_failure(space, Arc::new(told));
        assert_eq!(read(&view, page * PAGE_BYTES), None);
        let why = said.recv().unwrap();
        assert!(why.contains("out of the cluster"), "page {page}: {why}");
    }
}

#[test]
fn a_process_that_goes_on_is_told_each_reason_once() {
    let all = hosts(2, 16 << 20, Order::AsSent);
    let grid = about(1, 8, 1);
    let (_object, view, space) = all[0].map_in(&grid);
    let other = all[1].map(&grid).1;
    for page in [3, 5] {
        word(&other, page).store(1, Ordering::Relaxed);
    }
    let (says, said) = channel();
    let told = move |_: &str, byte: u64, why: &str| drop(says.send((byte, why.to_owned())));
    all[0].objects.tell_of_failure(space, Arc::new(told));
    dies(&all, 1, 2);
    let page = PAGE_BYTES as u64;
    for lost in [3, 5, 3] {
        assert_eq!(read(&view, lost * PAGE_BYTES), None);
    }
    let (byte, why) = said.recv().unwrap();
    assert!(
        byte == 3 * page && why.contains("on a host that died"),
        "{why}"
    );
    assert!(said.try_recv().is_err(), "it knows");
    all[0].server.fence();
    assert_eq!(read(&view, 4 * PAGE_BYTES), None);
    let (byte, why) = said.recv().unwrap();
    assert!(
        byte == 4 * page && why.contains("out of the cluster"),
        "{why}"
    );
}

#[test]
fn a_unit_says_what_was_done_for_it_at_each_host() {
    let all = hosts(3, 16 << 20, Order::AsSent);
    let grid = about(1, 8, 1);
    let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
    word(&views[0], 3).store(1, Ordering::Relaxed);
    assert_eq!(word(&views[1], 3).load(Ordering::Relaxed), 1);
    word(&views[2], 3).store(2, Ordering::Relaxed);
    assert_eq!(word(&views[1], 3).load(Ordering::Relaxed), 2);
    let of = |host: usize| all[host].server.units(1, &[3]).remove(0);
    let [home, reader, writer] = [0, 1, 2].map(of);
    assert_eq!(
        (home.holds, home.owner, home.counts.taken),
        (Holds::Nothing, 2, 1)
    );
    assert_eq!((reader.holds, reader.copies), (Holds::Copy, None));
    assert_eq!((reader.counts.read_misses, reader.counts.taken), (2, 1));
    assert_eq!((writer.holds, writer.owner), (Holds::Owner, 2));
    assert_eq!((writer.copies, writer.counts.write_misses), (Some(0b10), 1));
    let sum = |of: fn(&farpage_server::UnitCounts) -> u32| -> u32 {
        [&home, &reader, &writer]
            .map(|one| of(&one.counts))
            .iter()
            .sum()
    };
    assert_eq!(sum(|counts| counts.sent), sum(|counts| counts.received));
    assert_eq!(sum(|counts| counts.sent), 2 + 4 + 2);
    assert_eq!(all[0].server.hottest(1, 4).len(), 1);
    assert!(all[0].server.units(1, &[4]).is_empty(), "not touched");
    assert!(all[0].server.hottest(9, 4).is_empty(), "not open");
    let sent: u64 = all[0].server.flows().iter().map(|flow| flow.messages).sum();
    assert!(sent >= u64::from(home.counts.sent));
}

#[test]
fn words_that_each_host_changes_of_a_page_are_told() {
    let all = hosts(2, 16 << 20, Order::AsSent);
    for grid in [about(1, 8, 2), simple(2, 8, 2)] {
        let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
        let at = |host: usize, word: usize| views[host].word(2 * PAGE_BYTES + word * 8);
        let changed = |host: usize| {
            let told = all[host].server.units(grid.number, &[1]).remove(0);
            told.changed.expect("it is looked at")
        };
        at(0, 1).store(1, Ordering::Relaxed);
        assert_eq!(at(1, 1).load(Ordering::Relaxed), 1);
        for one in &all {
            one.server.watch(grid.number, &[1, 2, 99]);
            assert!(
                one.server.units(grid.number, &[2, 99]).is_empty(),
                "what nobody touched is not looked at"
            );
        }
        for round in 2..20 {
            at(0, 5).store(round, Ordering::Relaxed);
            at(0, 6).store(7, Ordering::Relaxed);
            assert_eq!(at(1, 5).load(Ordering::Relaxed), round);
            at(1, 700).store(round, Ordering::Relaxed);
            assert_eq!(at(0, 700).load(Ordering::Relaxed), round);
        }
        let (one, other) = (changed(0), changed(1));
        assert_eq!(one.words, [(5, 2)], "not what was there before");
        assert_eq!(other.words, [(700, 1)]);
        assert!(one.turns > 10 && other.turns > 10, "{one:?} {other:?}");
        let faulted = all[1].server.faulted(grid.number);
        let is_own = |((unit, thread, _), _): (&(u64, u32, u64), &u32)| *unit == 1 && *thread > 0;
        assert!(faulted.iter().any(is_own), "{faulted:?}");
    }
}
