//! What the scheduler of 1989 got wrong, in six ways; and what each kind of fault costs.

use alloc::vec::Vec;

use farpage_object::Access::{Read, Write};

use crate::coherence::{Epoch, Host, Hosts, Message, Output, Page, Request};

/// Hosts, and the messages that they have sent: from, to, what.
pub(super) struct Few {
    pub(super) pages: Vec<Page>,
    flying: Vec<(Host, Host, Message)>,
    pub(super) sent: usize,
    /// Who was told that nobody may write any more.
    pub(super) told_sealed: Vec<Host>,
    answered: Vec<(Host, farpage_object::Access)>,
}

impl Few {
    pub(super) fn new(hosts: u8) -> Self {
        Self {
            pages: (0..hosts)
                .map(|own| Page::new(Host(own), Host(0)))
                .collect(),
            flying: Vec::new(),
            sent: 0,
            told_sealed: Vec::new(),
            answered: Vec::new(),
        }
    }

    pub(super) fn at(&mut self, host: u8, act: impl FnOnce(&mut Page)) {
        let page = &mut self.pages[usize::from(host)];
        act(page);
        while let Some(output) = page.poll_output() {
            match output {
                Output::Send(to, message) => {
                    self.flying.push((Host(host), to, message));
                    self.sent += 1;
                }
                Output::Answer(access) => self.answered.push((Host(host), access)),
                Output::Take | Output::Allow(_) | Output::Withdraw => {}
                Output::Sealed => self.told_sealed.push(Host(host)),
                Output::Show { .. } | Output::Keep(_) | Output::Restore(_) | Output::Lost => {
                    panic!("nobody dies, and nothing is mirrored")
                }
            }
        }
    }

    pub(super) fn faults(&mut self, host: u8, access: farpage_object::Access) {
        self.at(host, |page| page.fault(access));
    }

    /// Delivers the first message that `which` says.
    fn deliver(&mut self, which: impl Fn(Host, &Message) -> bool) {
        let found = self
            .flying
            .iter()
            .position(|(_, to, message)| which(*to, message));
        let (from, to, message) = self.flying.remove(found.expect("it is on its way"));
        self.at(to.0, |page| page.handle(from, message).expect("honest"));
    }

    /// All that is left to do, first come, first served.
    pub(super) fn settle(&mut self) {
        loop {
            if !self.flying.is_empty() {
                self.deliver(|_, _| true);
            } else if let Some(held) = (0..self.pages.len()).find(|at| self.pages[*at].is_held()) {
                self.at(held as u8, Page::let_go);
            } else {
                return;
            }
        }
    }

    /// Messages that a fault costs when nothing else happens.
    pub(super) fn cost(&mut self, host: u8, access: farpage_object::Access) -> usize {
        let before = self.sent;
        self.faults(host, access);
        self.settle();
        assert_eq!(self.answered.last(), Some(&(Host(host), access)));
        self.sent - before
    }
}

fn is_invalidate(message: &Message) -> bool {
    matches!(message, Message::Invalidate { .. })
}

#[test]
fn a_late_order_to_drop_a_copy_sends_no_request_in_a_circle() {
    let mut few = Few::new(3);
    few.cost(2, Read);
    few.faults(1, Write);
    few.deliver(|to, _| to == Host(0));
    few.deliver(|to, _| to == Host(1));
    // Host 2 has not heard of it, and asks the old owner.
    few.faults(2, Write);
    while let Some(at) = few
        .flying
        .iter()
        .position(|(_, _, message)| !is_invalidate(message))
    {
        let (from, to, message) = few.flying.remove(at);
        few.at(to.0, |page| page.handle(from, message).unwrap());
    }
    assert_eq!(few.pages[1].allowed(), None, "it waits for host 2's copy");
    few.settle();
    assert_eq!(few.pages[2].allowed(), Some(Write));
    assert_eq!(
        few.cost(0, Read),
        3,
        "the way from host 0 leads by host 1 to host 2"
    );
}

#[test]
fn all_who_ask_at_the_same_time_are_answered() {
    let mut few = Few::new(4);
    for host in [1, 2, 3] {
        few.faults(host, Read);
        few.faults(host, Write);
    }
    few.faults(0, Read);
    few.settle();
    for host in [1, 2, 3] {
        assert!(
            few.answered.contains(&(Host(host), Write)),
            "{:?}",
            few.answered
        );
    }
}

