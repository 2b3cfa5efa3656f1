//! Who may act, and who may be removed from the view: the rule, as a value.
//!
//! A host acts while one of two things holds.
//!
//! - **The store keeps it.** It asked the store to keep its lease, was answered, and since it
//!   *asked*, less than the lease minus a margin has passed.
//! - **Every other member promised.** Hosts ping each other; who answers promises not to remove
//!   the asker from the view for the length of a lease from then on. While a host has such a
//!   promise of *each* other member of its view, less a margin and counted from when it asked, it
//!   goes on without the store, but no longer than [`Times::going_on`] since the store kept it.
//!   Before it counts on promises it had them all once, and wrote a key that says so.
//!
//! A view is one value in the store, replaced by transactions that name the revision they replace.
//! A member `m` of the newest view may remove `y` from it when
//!
//! 1. `y`'s key that goes with its lease is absent: the transaction itself demands it;
//! 2. every promise that `m` gave `y` has run out, and `m` gives none any more until it sees `y`'s
//!    key again, which comes only with a newer view;
//! 3. `m` was pinged by `y`, so `y` knows it and needs its promise; or `m` saw that `y` has not
//!    written that it counts on promises. Else `m` waits from when it saw the key absent
//!    for as long as `y` may go on, which `y` wrote, and an eighth of that, and a lease.
//!
//! **Nobody acts who is not in the newest view.** Say a transaction of `m` that removes `y` is
//! done at time T. By 1 the lease of `y` has run out at T, so what the store said lets `y` act no
//! more; nor will it again, as `y` gets a key only by a transaction that demands that it is in the
//! view. By 2 and 3, either `y` counts on a promise of `m`, and all have run out (a transaction of
//! `m` that is still on its way when `m` sees the key again fails, as it names an older view); or
//! `y` counts on no promise, and did not begin to since, as that demands its key, too; or the time
//! is over for which it goes on without the store. Removal by a chain of views is no way round: `m`
//! is in the view it replaces, and whoever joined after `y` was cut off was never pinged by it and
//! waits.
//!
//! **Partial partitions.** Two members that the store keeps may be cut from one another: each then
//! waits for what the other has. A host that was asked again and again and has not answered for two
//! leases is written down; [`crate::apart`] says who leaves. That is a host of its own will, after
//! another lease: it stops, and then takes itself out of the view. Nothing above changes by it.
//!
//! Trusted are: that transactions are serial, that the store keeps a key for the whole lease after
//! it received what it answered, and that clocks of two hosts do not run apart by more than the
//! margin, a tenth. Not trusted are the order and delay of messages and notices, and that hosts run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::apart::{Apart, Unheard};
use crate::clock::Moment;
use crate::view::Incarnation;

/// Lengths of time. Hosts may have different ones: each tells the others what counts for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Of promises, and what the store is asked for.
    pub(crate) lease: Duration,
    /// How long a host acts at most since the store last kept it.
    pub(crate) going_on: Duration,
}

/// Nobody goes on for longer: a week.
pub(crate) const GOING_ON_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Nobody is promised anything for longer: an hour, as long as leases can be.
const PROMISE_MS_MAX: u64 = 3_600_000;

impl Times {
    /// What a host gives away of each lease: clocks differ.
    pub(crate) fn less_margin(length: Duration) -> Duration {
        length - length / 10
    }

    /// How long a host that has lost its key but pings is waited for: it may be back soon.
    fn patience(&self) -> Duration {
        self.lease * 2
    }

    /// Who has not answered for so long is written down.
    fn silence(&self) -> Duration {
        self.lease * 2
    }

    /// How long a host that never pinged and may go on for so long is waited for.
    fn stranger(&self, going_on: Duration) -> Duration {
        going_on + going_on / 8 + self.lease
    }
}

/// Asks another member for its promise. The shell carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Ping {
    /// Who asks.
    pub from: Incarnation,
    /// Whom.
    pub to: Incarnation,
    /// When, by the asker's clock.
    pub sent: Moment,
    /// For how long.
    pub length_ms: u64,
}

/// A promise: the answer to a [`Ping`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pong {
    /// Who promises.
    pub from: Incarnation,
    /// Whom.
    pub to: Incarnation,
    /// When it was asked, by the asker's clock.
    pub sent: Moment,
    /// For how long.
    pub length_ms: u64,
}

