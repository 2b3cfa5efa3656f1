//! Port sets against a plain model: members with messages take turns.

use std::collections::VecDeque;

use farpage_rights::{Error, Message, Name, ReceiveError, Space, TaskId};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::*;

const PORTS: usize = 4;
const SETS: usize = 2;

#[derive(Clone, Debug)]
enum Op {
    Move {
        port: usize,
        set: Option<usize>,
    },
    Send {
        port: usize,
    },
    Receive {
        port: usize,
    },
    ReceiveSet {
        set: usize,
    },
    /// Destroys a set and makes another in its place.
    Renew {
        set: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let set = proptest::option::of(0..SETS);
    prop_oneof![
        2 => (0..PORTS, set).prop_map(|(port, set)| Op::Move { port, set }),
        6 => (0..PORTS).prop_map(|port| Op::Send { port }),
        1 => (0..PORTS).prop_map(|port| Op::Receive { port }),
        4 => (0..SETS).prop_map(|set| Op::ReceiveSet { set }),
        1 => (0..SETS).prop_map(|set| Op::Renew { set }),
    ]
}

#[derive(Default)]
struct Model {
    queues: [VecDeque<u32>; PORTS],
    member: [Option<usize>; PORTS],
    /// Members with messages, the one whose turn it is first.
    turns: [VecDeque<usize>; SETS],
}

impl Model {
    fn leave(&mut self, port: usize) {
        if let Some(set) = self.member[port].take() {
            self.turns[set].retain(|&other| other != port);
        }
    }

    fn receive_set(&mut self, set: usize) -> Option<(usize, u32)> {
        let port = self.turns[set].pop_front()?;
        let id = self.queues[port].pop_front()?;
        if !self.queues[port].is_empty() {
            self.turns[set].push_back(port);
        }
        Some((port, id))
    }
}

struct Both {
    space: Space,
    ports: Vec<Name>,
    sets: Vec<Name>,
    model: Model,
    next: u32,
}

impl Both {
    fn act(&mut self, op: Op) {
        let (space, model) = (&mut self.space, &mut self.model);
        match op {
            Op::Move { port, set } => {
                let name = set.map(|set| self.sets[set]);
                space.move_member(self.ports[port], name).unwrap();
                model.leave(port);
                model.member[port] = set;
                if let Some(set) = set.filter(|_| !model.queues[port].is_empty()) {
                    model.turns[set].push_back(port);
                }
            }
            Op::Send { port } => {
                self.next += 1;
                let message = Message::new(make_send(self.ports[port]), self.next);
                let full = model.queues[port].len() == 5;
                assert_eq!(space.send(message).is_err(), full);
                if !full {
                    model.queues[port].push_back(self.next);
                    if let (Some(set), 1) = (model.member[port], model.queues[port].len()) {
                        model.turns[set].push_back(port);
                    }
                }
            }
            Op::Receive { port } => {
                let got = space.receive(self.ports[port]).map(|message| message.id);
                let expected = match model.member[port] {
                    Some(_) => Err(ReceiveError::Name(Error::InSet)),
                    None => model.queues[port]
                        .pop_front()
                        .ok_or(ReceiveError::WouldBlock),
                };
                assert_eq!(got, expected);
            }
            Op::ReceiveSet { set } => {
                let got = space.receive(self.sets[set]).ok();
                let got = got.map(|message| (message.port, message.id));
                let expected = model.receive_set(set);
                assert_eq!(got, expected.map(|(port, id)| (self.ports[port], id)));
            }
            Op::Renew { set } => {
                space.destroy(self.sets[set]).unwrap();
                self.sets[set] = space.allocate_set();
                for port in 0..PORTS {
                    if model.member[port] == Some(set) {
                        model.leave(port);
                    }
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn members_take_turns_whatever_moves_between_sets(ops in vec(op(), 0..200)) {
        let mut space = Space::new(TaskId(1));
        let ports = (0..PORTS).map(|_| space.allocate_port()).collect();
        let sets = (0..SETS).map(|_| space.allocate_set()).collect();
        let model = Model::default();
        let mut both = Both { space, ports, sets, model, next: 0 };
        for op in ops {
            both.act(op);
        }
    }
}
