//! Pages that nobody writes any more: who gives them, what that costs, and what is refused.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use alloc::{format, string::String, vec};

use farpage_object::Access::{Read, Write};

use super::model::Rng;
use super::named::Few;
use crate::coherence::{Epoch, Host, Message, Output, Page};

/// What contents need on their way out of a host, in the time that a message without needs.
const CONTENTS: u64 = 100;

/// Who a message is from, and it.
type Come = (Host, Message);

/// Hosts that read one page, and each sends one page's contents at a time.
struct Readers {
    pages: Vec<Page>,
    /// What comes when: a host asks, or a message.
    events: BTreeMap<(u64, u64), (Host, Option<Come>)>,
    numbered: u64,
    time: u64,
    /// Until when each has contents on their way out.
    busy: Vec<u64>,
    /// Contents, and all messages, that each has sent.
    sent: Vec<(u32, u32)>,
}

impl Readers {
    /// All but the first, which owns the page, ask one after the other, in any order, at about the same
    /// time.
    fn new(hosts: u8, is_sealed: bool, seed: u64) -> Self {
        let all = usize::from(hosts);
        let mut pages: Vec<Page> = (0..hosts)
            .map(|own| Page::new(Host(own), Host(0)))
            .collect();
        if is_sealed {
            pages[0].seal();
            while pages[0].poll_output().is_some() {}
        }
        let mut readers = Self {
            pages,
            events: BTreeMap::new(),
            numbered: 0,
            time: 0,
            busy: vec![0; all],
            sent: vec![(0, 0); all],
        };
        let mut rng = Rng(seed);
        for host in 1..hosts {
            let at = rng.below(CONTENTS as usize) as u64;
            readers.at(at, Host(host), None);
        }
        readers
    }

    fn at(&mut self, time: u64, host: Host, what: Option<Come>) {
        self.numbered += 1;
        self.events.insert((time, self.numbered), (host, what));
    }

    /// Runs until all have read. When that is.
    fn run(&mut self) -> u64 {
        while let Some(((time, _), (host, what))) = self.events.pop_first() {
            self.time = time;
            let page = &mut self.pages[usize::from(host.0)];
            match what {
                Some((from, message)) => page.handle(from, message).expect("all are honest"),
                None => page.fault(Read),
            }
            self.drain(host);
        }
        assert!(self.pages.iter().all(|page| page.allowed().is_some()));
        self.time
    }

    fn drain(&mut self, host: Host) {
        let at = usize::from(host.0);
        while let Some(output) = self.pages[at].poll_output() {
            let Output::Send(to, message) = output else {
                continue;
            };
            self.sent[at].1 += 1;
            let arrives = match message.has_contents() {
                true => {
                    self.sent[at].0 += 1;
                    self.busy[at] = self.busy[at].max(self.time) + CONTENTS;
                    self.busy[at]
                }
                false => self.time + 1,
            };
            self.at(arrives, to, Some((host, message)));
        }
    }
}

#[test]
fn of_a_sealed_page_no_host_gives_many_copies_and_all_have_one_soon() {
    let mut table = String::from(
        "hosts  contents that the owner sends, any other, messages, time in contents\n",
    );
    for hosts in [2, 4, 8, 16, 32, 64] {
        let mut worst = [0; 4];
        for seed in 0..20 {
            let mut readers = Readers::new(hosts, true, seed);
            let time = readers.run().div_ceil(CONTENTS);
            let others = readers.sent[1..].iter().map(|(contents, _)| *contents);
            let messages: u32 = readers.sent.iter().map(|(_, all)| *all).sum();
            let all = [
                readers.sent[0].0,
                others.max().unwrap_or(0),
                messages,
                time as u32,
            ];
            worst = core::array::from_fn(|at| worst[at].max(all[at]));
        }
        let [owner, other, messages, time] = worst;
        table += &format!("{hosts:5}  {owner:2}  {other:2}  {messages:4}  {time:3}\n");
        let readers = u32::from(hosts) - 1;
        let log = readers.ilog2() + 1;
        assert!(owner <= 2 && other <= 2 * log, "{hosts}: {owner}, {other}");
        assert!(
            messages <= 3 * readers && time <= 1 + 3 * log,
            "{hosts}: {messages}, {time}"
        );
        let mut plain = Readers::new(hosts, false, 1);
        assert!(plain.run() >= CONTENTS * u64::from(readers));
        assert_eq!(plain.sent[0].0, readers, "without, the owner gives all");
    }
    std::println!("{table}");
}

#[test]
fn who_has_a_copy_of_a_sealed_page_gives_it_and_writers_are_told() {
    let mut few = Few::new(5);
    few.cost(1, Write);
    few.pages[1].seal();
    assert_eq!(
        few.cost(2, Read),
        3,
        "by way of host 0, which had it before"
    );
    assert_eq!(few.cost(3, Read), 3);
    assert_eq!(few.cost(0, Read), 3, "sent on to host 2");
    assert!(few.pages.iter().filter(|page| page.is_final()).count() == 4);
    // Host 2 has dropped its copy when it is asked: the owner answers.
    assert!(few.pages[2].forget());
    while few.pages[2].poll_output().is_some() {}
    let before = few.sent;
    few.faults(4, Read);
    few.settle();
    assert_eq!(
        (few.pages[4].allowed(), few.pages[4].is_final()),
        (Some(Read), true)
    );
    assert!(few.sent - before <= 5);
    assert_eq!(
        few.cost(2, Read),
        2,
        "who asks again is answered by the owner"
    );
    // A writer gets the ownership, and nothing to write.
    few.faults(3, Write);
    few.settle();
    let allowed = few.pages.iter().map(Page::allowed).collect::<Vec<_>>();
    assert_eq!(allowed, [Some(Read); 5]);
    assert!(few.pages[3].is_owner() && few.pages[3].wanted().is_none());
    assert_eq!(few.told_sealed, [Host(3)]);
    few.faults(3, Write);
    assert_eq!(few.told_sealed, [Host(3), Host(3)], "at once");
}

#[test]
fn a_sealed_copy_that_cannot_be_is_refused() {
    let mut few = Few::new(3);
    let sealed = |epoch, owner| Message::Sealed {
        epoch: Epoch(epoch),
        owner: Host(owner),
    };
    let refused = |few: &mut Few, message| {
        let page = few.pages[1].clone();
        let refused = few.pages[1].handle(Host(2), message).unwrap_err();
        assert_eq!((refused.by, &few.pages[1]), (Host(2), &page));
        refused.what
    };
    assert_eq!(
        refused(&mut few, sealed(1, 0)),
        "a copy that was not asked for"
    );
    few.faults(1, Read);
    for owner in [1, 200] {
        let what = refused(&mut few, sealed(1, owner));
        assert_eq!(what, "a copy of an owner that cannot be");
    }
    few.at(1, |page| {
        let (epoch, owner) = (Epoch(2), Host(2));
        page.handle(Host(0), Message::Invalidate { epoch, owner })
            .unwrap();
    });
    let what = refused(&mut few, sealed(1, 0));
    assert_eq!(what, "that nobody writes a page which somebody does");
}