/// Whether a member's key is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Present,
    /// Absent since; it is still given promises.
    Missed(Moment),
    /// Absent since, and given no promise any more.
    Withheld(Moment),
}

/// Another member of the view.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// Until when its promise to this host holds.
    promised: Moment,
    /// When it was first asked of what it has not answered yet.
    asked: Option<Moment>,
    /// Until when this host's promise to it holds.
    given: Moment,
    /// It needs this host's promise, or somebody vouched that it is gone.
    known: bool,
    /// It counts on promises, for so long.
    goes_on: Option<Duration>,
    standing: Standing,
}

/// The rule at one host.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    me: Incarnation,
    times: Times,
    /// When the store was asked for what it answered last.
    asked_store: Moment,
    store_until: Moment,
    /// This host counts on promises.
    goes_on: bool,
    peers: BTreeMap<Incarnation, Peer>,
    apart: Apart,
}

/// What the store says of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// Its key that goes with its lease is there.
    pub(crate) alive: bool,
    /// It counts on promises, for so long.
    pub(crate) goes_on: Option<Duration>,
}

impl Rule {
    /// Of a host that asked the store for its lease at `sent` and got one of this length.
    pub(crate) fn new(me: Incarnation, times: Times, sent: Moment, lease: Duration) -> Self {
        Self {
            me,
            times,
            asked_store: sent,
            store_until: sent.plus(Times::less_margin(lease)),
            goes_on: false,
            peers: BTreeMap::new(),
            apart: Apart::default(),
        }
    }

    /// The store keeps the lease, as it was asked to at `sent`.
    pub(crate) fn kept(&mut self, sent: Moment, lease: Duration) {
        self.asked_store = self.asked_store.max(sent);
        let until = sent.plus(Times::less_margin(lease));
        self.store_until = self.store_until.max(until);
    }

    /// Until when this host may act.
    pub(crate) fn acts_until(&self) -> Moment {
        if !self.goes_on {
            return self.store_until;
        }
        let alone = self.asked_store.plus(self.times.going_on);
        let promised = self.peers.values().map(|peer| peer.promised);
        self.store_until.max(promised.fold(alone, Moment::min))
    }

    /// Whether the key is to be written that says that this host counts on promises: it has all.
    pub(crate) fn could_go_on(&self, now: Moment) -> bool {
        let wanted = !self.goes_on && !self.times.going_on.is_zero();
        wanted && self.silent(now).is_empty()
    }

