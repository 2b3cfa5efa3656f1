//! A simulated cluster: one thread, one seed.
//!
//! Hosts run the rule as the runtime does: they keep leases, ping, watch, write views. Messages
//! take their time or are lost, on each way alone; hosts stop and go on; clocks run apart; the
//! store dies and is back, with the leases or without.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use crate::apart::Unheard;
use crate::clock::Moment;
use crate::known::{Keys, going_on_of};
use crate::record::{
    decode_members, decode_unheard, encode_members, encode_number, encode_unheard,
};
use crate::rule::{Ping, Pong, Rule, Times, Told};
use crate::table::{Change, Need, Table, Txn, Write};
use crate::view::{Incarnation, Member, Members, Representation};

pub(super) const SEC: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const LEASE: Duration = Duration::from_secs(2);
pub(super) const GOING_ON: Duration = Duration::from_secs(20);
/// Thousandths by which clocks differ from the true one at most.
const DRIFT: u64 = 40;

/// Numbers by seed (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

#[derive(Clone, Debug)]
enum Message {
    Keep { sent: Moment },
    Kept { sent: Moment, lease: Option<i64> },
    Write { txn: Txn },
    Revive { sent: Moment, txn: Txn, lease: i64 },
    BeginToGoOn,
    GoesOn,
    Notice(Vec<Change>),
    Ping(Ping),
    Pong(Pong),
}

#[derive(Clone, Debug)]
enum Event {
    Tick(usize),
    AtStore(usize, Message),
    AtHost(usize, Message),
    Faults,
}

struct Host {
    rule: Rule,
    me: Incarnation,
    lease: i64,
    /// Its clock's rate in thousandths.
    rate: u64,
    fenced: bool,
    killed: bool,
    stopped_until: u64,
    generation: i64,
    members: Members,
    alive: BTreeSet<Incarnation>,
    going_on: BTreeMap<Incarnation, Duration>,
    unheard: Unheard,
    /// Notices arrive in order: revision of the last.
    seen: i64,
    held: BTreeMap<i64, Vec<Change>>,
}

pub(super) struct World {
    now: u64,
    dice: Dice,
    faults: bool,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    waiting: Vec<Option<Event>>,
    table: Table,
    /// What the store has: the members of the newest view, and whose keys are there.
    newest: BTreeSet<Incarnation>,
    alive: BTreeSet<Incarnation>,
    keys: Keys,
    leases: BTreeMap<i64, u64>,
    next_lease: i64,
    store_dead: bool,
    hosts: Vec<Host>,
    /// Ways on which nothing arrives; the store is `usize::MAX`.
    cut: Vec<(usize, usize)>,
    seed: u64,
    pub(super) removed: usize,
    pub(super) acted_without_store: usize,
    pub(super) left: usize,
}

const STORE: usize = usize::MAX;

impl World {
    pub(super) fn new(seed: u64, hosts: usize) -> Self {
        let mut world = Self {
            now: 1000 * SEC,
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            faults: false,
            events: BinaryHeap::new(),
            waiting: Vec::new(),
            table: Table::default(),
            newest: BTreeSet::new(),
            alive: BTreeSet::new(),
            keys: Keys::new("x"),
            leases: BTreeMap::new(),
            next_lease: 1,
            store_dead: false,
            hosts: Vec::new(),
            cut: Vec::new(),
            seed,
            removed: 0,
            acted_without_store: 0,
            left: 0,
        };
        for _ in 0..hosts {
            world.join();
        }
        world
    }

    fn members(&self) -> (i64, Members) {
        let view = self.table.read(&self.keys.view());
        match view.entries.get(&self.keys.view()) {
            Some(entry) => (entry.revision, decode_members(&entry.value).expect("ours")),
            None => (0, Members::default()),
        }
    }