#[test]
fn a_copy_that_an_order_to_drop_it_overtakes_is_read_once() {
    let mut few = Few::new(3);
    few.faults(2, Read);
    few.deliver(|to, _| to == Host(0));
    few.faults(1, Write);
    few.deliver(|to, message| to == Host(0) && matches!(message, Message::Request(_)));
    few.deliver(|to, message| to == Host(2) && is_invalidate(message));
    few.deliver(|to, message| to == Host(1) && matches!(message, Message::Own { .. }));
    assert_eq!(few.pages[1].allowed(), None, "host 2 has not read");
    few.deliver(|to, message| to == Host(2) && matches!(message, Message::Copy { .. }));
    assert_eq!(few.answered, [(Host(2), Read)]);
    few.settle();
    assert_eq!(few.answered, [(Host(2), Read), (Host(1), Write)]);
    assert_eq!(
        few.pages[2].allowed(),
        None,
        "it is gone when another has written"
    );
}

#[test]
fn a_copy_that_comes_too_late_is_asked_for_again() {
    let mut few = Few::new(3);
    few.cost(2, Read);
    few.at(2, |page| assert!(page.forget()));
    few.faults(2, Read);
    few.deliver(|to, _| to == Host(0));
    few.faults(1, Write);
    few.deliver(|to, message| to == Host(0) && matches!(message, Message::Request(_)));
    // It cannot know which of its copies is meant.
    few.deliver(|to, message| to == Host(2) && is_invalidate(message));
    few.deliver(|to, message| to == Host(2) && matches!(message, Message::Copy { .. }));
    assert_eq!((few.pages[2].allowed(), few.answered.len()), (None, 1));
    few.settle();
    assert_eq!(few.answered[1..], [(Host(1), Write), (Host(2), Read)]);
}

#[test]
fn a_copy_is_not_taken_for_the_right_to_write() {
    let mut few = Few::new(2);
    few.faults(1, Read);
    few.faults(1, Write);
    few.deliver(|to, _| to == Host(0));
    few.deliver(|to, _| to == Host(1));
    assert_eq!(few.pages[1].allowed(), Some(Read));
    let copy = Message::Copy { epoch: Epoch(0) };
    let refused = few.pages[1].handle(Host(0), copy).unwrap_err();
    assert_eq!(refused.what, "a copy that was not asked for");
    few.settle();
    assert_eq!(few.pages[1].allowed(), Some(Write));
}

#[test]
fn nothing_is_written_before_every_copy_is_gone() {
    let mut few = Few::new(4);
    few.cost(2, Read);
    few.cost(3, Read);
    few.faults(1, Write);
    few.deliver(|to, _| to == Host(0));
    few.deliver(|to, _| to == Host(1));
    for copy in [3, 2] {
        assert_eq!(few.pages[1].allowed(), None);
        few.deliver(|to, message| to == Host(copy) && is_invalidate(message));
        few.deliver(|to, _| to == Host(1));
    }
    assert_eq!(few.pages[1].allowed(), Some(Write));
}

#[test]
fn readers_have_their_turn_among_writers() {
    let mut few = Few::new(4);
    few.cost(0, Write);
    few.faults(0, Write);
    // It is asked by a reader between two writers, while a thread of its own runs.
    for (host, access) in [(1, Write), (2, Read), (3, Write)] {
        few.faults(host, access);
        few.deliver(|to, _| to == Host(0));
    }
    few.settle();
    let order: Vec<_> = few.answered.iter().skip(2).copied().collect();
    assert_eq!(order, [(Host(1), Write), (Host(2), Read), (Host(3), Write)]);
}

