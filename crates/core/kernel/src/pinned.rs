//! Pages that Linux neither moves nor drops, though they are the program's alone: a device has them pinned,
//! or they were locked without a word to the kernel. Page-out would try them again and again. It notes
//! them and leaves them alone, and looks now and then whether they can leave.

use farpage_object::State as PageState;
use farpage_object::{PageIndex, PageRange};
use farpage_sys::time;

use crate::evict::Moved;
use crate::kernel::{Kernel, State};

/// Runs that are noted at most: page-out allocates nothing. What does not fit is tried again.
const RUNS_MAX: usize = 128;
/// Time between two looks.
const LOOK_NS: u64 = 1_000_000_000;
const NONE: PageRange = PageRange {
    start: PageIndex(0),
    end: PageIndex(0),
};

/// The pages that are noted.
pub(crate) struct Pinned {
    runs: [PageRange; RUNS_MAX],
    count: usize,
    /// When to look.
    look_ns: u64,
}

impl Default for Pinned {
    fn default() -> Self {
        Self {
            runs: [NONE; RUNS_MAX],
            count: 0,
            look_ns: 0,
        }
    }
}

impl Pinned {
    /// The runs, in no order.
    pub(crate) fn runs(&self) -> &[PageRange] {
        &self.runs[..self.count]
    }

    /// Adds a page; false when there is no room for it.
    fn add(&mut self, page: PageIndex) -> bool {
        let known = &mut self.runs[..self.count];
        if let Some(run) = known.iter_mut().find(|run| run.end == page) {
            run.end.0 += 1;
            return true;
        }
        self.put(PageRange::one(page))
    }

    fn put(&mut self, run: PageRange) -> bool {
        let has_room = self.count < RUNS_MAX;
        if has_room {
            self.runs[self.count] = run;
            self.count += 1;
        }
        has_room
    }

    /// Takes out what lies in `within`. Calls `gone` with all that is not noted any more.
    fn cut(&mut self, within: PageRange, mut gone: impl FnMut(PageRange)) {
        let (before, count) = (self.runs, self.count);
        self.count = 0;
        for run in &before[..count] {
            let part = run.intersect(within);
            let kept = match part.is_empty() {
                true => [*run, NONE],
                false => [
                    PageRange::new(run.start.0, part.start.0),
                    PageRange::new(part.end.0, run.end.0),
                ],
            };
            if !part.is_empty() {
                gone(part);
            }
            for rest in kept {
                if !rest.is_empty() && !self.put(rest) {
                    gone(rest);
                }
            }
        }
    }
}

impl State {
    /// Linux did not let a page go.
    pub(crate) fn note_pinned(&mut self, page: PageIndex) {
        if self.pinned.count == 0 {
            self.pinned.look_ns = time::now_ns() + LOOK_NS;
        }
        if self.pinned.add(page) {
            self.pages.wire(PageRange::one(page), true);
        }
    }

    /// What was noted of `within` can leave again.
    pub(crate) fn unpin(&mut self, within: PageRange) {
        let (pages, pinned) = (&mut self.pages, &mut self.pinned);
        pinned.cut(within, |run| pages.wire(run, false));
        self.wire_held(within);
    }
}

impl Kernel {
    /// Now and then tries to move the first page of each run: where it goes, the rest may go, too.
    pub(crate) fn look_at_pinned(&self, state: &mut State) {
        if state.pinned.count == 0 || time::now_ns() < state.pinned.look_ns {
            return;
        }
        let (runs, count) = (state.pinned.runs, state.pinned.count);
        for run in &runs[..count] {
            // A page that is not there any more is not the one that was pinned.
            let temporary = state.is_temporary(run.start);
            let is_pinned = state.pages.state(run.start) == PageState::Resident
                && self.move_page(state, run.start, temporary) == Moved::Pinned;
            if !is_pinned {
                state.unpin(*run);
            }
        }
        state.pinned.look_ns = time::now_ns() + LOOK_NS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn ranges(list: &[(u64, u64)]) -> Vec<PageRange> {
        let list = list.iter();
        list.map(|&(start, end)| PageRange::new(start, end))
            .collect()
    }

    #[test]
    fn pages_side_by_side_are_one_run_and_parts_of_it_are_taken_out() {
        let mut pinned = Pinned::default();
        for page in [7, 8, 9, 20, 10, 21] {
            assert!(pinned.add(PageIndex(page)));
        }
        assert_eq!(pinned.runs(), ranges(&[(7, 11), (20, 22)]));
        let mut gone = Vec::new();
        pinned.cut(PageRange::new(8, 21), |run| gone.push(run));
        assert_eq!(gone, ranges(&[(8, 11), (20, 21)]));
        assert_eq!(pinned.runs(), ranges(&[(7, 8), (21, 22)]));
    }

    #[test]
    fn what_does_not_fit_is_not_noted() {
        let mut pinned = Pinned::default();
        assert!((0..RUNS_MAX as u64).all(|i| pinned.add(PageIndex(i * 10))));
        assert!(!pinned.add(PageIndex(5)));
        (1..5).for_each(|page| assert!(pinned.add(PageIndex(page))));
        let mut gone = Vec::new();
        pinned.cut(PageRange::new(2, 3), |run| gone.push(run));
        let last = (RUNS_MAX as u64 - 1) * 10;
        assert_eq!(gone, ranges(&[(2, 3), (last, last + 1)]));
        assert_eq!(pinned.runs().len(), RUNS_MAX);
    }
}