    /// What the key says: for how many milliseconds.
    pub(crate) fn going_on_ms(&self) -> u64 {
        u64::try_from(self.times.going_on.as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether that key is known to be written.
    pub(crate) fn counts_on_promises(&self) -> bool {
        self.goes_on
    }

    /// The key is written.
    pub(crate) fn goes_on(&mut self) {
        self.goes_on = true;
    }

    /// There is a new view with these other members, or the store says something else of them.
    pub(crate) fn viewed(&mut self, others: &BTreeMap<Incarnation, Told>, now: Moment) {
        self.peers.retain(|peer, _| others.contains_key(peer));
        for (other, told) in others {
            let peer = self.peers.entry(*other).or_insert(Peer {
                promised: Moment::NEVER,
                asked: None,
                given: Moment::NEVER,
                known: false,
                goes_on: None,
                standing: Standing::Present,
            });
            peer.goes_on = told.goes_on;
            peer.standing = match (told.alive, peer.standing) {
                (true, _) => Standing::Present,
                (false, Standing::Present) => Standing::Missed(now),
                (false, standing @ (Standing::Missed(_) | Standing::Withheld(_))) => standing,
            };
        }
    }

    /// The store answers again: those that lost their keys meanwhile get time to come back.
    pub(crate) fn store_back(&mut self, now: Moment) {
        for peer in self.peers.values_mut() {
            if let Standing::Missed(since) = &mut peer.standing {
                *since = now;
            }
        }
    }

    /// What to ask the others.
    pub(crate) fn pings(&mut self, now: Moment) -> Vec<Ping> {
        for peer in self.peers.values_mut() {
            peer.asked.get_or_insert(now);
        }
        let ping = |to: &Incarnation| Ping {
            from: self.me,
            to: *to,
            sent: now,
            length_ms: self.length_ms(),
        };
        self.peers.keys().map(ping).collect()
    }

    fn length_ms(&self) -> u64 {
        u64::try_from(self.times.lease.as_millis()).unwrap_or(u64::MAX)
    }

    /// Promises, unless the asker is not in the view or is about to be removed.
    pub(crate) fn answer(&mut self, ping: &Ping, now: Moment) -> Option<Pong> {
        if ping.to != self.me {
            return None;
        }
        let peer = self.peers.get_mut(&ping.from)?;
        peer.known = true;
        if let Standing::Withheld(_) = peer.standing {
            return None;
        }
        let length_ms = ping.length_ms.min(PROMISE_MS_MAX);
        let until = now.plus(Duration::from_millis(length_ms));
        peer.given = peer.given.max(until);
        Some(Pong {
            from: self.me,
            to: ping.from,
            sent: ping.sent,
            length_ms,
        })
    }

    /// Takes a promise. What was never asked for is none.
    pub(crate) fn answered(&mut self, pong: &Pong, now: Moment) {
        if pong.to != self.me || pong.sent > now {
            return;
        }
        let length = Duration::from_millis(pong.length_ms.min(self.length_ms()));
        if let Some(peer) = self.peers.get_mut(&pong.from) {
            let until = pong.sent.plus(Times::less_margin(length));
            peer.promised = peer.promised.max(until);
            // An answer from before says nothing of now.
            peer.asked = peer.asked.filter(|asked| pong.sent < *asked);
        }
    }

    /// Somebody who knows says that this host's process is gone.
    pub(crate) fn vouched_gone(&mut self, gone: Incarnation) {
        if let Some(peer) = self.peers.get_mut(&gone) {
            peer.known = true;
        }
    }

    /// Who may be removed from the view now. Nobody among them is promised anything from here on.
    pub(crate) fn removable(&mut self, now: Moment) -> Vec<Incarnation> {
        let times = self.times;
        let mut gone = Vec::new();
        for (number, peer) in &mut self.peers {
            if let Standing::Missed(since) = peer.standing
                && now >= peer.withhold_at(since, &times)
            {
                peer.standing = Standing::Withheld(since);
            }
            if let Standing::Withheld(_) = peer.standing
                && now >= peer.given
            {
                gone.push(*number);
            }
        }
        gone
    }

    /// When to ask [`Rule::removable`] next.
    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        let times = &self.times;
        let deadlines = self.peers.values().filter_map(|peer| match peer.standing {
            Standing::Present => None,
            Standing::Missed(since) => Some(peer.withhold_at(since, times)),
            Standing::Withheld(_) => Some(peer.given),
        });
        deadlines.min()
    }

    /// Members that have not answered for long: to be written down.
    pub(crate) fn unheard(&self, now: Moment) -> BTreeSet<Incarnation> {
        let silence = self.times.silence();
        let is_over = |asked: Moment| now >= asked.plus(silence);
        let unheard = self.peers.iter();
        let unheard = unheard.filter(|(_, peer)| peer.asked.is_some_and(is_over));
        unheard.map(|(number, _)| *number).collect()
    }

    /// What the hosts have written down, this one too.
    pub(crate) fn told_unheard(&mut self, unheard: &Unheard, now: Moment) {
        let peers = self.peers.iter();
        let present = peers.filter(|(_, peer)| peer.standing == Standing::Present);
        let present = present.map(|(number, _)| *number).chain([self.me]);
        self.apart.told(self.me, unheard, &present.collect(), now);
    }

    /// Whom this host leaves for, since it and they have not heard of one another for long.
    pub(crate) fn leaves_for(&self, now: Moment) -> Option<&BTreeSet<Incarnation>> {
        self.apart.leaves(now, self.times.lease)
    }

    /// Members whose promise is wanting at `now`.
    pub(crate) fn silent(&self, now: Moment) -> Vec<Incarnation> {
        let silent = self.peers.iter().filter(|(_, peer)| peer.promised <= now);
        silent.map(|(number, _)| *number).collect()
    }
}

impl Peer {
    /// When no promise is given to it any more, unless its key comes back: at once when it asks for
    /// none, later when it does.
    fn withhold_at(&self, since: Moment, times: &Times) -> Moment {
        match (self.goes_on, self.known) {
            (None, _) => since,
            (Some(_), true) => self.given.min(since.plus(times.patience())),
            (Some(going_on), false) => since.plus(times.stranger(going_on)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times = Times {
        lease: Duration::from_secs(2),
        going_on: Duration::from_secs(600),
    };
    const ME: Incarnation = Incarnation(1);
    const YOU: Incarnation = Incarnation(2);

    fn at(ms: u64) -> Moment {
        Moment::from_ns((1_000_000 + ms) * 1_000_000)
    }

    fn two() -> Rule {
        let mut rule = Rule::new(ME, TIMES, at(0), TIMES.lease);
        rule.viewed(&you(true), at(0));
        rule.goes_on();
        rule
    }

    fn told(alive: bool, goes_on: bool) -> Told {
        let goes_on = goes_on.then_some(TIMES.going_on);
        Told { alive, goes_on }
    }

    fn you(alive: bool) -> BTreeMap<Incarnation, Told> {
        BTreeMap::from([(YOU, told(alive, true))])
    }

    fn pinged(rule: &mut Rule, ms: u64) -> Option<Pong> {
        rule.answer(&ping(YOU, ME), at(ms))
    }

    fn ping(from: Incarnation, to: Incarnation) -> Ping {
        Ping {
            from,
            to,
            sent: Moment::from_ns(77),
            length_ms: 2000,
        }
    }

    fn promised(rule: &mut Rule, sent: u64, now: u64) {
        rule.answered(&pong(ME, sent), at(now));
    }

    fn pong(to: Incarnation, sent: u64) -> Pong {
        Pong {
            from: YOU,
            to,
            sent: at(sent),
            length_ms: 2000,
        }
    }

    #[test]
    fn who_does_not_answer_for_two_leases_is_unheard_but_not_who_was_not_asked() {
        let mut rule = two();
        assert!(rule.unheard(at(60_000)).is_empty(), "nothing was asked");
        rule.pings(at(1000));
        rule.pings(at(2000));
        assert!(rule.unheard(at(4999)).is_empty());
        assert_eq!(rule.unheard(at(5000)), BTreeSet::from([YOU]));
        promised(&mut rule, 999, 5000);
        assert_eq!(
            rule.unheard(at(5000)),
            BTreeSet::from([YOU]),
            "an old answer"
        );
        promised(&mut rule, 2000, 5100);
        assert!(rule.unheard(at(60_000)).is_empty());
    }

    #[test]
    fn who_is_about_to_be_removed_is_nobody_to_leave_for() {
        let mut rule = Rule::new(Incarnation(3), TIMES, at(0), TIMES.lease);
        let unheard = Unheard::from([(YOU, BTreeSet::from([Incarnation(3)]))]);
        for (alive, leaves) in [(true, true), (false, false)] {
            rule.viewed(&you(alive), at(1000));
            rule.told_unheard(&unheard, at(1000));
            assert_eq!(rule.leaves_for(at(2999)), None);
            assert_eq!(rule.leaves_for(at(3000)).is_some(), leaves);
        }
    }

    #[test]
    fn the_lease_counts_from_when_it_was_asked_for() {
        let mut rule = two();
        assert_eq!(rule.acts_until(), at(1800));
        rule.kept(at(1000), TIMES.lease);
        assert_eq!(rule.acts_until(), at(2800));
        rule.kept(at(500), TIMES.lease);
        assert_eq!(rule.acts_until(), at(2800));
    }

    #[test]
    fn promises_of_all_others_keep_a_host_going_but_not_for_ever() {
        let mut rule = two();
        promised(&mut rule, 5000, 5100);
        assert_eq!(rule.acts_until(), at(6800));
        let both = [(YOU, told(true, true)), (Incarnation(3), told(true, true))];
        rule.viewed(&BTreeMap::from(both), at(5200));
        assert_eq!(rule.acts_until(), at(1800));
        assert_eq!(rule.silent(at(5200)), [Incarnation(3)]);
        rule.viewed(&you(true), at(5300));
        promised(&mut rule, 599_900, 599_900);
        assert_eq!(rule.acts_until(), at(600_000));
    }

    #[test]
    fn promises_for_others_or_from_the_future_are_none() {
        let mut rule = two();
        promised(&mut rule, 5000, 4000);
        rule.answered(&pong(Incarnation(9), 5000), at(6000));
        assert_eq!(rule.acts_until(), at(1800));
        assert_eq!(rule.answer(&ping(YOU, Incarnation(9)), at(0)), None);
        assert_eq!(rule.answer(&ping(Incarnation(9), ME), at(0)), None);
    }

    #[test]
    fn a_promise_is_as_long_as_was_asked_and_counts_no_longer_than_that() {
        let mut rule = two();
        let long = |length_ms| Ping {
            length_ms,
            ..ping(YOU, ME)
        };
        let given = rule.answer(&long(10_000), at(0));
        assert_eq!(given.map(|pong| pong.length_ms), Some(10_000));
        assert!(pinged(&mut rule, 1000).is_some());
        rule.viewed(&you(false), at(1000));
        assert_eq!(rule.removable(at(9999)), []);
        assert_eq!(rule.removable(at(10_000)), [YOU]);
        let mut rule = two();
        let most = rule.answer(&long(u64::MAX), at(0));
        assert_eq!(most.map(|pong| pong.length_ms), Some(PROMISE_MS_MAX));
        let (short, longer) = (500, 9000);
        for (length_ms, until) in [(short, 5450), (longer, 6800)] {
            let pong = Pong {
                length_ms,
                ..pong(ME, 5000)
            };
            rule.answered(&pong, at(5100));
            assert_eq!(rule.acts_until(), at(until));
        }
    }

    #[test]
    fn a_host_is_removed_only_after_the_last_promise_to_it() {
        let mut rule = two();
        assert!(pinged(&mut rule, 1000).is_some());
        assert_eq!(rule.removable(at(100_000)), []);
        let mut rule = two();
        assert!(pinged(&mut rule, 1000).is_some());
        rule.viewed(&you(false), at(1500));
        assert_eq!(rule.removable(at(2999)), []);
        assert_eq!(rule.next_deadline(), Some(at(3000)));
        assert_eq!(rule.removable(at(3000)), [YOU]);
        assert_eq!(pinged(&mut rule, 3000), None);
    }

    #[test]
    fn a_host_that_pings_without_a_key_is_waited_for_and_then_promised_nothing() {
        let mut rule = two();
        rule.viewed(&you(false), at(1000));
        for ms in (1000..5000).step_by(500) {
            assert!(pinged(&mut rule, ms).is_some());
            assert_eq!(rule.removable(at(ms)), []);
        }
        assert_eq!(rule.removable(at(5000)), []);
        assert_eq!(pinged(&mut rule, 5001), None);
        assert_eq!(rule.removable(at(6499)), []);
        assert_eq!(rule.removable(at(6500)), [YOU]);
        rule.viewed(&you(true), at(6600));
        assert!(pinged(&mut rule, 6600).is_some());
    }

    #[test]
    fn who_was_never_pinged_waits_for_all_that_the_other_may_go_on() {
        let mut rule = two();
        rule.viewed(&you(false), at(1000));
        assert_eq!(rule.removable(at(677_999 - 1000)), []);
        assert_eq!(rule.removable(at(678_000)), [YOU]);
        let mut rule = two();
        rule.viewed(&you(false), at(1000));
        rule.vouched_gone(YOU);
        assert_eq!(rule.removable(at(1000)), [YOU]);
    }

    #[test]
    fn promises_count_only_once_all_were_there_and_it_is_written() {
        let mut rule = Rule::new(ME, TIMES, at(0), TIMES.lease);
        rule.viewed(&you(true), at(0));
        assert!(!rule.could_go_on(at(100)));
        promised(&mut rule, 500, 600);
        assert!(rule.could_go_on(at(600)));
        assert_eq!(rule.acts_until(), at(1800));
        rule.goes_on();
        assert!(!rule.could_go_on(at(600)));
        assert_eq!(rule.acts_until(), at(2300));
        let going_on = Duration::ZERO;
        let never = Times { going_on, ..TIMES };
        assert!(!Rule::new(ME, never, at(0), TIMES.lease).could_go_on(at(100)));
    }

    #[test]
    fn who_does_not_count_on_promises_is_removed_at_once() {
        let mut rule = two();
        rule.viewed(&BTreeMap::from([(YOU, told(false, false))]), at(1000));
        assert_eq!(rule.removable(at(1000)), [YOU]);
    }
}
