//! A host leaves in good order: what only it has goes to those that stay, and who decides after it knows
//! what nobody has touched.
//!
//! It asks them to take its units over, and they take them as who wants to write does. Then it lets
//! nobody touch more of what it is the home of, tells all what was touched, and goes when they have
//! all that it has sent. Of several that leave at once the one that came first goes first, so that each
//! home has told those that stay. When a host dies meanwhile, all is as before, and begins anew.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use farpage_rules::coherence::{Host, Hosts};
use farpage_sys::{lock, say};

use super::{Server, Shell};
use crate::object::Shared;
use crate::units::Units;
use crate::wire::Said;

/// Bytes that others are asked to take over at a time.
const BYTES_AT_ONCE: usize = 16 << 20;
/// Units, if they are small.
const UNITS_AT_ONCE: usize = 1024;
/// Who has not taken what it was asked to is asked again, or another is.
const ASKS_AGAIN: Duration = Duration::from_secs(1);
/// Time between two looks at what is done.
const LOOKS: Duration = Duration::from_millis(1);
/// Time between two questions what has come.
const ASKS: Duration = Duration::from_millis(20);
/// Time between two words on how much is left.
const SAYS: Duration = Duration::from_secs(1);
/// Time for the last step, in any case.
const CLOSING: Duration = Duration::from_secs(3);
/// Runs of units that a message has room for.
const RUNS_MAX: usize = 1 << 20;

/// How far this host is with leaving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It does not leave.
    #[default]
    Stays,
    /// It gives away what it has.
    Gives,
    /// It answers no requests any more.
    Closed,
    /// All know what they have to: it goes.
    Goes,
}

/// Who leaves, as far as this host knows.
#[derive(Default)]
pub(crate) struct Leaving {
    stage: Stage,
    others: BTreeMap<Host, Other>,
}

/// What another host has said of that.
#[derive(Clone, Copy, Default)]
struct Other {
    leaves: bool,
    /// So many messages of this host it has; `None`: it has not answered.
    has: Option<u64>,
}

/// What a host could not give to another when it left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The object.
    pub number: u64,
    /// Its name.
    pub name: String,
    /// How much of it; others may have copies of some.
    pub bytes: u64,
    /// Why.
    pub why: Why,
}

/// Why nobody has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// There was not enough time.
    #[error("others did not take it in time")]
    Late,
    /// All others leave too, or there are none.
    #[error("no other host stays")]
    Alone,
    /// The home has all of it.
    #[error("with the simple scheduler it ends with the host that made it")]
    Simple,
    /// The next home does not know what was never written.
    #[error("what was never written of it could not be told to others")]
    Untold,
}

impl Shell {
    pub(crate) fn stage(&self) -> Stage {
        lock(&self.leaving).stage
    }

    /// Others that said that they leave.
    pub(super) fn leavers(&self) -> Hosts {
        let leaving = lock(&self.leaving);
        let leaves = leaving.others.iter().filter(|(_, other)| other.leaves);
        Hosts::all(leaves.map(|(host, _)| *host))
    }

    /// Hosts have died or left: what was said before does not count.
    pub(super) fn leaves_anew(&self) {
        let living = lock(&self.members).view().living;
        let mut leaving = lock(&self.leaving);
        if leaving.stage == Stage::Closed {
            leaving.stage = Stage::Gives;
        }
        leaving.others.retain(|host, _| living.has(*host));
    }
}

/// How a step of leaving ended.
enum Ended {
    Done,
    /// Hosts have died or left meanwhile.
    Again,
    Not(Why),
}

impl Server {
    /// Gives all that this host has to those that stay, of objects that `is_wanted` of; `says` is told
    /// how many bytes are left when it takes long. What could not be given.
    pub fn leave(
        &self,
        within: Duration,
        is_wanted: &dyn Fn(u64) -> bool,
        says: &dyn Fn(u64),
    ) -> Vec<Left> {
        self.all().iter().for_each(flushes_last);
        let until = Instant::now() + within;
        lock(&self.shell.leaving).stage = Stage::Gives;
        let wanted = || -> Vec<Arc<Shared>> {
            let all = self.all().into_iter();
            all.filter(|shared| is_wanted(shared.about.number))
                .collect()
        };
        let mut why = None;
        wanted().iter().for_each(|shared| {
            shared.gives_back();
            shared.gives_all_locks_back();
        });
        loop {
            if why.is_none() {
                why = self.gives(&wanted, until, says);
            }
            let told = match self.tells(&wanted, why.is_some(), until + CLOSING) {
                Ended::Done => None,
                Ended::Again => continue,
                Ended::Not(why) => Some(why),
            };
            if self.shell.is_fenced() {
                return Vec::new();
            }
            let all = wanted();
            let left = all.iter().filter_map(|shared| left(shared, why, told));
            return left.collect();
        }
    }

