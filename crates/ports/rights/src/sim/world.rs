//! The tasks, their Links, and what happens.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use super::rng::Rng;
use super::truth::{FIRST_ID, Sent, Task, Truth, kind};
use crate::error::SendError;
use crate::frame::Frame;
use crate::message::{Disposition, Give, LinkId, Message, Name, TaskId};
use crate::right::{Entry, Target};
use crate::{Output, Request, Space, Wait, Waiter, Woken};

pub(super) const EVENTS: usize = 22;

/// Something that may happen next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Allocate {
        task: usize,
    },
    Make {
        task: usize,
        name: Name,
    },
    Drop {
        task: usize,
        name: Name,
    },
    Destroy {
        task: usize,
        name: Name,
    },
    Limit {
        task: usize,
        name: Name,
        limit: u16,
    },
    Send {
        task: usize,
        to: Give,
        reply: Option<Give>,
        rights: Vec<Give>,
    },
    DeadName {
        task: usize,
        name: Name,
    },
    NoSenders {
        task: usize,
        name: Name,
    },
    Rescue {
        task: usize,
        name: Name,
    },
    Receive {
        task: usize,
        name: Name,
    },
    Wait {
        task: usize,
        what: Wait,
    },
    Deliver {
        link: LinkId,
        end: usize,
    },
    Cut {
        link: LinkId,
    },
    Notice {
        link: LinkId,
        end: usize,
    },
    Crash {
        task: usize,
    },
    Introduce {
        task: usize,
        other: usize,
        works: bool,
    },
}

/// A Link between two tasks.
#[derive(Clone, Hash)]
pub(super) struct Wire {
    pub(super) ends: [usize; 2],
    /// Frames on their way to each end, as bytes.
    pub(super) queues: [VecDeque<Vec<u8>>; 2],
    pub(super) cut: bool,
    /// Which end has noticed.
    pub(super) noticed: [bool; 2],
}

/// How a world begins.
pub(super) struct Setup {
    pub(super) tasks: usize,
    /// Pairs without a Link at first.
    pub(super) strangers: Vec<(usize, usize)>,
    pub(super) harmful: bool,
}

impl Setup {
    pub(super) fn random(rng: &mut Rng) -> Self {
        let tasks = 2 + rng.below(3);
        let mut strangers = Vec::new();
        for a in 0..tasks {
            for b in a + 1..tasks {
                if tasks > 2 && a > 0 && rng.chance(300) {
                    strangers.push((a, b));
                }
            }
        }
        Self {
            tasks,
            strangers,
            harmful: rng.chance(500),
        }
    }
}

#[derive(Clone, Hash)]
pub(super) struct World {
    pub(super) tasks: Vec<Option<Task>>,
    pub(super) wires: BTreeMap<LinkId, Wire>,
    pub(super) introductions: BTreeSet<(usize, usize)>,
    pub(super) truth: Truth,
    pub(super) harmful: bool,
    next_link: u32,
    /// Who waits for what, by number.
    waiters: Vec<(usize, Wait)>,
    /// Which port each end of a Link has offered.
    offers: BTreeMap<(LinkId, usize), usize>,
    /// How often each frame and event was met.
    pub(super) met: [u32; 32],
}

impl World {
    pub(super) fn new(setup: &Setup) -> Self {
        let mut world = Self {
            tasks: Vec::new(),
            wires: BTreeMap::new(),
            introductions: BTreeSet::new(),
            truth: Truth::default(),
            harmful: setup.harmful,
            next_link: 0,
            waiters: Vec::new(),
            offers: BTreeMap::new(),
            met: [0; 32],
        };
        for task in 0..setup.tasks {
            let mut space = Space::new(TaskId(task as u64));
            let told = space.allocate_port();
            let names = BTreeMap::from([(told, world.truth.ports)]);
            world.truth.ports += 1;
            world.tasks.push(Some(Task {
                space,
                names,
                told,
                dead_names: BTreeMap::new(),
                slots: BTreeMap::new(),
                rescues: 0,
                streams: BTreeMap::new(),
            }));
        }
        for a in 0..setup.tasks {
            for b in a + 1..setup.tasks {
                if !setup.strangers.contains(&(a, b)) {
                    world.connect(a, b);
                }
            }
        }
        world.deliver_all();
        world
    }

    pub(super) fn task(&self, task: usize) -> &Task {
        self.tasks[task].as_ref().expect("it is alive")
    }

    pub(super) fn task_mut(&mut self, task: usize) -> &mut Task {
        self.tasks[task].as_mut().expect("it is alive")
    }

    fn connected(&self, a: usize, b: usize) -> bool {
        self.wires
            .values()
            .any(|wire| wire.ends == [a.min(b), a.max(b)])
    }

