//! The budget of a run without `--ram`: what the memory cgroup really leaves, as it changes.

use std::sync::atomic::Ordering;

use farpage_object::Control;
use farpage_sys::memory_limit::{MemoryCgroups, Taken};
use farpage_sys::{futex, pressure};

use farpage_default_pager::manager::paging::{RAM_MIN_BYTES, whole_pages};

/// Part of the limit that stays free for what comes between two looks.
const MARGIN: u64 = 40;
const MARGIN_LEAST: u64 = 2 << 20;
/// What paging will take besides, when it begins: buffers, tables and threads.
const PAGING_BYTES: u64 = 6 << 20;
/// Programs that are mapped may keep one in so many bytes of the limit: at first and at most, and
/// at least.
const PROGRAMS: [u64; 2] = [8, 16];
/// What they may keep is set anew after so many looks.
const LOOKS: u32 = 10;
/// Faults meanwhile for which files are read, and that do not matter.
const FEW_FAULTS: u64 = 4;
/// Part of what is left by which the budget rises at a look: what the program takes besides grows
/// with what it uses, and is seen only then.
const RISE: u64 = 8;
/// Part of the budget that each buffer which pages go through may keep while nobody uses it. What
/// it keeps the program does not get; to get it again costs less than a page from the disk.
const BUFFER: u64 = 1024;
const BUFFER_LEAST: u64 = 32 << 10;

/// Follows the cgroups of this process.
pub struct Follow {
    cgroups: MemoryCgroups,
    control: &'static Control,
    highest: u64,
    /// What programs that are mapped may keep now.
    programs: u64,
    major_faults: u64,
    looks: u32,
}

impl Follow {
    /// `None`: there is no limit to follow.
    pub fn new(control: &'static Control) -> Option<Self> {
        let highest = control.budget_bytes.load(Ordering::Relaxed);
        let cgroups = MemoryCgroups::own()?;
        let kept = (highest / BUFFER).max(BUFFER_LEAST);
        control.buffer_bytes.store(kept, Ordering::Relaxed);
        Some(Self {
            cgroups,
            control,
            highest,
            programs: PROGRAMS[0],
            major_faults: 0,
            looks: 0,
        })
    }

    /// The largest budget so far, bytes.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// Sets the budget to what there is now; `pages_left` since the run began.
    pub fn look(&mut self, pages_left: bool) {
        let Some(taken) = self.cgroups.tightest(self.programs) else {
            return;
        };
        self.looks += 1;
        if self.looks.is_multiple_of(LOOKS) {
            let faults = taken.major_faults.saturating_sub(self.major_faults);
            self.major_faults = taken.major_faults;
            self.programs = programs(self.programs, faults);
        }
        let control = self.control;
        let is_paging = control.compressed_bytes.load(Ordering::Relaxed) > 0 || pages_left;
        let most = budget(taken, control.used_bytes(), is_paging);
        let before = control.budget_bytes.load(Ordering::Relaxed);
        let budget = match most > before {
            true => before + whole_pages((most - before) / RISE),
            false => most,
        };
        control.budget_bytes.store(budget, Ordering::Release);
        self.highest = self.highest.max(budget);
        if budget >= before {
            return;
        }
        // Tasks whose memory fitted until now begin to manage it; the others page out.
        if control.is_tight_with(0) {
            control.pressure.fetch_add(1, Ordering::AcqRel);
            futex::wake(&control.pressure, i32::MAX as u32);
        }
        if control.used_bytes() > budget {
            pressure::press_on_the_largest(control, farpage_object::TASKS_MAX);
        }
    }
}

/// What programs may keep from now on, one in so many bytes, where they kept `before` and there
/// were so many faults: what of them is not used makes room, and comes back when it is missed.
fn programs(before: u64, faults: u64) -> u64 {
    let after = match faults > FEW_FAULTS {
        true => before.saturating_sub(2),
        false => before + 1,
    };
    after.clamp(PROGRAMS[0], PROGRAMS[1])
}

/// What managed memory may take where it takes `used` bytes of what is taken in all.
fn budget(taken: Taken, used: u64, is_paging: bool) -> u64 {
    let margin = (taken.limit / MARGIN).max(MARGIN_LEAST);
    let paging = if is_paging { 0 } else { PAGING_BYTES };
    // Charged before it is touched, memory may be used that is not taken yet.
    let besides = taken.taken.saturating_sub(used);
    let most = taken.limit.saturating_sub(margin + paging + besides);
    whole_pages(most.max(RAM_MIN_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_budget_is_what_others_leave() {
        let of = |limit, taken, used| {
            let taken = Taken {
                limit: limit * MIB,
                taken: taken * MIB,
                major_faults: 0,
            };
            budget(taken, used * MIB, true) / MIB
        };
        assert_eq!(of(1000, 30, 0), 945, "the program has not begun");
        assert_eq!(of(1000, 430, 400), 945, "it grows");
        assert_eq!(of(1000, 950, 920), 945);
        assert_eq!(of(1000, 700, 400), 675, "somebody else takes 270 MiB more");
        assert_eq!(of(1000, 300, 400), 975, "charged and not yet touched");
        assert_eq!(of(20, 19, 2), 16, "never below the least");
    }

    #[test]
    fn programs_keep_what_they_miss() {
        let after = |before, looks: &[u64]| looks.iter().copied().fold(before, programs);
        assert_eq!(after(8, &[0; 3]), 11);
        assert_eq!(after(8, &[FEW_FAULTS; 100]), 16);
        assert_eq!(after(16, &[30; 3]), 10);
        assert_eq!(after(16, &[30; 80]), 8);
        assert_eq!(after(12, &[30, 0, 0]), 12);
    }
}
