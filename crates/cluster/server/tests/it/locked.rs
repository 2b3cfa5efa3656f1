//! Pages that programs have locked at a host: others wait, and get them afterwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use farpage_object::{Access, PAGE_BYTES, PageRange};
use farpage_server::{About, GiveUp, NotLocked};
use farpage_sys::view::View;
use farpage_testkit::{Thread, pass};

use crate::support::{One, Order, about, dies, hosts, mirrored, read, released, simple, write};

const PAGES: u64 = 64;
/// Who has to wait is seen to wait for so long.
const WHILE: Duration = Duration::from_millis(150);

type Ended = Receiver<Result<(), NotLocked>>;

fn asks(host: &One, number: u64, pages: (u64, u64), access: Access) -> (Ended, GiveUp) {
    let (tells, told) = sync_channel(1);
    let on_end = move |ended| {
        // A test may have gone on.
        let _ = tells.send(ended);
    };
    let pages = PageRange::new(pages.0, pages.1);
    let give_up = host.server.locks(number, pages, access, Box::new(on_end));
    (told, give_up)
}

fn begins(host: &One, number: u64, pages: (u64, u64), access: Access) -> Ended {
    asks(host, number, pages, access).0
}

fn lock(host: &One, number: u64, pages: (u64, u64), access: Access) -> Result<(), NotLocked> {
    let ended = begins(host, number, pages, access);
    ended
        .recv_timeout(Duration::from_secs(120))
        .expect("it ends")
}

fn unlock(host: &One, number: u64, pages: (u64, u64), access: Access) {
    let pages = PageRange::new(pages.0, pages.1);
    host.server.unlocks(number, pages, access);
}

fn word(view: &View, page: u64) -> Option<u64> {
    read(view, page as usize * PAGE_BYTES)
}

fn sets(view: &View, page: u64, word: u64) -> bool {
    write(view, page as usize * PAGE_BYTES, word)
}

fn lent(number: u64, pages: u64, unit_pages: u64) -> About {
    About {
        stale: Some(Duration::from_millis(5)),
        ..about(number, pages, unit_pages)
    }
}

/// What waits until something is given back.
fn waits(what: &str, does: impl FnOnce() + Send, gives_back: impl FnOnce()) {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (tells, told) = channel();
        let is_done = &is_done;
        scope.spawn(move || {
            tells.send(Thread::current()).unwrap();
            does();
            is_done.store(true, Ordering::SeqCst);
        });
        told.recv().unwrap().until_it_waits(what);
        // Or it waits for messages alone.
        pass(WHILE);
        assert!(!is_done.load(Ordering::SeqCst), "{what} does not wait");
        gives_back();
    });
}

#[test]
fn what_is_locked_to_write_others_see_when_it_is_given_back() {
    for (of, unit_pages) in [
        (about as fn(_, _, _) -> About, 1),
        (about, 8),
        (mirrored, 4),
    ] {
        let all = hosts(3, 4 << 20, Order::AsSent);
        let grid = of(1, PAGES, unit_pages);
        let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
        assert!((0..PAGES).all(|page| sets(&views[0], page, page + 1)));
        assert_eq!(word(&views[2], 5), Some(6));
        lock(&all[1], 1, (4, 20), Access::Write).unwrap();
        lock(&all[1], 1, (4, 8), Access::Write).unwrap();
        // What is not locked goes on.
        assert_eq!(word(&views[2], 40), Some(41));
        let reads = || assert_eq!(word(&views[2], 5), Some(700));
        waits("who reads", reads, || {
            assert_eq!(word(&views[1], 5), Some(6));
            assert!(sets(&views[1], 5, 600));
            unlock(&all[1], 1, (4, 20), Access::Write);
            pass(WHILE);
            assert!(sets(&views[1], 5, 700), "it was locked twice");
            unlock(&all[1], 1, (4, 8), Access::Write);
        });
    }
}

#[test]
fn what_is_locked_to_read_others_read_and_write_when_it_is_given_back() {
    for of in [about, mirrored, lent] {
        for unit_pages in [1, 8] {
            let all = hosts(3, 4 << 20, Order::AsSent);
            let grid = of(1, PAGES, unit_pages);
            let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
            assert!((0..PAGES).all(|page| sets(&views[0], page, page + 1)));
            lock(&all[1], 1, (0, PAGES), Access::Read).unwrap();
            // Nobody here has touched it: all of it is here all the same, also when room is needed.
            for page in 0..PAGES {
                assert_eq!(word(&views[2], page), Some(page + 1));
                assert_eq!(word(&views[1], page), Some(page + 1));
            }
            let writes = || assert!(sets(&views[2], 5, 600));
            waits("who writes", writes, || {
                assert_eq!(word(&views[1], 5), Some(6));
                unlock(&all[1], 1, (0, PAGES), Access::Read);
            });
            let until = Instant::now() + Duration::from_secs(120);
            while word(&views[1], 5) != Some(600) {
                assert!(Instant::now() < until && grid.stale.is_some(), "it is seen");
            }
        }
    }
}