    /// A host joins; nothing else happens meanwhile.
    pub(super) fn join(&mut self) {
        let rate = 1000 - DRIFT / 2 + self.dice.below(DRIFT + 1);
        let (generation, members) = self.members();
        let made = members.with(|incarnation| Member {
            incarnation,
            address: ([127, 0, 0, 1], 1).into(),
            name: "h".into(),
            page_bytes: 4096,
            representation: Representation::here(),
            process: String::new(),
        });
        let (_, more) = made.expect("a slot is free");
        let me = Incarnation(members.next);
        let lease = self.grant();
        let view = Write::put(self.keys.view(), encode_members(&more));
        let writes = vec![self.key(me, lease), view];
        let needs = match generation {
            0 => vec![Need::Absent(self.keys.view())],
            n => vec![Need::Unchanged(self.keys.view(), n)],
        };
        let sent = Moment::from_ns(self.now * rate / 1000);
        let times = Times {
            lease: LEASE,
            going_on: GOING_ON,
        };
        let changes = self.table.transact(Txn { needs, writes }).expect("alone");
        let snapshot = self.table.read("");
        let mut host = Host {
            rule: Rule::new(me, times, sent, LEASE),
            me,
            lease,
            rate,
            fenced: false,
            killed: false,
            stopped_until: 0,
            generation: snapshot.revision,
            members: more.clone(),
            alive: BTreeSet::new(),
            going_on: BTreeMap::new(),
            unheard: Unheard::new(),
            seen: snapshot.revision,
            held: BTreeMap::new(),
        };
        let keys = snapshot.entries.keys();
        host.alive = keys
            .clone()
            .filter_map(|key| self.keys.alive_of(key))
            .collect();
        let entries = snapshot.entries.iter();
        let going_on = entries.filter_map(|(key, entry)| {
            Some((self.keys.goes_on_of(key)?, going_on_of(&entry.value)))
        });
        host.going_on = going_on.collect();
        let entries = snapshot.entries.iter();
        let unheard = entries.filter_map(|(key, entry)| {
            let of = decode_unheard(&entry.value).ok()?;
            Some((self.keys.unheard_of(key)?, of))
        });
        host.unheard = unheard.collect();
        host.tell_rule(sent);
        self.hosts.push(host);
        self.tell_all(changes);
        let number = self.hosts.len() - 1;
        self.later(0, Event::Tick(number));
    }

    fn key(&self, of: Incarnation, lease: i64) -> Write {
        Write::Put {
            key: self.keys.alive(of),
            value: lease.to_string(),
            lease: Some(lease),
        }
    }

    fn grant(&mut self) -> i64 {
        self.next_lease += 1;
        self.leases
            .insert(self.next_lease, self.now + LEASE.as_nanos() as u64);
        self.next_lease
    }

    fn later(&mut self, after: u64, event: Event) {
        let at = self.now + after;
        self.waiting.push(Some(event));
        let number = self.waiting.len();
        self.events.push(Reverse((at, number as u64, number - 1)));
    }

    /// Sends from one to another, unless it is lost.
    fn send(&mut self, from: usize, to: usize, message: Message) {
        let notice = matches!(message, Message::Notice(_));
        let mut delay = MS + self.dice.below(20 * MS);
        if self.faults {
            if self.dice.below(20) == 0 && !notice {
                return;
            }
            if self.dice.below(10) == 0 {
                delay = self.dice.below(4 * SEC);
            }
        }
        // Notices are resumed where they were lost.
        if self.cut.contains(&(from, to)) && !notice {
            return;
        }
        let event = match to {
            STORE => Event::AtStore(from, message),
            host => Event::AtHost(host, message),
        };
        self.later(delay, event);
    }

    pub(super) fn run(&mut self, length: u64) {
        let end = self.now + length;
        while let Some(Reverse((at, _, number))) = self.events.peek().copied() {
            if at > end {
                break;
            }
            self.events.pop();
            self.now = self.now.max(at);
            self.expire();
            let event = self.waiting[number].take().expect("each happens once");
            self.happen(event);
            self.check();
        }
        self.now = end;
    }

