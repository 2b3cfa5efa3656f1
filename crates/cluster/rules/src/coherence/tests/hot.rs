//! Hosts that all want the same page all the time: what that costs, and that nobody starves.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use alloc::{format, string::String, vec};

use farpage_object::Access;

use super::model::Rng;
use crate::coherence::{Host, Message, Output, Page};

enum Event {
    Comes(Host, Host, Message),
    LetGo(Host),
}

/// Hosts with one page, and messages that each take a while.
struct Spot {
    pages: Vec<Page>,
    wants: Vec<Access>,
    /// What happens when; what happens at the same time does so in the order in which it was sent.
    events: BTreeMap<(u64, u64), Event>,
    rng: Rng,
    /// Messages take from 1 to so long.
    slow: usize,
    time: u64,
    events_so_far: u64,
    sent: u64,
    copies_sent: u64,
    answered: Vec<u64>,
    /// How many have been answered since a host began to wait.
    waits: Vec<u64>,
    waits_max: u64,
}

impl Spot {
    /// Of the hosts the first `readers` only read.
    fn new(hosts: u8, readers: usize, slow: usize) -> Self {
        let all = usize::from(hosts);
        let mut spot = Self {
            pages: (0..hosts)
                .map(|own| Page::new(Host(own), Host(hosts - 1)))
                .collect(),
            wants: vec![Access::Write; all],
            events: BTreeMap::new(),
            rng: Rng(u64::from(hosts)),
            slow,
            time: 0,
            events_so_far: 0,
            sent: 0,
            copies_sent: 0,
            answered: vec![0; all],
            waits: vec![0; all],
            waits_max: 0,
        };
        spot.wants[..readers].fill(Access::Read);
        for host in 0..hosts {
            spot.want(Host(host));
        }
        spot
    }

    fn after(&mut self, ticks: usize, event: Event) {
        self.events_so_far += 1;
        let at = (self.time + ticks as u64, self.events_so_far);
        self.events.insert(at, event);
    }

    /// A thread that has lost the page faults again at once.
    fn want(&mut self, host: Host) {
        let at = usize::from(host.0);
        let (page, want) = (&mut self.pages[at], self.wants[at]);
        let has = page.allowed() == Some(Access::Write) || page.allowed() == Some(want);
        if !has && page.wanted().is_none() && !page.is_held() {
            page.fault(want);
            self.waits[at] = 0;
            self.drain(host);
        }
    }

    fn drain(&mut self, host: Host) {
        let at = usize::from(host.0);
        while let Some(output) = self.pages[at].poll_output() {
            match output {
                Output::Send(to, message) => {
                    self.sent += 1;
                    self.copies_sent += u64::from(matches!(message, Message::Invalidate { .. }));
                    let ticks = 1 + self.rng.below(self.slow);
                    self.after(ticks, Event::Comes(host, to, message));
                }
                Output::Answer(_) => {
                    self.answered[at] += 1;
                    self.waits_max = self.waits_max.max(self.waits[at]);
                    self.waits.iter_mut().for_each(|waits| *waits += 1);
                    self.after(1, Event::LetGo(host));
                }
                Output::Take | Output::Allow(_) | Output::Withdraw => {}
                Output::Show { .. }
                | Output::Keep(_)
                | Output::Restore(_)
                | Output::Lost
                | Output::Sealed => {
                    panic!("nobody dies, and nothing is mirrored")
                }
            }
        }
    }

    fn run(&mut self, answers: u64) {
        while self.answered.iter().sum::<u64>() < answers {
            let ((time, _), event) = self.events.pop_first().expect("everybody always wants");
            self.time = time;
            let host = match event {
                Event::Comes(from, to, message) => {
                    let page = &mut self.pages[usize::from(to.0)];
                    page.handle(from, message).expect("all are honest");
                    to
                }
                Event::LetGo(host) => {
                    self.pages[usize::from(host.0)].let_go();
                    host
                }
            };
            self.drain(host);
            self.want(host);
        }
    }
}

impl Spot {
    /// Whoever waits is overtaken by each of the others twice at most, and while its messages fly.
    fn check_waits(&self) {
        let flights = 3 * self.slow as u64;
        let most = 2 * self.pages.len() as u64 + flights;
        assert!(self.waits_max <= most, "{} of {most}", self.waits_max);
    }
}

const ANSWERS: u64 = 20_000;

#[test]
fn a_write_costs_two_messages_however_many_hosts_always_want_to() {
    let mut table =
        String::from("hosts  even  uneven  (messages for each write, all always write)\n");
    for hosts in 2..=16 {
        let [even, uneven] = [1, 20].map(|slow| {
            let mut spot = Spot::new(hosts, 0, slow);
            spot.run(1000);
            let before = spot.sent;
            spot.run(1000 + ANSWERS);
            let (least, most) = (spot.answered.iter().min(), spot.answered.iter().max());
            assert!(
                *least.unwrap() * 10 > *most.unwrap() * 9,
                "{:?}",
                spot.answered
            );
            spot.check_waits();
            (spot.sent - before) as f64 / ANSWERS as f64
        });
        assert!(even <= 2.0, "{hosts} hosts: {even}");
        table += &format!("{hosts:5}  {even:.3}  {uneven:.3}\n");
    }
    std::println!("{table}");
}

#[test]
fn readers_and_writers_wait_for_each_other_once_round() {
    let mut table =
        String::from("hosts  readers  messages  beyond copies dropped  waits at most\n");
    for (hosts, readers) in [(2, 1), (4, 1), (4, 2), (8, 4), (8, 7), (16, 8)] {
        let mut spot = Spot::new(hosts, readers, 5);
        spot.run(ANSWERS);
        let (least, most) = (spot.answered.iter().min(), spot.answered.iter().max());
        assert!(
            *least.unwrap() * 10 > *most.unwrap() * 5,
            "{:?}",
            spot.answered
        );
        spot.check_waits();
        let each = spot.sent as f64 / ANSWERS as f64;
        // Each copy dropped is told of and answered.
        let rest = (spot.sent - 2 * spot.copies_sent) as f64 / ANSWERS as f64;
        table += &format!(
            "{hosts:5}  {readers:7}  {each:8.3}  {rest:21.3}  {}\n",
            spot.waits_max
        );
    }
    std::println!("{table}");
}

#[test]
fn a_page_with_nothing_under_way_is_small() {
    let bytes = size_of::<Page>();
    std::println!("{bytes} bytes");
    assert!(bytes <= 64);
    let mut page = Page::new(Host(0), Host(0));
    let idle = page.clone();
    page.fault(Access::Write);
    while page.poll_output().is_some() {}
    page.let_go();
    assert_eq!(page, idle, "it gives back what it had under way");
}
