//! How large the compressed tier should be.
//!
//! Memory that the tier takes is missing for pages in use. A segment more or less moves two
//! borders: that between pages in use and the tier, and that between the tier and the paging files.
//! So the tier grows while what it saves at its far border (reads from a paging file) is more than
//! what it costs at its near one (faults on pages that would still be in use), and shrinks while it
//! is less. Both are measured, in nanoseconds a page of the zone at that border:
//!
//! - what comes back from the youngest quarter of the tier would not have left without it;
//! - what comes back from the oldest quarter, and from segments that left the tier a quarter's time
//!   ago, is what the far border decides about;
//! - a page from a paging file that is dropped, being clean, never goes through the tier. A sample
//!   of those is remembered: what is read again after few other pages came would have stayed here.
//!
//! Pure: it is told what happened, and reads no clock.

use alloc::vec::Vec;

/// What a fault costs besides what the pager does, ns.
const FAULT_NS: u64 = 12_000;
/// What a page costs on its way into the tier and, later, out of it, ns.
const PACK_NS: u64 = 12_000;
/// Requests that something is concluded from.
const ENOUGH: u64 = 32;
/// The tier grows when what it saves is more than its cost times this: the next segment saves less.
const GROW_AT: f64 = 1.25;
/// It shrinks when its cost times this is more than what it saves.
const SHRINK_AT: f64 = 0.9;
/// At so many, times are halved: what was long ago counts less.
const LATELY: u64 = 1024;
/// Pages from paging files that are remembered.
const REMEMBERED: usize = 2048;

/// Where a page came from, by the age of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// From the tier.
    Tier {
        /// The segment's age.
        age: u64,
    },
    /// From a paging file.
    File {
        /// The segment's age.
        age: u64,
    },
}

/// The zones at both borders of the tier, by the ages of segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Zones {
    /// Segments from this age on are the youngest quarter.
    pub(crate) near: u64,
    /// Segments below this age are the oldest quarter.
    pub(crate) far: u64,
    /// Segments in paging files from this age on left the tier a moment ago.
    pub(crate) gone: u64,
}

impl Zones {
    /// Those of a tier whose oldest segment is of age `oldest`; `next` is the age of the next.
    pub(crate) fn of(oldest: u64, next: u64) -> Self {
        let quarter = ((next - oldest) / 4).max(1);
        Self {
            near: next - quarter,
            far: oldest + quarter,
            gone: oldest.saturating_sub(quarter),
        }
    }
}

/// Pages that lie in each zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pages {
    /// In the youngest quarter.
    pub(crate) near: u64,
    /// In the oldest quarter and in what left a moment ago.
    pub(crate) far: u64,
}

/// Sizes of a task, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Pages in use.
    pub(crate) resident: u64,
    /// Pages that the tier's memory would hold as they are.
    pub(crate) tier: u64,
    /// Pages that it does hold, compressed.
    pub(crate) packed: u64,
    /// Pages that came in since the task began.
    pub(crate) came: u64,
}

/// What to do about the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Grow,
    Stay,
    Shrink,
}

/// A sum of times and of how many they are.
#[derive(Clone, Copy, Default)]
struct Times {
    ns: u64,
    count: u64,
}

impl Times {
    fn add(&mut self, ns: u64) {
        self.ns += ns;
        self.count += 1;
    }

    fn mean(&self, unknown: u64) -> u64 {
        self.ns.checked_div(self.count).unwrap_or(unknown)
    }

    fn halve(&mut self) {
        self.ns /= 2;
        self.count /= 2;
    }
}

/// A page that came clean from a paging file: which, and how many pages had come before it.
#[derive(Clone, Copy, Default)]
struct Came {
    page: u64,
    at: u64,
}

/// What was seen at both borders.
pub(crate) struct Sizing {
    zones: Zones,
    tier: Times,
    files: Times,
    near: u64,
    far: u64,
    /// Pages of the sample that were read again although they would have stayed without the tier.
    dropped: u64,
    /// One page in two to this is in the sample.
    sample: u32,
    /// Empty until the first comes.
    came: Vec<Came>,
}

impl Sizing {
    pub(crate) const fn new() -> Self {
        let times = Times { ns: 0, count: 0 };
        Self {
            zones: Zones {
                near: 0,
                far: 0,
                gone: 0,
            },
            tier: times,
            files: times,
            near: 0,
            far: 0,
            dropped: 0,
            sample: 0,
            came: Vec::new(),
        }
    }

    /// A fault was waiting for a page that came from there; it took so long, if that was measured.
    pub(crate) fn came_from(&mut self, from: From, ns: Option<u64>) {
        let times = match from {
            From::Tier { age } => {
                self.near += u64::from(age >= self.zones.near);
                self.far += u64::from(age < self.zones.far);
                &mut self.tier
            }
            From::File { age } => {
                self.far += u64::from(self.zones.gone <= age && age < self.zones.far);
                &mut self.files
            }
        };
        if let Some(ns) = ns {
            times.add(ns);
        }
        if times.count == LATELY {
            times.halve();
        }
    }

    /// `page` is read from a paging file, and stays there.
    pub(crate) fn read(&mut self, page: u64, sizes: impl FnOnce() -> Sizes) {
        let hash = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        if hash & ((1 << self.sample) - 1) != 0 {
            return;
        }
        let Sizes {
            resident,
            tier,
            came: at,
            ..
        } = sizes();
        let shift = sample_shift(resident + tier);
        self.sample = shift;
        if hash & ((1 << shift) - 1) != 0 {
            return;
        }
        if self.came.is_empty() {
            if self.came.try_reserve_exact(REMEMBERED).is_err() {
                return;
            }
            self.came.resize(REMEMBERED, Came::default());
        }
        let place = &mut self.came[(hash >> shift) as usize % REMEMBERED];
        let since = at - place.at.min(at);
        let would_have_stayed = (resident / 4 * 3..resident + tier / 4).contains(&since);
        if place.page == page && place.at != 0 && would_have_stayed {
            self.dropped += 1 << shift;
        }
        *place = Came { page, at };
    }

