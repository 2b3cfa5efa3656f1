//! How hosts deal with pages that several of them want: how long each keeps one, and copies that are lent.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farpage_server::{About, OpenError};
use farpage_sys::view::View;
use farpage_testkit::pass;

use crate::support::{One, Order, about, dies, hosts, mirrored, read, simple};

fn held(number: u64, hold: Duration) -> About {
    About {
        hold,
        ..about(number, 1, 1)
    }
}

fn lent(number: u64, stale: Duration) -> About {
    About {
        stale: Some(stale),
        ..about(number, 1, 1)
    }
}

fn word(view: &View) -> &AtomicU64 {
    view.word(0)
}

fn views(all: &[One], about: &About) -> Vec<View> {
    all.iter().map(|one| one.map(about).1).collect()
}

/// One host does something a hundred times, while the others never stop doing the other.
fn has_its_turn(seed: u64, hold: Duration, writes: bool) {
    let all = hosts(3, 16 << 20, Order::Any(seed));
    let views = views(&all, &held(seed, hold));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for view in &views[1..] {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    match writes {
                        true => drop(word(view).load(Ordering::Relaxed)),
                        false => drop(word(view).fetch_add(1, Ordering::Relaxed)),
                    }
                }
            });
        }
        let mut last = 0;
        for _ in 0..100 {
            match writes {
                true => drop(word(&views[0]).fetch_add(1, Ordering::Relaxed)),
                // Each time what somebody has written since.
                false => {
                    while word(&views[0]).load(Ordering::Relaxed) == last {}
                    last = word(&views[0]).load(Ordering::Relaxed);
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn readers_get_their_turn_among_writers_and_writers_among_readers() {
    for (seed, hold) in [(1, 0), (2, 100), (3, 1000)] {
        for writes in [false, true] {
            has_its_turn(seed, Duration::from_micros(hold), writes);
        }
    }
}

#[test]
fn of_a_page_that_is_lent_writers_wait_for_no_reader_who_sees_it_later() {
    let all = hosts(4, 16 << 20, Order::AsSent);
    let views = views(&all, &lent(1, Duration::from_millis(300)));
    let mut before = 0;
    let mut costs = || -> u64 {
        let sent = all.iter().map(|one| one.server.figures(1).unwrap().sent);
        let now = sent.sum();
        now - std::mem::replace(&mut before, now)
    };
    word(&views[0]).store(1, Ordering::Relaxed);
    for view in &views[1..] {
        assert_eq!(word(view).load(Ordering::Relaxed), 1);
    }
    assert_eq!(costs(), 3 * 2);
    word(&views[0]).store(2, Ordering::Relaxed);
    assert_eq!(costs(), 0, "three have copies");
    for view in &views[1..] {
        farpage_testkit::until("the value is seen", || {
            word(view).load(Ordering::Relaxed) == 2
        });
    }
    costs();
    word(&views[2]).fetch_add(1, Ordering::Relaxed);
    assert_eq!(costs(), 2, "the page, and no order to drop a copy");
    assert_eq!(
        word(&views[2]).load(Ordering::Relaxed),
        3,
        "nothing is lost"
    );
    farpage_testkit::until("the value is seen", || {
        word(&views[1]).load(Ordering::Relaxed) == 3
    });
    // A copy that may be old does not take the place of the contents.
    dies(&all, 2, 2);
    assert_eq!(read(&views[1], 0), None);
}

#[test]
fn nothing_that_is_written_is_lost_where_copies_are_lent() {
    for seed in 1..4 {
        let all = hosts(3, 16 << 20, Order::Any(seed));
        let views = views(&all, &lent(seed, Duration::from_millis(1)));
        thread::scope(|scope| {
            for view in &views {
                scope.spawn(move || {
                    for _ in 0..300 {
                        let before = word(view).load(Ordering::Relaxed);
                        assert!(
                            word(view).fetch_add(1, Ordering::Relaxed) >= before,
                            "it went back"
                        );
                    }
                });
            }
        });
        for view in &views {
            farpage_testkit::until("the value is seen", || {
                word(view).load(Ordering::Relaxed) == 900
            });
        }
    }
}

#[test]
fn copies_that_may_be_old_of_other_kinds_are_refused() {
    let all = hosts(1, 1 << 20, Order::AsSent);
    let stale = Some(Duration::from_millis(5));
    for of in [mirrored, simple] {
        let about = About {
            stale,
            ..of(1, 1, 1)
        };
        assert!(matches!(all[0].server.open(&about), Err(OpenError::Old)));
    }
}

/// For reading, not for CI: `cargo test -p farpage-server --test it options:: -- --ignored --nocapture`.
#[test]
#[ignore = "it measures"]
fn what_each_option_is_worth() {
    println!("two hosts add to one word: additions a second, messages for each thousand");
    for (at, hold) in [0, 20, 100, 300, 1000, 10_000].into_iter().enumerate() {
        let number = at as u64 + 1;
        let all = hosts(2, 16 << 20, Order::AsSent);
        let views = views(&all, &held(number, Duration::from_micros(hold)));
        let (began, is_over) = (Instant::now(), AtomicBool::new(false));
        thread::scope(|scope| {
            for view in &views {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        word(view).fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            pass(Duration::from_secs(1));
            is_over.store(true, Ordering::Relaxed);
        });
        let sent: u64 = all
            .iter()
            .map(|one| one.server.figures(number).unwrap().sent)
            .sum();
        let sum = word(&views[0]).load(Ordering::Relaxed);
        let rate = sum as f64 / began.elapsed().as_secs_f64();
        println!(
            "hold {hold:6} us: {rate:12.0}  {:8.3}",
            sent as f64 * 1000.0 / sum as f64
        );
    }
    println!("one host adds, three read: additions a second, reads a second");
    for stale in [None, Some(1), Some(10), Some(100)] {
        let all = hosts(4, 16 << 20, Order::AsSent);
        let stale = stale.map(Duration::from_millis);
        let about = About {
            stale,
            ..about(9, 1, 1)
        };
        let views = views(&all, &about);
        let (began, is_over, reads) = (Instant::now(), AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            for view in &views[1..] {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        word(view).load(Ordering::Relaxed);
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    word(&views[0]).fetch_add(1, Ordering::Relaxed);
                }
            });
            pass(Duration::from_secs(1));
            is_over.store(true, Ordering::Relaxed);
        });
        let seconds = began.elapsed().as_secs_f64();
        let sum = word(&views[0]).load(Ordering::Relaxed) as f64 / seconds;
        let reads = reads.load(Ordering::Relaxed) as f64 / seconds;
        println!("{stale:?}: {sum:12.0}  {reads:12.0}");
    }
}
