//! Whether the neighbours of a page that is asked for alone are worth bringing along.
//!
//! Nobody sees whether a page that came along is used. But of a page that came alone it is seen how
//! many of its neighbours fault soon after: those would have been of use. So now and then a page
//! comes alone although its neighbours might be worth it, and what follows is counted, for each part
//! of the address space for itself.
//!
//! For each page that comes along another one leaves. Where little is out, any page is wanted soon, and
//! neighbours are too, by chance. So they come along only where they are wanted more often than what leaves.

use alloc::vec::Vec;

use crate::{PageIndex, PageRange};

use crate::parts::{Counts, Parts};

/// Pages that are remembered, at most, of those that came alone and of those that left.
const REMEMBERED: usize = 1024;
/// A fault costs so many times what a page costs that comes along. With 12 the corpus's perl-hash, in two thirds of its
/// memory, takes 6% longer.
const COST: u64 = 30;
/// Where neighbours come along, one page in so many comes alone all the same.
const SAMPLE: u32 = 16;
/// Neighbours that are counted in one part.
const LATELY: u32 = 128;
/// Counts to begin with: a part where nothing is known brings neighbours along.
const BEFORE: Counts = Counts {
    tried: 8,
    useful: 1,
};
/// Of what leaves one page in so many is followed.
const FOLLOWED: u64 = 16;
/// Pages that left and are counted.
const LEFT_LATELY: u32 = 1024;
/// Counts to begin with: nothing that leaves is wanted soon.
const LEFT_BEFORE: Counts = Counts {
    tried: 64,
    useful: 0,
};

/// A page that came alone: its neighbours that stayed out.
#[derive(Clone, Copy)]
struct Alone {
    /// The first of them.
    first: u64,
    pages: u32,
    /// Faults before it.
    at: u32,
}

/// A page that left.
#[derive(Clone, Copy)]
struct Left {
    page: u64,
    /// Faults before that.
    at: u32,
}

impl Left {
    const NONE: Self = Self {
        page: u64::MAX,
        at: 0,
    };
}

/// What is known of the neighbours of single pages.
#[derive(Clone)]
pub struct Near {
    /// Empty until it is needed.
    alone: Vec<Alone>,
    /// Neighbours that stayed out, and those of them that were wanted soon after.
    stayed_out: Parts<LATELY>,
    /// Empty until it is needed.
    followed: Vec<Left>,
    /// Pages that left and were followed, and those of them that were wanted soon after.
    left: Counts,
    faults: u32,
    chosen: u32,
}

fn place(page: u64) -> usize {
    (page / crate::NEIGHBOURS) as usize % REMEMBERED
}

/// Where a page that left is followed, if it is.
fn place_of_left(page: u64) -> Option<usize> {
    let hash = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    hash.is_multiple_of(FOLLOWED)
        .then_some((hash / FOLLOWED) as usize % REMEMBERED)
}

impl Default for Near {
    fn default() -> Self {
        Self::new()
    }
}

impl Near {
    /// Nothing is known.
    pub fn new() -> Self {
        Self {
            alone: Vec::new(),
            stayed_out: Parts::new(BEFORE),
            followed: Vec::new(),
            left: LEFT_BEFORE,
            faults: 0,
            chosen: 0,
        }
    }

    /// Notes a fault on a page that is out. Where `held` pages are in memory, what comes within an
    /// eighth as many faults is soon.
    pub fn faulted(&mut self, page: PageIndex, held: u64) {
        self.faults = self.faults.wrapping_add(1);
        let soon = (held / 8).clamp(32, 2 * REMEMBERED as u64) as u32;
        if let Some(place) = place_of_left(page.0)
            && let Some(left) = self.followed.get_mut(place)
            && left.page == page.0
        {
            self.left.useful += u32::from(self.faults.wrapping_sub(left.at) <= soon);
            *left = Left::NONE;
        }
        let Some(alone) = self.alone.get(place(page.0)) else {
            return;
        };
        let is_near = page.0.wrapping_sub(alone.first) < u64::from(alone.pages);
        if is_near && self.faults.wrapping_sub(alone.at) <= soon {
            self.stayed_out.useful(page.0);
        }
    }

    /// Notes that a page has left.
    pub fn left(&mut self, page: PageIndex) {
        let Some(place) = place_of_left(page.0) else {
            return;
        };
        if self.followed.is_empty() && self.followed.try_reserve_exact(REMEMBERED).is_ok() {
            self.followed.resize(REMEMBERED, Left::NONE);
        }
        if let Some(left) = self.followed.get_mut(place) {
            self.left.tried(1, LEFT_LATELY);
            *left = Left {
                page: page.0,
                at: self.faults,
            };
        }
    }

