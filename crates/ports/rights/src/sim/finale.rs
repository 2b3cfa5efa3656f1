//! The world comes to rest: no more harm, all is delivered and received; then it is taken down.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::rng::Rng;
use super::truth::Port;
use super::world::{Action, World};
use crate::Wait;
use crate::message::{Disposition, Give, LinkId, Name};
use crate::right::{Entry, Target};

impl World {
    pub(super) fn random_step(&mut self, rng: &mut Rng) {
        let tasks: Vec<usize> = (0..self.tasks.len())
            .filter(|&at| self.tasks[at].is_some())
            .collect();
        let task = rng.pick(&tasks).expect("one task is left");
        let names: Vec<Name> = self.task(task).names.keys().copied().collect();
        let name = rng.pick(&names).expect("the told port stays");
        let told = name == self.task(task).told;
        let entry = self.entry(task, name);
        let receive = matches!(entry, Entry::Port { receive: true, .. });
        let sends = matches!(entry, Entry::Port { sends: 1.., .. });
        let action = match rng.below(100) {
            0..2 => Some(Action::Allocate { task }),
            2..5 if receive && !told => Some(Action::Make { task, name }),
            5..12 if !matches!(entry, Entry::Port { sends: 0, .. }) => {
                Some(Action::Drop { task, name })
            }
            12..13 if receive && !told => Some(Action::Destroy { task, name }),
            13..15 if receive => {
                let limit = rng.below(4) as u16;
                Some(Action::Limit { task, name, limit })
            }
            15..40 => self.random_send(rng, task, name, &names),
            40..43 if sends || matches!(entry, Entry::Once(_)) => {
                Some(Action::DeadName { task, name })
            }
            43..44 if receive && !told => Some(Action::NoSenders { task, name }),
            44..45 if receive && !told => Some(Action::Rescue { task, name }),
            45..60 if receive => Some(Action::Receive { task, name }),
            60..62 if receive => {
                let what = Wait::Message(name);
                Some(Action::Wait { task, what })
            }
            62..64 if sends => {
                let what = Wait::Room(name);
                Some(Action::Wait { task, what })
            }
            64..68 => self.random_event(rng, task),
            _ => self.random_delivery(rng),
        };
        if let Some(action) = action {
            self.act(&action);
        }
    }

    fn random_send(
        &self,
        rng: &mut Rng,
        task: usize,
        name: Name,
        names: &[Name],
    ) -> Option<Action> {
        let to = self.gives(task, name);
        let to = rng
            .pick(&to)
            .filter(|to| to.how != Disposition::MoveReceive)?;
        let right = |rng: &mut Rng| {
            let name = rng.pick(names)?;
            let gives = self.gives(task, name);
            let moves = gives
                .last()
                .filter(|give| give.how == Disposition::MoveReceive);
            moves
                .copied()
                .filter(|_| rng.chance(300))
                .or_else(|| rng.pick(&gives))
        };
        let rights = (0..rng.below(3)).filter_map(|_| right(rng)).collect();
        let reply = (rng.chance(300)).then(|| right(rng)).flatten();
        let reply = reply.filter(|give| give.how != Disposition::MoveReceive);
        Some(Action::Send {
            task,
            to,
            reply,
            rights,
        })
    }

    fn random_event(&mut self, rng: &mut Rng, task: usize) -> Option<Action> {
        let asked: Vec<_> = self.introductions.iter().copied().collect();
        if let Some((task, other)) = rng.pick(&asked) {
            let works = !self.harmful || rng.chance(900);
            return Some(Action::Introduce { task, other, works });
        }
        if !self.harmful {
            return None;
        }
        let links: Vec<LinkId> = self.wires.keys().copied().collect();
        let link = rng.pick(&links)?;
        let wire = &self.wires[&link];
        if wire.cut {
            let end = rng.below(2);
            return (!wire.noticed[end]).then_some(Action::Notice { link, end });
        }
        let alive = self.tasks.iter().flatten().count();
        match rng.below(100) {
            0..8 => Some(Action::Cut { link }),
            8..12 if alive > 1 => Some(Action::Crash { task }),
            _ => None,
        }
    }

    fn random_delivery(&self, rng: &mut Rng) -> Option<Action> {
        let (link, end) = rng.pick(&self.deliverable())?;
        Some(Action::Deliver { link, end })
    }

    fn receivers(&self) -> Vec<(usize, Name)> {
        let mut all = Vec::new();
        for (at, task) in self.tasks.iter().enumerate() {
            let Some(task) = task else { continue };
            for &name in task.names.keys() {
                if let Entry::Port { receive: true, .. } = task.space.names[name.key().index] {
                    all.push((at, name));
                }
            }
        }
        all
    }

