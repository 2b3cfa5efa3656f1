//! Hosts, their programs and the network between them by seed: packets between two hosts come in
//! order, and whenever they like; hosts come, and are killed; views come to each host in its time.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use std::eprintln;

use farpage_testkit::seeds;

use crate::netports::packet::{Head, Kind, Packet, Port, Ref, Stay};
use crate::netports::table::{Given, Output, Table, Taken, units};

/// The only source of chance (splitmix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.below(of.len())].clone())
    }
}

/// What goes from host to host.
#[derive(Clone, Debug)]
enum Sent {
    Packet(Packet),
    Saw(u64),
}

/// A right of a program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    Own(u64),
    OwnOnce(u64),
    Proxy(Port),
    ProxyOnce(Port),
}

struct Host {
    table: Table,
    /// How many views of the world it has seen.
    seen: usize,
    held: Vec<Held>,
    /// Ports of this host's: false when dead.
    ports: BTreeMap<u64, bool>,
    /// Send-once rights that the shell keeps for others.
    onces: BTreeSet<u64>,
    /// Messages that wait for room: by port, who sent each, its units and rights.
    queues: BTreeMap<u64, VecDeque<(Stay, u32, Vec<Held>)>>,
    /// Local ports of proxies.
    local: BTreeSet<Port>,
    looked_up: BTreeSet<Port>,
}

