//! Hosts that are cut from one another while the store keeps both: which of them leaves.
//!
//! Each host writes down which others it has not heard of for long. Two of which one says so of the
//! other are *apart*. Of two that are apart, the one leaves that is apart from more hosts, or has come
//! later when both are from as many. So one that is cut from all others leaves, and not they; of two
//! hosts that are alone, the younger. Every host decides from the store alone whether it is itself the
//! one, and removes nobody: who leaves stops first, as any host does that leaves. Of those that are
//! apart, one at least leaves, and of two that are, never both at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::clock::Moment;
use crate::view::Incarnation;

/// Of whom each host has not heard.
pub(crate) type Unheard = BTreeMap<Incarnation, BTreeSet<Incarnation>>;

/// Who is apart from whom, each way.
fn pairs(unheard: &Unheard, present: &BTreeSet<Incarnation>) -> Unheard {
    let mut apart = Unheard::new();
    for (by, of) in unheard.iter().filter(|(by, _)| present.contains(by)) {
        for of in of.iter().filter(|of| *of != by && present.contains(of)) {
            apart.entry(*by).or_default().insert(*of);
            apart.entry(*of).or_default().insert(*by);
        }
    }
    apart
}

/// From whom a host is apart, if it is the one that leaves. `present` are the members whose keys are
/// there: those of others are on their way out as it is.
fn leaves_for(
    me: Incarnation,
    unheard: &Unheard,
    present: &BTreeSet<Incarnation>,
) -> Option<BTreeSet<Incarnation>> {
    let apart = pairs(unheard, present);
    let rank = |host: Incarnation| (apart.get(&host).map_or(0, BTreeSet::len), host);
    let from = apart.get(&me)?;
    let is_it = from.iter().all(|other| rank(me) > rank(*other));
    is_it.then(|| from.clone())
}

/// Whether this host is the one that leaves, and since when without a break.
#[derive(Clone, Debug, Default)]
pub(crate) struct Apart {
    since: Option<(Moment, BTreeSet<Incarnation>)>,
}

impl Apart {
    /// The store says something else.
    pub(crate) fn told(
        &mut self,
        me: Incarnation,
        unheard: &Unheard,
        present: &BTreeSet<Incarnation>,
        now: Moment,
    ) {
        self.since = leaves_for(me, unheard, present).map(|from| {
            let since = self.since.as_ref().map_or(now, |(since, _)| *since);
            (since, from)
        });
    }

    /// Whom it leaves for, when that is so for long enough for all to have written what they know.
    pub(crate) fn leaves(&self, now: Moment, settled: Duration) -> Option<&BTreeSet<Incarnation>> {
        let (since, from) = self.since.as_ref()?;
        (now >= since.plus(settled)).then_some(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(numbers: &[u64]) -> BTreeSet<Incarnation> {
        numbers.iter().copied().map(Incarnation).collect()
    }

    /// Who leaves, of hosts 1 to 5, if these say that they have not heard of those.
    fn leave(said: &[(u64, &[u64])], present: &[u64]) -> Vec<u64> {
        let said = said.iter().map(|(by, of)| (Incarnation(*by), hosts(of)));
        let (said, present) = (said.collect(), hosts(present));
        let leaves = |me: &u64| leaves_for(Incarnation(*me), &said, &present).is_some();
        (1..=5).filter(leaves).collect()
    }

    const ALL: &[u64] = &[1, 2, 3, 4, 5];

    #[test]
    fn of_two_the_younger_leaves_whoever_says_it() {
        assert_eq!(leave(&[(1, &[2])], ALL), [2]);
        assert_eq!(leave(&[(2, &[1])], ALL), [2]);
        assert_eq!(leave(&[(2, &[1]), (1, &[2])], ALL), [2]);
        assert_eq!(leave(&[], ALL), [0; 0]);
    }

    #[test]
    fn one_that_is_cut_from_all_leaves_also_if_it_is_the_eldest() {
        assert_eq!(leave(&[(1, &[2, 3, 4, 5])], ALL), [1]);
        let each: &[u64] = &[1];
        assert_eq!(
            leave(&[(2, each), (3, each), (4, each), (5, each)], ALL),
            [1]
        );
    }

    #[test]
    fn of_two_halves_hosts_leave_until_one_is_left() {
        let (mut present, mut rounds) = (ALL.to_vec(), 0);
        loop {
            let said: Vec<(u64, &[u64])> = [1, 2].map(|by| (by, &[3, 4, 5][..])).to_vec();
            let gone = leave(&said, &present);
            if gone.is_empty() {
                break;
            }
            present.retain(|host| !gone.contains(host));
            rounds += 1;
        }
        assert_eq!((present, rounds), (vec![3, 4, 5], 1));
    }

    #[test]
    fn what_is_said_of_or_by_those_who_are_gone_counts_for_nothing() {
        assert_eq!(leave(&[(1, &[2])], &[1, 3]), [0; 0]);
        assert_eq!(leave(&[(2, &[1])], &[1, 3]), [0; 0]);
        assert_eq!(leave(&[(1, &[1, 9])], ALL), [0; 0]);
    }

    #[test]
    fn two_that_are_apart_never_leave_both_and_some_host_leaves() {
        // Every graph of four hosts.
        let all: Vec<(u64, u64)> = (1..=4)
            .flat_map(|a| (a + 1..=4).map(move |b| (a, b)))
            .collect();
        for graph in 1_u32..1 << all.len() {
            let pairs = all.iter().enumerate();
            let pairs: Vec<_> = pairs.filter(|(at, _)| graph >> at & 1 == 1).collect();
            let lists: Vec<(u64, [u64; 1])> = pairs.iter().map(|(_, (a, b))| (*a, [*b])).collect();
            let mut said = Unheard::new();
            for (by, of) in &lists {
                said.entry(Incarnation(*by)).or_default().extend(hosts(of));
            }
            let present = hosts(ALL);
            let leaves = |me: u64| leaves_for(Incarnation(me), &said, &present).is_some();
            assert!((1..=4).any(leaves), "{said:?}");
            assert!(
                lists.iter().all(|(a, [b])| !(leaves(*a) && leaves(*b))),
                "{said:?}"
            );
        }
    }

    #[test]
    fn it_leaves_only_when_that_is_so_for_a_while() {
        let at = |ms: u64| Moment::from_ns((1000 + ms) * 1_000_000);
        let (me, settled) = (Incarnation(2), Duration::from_millis(100));
        let said = Unheard::from([(Incarnation(1), hosts(&[2]))]);
        let present = hosts(&[1, 2]);
        let mut apart = Apart::default();
        apart.told(me, &said, &present, at(0));
        apart.told(me, &said, &present, at(50));
        assert_eq!(apart.leaves(at(99), settled), None);
        assert_eq!(apart.leaves(at(100), settled), Some(&hosts(&[1])));
        apart.told(me, &Unheard::new(), &present, at(120));
        apart.told(me, &said, &present, at(130));
        assert_eq!(apart.leaves(at(229), settled), None);
    }
}
