//! What mapped files may take of the tree's budget.

use std::sync::atomic::{AtomicU64, Ordering};

use farpage_object::{Control, PAGE_BYTES};
use farpage_sys::futex;
use farpage_sys::pressure::{self, Turns};

/// Largest [`Budget::window`].
pub const WINDOW_MAX: u64 = 512;

/// The account of the supervisor, which is a task like others in this.
pub struct Budget {
    control: &'static Control,
    slot: usize,
    /// The most bytes that were charged at a time.
    most: AtomicU64,
    /// Pages that were ever charged.
    brought: AtomicU64,
    turns: Turns,
}

impl Budget {
    /// An account of its own. `None`: there is none left.
    pub fn new(control: &'static Control) -> Option<Self> {
        let slot = control.claim_another(std::process::id())?;
        Some(Self {
            control,
            slot,
            most: AtomicU64::new(0),
            brought: AtomicU64::new(0),
            turns: Turns::default(),
        })
    }

    /// Pages that one request may bring at most: a small part of the budget.
    pub fn window(&self) -> u64 {
        (self.bytes() / 64 / PAGE_BYTES as u64).clamp(16, WINDOW_MAX)
    }

    /// Pages that mapped files keep even when programs want all.
    pub fn floor(&self) -> u64 {
        self.bytes() / 8 / PAGE_BYTES as u64
    }

    /// Half of all, in pages: what may be brought in before anybody wants it.
    pub fn half(&self) -> u64 {
        self.bytes() / 2 / PAGE_BYTES as u64
    }

    /// Bytes beyond what fits when `pages` more come.
    pub fn excess(&self, pages: u64) -> u64 {
        let used = self.control.used_bytes() + self.dormant_bytes();
        (used + pages * PAGE_BYTES as u64).saturating_sub(self.limit())
    }

    /// Charges `pages` if they fit, or `anyway`.
    pub fn charge(&self, pages: u64, anyway: bool) -> bool {
        let bytes = pages * PAGE_BYTES as u64;
        let dormant = self.dormant_bytes();
        let resident = &self.control.resident_bytes;
        let compressed = self.control.compressed_bytes.load(Ordering::Relaxed);
        let more = |resident: u64| {
            let all = resident + bytes + compressed + dormant;
            (anyway || all <= self.limit()).then_some(resident + bytes)
        };
        let charged = resident.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
        if charged.is_ok() {
            let before = self.own().fetch_add(bytes, Ordering::AcqRel);
            self.most.fetch_max(before + bytes, Ordering::Relaxed);
            self.brought.fetch_add(pages, Ordering::Relaxed);
        }
        charged.is_ok()
    }

    /// The most bytes that were charged to this account at a time.
    pub fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// Gives `pages` back, and lets those who wait for memory look again.
    pub fn uncharge(&self, pages: u64) {
        let bytes = pages * PAGE_BYTES as u64;
        self.own().fetch_sub(bytes, Ordering::AcqRel);
        let resident = &self.control.resident_bytes;
        resident.fetch_sub(bytes, Ordering::AcqRel);
        self.control.memory_freed.fetch_add(1, Ordering::AcqRel);
        futex::wake(&self.control.memory_freed, i32::MAX as u32);
    }

    /// Has the programs give memory back, and waits for that a little.
    pub fn press(&self) {
        let seen = self.control.memory_freed.load(Ordering::Acquire);
        if self.is_dormant() {
            // They do not manage their memory yet.
            self.control.pressure.fetch_add(1, Ordering::AcqRel);
            futex::wake(&self.control.pressure, i32::MAX as u32);
        }
        pressure::press_on_the_largest(self.control, self.slot);
        futex::wait(&self.control.memory_freed, seen, Some(10_000_000));
    }

    /// `pages` were taken out because memory is short: the programs have their turn as well.
    pub fn gave(&self, pages: u64) {
        self.turns.gave(self.control, self.slot, pages);
    }

    /// Waits until somebody asks for memory, or `timeout_ns`. Returns the pages to give; `seen` is
    /// the pressure of the last time.
    pub fn asked(&self, seen: &mut u32, timeout_ns: u64) -> u64 {
        let pressure = &self.control.tasks[self.slot].pressure;
        futex::wait(pressure, *seen, Some(timeout_ns));
        let before = std::mem::replace(seen, pressure.load(Ordering::Acquire));
        let brought = self.brought.load(Ordering::Relaxed);
        self.turns.asked(before, *seen, brought)
    }

    fn own(&self) -> &AtomicU64 {
        &self.control.tasks[self.slot].counters.resident_bytes
    }

    /// All of it.
    pub(crate) fn bytes(&self) -> u64 {
        self.control.budget_bytes.load(Ordering::Relaxed)
    }

    /// Page-out in the tasks needs some room itself.
    fn limit(&self) -> u64 {
        let budget = self.bytes();
        budget - (budget / 16).clamp(2 << 20, 16 << 20).min(budget / 4)
    }

    /// What tasks have that do not manage their memory is not charged: what they could use counts.
    fn dormant_bytes(&self) -> u64 {
        if self.is_dormant() {
            self.control.demand_bytes.load(Ordering::Relaxed)
        } else {
            0
        }
    }

    fn is_dormant(&self) -> bool {
        self.control.pressure.load(Ordering::Acquire) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u64 = (64 << 20) / PAGE_BYTES as u64;

    fn budget() -> Budget {
        let (fd, control) = farpage_sys::control::create().unwrap();
        farpage_sys::file::close(fd);
        control.budget_bytes.store(64 << 20, Ordering::Relaxed);
        Budget::new(control).unwrap()
    }

    #[test]
    fn pages_are_charged_while_they_fit_and_given_back() {
        let budget = budget();
        assert!(budget.charge(PAGES / 2, false) && !budget.charge(PAGES / 2, false));
        assert!(budget.excess(PAGES / 2) > 0 && budget.excess(10) == 0);
        assert!(budget.charge(PAGES / 2, true), "anyway");
        assert!(budget.excess(0) > 0);
        budget.uncharge(PAGES);
        assert_eq!(budget.control.used_bytes(), 0);
        assert!(budget.charge(PAGES / 2, false));
    }

    #[test]
    fn what_dormant_programs_could_use_counts_until_they_manage_it() {
        let budget = budget();
        budget
            .control
            .demand_bytes
            .store(48 << 20, Ordering::Relaxed);
        assert!(!budget.charge(PAGES / 2, false));
        budget.control.pressure.store(1, Ordering::Relaxed);
        assert!(budget.charge(PAGES / 2, false));
    }
}