    /// Delivers and receives everything, and notices every cut.
    fn settle_down(&mut self, rng: &mut Rng) {
        for round in 0.. {
            assert!(round < 1000, "the world never comes to rest");
            while let Some(action) = self.random_delivery(rng) {
                self.act(&action);
            }
            let asked: Vec<_> = self.introductions.iter().copied().collect();
            for (task, other) in asked {
                self.act(&Action::Introduce {
                    task,
                    other,
                    works: true,
                });
            }
            let links: Vec<LinkId> = self.wires.keys().copied().collect();
            for link in links {
                for end in 0..2 {
                    let cut = self
                        .wires
                        .get(&link)
                        .is_some_and(|it| it.cut && !it.noticed[end]);
                    if cut {
                        self.act(&Action::Notice { link, end });
                    }
                }
            }
            for (task, name) in self.receivers() {
                if self.task(task).names.contains_key(&name) {
                    self.act(&Action::Limit {
                        task,
                        name,
                        limit: 2,
                    });
                    self.act(&Action::Receive { task, name });
                }
            }
            self.check();
            let queued = self.tasks.iter().flatten().map(|it| it.space.letters.len());
            let asked = self.introductions.len();
            if queued.sum::<usize>() + self.deliverable().len() + asked == 0 {
                let cut = self.wires.values().any(|wire| wire.cut);
                if !cut {
                    return;
                }
            }
        }
    }

    /// No more harm; everything works; then all names are freed and nothing is left.
    pub(super) fn finale(&mut self, rng: &mut Rng) {
        self.settle_down(rng);
        self.check_rest();
        self.check_truth();
        self.check_names();
        self.check_onces();
        self.probe(rng);
        self.check_senders();
        self.take_down(rng);
    }

    /// Ports whose receive right lives.
    fn living(&self) -> BTreeMap<Port, (usize, Name)> {
        let receivers = self.receivers().into_iter();
        receivers
            .map(|(at, name)| (self.task(at).names[&name], (at, name)))
            .collect()
    }

    fn check_truth(&self) {
        let living = self.living();
        for (index, sent) in self.truth.sent.iter().enumerate() {
            let lost = !sent.received && living.contains_key(&sent.to);
            assert!(!lost || self.truth.harm, "message {index} is lost");
        }
        for port in &self.truth.claimed_dead {
            assert!(
                !living.contains_key(port) || self.truth.harm,
                "port {port} is not dead"
            );
        }
    }

    /// Names are dead exactly when their ports are; who asked has been told.
    fn check_names(&mut self) {
        let living = self.living();
        for at in 0..self.tasks.len() {
            if self.tasks[at].is_none() {
                continue;
            }
            for (name, port) in self.task(at).names.clone() {
                let (_, dead) = self.task_mut(at).space.references(name).expect("pruned");
                let lives = living.contains_key(&port);
                assert!(dead || lives, "{name:?} of task {at} should be dead");
                assert!(
                    !dead || !lives || self.truth.harm,
                    "{name:?} of task {at} is dead"
                );
                let waits = self.task(at).dead_names.contains_key(&name);
                assert!(!(dead && waits), "nobody was told that {name:?} is dead");
            }
            let task = self.task(at);
            let asked = task
                .dead_names
                .keys()
                .filter(|name| !task.names.contains_key(name));
            assert_eq!(asked.count(), 0, "a freed name was not told");
        }
    }

    /// Every send-once right came back once, as a message or a notice, or is still held.
    fn check_onces(&mut self) {
        let mut held: BTreeMap<Port, u32> = BTreeMap::new();
        for task in self.tasks.iter().flatten() {
            for (name, &port) in &task.names {
                if let Entry::Once(_) = task.space.names[name.key().index] {
                    *held.entry(port).or_default() += 1;
                }
            }
            let asked = task.dead_names.values().sum::<u32>();
            *held.entry(task.names[&task.told]).or_default() += asked;
        }
        for (at, receiver) in self.living().into_values() {
            let status = self.task_mut(at).space.status(receiver).expect("it lives");
            let told = self.task(at).names[&self.task(at).told];
            *held.entry(told).or_default() += u32::from(status.port_destroyed);
        }
        for (port, (at, receiver)) in self.living() {
            let status = self.task_mut(at).space.status(receiver).expect("it lives");
            *held.entry(port).or_default() += u32::from(status.no_senders);
            let of = |map: &BTreeMap<Port, u32>| map.get(&port).copied().unwrap_or(0);
            let (made, back) = (of(&self.truth.onces_made), of(&self.truth.onces_back));
            let moved = self.truth.sent.iter().any(|sent| {
                sent.rights
                    .iter()
                    .any(|&(kind, of)| kind == super::truth::Kind::Receive && of == port)
            });
            let exact = !self.truth.harm || !moved;
            assert!(
                back + of(&held) <= made,
                "port {port} got more than was made"
            );
            assert!(
                !exact || back + of(&held) == made,
                "port {port}: {made} made, {back} back"
            );
        }
    }

