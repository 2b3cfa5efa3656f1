//! Objects whose home has a file of what was flushed.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use farpage_object::PAGE_BYTES;
use farpage_server::{About, Backing, FlushError, OpenError, Scheduler};
use farpage_sys::view::View;

use crate::support::{One, Order, about, dies, hosts, read, write};

const PAGES: u64 = 64;

fn durable(number: u64, unit_pages: u64) -> About {
    About {
        is_durable: true,
        ..about(number, PAGES, unit_pages)
    }
}

/// The object at its home, with the file of a folder.
fn begin(home: &One, grid: &About, folder: &Path) {
    let file = |name| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        options.open(folder.join(name)).unwrap()
    };
    let unit_bytes = grid.unit_pages * PAGE_BYTES as u64;
    let backing = Backing::open(file("file"), file("journal"), grid.bytes, unit_bytes).unwrap();
    home.server.open_with(grid, backing).unwrap();
}

fn in_file(folder: &Path, word: u64) -> u64 {
    let mut bytes = [0; 8];
    let file = std::fs::File::open(folder.join("file")).unwrap();
    file.read_exact_at(&mut bytes, word * 8).unwrap();
    u64::from_le_bytes(bytes)
}

fn word_of(page: u64) -> u64 {
    page * PAGE_BYTES as u64 / 8
}

fn sets(view: &View, page: u64, word: u64) -> bool {
    write(view, page as usize * PAGE_BYTES, word)
}

fn has(view: &View, page: u64) -> Option<u64> {
    read(view, page as usize * PAGE_BYTES)
}

#[test]
fn what_is_flushed_is_in_the_file_and_comes_again_and_what_is_not_is_not() {
    for unit_pages in [1, 8] {
        let folder = tempfile::tempdir().unwrap();
        let grid = durable(1, unit_pages);
        {
            let all = hosts(3, 16 << 20, Order::AsSent);
            begin(&all[0], &grid, folder.path());
            let maps: Vec<_> = all.iter().map(|one| one.map_in(&grid)).collect();
            let views: Vec<&View> = maps.iter().map(|(_, view, _)| view).collect();
            assert_eq!(has(views[1], 9), Some(0));
            assert_eq!(all[0].server.flush(1).unwrap(), 0, "nobody wrote");
            for page in 0..PAGES - 8 {
                assert!(sets(views[(page % 3) as usize], page, page + 1));
            }
            let bytes = all[0].server.flush(1).unwrap();
            assert_eq!(bytes, (PAGES - 8) * PAGE_BYTES as u64);
            assert!((0..PAGES - 8).all(|page| in_file(folder.path(), word_of(page)) == page + 1));
            assert_eq!(all[0].server.flush(1).unwrap(), 0);
            assert!(sets(views[2], 5, 500) && sets(views[0], 50, 600));
            assert_eq!(has(views[1], 5), Some(500));
            assert_eq!(in_file(folder.path(), word_of(5)), 6);
            let bytes = all[0].server.flush(1).unwrap();
            assert_eq!(bytes, 2 * unit_pages * PAGE_BYTES as u64);
            assert!(sets(views[1], 6, 700) && sets(views[0], 51, 800));
            let elsewhere = all[1].server.flush(1);
            assert!(
                matches!(elsewhere, Err(FlushError::Homeless)),
                "it is not the home"
            );
            for (one, (_, _, space)) in all.iter().zip(&maps) {
                one.objects.detach(*space);
                one.server.close(1);
            }
        }
        let again = hosts(2, 16 << 20, Order::AsSent);
        begin(
            &again[1],
            &About {
                home: farpage_rules::coherence::Host(1),
                stay: 1,
                ..grid.clone()
            },
            folder.path(),
        );
        let grid = About {
            home: farpage_rules::coherence::Host(1),
            stay: 1,
            ..grid
        };
        let views: Vec<View> = again.iter().map(|one| one.map(&grid).1).collect();
        for page in 0..PAGES {
            let expected = match page {
                5 => 500,
                50 => 600,
                page if page < PAGES - 8 => page + 1,
                _ => 0,
            };
            for view in &views {
                assert_eq!(has(view, page), Some(expected), "page {page}");
            }
        }
    }
}

