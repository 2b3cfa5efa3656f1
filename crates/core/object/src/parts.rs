//! What is tried in each part of the address space, and how often it is of use there.

/// Parts that are told apart.
const PARTS: usize = 64;
/// Pages of one part, as a power of two: 64 MiB.
const PART_BITS: u32 = 14;

/// What was tried, and how much of that was of use.
#[derive(Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) tried: u32,
    pub(crate) useful: u32,
}

impl Counts {
    /// `count` more were tried. Above `lately` all is halved: what was long ago counts less.
    pub(crate) fn tried(&mut self, count: u32, lately: u32) {
        self.tried += count;
        if self.tried > lately {
            self.tried /= 2;
            self.useful /= 2;
        }
    }
}

/// The counts of all parts, of `LATELY` tries each.
#[derive(Clone)]
pub(crate) struct Parts<const LATELY: u32> {
    counts: [Counts; PARTS],
}

impl<const LATELY: u32> Parts<LATELY> {
    /// Every part begins with `before`.
    pub(crate) const fn new(before: Counts) -> Self {
        Self {
            counts: [before; PARTS],
        }
    }

    /// `count` more were tried where `page` is.
    pub(crate) fn tried(&mut self, page: u64, count: u32) {
        self.part(page).tried(count, LATELY);
    }

    /// One of them was of use.
    pub(crate) fn useful(&mut self, page: u64) {
        self.part(page).useful += 1;
    }

    /// The counts of the part where `page` is.
    pub(crate) fn counts(&mut self, page: u64) -> Counts {
        *self.part(page)
    }

    /// True where at least one in `one_in` is of use.
    pub(crate) fn pays(&mut self, page: u64, one_in: u32) -> bool {
        let counts = self.part(page);
        counts.useful * one_in >= counts.tried
    }

    fn part(&mut self, page: u64) -> &mut Counts {
        let at = page >> PART_BITS;
        &mut self.counts[(at ^ at >> 6 ^ at >> 12) as usize % PARTS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Counts = Counts {
        tried: 0,
        useful: 0,
    };

    #[test]
    fn each_part_is_judged_by_itself() {
        let mut parts = Parts::<100>::new(NOTHING);
        parts.tried(5, 10);
        parts.tried(1 << PART_BITS, 10);
        parts.useful(9);
        assert!(parts.pays(5, 10) && !parts.pays(5, 9));
        assert!(!parts.pays(1 << PART_BITS, 10));
    }

    #[test]
    fn what_was_long_ago_counts_less() {
        let mut parts = Parts::<100>::new(NOTHING);
        parts.tried(0, 100);
        (0..50).for_each(|_| parts.useful(0));
        assert!(parts.pays(0, 2));
        (0..10).for_each(|_| parts.tried(0, 50));
        assert!(!parts.pays(0, 8));
        (0..10).for_each(|_| (0..5).for_each(|_| parts.useful(0)));
        assert!(parts.pays(0, 2));
    }
}
