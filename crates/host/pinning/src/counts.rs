//! How often each page is locked.

use alloc::vec::Vec;
use core::ops::ControlFlow;

use farpage_object::PageRange;

use crate::treap::{Kept, Treap, Walk};

/// Counts of pages, as the places where they change.
pub struct Counts {
    changes: Treap<Changes>,
}

/// Pages with the same count, which is not zero; their neighbours have another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which.
    pub pages: PageRange,
    /// How often they are locked.
    pub count: u64,
}

/// By how much the count of a page is more than that of the page before it.
struct Changes;

/// What some changes do, one after the other.
#[derive(Clone, Copy)]
struct Sum {
    /// The first page of them, and the last.
    first: u64,
    last: u64,
    /// All of them together.
    all: i64,
    /// The least that it ever comes to.
    least: i64,
}

impl Kept for Changes {
    type Key = u64;
    type Value = i64;
    type Sum = Sum;

    fn sum(left: Option<Sum>, page: u64, by: i64, right: Option<Sum>) -> Sum {
        let before = left.map_or(0, |left| left.all);
        let here = before + by;
        let least = left.map_or(here, |left| left.least.min(here));
        let after = right.map_or(least, |right| here + right.least);
        Sum {
            first: left.map_or(page, |left| left.first),
            last: right.map_or(page, |right| right.last),
            all: here + right.map_or(0, |right| right.all),
            least: least.min(after),
        }
    }
}

impl Default for Counts {
    fn default() -> Self {
        Self::new()
    }
}

impl Counts {
    /// Nothing is locked.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            changes: Treap::new(),
        }
    }

    /// `pages` are locked once more. Those that were not before, in order: they are to be locked now.
    pub fn lock(&mut self, pages: PageRange) -> Vec<PageRange> {
        let free = self.free(pages);
        self.add(pages, 1);
        free
    }

    /// `pages` are locked once less. Those that are not any more, in order: they are to be unlocked now.
    ///
    /// # Panics
    /// When one of them was not locked.
    pub fn unlock(&mut self, pages: PageRange) -> Vec<PageRange> {
        assert!(self.free(pages).is_empty(), "what is unlocked was locked");
        self.add(pages, -1);
        self.free(pages)
    }

    /// Those of `pages` that are not locked.
    #[must_use]
    pub fn free(&self, pages: PageRange) -> Vec<PageRange> {
        let mut looks = Free {
            pages,
            count: 0,
            since: Some(pages.start.0),
            found: Vec::new(),
        };
        if pages.pages() > 0 {
            self.changes.walk(&mut looks);
            looks.ends(pages.end.0);
        }
        looks.found
    }

    /// All that is locked, in order.
    pub fn pieces(&self) -> Vec<Piece> {
        let mut looks = Pieces {
            from: 0,
            count: 0,
            found: Vec::new(),
        };
        self.changes.walk(&mut looks);
        looks.found
    }

    /// So many places where the count changes.
    #[must_use]
    pub fn changes(&self) -> usize {
        self.changes.len()
    }

    fn add(&mut self, pages: PageRange, by: i64) {
        if pages.pages() == 0 {
            return;
        }
        for (page, by) in [(pages.start.0, by), (pages.end.0, -by)] {
            self.changes.change(page, |was| {
                let sum = was.unwrap_or(0) + by;
                (sum != 0).then_some(sum)
            });
        }
    }
}

/// Looks for pages whose count is zero.
struct Free {
    pages: PageRange,
    count: i64,
    /// The count is zero from there on.
    since: Option<u64>,
    found: Vec<PageRange>,
}

impl Free {
    /// The count is not zero any more, or not looked at, from `page` on.
    fn ends(&mut self, page: u64) {
        if let Some(since) = self.since.take()
            && since < page
        {
            self.found.push(PageRange::new(since, page));
        }
    }
}

impl Walk<Changes> for Free {
    fn enters(&mut self, sum: Sum) -> bool {
        if sum.last <= self.pages.start.0 {
            return false;
        }
        // Where nothing is zero there is nothing to find.
        let is_within = sum.first > self.pages.start.0 && self.since.is_none();
        !(is_within && self.count + sum.least > 0)
    }

    fn passes(&mut self, sum: Sum) {
        self.count += sum.all;
        if sum.last <= self.pages.start.0 {
            self.since = (self.count == 0).then_some(self.pages.start.0);
        }
    }

    fn visits(&mut self, page: u64, by: i64) -> ControlFlow<()> {
        if page >= self.pages.end.0 {
            return ControlFlow::Break(());
        }
        self.count += by;
        if page <= self.pages.start.0 {
            self.since = (self.count == 0).then_some(self.pages.start.0);
            return ControlFlow::Continue(());
        }
        self.ends(page);
        self.since = (self.count == 0).then_some(page);
        ControlFlow::Continue(())
    }
}

struct Pieces {
    from: u64,
    count: i64,
    found: Vec<Piece>,
}

impl Walk<Changes> for Pieces {
    fn enters(&mut self, _: Sum) -> bool {
        true
    }

    fn passes(&mut self, _: Sum) {}

    fn visits(&mut self, page: u64, by: i64) -> ControlFlow<()> {
        if self.count > 0 {
            self.found.push(Piece {
                pages: PageRange::new(self.from, page),
                count: self.count.unsigned_abs(),
            });
        }
        (self.from, self.count) = (page, self.count + by);
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use proptest::prelude::*;

    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(start, end)
    }

