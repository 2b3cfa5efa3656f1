//! Some of the pages of a cluster, a bit for each.

use crate::{CLUSTER_PAGES, PageIndex, PageRange};

/// The numbers of the set bits.
pub fn bits(mask: u16) -> impl Iterator<Item = u64> {
    (0..CLUSTER_PAGES).filter(move |bit| mask >> bit & 1 == 1)
}

/// The runs of set bits, as pages of the cluster that begins with `first`.
pub fn runs(first: PageIndex, mask: u16) -> impl Iterator<Item = PageRange> {
    let mut rest = bits(mask).peekable();
    core::iter::from_fn(move || {
        let start = rest.next()?;
        let mut end = start + 1;
        while rest.next_if_eq(&end).is_some() {
            end += 1;
        }
        Some(PageRange::new(first.0 + start, first.0 + end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_what_is_set_together() {
        for mask in 0..=u16::MAX {
            let runs = || runs(PageIndex(160), mask);
            let pages: u64 = runs().map(|run| run.pages()).sum();
            assert_eq!(pages, u64::from(mask.count_ones()), "{mask:b}");
            let mut end = 0;
            for run in runs() {
                assert!(run.start.0 > end, "{mask:b}: {run:?}");
                assert!(run.iter().all(|page| mask >> (page.0 - 160) & 1 == 1));
                end = run.end.0;
            }
        }
    }
}