    /// Asks others to take units over until this host has none; or why it still has some.
    fn gives(
        &self,
        wanted: &dyn Fn() -> Vec<Arc<Shared>>,
        until: Instant,
        says: &dyn Fn(u64),
    ) -> Option<Why> {
        let (mut asked, mut said) = (None, Instant::now());
        loop {
            if self.shell.is_fenced() || Instant::now() >= until {
                return Some(Why::Late);
            }
            self.asks(&mut asked);
            let all: Vec<_> = wanted()
                .into_iter()
                .map(|shared| (shared.to_give(), shared))
                .collect();
            let waits = all.iter().any(|(_, shared)| shared.waits());
            if all.iter().all(|(units, _)| units.is_empty()) && !waits {
                return None;
            }
            if self.is_alone() {
                return Some(Why::Alone);
            }
            for (units, shared) in all {
                let at_once = BYTES_AT_ONCE / shared.unit_bytes();
                for some in units.chunks(at_once.clamp(1, UNITS_AT_ONCE)) {
                    self.gives_some(&shared, some, until);
                    if said.elapsed() >= SAYS {
                        said = Instant::now();
                        says(wanted().iter().map(|shared| bytes_of(shared)).sum());
                    }
                    if self.shell.is_fenced() || Instant::now() >= until {
                        return Some(Why::Late);
                    }
                }
            }
            thread::sleep(LOOKS);
        }
    }

    /// Asks others to take these units over, and waits until they have, for a while.
    fn gives_some(&self, shared: &Shared, units: &[(u64, Hosts)], until: Instant) {
        let again = until.min(Instant::now() + ASKS_AGAIN);
        if self.asks_to_take(shared, units, &self.takers()) {
            let has_some = || units.iter().any(|(unit, _)| shared.has_to_give(*unit));
            while has_some() && Instant::now() < again {
                thread::sleep(LOOKS);
            }
        }
    }

    /// Asks others to take over these units: each one that has a copy, or whose turn it is. False when
    /// there is nobody to ask.
    fn asks_to_take(&self, shared: &Shared, units: &[(u64, Hosts)], takers: &[Host]) -> bool {
        let mut by_taker: BTreeMap<Host, Units> = BTreeMap::new();
        for (at, (unit, copies)) in units.iter().enumerate() {
            let taker = match shared.is_simple() {
                true => Some(shared.home()).filter(|home| takers.contains(home)),
                false => {
                    let has = takers.iter().find(|taker| copies.has(**taker));
                    let turn = at * takers.len() / units.len();
                    has.or_else(|| takers.get(turn)).copied()
                }
            };
            if let Some(taker) = taker {
                by_taker.entry(taker).or_default().add(*unit);
            }
        }
        let entered = self.shell.gate.enter();
        let mut has_asked = false;
        for (taker, units) in by_taker {
            if let Some(generation) = self.shell.generation_to(taker) {
                let said = Said::TakeOver {
                    object: shared.about.number,
                    generation,
                    units: units.runs().collect(),
                };
                self.shell.sends(taker, &said);
                has_asked = true;
            }
        }
        drop(entered);
        has_asked
    }

    /// Lets nobody touch more, tells all what was touched, and waits until they have all that this
    /// host has sent. With `anyway` it does so though it still has units.
    fn tells(&self, wanted: &dyn Fn() -> Vec<Arc<Shared>>, anyway: bool, until: Instant) -> Ended {
        let (mut untold, mut asked) = (false, None);
        loop {
            if self.shell.is_fenced() || Instant::now() >= until {
                return Ended::Not(Why::Untold);
            }
            self.asks(&mut asked);
            // Who has just come may not listen yet.
            if !self.have_all_answered() {
                thread::sleep(LOOKS);
                continue;
            }
            let all = wanted();
            let closed = self.shell.gate.close();
            let is_over = |shared: &Arc<Shared>| shared.to_give().is_empty() && !shared.waits();
            if self.shell.is_frozen() {
                drop(closed);
                thread::sleep(LOOKS);
                continue;
            }
            if !anyway && !all.iter().all(is_over) {
                return Ended::Again;
            }
            lock(&self.shell.leaving).stage = Stage::Closed;
            for shared in &all {
                if let Some(touched) = shared.touched_at_home() {
                    match touched.runs().len() <= RUNS_MAX {
                        true => self.tells_touched(shared, &touched),
                        false => untold = true,
                    }
                }
            }
            drop(closed);
            break;
        }
        while !self.shell.is_fenced() && Instant::now() < until {
            match self.may_go() {
                Some(Ended::Done) if untold => return Ended::Not(Why::Untold),
                Some(ended) => return ended,
                None => {}
            }
            self.asks(&mut asked);
            thread::sleep(LOOKS);
        }
        Ended::Not(Why::Untold)
    }

    fn tells_touched(&self, shared: &Shared, touched: &Units) {
        let living = lock(&self.shell.members).view().living;
        for to in living.iter().filter(|to| *to != self.shell.own) {
            if let Some(generation) = self.shell.generation_to(to) {
                let object = shared.about.number;
                let said = Said::Touched { object, generation };
                self.shell.send(to, &[&said.bytes(), &touched.bytes()]);
            }
        }
    }

