//! Frames of rights: the decoder, and a name space whose two peers send anything.

use farpage_rights::{
    Descriptor, Disposition, ExportId, Frame, Give, LinkId, Message, MessageFrame, Name, Output,
    RightKind, Space, TaskId, WireRight,
};

/// What is read is written the same; and no frames of two peers, whatever they are, bring a name
/// space out of order: when its Links and names are gone, nothing is left.
pub(crate) fn run(input: &[u8]) {
    if let Ok(frame) = Frame::decode(input) {
        assert_eq!(encoded(&frame), input);
    }
    let mut it = World::new();
    let mut rest = input;
    while let [what, length, after @ ..] = rest {
        let (frame, after) = after.split_at(after.len().min(usize::from(*length)));
        rest = after;
        it.step(*what, *length, frame);
    }
    it.end();
}

struct World {
    space: Space,
    port: Name,
    names: Vec<Name>,
    descriptors: u64,
}

impl World {
    fn new() -> Self {
        let mut space = Space::new(TaskId(1));
        let port = space.allocate_port();
        let mut it = Self {
            space,
            port,
            names: vec![port],
            descriptors: 0,
        };
        it.space.expect_offer(1);
        (0..2).for_each(|link| it.up(link));
        it
    }

    fn up(&mut self, link: u32) {
        let task = TaskId(2 + u64::from(link));
        self.space
            .link_up(LinkId(link), task, 0)
            .expect("it was down");
        let give = Give::new(self.port, Disposition::MakeSend);
        let _ = self.space.offer(LinkId(link), 1, give);
    }

    fn step(&mut self, what: u8, number: u8, frame: &[u8]) {
        let link = u32::from(what & 1);
        let name = |at: u8| self.names[usize::from(at) % self.names.len()];
        match what & 0xe {
            0 => {
                if let Ok(received) = self.space.receive(name(number)) {
                    let rights = received.reply.into_iter().chain(received.rights);
                    self.names.extend(rights.filter_map(|right| right.name()));
                }
            }
            2 => {
                let to = Give::new(name(number), Disposition::CopySend);
                let mut message = Message::new(to, 1);
                message.reply = Some(Give::new(self.port, Disposition::MakeSendOnce));
                let given = Give::new(name(what >> 4), Disposition::MoveSend);
                message.rights.extend((what & 0x80 != 0).then_some(given));
                let _ = self.space.send(message);
            }
            4 => drop(self.space.deallocate(name(number))),
            _ => {
                let Ok(frame) = Frame::decode(frame) else {
                    return;
                };
                let count = match &frame {
                    Frame::Message(it) => usize::from(it.descriptors) + it.memory.len(),
                    _ => 0,
                };
                let descriptors = (0..count).map(|_| self.descriptor()).collect();
                if self
                    .space
                    .handle_frame(LinkId(link), frame, descriptors)
                    .is_err()
                {
                    self.drain();
                    self.up(link);
                }
            }
        }
        self.drain();
    }

    fn descriptor(&mut self) -> Descriptor {
        self.descriptors += 1;
        Descriptor(self.descriptors)
    }

    fn drain(&mut self) {
        while let Some(output) = self.space.poll_output() {
            match output {
                Output::Offered { right, .. } => self.names.extend(right.name()),
                // What goes to a peer can be read by one.
                Output::Frame { frame, .. } => {
                    assert_eq!(Frame::decode(&encoded(&frame)), Ok(frame));
                }
                Output::Introduce { task, .. } => self.space.not_introduced(task),
                Output::Wake { .. } | Output::Close(_) | Output::Unused(_) => {}
            }
        }
    }

    fn end(mut self) {
        (0..2).for_each(|link| self.space.link_down(LinkId(link)));
        // Receive rights come back in messages to others.
        for _ in 0..3 {
            self.drain();
            for name in std::mem::take(&mut self.names) {
                while let Ok(received) = self.space.receive(name) {
                    let rights = received.reply.into_iter().chain(received.rights);
                    self.names.extend(rights.filter_map(|right| right.name()));
                }
                let _ = self.space.destroy(name);
            }
        }
        self.drain();
        assert!(self.space.is_empty(), "something is left");
    }
}

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

/// One of each frame, alone and as a conversation.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let (export, task, nonce) = (ExportId(1 << 32), TaskId(3), 1);
    let kind = RightKind::Send;
    let mine = WireRight::Mine {
        export,
        kind,
        credits: 5,
    };
    let once = WireRight::Mine {
        export: ExportId(1 << 32 | 1),
        kind: RightKind::SendOnce,
        credits: 0,
    };
    let message = MessageFrame {
        to: export,
        reply: Some(once),
        id: 7,
        origin: None,
        hops: 0,
        bytes: b"hello".to_vec(),
        rights: vec![
            mine,
            WireRight::Third { task, nonce, kind },
            WireRight::Receive { nonce, limit: 5 },
            WireRight::Dead,
        ],
        descriptors: 1,
        memory: Vec::new(),
    };
    let frames = [
        Frame::Message(message),
        Frame::Offer {
            token: 1,
            right: mine,
        },
        Frame::Release { export, count: 1 },
        Frame::Freed { export },
        Frame::Credit { export, credits: 3 },
        Frame::Dead { export },
        Frame::Provide {
            nonce,
            export,
            to: task,
        },
        Frame::Withdraw { nonce },
        Frame::Settled { nonce },
        Frame::Accept {
            from: task,
            nonce,
            kind,
        },
        Frame::Accepted {
            from: task,
            nonce,
            export,
            credits: 5,
        },
        Frame::Refused { from: task, nonce },
        Frame::Decline { owner: task, nonce },
        Frame::Moved { export },
        Frame::Following { export },
        Frame::Handed {
            export,
            right: mine,
        },
    ];
    let mut seeds: Vec<Vec<u8>> = frames.iter().map(encoded).collect();
    let record = |what: u8, frame: &[u8]| [&[what, frame.len() as u8], frame].concat();
    let alone: Vec<_> = seeds.iter().map(|frame| record(6, frame)).collect();
    let talk = [
        record(6, &seeds[1]),
        record(7, &seeds[0]),
        vec![0, 0, 0x82, 1],
    ]
    .concat();
    seeds.extend(alone);
    seeds.push(talk);
    seeds
}