    /// The zones that hold now.
    pub(crate) fn zones(&self) -> Zones {
        self.zones
    }

    /// What the size should do now, when so many pages lie in the zones. `zones` hold from now on.
    pub(crate) fn turn(&mut self, pages: Pages, zones: Zones, sizes: Sizes) -> Change {
        let Sizes {
            resident,
            tier,
            packed,
            ..
        } = sizes;
        self.zones = zones;
        if self.near + self.far + self.dropped < ENOUGH {
            return Change::Stay;
        }
        let tier_ns = self.tier.mean(3_000) + FAULT_NS + PACK_NS;
        let file_ns = self.files.mean(80_000) + FAULT_NS;
        let a_page = |ns: u64, pages: u64| ns as f64 / pages.max(1) as f64;
        let cost = a_page(self.near * tier_ns, pages.near)
            + a_page(self.dropped * file_ns, (resident + tier) / 4);
        // Memory for one page holds so many more when it is the tier's.
        let more = packed.max(tier) as f64 / tier.max(1) as f64 - 1.0;
        let saved = file_ns.saturating_sub(tier_ns);
        let gain = a_page(self.far * saved, pages.far) * more;
        // What was long ago counts less.
        for count in [&mut self.near, &mut self.far, &mut self.dropped] {
            *count = *count * 3 / 4;
        }
        if gain > cost * GROW_AT {
            Change::Grow
        } else if cost * SHRINK_AT > gain {
            Change::Shrink
        } else {
            Change::Stay
        }
    }
}

/// One page in two to this is remembered, so that those of all memory find room.
fn sample_shift(pages: u64) -> u32 {
    (pages / (REMEMBERED as u64 / 2)).max(1).ilog2() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONES: Zones = Zones {
        near: 90,
        far: 20,
        gone: 10,
    };
    const PAGES: Pages = Pages {
        near: 1000,
        far: 1000,
    };
    /// A tier of 16 MiB that holds 32 MiB, beside 32 MiB in use.
    const SIZES: Sizes = Sizes {
        resident: 8192,
        tier: 4096,
        packed: 8192,
        came: 0,
    };
    const YOUNG: From = From::Tier { age: 95 };
    const OLD: From = From::Tier { age: 15 };
    const GONE: From = From::File { age: 12 };

    /// What the size does after so many requests of each kind, tier and disk as fast as usual.
    fn after(requests: &[(From, u64)], sizes: Sizes) -> Change {
        let mut sizing = Sizing::new();
        sizing.turn(PAGES, ZONES, sizes);
        for (from, count) in requests {
            let ns = match from {
                From::Tier { .. } => 3_000,
                From::File { .. } => 80_000,
            };
            (0..*count).for_each(|_| sizing.came_from(*from, Some(ns)));
        }
        sizing.turn(PAGES, ZONES, sizes)
    }

    #[test]
    fn nothing_is_concluded_from_nothing() {
        assert_eq!(after(&[], SIZES), Change::Stay);
        assert_eq!(after(&[(YOUNG, 7)], SIZES), Change::Stay);
        let old_files = From::File { age: 3 };
        assert_eq!(after(&[(old_files, 1000)], SIZES), Change::Stay);
    }

    #[test]
    fn a_tier_whose_youngest_pages_come_back_shrinks() {
        assert_eq!(after(&[(YOUNG, 100), (OLD, 5)], SIZES), Change::Shrink);
    }

    #[test]
    fn a_tier_grows_while_its_oldest_pages_or_those_that_left_it_come_back() {
        assert_eq!(after(&[(YOUNG, 10), (OLD, 50)], SIZES), Change::Grow);
        assert_eq!(after(&[(YOUNG, 10), (GONE, 50)], SIZES), Change::Grow);
    }

    #[test]
    fn what_hardly_compresses_gets_no_memory() {
        let hardly = Sizes {
            packed: SIZES.tier + 100,
            ..SIZES
        };
        assert_eq!(after(&[(YOUNG, 50), (OLD, 50)], hardly), Change::Shrink);
        assert_eq!(after(&[(YOUNG, 50), (OLD, 50)], SIZES), Change::Grow);
    }

    #[test]
    fn clean_pages_that_are_read_again_and_again_want_the_memory() {
        let mut sizing = Sizing::new();
        sizing.turn(PAGES, ZONES, SIZES);
        let mut came = 0;
        // One page more than there is room for, in turns.
        for _ in 0..20 {
            for page in 0..SIZES.resident + 100 {
                came += 1;
                sizing.read(page, || Sizes { came, ..SIZES });
            }
        }
        assert_eq!(sizing.turn(PAGES, ZONES, SIZES), Change::Shrink);
    }

    #[test]
    fn clean_pages_that_would_not_fit_anyhow_want_nothing() {
        let mut sizing = Sizing::new();
        sizing.turn(PAGES, ZONES, SIZES);
        let mut came = 0;
        for _ in 0..20 {
            for page in 0..SIZES.resident + SIZES.tier {
                came += 1;
                sizing.read(page, || Sizes { came, ..SIZES });
            }
        }
        assert_eq!(sizing.turn(PAGES, ZONES, SIZES), Change::Stay);
    }
}