    /// Whether all have what this host has sent, and none that leaves too was there before it.
    fn may_go(&self) -> Option<Ended> {
        let _entered = self.shell.gate.enter();
        let stays = lock(&self.hosts).stays.clone();
        let members = lock(&self.shell.members);
        let mut leaving = lock(&self.shell.leaving);
        if leaving.stage != Stage::Closed {
            return Some(Ended::Again);
        }
        let own = self.shell.own;
        let may_go = members.view().living.iter().all(|host| {
            let other = leaving.others.get(&host).copied().unwrap_or_default();
            let sent = members.marker(host).map_or(0, |marker| marker.sent);
            let is_later = stays.get(&host) > stays.get(&own);
            host == own || other.has.is_some_and(|has| has >= sent) && (is_later || !other.leaves)
        });
        if may_go {
            leaving.stage = Stage::Goes;
        }
        may_go.then_some(Ended::Done)
    }

    /// Tells the others that this host leaves, now and then; they answer what they have.
    fn asks(&self, asked: &mut Option<Instant>) {
        if asked.is_some_and(|asked| asked.elapsed() < ASKS) {
            return;
        }
        *asked = Some(Instant::now());
        let living = lock(&self.shell.members).view().living;
        for to in living.iter().filter(|to| *to != self.shell.own) {
            self.shell.sends(to, &Said::Leaves);
        }
    }

    /// Nobody else is there, or all leave.
    fn is_alone(&self) -> bool {
        let living = lock(&self.shell.members).view().living;
        let leaving = lock(&self.shell.leaving);
        let leaves = |host| leaving.others.get(&host).is_some_and(|other| other.leaves);
        living
            .iter()
            .all(|host| host == self.shell.own || leaves(host))
    }

    fn have_all_answered(&self) -> bool {
        let living = lock(&self.shell.members).view().living;
        let leaving = lock(&self.shell.leaving);
        let answered = |host| {
            leaving
                .others
                .get(&host)
                .is_some_and(|other| other.has.is_some())
        };
        living
            .iter()
            .all(|host| host == self.shell.own || answered(host))
    }

    /// Who can take units over: they have answered, and do not leave.
    fn takers(&self) -> Vec<Host> {
        let leaving = lock(&self.shell.leaving);
        let takes = leaving.others.iter();
        let takes = takes.filter(|(_, other)| !other.leaves && other.has.is_some());
        takes.map(|(host, _)| *host).collect()
    }

    /// A host leaves, and asks what has come of it.
    pub(super) fn other_leaves(&self, from: Host) {
        let has_early = lock(&self.early)
            .values()
            .any(|all| all.iter().any(|(by, _)| *by == from));
        let received = lock(&self.shell.members).received(from);
        if !lock(&self.shell.members).view().living.has(from) {
            return;
        }
        let mut leaving = lock(&self.shell.leaving);
        leaving.others.entry(from).or_default().leaves = true;
        let is_leaving = match leaving.stage {
            Stage::Stays => false,
            Stage::Gives | Stage::Closed => true,
            // The other waits until this one has gone.
            Stage::Goes => return,
        };
        drop(leaving);
        // What waits for an object to be open here has not come.
        let received = if has_early { 0 } else { received };
        let said = Said::Has {
            received,
            is_leaving,
        };
        self.shell.sends(from, &said);
    }

    /// A host has so many messages of this one.
    pub(super) fn other_has(&self, from: Host, received: u64, leaves: bool) {
        if !lock(&self.shell.members).view().living.has(from) {
            return;
        }
        let mut leaving = lock(&self.shell.leaving);
        let other = leaving.others.entry(from).or_default();
        other.has = other.has.max(Some(received));
        other.leaves |= leaves;
    }
}

/// What was written to a durable object goes to its file, which this host has.
fn flushes_last(shared: &Arc<Shared>) {
    if !shared.has_file() {
        return;
    }
    let name = &shared.about.name;
    match shared.flush() {
        Ok(_) => {
            say!("farpage: '{name}' ends with this host, which has its file; all of it was flushed")
        }
        Err(why) => say!("farpage: '{name}' ends with this host, which has its file, and {why}"),
    }
}

fn bytes_of(shared: &Shared) -> u64 {
    (shared.to_give().len() * shared.unit_bytes()) as u64
}

/// What is left of an object at this host when it goes.
fn left(shared: &Shared, why: Option<Why>, told: Option<Why>) -> Option<Left> {
    let of = |bytes, why| Left {
        number: shared.about.number,
        name: shared.about.name.clone(),
        bytes,
        why,
    };
    let bytes = bytes_of(shared);
    if shared.has_file() {
        return None;
    }
    if shared.ends_with_this_host() {
        return Some(of(shared.about.bytes, Why::Simple));
    }
    if bytes > 0 {
        return Some(of(bytes, why.or(told).unwrap_or(Why::Late)));
    }
    let untold = told.filter(|_| shared.touched_at_home().is_some());
    untold.map(|why| of(shared.about.bytes, why))
}