    /// Every send right that is not dead takes a message to its port.
    fn probe(&mut self, rng: &mut Rng) {
        self.settle_down(rng);
        for at in 0..self.tasks.len() {
            let Some(task) = &self.tasks[at] else {
                continue;
            };
            let names: Vec<Name> = task.names.keys().copied().collect();
            for name in names {
                if !self.task(at).names.contains_key(&name) {
                    continue;
                }
                let how = match self.entry(at, name) {
                    Entry::Port { sends: 1.., .. } => Disposition::CopySend,
                    Entry::Once(_) if rng.chance(500) => Disposition::MoveSendOnce,
                    Entry::Port { .. } | Entry::Once(_) | Entry::Set(_) | Entry::Dead { .. } => {
                        continue;
                    }
                };
                let before = self.truth.sent.len();
                self.send(at, Give::new(name, how), None, &[]);
                assert_eq!(
                    self.truth.sent.len(),
                    before + 1,
                    "{name:?} of task {at} is stuck"
                );
                self.settle_down(rng);
                assert!(
                    self.truth.sent[before].received,
                    "{name:?} of {at} leads nowhere"
                );
            }
        }
        self.check_rest();
    }

    /// At rest a port counts each name of a living task once, and nothing else.
    fn check_senders(&mut self) {
        let onces: Vec<Port> = self.held_onces();
        for (port, (at, receiver)) in self.living() {
            let names = self.senders(port);
            let status = self.task_mut(at).space.status(receiver).expect("it lives");
            // A forwarder that keeps send-once rights holds one for them.
            if !onces.contains(&port) {
                assert_eq!(status.sends, names, "senders of port {port}");
            }
            assert!(
                !status.no_senders || status.sends > 0,
                "nobody was told of port {port}"
            );
        }
    }

    /// Names that denote a send right to a port; several that share an import count once.
    fn senders(&self, port: Port) -> u32 {
        let mut senders = 0;
        for task in self.tasks.iter().flatten() {
            let mut imports = BTreeSet::new();
            for (name, _) in task.names.iter().filter(|(_, of)| **of == port) {
                let entry = task.space.names[name.key().index];
                let Entry::Port {
                    target, sends: 1.., ..
                } = entry
                else {
                    continue;
                };
                let shared = match task.space.resolve(target) {
                    Target::Port(_) => false,
                    Target::Import(import) => !imports.insert(import),
                };
                senders += u32::from(!shared);
            }
        }
        senders
    }

    fn held_onces(&self) -> Vec<Port> {
        let tasks = self.tasks.iter().flatten();
        let onces = tasks.flat_map(|task| {
            task.names.iter().filter_map(|(name, &port)| {
                let entry = task.space.names[name.key().index];
                matches!(entry, Entry::Once(_)).then_some(port)
            })
        });
        onces.collect()
    }

    fn take_down(&mut self, rng: &mut Rng) {
        let alive = |world: &Self| -> Vec<usize> {
            (0..world.tasks.len())
                .filter(|&at| world.tasks[at].is_some())
                .collect()
        };
        while self.harmful && alive(self).len() > 1 {
            let task = rng.pick(&alive(self)).expect("two are alive");
            self.act(&Action::Crash { task });
            self.settle_down(rng);
            self.check_names();
        }
        for at in alive(self) {
            let told = self.task(at).told;
            let mut names: Vec<Name> = self.task(at).names.keys().copied().collect();
            while !names.is_empty() {
                let name = names.swap_remove(rng.below(names.len()));
                if name != told && self.task(at).names.contains_key(&name) {
                    self.free(at, name);
                    if rng.chance(300) {
                        self.settle_down(rng);
                    }
                }
            }
        }
        self.settle_down(rng);
        self.check_names();
        for at in alive(self) {
            // What came in messages meanwhile, and the told port at last.
            while let Some(name) = self.task(at).names.keys().next_back().copied() {
                self.free(at, name);
            }
        }
        self.settle_down(rng);
        for at in alive(self) {
            assert!(
                self.task(at).space.is_empty(),
                "task {at} has something left"
            );
        }
    }

    fn free(&mut self, at: usize, name: Name) {
        self.task_mut(at).space.destroy(name).expect("it is there");
        self.outputs(at);
    }
}