    /// Brings up a Link; each side offers a right to a new port.
    fn connect(&mut self, a: usize, b: usize) {
        let link = LinkId(self.next_link);
        self.next_link += 1;
        let ends = [a.min(b), a.max(b)];
        self.wires.insert(
            link,
            Wire {
                ends,
                queues: [VecDeque::new(), VecDeque::new()],
                cut: false,
                noticed: [false; 2],
            },
        );
        for (end, &task) in ends.iter().enumerate() {
            let peer = TaskId(ends[1 - end] as u64);
            let space = &mut self.task_mut(task).space;
            space.link_up(link, peer, 0).unwrap();
            space.expect_offer(u64::from(link.0));
        }
        for (end, &task) in ends.iter().enumerate() {
            let port = self.allocate(task);
            let give = Give::new(port, Disposition::MakeSend);
            self.offers.insert((link, end), self.truth.ports - 1);
            let it = self.task_mut(task);
            it.space.offer(link, u64::from(link.0), give).unwrap();
            self.outputs(task);
        }
    }

    fn allocate(&mut self, task: usize) -> Name {
        let port = self.truth.ports;
        self.truth.ports += 1;
        let it = self.task_mut(task);
        let name = it.space.allocate_port();
        it.space.set_limit(name, 2).unwrap();
        it.names.insert(name, port);
        name
    }

    /// Carries out what a Space has put out.
    pub(super) fn outputs(&mut self, task: usize) {
        let mut woken = Vec::new();
        while let Some(output) = self.task_mut(task).space.poll_output() {
            match output {
                Output::Frame { link, frame, .. } => {
                    self.met[number(&frame)] += 1;
                    let mut bytes = Vec::new();
                    frame.encode(&mut bytes);
                    let wire = self
                        .wires
                        .get_mut(&link)
                        .expect("frames go by Links that are up");
                    let end = usize::from(wire.ends[0] == task);
                    if !wire.cut {
                        wire.queues[end].push_back(bytes);
                    }
                }
                Output::Introduce { task: other, .. } => {
                    self.introductions.insert((task, other.0 as usize));
                }
                Output::Offered { link, right, .. } => {
                    let end = usize::from(self.wires[&link].ends[0] == task);
                    let port = self.offers[&(link, end)];
                    self.learn(task, right, port);
                }
                Output::Wake { waiter, why } => woken.push((waiter, why)),
                Output::Close(_) | Output::Unused(_) => {}
            }
        }
        self.prune(task);
        for (waiter, why) in woken {
            self.woken(task, waiter, why);
        }
    }

    /// Takes the message that it waited for, or lets the next one have the room.
    fn woken(&mut self, task: usize, waiter: Waiter, why: Woken) {
        self.met[EVENTS - 1] += 1;
        let what = self.waiters[waiter.0 as usize].1;
        if let Wait::Message(name) = what
            && self.task(task).names.contains_key(&name)
        {
            self.receive(task, name);
        }
        if let Woken::Ready(chance) = why {
            self.task_mut(task).space.pass_on(chance);
            self.outputs(task);
        }
    }

    /// Forgets names that were freed.
    fn prune(&mut self, task: usize) {
        let Task { space, names, .. } = self.task_mut(task);
        names.retain(|name, _| space.names.of(name.key()).is_some());
        assert_eq!(names.len(), space.names.len(), "a right out of nothing");
    }

    pub(super) fn deliver_all(&mut self) {
        while let Some((link, end)) = self.deliverable().first().copied() {
            self.deliver(link, end);
        }
    }

    /// Link ends with frames on their way to them.
    pub(super) fn deliverable(&self) -> Vec<(LinkId, usize)> {
        let mut all = Vec::new();
        for (&link, wire) in &self.wires {
            all.extend(
                (0..2)
                    .filter(|&end| !wire.queues[end].is_empty())
                    .map(|end| (link, end)),
            );
        }
        all
    }

    pub(super) fn deliver(&mut self, link: LinkId, end: usize) {
        let wire = self
            .wires
            .get_mut(&link)
            .expect("only Links that are there deliver");
        let task = wire.ends[end];
        let bytes = wire.queues[end]
            .pop_front()
            .expect("only frames on their way are delivered");
        let frame = Frame::decode(&bytes).expect("what was encoded is decoded");
        let handled = self.task_mut(task).space.handle_frame(link, frame, vec![]);
        handled.expect("nobody breaks the protocol");
        self.outputs(task);
    }

    /// Both ends see a cut Link.
    pub(super) fn notice(&mut self, link: LinkId, end: usize) {
        let wire = self.wires.get_mut(&link).expect("it is there");
        wire.queues[end].clear();
        wire.noticed[end] = true;
        let task = wire.ends[end];
        if wire.noticed == [true; 2] {
            self.wires.remove(&link);
        }
        if self.tasks[task].is_some() {
            self.task_mut(task).space.link_down(link);
            self.outputs(task);
        }
    }

