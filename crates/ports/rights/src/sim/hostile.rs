//! A task that sends anything, with numbers that are often right, to two honest tasks.
//!
//! The honest ones count exactly all the while, and neither is made to break the protocol towards
//! the other.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::rng::Rng;
use crate::frame::{ExportId, Frame, MessageFrame, WireRight};
use crate::message::{Disposition, Give, Got, LinkId, Message, Name, RightKind, TaskId};
use crate::right::Entry;
use crate::{Output, Request, Space};

/// Tasks 0 and 1 are honest; their Link is 0. Task 2 is not; its Links are 1 and 2.
struct Victims {
    spaces: [Space; 2],
    /// Frames on their way to each.
    queues: [VecDeque<Frame>; 2],
    /// The largest number that anybody has used for a handover.
    nonce: u64,
    violations: u32,
}

const HONEST: LinkId = LinkId(0);
const HOSTILE: [LinkId; 2] = [LinkId(1), LinkId(2)];

impl Victims {
    fn new() -> Self {
        let mut it = Self {
            spaces: [Space::new(TaskId(0)), Space::new(TaskId(1))],
            queues: [VecDeque::new(), VecDeque::new()],
            nonce: 0,
            violations: 0,
        };
        for (space, (other, hostile)) in it.spaces.iter_mut().zip([1, 0].into_iter().zip(HOSTILE)) {
            space.link_up(HONEST, TaskId(other), 0).unwrap();
            space.link_up(hostile, TaskId(2), 0).unwrap();
            space.expect_offer(0);
            for link in [HONEST, hostile] {
                let port = space.allocate_port();
                space
                    .offer(link, 0, Give::new(port, Disposition::MakeSend))
                    .unwrap();
            }
        }
        it
    }

    fn outputs(&mut self, at: usize) {
        while let Some(output) = self.spaces[at].poll_output() {
            if let Output::Frame { link, frame, .. } = output {
                if let Frame::Provide { nonce, .. } = frame {
                    self.nonce = self.nonce.max(nonce);
                }
                if link == HONEST {
                    self.queues[1 - at].push_back(frame);
                }
            }
        }
        self.spaces[at].check();
    }

    fn deliver(&mut self, at: usize) {
        if let Some(frame) = self.queues[at].pop_front() {
            let handled = self.spaces[at].handle_frame(HONEST, frame, vec![]);
            handled.expect("an honest task was made to break the protocol");
            self.outputs(at);
        }
    }

    /// An entry that the hostile task may or may not name.
    fn export(&self, rng: &mut Rng, at: usize) -> ExportId {
        let space = &self.spaces[at];
        let mut known: Vec<ExportId> = vec![ExportId(rng.below(4) as u64)];
        for (index, export) in space.exports.iter() {
            let id = space.export_id(index);
            // Those of its own Link more often.
            let often = if export.link == HONEST { 1 } else { 6 };
            known.extend(core::iter::repeat_n(id, often));
        }
        rng.pick(&known).expect("never empty")
    }

    /// An entry of its own, often one that the honest task holds.
    fn own(&self, rng: &mut Rng, at: usize) -> ExportId {
        let link = self.spaces[at].links.get(&HOSTILE[at]);
        let held = link.map(|link| link.imports.keys().copied().collect::<Vec<_>>());
        let held = rng.pick(&held.unwrap_or_default());
        held.filter(|_| rng.chance(700))
            .unwrap_or(ExportId(100 + rng.below(1000) as u64))
    }

    fn some_nonce(&self, rng: &mut Rng, at: usize) -> u64 {
        let awaited: Vec<u64> = self.spaces[at].accepts.keys().map(|key| key.2).collect();
        let awaited = rng.pick(&awaited).filter(|_| rng.chance(600));
        awaited.unwrap_or(rng.below(self.nonce as usize + 5) as u64)
    }

    fn right(&self, rng: &mut Rng, at: usize) -> WireRight {
        let kind = if rng.chance(700) {
            RightKind::Send
        } else {
            RightKind::SendOnce
        };
        match rng.below(6) {
            0 => WireRight::Dead,
            1 | 2 => WireRight::Mine {
                export: self.own(rng, at),
                kind,
                credits: rng.pick(&[0, 0, 0, 1, u16::MAX]).expect("five"),
            },
            3 => {
                let export = self.export(rng, at);
                let known = self.spaces[at].exports.of(export.key()).map(|it| it.kind);
                WireRight::Yours {
                    export,
                    kind: known.unwrap_or(kind),
                }
            }
            4 => WireRight::Third {
                task: TaskId(1 - at as u64),
                nonce: rng.below(30) as u64,
                kind,
            },
            _ => WireRight::Receive {
                nonce: rng.below(100) as u64,
                limit: rng.below(4) as u16,
            },
        }
    }

    fn lie(&mut self, rng: &mut Rng, at: usize) -> Frame {
        let export = self.export(rng, at);
        let own = self.own(rng, at);
        let nonce = self.some_nonce(rng, at);
        let from = TaskId(rng.below(3) as u64);
        match rng.below(20) {
            0 => Frame::Release { export, count: 1 },
            1 => Frame::Freed { export: own },
            2 => Frame::Credit {
                export: own,
                credits: 1,
            },
            3 => Frame::Dead { export: own },
            4 | 5 => {
                self.nonce += 1;
                let to = TaskId(1 - at as u64);
                Frame::Provide {
                    nonce: self.nonce,
                    export,
                    to,
                }
            }
            6 => Frame::Withdraw { nonce },
            7 => Frame::Settled { nonce },
            8 => Frame::Accept {
                from,
                nonce,
                kind: RightKind::Send,
            },
            9 => Frame::Accepted {
                from,
                nonce,
                export: own,
                credits: 2,
            },
            10 => Frame::Refused { from, nonce },
            11 => Frame::Decline { owner: from, nonce },
            12 | 13 => Frame::Moved { export: own },
            14 => Frame::Following { export },
            15 => Frame::Handed {
                export: own,
                right: self.right(rng, at),
            },
            16 => Frame::Offer {
                token: rng.below(2) as u64,
                right: self.right(rng, at),
            },
            _ => Frame::Message(MessageFrame {
                to: export,
                reply: None,
                id: 1,
                origin: None,
                hops: rng.below(256) as u8,
                bytes: Vec::new(),
                rights: (0..rng.below(4)).map(|_| self.right(rng, at)).collect(),
                descriptors: 0,
                memory: Vec::new(),
            }),
        }
    }