    pub(super) fn run_with_faults(&mut self, length: u64) {
        self.faults = true;
        self.later(SEC, Event::Faults);
        self.run(length);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Tick(host) => {
                if !self.hosts[host].killed {
                    let after = 200 * MS + self.dice.below(200 * MS);
                    self.later(after, Event::Tick(host));
                    self.tick(host);
                }
            }
            Event::AtStore(from, message) => {
                if !self.store_dead {
                    self.at_store(from, message);
                }
            }
            Event::AtHost(host, message) => self.at_host(host, message),
            Event::Faults => self.something_breaks(),
        }
    }

    fn tick(&mut self, number: usize) {
        let now = self.clock(number);
        let host = &mut self.hosts[number];
        if host.stopped_until > self.now || host.fenced {
            return;
        }
        if host.rule.acts_until() <= now {
            host.fenced = true;
            return;
        }
        let pings = host.rule.pings(now);
        let gone = host.rule.removable(now);
        let (generation, left) = (host.generation, host.members.without(&gone));
        self.writes_unheard(number, now);
        if self.leaves(number, now) {
            return;
        }
        let host = &mut self.hosts[number];
        if host.rule.could_go_on(now) {
            self.send(number, STORE, Message::BeginToGoOn);
        }
        self.send(number, STORE, Message::Keep { sent: now });
        for ping in pings {
            let to = self
                .hosts
                .iter()
                .position(|h| h.me == ping.to)
                .expect("it joined");
            self.send(number, to, Message::Ping(ping));
        }
        if !gone.is_empty() {
            let mut needs = vec![Need::Unchanged(self.keys.view(), generation)];
            needs.extend(gone.iter().map(|g| Need::Absent(self.keys.alive(*g))));
            let writes = vec![Write::put(self.keys.view(), encode_members(&left))];
            let txn = Txn { needs, writes };
            self.send(number, STORE, Message::Write { txn });
        }
    }

    fn writes_unheard(&mut self, number: usize, now: Moment) {
        let host = &self.hosts[number];
        let unheard = host.rule.unheard(now);
        if host
            .unheard
            .get(&host.me)
            .is_none_or(|written| *written != unheard)
        {
            let needs = vec![Need::Present(self.keys.alive(host.me))];
            let writes = vec![Write::Put {
                key: self.keys.unheard(host.me),
                value: encode_unheard(&unheard),
                lease: Some(host.lease),
            }];
            let txn = Txn { needs, writes };
            self.send(number, STORE, Message::Write { txn });
        }
    }

    /// It stops, and takes itself out of the view.
    fn leaves(&mut self, number: usize, now: Moment) -> bool {
        let host = &mut self.hosts[number];
        if host.rule.leaves_for(now).is_none() {
            return false;
        }
        host.fenced = true;
        self.left += 1;
        let left = encode_members(&host.members.without(&[host.me]));
        let needs = vec![Need::Unchanged(self.keys.view(), host.generation)];
        let view = Write::put(self.keys.view(), left);
        let writes = vec![view, Write::Delete(self.keys.alive(host.me))];
        let txn = Txn { needs, writes };
        self.send(number, STORE, Message::Write { txn });
        true
    }

    fn at_store(&mut self, from: usize, message: Message) {
        match message {
            Message::Keep { sent } => {
                let lease = self.hosts[from].lease;
                let there = self.leases.contains_key(&lease);
                let kept = there.then_some(lease);
                if there {
                    self.leases
                        .insert(lease, self.now + LEASE.as_nanos() as u64);
                }
                self.send(STORE, from, Message::Kept { sent, lease: kept });
            }
            Message::Write { txn } => self.commit(txn),
            Message::Revive {
                sent,
                mut txn,
                lease,
            } => {
                if !self.leases.contains_key(&lease) {
                    self.leases
                        .insert(lease, self.now + LEASE.as_nanos() as u64);
                }
                let key = self.key(self.hosts[from].me, lease);
                txn.writes.push(key);
                if let Some(changes) = self.table.transact(txn) {
                    self.tell_all(changes);
                    let lease = Some(lease);
                    self.send(STORE, from, Message::Kept { sent, lease });
                }
            }
            Message::BeginToGoOn => {
                let me = self.hosts[from].me;
                let going_on = encode_number(self.hosts[from].rule.going_on_ms());
                let needs = vec![Need::Present(self.keys.alive(me))];
                let writes = vec![Write::put(self.keys.goes_on(me), going_on)];
                if let Some(changes) = self.table.transact(Txn { needs, writes }) {
                    self.tell_all(changes);
                    self.send(STORE, from, Message::GoesOn);
                }
            }
            Message::Kept { .. }
            | Message::GoesOn
            | Message::Notice(_)
            | Message::Ping(_)
            | Message::Pong(_) => panic!("nobody sends that to the store"),
        }
    }

    fn commit(&mut self, txn: Txn) {
        if let Some(changes) = self.table.transact(txn) {
            let before = self.newest.len();
            self.tell_all(changes);
            self.removed += before - self.newest.len();
        }
    }

    fn tell_all(&mut self, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        let members = self.members().1.members;
        self.newest = members.values().map(|member| member.incarnation).collect();
        let keys = self.table.read("x/now/alive/").entries.into_keys();
        self.alive = keys.filter_map(|key| self.keys.alive_of(&key)).collect();
        for host in 0..self.hosts.len() {
            self.send(STORE, host, Message::Notice(changes.clone()));
        }
    }

    fn at_host(&mut self, number: usize, message: Message) {
        let now = self.clock(number);
        if self.hosts[number].killed {
            return;
        }
        let stopped = self.hosts[number].stopped_until;
        if stopped > self.now {
            let after = stopped - self.now;
            return self.later(after, Event::AtHost(number, message));
        }
        if let Message::Notice(_) = message
            && self.cut.contains(&(STORE, number))
        {
            return self.later(500 * MS, Event::AtHost(number, message));
        }
        let host = &mut self.hosts[number];
        // What the runtime does first whenever it runs.
        if host.rule.acts_until() <= now {
            host.fenced = true;
        }
        match message {
            Message::Kept { sent, lease } => self.kept(number, sent, lease),
            Message::Notice(changes) => {
                host.held.insert(changes[0].revision, changes);
                while let Some(changes) = host.held.remove(&(host.seen + 1)) {
                    host.seen += 1;
                    host.notice(&self.keys, &changes);
                    host.tell_rule(now);
                }
                // Those from before it joined.
                let seen = host.seen;
                host.held.retain(|revision, _| *revision > seen);
            }
            Message::Ping(ping) => {
                if host.fenced {
                    return;
                }
                if let Some(pong) = host.rule.answer(&ping, now) {
                    let to = self.hosts.iter().position(|h| h.me == ping.from);
                    self.send(number, to.expect("it joined"), Message::Pong(pong));
                }
            }
            Message::Pong(pong) => host.rule.answered(&pong, now),
            Message::GoesOn => {
                if !host.fenced {
                    host.rule.goes_on();
                }
            }
            Message::Keep { .. }
            | Message::Write { .. }
            | Message::Revive { .. }
            | Message::BeginToGoOn => panic!("nobody sends that to a host"),
        }
    }

    fn kept(&mut self, number: usize, sent: Moment, lease: Option<i64>) {
        let now = self.clock(number);
        let host = &mut self.hosts[number];
        if host.fenced {
            return;
        }
        if let Some(lease) = lease {
            if lease != host.lease {
                host.lease = lease;
                host.rule.store_back(now);
            }
            return host.rule.kept(sent, LEASE);
        }
        let (view, generation, me) = (self.keys.view(), host.generation, host.me);
        let needs = vec![
            Need::Unchanged(view.clone(), generation),
            Need::Absent(self.keys.alive(me)),
        ];
        let writes = vec![Write::put(view, encode_members(&host.members))];
        self.next_lease += 1;
        let lease = self.next_lease;
        let txn = Txn { needs, writes };
        let sent = now;
        self.send(number, STORE, Message::Revive { sent, txn, lease });
    }

    fn expire(&mut self) {
        if self.store_dead {
            return;
        }
        let now = self.now;
        let over = self.leases.iter().filter(|(_, until)| **until <= now);
        let over: Vec<i64> = over.map(|(lease, _)| *lease).collect();
        for lease in over {
            self.leases.remove(&lease);
            let changes = self.table.revoke(lease);
            self.tell_all(changes);
        }
    }

    fn clock(&self, host: usize) -> Moment {
        Moment::from_ns(self.now * self.hosts[host].rate / 1000)
    }

    fn acts(&self, number: usize) -> bool {
        let host = &self.hosts[number];
        let acts = !host.fenced && !host.killed;
        acts && self.clock(number) < host.rule.acts_until()
    }

    pub(super) fn acting(&self) -> usize {
        (0..self.hosts.len())
            .filter(|host| self.acts(*host))
            .count()
    }

    fn check(&mut self) {
        for number in 0..self.hosts.len() {
            if self.acts(number) {
                let (me, seed) = (self.hosts[number].me, self.seed);
                let member = self.newest.contains(&me);
                assert!(
                    member,
                    "host {me} acts outside the view; replay: FARPAGE_SEED={seed}"
                );
                self.acted_without_store += usize::from(!self.alive.contains(&me));
            }
        }
    }

    fn something_breaks(&mut self) {
        if !self.faults {
            return;
        }
        let after = 500 * MS + self.dice.below(4 * SEC);
        self.later(after, Event::Faults);
        let hosts = self.hosts.len() as u64;
        let one = self.dice.below(hosts) as usize;
        let other = self.dice.below(hosts) as usize;
        match self.dice.below(12) {
            0 => self.store_dies(),
            1 | 2 => {
                let forgetful = self.dice.below(2) == 0;
                self.store_back(forgetful);
            }
            3 => self.cut.push((one, STORE)),
            4 => self.cut.push((STORE, one)),
            5 => self.cut.push((one, other)),
            6..=8 => self.cut.clear(),
            9 => self.hosts[one].stopped_until = self.now + self.dice.below(8 * SEC),
            10 if hosts < 12 && !self.store_dead => self.join(),
            10 => {}
            _ => {
                if self.dice.below(4) == 0 {
                    self.kill(one);
                }
            }
        }
    }

    pub(super) fn heal(&mut self) {
        self.faults = false;
        self.cut.clear();
        if self.store_dead {
            self.store_back(false);
        }
        // Somebody to remove the others, should all have died.
        self.join();
    }

    /// Who acts is the view, and the other way round.
    pub(super) fn demand_agreement(&self) {
        let seed = self.seed;
        assert_eq!(
            self.acting(),
            self.newest.len(),
            "replay: FARPAGE_SEED={seed}"
        );
    }

    pub(super) fn store_dies(&mut self) {
        self.store_dead = true;
    }

    /// With all leases renewed, as etcd does, or as if it had gone on where nobody reached it.
    pub(super) fn store_back(&mut self, forgetful: bool) {
        if !std::mem::replace(&mut self.store_dead, false) || forgetful {
            return;
        }
        let until = self.now + LEASE.as_nanos() as u64;
        self.leases.values_mut().for_each(|old| *old = until);
    }

    pub(super) fn cut_off(&mut self, host: usize) {
        for other in 0..self.hosts.len() {
            self.cut.extend([(host, other), (other, host)]);
        }
    }

    pub(super) fn cut_between(&mut self, one: usize, other: usize) {
        self.cut.extend([(one, other), (other, one)]);
    }

    pub(super) fn cut_from_store(&mut self, host: usize) {
        self.cut.extend([(host, STORE), (STORE, host)]);
    }

    pub(super) fn kill(&mut self, host: usize) {
        self.hosts[host].killed = true;
    }
}

