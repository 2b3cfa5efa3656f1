//! What this task takes, in the control block.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use farpage_object::{BEST_IS_NONE, Control, Counters, PAGE_BYTES, SEGMENT_BYTES};
use farpage_sys::futex;

use crate::sizing::{Change, Sizes};

const SEGMENT: u64 = SEGMENT_BYTES as u64;
/// The least that the tier of one task has, where there is one.
const LEAST: u64 = 2 * SEGMENT;
/// Pages that leave as they are before the tier is tried again where it did not pay: 128 MiB.
const TRY_AGAIN_PAGES: u64 = 1 << 15;

/// The control block, seen from one task.
pub(crate) struct Gauges {
    pub(crate) control: &'static Control,
    slot: AtomicUsize,
    /// Pages that left since it proved best to have no tier.
    without_tier: AtomicU64,
}

impl Gauges {
    pub(crate) fn new(control: &'static Control, slot: usize) -> Self {
        Self {
            control,
            slot: AtomicUsize::new(slot),
            without_tier: AtomicU64::new(0),
        }
    }

    pub(crate) fn slot(&self) -> usize {
        self.slot.load(Ordering::Relaxed)
    }

    pub(crate) fn set_slot(&self, slot: usize) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.control.tasks[self.slot()].counters
    }

    /// See [`Control::buffer_bytes`].
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.control.buffer_bytes()
    }

    /// Charges one segment of RAM if the tier's size is below `limit` and, with `in_budget`, the
    /// budget allows it: kernels keep room for it.
    pub(crate) fn try_charge(&self, limit: u64, in_budget: bool) -> bool {
        let control = self.control;
        let budget = control.budget_bytes.load(Ordering::Relaxed);
        let resident = || control.resident_bytes.load(Ordering::Relaxed);
        let fits = |tier: &u64| *tier <= limit && (!in_budget || tier + resident() <= budget);
        let more = |tier: u64| Some(tier + SEGMENT).filter(fits);
        let tier = &control.compressed_bytes;
        let charged = tier.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
        if charged.is_ok() {
            add(&self.counters().compressed_bytes, SEGMENT);
        }
        charged.is_ok()
    }

    /// The most that the tier may take, bytes.
    pub(crate) fn most(&self) -> u64 {
        self.control.compressed_max_bytes.load(Ordering::Relaxed)
    }

    /// How large the tier should be where paging files take what it does not: the size that proves
    /// best, and for each task so much that it can pack anything at all.
    pub(crate) fn best(&self) -> u64 {
        let control = self.control;
        let own = self.counters().compressed_bytes.load(Ordering::Relaxed);
        match control.compressed_best_bytes.load(Ordering::Relaxed) {
            BEST_IS_NONE => 0,
            _ if own < LEAST => self.most(),
            0 => self.at_first(),
            best => best.min(self.most()),
        }
    }

    /// True when it proved best to have no tier. Every now and then, when so many pages have left
    /// as they are that they would have filled it many times, it is tried again.
    pub(crate) fn is_without_tier(&self, pages: u64) -> bool {
        let best = &self.control.compressed_best_bytes;
        if best.load(Ordering::Relaxed) != BEST_IS_NONE {
            return false;
        }
        let left = self.without_tier.fetch_add(pages, Ordering::Relaxed) + pages;
        if left < TRY_AGAIN_PAGES {
            return true;
        }
        self.without_tier.store(0, Ordering::Relaxed);
        best.store(LEAST, Ordering::Relaxed);
        false
    }

    /// True when this task has memory in the tier.
    pub(crate) fn has_tier(&self) -> bool {
        self.counters().compressed_bytes.load(Ordering::Relaxed) > 0
    }

    fn at_first(&self) -> u64 {
        let budget = self.control.budget_bytes.load(Ordering::Relaxed);
        (budget / 16).max(LEAST).min(self.most())
    }

    /// The tier should be larger, by an eighth, or smaller, by a quarter.
    pub(crate) fn resize(&self, change: Change) {
        let resized = |best: u64| {
            let best = match best {
                0 => self.at_first(),
                BEST_IS_NONE => return None,
                best => best,
            };
            let step = |part: u64| (best / part).max(SEGMENT);
            Some(match change {
                Change::Grow => (best + step(8)).min(self.most().max(LEAST)),
                Change::Shrink if best > LEAST => (best - step(4)).max(LEAST),
                Change::Shrink => BEST_IS_NONE,
                Change::Stay => best,
            })
        };
        let word = &self.control.compressed_best_bytes;
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, resized);
    }

    /// Pages of this task that are in use, pages that came in since it began, and memory that its
    /// part of the tier takes, with what that stands for.
    pub(crate) fn sizes(&self) -> Sizes {
        let counters = self.counters();
        let pages = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed) / PAGE_BYTES as u64;
        let came = [
            &counters.zero_fills,
            &counters.page_ins_compressed,
            &counters.page_ins_spilled,
        ];
        Sizes {
            resident: pages(&counters.resident_bytes),
            tier: pages(&counters.compressed_bytes),
            packed: pages(&counters.compressed_from_bytes),
            came: came.iter().map(|pages| pages.load(Ordering::Relaxed)).sum(),
        }
    }

    /// Gives the charge of one segment back; faults that wait for memory look again.
    pub(crate) fn uncharge(&self) {
        sub(&self.counters().compressed_bytes, SEGMENT);
        self.control
            .compressed_bytes
            .fetch_sub(SEGMENT, Ordering::AcqRel);
        self.control.memory_freed.fetch_add(1, Ordering::Release);
        futex::wake(&self.control.memory_freed, i32::MAX as u32);
    }

    /// `pages` more pages are in the tier (or fewer).
    pub(crate) fn in_tier(&self, pages: i64) {
        change(&self.counters().compressed_from_bytes, pages);
    }

    /// `pages` more pages are in paging files (or fewer).
    pub(crate) fn in_files(&self, pages: i64) {
        change(&self.counters().spilled_bytes, pages);
    }
}

pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

fn sub(counter: &AtomicU64, amount: u64) {
    counter.fetch_sub(amount, Ordering::Relaxed);
}

fn change(gauge: &AtomicU64, pages: i64) {
    gauge.fetch_add((pages * PAGE_BYTES as i64) as u64, Ordering::Relaxed);
}