#[test]
fn each_kind_of_fault_costs_what_it_must() {
    let mut few = Few::new(6);
    for reader in 1..4 {
        assert_eq!(few.cost(reader, Read), 2, "a read");
    }
    assert_eq!(
        few.cost(0, Write),
        6,
        "the owner writes, and three have copies"
    );
    for reader in 1..4 {
        few.cost(reader, Read);
    }
    assert_eq!(few.cost(4, Write), 2 + 2 * 3, "another writes");
    few.cost(1, Read);
    few.cost(2, Read);
    let request = few.sent;
    few.faults(1, Write);
    few.deliver(|_, _| true);
    let own = few.flying.iter().find_map(|(_, _, message)| match message {
        Message::Own { contents, .. } => Some(*contents),
        _ => None,
    });
    assert_eq!(own, Some(false), "who has a copy needs no contents");
    few.settle();
    assert_eq!(few.sent - request, 2 + 2);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut few = Few::new(3);
    few.faults(1, Write);
    let page = few.pages[1].clone();
    let (epoch, owner, copies) = (Epoch(1), Host(2), Hosts::NONE);
    let own = Hosts::of(Host(1));
    for (from, message) in [
        (2, Message::Copy { epoch }),
        (
            2,
            Message::Invalidate {
                epoch: Epoch(0),
                owner,
            },
        ),
        (
            2,
            Message::Invalidate {
                epoch,
                owner: Host(1),
            },
        ),
        (1, Message::Dropped { epoch }),
        (2, Message::Dropped { epoch: Epoch(0) }),
        (200, Message::Dropped { epoch }),
        (
            0,
            Message::Own {
                epoch: Epoch(0),
                copies,
                contents: true,
                waiting: [].into(),
                migrates: false,
                is_sealed: false,
            },
        ),
        (
            0,
            Message::Own {
                epoch,
                copies: own,
                contents: true,
                waiting: [].into(),
                migrates: false,
                is_sealed: false,
            },
        ),
    ] {
        let refused = few.pages[1].handle(Host(from), message.clone());
        assert_eq!(refused.unwrap_err().by, Host(from), "{message:?}");
        assert_eq!(few.pages[1], page);
    }
    few.at(1, |page| {
        page.handle(Host(2), Message::Dropped { epoch }).unwrap()
    });
    let own = Message::Own {
        epoch,
        copies,
        contents: true,
        waiting: [].into(),
        migrates: false,
        is_sealed: false,
    };
    let refused = few.pages[1].handle(Host(0), own).unwrap_err();
    assert_eq!(refused.what, "others than those that have copies");
    let idle = few.pages[2].handle(Host(0), Message::Dropped { epoch });
    assert!(idle.is_err() && few.pages[2] == Page::new(Host(2), Host(0)));
}

#[test]
fn who_lies_about_what_comes_after_a_copy_is_found_out() {
    let mut few = Few::new(4);
    few.faults(2, Read);
    let (epoch, owner, copies) = (Epoch(5), Host(1), Hosts::NONE);
    let invalidate = Message::Invalidate { epoch, owner };
    few.at(2, |page| page.handle(Host(0), invalidate.clone()).unwrap());
    let page = few.pages[2].clone();
    for message in [
        invalidate,
        Message::Copy { epoch },
        Message::Lost { epoch },
        Message::Dropped { epoch },
        Message::Own {
            epoch: Epoch(6),
            copies,
            contents: true,
            waiting: [].into(),
            migrates: false,
            is_sealed: false,
        },
        Message::Copy {
            epoch: Epoch(u64::MAX),
        },
    ] {
        few.pages[2].handle(Host(0), message).unwrap_err();
        assert_eq!(few.pages[2], page);
    }
    let by = Host(3);
    let request = Message::Request(Request {
        by,
        to_write: false,
        has_copy: false,
        known: Epoch(9),
        hops: 0,
        to_copy: false,
    });
    few.at(2, |page| page.handle(by, request.clone()).unwrap());
    let refused = few.pages[2].handle(by, request).unwrap_err();
    assert_eq!(
        refused.what,
        "a request of a host that waits here, or cannot be"
    );
}

#[test]
fn a_page_that_hosts_read_and_then_write_costs_two_messages_a_turn() {
    let turn = |few: &mut Few, host| few.cost(host, Read) + few.cost(host, Write);
    let turns = |few: &mut Few| [1, 2, 3, 1, 2, 3].map(|host| turn(few, host));
    let mut plain = Few::new(4);
    let mut finds = Few::new(4);
    for page in &mut finds.pages {
        *page = page.clone().find_migration();
    }
    // Hosts that have not met yet are found by way of others: the rest are hops.
    std::println!(
        "plain {:?}, migrating {:?}",
        turns(&mut plain),
        turns(&mut finds)
    );
    for few in [&mut plain, &mut finds] {
        few.cost(1, Write);
        few.cost(2, Write);
    }
    assert_eq!((turn(&mut plain, 1), turn(&mut finds, 1)), (4, 2));
    assert_eq!((turn(&mut plain, 2), turn(&mut finds, 2)), (4, 2));
    // One that only reads: the next one has a copy again.
    assert_eq!(finds.cost(1, Read), 2);
    assert_eq!(finds.pages[1].allowed(), Some(Read));
    assert_eq!(finds.cost(2, Read), 2);
    assert_eq!(
        (finds.pages[1].is_owner(), finds.pages[2].is_owner()),
        (true, false)
    );
}
