//! One order of what all hosts do.
//!
//! The host that is in the cluster longest leads: others send it what they want done, it gives that a
//! number, and all do it. What a host wants it has done itself when it hears of it, so that its
//! programs are answered by what is the same everywhere.
//!
//! When the leader has gone, the next asks all others how far they have come, takes over from who came
//! furthest, and tells everybody all that there is. What was wanted and not answered is sent again:
//! each host numbers what it wants, and all know what of that was done.
//!
//! Invariant: what a host was told is done stays done while one host lives that has heard of it. Messages
//! from one host to another arrive in order, once, and none after the receiver has heard that the
//! sender is gone; hosts hear of the same views in the same order; who is in no view any more does not act.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::sysv::state::{Command, Reply, State, Thread};

/// What hosts tell each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// To the leader: this is wanted.
    Ask(Wish),
    /// By the leader: this is what comes next.
    Order {
        /// How many came before, and it.
        at: u64,
        /// Who wants it.
        by: u64,
        /// What.
        wish: Wish,
    },
    /// By the next leader: how far is it there?
    Collect,
    /// To the next leader: so far. The sender hears no other leader any more.
    Report(Option<Box<Log>>),
    /// By a leader: this is all that there is; what is wanted beyond it is to be sent again.
    Begin(Box<Log>),
}

/// What a host wants done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// Its number, by the host's count.
    number: u64,
    /// All before this one it has heard of.
    heard: u64,
    command: Command,
}

/// What is known of a host's wishes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    /// The last that was done.
    last: u64,
    /// Replies that it may not have heard.
    replies: BTreeMap<u64, Reply>,
}

/// All that was done, and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Log {
    count: u64,
    state: State,
    hosts: BTreeMap<u64, Known>,
}

impl Log {
    /// Does what comes next.
    fn apply(&mut self, by: u64, wish: &Wish) -> (Reply, alloc::vec::Vec<Thread>) {
        self.count += 1;
        let (reply, woken) = self.state.apply(&wish.command);
        let known = self.hosts.entry(by).or_default();
        known.last = wish.number;
        known.replies.insert(wish.number, reply.clone());
        known.replies.retain(|number, _| *number >= wish.heard);
        if let Command::Gone(host) = wish.command {
            self.hosts.remove(&host);
        }
        (reply, woken)
    }
}

/// What is to be done outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A message to a host.
    Send(u64, Message),
    /// What came of a wish of this host.
    Replied(u64, Reply),
    /// A thread of this host is to make its call again.
    Wake(Thread),
    /// All threads of this host that wait are to.
    WakeAll,
}

/// What no host that keeps to the rules sends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Something is wanting before it.
    #[error("host {by} says what comes after {before}, and it is {here} here")]
    Gap {
        /// Who.
        by: u64,
        /// What it takes for known.
        before: u64,
        /// What is.
        here: u64,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    /// It does what the leader says; `is_told`: that has begun.
    Follows {
        is_told: bool,
    },
    /// It is the next leader, and these have not reported.
    Collects {
        missing: BTreeSet<u64>,
    },
    Leads,
}

/// One host's part.
#[derive(Debug)]
pub struct Replica {
    own: u64,
    members: BTreeSet<u64>,
    /// The leader that is heard: a later one came later to the cluster.
    leader: u64,
    role: Role,
    log: Option<Box<Log>>,
    next: u64,
    /// What this host wants, and has not heard of.
    wishes: BTreeMap<u64, Command>,
    outputs: VecDeque<Output>,
}

impl Replica {
    /// Of a host that has joined.
    #[must_use]
    pub fn new(own: u64) -> Self {
        Self {
            own,
            members: BTreeSet::new(),
            leader: 0,
            role: Role::Follows { is_told: false },
            log: None,
            next: 0,
            wishes: BTreeMap::new(),
            outputs: VecDeque::new(),
        }
    }

    /// What is to be done, in this order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// This host wants something done. Its number: [`Output::Replied`] has it.
    pub fn ask(&mut self, command: Command) -> u64 {
        self.next += 1;
        let number = self.next;
        self.wishes.insert(number, command);
        self.say_wish(number);
        number
    }

    fn say_wish(&mut self, number: u64) {
        let Some(command) = self.wishes.get(&number) else {
            return;
        };
        let heard = self.wishes.keys().next().copied().unwrap_or(number);
        let wish = Wish {
            number,
            heard,
            command: command.clone(),
        };
        match self.role {
            Role::Leads => self.order(self.own, wish),
            Role::Follows { is_told: true } => self.send(self.leader, Message::Ask(wish)),
            // It is sent when a leader has begun.
            Role::Follows { is_told: false } | Role::Collects { .. } => {}
        }
    }

    fn send(&mut self, to: u64, message: Message) {
        self.outputs.push_back(Output::Send(to, message));
    }

    fn others(&self) -> BTreeSet<u64> {
        let others = self.members.iter().filter(|host| **host != self.own);
        others.copied().collect()
    }

    fn order(&mut self, by: u64, wish: Wish) {
        let at = self.log.as_ref().map_or(0, |log| log.count) + 1;
        for other in self.others() {
            let wish = wish.clone();
            self.send(other, Message::Order { at, by, wish });
        }
        self.apply(by, &wish);
    }