    pub(super) fn act(&mut self, action: &Action) {
        match *action {
            Action::Allocate { task } => {
                self.allocate(task);
            }
            Action::Make { task, name } => {
                let give = Give::new(name, Disposition::MakeSend);
                let made = self.task_mut(task).space.insert(give).unwrap();
                assert_eq!(made, name);
                self.outputs(task);
            }
            Action::Drop { task, name } => {
                self.task_mut(task).space.deallocate(name).unwrap();
                self.outputs(task);
            }
            Action::Destroy { task, name } => {
                self.task_mut(task).space.destroy_receive(name).unwrap();
                self.outputs(task);
            }
            Action::Limit { task, name, limit } => {
                self.task_mut(task).space.set_limit(name, limit).unwrap();
                self.outputs(task);
            }
            Action::Send {
                task,
                to,
                reply,
                ref rights,
            } => self.send(task, to, reply, rights),
            Action::DeadName { task, name } => self.request(task, name, Request::DeadName),
            Action::NoSenders { task, name } => {
                self.request(task, name, Request::NoSenders { sync: 0 });
            }
            Action::Rescue { task, name } => self.request(task, name, Request::PortDestroyed),
            Action::Receive { task, name } => self.receive(task, name),
            Action::Wait { task, what } => {
                self.waiters.push((task, what));
                let waiter = Waiter(self.waiters.len() as u64 - 1);
                self.task_mut(task).space.wait(what, waiter, None).unwrap();
                self.outputs(task);
            }
            Action::Deliver { link, end } => self.deliver(link, end),
            Action::Cut { link } => {
                self.truth.harm = true;
                self.wires.get_mut(&link).expect("it is there").cut = true;
            }
            Action::Notice { link, end } => self.notice(link, end),
            Action::Crash { task } => self.crash(task),
            Action::Introduce { task, other, works } => self.introduce(task, other, works),
        }
    }

    fn crash(&mut self, task: usize) {
        self.truth.harm = true;
        self.tasks[task] = None;
        self.introductions.retain(|&(one, _)| one != task);
        let links: Vec<LinkId> = self.wires.keys().copied().collect();
        for link in links {
            let wire = self.wires.get_mut(&link).expect("listed above");
            if let Some(end) = wire.ends.iter().position(|&end| end == task) {
                wire.cut = true;
                if !wire.noticed[end] {
                    self.notice(link, end);
                }
            }
        }
    }

    fn introduce(&mut self, task: usize, other: usize, works: bool) {
        self.introductions.remove(&(task, other));
        if self.connected(task, other) {
            // A Link came up meanwhile, or the old one is not noticed everywhere.
            let up = self
                .task(task)
                .space
                .tasks
                .contains_key(&TaskId(other as u64));
            if !up {
                self.introductions.insert((task, other));
            }
        } else if works && self.tasks[other].is_some() {
            self.connect(task, other);
            self.introductions.remove(&(other, task));
        } else {
            self.task_mut(task)
                .space
                .not_introduced(TaskId(other as u64));
            self.truth.harm = true;
            self.outputs(task);
        }
    }

    fn receive(&mut self, task: usize, name: Name) {
        if let Ok(message) = self.task_mut(task).space.receive(name) {
            self.received(task, &message);
            self.outputs(task);
        }
    }

    fn request(&mut self, task: usize, name: Name, request: Request) {
        let it = self.task_mut(task);
        // About senders a port is told itself, so that the notice says which one is meant.
        let told = match request {
            Request::DeadName | Request::PortDestroyed => it.told,
            Request::NoSenders { .. } => name,
        };
        let (port, about) = (it.names[&told], it.names[&name]);
        let give = Give::new(told, Disposition::MakeSendOnce);
        let old = it.space.request(name, request, Some(give)).unwrap();
        let asked = match request {
            Request::DeadName => it.dead_names.entry(name).or_default(),
            Request::PortDestroyed => {
                let slot = it.space.receive_port(name).expect("it was asked for");
                it.slots.insert(slot, about);
                &mut it.rescues
            }
            Request::NoSenders { .. } => self.truth.no_senders.entry(port).or_default(),
        };
        *asked += u32::from(old.is_none());
        self.truth.made(port);
        if let Some(old) = old {
            let it = self.task_mut(task);
            it.names.insert(old, port);
            it.space.deallocate(old).unwrap();
        }
        self.outputs(task);
    }

