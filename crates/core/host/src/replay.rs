//! What an earlier run asked for, brought in before anybody waits for it.

use farpage_object::PageRange;

use crate::objects::spawn;
use crate::{Error, Files};

/// Pages that are replayed at a time: 64 MiB keep any way to a source busy.
const UNDER_WAY_MAX: u64 = 16384;

impl Files {
    /// Brings in runs of pages of files, which are named by their numbers, in this order and in
    /// the background. It takes no memory that somebody else has, and half of the budget at most.
    ///
    /// # Errors
    /// [`Error::Start`] without a thread for it.
    ///
    /// # Panics
    /// In the background, when a number is of no file: the process ends.
    pub fn replay(&'static self, runs: Vec<(usize, PageRange)>) -> Result<(), Error> {
        spawn("maps-replay", move || {
            let mut left = self.tree().budget.half();
            for (number, run) in joined(runs) {
                if !self.replay_run(number, run, &mut left) {
                    break;
                }
            }
        })
    }

    /// Asks for what is absent of `run`, `left` pages at most. False when there is no more room.
    fn replay_run(&self, number: usize, run: PageRange, left: &mut u64) -> bool {
        let (object, budget) = (&self.all[number], &self.tree().budget);
        let (mut at, end) = (run.start.0, run.end.0.min(object.pages()));
        while at < end {
            self.objects.under_way.wait_for_at_most(UNDER_WAY_MAX);
            let window = budget.window().min(end - at).min(*left);
            // Before the pages are begun: those that are let go give their room back.
            if window == 0 || budget.excess(window) > 0 || !budget.charge(window, false) {
                return false;
            }
            let pages = object.want_soon(PageRange::new(at, end), window);
            budget.uncharge(window - pages.map_or(0, |pages| pages.pages()));
            let Some(pages) = pages else {
                break;
            };
            at = pages.end.0;
            *left -= pages.pages();
            object.request_soon(pages);
        }
        true
    }
}

/// Runs that follow each other in a file become one: fewer, larger reads.
fn joined(runs: Vec<(usize, PageRange)>) -> Vec<(usize, PageRange)> {
    let mut joined: Vec<(usize, PageRange)> = Vec::new();
    for (number, run) in runs {
        match joined.last_mut() {
            Some((of, last)) if *of == number && last.end == run.start => last.end = run.end,
            _ => joined.push((number, run)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_joined_where_they_follow_each_other_in_one_file() {
        let runs = [
            (0, 1, 2),
            (0, 2, 5),
            (1, 5, 6),
            (0, 5, 6),
            (0, 7, 8),
            (0, 6, 7),
        ];
        let of = |(number, start, end)| (number, PageRange::new(start, end));
        let want = [(0, 1, 5), (1, 5, 6), (0, 5, 6), (0, 7, 8), (0, 6, 7)];
        assert_eq!(joined(runs.map(of).to_vec()), want.map(of));
    }
}
