//! Objects that nobody writes to any more.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use farpage_object::PAGE_BYTES;
use farpage_sys::view::View;

use crate::support::{One, Order, about, dies, hosts, mirrored, read, simple, write};

const PAGES: u64 = 256;

fn word(view: &View, page: u64) -> Option<u64> {
    read(view, page as usize * PAGE_BYTES)
}

fn sets(view: &View, page: u64, word: u64) -> bool {
    write(view, page as usize * PAGE_BYTES, word)
}

fn fill(view: &View) {
    assert!((0..PAGES).all(|page| sets(view, page, page + 1)));
}

fn has_all(view: &View) -> bool {
    (0..PAGES).all(|page| word(view, page) == Some(page + 1))
}

#[test]
fn who_filled_it_gives_two_copies_of_a_page_and_the_others_give_the_rest() {
    const HOSTS: u8 = 6;
    for (seed, unit_pages) in [(1, 1), (2, 16)] {
        let all = hosts(HOSTS, 16 << 20, Order::AsSent);
        let grid = about(seed, PAGES, unit_pages);
        let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
        fill(&views[1]);
        let given = |one: &One| one.server.figures(seed).unwrap().contents_sent;
        let before: u64 = all.iter().map(given).sum();
        assert_eq!(given(&all[1]), 0);
        all.iter().for_each(|one| one.server.seal(seed));
        let begin = Barrier::new(HOSTS.into());
        thread::scope(|scope| {
            for view in &views {
                scope.spawn(|| {
                    begin.wait();
                    assert!(has_all(view));
                });
            }
        });
        let units = PAGES / unit_pages;
        assert!(given(&all[1]) <= 2 * units, "{} of {units}", given(&all[1]));
        let sum: u64 = all.iter().map(given).sum();
        assert_eq!(
            sum - before,
            units * u64::from(HOSTS - 1),
            "each has each once"
        );
    }
}

#[test]
fn nobody_writes_after_it_is_sealed_whoever_knew_first_and_all_see_the_same() {
    for seed in 1..5 {
        let all = hosts(4, 1 << 20, Order::Any(seed));
        let grid = about(seed, PAGES, if seed % 2 == 0 { 4 } else { 1 });
        let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
        let is_refused = Barrier::new(all.len());
        // Each writes until it is refused, and says how often it did.
        let written: Vec<Vec<u64>> = thread::scope(|scope| {
            let writers = views.iter().enumerate().map(|(number, view)| {
                let is_refused = &is_refused;
                scope.spawn(move || {
                    let mut written = vec![0; PAGES as usize];
                    for count in 1.. {
                        let page = (count * 7 + number as u64 * 3) % PAGES;
                        if !write(view, page as usize * PAGE_BYTES + number * 8, count) {
                            break;
                        }
                        written[page as usize] = count;
                    }
                    is_refused.wait();
                    written
                })
            });
            let writers: Vec<_> = writers.collect();
            for at in [2, 0, 3, 1] {
                all[at].server.seal(seed);
            }
            writers.into_iter().map(|one| one.join().unwrap()).collect()
        });
        // Where a write was refused, this process gets errors from then on: it looks by other mappings.
        for one in &all {
            let (_, view) = one.map(&grid);
            for page in 0..PAGES {
                for (number, of) in written.iter().enumerate() {
                    let found = read(&view, page as usize * PAGE_BYTES + number * 8);
                    assert_eq!(found, Some(of[page as usize]), "page {page}: {number}");
                }
            }
            assert!(!sets(&view, 7, 1));
        }
    }
}

#[test]
fn a_sealed_object_outlives_hosts_that_leave_and_readers_hosts_that_die() {
    for (seed, dier) in [(1, 0), (2, 2)] {
        let all = hosts(4, 16 << 20, Order::Any(seed));
        let grid = about(seed, PAGES, 4);
        let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
        fill(&views[1]);
        all.iter().for_each(|one| one.server.seal(seed));
        assert!(has_all(&views[dier]));
        let left = all[1]
            .server
            .leave(Duration::from_secs(120), &|_| true, &|_| {});
        assert_eq!(left, []);
        dies(&all, 1, 2);
        assert!(has_all(&views[dier]));
        assert!(has_all(&views[3]), "from whoever has it now");
        dies(&all, dier as u8, 3);
        assert!(has_all(&views[3]));
        assert!(!sets(&views[3], 5, 0));
    }
}

#[test]
fn of_a_host_that_has_opened_it_since_nothing_else_is_asked() {
    let all = hosts(3, 16 << 20, Order::AsSent);
    let grid = about(1, PAGES, 1);
    let first: Vec<View> = all[..2].iter().map(|one| one.map(&grid).1).collect();
    fill(&first[0]);
    all[..2].iter().for_each(|one| one.server.seal(1));
    let (_, late) = all[2].map(&grid);
    all[2].server.seal(1);
    assert!(has_all(&late) && has_all(&first[1]));
    assert!(!sets(&late, 3, 1));
}

#[test]
fn what_stays_writable_is_not_sealed() {
    for of in [mirrored, simple] {
        let all = hosts(2, 4 << 20, Order::AsSent);
        let grid = of(1, 4, 1);
        let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
        all.iter().for_each(|one| one.server.seal(1));
        assert!(views.iter().all(|view| sets(view, 1, 1)));
    }
}
