//! Sets of units, which mostly lie together.

use std::collections::BTreeMap;

/// A set of units: so many from each first one, none of which touches another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Units(BTreeMap<u64, u64>);

impl Units {
    pub(crate) fn add(&mut self, unit: u64) {
        self.add_all(unit, 1);
    }

    /// Adds `count` units from `first` on.
    pub(crate) fn add_all(&mut self, first: u64, count: u64) {
        let (mut first, mut end) = (first, first + count);
        while let Some((other, more)) = self.0.range(..=end).next_back().map(|(a, b)| (*a, *b)) {
            if other + more < first {
                break;
            }
            self.0.remove(&other);
            (first, end) = (first.min(other), end.max(other + more));
        }
        self.0.insert(first, end - first);
    }

    pub(crate) fn has(&self, unit: u64) -> bool {
        let before = self.0.range(..=unit).next_back();
        before.is_some_and(|(first, count)| unit - first < *count)
    }

    pub(crate) fn runs(&self) -> impl ExactSizeIterator<Item = (u64, u64)> {
        self.0.iter().map(|(first, count)| (*first, *count))
    }

    /// As bytes; what is not made so is refused.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let all = self.runs().flat_map(|(first, count)| [first, count]);
        all.flat_map(u64::to_le_bytes).collect()
    }

    /// The set of these bytes, of units before `end`.
    pub(crate) fn of(bytes: &[u8], end: u64) -> Option<Self> {
        let (runs, rest) = bytes.as_chunks::<16>();
        let mut all = Self::default();
        for run in runs {
            let (words, _) = run.as_chunks();
            let [first, count] = [words[0], words[1]].map(u64::from_le_bytes);
            if count == 0 || first.checked_add(count).is_none_or(|after| after > end) {
                return None;
            }
            all.add_all(first, count);
        }
        rest.is_empty().then_some(all)
    }
}

impl FromIterator<u64> for Units {
    fn from_iter<T: IntoIterator<Item = u64>>(units: T) -> Self {
        let mut all = Self::default();
        units.into_iter().for_each(|unit| all.add(unit));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_that_touch_are_one_run() {
        let mut all = Units::from_iter([7, 3, 5, 4]);
        assert!(all.runs().eq([(3, 3), (7, 1)]));
        all.add_all(4, 3);
        assert!(all.runs().eq([(3, 5)]));
        all.add_all(0, 100);
        all.add(99);
        assert!(all.runs().eq([(0, 100)]));
        assert!(all.has(0) && all.has(99) && !all.has(100));
    }

    #[test]
    fn they_come_back_from_bytes_and_nothing_else_does() {
        let all = Units::from_iter([1, 2, 9]);
        assert_eq!(Units::of(&all.bytes(), 10), Some(all.clone()));
        assert_eq!(Units::of(&all.bytes(), 9), None, "beyond the end");
        assert_eq!(Units::of(&all.bytes()[1..], 10), None);
        assert_eq!(Units::of(&[0; 16], 10), None, "no units");
        assert_eq!(Units::of(&[0xff; 16], u64::MAX), None);
    }
}
