//! What hosts tell one another of what they counted, or have flushed, when a user asks one of them.
//!
//! A thread of its own looks, so that messages go on. Hosts that are out of the view are not asked.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use farpage_membership::Durability;
use farpage_network::Incarnation;
use farpage_rules::coherence::Host;
use farpage_sys::lock;
use serde::{Deserialize, Serialize};

use super::{Cluster, HaveError, Inner, Kind, fits, put};
use crate::counters::Figures;
use crate::durable::FlushError;
use crate::seen::{Flow, UnitFigures};

/// Questions of users here that are open, at most.
const OPEN_MAX: usize = 64;
/// Questions that wait to be answered here, at most.
const WAITING_MAX: usize = 256;
/// Objects whose figures are told at most: they fit into a message.
const OBJECTS_MAX: usize = 4096;
/// Units that are told at most.
const UNITS_MAX: usize = 256;
/// Places in programs that are told for a unit at most.
const PLACES_MAX: usize = 4;

/// Who does not tell for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks whether somebody is so late.
const LOOK: Duration = Duration::from_secs(1);
/// What was counted so lately is told again.
const FRESH: Duration = Duration::from_millis(300);

/// What a host asks all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Asks {
    /// What was done for all objects.
    Figures,
    /// The units of an object of which most messages told.
    Hottest { object: u64, most: u32 },
    /// These units of it; and what is changed of them, from now on.
    Units {
        object: u64,
        units: Vec<u64>,
        is_watched: bool,
    },
    /// That it flush an object, which it is the home of.
    Flush { object: u64 },
}

/// What it is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Tells {
    Figures(HostFigures),
    Units(Vec<UnitFigures>),
    /// So many bytes were flushed, or why nothing was.
    Flushed(Result<u64, String>),
    /// Too much is asked.
    Busy,
}

/// What was done at a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFigures {
    /// For each object that is there, by its number.
    pub objects: Vec<(u64, Figures)>,
    /// Messages to each other host.
    pub flows: Vec<Flow>,
}

/// What each host told, by its number.
type Told = BTreeMap<u8, Tells>;
type Answer = Box<dyn FnOnce(Told) + Send>;

/// Questions of users here that hosts have yet to answer.
#[derive(Default)]
pub(super) struct Gathering(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    open: HashMap<u64, Open>,
}

struct Open {
    /// How long it is waited for; `None`: as long as the hosts are there.
    until: Option<Instant>,
    left: HashSet<Incarnation>,
    told: Told,
    answer: Answer,
}

impl Gathering {
    /// The number of a question to these hosts; `None`: there are too many, which it is told.
    fn begin(
        &self,
        of: impl Iterator<Item = Incarnation>,
        patience: Option<Duration>,
        answer: Answer,
    ) -> Option<u64> {
        let mut state = lock(&self.0);
        if state.open.len() >= OPEN_MAX {
            drop(state);
            answer(Told::new());
            return None;
        }
        state.next += 1;
        let question = state.next;
        let open = Open {
            until: patience.map(|patience| Instant::now() + patience),
            left: of.collect(),
            told: Told::new(),
            answer,
        };
        state.open.insert(question, open);
        Some(question)
    }

    fn told(&self, question: u64, by: Incarnation, host: Host, tells: Tells) {
        let mut state = lock(&self.0);
        let Some(open) = state.open.get_mut(&question) else {
            return;
        };
        if open.left.remove(&by) {
            open.told.insert(host.0, tells);
        }
        let is_over = open.left.is_empty();
        let over = is_over.then(|| state.open.remove(&question)).flatten();
        drop(state);
        if let Some(open) = over {
            (open.answer)(open.told);
        }
    }

    /// Hosts of which `is_there` is false are gone, and tell nothing.
    pub(super) fn without_all_but(&self, is_there: impl Fn(Incarnation) -> bool) {
        self.end_those(|open| {
            open.left.retain(|host| is_there(*host));
            open.left.is_empty()
        });
    }

    /// Who has not told for long does not: it may be of another version.
    fn without_the_late(&self) {
        let now = Instant::now();
        self.end_those(|open| open.until.is_some_and(|until| until < now));
    }

