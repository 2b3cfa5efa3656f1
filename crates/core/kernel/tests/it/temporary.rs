//! Temporary memory in this process, on the real Linux, with a small budget.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farpage_kernel::Kernel;
use farpage_object::PAGE_BYTES;
use farpage_sys::mem;

use crate::support::{Store, activate, dormant, dormant_of, kernel, map, mixed, words};

fn fill_and_check(clean: bool) {
    let kernel = kernel(16 << 20, clean);
    let bytes = 64 << 20;
    let at = map(kernel, bytes);
    let memory = words(at, bytes);
    for round in 0..3u64 {
        for (i, word) in memory.iter_mut().enumerate() {
            if round > 0 {
                assert_eq!(
                    *word,
                    mixed(i as u64 + round - 1),
                    "word {i} in round {round}"
                );
            }
            *word = mixed(i as u64 + round);
        }
    }
    let mut at_random = 12345u64;
    for _ in 0..20_000 {
        at_random = mixed(at_random);
        let i = at_random as usize % memory.len();
        assert_eq!(memory[i], mixed(i as u64 + 2));
    }
    let control = kernel.account().control();
    let peak = control.resident_bytes.load(Ordering::Relaxed);
    assert!(peak <= 16 << 20, "{peak} bytes resident");
    // SAFETY: nobody uses it any more.
    unsafe { kernel.munmap(at, bytes) }.expect("unmapped");
    assert_eq!(control.resident_bytes.load(Ordering::Relaxed), 0);
    assert_eq!(control.demand_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn fresh_memory_comes_in_clusters_though_room_must_be_made_first() {
    let kernel = kernel(16 << 20, true);
    kernel.stop_granting();
    let bytes = 64 << 20;
    let at = map(kernel, bytes);
    let counters = kernel.account().counters();
    let before = counters.faults.load(Ordering::Relaxed);
    words(at, bytes).fill(7);
    let faults = counters.faults.load(Ordering::Relaxed) - before;
    let clusters = (bytes / PAGE_BYTES) as u64 / 16;
    assert!(
        faults < clusters * 2,
        "{faults} faults for {clusters} clusters"
    );
}

#[test]
fn four_times_the_budget_precious() {
    fill_and_check(false);
}

#[test]
fn four_times_the_budget_clean() {
    fill_and_check(true);
}

#[test]
fn memory_read_in_steps_is_asked_for_together_and_what_was_not_supplied_comes_alone() {
    for clean in [false, true] {
        let store = Arc::new(Store {
            clean,
            ..Store::default()
        });
        let kernel = dormant_of(16 << 20, store.clone());
        activate(kernel);
        let bytes = 64 << 20;
        let memory = words(map(kernel, bytes), bytes);
        for (i, word) in memory.iter_mut().enumerate() {
            *word = mixed(i as u64);
        }
        for from in 0..24 {
            for i in (from * 512..memory.len()).step_by(24 * 512) {
                assert_eq!(memory[i], mixed(i as u64), "word {i}");
            }
        }
        let together = store.together.load(Ordering::Relaxed);
        let refused = store.refused.load(Ordering::Relaxed);
        assert!(together > 1000 && refused > 50, "{together}, {refused}");
        let prefetched = &kernel.account().counters().prefetched;
        assert!(prefetched.load(Ordering::Relaxed) >= together);
    }
}

#[test]
fn untouched_memory_reads_as_zeros() {
    let kernel = kernel(16 << 20, false);
    let bytes = 40 << 20;
    let memory = words(map(kernel, bytes), bytes);
    assert!(memory.iter().all(|word| *word == 0));
}

#[test]
fn discarded_memory_reads_as_zeros() {
    let kernel = kernel(16 << 20, true);
    let bytes = 48 << 20;
    let at = map(kernel, bytes);
    let memory = words(at, bytes);
    memory.fill(7);
    // SAFETY: the test gives the contents up.
    unsafe { kernel.madvise(at + (8 << 20), 32 << 20, mem::MADV_DONTNEED) }.expect("advised");
    let part = |from: usize, to: usize| &memory[from << 17..to << 17];
    assert!(part(0, 8).iter().all(|word| *word == 7));
    assert!(part(8, 40).iter().all(|word| *word == 0));
    assert!(part(40, 48).iter().all(|word| *word == 7));
}

#[test]
fn what_linux_has_nothing_of_leaves_as_zeros() {
    for clean in [false, true] {
        let kernel = kernel(16 << 20, clean);
        // Less than what is left to Linux in one piece.
        let bytes = 1 << 20;
        let at = map(kernel, bytes);
        let memory = words(at, bytes);
        memory.fill(1);
        // As a child of fork finds memory that was never written to, and whoever drops some by himself.
        let half = bytes / 2;
        // SAFETY: nobody else uses it.
        unsafe { mem::advise(at + half, half, mem::MADV_DONTNEED) }.expect("advised");
        let more = map(kernel, 64 << 20);
        words(more, 64 << 20).fill(2);
        assert!(memory[..half / 8].iter().all(|word| *word == 1));
        assert!(memory[half / 8..].iter().all(|word| *word == 0));
        assert!(words(more, 64 << 20).iter().all(|word| *word == 2));
    }
}

#[test]
fn moved_memory_keeps_its_contents() {
    let kernel = kernel(16 << 20, true);
    let bytes = 40 << 20;
    let at = map(kernel, bytes);
    for (i, word) in words(at, bytes).iter_mut().enumerate() {
        *word = mixed(i as u64);
    }
    let may_move = 1;
    // SAFETY: the old range is not used any more.
    let to = unsafe { kernel.mremap(at, bytes, 2 * bytes, may_move, 0) }.expect("moved");
    let memory = words(to, 2 * bytes);
    for (i, word) in memory.iter().enumerate() {
        let want = if i < bytes / 8 { mixed(i as u64) } else { 0 };
        assert_eq!(*word, want, "word {i}");
    }
}

/// Threads that map, move and unmap blocks of odd sizes, which come to lie side by side: what one uses is
/// no matter to the others.
fn move_beside_others(kernel: &'static Kernel) {
    const BLOCKS: usize = 60;
    const GROWN: usize = 784 << 10;
    let number = |thread: u64, block: usize, page: usize| {
        mixed(thread << 40 | (block as u64) << 20 | page as u64)
    };
    let work = |thread: u64, is_fixed: bool| {
        let mut blocks: Vec<(usize, usize)> = (0..BLOCKS)
            .map(|block| {
                let bytes = (132 << 10) + block * 2 * 4096;
                let at = map(kernel, bytes);
                for (page, words) in words(at, bytes).chunks_mut(512).enumerate() {
                    words[0] = number(thread, block, page);
                }
                (at, bytes)
            })
            .collect();
        let check = |block: usize, at: usize, kept: usize, bytes: usize| {
            for (page, words) in words(at, bytes).chunks(512).enumerate() {
                let want = match page < kept / 4096 {
                    true => number(thread, block, page),
                    false => 0,
                };
                assert_eq!(words[0], want, "page {page} of block {block}");
            }
        };
        for (block, place) in blocks.iter_mut().enumerate().skip(1).step_by(2) {
            let (at, kept) = *place;
            let (flags, target) = match is_fixed {
                // Over memory that is used.
                true => (3, map(kernel, GROWN)),
                false => (1, 0),
            };
            if is_fixed {
                words(target, GROWN).fill(7);
            }
            // SAFETY: the old range is not used any more, and the target is this thread's.
            let to = unsafe { kernel.mremap(at, kept, GROWN, flags, target) }.expect("moved");
            check(block, to, kept, GROWN);
            *place = (to, GROWN);
        }
        for (block, (at, bytes)) in blocks.into_iter().enumerate() {
            let kept = (132 << 10) + block * 2 * 4096;
            check(block, at, kept, bytes);
            // SAFETY: nobody uses it any more.
            unsafe { kernel.munmap(at, bytes) }.expect("unmapped");
        }
    };
    for round in 0..6 {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || work(thread + 4 * round, round % 2 == 1));
            }
        });
    }
}

