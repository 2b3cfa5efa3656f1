//! How long something takes: counts in buckets that grow by a quarter.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

/// Of each doubling.
const PARTS: u64 = 4;
/// What is shorter is in the first bucket.
const LEAST_NS: u64 = 256;
/// From 256 ns to more than a minute.
const BUCKETS: usize = 28 * PARTS as usize;

/// Times, counted without a lock, in 450 bytes.
pub struct Histogram([AtomicU32; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([const { AtomicU32::new(0) }; BUCKETS])
    }
}

impl Histogram {
    /// Counts one that took so long.
    pub fn add(&self, ns: u64) {
        self.0[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn counts(&self) -> Times {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        let counts = (0u8..).zip(counts).filter(|(_, count)| *count > 0);
        Times(counts.collect())
    }
}

fn bucket_of(ns: u64) -> usize {
    let ns = ns.max(LEAST_NS);
    let doubling = ns.ilog2() - LEAST_NS.ilog2();
    let part = (ns >> doubling) * PARTS / LEAST_NS - PARTS;
    let bucket = u64::from(doubling) * PARTS + part;
    (bucket as usize).min(BUCKETS - 1)
}

/// The middle of a bucket.
fn middle_ns(bucket: u8) -> u64 {
    let (doubling, part) = (u64::from(bucket) / PARTS, u64::from(bucket) % PARTS);
    (LEAST_NS * (2 * (PARTS + part) + 1) / (2 * PARTS)) << doubling
}

/// How often something took how long: the numbers of buckets, in order, with their counts. A
/// bucket is a quarter of a doubling wide, so that what is said of times is right to 13%.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times(pub Vec<(u8, u32)>);

impl Times {
    /// How many.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| u64::from(*count)).sum()
    }

    /// The time in nanoseconds below which a `part` of them lies, 0.5 for the median. `None` when
    /// there are none.
    pub fn quantile_ns(&self, part: f64) -> Option<u64> {
        let place = self.count() as f64 * part;
        let whole = place as u64;
        let wanted = (whole + u64::from(place > whole as f64)).max(1);
        let mut seen = 0;
        let reached = self.0.iter().find(|(_, count)| {
            seen += u64::from(*count);
            seen >= wanted
        });
        reached.map(|(bucket, _)| middle_ns(*bucket))
    }

    /// Those since `before`, of the same thing. Counts start again after 4 billion: then some are
    /// missing once.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let had = |bucket: u8| {
            let found = before.0.iter().find(|(other, _)| *other == bucket);
            found.map_or(0, |(_, count)| *count)
        };
        let grown = self
            .0
            .iter()
            .map(|(bucket, count)| (*bucket, count.saturating_sub(had(*bucket))));
        Self(grown.filter(|(_, count)| *count > 0).collect())
    }

    /// How many took less than each power of four microseconds, from 1 us to 17 s, with that in
    /// nanoseconds.
    pub fn below_powers(&self) -> impl Iterator<Item = (u64, u64)> {
        (0..13).map(|power| {
            let limit_ns = 1000 << (2 * power);
            let below = self
                .0
                .iter()
                .filter(|(bucket, _)| middle_ns(*bucket) < limit_ns);
            let count = below.map(|(_, count)| u64::from(*count)).sum();
            (limit_ns, count)
        })
    }

    /// The sum of all, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        let each = self.0.iter();
        each.map(|(bucket, count)| middle_ns(*bucket).saturating_mul(u64::from(*count)))
            .fold(0, u64::saturating_add)
    }

    /// Both together.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut all = BTreeMap::new();
        for (bucket, count) in self.0.iter().chain(&other.0) {
            let sum: &mut u32 = all.entry(*bucket).or_default();
            *sum = sum.saturating_add(*count);
        }
        Self(all.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_time_is_right_to_an_eighth() {
        for ns in (0..28).map(|n| 300u64 << n).chain([256, 1000, 12_345_678]) {
            let times = Histogram::default();
            times.add(ns);
            let said = times.counts().quantile_ns(0.5).unwrap();
            assert!(said.abs_diff(ns) * 100 <= ns * 13, "{ns} became {said}");
        }
        let ends = Histogram::default();
        ends.add(0);
        ends.add(u64::MAX);
        assert_eq!(ends.counts().count(), 2);
    }

    #[test]
    fn quantiles_and_differences_are_of_what_was_added() {
        let times = Histogram::default();
        (0..98).for_each(|_| times.add(4_000));
        let before = times.counts();
        (0..2).for_each(|_| times.add(1_000_000));
        let all = times.counts();
        let near = |said: Option<u64>, ns: u64| said.unwrap().abs_diff(ns) * 8 <= ns;
        assert!(near(all.quantile_ns(0.5), 4_000) && near(all.quantile_ns(0.99), 1_000_000));
        assert_eq!(
            (all.since(&before).count(), all.and(&before).count()),
            (2, 198)
        );
        assert!(near(all.since(&before).quantile_ns(0.5), 1_000_000));
        assert_eq!(Times::default().quantile_ns(0.5), None);
        let powers: Vec<u64> = all.below_powers().map(|(_, count)| count).collect();
        assert_eq!(
            powers[..7],
            [0, 98, 98, 98, 98, 100, 100],
            "4 us are below 4.1"
        );
        assert!(near(Some(all.sum_ns()), 98 * 4_000 + 2_000_000));
    }
}