    fn apply(&mut self, by: u64, wish: &Wish) {
        let (reply, woken) = self.log.get_or_insert_default().apply(by, wish);
        if by == self.own && self.wishes.remove(&wish.number).is_some() {
            self.outputs.push_back(Output::Replied(wish.number, reply));
        }
        let own = woken
            .into_iter()
            .filter(|thread| thread.process.host == self.own);
        self.outputs.extend(own.map(Output::Wake));
    }

    /// These hosts are in the cluster from now on.
    pub fn viewed(&mut self, members: &BTreeSet<u64>) {
        let joined: BTreeSet<u64> = members.difference(&self.members).copied().collect();
        self.members.clone_from(members);
        let others = self.others();
        if members.first() != Some(&self.own) {
            return;
        }
        match &mut self.role {
            Role::Follows { .. } => {
                self.leader = self.own;
                for other in &others {
                    self.send(*other, Message::Collect);
                }
                self.role = Role::Collects { missing: others };
            }
            Role::Collects { missing } => {
                missing.retain(|host| others.contains(host));
                let new: BTreeSet<u64> = joined.intersection(&others).copied().collect();
                missing.extend(&new);
                new.into_iter()
                    .for_each(|host| self.send(host, Message::Collect));
            }
            Role::Leads => {
                let log = self.log.clone().unwrap_or_default();
                for new in joined.intersection(&others) {
                    self.send(*new, Message::Begin(log.clone()));
                }
                self.order_gone();
            }
        }
        self.leads_if_all_reported();
    }

    fn leads_if_all_reported(&mut self) {
        match &self.role {
            Role::Collects { missing } if missing.is_empty() => {}
            Role::Collects { .. } | Role::Follows { .. } | Role::Leads => return,
        }
        let log = self.log.get_or_insert_default().clone();
        for other in self.others() {
            self.send(other, Message::Begin(log.clone()));
        }
        self.role = Role::Leads;
        self.takes_up();
        self.order_gone();
    }

    /// What hosts that are gone left is dealt with at one place of the order.
    fn order_gone(&mut self) {
        let known = self.log.as_ref().map(|log| log.hosts.keys().copied());
        let gone: BTreeSet<u64> = known
            .into_iter()
            .flatten()
            .filter(|host| !self.members.contains(host))
            .collect();
        for host in gone {
            self.ask(Command::Gone(host));
        }
    }

    /// All that there is has come: what of this host's wishes is in it is heard, the others are said again.
    fn takes_up(&mut self) {
        let known = self.log.as_ref().and_then(|log| log.hosts.get(&self.own));
        let known = known.cloned().unwrap_or_default();
        for (number, reply) in known.replies {
            if self.wishes.remove(&number).is_some() {
                self.outputs.push_back(Output::Replied(number, reply));
            }
        }
        self.outputs.push_back(Output::WakeAll);
        let open: BTreeSet<u64> = self.wishes.keys().copied().collect();
        open.into_iter().for_each(|number| self.say_wish(number));
    }

    /// A message came.
    ///
    /// # Errors
    /// When it cannot be; nothing has changed then.
    pub fn received(&mut self, from: u64, message: Message) -> Result<(), Violation> {
        match message {
            Message::Ask(wish) => {
                let log = self.log.as_ref().and_then(|log| log.hosts.get(&from));
                let is_new = log.is_none_or(|known| wish.number > known.last);
                if self.role == Role::Leads && self.members.contains(&from) && is_new {
                    self.order(from, wish);
                }
            }
            Message::Order { at, by, wish } => {
                let is_leader = self.leader == from;
                if !is_leader || self.role != (Role::Follows { is_told: true }) {
                    return Ok(());
                }
                let here = self.log.as_ref().map_or(0, |log| log.count);
                if at != here + 1 {
                    return Err(Violation::Gap {
                        by: from,
                        before: at.saturating_sub(1),
                        here,
                    });
                }
                self.apply(by, &wish);
            }
            Message::Collect if from > self.leader => {
                self.leader = from;
                self.role = Role::Follows { is_told: false };
                self.send(from, Message::Report(self.log.clone()));
            }
            Message::Begin(log) if from >= self.leader && from != self.own => {
                self.leader = from;
                self.role = Role::Follows { is_told: true };
                self.log = Some(log);
                self.takes_up();
            }
            Message::Report(log) => self.reported(from, log),
            // Of one who led before.
            Message::Collect | Message::Begin(_) => {}
        }
        Ok(())
    }

    fn reported(&mut self, from: u64, log: Option<Box<Log>>) {
        let Role::Collects { missing } = &mut self.role else {
            return;
        };
        if !missing.remove(&from) {
            return;
        }
        let count = |log: &Option<Box<Log>>| log.as_ref().map(|log| log.count);
        if count(&log) > count(&self.log) {
            self.log = log;
        }
        self.leads_if_all_reported();
    }

    /// What is known here, for tests.
    #[cfg(test)]
    pub(crate) fn log(&self) -> Option<&Log> {
        self.log.as_deref()
    }
}

#[cfg(test)]
mod tests;