struct World {
    rng: Rng,
    hosts: BTreeMap<Stay, Host>,
    channels: BTreeMap<(Stay, Stay), VecDeque<Sent>>,
    /// Views, each with its generation.
    views: Vec<BTreeSet<Stay>>,
    next: u64,
    /// Send-once rights, and how often each was used.
    uses: BTreeMap<Port, u32>,
    /// The next number of a message by a sender and port, and the next to come.
    order: BTreeMap<(Stay, Port), (u32, u32)>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            rng: Rng(seed),
            hosts: BTreeMap::new(),
            channels: BTreeMap::new(),
            views: Vec::new(),
            next: 100,
            uses: BTreeMap::new(),
            order: BTreeMap::new(),
        };
        for _ in 0..3 {
            world.joins();
        }
        world
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn joins(&mut self) {
        let stay = Stay(self.number());
        let mut view = self.views.last().cloned().unwrap_or_default();
        view.insert(stay);
        self.views.push(view);
        let host = Host {
            table: Table::new(stay),
            seen: self.views.len() - 1,
            held: Vec::new(),
            ports: BTreeMap::new(),
            onces: BTreeSet::new(),
            queues: BTreeMap::new(),
            local: BTreeSet::new(),
            looked_up: BTreeSet::new(),
        };
        self.hosts.insert(stay, host);
        self.sees(stay);
    }

    /// A host has the next view.
    fn sees(&mut self, at: Stay) {
        let host = self.hosts.get_mut(&at).unwrap();
        let Some(view) = self.views.get(host.seen) else {
            return;
        };
        host.seen += 1;
        let generation = host.seen as u64;
        let others: BTreeSet<Stay> = view.iter().copied().filter(|stay| *stay != at).collect();
        others.iter().for_each(|stay| host.table.meets(*stay));
        host.table.sees(generation, &others);
        // What is sent before this is of what came before.
        self.drain(at);
        for other in others {
            let channel = self.channels.entry((at, other)).or_default();
            channel.push_back(Sent::Saw(generation));
        }
    }

    fn drain(&mut self, at: Stay) {
        while let Some(output) = self.hosts.get_mut(&at).unwrap().table.poll_output() {
            match output {
                Output::Send(to, packet) => {
                    let channel = self.channels.entry((at, to)).or_default();
                    channel.push_back(Sent::Packet(packet));
                }
                Output::Drop(number) => {
                    let dead = self.hosts[&at].ports.get(&number) == Some(&false);
                    let port = Port { home: at, number };
                    assert!(dead || !self.is_anywhere(port), "{port:?} is dropped");
                    let host = self.hosts.get_mut(&at).unwrap();
                    host.onces.remove(&number);
                }
                Output::Kill(port) => {
                    let host = self.hosts.get_mut(&at).unwrap();
                    host.local.remove(&port);
                    host.looked_up.remove(&port);
                    let is_of = |held: &Held| matches!(held, Held::Proxy(of) | Held::ProxyOnce(of) if *of == port);
                    host.held.retain(|held| !is_of(held));
                }
                Output::Open(port) => {
                    let host = self.hosts.get_mut(&at).unwrap();
                    if host.looked_up.remove(&port) {
                        host.table.is_local(port);
                        host.local.insert(port);
                        host.held.push(Held::Proxy(port));
                    }
                    host.table.settle(port);
                }
            }
        }
    }

    /// Whether some program of another host has a right, or will get it.
    fn is_anywhere(&self, port: Port) -> bool {
        let is_it =
            |held: &Held| matches!(held, Held::Proxy(of) | Held::ProxyOnce(of) if *of == port);
        let others = self.hosts.iter().filter(|(stay, _)| **stay != port.home);
        let has = |host: &Host| {
            let mut queued = host.queues.values().flatten();
            host.held.iter().any(is_it) || queued.any(|(_, _, held)| held.iter().any(is_it))
        };
        let mut hosts = others;
        if hosts.any(|(_, host)| has(host)) {
            return true;
        }
        self.channels.iter().any(|((from, to), sent)| {
            let Some(host) = self.hosts.get(to) else {
                return false;
            };
            host.table.hears(*from)
                && sent.iter().any(|sent| match sent {
                    Sent::Packet(Packet::Message { head, .. }) => {
                        head.rights.iter().any(|right| match *right {
                            Ref::Mine { number, .. } => {
                                (Port {
                                    home: *from,
                                    number,
                                }) == port
                            }
                            Ref::Third { port: of, .. } => of == port,
                            Ref::Yours { .. } | Ref::Dead => false,
                        })
                    }
                    _ => false,
                })
        })
    }

    /// A program has a right no more.
    fn loses(&mut self, at: Stay, held: Held) {
        let host = self.hosts.get_mut(&at).unwrap();
        match held {
            Held::Own(_) | Held::OwnOnce(_) => {}
            Held::Proxy(port) | Held::ProxyOnce(port) => {
                let mut queued = host.queues.values().flatten();
                let still = host.held.contains(&held)
                    || queued.any(|(_, _, rights)| rights.contains(&held));
                if !still && host.local.remove(&port) {
                    host.table.unused(port);
                }
            }
        }
        self.drain(at);
    }

    /// Puts a right into a message.
    fn gives(&mut self, at: Stay, to: Stay, held: Held) -> Ref {
        let host = self.hosts.get_mut(&at).unwrap();
        let given = match held {
            Held::Own(number) => match host.ports[&number] {
                true => Given::Own(number, Kind::Send),
                false => Given::Dead,
            },
            Held::OwnOnce(number) => {
                host.onces.insert(number);
                Given::Own(number, Kind::Once)
            }
            Held::Proxy(port) | Held::ProxyOnce(port) => Given::Proxy(port),
        };
        let right = host.table.give(to, given);
        match held {
            Held::ProxyOnce(port) => {
                host.local.remove(&port);
                host.held.retain(|other| *other != held);
            }
            Held::OwnOnce(_) => host.held.retain(|other| *other != held),
            Held::Own(_) | Held::Proxy(_) => {}
        }
        right
    }

    /// A program sends, if it may.
    fn sends(&mut self, at: Stay) {
        let host = &self.hosts[&at];
        let open = |held: &&Held| match held {
            Held::Proxy(port) | Held::ProxyOnce(port) => host.table.is_open(*port),
            Held::Own(_) | Held::OwnOnce(_) => false,
        };
        let targets: Vec<Held> = host.held.iter().filter(open).copied().collect();
        let Some(target) = self.rng.pick(&targets) else {
            return;
        };
        let (Held::Proxy(port) | Held::ProxyOnce(port)) = target else {
            unreachable!("filtered")
        };
        let mut rights = Vec::new();
        for _ in 0..self.rng.below(3) {
            let once = self.number();
            let held = self.hosts[&at].held.clone();
            let right = match self.rng.below(3) {
                0 => {
                    self.uses.insert(
                        Port {
                            home: at,
                            number: once,
                        },
                        0,
                    );
                    Some(Held::OwnOnce(once))
                }
                _ => self.rng.pick(&held).filter(|held| *held != target),
            };
            if let Some(right) = right {
                rights.push(self.gives(at, port.home, right));
            }
        }
        let size = self.rng.below(3) * 700_000;
        let id = match target {
            Held::Proxy(_) => {
                let order = self.order.entry((at, port)).or_default();
                order.0 += 1;
                order.0
            }
            _ => 0,
        };
        let head = Head {
            id,
            bytes: size as u32,
            has_reply: false,
            rights,
            memory: Vec::new(),
        };
        let host = self.hosts.get_mut(&at).unwrap();
        let released = host.table.sends(port, units(size as u64));
        host.table.put(Output::Send(
            port.home,
            Packet::Message {
                to: port.number,
                released,
                head,
            },
        ));
        if let Held::ProxyOnce(_) = target {
            host.held.retain(|held| *held != target);
            host.local.remove(&port);
        }
        self.drain(at);
    }

    fn comes(&mut self, from: Stay, at: Stay) {
        let channel = self.channels.get_mut(&(from, at)).unwrap();
        let sent = channel.pop_front().unwrap();
        let Some(host) = self.hosts.get_mut(&at) else {
            return;
        };
        if !host.table.hears(from) {
            return;
        }
        let packet = match sent {
            Sent::Saw(generation) => {
                host.table.saw(from, generation);
                return self.drain(at);
            }
            Sent::Packet(packet) => packet,
        };
        let mut rights = Vec::new();
        if let Packet::Message { head, .. } = &packet {
            for right in &head.rights {
                let taken = host.table.take(from, *right).expect("all are honest");
                let own = |number| Port { home: at, number };
                rights.extend(match taken {
                    Taken::Dead => None,
                    Taken::Own(number) => Some(Held::Own(number)),
                    Taken::OwnOnce(number) => {
                        host.onces.remove(&number);
                        *self.uses.get_mut(&own(number)).unwrap() += 1;
                        None
                    }
                    Taken::Proxy(port, Kind::Send) => {
                        host.local.insert(port);
                        Some(Held::Proxy(port))
                    }
                    Taken::Proxy(port, Kind::Once) => {
                        assert!(host.local.insert(port));
                        Some(Held::ProxyOnce(port))
                    }
                });
            }
        }
        let is_for_it = host.table.handle(from, &packet).expect("all are honest");
        match packet {
            Packet::Message { to, head, .. } => {
                let port = Port {
                    home: at,
                    number: to,
                };
                if let Some(uses) = self.uses.get_mut(&port) {
                    *uses += u32::from(is_for_it);
                    assert!(*uses <= 1, "{port:?} was used twice");
                    host.onces.remove(&to);
                } else {
                    let order = self.order.get_mut(&(from, port)).unwrap();
                    order.1 += 1;
                    assert_eq!(order.1, head.id, "in order");
                }
                match is_for_it && host.ports.contains_key(&to) {
                    true => {
                        let units = units(head.bytes.into());
                        let queue = host.queues.entry(to).or_default();
                        queue.push_back((from, units, rights));
                    }
                    false if is_for_it => host.held.extend(rights),
                    false => {
                        self.drain(at);
                        rights.into_iter().for_each(|held| self.loses(at, held));
                    }
                }
            }
            _ => assert!(!is_for_it),
        }
        self.drain(at);
    }

    /// A port takes a message.
    fn takes(&mut self, at: Stay) {
        let host = self.hosts.get_mut(&at).unwrap();
        let ports: Vec<u64> = host.queues.keys().copied().collect();
        let Some(number) = self.rng.pick(&ports) else {
            return;
        };
        let queue = host.queues.get_mut(&number).unwrap();
        match queue.pop_front() {
            Some((from, units, rights)) => {
                host.table.taken(number, from, units);
                // Of a port that has died meanwhile they are dropped.
                let alive: Vec<Held> = rights.clone();
                let local = &host.local;
                let there = |held: &Held| match held {
                    Held::Proxy(port) | Held::ProxyOnce(port) => local.contains(port),
                    Held::Own(_) | Held::OwnOnce(_) => true,
                };
                host.held.extend(alive.into_iter().filter(there));
            }
            None => drop(host.queues.remove(&number)),
        }
        self.drain(at);
    }

    fn crash(&mut self, at: Stay) {
        self.hosts.remove(&at);
        let mut view = self.views.last().unwrap().clone();
        view.remove(&at);
        self.views.push(view);
        // What had not left is lost.
        for ((from, _), sent) in &mut self.channels {
            if *from == at {
                let left = self.rng.below(sent.len() + 1);
                sent.truncate(left);
            }
        }
    }

    fn dies(&mut self, at: Stay) {
        let host = self.hosts.get_mut(&at).unwrap();
        let ports: Vec<u64> = host.ports.keys().copied().collect();
        let Some(number) = self.rng.pick(&ports) else {
            return;
        };
        host.ports.insert(number, false);
        host.held.retain(|held| *held != Held::Own(number));
        host.table.died(number);
        let queue = host.queues.remove(&number).unwrap_or_default();
        self.drain(at);
        for (from, units, rights) in queue {
            let host = self.hosts.get_mut(&at).unwrap();
            host.table.taken(number, from, units);
            rights.into_iter().for_each(|held| self.loses(at, held));
        }
        self.drain(at);
    }

    fn looks_up(&mut self, at: Stay) {
        let homes: Vec<Stay> = self.hosts.keys().copied().collect();
        let home = self.rng.pick(&homes).unwrap();
        let ports: Vec<u64> = self.hosts[&home].ports.keys().copied().collect();
        let Some(number) = self.rng.pick(&ports) else {
            return;
        };
        if home == at || !self.hosts[&at].table.hears(home) {
            return;
        }
        let port = Port { home, number };
        let host = self.hosts.get_mut(&at).unwrap();
        match host.table.look_up(port) {
            true => {
                host.table.is_local(port);
                host.local.insert(port);
                host.held.push(Held::Proxy(port));
            }
            false => drop(host.looked_up.insert(port)),
        }
        self.drain(at);
    }

    fn step(&mut self) {
        let alive: Vec<Stay> = self.hosts.keys().copied().collect();
        let at = self.rng.pick(&alive).unwrap();
        match self.rng.below(100) {
            0..4 => {
                let number = self.number();
                let host = self.hosts.get_mut(&at).unwrap();
                host.ports.insert(number, true);
                host.held.push(Held::Own(number));
                host.table.name(number, true);
            }
            4..8 => self.looks_up(at),
            8..30 => self.sends(at),
            30..40 => self.takes(at),
            40..50 => {
                let held = self.hosts[&at].held.clone();
                if let Some(held) = self.rng.pick(&held) {
                    let host = self.hosts.get_mut(&at).unwrap();
                    let at_index = host.held.iter().position(|other| *other == held);
                    host.held.swap_remove(at_index.unwrap());
                    self.loses(at, held);
                }
            }
            50..52 => self.dies(at),
            52..60 => {
                let host = self.hosts.get_mut(&at).unwrap();
                let ports: Vec<u64> = host.ports.keys().copied().collect();
                if let Some(number) = self.rng.pick(&ports) {
                    host.table.name(number, false);
                    self.drain(at);
                }
            }
            60 if self.rng.below(2) == 0 && alive.len() > 3 => self.crash(at),
            61 if alive.len() < 5 => self.joins(),
            62..66 => self.sees(at),
            _ => {
                let full = self.channels.iter();
                let full = full.filter(|(_, sent)| !sent.is_empty());
                let full: Vec<(Stay, Stay)> = full.map(|(between, _)| *between).collect();
                if let Some((from, to)) = self.rng.pick(&full) {
                    self.may_come(from, to);
                }
            }
        }
    }

    /// Nothing comes of a host before it was met, and it waits until then.
    fn may_come(&mut self, from: Stay, to: Stay) {
        let host = self.hosts.get(&to);
        let is_early = host.is_some_and(|host| {
            let later = &self.views[host.seen..];
            !host.table.hears(from) && later.iter().any(|view| view.contains(&from))
        });
        if !is_early {
            self.comes(from, to);
        }
    }

    /// Nobody wants anything any more: nothing may be left.
    fn finale(&mut self) {
        loop {
            let stays: Vec<Stay> = self.hosts.keys().copied().collect();
            for at in stays {
                while self.hosts[&at].seen < self.views.len() {
                    self.sees(at);
                }
                while !self.hosts[&at].queues.is_empty() {
                    self.takes(at);
                }
                let numbers: Vec<u64> = self.hosts[&at].ports.keys().copied().collect();
                for number in numbers {
                    self.hosts.get_mut(&at).unwrap().table.name(number, false);
                    self.drain(at);
                }
                while let Some(held) = self.hosts.get_mut(&at).unwrap().held.pop() {
                    self.loses(at, held);
                }
            }
            let full = self.channels.iter();
            let full = full.filter(|(_, sent)| !sent.is_empty());
            let full: Vec<(Stay, Stay)> = full.map(|(between, _)| *between).collect();
            if full.is_empty() {
                break;
            }
            full.into_iter().for_each(|(from, to)| self.comes(from, to));
        }
        for (stay, host) in &self.hosts {
            assert_eq!(host.table.counts(), (0, 0), "{stay:?}: {:?}", host.table);
            assert!(
                host.table.exports.is_empty() && host.onces.is_empty(),
                "{:?}",
                host.table
            );
            assert!(host.local.is_empty() && host.looked_up.is_empty());
        }
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..1500 {
        world.step();
    }
    world.finale();
}

#[test]
fn rights_of_hosts_are_held_exactly_as_long_as_somebody_has_them() {
    for seed in seeds() {
        if std::panic::catch_unwind(|| run(seed)).is_err() {
            eprintln!("replay: FARPAGE_SEED={seed} cargo test -p farpage-rights netports::sim");
            panic!("seed {seed}");
        }
    }
}