    fn hostile(&mut self, rng: &mut Rng, at: usize) {
        let frame = self.lie(rng, at);
        let handled = self.spaces[at].handle_frame(HOSTILE[at], frame, vec![]);
        if let Err(violation) = handled {
            assert_eq!((violation.link, violation.task), (HOSTILE[at], TaskId(2)));
            self.violations += 1;
            self.outputs(at);
            // It comes back by a new Link.
            let space = &mut self.spaces[at];
            space
                .link_up(HOSTILE[at], TaskId(2), 0)
                .expect("the old one is down");
            let port = space.allocate_port();
            space
                .offer(HOSTILE[at], 0, Give::new(port, Disposition::MakeSend))
                .unwrap();
        }
        self.outputs(at);
    }

    fn gives(&self, at: usize, name: Name) -> Vec<Give> {
        use Disposition::{CopySend, MakeSend, MakeSendOnce, MoveReceive, MoveSend, MoveSendOnce};
        let mut all = Vec::new();
        match self.spaces[at].names[name.key().index] {
            Entry::Port { receive, sends, .. } => {
                if sends > 0 {
                    all.extend([CopySend, CopySend, MoveSend]);
                }
                if receive {
                    all.extend([MakeSend, MakeSendOnce, MoveReceive]);
                }
            }
            Entry::Once(_) => all.push(MoveSendOnce),
            Entry::Set(_) | Entry::Dead { .. } => {}
        }
        all.into_iter().map(|how| Give::new(name, how)).collect()
    }

    /// Something that an honest task does with what it has.
    fn honest(&mut self, rng: &mut Rng, at: usize) {
        let names = self.spaces[at].names.iter().map(|(index, _)| index);
        let names: Vec<u32> = names.collect();
        let Some(index) = rng.pick(&names) else {
            self.spaces[at].allocate_port();
            return;
        };
        let name = |space: &Space, index| Name(space.names.key(index).to_bits());
        let one = name(&self.spaces[at], index);
        let other = rng.pick(&names).map(|index| name(&self.spaces[at], index));
        match rng.below(10) {
            0..5 => {
                let Some(to) = rng.pick(&self.gives(at, one)) else {
                    return;
                };
                let mut message = Message::new(to, 2);
                let rights = other.and_then(|other| rng.pick(&self.gives(at, other)));
                message.rights.extend(rights);
                self.spaces[at].send(message).ok();
            }
            5..8 => {
                if let Ok(message) = self.spaces[at].receive(one) {
                    assert!(message.rights.iter().all(|got| got.name() != Some(Name(0))));
                    let got = message.rights.first().copied().and_then(Got::name);
                    if let Some(got) = got.filter(|_| rng.chance(300)) {
                        self.spaces[at].destroy(got).ok();
                    }
                }
            }
            8 => {
                let give = Give::new(one, Disposition::MakeSendOnce);
                let other = other.unwrap_or(one);
                self.spaces[at]
                    .request(other, Request::DeadName, Some(give))
                    .ok();
            }
            _ if names.len() > 12 => self.spaces[at].destroy(one).unwrap_or(()),
            _ => {}
        }
        self.outputs(at);
    }

    /// The hostile task is gone; what is left of the honest ones can be taken down to nothing.
    fn take_down(&mut self) {
        for (space, link) in self.spaces.iter_mut().zip(HOSTILE) {
            space.link_down(link);
        }
        for _ in 0..20 {
            for at in 0..2 {
                self.outputs(at);
                let names: Vec<u32> = self.spaces[at]
                    .names
                    .iter()
                    .map(|(index, _)| index)
                    .collect();
                for index in names {
                    if self.spaces[at].names.get(index).is_some() {
                        let name = Name(self.spaces[at].names.key(index).to_bits());
                        self.spaces[at].destroy(name).expect("it is there");
                    }
                }
                self.outputs(at);
            }
            while self.queues.iter().any(|queue| !queue.is_empty()) {
                self.deliver(0);
                self.deliver(1);
            }
        }
        for space in &mut self.spaces {
            space.link_down(HONEST);
            assert!(space.is_empty(), "something is left over");
        }
    }
}

#[test]
fn a_hostile_task_confuses_neither_of_two_honest_ones() {
    let mut violations = 0;
    for seed in 0..400 {
        let tried = std::panic::catch_unwind(|| {
            let mut rng = Rng::new(seed);
            let mut it = Victims::new();
            for _ in 0..600 {
                let at = rng.below(2);
                match rng.below(10) {
                    0..4 => it.hostile(&mut rng, at),
                    4..6 => it.deliver(at),
                    _ => it.honest(&mut rng, at),
                }
            }
            it.take_down();
            it.violations
        });
        violations += tried.unwrap_or_else(|_| panic!("seed {seed} breaks a law"));
    }
    assert!(violations > 1000, "only {violations} lies were found out");
}
