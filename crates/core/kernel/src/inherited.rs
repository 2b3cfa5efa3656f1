//! Pages that a forked child shares with its parent, and when they have become its own.

use alloc::vec::Vec;

use farpage_sys::{pagemap, process, time};

use crate::kernel::Kernel;

/// Time between two looks that cost nothing else.
const LOOK_NS: u64 = 20_000_000;
/// The same where nothing happens.
const LOOK_MAX_NS: u64 = 100_000_000;
/// Counting takes one part of so many of the time, at most.
const SHARE: u64 = 20;
/// The same where nothing happens here. Pages become this task's own all the same when others write to theirs, or drop
/// them: then the budget must be held, too.
const SHARE_IDLE: u64 = 200;

/// When the page-out thread counts them again. A page becomes this task's own by a fault of its own, which
/// Linux counts, or since other tasks let go of it: most of all when they end.
#[derive(Default)]
pub(crate) struct Looks {
    /// Minor faults of this process, and tasks of the tree, when they were counted.
    seen: (u64, u64),
    /// Not counted again before.
    not_before_ns: u64,
    /// Counted again by then, whatever happens.
    due_ns: u64,
    /// From one such time to the next.
    pause_ns: u64,
    /// From one look to the next.
    pub(crate) rest_ns: u64,
}

impl Looks {
    /// Whether to count now, when this process has had so many faults and the tree has so many tasks.
    fn is_due(&mut self, now_ns: u64, seen: (u64, u64)) -> bool {
        let happened = seen != self.seen;
        let counts = now_ns >= self.not_before_ns && (happened || now_ns >= self.due_ns);
        self.rest_ns = match happened {
            true => LOOK_NS,
            false => (self.rest_ns * 2).clamp(LOOK_NS, LOOK_MAX_NS),
        };
        if counts {
            self.seen = seen;
        }
        counts
    }

    /// It was counted; `found` says whether pages had become this task's own.
    fn counted(&mut self, began_ns: u64, ended_ns: u64, found: bool) {
        let least_ns = ((ended_ns - began_ns) * SHARE).max(LOOK_NS);
        self.pause_ns = match found {
            true => least_ns,
            false => {
                let most_ns = ((ended_ns - began_ns) * SHARE_IDLE).max(LOOK_MAX_NS);
                (self.pause_ns * 2).clamp(least_ns, most_ns)
            }
        };
        self.not_before_ns = began_ns + least_ns;
        self.due_ns = began_ns + self.pause_ns;
    }
}

impl Kernel {
    /// Charges inherited pages that are not shared any more, when it is time to count them.
    pub(crate) fn look_at_inherited(&self, looks: &mut Looks) {
        let began_ns = time::now_ns();
        let seen = (process::minor_faults(), self.account.tasks());
        if !looks.is_due(began_ns, seen) {
            return;
        }
        let (before, given) = (self.account.pages_held(), self.account.given());
        let ranges: Vec<(usize, usize)> = {
            let state = self.state.lock();
            let regions = state.regions.iter();
            regions.map(|region| (region.start, region.end)).collect()
        };
        // Without the lock: nobody's fault waits for it.
        let count = |&(start, end)| pagemap::count_exclusive(self.pagemap(), start, end);
        let exclusive: u64 = ranges.iter().map(|range| count(range).unwrap_or(0)).sum();
        let _state = self.state.lock();
        // What came or went meanwhile, perhaps counted twice, counts as shared until the next time.
        let gone = self.account.given() - given;
        let held = self.account.pages_held().max(before) + gone;
        let shared_before = self.account.inherited();
        self.account
            .charge_inherited(held.saturating_sub(exclusive));
        let found = self.account.inherited() < shared_before;
        looks.counted(began_ns, time::now_ns(), found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Looks for so long, with a count that takes 1 ms, and says how often it was counted.
    fn counts(
        looks: &mut Looks,
        from_ns: &mut u64,
        ns: u64,
        mut seen: impl FnMut(u64) -> u64,
    ) -> u64 {
        let (end, mut count) = (*from_ns + ns, 0);
        while *from_ns < end {
            if looks.is_due(*from_ns, (seen(*from_ns), 1)) {
                looks.counted(*from_ns, *from_ns + MS, false);
                count += 1;
            }
            *from_ns += looks.rest_ns;
        }
        count
    }

    #[test]
    fn a_child_that_does_nothing_counts_rarely_and_one_that_writes_at_once() {
        let (mut looks, mut now) = (Looks::default(), 1);
        let idle = counts(&mut looks, &mut now, 60_000 * MS, |_| 7);
        assert!((250..=310).contains(&idle), "{idle}");
        assert_eq!(looks.rest_ns, LOOK_MAX_NS);
        let began = now;
        let busy = counts(&mut looks, &mut now, 1_000 * MS, |at| at);
        assert!((40..=51).contains(&busy), "{busy}");
        // It was noticed at the first look.
        assert!(looks.seen.0 > began);
    }

    #[test]
    fn counting_takes_a_twentieth_of_the_time_at_most() {
        let mut looks = Looks::default();
        looks.counted(0, 50 * MS, true);
        assert!(!looks.is_due(999 * MS, (1, 1)) && looks.is_due(1_000 * MS, (1, 1)));
        for _ in 0..10 {
            looks.counted(0, 50 * MS, false);
        }
        assert_eq!(looks.due_ns, 10_000 * MS);
    }

    #[test]
    fn the_end_of_another_task_is_noticed() {
        let mut looks = Looks::default();
        assert!(looks.is_due(LOOK_NS, (3, 9)));
        looks.counted(LOOK_NS, LOOK_NS, false);
        assert!(!looks.is_due(2 * LOOK_NS - 1, (3, 8)));
        assert!(looks.is_due(2 * LOOK_NS, (3, 8)));
    }
}
