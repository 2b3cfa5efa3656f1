//! Pages of temporary memory that are likely to be written soon after they came in.
//!
//! A page that comes from a paging file can be mapped as a clean copy, which is dropped for nothing
//! later and costs one more fault when it is written; or as the only one, which costs a page-out
//! when it leaves. Which of both is cheaper depends on the program: so it is counted, for each
//! neighbourhood of 16 MiB, how many of the pages that came in clean are written.

use core::sync::atomic::{AtomicU64, Ordering};

use farpage_object::PageIndex;

const NEIGHBOURHOODS: usize = 256;
/// Pages of one neighbourhood, as a power of two.
const NEIGHBOURHOOD_BITS: u32 = 12;
/// Pages that must have come in before anything is concluded.
const KNOWN: u64 = 16;
/// Above this many the counts are halved: what was long ago counts less.
const LATELY: u64 = 1024;
/// A fault on a clean page costs about twice what a page-out does.
const WRITTEN_OF_8: u64 = 3;
/// One in so many goes on being brought in clean, to see whether it still is written.
const SAMPLE: u64 = 16;

/// What came in clean, and what of that was written: counts of 24 bits each, and how often a guess
/// was asked for.
pub(crate) struct Rewrites {
    counts: [AtomicU64; NEIGHBOURHOODS],
}

#[derive(Clone, Copy)]
struct Counts {
    came: u64,
    written: u64,
    asked: u64,
}

impl Counts {
    fn unpack(word: u64) -> Self {
        Self {
            came: word & 0xff_ffff,
            written: word >> 24 & 0xff_ffff,
            asked: word >> 48,
        }
    }

    fn pack(self) -> u64 {
        self.came | self.written << 24 | self.asked << 48
    }
}

impl Rewrites {
    pub(crate) const fn new() -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; NEIGHBOURHOODS],
        }
    }

    /// `pages` pages from `page` on came in clean.
    pub(crate) fn came(&self, page: PageIndex, pages: u64) {
        self.change(page, |counts| counts.came += pages.min(LATELY));
    }

    /// `pages` pages from `page` on are written for the first time since they came in clean.
    pub(crate) fn written(&self, page: PageIndex, pages: u64) {
        self.change(page, |counts| counts.written += pages.min(LATELY));
    }

    /// True when a page that comes in now will probably be written before it leaves.
    pub(crate) fn expected(&self, page: PageIndex) -> bool {
        let counts = Counts::unpack(self.word(page).load(Ordering::Relaxed));
        if counts.came < KNOWN || counts.written * 8 < counts.came * WRITTEN_OF_8 {
            return false;
        }
        self.change(page, |counts| counts.asked = (counts.asked + 1) % SAMPLE);
        counts.asked != 0
    }

    fn word(&self, page: PageIndex) -> &AtomicU64 {
        let at = (page.0 >> NEIGHBOURHOOD_BITS) as usize;
        &self.counts[(at ^ at >> 8 ^ at >> 16) % NEIGHBOURHOODS]
    }

    /// A change that is lost to another thread's does no harm.
    fn change(&self, page: PageIndex, change: impl FnOnce(&mut Counts)) {
        let word = self.word(page);
        let mut counts = Counts::unpack(word.load(Ordering::Relaxed));
        change(&mut counts);
        if counts.came > LATELY {
            counts.came /= 2;
            counts.written /= 2;
        }
        counts.written = counts.written.min(counts.came);
        word.store(counts.pack(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageIndex = PageIndex(0x7_f000_0000);

    #[test]
    fn what_was_written_after_it_came_is_expected_to_be_again() {
        let rewrites = Rewrites::new();
        assert!(!rewrites.expected(PAGE));
        for _ in 0..KNOWN {
            rewrites.came(PAGE, 1);
            rewrites.written(PAGE, 1);
        }
        let expected = (0..160).filter(|_| rewrites.expected(PAGE)).count();
        assert_eq!(expected, 150, "one in sixteen is a sample");
    }

    #[test]
    fn what_is_only_read_stays_clean() {
        let rewrites = Rewrites::new();
        for page in 0..10_000 {
            rewrites.came(PageIndex(PAGE.0 + page % 4096), 1);
            if page % 4 == 0 {
                rewrites.written(PAGE, 1);
            }
            assert!(!rewrites.expected(PAGE));
        }
    }

    #[test]
    fn a_program_that_changes_its_ways_is_followed() {
        let rewrites = Rewrites::new();
        for _ in 0..100 {
            rewrites.came(PAGE, 16);
            rewrites.written(PAGE, 16);
        }
        let mut clean = 0;
        for asked in 0.. {
            if !rewrites.expected(PAGE) {
                rewrites.came(PAGE, 16);
                clean += 1;
                if clean == 1000 {
                    assert!(asked < 4000, "asked {asked} times");
                    return;
                }
            }
        }
    }
}
