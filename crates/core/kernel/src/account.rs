//! The budget, shared by a tree of processes through the control block.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use farpage_object::{
    BEST_IS_NONE, Control, Counters, PAGE_BYTES, SEGMENT_BYTES, TASKS_MAX, TaskSlot,
};
use farpage_sys::pressure::{self, Turns};
use farpage_sys::{futex, time};

/// This task's account: what it is charged and what it inherited is together what its page table
/// says that it holds. It is changed only with the lock on that table held, but for the budget.
pub struct Account {
    control: &'static Control,
    slot: AtomicUsize,
    /// Tasks of the tree that hold memory, as of the last look.
    tasks: AtomicU64,
    /// Pages that were ever given back.
    given: AtomicU64,
    /// Pages that came with a fork and are still shared with the parent: nobody pays twice.
    inherited: AtomicU64,
    turns: Turns,
}

impl Account {
    /// The account of task `slot`.
    ///
    /// # Panics
    /// When there is no such slot.
    pub fn new(control: &'static Control, slot: usize) -> Self {
        assert!(slot < TASKS_MAX, "no task slot {slot}");
        Self {
            control,
            slot: AtomicUsize::new(slot),
            inherited: AtomicU64::new(0),
            tasks: AtomicU64::new(1),
            given: AtomicU64::new(0),
            turns: Turns::default(),
        }
    }

