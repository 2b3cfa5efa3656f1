//! What befalls hosts, programs and etcd, by seed, and how it ends.

use std::time::{Duration, Instant};

use super::net::End;
use super::world::{World, signal};

/// How a fault ends.
enum Undo {
    Start(u8),
    GoOn(u32),
    StartEtcd,
    Mend(End, End),
    Plug(u8),
    Hurry,
    Smooth(u8, u8),
    SetClock(u8),
}

/// Faults that have begun.
#[derive(Default)]
pub struct Faults {
    open: Vec<(Instant, Undo)>,
    /// A way that is cut and mended again and again: until when, and when next.
    flaps: Vec<(Instant, Instant, End, End, bool)>,
}

impl Faults {
    /// Ends those whose time is over, or all of them.
    pub fn ends(&mut self, world: &mut World, all: bool) {
        let now = Instant::now();
        let (over, open) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(|(until, _)| all || *until <= now);
        self.open = open;
        for (_, undo) in over {
            undone(world, &undo);
        }
        for (until, next, from, to, is_cut) in &mut self.flaps {
            if all || now >= *until {
                world.net.cut(*from, *to, false);
            } else if now >= *next {
                *is_cut = !*is_cut;
                world.net.cut(*from, *to, *is_cut);
                *next = now + Duration::from_millis(world.dice.between(50, 600));
            }
        }
        self.flaps.retain(|(until, ..)| !all && now < *until);
        if all {
            world.net.delays_etcd(Duration::ZERO);
            world.starts_missing();
            if world.net.etcd().is_none() {
                world.net.start_etcd();
            }
        }
    }

    /// Something fails.
    pub fn begins(&mut self, world: &mut World) {
        let hosts = u64::from(world.hosts());
        let one = world.dice.below(hosts) as u8;
        let other = ((u64::from(one) + world.dice.between(1, hosts)) % hosts) as u8;
        let length = Duration::from_millis(world.dice.between(200, 3000));
        let long = length * 4;
        let name = match world.dice.below(16) {
            0 => {
                world.kills(one);
                self.until(length, Undo::Start(one));
                "a host kernel is killed"
            }
            1 | 2 => {
                if let Some(pid) = world.stops(one) {
                    self.until(length * 2, Undo::GoOn(pid));
                }
                "a host kernel is stopped"
            }
            3 => {
                if let Some((_, pid)) = world.program() {
                    signal(pid, "-KILL");
                }
                "a program is killed"
            }
            4 => {
                if let Some((_, pid)) = world.program() {
                    signal(pid, "-STOP");
                    self.until(length, Undo::GoOn(pid));
                }
                "a program is stopped"
            }
            5 => {
                world.net.kill_etcd();
                self.until(length, Undo::StartEtcd);
                "etcd is killed"
            }
            6 => {
                if let Some(pid) = world.net.etcd() {
                    signal(pid, "-STOP");
                    self.until(length, Undo::GoOn(pid));
                }
                "etcd is stopped"
            }
            7 => {
                self.cuts(world, End::Host(one), End::Host(other), true, long);
                "two hosts are cut from one another"
            }
            8 => {
                self.cuts(world, End::Host(one), End::Host(other), false, long);
                "one host does not reach another"
            }
            9 => {
                let both = world.dice.below(2) == 0;
                self.cuts(world, End::Host(one), End::Store, both, length * 2);
                "a host does not reach etcd"
            }
            10 => {
                world.net.plug(one, false);
                self.until(length * 2, Undo::Plug(one));
                "a host is cut off"
            }
            11 => {
                let to = [End::Host(other), End::Store][world.dice.below(2) as usize];
                let now = Instant::now();
                self.flaps
                    .push((now + long, now, End::Host(one), to, false));
                "a way flaps"
            }
            12 => {
                let delay = Duration::from_millis(world.dice.between(5, 200));
                world.net.delays_etcd(delay);
                self.until(length * 2, Undo::Hurry);
                "etcd is slow"
            }
            13 => {
                let delay = Duration::from_micros(world.dice.between(100, 50_000));
                self.hampers(world, (one, other), delay, 0, long);
                "what two hosts send one another takes its time"
            }
            14 => {
                let delay = Duration::from_micros(world.dice.below(2) * 3000);
                let lost = world.dice.between(1, 25) as u8;
                self.hampers(world, (one, other), delay, lost, long);
                "what two hosts send one another gets lost"
            }
            _ => {
                let by = world.dice.between(1, 1_000_000) as i64;
                let by = if world.dice.below(2) == 0 { by } else { -by };
                world.net.sets_clock(one, by);
                self.until(length * 2, Undo::SetClock(one));
                "a clock jumps, and back"
            }
        };
        *world.figures.faults.entry(name).or_default() += 1;
        world.event(format!("{name}: host{one} (host{other}), {length:?}"));
    }

    fn until(&mut self, length: Duration, undo: Undo) {
        self.open.push((Instant::now() + length, undo));
    }

    /// Both ways.
    fn hampers(
        &mut self,
        world: &World,
        (one, other): (u8, u8),
        delay: Duration,
        lost: u8,
        length: Duration,
    ) {
        hampered(world, (one, other), delay, lost);
        self.until(length, Undo::Smooth(one, other));
    }

    fn cuts(&mut self, world: &World, one: End, other: End, both: bool, length: Duration) {
        let ways = [(one, other), (other, one)];
        for (from, to) in ways.into_iter().take(if both { 2 } else { 1 }) {
            world.net.cut(from, to, true);
            self.until(length, Undo::Mend(from, to));
        }
    }
}

fn hampered(world: &World, (one, other): (u8, u8), delay: Duration, lost: u8) {
    for (from, to) in [(one, other), (other, one)] {
        world.net.way(End::Host(from), End::Host(to), |way| {
            (way.delay, way.lost) = (delay, lost);
        });
    }
}

fn undone(world: &mut World, undo: &Undo) {
    match undo {
        Undo::Start(host) => {
            if world.kernel(*host).is_none() {
                world.starts_missing();
            }
        }
        Undo::GoOn(pid) => signal(*pid, "-CONT"),
        Undo::StartEtcd => {
            if world.net.etcd().is_none() {
                world.net.start_etcd();
            }
        }
        Undo::Mend(from, to) => world.net.cut(*from, *to, false),
        Undo::Plug(host) => world.net.plug(*host, true),
        Undo::Hurry => world.net.delays_etcd(Duration::ZERO),
        Undo::Smooth(one, other) => hampered(world, (*one, *other), Duration::ZERO, 0),
        Undo::SetClock(host) => world.net.sets_clock(*host, 0),
    }
}
