//! Names that all hosts agree on: what a host did to one has happened everywhere when it returns.
//!
//! The store decides, and tells all hosts in the same order. Whoever changed something asks the others
//! until when they have done what it says, and goes on when all of its view have come so far.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farpage_host::Object;
use farpage_membership::{ControlError, Durability, ObjectId};
use farpage_rules::coherence::Host;
use farpage_sys::lock;

use super::{Cluster, HaveError, Inner, Kind, Wish, put};

/// Time between two looks at whether there is no use in waiting any more.
const LOOK: Duration = Duration::from_millis(100);
/// How long who does not answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Questions until when hosts have done what the store says.
#[derive(Default)]
pub(super) struct Rounds {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// How far this host has come.
    done: i64,
    next: u64,
    /// Who has yet to answer.
    open: BTreeMap<u64, BTreeSet<Host>>,
    /// Who asked this host, in which round of theirs, and up to where.
    asked: Vec<(Host, u64, i64)>,
}

impl Rounds {
    /// Hosts that are not among these do not answer any more.
    pub(super) fn without_all_but(&self, there: impl Iterator<Item = Host>) {
        let there: BTreeSet<Host> = there.collect();
        let mut state = lock(&self.state);
        for open in state.open.values_mut() {
            open.retain(|host| there.contains(host));
        }
        state.asked.retain(|(by, ..)| there.contains(by));
        self.ended.notify_all();
    }

    pub(super) fn answered(&self, round: u64, by: Host) {
        if let Some(open) = lock(&self.state).open.get_mut(&round) {
            open.remove(&by);
            self.ended.notify_all();
        }
    }

    fn begin(&self, hosts: BTreeSet<Host>) -> u64 {
        let mut state = lock(&self.state);
        state.next += 1;
        let round = state.next;
        state.open.insert(round, hosts);
        round
    }

    /// Waits until all have answered, or `is_over`. Who has not.
    fn wait(&self, round: u64, is_over: impl Fn() -> bool) -> BTreeSet<Host> {
        let mut state = lock(&self.state);
        while state.open.get(&round).is_some_and(|open| !open.is_empty()) && !is_over() {
            let waited = self.ended.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.open.remove(&round).unwrap_or_default()
    }

    /// This host has come so far: whom it owes an answer.
    fn came_to(&self, revision: i64) -> Vec<(Host, u64)> {
        let mut state = lock(&self.state);
        state.done = state.done.max(revision);
        let done = state.done;
        let due = state.asked.extract_if(.., |(_, _, to)| *to <= done);
        due.map(|(by, round, _)| (by, round)).collect()
    }

    /// True when the answer is yes already.
    fn is_done(&self, by: Host, round: u64, revision: i64) -> bool {
        let mut state = lock(&self.state);
        let is_done = revision <= state.done;
        if !is_done {
            state.asked.push((by, round, revision));
        }
        is_done
    }
}

impl Inner {
    /// Everything that waited has happened.
    pub(super) fn catches_up(&self) {
        while let Ok(revision) = self.control.revision() {
            let mut is_newest = true;
            while let Some(event) = self.control.next_event(Duration::ZERO) {
                self.happened(event);
                is_newest = false;
            }
            for (by, round) in self.rounds.came_to(revision) {
                self.says_done(by, round);
            }
            // What came meanwhile may be of later.
            if is_newest {
                return;
            }
        }
    }

    pub(super) fn is_asked(&self, by: Host, round: u64, revision: i64) {
        if self.rounds.is_done(by, round, revision) {
            self.says_done(by, round);
        }
    }

    fn says_done(&self, to: Host, round: u64) {
        match to == self.own {
            true => self.rounds.answered(round, to),
            false => self.post.sends(to, Kind::IsDone, &[&put(&round)]),
        }
    }

    /// Waits until this host knows the newest of an object, and who was in the cluster then: of when
    /// that is.
    pub(super) fn knows_newest(&self, number: u64) -> Result<i64, ControlError> {
        let revision = self.control.revision_of(ObjectId(number))?;
        let round = self.rounds.begin(BTreeSet::from([self.own]));
        self.is_asked(self.own, round, revision);
        self.rounds.wait(round, || {
            self.control.is_fenced() || self.is_over.load(Ordering::Acquire)
        });
        Ok(revision)
    }

    /// Waits until all hosts know the newest of an object. Who takes longer than [`PATIENCE`], and is neither
    /// heard of nor out of the view, is not waited for: it finds out when it goes on.
    pub(super) fn all_know(&self, number: u64) -> Result<(), ControlError> {
        // Those of the view of then at least.
        let revision = self.knows_newest(number)?;
        let silent = self.ask(&self.others().collect(), revision);
        if !silent.is_empty() && !self.control.is_fenced() {
            let state = lock(&self.state);
            let named = silent.iter().filter_map(|host| state.members.get(&host.0));
            let names: Vec<String> = named.map(|member| member.name.clone()).collect();
            drop(state);
            self.say(&format!(
                "a name is changed, and {} has not said so in {} s: it goes on without",
                names.join(", "),
                PATIENCE.as_secs()
            ));
        }
        Ok(())
    }

