//! Names of ports, the same for all hosts of the cluster: the store is asked by a thread of its own.

use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use farpage_netports::{Kind, Port, Stay};
use farpage_port::interface::Answer;
use farpage_port::{Right, SendRight, Sender};
use serde::{Deserialize, Serialize};

use super::{Inner, Kept, Known, guard};
use crate::interface::{NetName, Tried};
use crate::service::identity;
use crate::{Refusal, names};

/// Calls that wait for the store at most.
const ASKED_MAX: usize = 256;
/// Ports of one host that have names at most.
const NAMES_MAX: usize = 4096;

/// Where a port is, as the cluster's store has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The stay of its host.
    pub home: u64,
    /// What that host calls it.
    pub number: u64,
    /// Whose it is.
    pub uid: u32,
}

/// The cluster's store of names. Its calls may take as long as the store does.
pub trait Names: Send + Sync {
    /// Gives a port of this host's a name.
    ///
    /// # Errors
    /// [`Refusal::PortExists`], [`Refusal::Cluster`].
    fn check_in(&self, name: &str, number: u64, uid: u32) -> Result<(), Refusal>;

    /// The port of a name.
    ///
    /// # Errors
    /// [`Refusal::NoPort`], [`Refusal::Cluster`].
    fn look_up(&self, name: &str) -> Result<Found, Refusal>;

    /// Takes its name away from a port of this host's.
    ///
    /// # Errors
    /// [`Refusal::Cluster`].
    fn check_out(&self, name: &str, number: u64) -> Result<(), Refusal>;

    /// All ports that have names, with those of other users.
    ///
    /// # Errors
    /// [`Refusal::Cluster`].
    fn list(&self) -> Result<Vec<PortListed>, Refusal>;
}

/// A port that has a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortListed {
    /// Its name.
    pub name: String,
    /// What its host calls itself.
    pub host: String,
    /// Its host is this one.
    pub is_own: bool,
    /// Whose it is.
    pub uid: u32,
}

/// Ports of the cluster, as one host knows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortsListed {
    /// Those that have names, and that the caller may use.
    pub named: Vec<PortListed>,
    /// Rights to ports of this host that other hosts have.
    pub held_by_others: u64,
    /// Rights to ports of other hosts that this one has.
    pub held_of_others: u64,
}

/// A port of this host's that has a name.
pub(super) struct Named {
    pub(super) number: u64,
    pub(super) uid: u32,
}

/// What the thread that asks the store does.
pub(super) enum Work {
    CheckIn(String, u64, u32, Answer<Tried<()>>),
    LookUp(String, u32, Answer<Tried<SendRight>>),
    CheckOut(String, u64, Option<Answer<Tried<()>>>),
    List(u32, Answer<Tried<PortsListed>>),
}

impl Work {
    fn refuse(self) {
        let why = "too many calls wait for the cluster's store; try again";
        let refusal = Refusal::Cluster(why.into());
        match self {
            Self::CheckIn(.., answer) => {
                answer.give(Tried(Err(refusal)));
            }
            Self::LookUp(.., answer) => {
                answer.give(Tried(Err(refusal)));
            }
            Self::CheckOut(.., answer) => {
                if let Some(answer) = answer {
                    answer.give(Tried(Err(refusal)));
                }
            }
            Self::List(.., answer) => {
                answer.give(Tried(Err(refusal)));
            }
        }
    }
}

fn may(uid: u32, of: u32, name: &str) -> Result<(), Refusal> {
    match uid == of || uid == 0 {
        true => Ok(()),
        false => Err(Refusal::NotYours(name.into())),
    }
}

fn check(name: &str) -> Result<(), Refusal> {
    names::check(name).map_err(|refusal| match refusal {
        Refusal::Name(shown) => Refusal::PortName(shown),
        other => other,
    })
}

impl Inner {
    pub(super) fn names(&self, store: &dyn Names, work: &Receiver<Work>) {
        for work in work {
            if !matches!(work, Work::CheckOut(.., None)) {
                self.asked.fetch_sub(1, Ordering::Relaxed);
            }
            match work {
                Work::CheckIn(name, number, uid, answer) => {
                    let done = store.check_in(&name, number, uid);
                    if done.is_err() {
                        self.unname(&name, number);
                    }
                    answer.give(Tried(done));
                }
                Work::LookUp(name, uid, answer) => {
                    let found = store.look_up(&name);
                    let found = found.and_then(|found| may(uid, found.uid, &name).map(|()| found));
                    match found {
                        Ok(found) => self.found(name, found, answer),
                        Err(refusal) => {
                            answer.give(Tried(Err(refusal)));
                        }
                    }
                }
                Work::CheckOut(name, number, answer) => {
                    let done = store.check_out(&name, number);
                    if let Some(answer) = answer {
                        answer.give(Tried(done));
                    }
                }
                Work::List(uid, answer) => {
                    let named = store.list().map(|mut named| {
                        named.retain(|one| may(uid, one.uid, "").is_ok());
                        self.listed(named)
                    });
                    answer.give(Tried(named));
                }
            }
        }
    }

