//! Hosts that join, leave and die at any time, by seed: what one was told is done is done once, at all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::vec::Vec;

use farpage_testkit::seeds;

use super::{Log, Message, Output, Replica};
use crate::sysv::state::{Call, Command, Process, Reply, Thread, What};

/// A small generator (splitmix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (((z ^ (z >> 31)) as u128 * n as u128) >> 64) as usize
    }
}

const KEY: u32 = 7;

struct Host {
    replica: Replica,
    /// How many of the views it has heard of.
    seen: usize,
    /// Numbers of messages that it has sent to the queue, by its wishes.
    open: BTreeMap<u64, Option<i64>>,
    queue: Option<u32>,
}

struct World {
    rng: Rng,
    hosts: BTreeMap<u64, Host>,
    views: Vec<BTreeSet<u64>>,
    wires: BTreeMap<(u64, u64), VecDeque<Message>>,
    /// What hosts that may have died meanwhile heard is in the queue.
    told: BTreeMap<i64, u64>,
    next: i64,
    joined: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            rng: Rng(seed),
            hosts: BTreeMap::new(),
            views: std::vec![BTreeSet::new()],
            wires: BTreeMap::new(),
            told: BTreeMap::new(),
            next: 0,
            joined: 0,
        };
        world.join();
        world
    }

    fn join(&mut self) {
        self.joined += 1;
        let own = self.joined;
        let mut view = self.views[self.views.len() - 1].clone();
        view.insert(own);
        let host = Host {
            replica: Replica::new(own),
            seen: self.views.len(),
            open: BTreeMap::new(),
            queue: None,
        };
        self.hosts.insert(own, host);
        self.views.push(view);
        self.see(own);
        self.ask(own);
    }

    fn die(&mut self) {
        let at = self.rng.below(self.hosts.len());
        let gone = *self.hosts.keys().nth(at).unwrap();
        self.hosts.remove(&gone);
        // Of what it sent, each may hear less than all.
        for ((from, _), wire) in &mut self.wires {
            if *from == gone {
                wire.truncate(self.rng.below(wire.len() + 1));
            }
        }
        let mut view = self.views[self.views.len() - 1].clone();
        view.remove(&gone);
        self.views.push(view);
    }

    /// A host hears of the next view.
    fn see(&mut self, own: u64) {
        let host = self.hosts.get_mut(&own).unwrap();
        let Some(view) = self.views.get(host.seen) else {
            return;
        };
        host.seen += 1;
        host.replica.viewed(view);
        self.wires
            .retain(|(from, to), _| *to != own || view.contains(from));
        self.drain(own);
    }

    /// A host asks for its queue, or sends something there.
    fn ask(&mut self, own: u64) {
        let host = self.hosts.get_mut(&own).unwrap();
        let process = Process { host: own, pid: 1 };
        let (what, number) = match host.queue {
            None => (
                What::Queue {
                    key: KEY,
                    flags: 0o1600,
                },
                None,
            ),
            Some(id) => {
                self.next += 1;
                let flags = 0o4000;
                let (kind, text) = (self.next, Vec::new());
                (
                    What::Send {
                        id,
                        kind,
                        text,
                        flags,
                    },
                    Some(self.next),
                )
            }
        };
        let call = Call {
            by: Thread { process, number: 1 },
            uid: 0,
            gid: 0,
            time: 0,
            is_again: false,
            what,
        };
        let wish = host.replica.ask(Command::Call(call));
        host.open.insert(wish, number);
        self.drain(own);
    }

    fn drain(&mut self, own: u64) {
        let host = self.hosts.get_mut(&own).unwrap();
        while let Some(output) = host.replica.poll_output() {
            match output {
                Output::Send(to, message) => {
                    self.wires.entry((own, to)).or_default().push_back(message);
                }
                Output::Replied(wish, reply) => {
                    let Some(number) = host.open.remove(&wish) else {
                        // That a host is gone.
                        continue;
                    };
                    match (number, reply) {
                        (None, Reply::Done(id, _)) => host.queue = Some(id),
                        (Some(number), Reply::Done(..)) => {
                            let before = self.told.insert(number, own);
                            assert_eq!(before, None, "{number} was answered twice");
                        }
                        (_, Reply::Failed(errno)) => panic!("failed: {errno}"),
                        (_, Reply::Waits) => panic!("it waits"),
                    }
                }
                Output::Wake(_) | Output::WakeAll => {}
            }
        }
    }

    fn deliver(&mut self) -> bool {
        let full = self.wires.iter().filter(|(_, wire)| !wire.is_empty());
        let full: Vec<(u64, u64)> = full.map(|(pair, _)| *pair).collect();
        if full.is_empty() {
            return false;
        }
        let (from, to) = full[self.rng.below(full.len())];
        let view = |host: &Host| self.views[host.seen - 1].contains(&from);
        // It waits until the receiver knows the sender, and is lost with the receiver.
        match self.hosts.get(&to).map(view) {
            None => drop(self.wires.remove(&(from, to))),
            Some(false) => self.see(to),
            Some(true) => {
                let wire = self.wires.get_mut(&(from, to)).unwrap();
                let message = wire.pop_front().unwrap();
                let host = self.hosts.get_mut(&to).unwrap();
                host.replica.received(from, message).unwrap();
                self.drain(to);
            }
        }
        true
    }

    fn step(&mut self) {
        let at = self.rng.below(self.hosts.len());
        let own = *self.hosts.keys().nth(at).unwrap();
        match self.rng.below(100) {
            0 if self.hosts.len() < 5 => self.join(),
            1 if self.hosts.len() > 1 => self.die(),
            2..20 => self.see(own),
            20..40 if self.hosts[&own].open.is_empty() => self.ask(own),
            _ => drop(self.deliver()),
        }
    }

    /// Everybody hears of everything: all is answered, and all have the same.
    fn settle(&mut self) {
        loop {
            let all: Vec<u64> = self.hosts.keys().copied().collect();
            let before: usize = self.hosts.values().map(|host| host.seen).sum();
            all.into_iter().for_each(|own| self.see(own));
            let after: usize = self.hosts.values().map(|host| host.seen).sum();
            if !self.deliver() && before == after {
                break;
            }
        }
        let logs: Vec<&Log> = self
            .hosts
            .values()
            .map(|host| host.replica.log().unwrap())
            .collect();
        assert!(logs.windows(2).all(|two| two[0] == two[1]), "hosts differ");
        for (own, host) in &self.hosts {
            assert!(host.open.is_empty(), "host {own} was not answered");
        }
        let living: BTreeSet<u64> = self.hosts.keys().copied().collect();
        let known: BTreeSet<u64> = logs[0].hosts.keys().copied().collect();
        assert!(known.is_subset(&living), "hosts that are gone are known");
    }

    /// What the queue has, in its order.
    fn queue(&self) -> Vec<i64> {
        let host = self.hosts.values().next().unwrap();
        let mut state = host.replica.log().unwrap().state.clone();
        let process = Process { host: 0, pid: 0 };
        let mut call = |what| {
            let call = Call {
                by: Thread { process, number: 0 },
                uid: 0,
                gid: 0,
                time: 0,
                is_again: false,
                what,
            };
            state.apply(&Command::Call(call)).0
        };
        let Some(id) = host.queue else {
            return Vec::new();
        };
        let mut found = Vec::new();
        let take = || What::Receive {
            id,
            kind: 0,
            bytes_max: 9,
            flags: 0o4000,
        };
        while let Reply::Done(_, data) = call(take()) {
            found.push(i64::from_ne_bytes(data[..8].try_into().unwrap()));
        }
        found
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..600 {
        world.step();
    }
    world.settle();
    let queue = world.queue();
    let once: BTreeSet<i64> = queue.iter().copied().collect();
    assert_eq!(once.len(), queue.len(), "something was sent twice");
    // The queue goes with its last user: then nothing is left to compare.
    let living = |host: &u64| world.hosts.contains_key(host);
    let told = world.told.iter().filter(|(_, by)| living(by));
    for (number, by) in told {
        assert!(once.contains(number), "{number} of host {by} is lost");
    }
}

#[test]
fn what_a_host_was_told_is_done_is_done_once_while_that_host_lives() {
    for seed in seeds() {
        let ran = std::panic::catch_unwind(|| run(seed));
        assert!(
            ran.is_ok(),
            "seed {seed}; replay: FARPAGE_SEED={seed} cargo test -p farpage-rules told"
        );
    }
}

#[test]
fn what_comes_after_something_that_is_wanting_is_refused() {
    let mut replica = Replica::new(2);
    replica.viewed(&BTreeSet::from([1, 2]));
    replica.received(1, Message::Begin(Box::default())).unwrap();
    let wish = super::Wish {
        number: 1,
        heard: 1,
        command: Command::Gone(9),
    };
    let order = |at| Message::Order {
        at,
        by: 1,
        wish: wish.clone(),
    };
    let wrong = replica.received(1, order(3)).unwrap_err().to_string();
    assert_eq!(wrong, "host 1 says what comes after 2, and it is 0 here");
    replica.received(1, order(1)).unwrap();
    assert_eq!(replica.log().unwrap().count, 1);
}