impl Host {
    fn notice(&mut self, keys: &Keys, changes: &[Change]) {
        for change in changes {
            if change.key == keys.view() {
                let value = change.value.as_ref().expect("a view is never deleted");
                self.generation = change.revision;
                self.members = decode_members(value).expect("ours");
            } else if let Some(number) = keys.alive_of(&change.key) {
                set(&mut self.alive, number, change.value.is_some());
            } else if let Some(number) = keys.unheard_of(&change.key) {
                let of = change.value.as_ref();
                match of.and_then(|value| decode_unheard(value).ok()) {
                    Some(of) => self.unheard.insert(number, of),
                    None => self.unheard.remove(&number),
                };
            } else if let Some(number) = keys.goes_on_of(&change.key) {
                match &change.value {
                    Some(value) => self.going_on.insert(number, going_on_of(value)),
                    None => self.going_on.remove(&number),
                };
            }
        }
    }

    fn tell_rule(&mut self, now: Moment) {
        let numbers = self.members.members.values().map(|m| m.incarnation);
        let told = |number: Incarnation| Told {
            alive: self.alive.contains(&number),
            goes_on: self.going_on.get(&number).copied(),
        };
        let mut others: BTreeMap<_, _> = numbers.map(|n| (n, told(n))).collect();
        if others.remove(&self.me).is_none() {
            self.fenced = true;
        }
        self.rule.viewed(&others, now);
        self.rule.told_unheard(&self.unheard, now);
    }
}

fn set(numbers: &mut BTreeSet<Incarnation>, number: Incarnation, there: bool) {
    match there {
        true => numbers.insert(number),
        false => numbers.remove(&number),
    };
}