    fn end_those(&self, is_over: impl Fn(&mut Open) -> bool) {
        let over: Vec<Open> = {
            let all = &mut lock(&self.0).open;
            let over = all.extract_if(|_, open| is_over(open));
            over.map(|(_, open)| open).collect()
        };
        for open in over {
            (open.answer)(open.told);
        }
    }
}

/// Who asks, by which number, and what.
type Job = (Host, u64, Asks);

/// Has questions answered by a thread of its own.
pub(super) struct Desk(SyncSender<Job>);

impl Desk {
    /// And where the thread takes them from.
    pub(super) fn new() -> (Self, Receiver<Job>) {
        let (desk, jobs) = sync_channel(WAITING_MAX);
        (Self(desk), jobs)
    }
}

/// Answers questions until nobody can ask any more.
pub(super) fn run(inner: &Weak<Inner>, jobs: Receiver<Job>) {
    let mut last: Option<(Instant, HostFigures)> = None;
    loop {
        let job = jobs.recv_timeout(LOOK);
        let Some(inner) = inner.upgrade() else {
            return;
        };
        match job {
            Ok((by, question, Asks::Flush { object })) => inner.flushes(by, question, object),
            Ok((by, question, asks)) => {
                let tells = inner.tells(asks, &mut last);
                inner.is_told_to(by, question, tells);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        inner.gathering.without_the_late();
    }
}

impl Inner {
    /// This host, or another, asks.
    pub(super) fn is_asked_what_it_counted(&self, by: Host, question: u64, asks: Asks) {
        if self.desk.0.try_send((by, question, asks)).is_err() {
            self.is_told_to(by, question, Tells::Busy);
        }
    }

    fn is_told_to(&self, by: Host, question: u64, tells: Tells) {
        match by == self.own {
            true => self.is_told(by, self.incarnation(), question, tells),
            false => self.post.sends(by, Kind::Told, &[&put(&(question, tells))]),
        }
    }

    pub(super) fn is_told(&self, host: Host, by: Incarnation, question: u64, tells: Tells) {
        self.gathering.told(question, by, host, tells);
    }

    /// Hosts may have left the view.
    pub(super) fn gathers_without_the_gone(&self) {
        let own = self.incarnation();
        self.gathering
            .without_all_but(|peer| peer == own || self.post.host(peer).is_some());
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.control.incarnation().0)
    }

    fn tells(&self, asks: Asks, last: &mut Option<(Instant, HostFigures)>) -> Tells {
        match asks {
            Asks::Figures => {
                // Many may look at once.
                if let Some((at, figures)) = last
                    && at.elapsed() < FRESH
                {
                    return Tells::Figures(figures.clone());
                }
                let mut objects = self.server.all_figures();
                objects.sort_by_key(|(_, figures)| std::cmp::Reverse(figures.sent));
                objects.truncate(OBJECTS_MAX);
                let flows = self.server.flows();
                let figures = HostFigures { objects, flows };
                *last = Some((Instant::now(), figures.clone()));
                Tells::Figures(figures)
            }
            // It takes long.
            Asks::Flush { .. } => Tells::Busy,
            Asks::Hottest { object, most } => {
                let most = (most as usize).min(UNITS_MAX);
                Tells::Units(self.server.hottest(object, most))
            }
            Asks::Units {
                object,
                mut units,
                is_watched,
            } => {
                units.truncate(UNITS_MAX);
                if is_watched {
                    self.server.watch(object, &units);
                }
                let mut told = self.server.units(object, &units);
                if is_watched {
                    self.tell_who_faults(object, &mut told);
                }
                Tells::Units(told)
            }
        }
    }

    /// Adds who of this host faulted on units that are looked at.
    fn tell_who_faults(&self, object: u64, told: &mut [UnitFigures]) {
        let mut by: HashMap<u64, Vec<(u32, u32, u64)>> = HashMap::new();
        for ((unit, thread, instruction), times) in self.server.faulted(object) {
            by.entry(unit)
                .or_default()
                .push((times, thread, instruction));
        }
        for one in told {
            let (Some(changed), Some(mut all)) = (&mut one.changed, by.remove(&one.unit)) else {
                continue;
            };
            // Those that did most; only they are looked up.
            all.sort_unstable_by(|one, other| other.cmp(one));
            for (times, thread, instruction) in all.into_iter().take(PLACES_MAX) {
                let who = self.observer.place(thread, instruction);
                match changed.by.iter_mut().find(|(other, _)| *other == who) {
                    Some((_, sum)) => *sum += times,
                    None => changed.by.push((who, times)),
                }
            }
        }
    }

    /// Flushes an object, which may take long.
    fn flushes(self: &Arc<Self>, by: Host, question: u64, object: u64) {
        let inner = Arc::clone(self);
        let flush = move || {
            let flushed = inner.server.flush(object).map_err(|why| why.to_string());
            inner.is_told_to(by, question, Tells::Flushed(flushed));
        };
        let thread = std::thread::Builder::new().name("share-flush".into());
        if let Err(error) = thread.spawn(flush) {
            let why = format!("no thread can be started ({error})");
            self.is_told_to(by, question, Tells::Flushed(Err(why)));
        }
    }

    /// Has the home of an object flush it.
    fn asks_to_flush(&self, object: u64, home: Incarnation, answer: Answer) {
        let to = match home == self.incarnation() {
            true => Some(self.own),
            false => self.post.host(home),
        };
        let Some(question) = self.gathering.begin(std::iter::once(home), None, answer) else {
            return;
        };
        let asks = Asks::Flush { object };
        match to {
            Some(own) if own == self.own => self.is_asked_what_it_counted(own, question, asks),
            Some(to) => self.post.sends(to, Kind::Asks, &[&put(&(question, asks))]),
            None => {}
        }
        // It may have gone before the question was noted.
        self.gathers_without_the_gone();
    }

    /// Asks this host and all others.
    fn asks_all(&self, asks: &Asks, answer: Answer) {
        let peers: Vec<(Host, Incarnation)> = {
            let state = lock(&self.state);
            let others = state.members.keys().map(|slot| Host(*slot));
            let others = others.filter(|host| *host != self.own);
            others
                .filter_map(|host| Some((host, self.post.incarnation(host)?)))
                .collect()
        };
        let own = std::iter::once(self.incarnation());
        let all = own.chain(peers.iter().map(|(_, peer)| *peer));
        let Some(question) = self.gathering.begin(all, Some(PATIENCE), answer) else {
            return;
        };
        let said = put(&(question, asks));
        for (host, _) in peers {
            self.post.sends(host, Kind::Asks, &[&said]);
        }
        self.is_asked_what_it_counted(self.own, question, asks.clone());
        // Some may have gone before the question was noted.
        self.gathers_without_the_gone();
    }
}

fn units(told: Told) -> BTreeMap<u8, Vec<UnitFigures>> {
    let of = |(host, tells)| match tells {
        Tells::Units(units) => Some((host, units)),
        Tells::Figures(_) | Tells::Flushed(_) | Tells::Busy => None,
    };
    told.into_iter().filter_map(of).collect()
}

/// Units at each host, by its number.
pub type Units = BTreeMap<u8, Vec<UnitFigures>>;

impl Cluster {
    /// All that any host wrote to the object of a name, for user `uid`, is in its file before `answer` is
    /// called: how many bytes went there, or why none.
    pub fn flush(
        &self,
        name: &str,
        uid: u32,
        answer: Box<dyn FnOnce(Result<u64, HaveError>) + Send>,
    ) {
        let (id, home) = match self.to_flush(name, uid) {
            Ok(found) => found,
            Err(error) => return answer(Err(error)),
        };
        let name = name.to_owned();
        let told = move |told: Told| {
            let flushed = match told.into_values().next() {
                Some(Tells::Flushed(flushed)) => flushed,
                Some(Tells::Figures(_) | Tells::Units(_) | Tells::Busy) => {
                    Err("its host does not know how".into())
                }
                None => {
                    Err("the host that has its file is not there any more, or too many ask".into())
                }
            };
            answer(flushed.map_err(|why| HaveError::Flush(name, why)));
        };
        self.inner.asks_to_flush(id, home, Box::new(told));
    }

    /// The number of an object, and who is its home.
    fn to_flush(&self, name: &str, uid: u32) -> Result<(u64, Incarnation), HaveError> {
        let (id, found) = self.inner.control.find(name)?;
        let described = &found.description;
        fits(name, uid, described, None)?;
        match described.durability {
            Durability::Flushed => Ok((id.0, Incarnation(described.home.incarnation.0))),
            Durability::Volatile => Err(HaveError::Flush(
                name.into(),
                FlushError::Volatile.to_string(),
            )),
        }
    }

    /// What was done at each host of the view, by its number. Hosts that do not tell are left out.
    pub fn asks_figures(&self, answer: Box<dyn FnOnce(BTreeMap<u8, HostFigures>) + Send>) {
        let told = move |told: Told| {
            let of = |(host, tells)| match tells {
                Tells::Figures(figures) => Some((host, figures)),
                Tells::Units(_) | Tells::Flushed(_) | Tells::Busy => None,
            };
            answer(told.into_iter().filter_map(of).collect());
        };
        self.inner.asks_all(&Asks::Figures, Box::new(told));
    }

    /// The units of an object of which most messages told between all hosts together, at each host.
    ///
    /// Each host names so many of its own; what is hot only in sum may be left out.
    pub fn asks_hottest(&self, object: u64, most: u32, answer: Box<dyn FnOnce(Units) + Send>) {
        let inner: Weak<Inner> = Arc::downgrade(&self.inner);
        let told = move |told: Told| {
            let hottest = hottest(&units(told), most as usize);
            let asks = Asks::Units {
                object,
                units: hottest,
                is_watched: false,
            };
            if let Some(inner) = inner.upgrade() {
                inner.asks_all(&asks, Box::new(move |told| answer(units(told))));
            }
        };
        let asks = Asks::Hottest { object, most };
        self.inner.asks_all(&asks, Box::new(told));
    }

    /// These units of an object, at each host; what is changed of them is looked at from now on, and for
    /// ten seconds.
    pub fn watches(&self, object: u64, of: Vec<u64>, answer: Box<dyn FnOnce(Units) + Send>) {
        let asks = Asks::Units {
            object,
            units: of,
            is_watched: true,
        };
        self.inner
            .asks_all(&asks, Box::new(move |told| answer(units(told))));
    }
}

/// Units of which most messages told, over all hosts.
fn hottest(told: &Units, most: usize) -> Vec<u64> {
    let mut heat: BTreeMap<u64, u64> = BTreeMap::new();
    for one in told.values().flatten() {
        *heat.entry(one.unit).or_default() += u64::from(one.counts.sent);
    }
    let mut all: Vec<(u64, u64)> = heat.into_iter().map(|(unit, heat)| (heat, unit)).collect();
    all.sort_unstable_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(&other.1)));
    all.into_iter().take(most).map(|(_, unit)| unit).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::seen::UnitCounts;

    #[test]
    fn an_answer_has_what_all_told_that_are_there() {
        let gathering = Gathering::default();
        let (tell, told) = channel();
        let begin = || {
            let tell = tell.clone();
            let answer = move |told| tell.send(told).unwrap();
            let hosts = [1, 2].map(Incarnation).into_iter();
            gathering.begin(hosts, None, Box::new(answer))
        };
        let question = begin().unwrap();
        let says = |by, host| gathering.told(question, Incarnation(by), Host(host), Tells::Busy);
        says(1, 4);
        says(1, 5);
        says(3, 6);
        assert!(told.try_recv().is_err(), "one has not told");
        says(2, 7);
        let all: Vec<u8> = told.try_recv().unwrap().into_keys().collect();
        assert_eq!(all, [4, 7], "nobody tells twice, or for others");
        begin().unwrap();
        gathering.without_all_but(|host| host == Incarnation(1));
        assert!(told.try_recv().is_err());
        gathering.without_all_but(|_| false);
        assert!(told.try_recv().unwrap().is_empty(), "all are gone");
        while begin().is_some() {}
        assert!(told.try_recv().unwrap().is_empty(), "too many are open");
    }

    #[test]
    fn the_hottest_are_so_over_all_hosts() {
        let one = |unit, sent| UnitFigures {
            unit,
            holds: crate::Holds::Nothing,
            owner: 0,
            copies: None,
            counts: UnitCounts {
                sent,
                ..UnitCounts::default()
            },
            changed: None,
        };
        let told = Units::from([
            (0, vec![one(7, 5), one(8, 4)]),
            (1, vec![one(8, 4), one(9, 5)]),
        ]);
        assert_eq!(hottest(&told, 2), [8, 7]);
    }
}
