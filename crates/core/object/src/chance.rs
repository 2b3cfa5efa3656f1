//! Whether clean pages get a last chance.
//!
//! A dirty page lies aside for a while on its way out, and comes back cheaply when it is touched. A
//! clean one could be dropped at once. To move it aside instead costs little, and saves a page-in if
//! it is wanted soon. That is worth it where enough of them come back: this is counted, for each
//! part of the address space for itself.

use crate::parts::{Counts, Parts};

/// Moving aside costs about this part of a page-in.
const ONE_IN: u32 = 24;
/// Where it is not worth it, one cluster in so many gets a chance all the same.
const SAMPLE: u32 = 16;
/// Chances that are counted in one part.
const LATELY: u32 = 4096;
/// Counts to begin with: where nothing is known, clean pages get a chance.
const BEFORE: Counts = Counts {
    tried: 64,
    useful: 8,
};

/// What is known of chances that were given.
#[derive(Clone)]
pub(crate) struct Chances {
    /// Clean pages that were moved aside, and those of them that came back.
    given: Parts<LATELY>,
    asked: u32,
}

impl Chances {
    pub(crate) const fn new() -> Self {
        Self {
            given: Parts::new(BEFORE),
            asked: 0,
        }
    }

    /// True when the `count` clean pages that are about to leave with `page` get one.
    pub(crate) fn gives(&mut self, page: u64, count: u32) -> bool {
        self.asked = self.asked.wrapping_add(1);
        let pays = self.given.pays(page, ONE_IN);
        if !pays && !self.asked.is_multiple_of(SAMPLE) {
            return false;
        }
        self.given.tried(page, count);
        true
    }

    /// A page that had got one came back.
    pub(crate) fn taken(&mut self, page: u64) {
        self.given.useful(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 1000 clusters of 8 pages, how many get a chance where one page in `one_in` comes back.
    fn given(one_in: u32) -> u32 {
        let mut chances = Chances::new();
        let (mut given, mut pages) = (0, 0);
        for _ in 0..1000 {
            if chances.gives(7, 8) {
                given += 1;
                for _ in 0..8 {
                    pages += 1;
                    if pages % one_in == 0 {
                        chances.taken(7);
                    }
                }
            }
        }
        given
    }

    #[test]
    fn pages_that_come_back_get_one() {
        assert_eq!(given(8), 1000);
    }

    #[test]
    fn pages_that_never_come_back_get_one_now_and_then() {
        let given = given(u32::MAX);
        assert!((50..200).contains(&given), "{given}");
    }

    #[test]
    fn each_part_is_judged_by_itself() {
        let mut chances = Chances::new();
        (0..100).for_each(|_| {
            chances.gives(0, 16);
        });
        assert!(!(0..8).all(|_| chances.gives(0, 16)));
        assert!((0..8).all(|_| chances.gives(1 << 20, 1)));
    }
}