    fn listed(&self, named: Vec<PortListed>) -> PortsListed {
        let state = guard(self);
        let counts = state.stay.as_ref().map(|stay| stay.table.counts());
        let (by, of) = counts.unwrap_or_default();
        PortsListed {
            named,
            held_by_others: by as u64,
            held_of_others: of as u64,
        }
    }

    /// A name of this host's is none any more.
    fn unname(&self, name: &str, number: u64) {
        let mut state = guard(self);
        let is_it = |named: &Named| named.number == number;
        if state.names.get(name).is_some_and(is_it) {
            state.names.remove(name);
        }
        let has_others = state.names.values().any(is_it);
        if let Some(stay) = state.stay.as_mut().filter(|_| !has_others) {
            stay.table.name(number, false);
        }
        self.drain(&mut state);
    }

    /// The store has told where a port is.
    fn found(&self, name: String, found: Found, answer: Answer<Tried<SendRight>>) {
        let mut state = guard(self);
        let port = Port {
            home: Stay(found.home),
            number: found.number,
        };
        let Some(stay) = &mut state.stay else {
            let out = Refusal::Cluster("this host is out of the cluster".into());
            answer.give(Tried(Err(out)));
            return;
        };
        if port.home == stay.table.own() {
            // It had been given away here by then.
            answer.give(Tried(Err(Refusal::NoPort(name))));
            return;
        }
        match stay.table.look_up(port) {
            true => {
                let right = self.local_send(&mut state, port);
                answer.give(Tried(Ok(right)));
            }
            false => {
                let waiting = state.looked_up.entry(port).or_default();
                waiting.push((name, answer));
            }
        }
        self.drain(&mut state);
    }

    fn checks_in(&self, name: &str, uid: u32, port: SendRight) -> Result<u64, Refusal> {
        check(name)?;
        let mut state = guard(self);
        if state.stay.is_none() {
            return Err(Refusal::Cluster("this host is out of the cluster".into()));
        }
        if state.names.len() >= NAMES_MAX {
            let why =
                format!("this host has given {NAMES_MAX} ports names already; check some out");
            return Err(Refusal::Cluster(why));
        }
        if state.names.contains_key(name) {
            return Err(Refusal::PortExists(name.into()));
        }
        let number = match self.known(&mut state, Right::Send(port)) {
            Some(Known::Own(number, Kind::Send)) => number,
            Some(Known::Proxy(_)) => return Err(Refusal::PortElsewhere(name.into())),
            Some(Known::Own(_, Kind::Once) | Known::Dead) | None => {
                return Err(Refusal::PortDead(name.into()));
            }
        };
        state.names.insert(name.into(), Named { number, uid });
        if let Some(stay) = &mut state.stay {
            stay.table.name(number, true);
        }
        Ok(number)
    }

    /// A port that has its name at this host.
    fn own(&self, name: &str, uid: u32) -> Option<Result<(u64, SendRight), Refusal>> {
        let state = guard(self);
        let named = state.names.get(name)?;
        let Some(Kept::Send(real)) = state.rights.get(&named.number) else {
            return None;
        };
        let may = may(uid, named.uid, name);
        Some(may.map(|()| (named.number, real.right.clone())))
    }

    /// Has the store asked, if few wait for that.
    fn asks(&self, work: Work) {
        if self.asked.fetch_add(1, Ordering::Relaxed) >= ASKED_MAX {
            self.asked.fetch_sub(1, Ordering::Relaxed);
            if let Work::CheckIn(name, number, ..) = &work {
                self.unname(name, *number);
            }
            return work.refuse();
        }
        // The thread ends with the process.
        let _ = self.work.send(work);
    }
}

impl NetName for &Inner {
    fn check_in(
        &mut self,
        caller: Sender,
        name: String,
        port: SendRight,
        answer: Answer<Tried<()>>,
    ) {
        let (uid, _) = identity(caller);
        match self.checks_in(&name, uid, port) {
            Ok(number) => self.asks(Work::CheckIn(name, number, uid, answer)),
            Err(refusal) => {
                answer.give(Tried(Err(refusal)));
            }
        }
    }

    fn look_up(&mut self, caller: Sender, name: String, answer: Answer<Tried<SendRight>>) {
        let (uid, _) = identity(caller);
        let known = match check(&name) {
            Ok(()) => self.own(&name, uid),
            Err(refusal) => Some(Err(refusal)),
        };
        match known {
            Some(known) => {
                answer.give(Tried(known.map(|(_, right)| right)));
            }
            None => self.asks(Work::LookUp(name, uid, answer)),
        }
    }

    fn check_out(&mut self, caller: Sender, name: String, answer: Answer<Tried<()>>) {
        let (uid, _) = identity(caller);
        let known = check(&name).and_then(|()| {
            let own = self.own(&name, uid);
            own.unwrap_or_else(|| Err(Refusal::PortNotHere(name.clone())))
        });
        match known {
            Ok((number, _)) => {
                self.unname(&name, number);
                self.asks(Work::CheckOut(name, number, Some(answer)));
            }
            Err(refusal) => {
                answer.give(Tried(Err(refusal)));
            }
        }
    }

    fn list(&mut self, caller: Sender, answer: Answer<Tried<PortsListed>>) {
        self.asks(Work::List(identity(caller).0, answer));
    }
}
