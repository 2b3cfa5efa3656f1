//! Threads of processes of hosts, one memory, and what must never be.

use std::format;
use std::string::String;
use std::vec;
use std::vec::Vec;

use crate::sync::words::{Held, party_of};
use crate::sync::*;

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Script {
    /// Takes and gives back, so many times.
    Locks(u8),
    /// The same, unless it takes longer than the caller wants to wait.
    LocksWithin(u8),
    /// Arrives, so many times.
    Arrives(u8),
    /// Waits until the flag is set.
    Waits,
    /// Sets it.
    Sets,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Nothing,
    Take(Take),
    Give(Give),
    Arrive(Arrive),
    /// Before it gives the lock back it has seen the turn.
    GiveThenAwait(Give, u64),
    Await(Await),
    NotifyThenGive(Notify),
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Thread {
    process: Process,
    script: Script,
    doing: Doing,
    /// Of a barrier: so often it went on.
    passed: u8,
    is_dead: bool,
}

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A thread does its next step.
    Step(usize),
    /// It sleeps, and time passes.
    Looks(usize),
    /// It sleeps, and its caller's time is over.
    TimesOut(usize),
    /// A wake-up arrives.
    Arrives(u8, usize),
    /// A thread's process is killed.
    Dies(usize),
    /// All of a host dies.
    HostDies(u8),
}

/// All there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    /// What is looked at, and the lock of a condition.
    words: [[u64; 16]; 2],
    /// Of each host, for both.
    seen: [[u32; 2]; 3],
    /// Wake-ups on their way: to whom, for which, and from whom.
    flying: Vec<(u8, usize, u8)>,
    threads: Vec<Thread>,
    cells: Cells,
    is_flagged: bool,
    /// Who has a place.
    inside: Vec<usize>,
    /// A holder died, and nobody was told yet.
    is_owed: bool,
    /// Something was lost, or a time was over: time must pass for others to go on.
    is_hurt: bool,
    broken: bool,
    /// So often nothing could be done but to let time pass.
    looks: u8,
}

/// What a thread's step stands on.
struct Stands<'a> {
    world: &'a mut World,
    host: u8,
    which: usize,
    slept: Slept,
}

const LOCK: usize = 1;

impl Ground for Stands<'_> {
    type Error = core::convert::Infallible;

    fn host(&self) -> u8 {
        self.host
    }

    fn seen(&mut self) -> u32 {
        self.world.seen[usize::from(self.host)][self.which]
    }

    fn load(&mut self, word: u32) -> Result<u64, Self::Error> {
        Ok(self.world.words[self.which][word as usize])
    }

    fn exchange(&mut self, word: u32, from: u64, to: u64) -> Result<Result<(), u64>, Self::Error> {
        let word = &mut self.world.words[self.which][word as usize];
        Ok(match *word == from {
            true => {
                *word = to;
                Ok(())
            }
            false => Err(*word),
        })
    }

    fn set(&mut self, word: u32, bits: u64) -> Result<(), Self::Error> {
        self.world.words[self.which][word as usize] |= bits;
        Ok(())
    }

    fn clear(&mut self, word: u32, bits: u64) -> Result<u64, Self::Error> {
        let word = &mut self.world.words[self.which][word as usize];
        let were = *word & bits;
        *word &= !bits;
        Ok(were)
    }

    fn sleep(&mut self, _: u32, _: Patience) -> Slept {
        self.slept
    }

    fn wake(&mut self, hosts: u64) -> Result<(), Self::Error> {
        for host in (0..3).filter(|host| hosts >> host & 1 == 1) {
            match host == self.host {
                true => self.world.seen[usize::from(host)][self.which] += 1,
                false => self.world.flying.push((host, self.which, self.host)),
            }
        }
        self.world.flying.sort_unstable();
        Ok(())
    }

    fn lives(&mut self, process: Process) -> Result<bool, Self::Error> {
        let mut threads = self.world.threads.iter();
        Ok(threads.any(|thread| thread.process == process && !thread.is_dead))
    }
}

fn infallible<T>(result: Result<T, core::convert::Infallible>) -> T {
    match result {
        Ok(value) => value,
    }
}

impl World {
    /// Threads, each of a process of its own at a host.
    pub fn new(kind: Kind, threads: &[(u8, Script)]) -> Self {
        let thread = |(serial, &(host, script)): (usize, &(u8, Script))| Thread {
            process: Process::new(host, serial as u64 + 1),
            script,
            doing: Doing::Nothing,
            passed: 0,
            is_dead: false,
        };
        Self {
            words: [[0; 16]; 2],
            seen: [[0; 2]; 3],
            flying: vec![],
            threads: threads.iter().enumerate().map(thread).collect(),
            cells: Layout(kind).cells(),
            is_flagged: false,
            inside: vec![],
            is_owed: false,
            is_hurt: false,
            broken: false,
            looks: 0,
        }
    }

    /// Which it uses by its next step.
    fn which(&self, thread: usize) -> usize {
        match &self.threads[thread].doing {
            Doing::Take(_) | Doing::Give(_) | Doing::GiveThenAwait(..) => LOCK,
            Doing::Nothing
            | Doing::Arrive(_)
            | Doing::Await(_)
            | Doing::NotifyThenGive(_)
            | Doing::Done => 0,
        }
    }

