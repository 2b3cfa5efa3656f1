//! A host whose numbers are in the other byte order, and which has no faults: it reads and writes by
//! calls.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use farpage_host::Object;
use farpage_object::PAGE_BYTES;
use farpage_server::{About, Types};

use crate::support::{One, Order, about, hosts, mirrored, simple};

const PAGES: u64 = 24;
const ROUNDS: u64 = 300;
/// Words of a page, of which each thread counts in some.
const WORDS: u64 = (PAGE_BYTES / 8) as u64;

/// The object at a host of the other order.
fn foreign(one: &One, about: &About) -> Arc<Object> {
    let types = Types::of_note(r#"{"shape": [12288], "dtype": "<u8"}"#).unwrap();
    let turned = Some(Arc::new(types.expect("numbers of eight bytes")));
    let about = About {
        turned,
        ..about.clone()
    };
    one.server.open(&about).unwrap()
}

fn read(object: &Object, word: u64) -> u64 {
    let mut bytes = [0; 8];
    object.read(word * 8, &mut bytes).unwrap();
    u64::from_be_bytes(bytes)
}

fn write(object: &Object, word: u64, value: u64) {
    object.write(word * 8, &value.to_be_bytes()).unwrap();
}

fn kinds() -> [About; 4] {
    [
        about(1, PAGES, 1),
        about(2, PAGES, 4),
        mirrored(3, PAGES, 1),
        simple(4, PAGES, 2),
    ]
}

#[test]
fn numbers_are_the_same_and_bytes_are_turned() {
    let all = hosts(3, 16 << 20, Order::AsSent);
    for about in kinds() {
        let (_, native) = all[0].map(&about);
        let other = foreign(&all[1], &about);
        let (_, third) = all[2].map(&about);
        let word = |word: u64| native.word(word as usize * 8);
        for page in 0..PAGES {
            word(page * WORDS + 3).store(page << 40 | 7, Ordering::Relaxed);
        }
        for page in 0..PAGES {
            assert_eq!(read(&other, page * WORDS + 3), page << 40 | 7);
            write(&other, page * WORDS + 4, page << 32 | 1);
        }
        for page in 0..PAGES {
            let at = page * WORDS + 4;
            assert_eq!(word(at).load(Ordering::Relaxed), page << 32 | 1);
            let third = third.word(at as usize * 8);
            assert_eq!(third.load(Ordering::Relaxed), page << 32 | 1);
        }
        // Across a page's border, and what nobody wrote.
        let mut many = vec![0; 3 * PAGE_BYTES];
        other.read(PAGE_BYTES as u64 - 16, &mut many).unwrap();
        assert_eq!(many[..16], [0; 16]);
        assert_eq!(many[16 + 24..][..8], (1_u64 << 40 | 7).to_be_bytes());
    }
}

#[test]
fn hosts_of_both_orders_write_to_the_same_pages_and_lose_nothing() {
    for order in [Order::AsSent, Order::Any(11)] {
        // Half of the pages at a host leave its memory at any time.
        let all = hosts(3, 12 << 12, order);
        for about in kinds() {
            let (_, first) = all[0].map(&about);
            let (_, third) = all[2].map(&about);
            let other = foreign(&all[1], &about);
            let page_of = |round: u64| round * 7 % PAGES;
            thread::scope(|scope| {
                for (which, view) in [(0, &first), (2, &third)] {
                    scope.spawn(move || {
                        for round in 0..ROUNDS {
                            let at = (page_of(round) * WORDS + which) as usize * 8;
                            let word = view.word(at);
                            word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        }
                    });
                }
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let at = page_of(round) * WORDS + 1;
                        write(&other, at, read(&other, at) + 1);
                    }
                });
            });
            for which in 0..3 {
                let all = (0..PAGES).map(|page| page * WORDS + which);
                let native: u64 = all
                    .clone()
                    .map(|word| first.word(word as usize * 8).load(Ordering::Relaxed))
                    .sum();
                let foreign: u64 = all.map(|word| read(&other, word)).sum();
                assert_eq!((native, foreign), (ROUNDS, ROUNDS), "{}", about.name);
            }
        }
    }
}

#[test]
fn a_call_is_refused_where_a_thread_would_get_a_signal() {
    let all = hosts(2, 16 << 20, Order::AsSent);
    let about = about(1, 2, 1);
    let _home = all[0].server.open(&about).unwrap();
    let other = foreign(&all[1], &about);
    let beyond = other.read(2 * PAGE_BYTES as u64 - 4, &mut [0; 8]);
    let beyond = beyond.unwrap_err();
    assert_eq!(beyond.offset, 2 * PAGE_BYTES as u64);
    assert!(beyond.to_string().contains("beyond its end"), "{beyond}");
    assert!(other.write(u64::MAX - 2, &[1]).is_err());
    write(&other, 0, 5);
    all[1].server.fence();
    let fenced = other.read(0, &mut [0; 8]).unwrap_err().to_string();
    assert!(fenced.contains("out of the cluster"), "{fenced}");
    assert!(other.write(8, &[1]).is_err());
}