    /// True if neighbours of `page` are wanted soon more often than what leaves for them, by so much that their cost
    /// is made up for.
    fn pays(&mut self, page: PageIndex) -> bool {
        let (near, left) = (self.stayed_out.counts(page.0), self.left);
        let (near_tried, left_tried) = (u64::from(near.tried), u64::from(left.tried));
        let gained = u64::from(near.useful) * left_tried;
        let lost = u64::from(left.useful) * near_tried;
        gained * COST >= lost * COST + near_tried * left_tried
    }

    /// Which of `around`, a run that holds `page`, to bring in: all of them, or the page alone.
    pub fn choose(&mut self, page: PageIndex, around: PageRange) -> PageRange {
        let neighbours = around.pages() as u32 - 1;
        if neighbours == 0 {
            return around;
        }
        self.chosen = self.chosen.wrapping_add(1);
        if self.pays(page) && !self.chosen.is_multiple_of(SAMPLE) {
            return around;
        }
        self.stayed_out.tried(page.0, neighbours);
        let first = match around.start == page {
            true => page.0 + 1,
            false => around.start.0,
        };
        let alone = Alone {
            first,
            pages: (around.end.0 - first) as u32,
            at: self.faults,
        };
        self.remember(alone);
        PageRange::one(page)
    }

    fn remember(&mut self, alone: Alone) {
        if self.alone.is_empty() && self.alone.try_reserve_exact(REMEMBERED).is_ok() {
            let none = Alone { pages: 0, ..alone };
            self.alone.resize(REMEMBERED, none);
        }
        if let Some(place) = self.alone.get_mut(place(alone.first)) {
            *place = alone;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELD: u64 = 10_000;

    /// Pages brought in by faults of a program on `pages`, each with the page behind it, as far as
    /// that is wanted; what is here does not fault.
    fn brought(near: &mut Near, pages: impl Iterator<Item = u64>) -> (u64, u64) {
        let mut here = alloc::collections::BTreeSet::new();
        let (mut faults, mut came) = (0, 0);
        for page in pages {
            if here.contains(&page) {
                continue;
            }
            near.faulted(PageIndex(page), HELD);
            let run = near.choose(PageIndex(page), PageRange::new(page, page + 2));
            faults += 1;
            came += run.pages();
            here.extend(run.start.0..run.end.0);
        }
        (faults, came)
    }

    #[test]
    fn neighbours_that_are_used_come_along() {
        let starts = (0..4000u64).map(|i| i * 7919 % 4000 * 10);
        let pairs = starts.flat_map(|page| [page, page + 1]);
        let (faults, _) = brought(&mut Near::new(), pairs);
        assert!(faults < 4300, "{faults} faults for 4000 pairs");
    }

    #[test]
    fn neighbours_that_are_not_used_stay_out() {
        let pages = (0..4000u64).map(|i| i * 7919 % 4000 * 10);
        let (faults, came) = brought(&mut Near::new(), pages);
        assert_eq!(faults, 4000);
        // They lie in three parts, and each is known from 23 of 368.
        assert!(came < 4000 + 3 * 368 + 50, "{came} pages came for 4000");
    }

    /// Pages that come for a program that uses two of three neighbours soon. Of what leaves, `leaves` says what.
    fn come_where(leaves: impl Fn(u64) -> bool) -> u64 {
        let mut near = Near::new();
        let mut came = 0;
        for page in (0..20_000u64).map(|i| i * 7919 % 1000 * 2) {
            for page in [page, page + 1] {
                if leaves(page) {
                    near.left(PageIndex(page));
                }
            }
            near.faulted(PageIndex(page), HELD);
            let run = near.choose(PageIndex(page), PageRange::new(page, page + 2));
            came += run.pages();
            if page % 3 != 0 && run.pages() == 1 {
                near.faulted(PageIndex(page + 1), HELD);
            }
        }
        came
    }

    #[test]
    fn neighbours_wanted_no_sooner_than_what_leaves_stay_out() {
        let (never, at_once) = (come_where(|_| false), come_where(|page| page % 2 == 0));
        assert!(never > 38_000, "{never} pages came for 20000");
        assert!(at_once < 26_000, "{at_once} pages came for 20000");
    }

    #[test]
    fn each_part_is_judged_by_itself() {
        let far = 1 << 20;
        let single = (0..4000u64).map(|i| far + i * 7919 % 4000 * 4);
        let pairs = (0..4000u64).map(|i| i * 7919 % 4000 * 4);
        let both = single.zip(pairs).flat_map(|(one, two)| [one, two, two + 1]);
        let (faults, came) = brought(&mut Near::new(), both);
        assert!(faults < 9000, "{faults} faults");
        assert!(came < 13_500, "{came} pages came for 12000");
    }
}