    /// The hosts of the view but this one.
    fn others(&self) -> impl Iterator<Item = Host> + use<> {
        let hosts: Vec<u8> = lock(&self.state).members.keys().copied().collect();
        let own = self.own;
        hosts.into_iter().map(Host).filter(move |host| *host != own)
    }

    /// Asks other hosts to say when they have come so far, and waits. Who has not.
    fn ask(&self, hosts: &BTreeSet<Host>, revision: i64) -> BTreeSet<Host> {
        let round = self.rounds.begin(hosts.clone());
        for host in hosts {
            let question = put(&(round, revision));
            self.post.sends(*host, Kind::Done, &[&question]);
        }
        let began = Instant::now();
        let is_over = || self.control.is_fenced() || began.elapsed() > PATIENCE;
        self.rounds.wait(round, is_over)
    }
}

impl Cluster {
    /// Makes an object of a name for user `uid`. When it returns, all hosts know it.
    ///
    /// # Errors
    /// [`ControlError::Exists`] in [`HaveError`] when the name is another's.
    pub fn make(&self, name: &str, uid: u32, wish: &Wish) -> Result<u64, HaveError> {
        wish.check(false)?;
        let described = self.inner.described(uid, wish, Durability::Volatile);
        let number = self.inner.control.make(Some(name), described)?.0;
        self.inner.all_know(number)?;
        Ok(number)
    }

    /// Says something else of an object's contents. When it returns, all hosts know it.
    ///
    /// # Errors
    /// When the object is gone, or the store does not answer.
    pub fn note(&self, number: u64, note: &str) -> Result<(), ControlError> {
        self.inner.control.note(ObjectId(number), note)?;
        self.inner.all_know(number)
    }

    /// Gives an object another name. When it returns, all hosts know it.
    ///
    /// # Errors
    /// When that is another's, the object is gone or has no name, or the store does not answer.
    pub fn rename(&self, number: u64, to: &str) -> Result<(), ControlError> {
        self.inner.control.rename(ObjectId(number), to)?;
        self.inner.all_know(number)
    }

    /// Takes an object's name away, whoever has it. When it returns, all hosts know it.
    ///
    /// # Errors
    /// When the name is none, or the store does not answer.
    pub fn unname(&self, name: &str) -> Result<(), ControlError> {
        let number = self.inner.control.remove(name)?;
        self.inner.all_know(number.0)
    }

    /// An object that this host knows, at this host from now on, until [`Cluster::release`].
    ///
    /// # Errors
    /// [`HaveError`].
    pub fn open(&self, number: u64) -> Result<Arc<Object>, HaveError> {
        let id = ObjectId(number);
        let known = lock(&self.inner.state).objects.get(&number).cloned();
        let (name, described) = known.ok_or(ControlError::NoObject(id))?;
        self.inner.control.hold(id)?;
        let name = name.unwrap_or_default();
        Ok(self.inner.open(number, &name, &described, None)?)
    }

    /// At every other host, so many of those who wait at a byte of an object go on: who runs there is
    /// told by [`super::Observer::wake`]. Not waited for.
    pub fn wake(&self, number: u64, offset: u64, count: u32) {
        let what = put(&(number, offset, count));
        for host in self.inner.others() {
            self.inner.post.sends(host, Kind::Wake, &[&what]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(hosts: &[u8]) -> BTreeSet<Host> {
        hosts.iter().copied().map(Host).collect()
    }

    #[test]
    fn a_round_ends_when_all_have_answered_or_are_gone() {
        let rounds = Rounds::default();
        let [one, two] = [rounds.begin(set(&[1, 2])), rounds.begin(set(&[2, 3]))];
        rounds.answered(one, Host(1));
        rounds.answered(one, Host(1));
        rounds.answered(9, Host(2));
        assert_eq!(lock(&rounds.state).open[&one], set(&[2]));
        rounds.without_all_but([Host(1), Host(3)].into_iter());
        assert_eq!(rounds.wait(one, || false), set(&[]));
        assert_eq!(lock(&rounds.state).open[&two], set(&[3]));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| rounds.wait(two, || false));
            rounds.answered(two, Host(3));
            waits.join().unwrap();
        });
        let three = rounds.begin(set(&[1]));
        assert_eq!(rounds.wait(three, || true), set(&[1]));
        assert!(lock(&rounds.state).open.is_empty());
    }

    #[test]
    fn who_asked_is_answered_when_it_is_so() {
        let rounds = Rounds::default();
        assert_eq!(rounds.came_to(5), []);
        assert!(rounds.is_done(Host(1), 1, 5));
        assert!(!rounds.is_done(Host(1), 2, 6));
        assert!(!rounds.is_done(Host(2), 1, 8));
        assert!(!rounds.is_done(Host(3), 1, 6));
        rounds.without_all_but([Host(1), Host(2)].into_iter());
        assert_eq!(rounds.came_to(7), [(Host(1), 2)]);
        assert_eq!(rounds.came_to(6), []);
        assert_eq!(rounds.came_to(8), [(Host(2), 1)]);
    }
}
