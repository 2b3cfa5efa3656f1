//! Who gives memory back when a tree of tasks has too little.
//!
//! A task that needs memory takes pages of its own out first. So that its pages are not older than
//! everybody else's after a while, the largest other task is asked to give up as large a part of
//! what it has: its turn. It begins with a few pages. While they stay away it gives more each time;
//! when they come back it uses what it has, and passes some turns before it tries again. Where all
//! use what they have, those that have more still give a little: else one that happens to have too
//! little for what it does would stay so.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use farpage_object::{Control, TaskSlot};

use crate::futex;

/// Pages that a task gives back when somebody waits, and at most in its turn.
const GIVEN_MAX: u64 = 1024;
/// Pages given to see whether they come back.
const GIVEN_FIRST: u64 = 64;
/// Turns that a task passes at most before it tries that again.
const PASSED_MAX: u32 = 15;
/// The same of one that has more than who asks.
const PASSED_BY_LARGER: u32 = 3;

/// What is added to `TaskSlot::pressure`, which is a futex, for a turn.
const TURN: u32 = 1;
/// For that of a task which has more than who asks.
const TURN_OF_LARGER: u32 = 1 << 8;
/// When somebody waits.
const NEED: u32 = 1 << 16;

/// Asks that one of the tasks other than `but` to give memory back which holds most. Somebody waits
/// for it.
pub fn press_on_the_largest(control: &Control, but: usize) {
    if let Some(largest) = control.largest_but(but) {
        press(largest, NEED);
    }
}

fn press(task: &TaskSlot, why: u32) {
    task.pressure.fetch_add(why, Ordering::AcqRel);
    futex::wake(&task.pressure, 1);
}

/// A task's part in this.
#[derive(Default)]
pub struct Turns {
    /// Pages that the others owe for what this task gave up.
    owed: AtomicU64,
    /// Pages given in the last turn that was not passed.
    given: AtomicU64,
    /// Pages that had been brought in by then, or when it was last seen that pages come back.
    brought: AtomicU64,
    /// Turns to pass now, and when pages come back again.
    passes: AtomicU32,
    next_passes: AtomicU32,
}

impl Turns {
    /// Task `slot` took `pages` of its own out because memory is short.
    pub fn gave(&self, control: &Control, slot: usize, pages: u64) {
        if pages == 0 {
            return;
        }
        let bytes = |task: &TaskSlot| task.counters.resident_bytes.load(Ordering::Relaxed);
        let Some(largest) = control.largest_but(slot) else {
            return;
        };
        let (own, other) = (bytes(&control.tasks[slot]).max(1), bytes(largest));
        let due = u128::from(pages) * u128::from(other) / u128::from(own);
        let due = due.min(GIVEN_MAX.into()) as u64;
        if self.owed.fetch_add(due, Ordering::Relaxed) + due >= GIVEN_MAX {
            self.owed.store(0, Ordering::Relaxed);
            press(largest, if other > own { TURN_OF_LARGER } else { TURN });
        }
    }

    /// Pages that a task is to give up whose `pressure` went from `before` to `now`. It has brought
    /// in `brought` so far in all.
    pub fn asked(&self, before: u32, now: u32, brought: u64) -> u64 {
        match now {
            _ if before == now => 0,
            _ if before / NEED != now / NEED => GIVEN_MAX,
            _ => self.turn(brought, before / TURN_OF_LARGER != now / TURN_OF_LARGER),
        }
    }