    fn sleeps(&self, thread: usize) -> Option<u32> {
        let sleeps = match &self.threads[thread].doing {
            Doing::Take(take) => take.sleeps(),
            Doing::Arrive(arrive) => arrive.sleeps(),
            Doing::Await(waits) => waits.sleeps(),
            Doing::Nothing
            | Doing::Give(_)
            | Doing::GiveThenAwait(..)
            | Doing::NotifyThenGive(_)
            | Doing::Done => None,
        };
        sleeps.map(|(seen, _)| seen)
    }

    fn is_over(&self, thread: usize) -> bool {
        self.threads[thread].is_dead || self.threads[thread].doing == Doing::Done
    }

    /// All are done, or dead.
    pub fn is_all_over(&self) -> bool {
        (0..self.threads.len()).all(|thread| self.is_over(thread))
    }

    /// So many have passed the barrier so often, and nobody has it broken.
    pub fn passed(&self) -> Vec<u8> {
        self.threads.iter().map(|thread| thread.passed).collect()
    }

    /// What goes by itself; when nothing does, time passes, if that is needed.
    pub fn due(&self) -> Vec<Action> {
        let goes = |thread: &usize| {
            let host = usize::from(self.threads[*thread].process.host());
            let is_awake = |seen| seen != self.seen[host][self.which(*thread)];
            !self.is_over(*thread) && self.sleeps(*thread).is_none_or(is_awake)
        };
        let threads = 0..self.threads.len();
        let mut due: Vec<Action> = threads.clone().filter(goes).map(Action::Step).collect();
        let mut to: Vec<(u8, usize)> = self.flying.iter().map(|(to, of, _)| (*to, *of)).collect();
        to.dedup();
        due.extend(to.into_iter().map(|(to, of)| Action::Arrives(to, of)));
        if due.is_empty() && self.is_hurt {
            let sleeps = threads.filter(|thread| !self.is_over(*thread));
            due.extend(sleeps.map(Action::Looks));
        }
        due
    }

    /// Of a party that died before it ever came, a barrier knows nothing.
    fn is_known(&self, thread: usize) -> bool {
        let one = &self.threads[thread];
        let is_own = |word: &u64| party_of(*word) == Some(one.process);
        !matches!(one.script, Script::Arrives(_)) || self.words[0][8..].iter().any(is_own)
    }

    /// What may happen at any time.
    pub fn chances(&self, deaths: bool, looks: bool) -> Vec<Action> {
        let mut chances = vec![];
        for thread in (0..self.threads.len()).filter(|thread| !self.is_over(*thread)) {
            if deaths && self.is_known(thread) {
                chances.push(Action::Dies(thread));
                let host = self.threads[thread].process.host();
                let threads = 0..self.threads.len();
                let mut of = threads.filter(|one| self.threads[*one].process.host() == host);
                if of.all(|one| self.is_over(one) || self.is_known(one)) {
                    chances.push(Action::HostDies(host));
                }
            }
            if looks && self.sleeps(thread).is_some() {
                chances.push(Action::Looks(thread));
            }
            let may_give_up = matches!(self.threads[thread].script, Script::LocksWithin(_));
            if may_give_up && self.sleeps(thread).is_some() {
                chances.push(Action::TimesOut(thread));
            }
        }
        chances.dedup();
        chances
    }

