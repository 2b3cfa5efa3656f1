//! Random calls against a map, with limits so small that everything happens.
#![allow(unsafe_code)]

use std::collections::BTreeMap;

use farpage_default_pager::DefaultPager;
use farpage_object::{
    Control, ObjectId, PageIndex, PageRange, Pager, PagerError, SpillState, Supplied,
};
use proptest::prelude::*;
use std::sync::atomic::Ordering;

use crate::support::*;

#[derive(Clone, Debug)]
enum Step {
    Write {
        first: u64,
        count: u64,
        stride: u64,
        kind: u8,
        seed: u64,
        aligned: bool,
    },
    Request {
        first: u64,
        count: u64,
        aligned: bool,
    },
    Strided {
        first: u64,
        count: usize,
        stride: i64,
    },
    Discard {
        first: u64,
        count: u64,
    },
    Move {
        from: u64,
        count: u64,
        to: u64,
    },
    Fork,
    SwitchFile,
    Drain,
}

fn step() -> impl Strategy<Value = Step> {
    let page = prop_oneof![0..3000u64, (1u64 << 34)..(1 << 34) + 600];
    prop_oneof![
        8 => (page.clone(), 1..400u64, 1..3u64, 0..4u8, any::<u64>(), any::<bool>()).prop_map(
            |(first, count, stride, kind, seed, aligned)| Step::Write {
                first, count, stride, kind, seed, aligned
            }
        ),
        8 => (page.clone(), 1..300u64, any::<bool>()).prop_map(|(first, count, aligned)| {
            Step::Request { first, count, aligned }
        }),
        3 => (page.clone(), 1..40usize, -40..40i64).prop_map(|(first, count, stride)| {
            Step::Strided { first, count, stride: if stride == 0 { 1 } else { stride } }
        }),
        2 => (page.clone(), 1..900u64).prop_map(|(first, count)| Step::Discard { first, count }),
        2 => (0..1000u64, 1..500u64, 1500..3000u64).prop_map(|(from, count, to)| Step::Move {
            from, count, to
        }),
        1 => Just(Step::Fork),
        1 => Just(Step::SwitchFile),
        2 => Just(Step::Drain),
    ]
}

type Oracle = BTreeMap<u64, (u8, u64)>;

fn apply(control: &Control, pager: &DefaultPager, oracle: &mut Oracle, step: &Step) {
    match *step {
        Step::Write {
            first,
            count,
            stride,
            kind,
            seed,
            aligned,
        } => {
            let pages: Vec<_> = (0..count)
                .map(|i| (first + i * stride, contents(kind, seed ^ i)))
                .collect();
            write(pager, OBJECT, &pages, aligned).unwrap();
            oracle.extend((0..count).map(|i| (first + i * stride, (kind, seed ^ i))));
        }
        Step::Request {
            first,
            count,
            aligned,
        } => {
            let got = request_at(pager, OBJECT, first, count, aligned);
            take(pager, oracle, (first, 1), got);
        }
        Step::Strided {
            first,
            count,
            stride,
        } => {
            let got = request_strided(pager, OBJECT, first, stride, count);
            take(pager, oracle, (first, stride), got);
        }
        Step::Discard { first, count } => {
            pager.discard(OBJECT, PageRange::new(first, first + count));
            oracle.retain(|&page, _| page < first || page >= first + count);
        }
        Step::Move { from, count, to } => {
            let range = PageRange::new(from, from + count);
            pager.move_pages(OBJECT, range, PageIndex(to)).unwrap();
            oracle.retain(|&page, _| page < to || page >= to + count);
            let moved = oracle.range(from..from + count);
            let moved: Vec<_> = moved
                .map(|(page, value)| (page - from + to, *value))
                .collect();
            oracle.retain(|&page, _| page < from || page >= from + count);
            oracle.extend(moved);
        }
        Step::Fork => fork(control, pager, oracle),
        Step::SwitchFile => {
            let state = &control.spill[1].state;
            let draining = state.load(Ordering::Relaxed) == SpillState::Draining as u32;
            let new = if draining {
                SpillState::Active
            } else {
                SpillState::Draining
            };
            state.store(new as u32, Ordering::Release);
        }
        Step::Drain => {
            pager.drain();
        }
    }
}

/// Compares the pages that were supplied; what is given away is forgotten by the oracle too.
fn take(
    pager: &DefaultPager,
    oracle: &mut Oracle,
    (first, stride): (u64, i64),
    got: Result<(Supplied, Vec<Page>), PagerError>,
) {
    match got {
        Err(error) => {
            assert_eq!(error, PagerError::Unavailable);
            assert!(!oracle.contains_key(&first), "page {first} is lost");
            assert!(!pager.contains(OBJECT, PageIndex(first)));
        }
        Ok((supplied, pages)) => {
            for (index, bytes) in (0i64..).zip(&pages) {
                let page = first.wrapping_add_signed(index * stride);
                let (kind, seed) = oracle[&page];
                assert!(*bytes == contents(kind, seed), "page {page} differs");
                assert_eq!(pager.contains(OBJECT, PageIndex(page)), !supplied.precious);
                if supplied.precious {
                    oracle.remove(&page);
                }
            }
        }
    }
}