    /// The block that it is kept in.
    pub fn control(&self) -> &'static Control {
        self.control
    }

    /// This task's slot number.
    pub fn slot(&self) -> usize {
        self.slot.load(Ordering::Relaxed)
    }

    /// This task's slot.
    pub fn task(&self) -> &'static TaskSlot {
        &self.control.tasks[self.slot()]
    }

    /// This task's counters.
    pub fn counters(&self) -> &'static Counters {
        &self.task().counters
    }

    /// In a forked child: from now on the account of `slot`; `inherited` pages are shared.
    pub(crate) fn inherit(&self, slot: usize, inherited: u64) {
        self.slot.store(slot, Ordering::Relaxed);
        self.inherited.store(inherited, Ordering::Relaxed);
    }

    /// Pages that this task holds, charged to it or inherited.
    pub(crate) fn pages_held(&self) -> u64 {
        self.own() + self.inherited()
    }

    fn own(&self) -> u64 {
        self.counters().resident_bytes.load(Ordering::Relaxed) / PAGE_BYTES as u64
    }

    /// Pages that were ever given back, for who looks at two times.
    pub(crate) fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    /// Tasks of the tree that held memory at the last look.
    pub(crate) fn tasks(&self) -> u64 {
        self.tasks.load(Ordering::Relaxed)
    }

    pub(crate) fn inherited(&self) -> u64 {
        self.inherited.load(Ordering::Relaxed)
    }

    /// Some inherited pages turned out to be this task's alone: charge them.
    pub(crate) fn charge_inherited(&self, still_shared: u64) {
        let before = self.inherited();
        self.charge_anyway(before.saturating_sub(still_shared));
        let shared = before.min(still_shared);
        self.inherited.store(shared, Ordering::Relaxed);
    }

    /// Charges `pages` if the budget allows.
    pub(crate) fn charge(&self, pages: u64) -> bool {
        let bytes = pages * PAGE_BYTES as u64;
        let budget = self.control.budget_bytes.load(Ordering::Relaxed);
        let compressed = self.control.compressed_bytes.load(Ordering::Relaxed);
        let taken = compressed + self.headroom(budget);
        let more = |resident: u64| Some(resident + bytes).filter(|all| all + taken <= budget);
        let resident = &self.control.resident_bytes;
        let charged = resident.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
        if charged.is_ok() {
            self.counters()
                .resident_bytes
                .fetch_add(bytes, Ordering::AcqRel);
        }
        charged.is_ok()
    }

    /// Raises the budget by `pages` if it must: progress comes before a budget that is too small
    /// for what the tree needs at one time.
    pub(crate) fn overdraw(&self, pages: u64) {
        let excess = self.excess(pages);
        self.control
            .budget_bytes
            .fetch_add(excess, Ordering::AcqRel);
    }

    /// Charges `pages` whether the budget allows or not: they are there.
    pub(crate) fn charge_anyway(&self, pages: u64) {
        let bytes = pages * PAGE_BYTES as u64;
        self.control
            .resident_bytes
            .fetch_add(bytes, Ordering::AcqRel);
        self.counters()
            .resident_bytes
            .fetch_add(bytes, Ordering::AcqRel);
    }

    /// Gives `pages` back and lets those who wait for memory look again.
    pub(crate) fn uncharge(&self, pages: u64) {
        self.given.fetch_add(pages, Ordering::Relaxed);
        let shared = self.inherited();
        let inherited = shared.min(pages);
        let own = pages - inherited;
        debug_assert!(
            own <= self.own(),
            "{own} of {} pages given back",
            self.own()
        );
        self.inherited.store(shared - inherited, Ordering::Relaxed);
        if own == 0 {
            return;
        }
        let bytes = own * PAGE_BYTES as u64;
        self.counters()
            .resident_bytes
            .fetch_sub(bytes, Ordering::AcqRel);
        self.control
            .resident_bytes
            .fetch_sub(bytes, Ordering::AcqRel);
        self.control.memory_freed.fetch_add(1, Ordering::AcqRel);
    }

    /// Wakes who waits in [`Account::wait_for_memory`], here or in another task.
    pub(crate) fn announce(&self) {
        futex::wake(&self.control.memory_freed, i32::MAX as u32);
    }

    /// Bytes that must be given back before `pages` more fit, and the reserve kept free.
    pub(crate) fn excess(&self, pages: u64) -> u64 {
        let budget = self.control.budget_bytes.load(Ordering::Relaxed);
        let wanted = self.control.used_bytes() + pages * PAGE_BYTES as u64;
        (wanted + self.headroom(budget)).saturating_sub(budget)
    }

    /// What page-out itself needs: in each task a segment of the compressed tier that is opened
    /// before the pages that go into it are given back, and pages that are in the program and on
    /// their way out.
    fn headroom(&self, budget: u64) -> u64 {
        let best = self.control.compressed_best_bytes.load(Ordering::Relaxed);
        let segments = match best {
            BEST_IS_NONE => 0,
            _ => self.tasks.load(Ordering::Relaxed) * SEGMENT_BYTES as u64,
        };
        let on_their_way = (budget / 128).clamp(512 << 10, 4 << 20);
        on_their_way.max(segments).min(budget / 4)
    }

    /// Counts the tasks that hold memory.
    pub(crate) fn count_tasks(&self) {
        const LOOKED_AT: usize = 256;
        let holds = |task: &&TaskSlot| task.counters.resident_bytes.load(Ordering::Relaxed) != 0;
        let slots = self.control.slots().iter().take(LOOKED_AT);
        let tasks = slots.filter(holds).count();
        self.tasks.store(tasks.max(1) as u64, Ordering::Relaxed);
    }

    /// Pages that must be given back for the reserve to be free.
    pub(crate) fn pages_wanted(&self) -> u64 {
        self.excess(self.reserve() / PAGE_BYTES as u64) / PAGE_BYTES as u64
    }

    /// Memory kept free so that faults need not wait for page-out, bytes.
    pub(crate) fn reserve(&self) -> u64 {
        let budget = self.control.budget_bytes.load(Ordering::Relaxed);
        (budget / 128).clamp(256 << 10, 32 << 20)
    }

    /// Pages that may lie aside for a last chance.
    pub(crate) fn aside_target(&self) -> u64 {
        let budget = self.control.budget_bytes.load(Ordering::Relaxed);
        (budget / 16).min(64 << 20) / PAGE_BYTES as u64
    }

    /// Pages that leave together, at least: each step takes the lock and calls Linux.
    pub(crate) fn leave_together(&self) -> u64 {
        match self.inherited() {
            0 => 64,
            // Pages that two tasks share take memory until both have let go of them. With fewer at
            // a time the parent is faster, and they become the child's own.
            _ => (8 * self.window()).min(512),
        }
    }

    /// Longest run that one page-in may bring, pages: a small part of the budget.
    pub(crate) fn window(&self) -> u64 {
        let budget = self.control.budget_bytes.load(Ordering::Relaxed);
        (budget / 64 / PAGE_BYTES as u64).clamp(16, 512)
    }

    /// True while somebody of the tree needs room that paging space does not give.
    pub(crate) fn is_full(&self) -> bool {
        let full = &self.control.full;
        full.has_been() && full.lasts_ns(time::now_ns()).is_some()
    }

    /// True when who needs such room waits at all.
    pub(crate) fn waits_when_full(&self) -> bool {
        self.control.full.patience_ns.load(Ordering::Relaxed) > 0
    }

    /// See [`Control::is_tight_with`].
    pub(crate) fn is_tight_with(&self, bytes: u64) -> bool {
        self.control.is_tight_with(bytes)
    }

    /// Notes that the task's demand changed by `bytes`.
    pub(crate) fn demand(&self, bytes: i64) {
        let add = |total: &AtomicU64| {
            total.fetch_add(bytes as u64, Ordering::AcqRel);
        };
        add(&self.control.demand_bytes);
        add(&self.counters().demand_bytes);
    }

    /// Asks that one of the other tasks to give memory back which holds most.
    pub(crate) fn press_on_the_largest(&self) {
        pressure::press_on_the_largest(self.control, self.slot());
    }

    /// This task took `pages` out because memory is short: others have their turn as well.
    pub(crate) fn gave(&self, pages: u64) {
        self.turns.gave(self.control, self.slot(), pages);
    }

    /// Pages that this task was asked to give back since `pressed` was its pressure.
    pub(crate) fn asked(&self, pressed: &mut u32) -> u64 {
        let before = *pressed;
        *pressed = self.task().pressure.load(Ordering::Acquire);
        let counters = self.counters();
        let brought = [
            &counters.zero_fills,
            &counters.page_ins_compressed,
            &counters.page_ins_spilled,
            &counters.refaults_aside,
        ];
        let brought = brought.iter().map(|pages| pages.load(Ordering::Relaxed));
        self.turns.asked(before, *pressed, brought.sum())
    }

    /// Waits until somebody gives memory back after `seen` was read from `memory_freed`.
    pub(crate) fn wait_for_memory(&self, seen: u32, timeout_ns: u64) {
        futex::wait(&self.control.memory_freed, seen, Some(timeout_ns));
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// What a task's page table would say.
    struct Task {
        account: Account,
        held: u64,
    }

    struct Tree {
        control: &'static Control,
        tasks: Vec<Task>,
        /// Children that are made and have not begun: their slots, and their copies of `held`.
        unborn: Vec<(usize, u64)>,
        seed: u64,
    }

    impl Tree {
        fn new(seed: u64) -> Self {
            let (fd, control) = farpage_sys::control::create().unwrap();
            farpage_sys::file::close(fd);
            control.budget_bytes.store(64 << 20, Ordering::Relaxed);
            let mut tree = Self {
                control,
                tasks: Vec::new(),
                unborn: Vec::new(),
                seed,
            };
            tree.begin(control.claim(1).unwrap(), 0);
            tree
        }

        fn below(&mut self, end: u64) -> u64 {
            self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005) + 1;
            (self.seed >> 33) % end
        }

        fn begin(&mut self, slot: usize, held: u64) {
            let account = Account::new(self.control, slot);
            account.inherit(slot, held);
            self.tasks.push(Task { account, held });
        }

        fn step(&mut self, number: u32) {
            let (what, pages) = (self.below(9), self.below(600));
            let count = self.tasks.len() as u64;
            let which = self.below(count) as usize;
            let task = &mut self.tasks[which];
            match what {
                0..=2 => task.held += pages * u64::from(task.account.charge(pages)),
                3 => {
                    task.account.charge_anyway(pages);
                    task.held += pages;
                }
                4 | 5 => {
                    let gone = pages.min(task.held);
                    task.account.uncharge(gone);
                    task.held -= gone;
                }
                6 => task.account.charge_inherited(pages),
                7 if count < 8 => {
                    let held = task.held;
                    let slot = self.control.claim_another(number).unwrap();
                    self.unborn.push((slot, held));
                }
                _ if count > 1 => {
                    let dead = self.tasks.swap_remove(which);
                    self.control.reap(dead.account.slot());
                }
                _ => {}
            }
            if let Some((slot, held)) = self.unborn.first().copied()
                && self.below(3) == 0
            {
                self.unborn.remove(0);
                self.begin(slot, held);
            }
        }

        fn check(&self) {
            let mut charged = 0;
            for task in &self.tasks {
                let own = task
                    .account
                    .counters()
                    .resident_bytes
                    .load(Ordering::Relaxed);
                assert_eq!(task.account.pages_held(), task.held);
                assert!(
                    own <= task.held * PAGE_BYTES as u64,
                    "{own} bytes are charged"
                );
                charged += own;
            }
            assert_eq!(self.control.resident_bytes.load(Ordering::Relaxed), charged);
        }
    }

    #[test]
    fn the_budget_is_charged_what_the_tasks_are_whatever_they_do() {
        for seed in 0..100 {
            let mut tree = Tree::new(seed);
            for number in 2..400 {
                tree.step(number);
                tree.check();
            }
            for task in &tree.tasks {
                tree.control.reap(task.account.slot());
            }
            assert_eq!(tree.control.resident_bytes.load(Ordering::Relaxed), 0);
        }
    }
}