    /// Each kind of intersection with what is locked: what is to be locked, and then what stays.
    #[test]
    fn the_five_kinds_of_intersection() {
        for (second, new, after) in [
            // The same.
            ((10, 20), vec![], vec![(10, 20)]),
            // It lies within.
            ((12, 15), vec![], vec![(10, 20)]),
            // It is around.
            ((5, 25), vec![(5, 10), (20, 25)], vec![(10, 20)]),
            // It begins before.
            ((5, 15), vec![(5, 10)], vec![(10, 20)]),
            // It ends after.
            ((15, 25), vec![(20, 25)], vec![(10, 20)]),
        ] {
            let mut counts = Counts::new();
            assert_eq!(counts.lock(range(10, 20)), [range(10, 20)]);
            let second = range(second.0, second.1);
            let new: Vec<PageRange> = new.into_iter().map(|(a, b)| range(a, b)).collect();
            assert_eq!(counts.lock(second), new, "{second:?}");
            assert_eq!(counts.unlock(second), new, "{second:?}");
            let left: Vec<PageRange> = counts.pieces().iter().map(|piece| piece.pages).collect();
            let after: Vec<PageRange> = after.into_iter().map(|(a, b)| range(a, b)).collect();
            assert_eq!(left, after);
        }
    }

    #[test]
    fn neighbours_with_equal_counts_are_one_piece() {
        let mut counts = Counts::new();
        counts.lock(range(0, 10));
        counts.lock(range(10, 20));
        assert_eq!(counts.changes(), 2);
        counts.lock(range(5, 15));
        let pieces = counts.pieces();
        let found: Vec<_> = pieces.iter().map(|one| (one.pages, one.count)).collect();
        assert_eq!(
            found,
            [(range(0, 5), 1), (range(5, 15), 2), (range(15, 20), 1)]
        );
        counts.unlock(range(5, 15));
        assert_eq!(counts.changes(), 2);
    }

    #[test]
    fn in_whatever_order_locks_are_given_back_a_page_is_unlocked_with_the_last() {
        let mut counts = Counts::new();
        let all = [range(0, 30), range(10, 20), range(5, 15), range(10, 20)];
        for one in all {
            counts.lock(one);
        }
        assert_eq!(counts.unlock(all[0]), [range(0, 5), range(20, 30)]);
        assert_eq!(counts.unlock(all[1]), []);
        assert_eq!(counts.unlock(all[3]), [range(15, 20)]);
        assert_eq!(counts.unlock(all[2]), [range(5, 15)]);
        assert_eq!(counts.changes(), 0);
    }

    #[test]
    #[should_panic(expected = "what is unlocked was locked")]
    fn what_was_not_locked_is_not_unlocked() {
        let mut counts = Counts::new();
        counts.lock(range(0, 10));
        counts.unlock(range(5, 11));
    }

    /// Ranges of a count for each page.
    fn zeros(counts: &[u32], within: PageRange) -> Vec<PageRange> {
        let mut found: Vec<PageRange> = Vec::new();
        for page in within.iter().filter(|page| counts[page.0 as usize] == 0) {
            match found.last_mut() {
                Some(last) if last.end == page => last.end.0 += 1,
                _ => found.push(PageRange::one(page)),
            }
        }
        found
    }

    /// So many locks and unlocks, against a count for each page.
    fn random(seed: u64, steps: u32, pages: u64) {
        let mut dice = seed | 1;
        let mut below = |end: u64| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            (dice >> 11) % end
        };
        let (mut counts, mut naive) = (Counts::new(), vec![0_u32; pages as usize]);
        let mut held: Vec<PageRange> = Vec::new();
        for step in 0..steps {
            if held.is_empty() || below(100) < 55 && held.len() < 200 {
                let start = below(pages);
                let one = range(start, start + 1 + below((pages - start).min(64)));
                let wanted = zeros(&naive, one);
                one.iter().for_each(|page| naive[page.0 as usize] += 1);
                assert_eq!(counts.lock(one), wanted, "seed {seed}, step {step}");
                held.push(one);
            } else {
                let one = held.swap_remove(below(held.len() as u64) as usize);
                one.iter().for_each(|page| naive[page.0 as usize] -= 1);
                let wanted = zeros(&naive, one);
                assert_eq!(counts.unlock(one), wanted, "seed {seed}, step {step}");
            }
        }
        let pieces = counts.pieces();
        for piece in &pieces {
            for page in piece.pages.iter() {
                assert_eq!(u64::from(naive[page.0 as usize]), piece.count);
            }
        }
        let locked: u64 = pieces.iter().map(|piece| piece.pages.pages()).sum();
        assert_eq!(
            locked,
            naive.iter().filter(|count| **count > 0).count() as u64
        );
        assert!(
            pieces
                .windows(2)
                .all(|two| two[0].pages.end < two[1].pages.start || two[0].count != two[1].count)
        );
    }

    #[test]
    fn a_million_random_locks_and_unlocks_are_those_of_a_count_for_each_page() {
        for seed in 1..=10 {
            random(seed, 100_000, 400);
        }
    }

    proptest! {
        #[test]
        fn any_few_locks_are_those_of_a_count_for_each_page(seed in any::<u64>(), pages in 1..200_u64) {
            random(seed, 200, pages);
        }
    }

    #[test]
    fn a_million_areas_that_overlap_are_no_slower_to_find_than_a_few() {
        let mut counts = Counts::new();
        for area in 0..1_000_000_u64 {
            counts.lock(range(area * 2, area * 2 + 5));
        }
        assert_eq!(counts.pieces().len(), counts.changes() - 1);
        // One for each area, and what is between is found without looking at all.
        assert_eq!(counts.lock(range(0, 2_000_003)), []);
        assert_eq!(counts.unlock(range(0, 2_000_003)), []);
        for area in (0..1_000_000).rev() {
            counts.unlock(range(area * 2, area * 2 + 5));
        }
        assert_eq!(counts.changes(), 0);
    }
}