/// A real fork: parent and child both go on, and both still have everything.
fn fork(control: &Control, pager: &DefaultPager, oracle: &mut Oracle) {
    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(code: i32) -> !;
    }
    pager.before_fork(1);
    // SAFETY: the child only uses the pager, and leaves.
    let child = unsafe { fork() };
    if child == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pager.after_fork_child(1);
            let mut own = oracle.clone();
            let fresh = Step::Write {
                first: 100,
                count: 300,
                stride: 1,
                kind: 1,
                seed: 77,
                aligned: true,
            };
            apply(control, pager, &mut own, &fresh);
            check_all(pager, &mut own);
            pager.terminate(OBJECT);
        }));
        // SAFETY: takes no pointer.
        unsafe { _exit(i32::from(result.is_err())) }
    }
    pager.after_fork_parent(child > 0, 1);
    let fresh = Step::Write {
        first: 200,
        count: 300,
        stride: 1,
        kind: 3,
        seed: 78,
        aligned: true,
    };
    apply(control, pager, oracle, &fresh);
    let mut status = 0;
    // SAFETY: `status` is valid for a write.
    assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child found something wrong");
    let counters = &control.tasks[1].counters;
    assert_eq!(counters.compressed_bytes.load(Ordering::Relaxed), 0);
    assert_eq!(counters.spilled_bytes.load(Ordering::Relaxed), 0);
    assert_eq!(control.reap(1), 0, "the child left segments held");
}

fn check_all(pager: &DefaultPager, oracle: &mut Oracle) {
    let pages: Vec<u64> = oracle.keys().copied().collect();
    for (index, page) in pages.into_iter().enumerate() {
        if oracle.contains_key(&page) {
            let count = if index % 8 == 0 { 64 } else { 1 };
            let got = request_at(pager, OBJECT, page, count, true);
            take(pager, oracle, (page, 1), got);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn no_page_is_lost_or_invented(
        tier in prop_oneof![Just(0), Just(1), Just(3), Just(64)],
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let control = control(tier * MIB);
        let directory = std::env::temp_dir();
        let _kept = [0, 1].map(|i| add_file(control, i, unlinked(&directory), 4096));
        let pager = DefaultPager::new(control, 0).unwrap();
        let mut oracle = Oracle::new();
        for step in &steps {
            apply(control, &pager, &mut oracle, step);
            check_counts(control);
            let max = (tier + u64::from(tier > 0)) * MIB;
            prop_assert!(control.compressed_bytes.load(Ordering::Relaxed) <= max);
        }
        check_all(&pager, &mut oracle);
        pager.terminate(OBJECT);
        check_empty(control, 2);
        let fd_base = control.fd_base.load(Ordering::Relaxed);
        for i in 0..2 {
            farpage_sys::file::close(farpage_sys::file::Fd((fd_base + 8 + i) as i32));
        }
    }
}

#[test]
fn several_threads_page_in_and_out() {
    let (control, _kept, pager) = with_file(4 * MIB, 4096);
    std::thread::scope(|s| {
        for thread in 0..4u32 {
            let pager = &pager;
            s.spawn(move || {
                let object = ObjectId(10 + thread);
                if thread == 0 {
                    pager.drain();
                }
                for round in 0..40u64 {
                    let kind = (round % 4) as u8;
                    let pages: Vec<_> = (0..200)
                        .map(|i| (round * 50 + i, contents(kind, round * 1000 + i)))
                        .collect();
                    write(pager, object, &pages, round % 3 != 0).unwrap();
                    let mut at = 0;
                    while at < 200 {
                        let (supplied, got) =
                            request(pager, object, round * 50 + at, 200 - at).unwrap();
                        for (page, (number, expected)) in got.iter().zip(&pages[at as usize..]) {
                            assert!(page == expected, "thread {thread} page {number}");
                        }
                        at += supplied.pages;
                    }
                    if round % 5 == 4 {
                        pager.discard(object, PageRange::new(0, round * 50));
                    }
                }
                pager.terminate(object);
            });
        }
    });
    check_empty(control, 1);
}

#[test]
fn a_stride_that_leads_out_of_an_object_ends_there() {
    let (control, _file, pager) = with_file(0, 64);
    let pages: Vec<_> = (0..100).map(|page| (page, contents(1, page))).collect();
    write(&pager, OBJECT, &pages, true).unwrap();
    let got = request_strided(&pager, OBJECT, 89, -30, 4).unwrap();
    assert_eq!((got.0.pages, &got.1[2]), (3, &pages[29].1));
    pager.terminate(OBJECT);
    check_empty(control, 1);
}

#[test]
fn all_of_this_holds_without_rings() {
    again_without_rings("model");
}