    pub(super) fn send(&mut self, task: usize, to: Give, reply: Option<Give>, rights: &[Give]) {
        let mut message = Message::new(to, FIRST_ID + self.truth.sent.len() as u32);
        message.reply = reply;
        message.rights = rights.to_vec();
        let port = self.task(task).names[&to.name];
        if self.crosses(task, port, rights) {
            return;
        }
        let names = self.task(task).names.clone();
        if let Err(refused) = self.task_mut(task).space.send(message.clone()) {
            assert_eq!(*refused.message, message);
            assert_ne!(refused.error, SendError::TooLarge);
            self.outputs(task);
            return;
        }
        let once = kind(to.how) == super::truth::Kind::Once;
        if to.how == Disposition::MakeSendOnce {
            self.truth.made(port);
        }
        let stream = (!once).then(|| {
            let number = self.task_mut(task).streams.entry(to.name).or_default();
            *number += 1;
            (task, to.name, *number)
        });
        let now = core::mem::replace(&mut self.task_mut(task).names, names);
        let reply = reply.map(|give| self.declared(task, give));
        let rights = rights
            .iter()
            .map(|&give| self.declared(task, give))
            .collect();
        self.task_mut(task).names = now;
        self.truth.sent.push(Sent {
            to: port,
            once,
            stream,
            reply,
            rights,
            received: false,
        });
        self.outputs(task);
    }

    /// Whether a receive right would be queued at itself by way of other tasks. One Space refuses
    /// that by itself; between several it is the program's fault, and not tried here.
    fn crosses(&self, task: usize, mut to: usize, rights: &[Give]) -> bool {
        let moving = rights
            .iter()
            .filter(|give| give.how == Disposition::MoveReceive);
        let moving: Vec<usize> = moving
            .map(|give| self.task(task).names[&give.name])
            .collect();
        if moving.is_empty() {
            return false;
        }
        loop {
            if moving.contains(&to) {
                return true;
            }
            let carrier = self.truth.sent.iter().find(|sent| {
                !sent.received && sent.rights.contains(&(super::truth::Kind::Receive, to))
            });
            match carrier {
                Some(sent) => to = sent.to,
                None => return false,
            }
        }
    }

    /// What a name denotes, as its task may know.
    pub(super) fn entry(&self, task: usize, name: Name) -> Entry {
        let mut space = self.task(task).space.clone();
        space.entry(name).expect("names are pruned")
    }

    /// A right that this task can put into a message now, and how.
    pub(super) fn gives(&self, task: usize, name: Name) -> Vec<Give> {
        use Disposition::{CopySend, MakeSend, MakeSendOnce, MoveReceive, MoveSend, MoveSendOnce};
        let told = self.task(task).told == name;
        let mut all = Vec::new();
        match self.task(task).space.names[name.key().index] {
            Entry::Port {
                receive,
                sends,
                target,
            } => {
                if sends > 0 {
                    all.extend([CopySend, MoveSend]);
                }
                if receive && !told {
                    all.extend([MakeSend, MakeSendOnce, MoveReceive]);
                }
                assert!(!receive || matches!(target, Target::Port(_)));
            }
            Entry::Once(_) => all.push(MoveSendOnce),
            Entry::Dead { .. } => all.extend([CopySend, MoveSend]),
            Entry::Set(_) => {}
        }
        all.into_iter().map(|how| Give::new(name, how)).collect()
    }
}

/// Each kind of frame and right has a number, to see that it was met.
fn number(frame: &Frame) -> usize {
    match frame {
        Frame::Message(message) => {
            let third = |right: &crate::WireRight| matches!(right, crate::WireRight::Third { .. });
            let moves =
                |right: &crate::WireRight| matches!(right, crate::WireRight::Receive { .. });
            if message.rights.iter().any(moves) {
                16
            } else if message.rights.iter().chain(&message.reply).any(third) {
                17
            } else if message.origin.is_some() {
                18
            } else {
                0
            }
        }
        Frame::Release { .. } => 1,
        Frame::Freed { .. } => 2,
        Frame::Credit { .. } => 3,
        Frame::Dead { .. } => 4,
        Frame::Provide { .. } => 5,
        Frame::Withdraw { .. } => 6,
        Frame::Settled { .. } => 7,
        Frame::Accept { .. } => 8,
        Frame::Accepted { .. } => 9,
        Frame::Refused { .. } => 10,
        Frame::Decline { .. } => 11,
        Frame::Moved { .. } => 12,
        Frame::Following { .. } => 13,
        Frame::Handed { right, .. } => match right {
            crate::WireRight::Mine { .. } => 19,
            crate::WireRight::Yours { .. } => 20,
            crate::WireRight::Third { .. } => 14,
            crate::WireRight::Dead | crate::WireRight::Receive { .. } => {
                unreachable!("never handed")
            }
        },
        Frame::Offer { .. } => 15,
    }
}
