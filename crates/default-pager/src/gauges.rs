//! What this task takes, in the control block.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use farpage_abi::{Control, Counters, PAGE_BYTES, SEGMENT_BYTES};
use farpage_sys::futex;

const SEGMENT: u64 = SEGMENT_BYTES as u64;

/// The control block, seen from one task.
pub(crate) struct Gauges {
    pub(crate) control: &'static Control,
    slot: AtomicUsize,
}

impl Gauges {
    pub(crate) fn new(control: &'static Control, slot: usize) -> Self {
        Self {
            control,
            slot: AtomicUsize::new(slot),
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

    /// Charges one segment of RAM if the tier's limit and, with `in_budget`, the budget allow. The
    /// budget may be passed by one segment: the pages that go into it are given back right after.
    pub(crate) fn try_charge(&self, in_budget: bool) -> bool {
        let control = self.control;
        let max = control.compressed_max_bytes.load(Ordering::Relaxed);
        let tier = control
            .compressed_bytes
            .fetch_add(SEGMENT, Ordering::AcqRel)
            + SEGMENT;
        let resident = control.resident_bytes.load(Ordering::Relaxed);
        let budget = control.budget_bytes.load(Ordering::Relaxed);
        let fits = tier <= max && (!in_budget || tier + resident <= budget.saturating_add(SEGMENT));
        if fits {
            add(&self.counters().compressed_bytes, SEGMENT);
        } else {
            control
                .compressed_bytes
                .fetch_sub(SEGMENT, Ordering::AcqRel);
        }
        fits
    }

    /// True when the tier is not above its limit.
    pub(crate) fn within_limit(&self) -> bool {
        let max = self.control.compressed_max_bytes.load(Ordering::Relaxed);
        self.control.compressed_bytes.load(Ordering::Relaxed) <= max
    }

    /// Charges one segment without asking.
    pub(crate) fn charge(&self) {
        self.control
            .compressed_bytes
            .fetch_add(SEGMENT, Ordering::AcqRel);
        add(&self.counters().compressed_bytes, SEGMENT);
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
