//! Names of ports, the same for all hosts of the cluster: the store is asked by a thread of its own.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use farpage_client::interface::{NetNameCalls, Tried};
use farpage_client::{PortListed, PortsListed, Refusal};
use farpage_port::interface::Answer;
use farpage_port::{Right, SendRight, Sender};
use farpage_rights::netports::{Kind, Port, Stay};

use super::{Inner, Kept, Known, guard};
use crate::service::identity::identity;
use crate::service::names;

/// Calls that wait for the store at most.
const ASKED_MAX: usize = 256;
/// Ports of one host that have names at most.
const NAMES_MAX: usize = 4096;
/// Before what the store did not do is tried again.
const AGAIN: Duration = Duration::from_secs(1);

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

    /// Why there is no use in asking now, without waiting: the store is known not to answer.
    fn lost(&self) -> Option<Refusal>;
}

/// A port of this host's that has a name.
#[derive(Clone, Copy)]
pub(super) struct Named {
    pub(super) number: u64,
    pub(super) uid: u32,
    /// Which giving of a name of this host's it was.
    nth: u64,
}

/// What the thread that asks the store does.
pub(super) enum Work {
    CheckIn(String, Named, Answer<Tried<()>>),
    LookUp(String, u32, Answer<Tried<SendRight>>),
    CheckOut(String, Named, Answer<Tried<()>>),
    /// The port of a name is dead, which nobody waits for.
    Died(String, u64),
    List(u32, Answer<Tried<PortsListed>>),
}

impl Work {
    /// What is known here is listed without the store.
    fn needs_store(&self) -> bool {
        !matches!(self, Self::List(..))
    }

    fn refuse(self, refusal: Refusal) {
        match self {
            Self::CheckIn(.., answer) => {
                answer.give(Tried(Err(refusal)));
            }
            Self::LookUp(.., answer) => {
                answer.give(Tried(Err(refusal)));
            }
            Self::CheckOut(.., answer) => {
                answer.give(Tried(Err(refusal)));
            }
            Self::Died(..) => {}
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

/// Has what the store may have of a name taken away, if anything.
fn takes_away(store: &dyn Names, name: &str, open: &mut Vec<(String, u64)>) -> Result<(), Refusal> {
    if open.len() >= NAMES_MAX {
        let why = "too many names wait for the cluster's store to forget them; try again";
        return Err(Refusal::Cluster(why.into()));
    }
    while let Some(at) = open.iter().position(|(one, _)| one == name) {
        store.check_out(name, open[at].1)?;
        open.swap_remove(at);
    }
    Ok(())
}

impl Inner {
    pub(super) fn names(&self, work: &Receiver<Work>) {
        let store = &*self.store;
        // Names that the store may have, and that are none any more.
        let mut open: Vec<(String, u64)> = Vec::new();
        let mut again = Instant::now();
        loop {
            let next = match open.is_empty() {
                true => work.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => work.recv_timeout(again.saturating_duration_since(Instant::now())),
            };
            match next {
                Ok(work) => self.does(store, work, &mut open),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // However much else is asked meanwhile.
            if again <= Instant::now() {
                while store.lost().is_none()
                    && let Some((name, number)) = open.last()
                    && store.check_out(name, *number).is_ok()
                {
                    open.pop();
                }
                again = Instant::now() + AGAIN;
            }
        }
    }

    fn does(&self, store: &dyn Names, work: Work, open: &mut Vec<(String, u64)>) {
        // Those that have waited behind one that found it out.
        let lost = store.lost().filter(|_| work.needs_store());
        if let Work::Died(name, number) = work {
            if lost.is_some() || store.check_out(&name, number).is_err() {
                open.push((name, number));
            }
            return;
        }
        self.asked.fetch_sub(1, Ordering::Relaxed);
        if let Some(lost) = lost {
            return self.refuses(work, lost);
        }
        match work {
            Work::Died(..) => unreachable!("it was done"),
            Work::CheckIn(name, named, answer) => {
                let mut done = takes_away(store, &name, open);
                if done.is_ok() {
                    done = store.check_in(&name, named.number, named.uid);
                    if let Err(Refusal::Cluster(_)) = done {
                        // It may have been done.
                        open.push((name.clone(), named.number));
                    }
                }
                if done.is_err() {
                    self.unname(&name, named);
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
            Work::CheckOut(name, named, answer) => {
                let done = store.check_out(&name, named.number);
                if done.is_ok() {
                    self.unname(&name, named);
                }
                answer.give(Tried(done));
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
    fn unname(&self, name: &str, of: Named) {
        let mut state = guard(self);
        // It may have been given again since.
        if state
            .names
            .get(name)
            .is_some_and(|named| named.nth == of.nth)
        {
            state.names.remove(name);
        }
        let has_others = state.names.values().any(|named| named.number == of.number);
        if let Some(stay) = state.stay.as_mut().filter(|_| !has_others) {
            stay.table.name(of.number, false);
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

    fn checks_in(&self, name: &str, uid: u32, port: SendRight) -> Result<Named, Refusal> {
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
        state.named += 1;
        let nth = state.named;
        let named = Named { number, uid, nth };
        state.names.insert(name.into(), named);
        if let Some(stay) = &mut state.stay {
            stay.table.name(number, true);
        }
        Ok(named)
    }

    /// A port that has its name at this host.
    fn own(&self, name: &str, uid: u32) -> Option<Result<(Named, SendRight), Refusal>> {
        let state = guard(self);
        let named = *state.names.get(name)?;
        let Some(Kept::Send(real)) = state.rights.get(&named.number) else {
            return None;
        };
        let may = may(uid, named.uid, name);
        Some(may.map(|()| (named, real.right.clone())))
    }

    fn refuses(&self, work: Work, refusal: Refusal) {
        if let Work::CheckIn(name, named, _) = &work {
            self.unname(name, *named);
        }
        work.refuse(refusal);
    }

    /// Has the store asked, if it answers and few wait for that.
    fn asks(&self, work: Work) {
        if let Some(lost) = self.store.lost().filter(|_| work.needs_store()) {
            return self.refuses(work, lost);
        }
        if self.asked.fetch_add(1, Ordering::Relaxed) >= ASKED_MAX {
            self.asked.fetch_sub(1, Ordering::Relaxed);
            let why = "too many calls wait for the cluster's store; try again";
            return self.refuses(work, Refusal::Cluster(why.into()));
        }
        // The thread ends with the process.
        let _ = self.work.send(work);
    }
}

impl NetNameCalls for &Inner {
    fn check_in(
        &mut self,
        caller: Sender,
        name: String,
        port: SendRight,
        answer: Answer<Tried<()>>,
    ) {
        let (uid, _) = identity(caller);
        match self.checks_in(&name, uid, port) {
            Ok(named) => self.asks(Work::CheckIn(name, named, answer)),
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
            Ok((named, _)) => self.asks(Work::CheckOut(name, named, answer)),
            Err(refusal) => {
                answer.give(Tried(Err(refusal)));
            }
        }
    }

    fn list(&mut self, caller: Sender, answer: Answer<Tried<PortsListed>>) {
        self.asks(Work::List(identity(caller).0, answer));
    }
}