    /// # Errors
    /// Which law is broken.
    pub fn act(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Step(thread) => self.step(thread, Slept::Woken),
            Action::Looks(thread) => {
                if self.due().contains(&action) {
                    self.looks += 1;
                    if usize::from(self.looks) > 6 * self.threads.len() {
                        return Err("they wait for ever".into());
                    }
                }
                self.step(thread, Slept::Looks)
            }
            Action::TimesOut(thread) => {
                self.is_hurt = true;
                self.step(thread, Slept::TimedOut)
            }
            Action::Arrives(to, of) => {
                let is_it = |(host, which, _): &(u8, usize, u8)| (*host, *which) == (to, of);
                let at = self.flying.iter().position(is_it);
                self.flying.remove(at.expect("it is on its way"));
                self.seen[usize::from(to)][of] += 1;
                Ok(())
            }
            Action::Dies(thread) => {
                self.dies(thread);
                Ok(())
            }
            Action::HostDies(host) => {
                let threads = 0..self.threads.len();
                let of = threads.filter(|thread| self.threads[*thread].process.host() == host);
                of.collect::<Vec<_>>()
                    .into_iter()
                    .for_each(|thread| self.dies(thread));
                self.flying
                    .retain(|(to, _, from)| *to != host && *from != host);
                Ok(())
            }
        }
    }

    fn dies(&mut self, thread: usize) {
        self.is_hurt = true;
        self.threads[thread].is_dead = true;
        self.threads[thread].doing = Doing::Done;
        if let Some(at) = self.inside.iter().position(|inside| *inside == thread) {
            self.inside.remove(at);
            self.is_owed = true;
        }
    }

    fn step(&mut self, thread: usize, slept: Slept) -> Result<(), String> {
        let which = self.which(thread);
        let mut doing = std::mem::replace(&mut self.threads[thread].doing, Doing::Nothing);
        let process = self.threads[thread].process;
        if let Doing::Give(give) | Doing::GiveThenAwait(give, _) = &doing
            && give.gives().is_some()
        {
            self.inside.retain(|inside| *inside != thread);
        }
        let cells = self.cells;
        let mut stands = Stands {
            host: process.host(),
            which,
            world: self,
            slept,
        };
        let next = match &mut doing {
            Doing::Nothing => Some(self.begins(thread)),
            Doing::Take(take) => match infallible(take.step(&mut stands)) {
                Some(taken) => Some(self.took(thread, taken)?),
                None => None,
            },
            Doing::Give(give) => match infallible(give.step(&mut stands)) {
                Some(true) => Some(Doing::Nothing),
                Some(false) => return Err("what it had is another's".into()),
                None => None,
            },
            Doing::GiveThenAwait(give, turn) => match infallible(give.step(&mut stands)) {
                Some(true) => Some(Doing::Await(Await::new(*turn))),
                Some(false) => return Err("what it had is another's".into()),
                None => None,
            },
            Doing::Await(waits) => infallible(waits.step(&mut stands))
                .map(|_| Doing::Take(Take::new(process, cells, true))),
            Doing::NotifyThenGive(notify) => infallible(notify.step(&mut stands))
                .map(|()| Doing::Give(Give::new(process, cells, true))),
            Doing::Arrive(arrive) => match infallible(arrive.step(&mut stands)) {
                Some(arrived) => Some(self.arrived(thread, arrived)?),
                None => None,
            },
            Doing::Done => None,
        };
        self.threads[thread].doing = next.unwrap_or(doing);
        Ok(())
    }

    /// What it does when it has done something.
    fn begins(&mut self, thread: usize) -> Doing {
        let (cells, one) = (self.cells, &mut self.threads[thread]);
        match &mut one.script {
            Script::Locks(0) | Script::LocksWithin(0) | Script::Arrives(0) => Doing::Done,
            Script::Locks(times) | Script::LocksWithin(times) => {
                *times -= 1;
                Doing::Take(Take::new(one.process, cells, true))
            }
            Script::Arrives(times) => {
                *times -= 1;
                Doing::Arrive(Arrive::new(one.process, cells))
            }
            Script::Waits | Script::Sets if one.passed > 0 => Doing::Done,
            Script::Waits | Script::Sets => Doing::Take(Take::new(one.process, cells, true)),
        }
    }

    fn took(&mut self, thread: usize, taken: Taken) -> Result<Doing, String> {
        let (cells, one) = (self.cells, &mut self.threads[thread]);
        let is_marked = match taken {
            Taken::Taken { is_marked } => is_marked,
            Taken::Busy if matches!(one.script, Script::LocksWithin(_)) => return Ok(Doing::Done),
            Taken::Busy => return Err("it did not wait".into()),
        };
        if std::mem::take(&mut self.is_owed) && !is_marked && cells.count == 1 {
            return Err("nobody told that a holder died".into());
        }
        self.inside.push(thread);
        if self.inside.len() > cells.count as usize {
            return Err(format!("{:?} have {} places", self.inside, cells.count));
        }
        let give = Give::new(one.process, cells, true);
        Ok(match one.script {
            Script::Waits if !self.is_flagged => {
                Doing::GiveThenAwait(give, self.words[0][STATE as usize])
            }
            Script::Sets => {
                one.passed = 1;
                self.is_flagged = true;
                Doing::NotifyThenGive(Notify::default())
            }
            Script::Waits => {
                one.passed = 1;
                Doing::Give(give)
            }
            Script::Locks(_) | Script::LocksWithin(_) | Script::Arrives(_) => Doing::Give(give),
        })
    }

    fn arrived(&mut self, thread: usize, arrived: Arrived) -> Result<Doing, String> {
        match arrived {
            Arrived::Broken if !self.is_hurt => Err("it is broken, and nobody died".into()),
            Arrived::Broken => {
                self.broken = true;
                Ok(Doing::Done)
            }
            Arrived::All(_) => {
                self.threads[thread].passed += 1;
                let passed = self.threads[thread].passed;
                // All others have come as often, those that died as well.
                let came = |other: &Thread| {
                    let is_in = matches!(other.doing, Doing::Arrive(_)) || other.is_dead;
                    other.passed + u8::from(is_in) >= passed
                };
                let others = self.threads.iter().enumerate();
                match others
                    .filter(|(at, _)| *at != thread)
                    .all(|(_, other)| came(other))
                {
                    true => Ok(Doing::Nothing),
                    false => Err("it went on, and not all had come".into()),
                }
            }
        }
    }

    /// Whoever has a place, as the words say.
    pub fn holders(&self) -> Vec<Held> {
        let places = 0..self.cells.count;
        let words = places.map(|at| self.words[LOCK][self.cells.word(at) as usize]);
        words.map(|word| Cell::from_word(word).held).collect()
    }
}
