//! How much stays in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farpage_kernel::embed::Embedded;
use farpage_object::PAGE_BYTES;

use crate::objects::{Numbers, number};

#[test]
fn a_smaller_budget_takes_effect_on_what_is_resident() {
    let kernel = Embedded::start(64 << 20).unwrap();
    let object = kernel
        .object(Arc::new(Numbers::default()), 32 << 20)
        .unwrap();
    let memory = object.map().unwrap();
    (0..8192).for_each(|page| assert_eq!(number(&memory, page), page as u64));
    assert!(kernel.resident_bytes() > 20 << 20);
    assert!(kernel.set_ram(1 << 20).is_err());
    kernel.set_ram(8 << 20).unwrap();
    farpage_testkit::until("the smaller budget is kept to", || {
        kernel.resident_bytes() <= 8 << 20
    });
    (0..8192).for_each(|page| assert_eq!(number(&memory, page), page as u64));
}

#[test]
fn of_a_small_budget_no_more_leaves_than_is_wanted() {
    let kernel = Embedded::start(8 << 20).unwrap();
    let pager = Arc::new(Numbers::default());
    let memory = kernel.object(pager, 64 << 20).unwrap().map().unwrap();
    let held_by_four = |touch: &(dyn Fn(usize) + Sync)| {
        let least = AtomicU64::new(u64::MAX);
        let part = |pages: std::ops::Range<usize>| {
            for (count, page) in pages.enumerate() {
                touch(page);
                if count > 2048 {
                    least.fetch_min(kernel.resident_bytes(), Ordering::Relaxed);
                }
            }
        };
        std::thread::scope(|scope| {
            for first in (0..16384).step_by(4096) {
                scope.spawn(move || part(first..first + 4096));
            }
        });
        least.into_inner()
    };
    let read = held_by_four(&|page| assert_eq!(number(&memory, page), page as u64));
    let written = held_by_four(&|page| {
        let word = (page as u64).to_le_bytes();
        memory.write(page * PAGE_BYTES, &word).unwrap();
    });
    assert!(read > 4 << 20 && written > 4 << 20, "{read}, {written}");
}

#[test]
fn what_is_read_in_order_comes_in_runs_though_room_must_be_made_first() {
    let kernel = Embedded::start(64 << 20).unwrap();
    let pager = Arc::new(Numbers::default());
    let object = kernel.object(pager.clone(), 256 << 20).unwrap();
    let memory = object.map().unwrap();
    (0..65536).for_each(|page| assert_eq!(number(&memory, page), page as u64));
    let requests = pager.requests.load(Ordering::Relaxed);
    assert!(requests < 65536 / 64, "{requests} requests");
}