#[test]
fn a_flush_has_all_that_was_written_before_it_while_hosts_write_on() {
    for seed in 1..5 {
        let folder = tempfile::tempdir().unwrap();
        let unit_pages = if seed % 2 == 0 { 4 } else { 1 };
        let grid = durable(seed, unit_pages);
        // Little memory: pages leave it all the time.
        let all = hosts(3, 1 << 20, Order::Any(seed));
        begin(&all[0], &grid, folder.path());
        let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
        let written: Vec<AtomicU64> = (0..PAGES * 3).map(|_| AtomicU64::new(0)).collect();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for (number, view) in views.iter().enumerate() {
                let (written, is_over) = (&written, &is_over);
                scope.spawn(move || {
                    let mut random = seed * 31 + number as u64;
                    for count in 1.. {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        let page = (random >> 33) % PAGES;
                        let at = page as usize * PAGE_BYTES + number * 8;
                        assert!(write(view, at, count), "page {page}");
                        written[page as usize * 3 + number].store(count, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..12 {
                let before: Vec<u64> = written
                    .iter()
                    .map(|one| one.load(Ordering::SeqCst))
                    .collect();
                all[0].server.flush(seed).unwrap();
                for page in 0..PAGES {
                    for number in 0..3 {
                        let flushed = in_file(folder.path(), word_of(page) + number);
                        let least = before[(page * 3 + number) as usize];
                        assert!(
                            flushed >= least,
                            "page {page}: {flushed}, and {least} was written"
                        );
                    }
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        all[0].server.flush(seed).unwrap();
        for page in 0..PAGES {
            for number in 0..3 {
                let last = written[(page * 3 + number) as usize].load(Ordering::SeqCst);
                assert_eq!(in_file(folder.path(), word_of(page) + number), last);
                let view = &views[(number as usize + 1) % 3];
                assert_eq!(
                    read(view, page as usize * PAGE_BYTES + number as usize * 8),
                    Some(last)
                );
            }
        }
    }
}

#[test]
fn what_a_host_that_dies_has_not_written_since_the_flush_is_still_there() {
    for (seed, unit_pages) in [(1, 1), (2, 2)] {
        let folder = tempfile::tempdir().unwrap();
        let grid = durable(seed, unit_pages);
        let all = hosts(3, 1 << 20, Order::Any(seed));
        begin(&all[0], &grid, folder.path());
        let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
        for page in 0..PAGES {
            assert!(sets(&views[2], page, page + 1));
        }
        all[0].server.flush(seed).unwrap();
        for page in (0..PAGES).step_by(8) {
            assert!(sets(&views[2], page, 1000 + page));
        }
        dies(&all, 2, 2);
        for page in 0..PAGES {
            let is_lost = page % 8 < unit_pages;
            let expected = (!is_lost).then_some(page + 1);
            assert_eq!(has(&views[1], page), expected, "page {page}");
            assert_eq!(has(&views[0], page), expected, "page {page}");
        }
        let refused = all[0].server.flush(seed);
        assert!(matches!(refused, Err(FlushError::Page(_))), "{refused:?}");
        assert_eq!(
            in_file(folder.path(), word_of(8)),
            9,
            "the file is as it was"
        );
        assert!(sets(&views[1], 7, 77));
        assert_eq!(has(&views[0], 7), Some(77));
    }
}

#[test]
fn when_the_home_has_gone_all_is_over_and_the_file_is_as_of_the_last_flush() {
    let folder = tempfile::tempdir().unwrap();
    let grid = durable(1, 1);
    let all = hosts(3, 16 << 20, Order::AsSent);
    begin(&all[0], &grid, folder.path());
    let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
    assert!(sets(&views[1], 3, 5) && sets(&views[2], 4, 6));
    all[0].server.flush(1).unwrap();
    assert!(sets(&views[1], 3, 7));
    dies(&all, 0, 2);
    farpage_testkit::until("both views end", || {
        has(&views[1], 3).is_none() && has(&views[2], 4).is_none()
    });
    assert_eq!(
        (has(&views[1], 3), has(&views[2], 4), has(&views[2], 40)),
        (None, None, None)
    );
    assert_eq!(
        (
            in_file(folder.path(), word_of(3)),
            in_file(folder.path(), word_of(4))
        ),
        (5, 6)
    );
}

#[test]
fn what_cannot_have_a_file_is_refused() {
    let all = hosts(1, 16 << 20, Order::AsSent);
    let simple = About {
        scheduler: Scheduler::Simple,
        ..durable(1, 1)
    };
    let twice = About {
        replicas: 2,
        ..durable(2, 1)
    };
    let old = About {
        stale: Some(std::time::Duration::from_millis(5)),
        ..durable(3, 1)
    };
    for wrong in [simple, twice, old] {
        assert!(matches!(
            all[0].server.open(&wrong),
            Err(OpenError::Durable)
        ));
    }
    all[0].server.open(&about(4, 8, 1)).unwrap();
    assert!(matches!(all[0].server.flush(4), Err(FlushError::Volatile)));
    assert!(matches!(all[0].server.flush(5), Err(FlushError::Homeless)));
}