/// Hosts lock parts of an object at random, to read and to write, and nobody else changes them meanwhile. Now and
/// then one gives up.
#[test]
fn nobody_changes_what_is_locked_whoever_locks_what() {
    const ROUNDS: u64 = 150;
    for seed in 1..5 {
        for of in [about, mirrored, lent] {
            // Half of it fits.
            let all = hosts(3, PAGES * PAGE_BYTES as u64 / 2, Order::Any(seed));
            let grid = of(seed, PAGES, 1 << (seed % 3));
            let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
            let written: Vec<u64> = thread::scope(|scope| {
                let work = (0..3).map(|host| {
                    let (one, view) = (&all[host], &views[host]);
                    scope.spawn(move || {
                        let mut dice = seed * 3 + host as u64 + 1;
                        let mut written = vec![0; PAGES as usize];
                        for _ in 0..ROUNDS {
                            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            let first = (dice >> 33) % PAGES;
                            let part = (first, PAGES.min(first + 1 + (dice >> 45) % 9));
                            let access = [Access::Read, Access::Write][(dice >> 60) as usize % 2];
                            let (ended, give_up) = asks(one, seed, part, access);
                            if (dice >> 40).is_multiple_of(4) {
                                pass(Duration::from_micros((dice >> 50) % 200));
                                give_up();
                            }
                            match ended.recv_timeout(Duration::from_secs(120)) {
                                Ok(Ok(())) => {}
                                Ok(Err(NotLocked::GivenUp(_))) => continue,
                                other => panic!("seed {seed}: {other:?}"),
                            }
                            let before: Vec<_> = (part.0..part.1)
                                .map(|page| word(view, page).unwrap())
                                .collect();
                            thread::yield_now();
                            for (page, before) in (part.0..part.1).zip(before) {
                                assert_eq!(
                                    word(view, page),
                                    Some(before),
                                    "seed {seed}, page {page}"
                                );
                                if access == Access::Write {
                                    assert!(sets(view, page, before + 1));
                                    written[page as usize] += 1;
                                }
                            }
                            unlock(one, seed, part, access);
                        }
                        written
                    })
                });
                let work: Vec<_> = work.collect();
                let each = work.into_iter().map(|one| one.join().unwrap());
                each.reduce(|sum, one| sum.iter().zip(one).map(|(sum, one)| sum + one).collect())
                    .unwrap()
            });
            lock(&all[0], seed, (0, PAGES), Access::Read).unwrap();
            for page in 0..PAGES {
                assert_eq!(
                    word(&views[0], page),
                    Some(written[page as usize]),
                    "page {page}"
                );
            }
        }
    }
}

#[test]
fn who_gives_up_has_nothing_locked_and_others_go_on() {
    for of in [about, mirrored, lent] {
        for access in [Access::Read, Access::Write] {
            let all = hosts(3, 4 << 20, Order::AsSent);
            let grid = of(1, PAGES, 1);
            let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
            assert!((0..PAGES).all(|page| sets(&views[0], page, page + 1)));
            lock(&all[0], 1, (8, 9), Access::Write).unwrap();
            // What it has already is locked at once.
            lock(&all[1], 1, (0, 8), access).unwrap();
            let (ended, give_up) = asks(&all[1], 1, (0, 20), access);
            unlock(&all[1], 1, (0, 8), access);
            // Another of its host's waits at the page that the first waits for.
            let (behind, _) = asks(&all[1], 1, (8, 9), Access::Read);
            let writes = || assert!(sets(&views[2], 3, 700));
            waits("who writes", writes, || {
                assert!(ended.try_recv().is_err(), "it waits for page 8");
                give_up();
                let said = ended.recv_timeout(Duration::from_secs(120)).unwrap();
                assert!(matches!(said, Err(NotLocked::GivenUp(_))), "{said:?}");
            });
            assert!(behind.try_recv().is_err(), "it does not give up");
            unlock(&all[0], 1, (8, 9), Access::Write);
            behind
                .recv_timeout(Duration::from_secs(120))
                .unwrap()
                .unwrap();
            unlock(&all[1], 1, (8, 9), Access::Read);
            let (ended, give_up) = asks(&all[2], 1, (0, PAGES), Access::Write);
            ended
                .recv_timeout(Duration::from_secs(120))
                .unwrap()
                .unwrap();
            // It has been told: giving up does nothing any more.
            give_up();
            let reads = || assert_eq!(word(&views[1], 3), Some(800));
            waits("who reads", reads, || {
                assert!(sets(&views[2], 3, 800));
                unlock(&all[2], 1, (0, PAGES), Access::Write);
            });
        }
    }
}