#[test]
fn memory_that_moves_beside_memory_that_is_used_keeps_its_contents() {
    move_beside_others(kernel(16 << 20, true));
}

#[test]
fn so_does_memory_that_is_not_paged_yet() {
    move_beside_others(dormant(16 << 20, true));
}

#[test]
fn several_threads() {
    let kernel = kernel(16 << 20, true);
    let bytes = 64 << 20;
    let at = map(kernel, bytes);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let part = words(at + thread * bytes / 4, bytes / 4);
            scope.spawn(move || {
                for round in 0..3u64 {
                    for (i, word) in part.iter_mut().enumerate() {
                        if round > 0 {
                            assert_eq!(*word, mixed(i as u64 ^ (round - 1)));
                        }
                        *word = mixed(i as u64 ^ round);
                    }
                }
            });
        }
    });
}

#[test]
fn kernels_of_one_process_map_where_another_just_unmapped() {
    let all = [0; 4].map(|_| kernel(16 << 20, true));
    std::thread::scope(|scope| {
        for kernel in all {
            scope.spawn(move || {
                let bytes = 2 << 20;
                let demand = &kernel.account().control().demand_bytes;
                for _ in 0..2000 {
                    let at = map(kernel, bytes);
                    assert_eq!(demand.load(Ordering::Relaxed), bytes as u64, "at {at:#x}");
                    words(at, bytes)[0] = 1;
                    // SAFETY: nobody uses it any more.
                    unsafe { kernel.munmap(at, bytes) }.expect("unmapped");
                }
            });
        }
    });
}
