//! What really happened: which port a name is for, which messages were sent, what was asked for.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::world::World;
use crate::message::{Disposition, Got, Name, Notice, Received};
use crate::{Give, Space};

/// Ids below are notifications.
pub(super) const FIRST_ID: u32 = 1000;

/// A port, wherever its receive right is.
pub(super) type Port = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Send,
    Once,
    Receive,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Sent {
    pub(super) to: Port,
    pub(super) once: bool,
    /// Sender, name and number, when it was sent by a send right.
    pub(super) stream: Option<(usize, Name, u32)>,
    pub(super) reply: Option<(Kind, Port)>,
    pub(super) rights: Vec<(Kind, Port)>,
    pub(super) received: bool,
}

/// A living task.
#[derive(Clone, Hash)]
pub(super) struct Task {
    pub(super) space: Space,
    pub(super) names: BTreeMap<Name, Port>,
    /// Where its notifications go; it is never given away.
    pub(super) told: Name,
    /// Notices that are to come about each name.
    pub(super) dead_names: BTreeMap<Name, u32>,
    /// The ports of slots for which the receive right was asked for, should it be destroyed.
    pub(super) slots: BTreeMap<u32, Port>,
    /// How often that was asked.
    pub(super) rescues: u32,
    /// How many messages were sent by each name.
    pub(super) streams: BTreeMap<Name, u32>,
}

#[derive(Clone, Default, Hash)]
pub(super) struct Truth {
    pub(super) ports: usize,
    pub(super) sent: Vec<Sent>,
    /// The last number received of each stream at its port.
    pub(super) last: BTreeMap<(usize, Name), u32>,
    /// A Link was cut or a task has crashed.
    pub(super) harm: bool,
    /// Notices to come at each port, which asks for itself.
    pub(super) no_senders: BTreeMap<Port, u32>,
    /// These were said to be dead.
    pub(super) claimed_dead: BTreeSet<Port>,
    /// Send-once rights of each port: made, and come back as a message or a notice.
    pub(super) onces_made: BTreeMap<Port, u32>,
    pub(super) onces_back: BTreeMap<Port, u32>,
}

pub(super) fn kind(how: Disposition) -> Kind {
    match how {
        Disposition::CopySend | Disposition::MoveSend | Disposition::MakeSend => Kind::Send,
        Disposition::MakeSendOnce | Disposition::MoveSendOnce => Kind::Once,
        Disposition::MoveReceive => Kind::Receive,
    }
}

impl Truth {
    pub(super) fn made(&mut self, port: Port) {
        *self.onces_made.entry(port).or_default() += 1;
    }

    fn back(&mut self, port: Port) {
        *self.onces_back.entry(port).or_default() += 1;
    }
}

impl World {
    pub(super) fn declared(&mut self, task: usize, give: Give) -> (Kind, Port) {
        let port = self.task(task).names[&give.name];
        if give.how == Disposition::MakeSendOnce {
            self.truth.made(port);
        }
        (kind(give.how), port)
    }

    /// Compares a message with what was sent, and learns the names of its rights.
    pub(super) fn received(&mut self, at: usize, message: &Received) {
        let port = self.task(at).names[&message.port];
        if message.id < FIRST_ID {
            self.notified(at, port, message);
            return;
        }
        let index = (message.id - FIRST_ID) as usize;
        let sent = self.truth.sent[index].clone();
        assert!(!sent.received, "message {index} is received twice");
        assert_eq!(sent.to, port, "message {index} came to another port");
        self.truth.sent[index].received = true;
        if sent.once {
            self.truth.back(port);
        }
        if let Some((task, name, number)) = sent.stream {
            let last = self.truth.last.insert((task, name), number).unwrap_or(0);
            let next = if self.truth.harm {
                number > last
            } else {
                number == last + 1
            };
            assert!(next, "message {number} of a stream came after {last}");
        }
        assert_eq!(sent.rights.len(), message.rights.len());
        assert_eq!(sent.reply.is_some(), message.reply.is_some());
        let got = message.reply.iter().chain(&message.rights);
        for (&got, &(kind, port)) in got.zip(sent.reply.iter().chain(&sent.rights)) {
            let fits = match got {
                Got::Send(_) => kind == Kind::Send,
                Got::SendOnce(_) => kind == Kind::Once,
                Got::Receive(_) => kind == Kind::Receive,
                Got::Dead => kind != Kind::Receive,
            };
            assert!(fits, "{kind:?} right came as {got:?}");
            self.learn(at, got, port);
        }
    }

    pub(super) fn learn(&mut self, at: usize, got: Got, port: Port) {
        match got.name() {
            Some(name) => {
                let known = self.task_mut(at).names.insert(name, port);
                assert!(
                    known.is_none_or(|known| known == port),
                    "a name changed its port"
                );
            }
            None => {
                self.truth.claimed_dead.insert(port);
            }
        }
    }

    fn notified(&mut self, at: usize, port: Port, message: &Received) {
        let task = self.tasks[at].as_mut().expect("it is alive");
        match Notice::of(message).expect("ids of notices") {
            Notice::SendOnce => self.truth.back(port),
            Notice::DeadName(name) | Notice::PortDeleted(name) => {
                self.truth.back(port);
                let asked = task
                    .dead_names
                    .get_mut(&name)
                    .expect("told, and nobody asked");
                *asked -= 1;
                if *asked == 0 {
                    task.dead_names.remove(&name);
                }
            }
            Notice::NoSenders(_) => {
                self.truth.back(port);
                let asked = self
                    .truth
                    .no_senders
                    .get_mut(&port)
                    .filter(|asked| **asked > 0);
                *asked.expect("told, and nobody asked") -= 1;
            }
            Notice::PortDestroyed => {
                self.truth.back(port);
                let [got @ Got::Receive(name)] = message.rights[..] else {
                    panic!("no receive right in {message:?}");
                };
                let slot = task.space.receive_port(name).expect("it came");
                let about = task.slots[&slot];
                self.learn(at, got, about);
            }
        }
    }
}