    fn turn(&self, brought: u64, larger: bool) -> u64 {
        let (most, least) = match larger {
            true => (PASSED_BY_LARGER, GIVEN_FIRST),
            false => (PASSED_MAX, 0),
        };
        let passes = self.passes.load(Ordering::Relaxed).min(most);
        if passes > 0 {
            self.passes.store(passes - 1, Ordering::Relaxed);
            return 0;
        }
        let given = self.given.load(Ordering::Relaxed);
        let came = brought.saturating_sub(self.brought.swap(brought, Ordering::Relaxed));
        let next = self.next_passes.load(Ordering::Relaxed);
        let (given, passes, next) = match given {
            _ if came > given.max(GIVEN_FIRST) / 2 => (least, next, (next * 2 + 1).min(PASSED_MAX)),
            0 => (GIVEN_FIRST, 0, next),
            _ => ((given * 2).min(GIVEN_MAX), 0, 0),
        };
        self.given.store(given, Ordering::Relaxed);
        self.passes.store(passes, Ordering::Relaxed);
        self.next_passes.store(next, Ordering::Relaxed);
        given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(resident: &[u64]) -> &'static Control {
        let (fd, control) = crate::control::create().unwrap();
        crate::file::close(fd);
        for (at, bytes) in resident.iter().enumerate() {
            assert_eq!(control.claim_another(1 + at as u32), Some(at));
            let own = &control.tasks[at].counters.resident_bytes;
            own.store(*bytes, Ordering::Relaxed);
        }
        control
    }

    fn pressures(control: &Control) -> [u32; 3] {
        [0, 1, 2].map(|at| control.tasks[at].pressure.load(Ordering::Relaxed))
    }

    #[test]
    fn need_goes_to_the_largest_other() {
        press_on_the_largest(tree(&[5]), 0);
        let control = tree(&[9, 1, 5]);
        press_on_the_largest(control, 0);
        assert_eq!(pressures(control), [0, 0, NEED]);
    }

    #[test]
    fn turns_come_as_often_as_the_other_is_large() {
        for (mib, turn, expected) in [(40, TURN_OF_LARGER, 20), (20, TURN, 10), (10, TURN, 5)] {
            let control = tree(&[20 << 20, 0, mib << 20]);
            let turns = Turns::default();
            for _ in 0..160 {
                turns.gave(control, 0, 64);
            }
            assert_eq!(pressures(control), [0, 0, expected * turn]);
        }
    }

    #[test]
    fn a_task_alone_owes_itself_nothing() {
        let control = tree(&[20 << 20]);
        Turns::default().gave(control, 0, 1 << 20);
        assert_eq!(pressures(control), [0; 3]);
    }

    /// Pages that a task gives in so many turns, in each of which `brings` says what comes in.
    fn given(turns: &Turns, count: u32, brings: impl FnMut(u64) -> u64) -> u64 {
        given_in(TURN, turns, count, brings)
    }

    fn given_in(turn: u32, turns: &Turns, count: u32, mut brings: impl FnMut(u64) -> u64) -> u64 {
        let (mut brought, mut all, mut gave) = (1 << 40, 0, 0);
        for _ in 0..count {
            brought += brings(gave);
            gave = turns.asked(0, turn, brought);
            all += gave;
        }
        all
    }

    #[test]
    fn the_larger_of_two_that_use_what_they_have_gives_a_little() {
        for brings in [64, 1000] {
            let all = given_in(TURN_OF_LARGER, &Turns::default(), 1000, |_| brings);
            assert!((200..300).contains(&(all / GIVEN_FIRST)), "{all}");
        }
    }

    #[test]
    fn who_uses_nothing_gives_more_and_more() {
        let turns = Turns::default();
        given(&turns, 1, |_| 0);
        assert_eq!(given(&turns, 5, |_| 0), 64 + 128 + 256 + 512 + 1024);
    }

    #[test]
    fn who_uses_what_it_has_gives_little_and_who_waits_gets_it() {
        let turns = Turns::default();
        // All that was given comes back.
        assert!(given(&turns, 1000, |gave| gave) < 64 * 1000 / 8);
        // It brings in more than it has: once it may believe that nothing comes back.
        assert!(given(&turns, 1000, |_| 100) <= 64);
        assert_eq!(turns.asked(TURN, TURN + NEED, 0), GIVEN_MAX);
        assert_eq!(turns.asked(TURN, TURN, 0), 0);
        // Now it rests.
        assert!(given(&turns, 40, |_| 0) > 15 * GIVEN_MAX);
    }
}