#[test]
fn what_cannot_be_locked_is_refused_and_nothing_of_it_is_locked() {
    for of in [simple, released] {
        let all = hosts(2, 4 << 20, Order::AsSent);
        let grid = of(1, PAGES, 1);
        let _view = all[1].map(&grid);
        let why = lock(&all[1], 1, (0, 4), Access::Read).unwrap_err();
        assert!(matches!(why, NotLocked::Kind(_)), "{why}");
    }
    let all = hosts(3, 4 << 20, Order::AsSent);
    let grid = about(1, PAGES, 1);
    let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
    assert!((0..PAGES).all(|page| sets(&views[0], page, page + 1)));
    assert_eq!(
        lock(&all[1], 2, (0, 4), Access::Read),
        Err(NotLocked::Closed)
    );
    lock(&all[1], 1, (10, 11), Access::Read).unwrap();
    let why = lock(&all[1], 1, (5, 15), Access::Write).unwrap_err();
    assert!(matches!(why, NotLocked::Exchanged(_)), "{why}");
    assert!(
        (0..10).all(|page| sets(&views[2], page, 1)),
        "nothing of it is locked"
    );
    unlock(&all[1], 1, (10, 11), Access::Read);
    all.iter().for_each(|one| one.server.seal(1));
    lock(&all[1], 1, (0, PAGES), Access::Read).unwrap();
    let why = lock(&all[2], 1, (0, PAGES), Access::Write).unwrap_err();
    assert!(matches!(why, NotLocked::Sealed(_)), "{why}");
}

#[test]
fn it_is_sealed_when_who_has_it_locked_to_write_has_given_it_back() {
    let all = hosts(2, 4 << 20, Order::AsSent);
    let grid = about(1, PAGES, 1);
    let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
    lock(&all[1], 1, (3, 4), Access::Write).unwrap();
    all.iter().for_each(|one| one.server.seal(1));
    assert!(sets(&views[1], 3, 7), "it is its own");
    let reads = || assert_eq!(word(&views[0], 3), Some(8));
    waits("who reads", reads, || {
        assert!(sets(&views[1], 3, 8));
        unlock(&all[1], 1, (3, 4), Access::Write);
    });
}

#[test]
fn locks_go_with_their_host_and_who_waits_goes_on() {
    for of in [about, mirrored] {
        let all = hosts(3, 4 << 20, Order::AsSent);
        let grid = of(1, PAGES, 4);
        let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
        assert!(sets(&views[1], 0, 1) && sets(&views[0], 8, 2) && sets(&views[0], 16, 3));
        lock(&all[1], 1, (0, 8), Access::Read).unwrap();
        lock(&all[0], 1, (16, 20), Access::Write).unwrap();
        assert_eq!(word(&views[2], 0), Some(1));
        // It waits for one after the other.
        let waiting = begins(&all[2], 1, (0, 20), Access::Write);
        assert!(waiting.recv_timeout(WHILE).is_err());
        dies(&all, 1, 2);
        assert!(waiting.recv_timeout(WHILE).is_err(), "the other lock lives");
        unlock(&all[0], 1, (16, 20), Access::Write);
        waiting
            .recv_timeout(Duration::from_secs(120))
            .unwrap()
            .unwrap();
        assert_eq!(
            (word(&views[2], 0), word(&views[2], 16)),
            (Some(1), Some(3))
        );
    }
}

#[test]
fn a_host_that_leaves_gives_away_what_is_locked_there() {
    let all = hosts(3, 4 << 20, Order::AsSent);
    let grid = about(1, PAGES, 1);
    let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
    assert!((0..PAGES).all(|page| sets(&views[1], page, page + 1)));
    lock(&all[1], 1, (0, 30), Access::Write).unwrap();
    lock(&all[1], 1, (30, PAGES), Access::Read).unwrap();
    let left = all[1]
        .server
        .leave(Duration::from_secs(120), &|_| true, &|_| {});
    assert_eq!(left, []);
    let why = lock(&all[1], 1, (0, 30), Access::Write);
    assert!(why.is_err(), "it has left");
    dies(&all, 1, 2);
    unlock(&all[1], 1, (0, 30), Access::Write);
    assert!((0..PAGES).all(|page| word(&views[2], page) == Some(page + 1)));
}
