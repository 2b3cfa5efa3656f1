//! What of files is mapped in the place of objects that do not fit into the budget: parts that are
//! read in order, the oldest of which leave when memory is short.

use alloc::collections::VecDeque;

use farpage_object::{PageIndex, PageRange};

/// All of them, from the oldest on. They do not overlap.
#[derive(Default)]
pub(crate) struct Windows {
    queue: VecDeque<PageRange>,
    pages: u64,
    /// Of all pages that have left, those that would have been theirs to give, less those that were.
    owed: i64,
}

impl Windows {
    /// How many pages they have.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = PageRange> {
        self.queue.iter().copied()
    }

    /// How many of these are in `pages`.
    pub(crate) fn within(&self, pages: PageRange) -> u64 {
        self.iter().map(|w| w.intersect(pages).pages()).sum()
    }

    /// There is a new one.
    pub(crate) fn begin(&mut self, window: PageRange) {
        debug_assert_eq!(self.within(window), 0);
        self.queue.push_back(window);
        self.pages += window.pages();
    }

    /// Those in `pages` are the newest from now on. Returns how many they are.
    pub(crate) fn renew(&mut self, pages: PageRange) -> usize {
        let all = core::mem::take(&mut self.queue);
        let is_renewed = |window: &PageRange| !window.intersect(pages).is_empty();
        let (renewed, others): (VecDeque<_>, VecDeque<_>) = all.into_iter().partition(is_renewed);
        let count = renewed.len();
        self.queue = others.into_iter().chain(renewed).collect();
        count
    }

    /// What they have of `pages` is no longer mapped. Returns how many pages that are.
    pub(crate) fn end(&mut self, pages: PageRange) -> u64 {
        let gone = self.within(pages);
        if gone > 0 {
            let rest = |window: PageRange| {
                let inside = |page: PageIndex| page.clamp(window.start, window.end).0;
                let below = PageRange::new(window.start.0, inside(pages.start));
                let above = PageRange::new(inside(pages.end), window.end.0);
                [below, above]
            };
            let rest = self.iter().flat_map(rest);
            self.queue = rest.filter(|part| !part.is_empty()).collect();
            self.pages -= gone;
        }
        gone
    }

    /// Of `held` pages, these among them, `wanted` are to leave. True when it is the windows' turn: while
    /// they have more than the others, then in proportion.
    pub(crate) fn have_turn(&self, wanted: u64, held: u64) -> bool {
        self.are_most_of(held) || 2 * (self.owed + self.part(wanted, held)) >= wanted.max(1) as i64
    }

    /// `left` of `held` pages have left; they were of windows, or not.
    pub(crate) fn have_left(&mut self, left: u64, held: u64, of_windows: bool) {
        let given = if of_windows { left as i64 } else { 0 };
        self.owed = match self.are_most_of(held) {
            true => 0,
            false => self.owed + self.part(left, held) - given,
        };
    }

    fn are_most_of(&self, held: u64) -> bool {
        2 * self.pages > held
    }

    /// The windows' part of `pages`.
    fn part(&self, pages: u64, held: u64) -> i64 {
        (pages * self.pages).div_ceil(held.max(1)) as i64
    }

    /// The oldest, and those that were begun after it and are its neighbours, until they have `pages`
    /// pages.
    pub(crate) fn oldest(&self, pages: u64) -> Option<PageRange> {
        let mut all = self.iter();
        let mut run = all.next()?;
        for window in all {
            if run.pages() >= pages {
                break;
            }
            if window.start == run.end {
                run.end = window.end;
            } else if window.end == run.start {
                run.start = window.start;
            }
        }
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_leave_with_their_neighbours() {
        let mut windows = Windows::default();
        assert_eq!(windows.oldest(1), None);
        for start in [100, 500, 110, 510, 120, 490] {
            windows.begin(PageRange::new(start, start + 10));
        }
        assert_eq!(windows.oldest(1), Some(PageRange::new(100, 110)));
        assert_eq!(windows.oldest(20), Some(PageRange::new(100, 120)));
        assert_eq!(windows.within(PageRange::new(105, 502)), 37);
        assert_eq!(windows.renew(PageRange::new(100, 130)), 3);
        assert_eq!(windows.oldest(1), Some(PageRange::new(500, 510)));
        assert_eq!(windows.end(PageRange::new(100, 130)), 30);
        assert_eq!(windows.oldest(100), Some(PageRange::new(490, 520)));
        assert_eq!(windows.pages(), 30);
        assert_eq!(windows.end(PageRange::new(505, 507)), 2);
        assert_eq!(windows.oldest(5), Some(PageRange::new(500, 505)));
        assert_eq!(windows.end(PageRange::new(0, 1000)), 28);
        assert_eq!((windows.oldest(1), windows.pages()), (None, 0));
    }

    #[test]
    fn windows_and_other_pages_leave_in_proportion() {
        let mut windows = Windows::default();
        assert!(!windows.have_turn(10, 0) && !windows.have_turn(10, 1000));
        windows.begin(PageRange::new(0, 300));
        assert!(windows.have_turn(10, 500));
        let mut given = 0;
        for _ in 0..1000 {
            let of_windows = windows.have_turn(10, 1000);
            // They leave in larger parts.
            let left = if of_windows { 50 } else { 10 };
            windows.have_left(left, 1000, of_windows);
            given += if of_windows { left } else { 0 };
        }
        let all = given + (1000 - given / 50) * 10;
        assert!(
            (given * 1000).abs_diff(all * 300) < 1000 * 100,
            "{given} of {all}"
        );
    }
}
