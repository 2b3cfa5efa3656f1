//! What several tests use.

use farpage_rights::{
    Descriptor, Disposition, Frame, Give, Got, LinkId, Memory, MemoryKind, Message, Name, Notice,
    Output, Request, SendError, Space, TaskId, Waiter, Woken,
};

pub fn give(name: Name, how: Disposition) -> Give {
    Give::new(name, how)
}

pub fn make_send(name: Name) -> Give {
    give(name, Disposition::MakeSend)
}

pub fn make_send_once(name: Name) -> Give {
    give(name, Disposition::MakeSendOnce)
}

pub fn copy_send(name: Name) -> Give {
    give(name, Disposition::CopySend)
}

pub fn move_send(name: Name) -> Give {
    give(name, Disposition::MoveSend)
}

pub fn move_send_once(name: Name) -> Give {
    give(name, Disposition::MoveSendOnce)
}

pub fn move_receive(name: Name) -> Give {
    give(name, Disposition::MoveReceive)
}

pub fn lent(handle: u64, length: u64) -> Memory {
    let kind = MemoryKind::Lent;
    Memory {
        kind,
        handle,
        length,
    }
}

pub fn donated(handle: u64, length: u64) -> Memory {
    let kind = MemoryKind::Donated;
    Memory {
        kind,
        handle,
        length,
    }
}

/// Who is woken by the outputs that are there, and whether in time.
pub fn woken(space: &mut Space) -> Vec<(u64, bool)> {
    let outputs = std::iter::from_fn(|| space.poll_output());
    let woken = outputs.filter_map(|output| match output {
        Output::Wake {
            waiter: Waiter(waiter),
            why,
        } => Some((waiter, why != Woken::TimedOut)),
        Output::Frame { .. }
        | Output::Introduce { .. }
        | Output::Offered { .. }
        | Output::Close(_)
        | Output::Unused(_) => None,
    });
    woken.collect()
}

/// Tasks 0, 1, 2 ...; the Link of a pair is numbered by [`Net::link`].
pub struct Net {
    pub spaces: Vec<Space>,
    /// Outputs that are not frames.
    pub others: Vec<(usize, Output)>,
}

impl Net {
    /// So many tasks, every pair with a Link.
    pub fn new(tasks: usize) -> Self {
        let mut net = Self::strangers(tasks);
        for a in 0..tasks {
            for b in a + 1..tasks {
                net.connect(a, b);
            }
        }
        net
    }

    pub fn strangers(tasks: usize) -> Self {
        let spaces = (0..tasks as u64)
            .map(|task| Space::new(TaskId(task)))
            .collect();
        Self {
            spaces,
            others: Vec::new(),
        }
    }

    pub fn link(a: usize, b: usize) -> LinkId {
        LinkId((a.min(b) * 100 + a.max(b)) as u32)
    }

    pub fn connect(&mut self, a: usize, b: usize) {
        self.spaces[a]
            .link_up(Self::link(a, b), TaskId(b as u64), 0)
            .unwrap();
        self.spaces[b]
            .link_up(Self::link(a, b), TaskId(a as u64), 0)
            .unwrap();
    }

    /// Both sides see that the Link is gone; what is on its way is lost.
    pub fn cut(&mut self, a: usize, b: usize) {
        self.spaces[a].link_down(Self::link(a, b));
        self.spaces[b].link_down(Self::link(a, b));
    }

    /// Takes the frames that a task has put out, with their receivers.
    pub fn frames(&mut self, from: usize) -> Vec<(usize, Frame, Vec<Descriptor>)> {
        let mut frames = Vec::new();
        while let Some(output) = self.spaces[from].poll_output() {
            match output {
                Output::Frame {
                    link,
                    frame,
                    descriptors,
                } => {
                    let (low, high) = (link.0 as usize / 100, link.0 as usize % 100);
                    let to = if low == from { high } else { low };
                    frames.push((to, frame, descriptors));
                }
                other => self.others.push((from, other)),
            }
        }
        frames
    }

    /// Delivers what one task has put out; answers how much that was.
    pub fn deliver(&mut self, from: usize) -> usize {
        let frames = self.frames(from);
        let count = frames.len();
        for (to, frame, descriptors) in frames {
            let link = Self::link(from, to);
            self.spaces[to]
                .handle_frame(link, frame, descriptors)
                .unwrap();
        }
        count
    }

    /// Delivers everything until nothing is on its way.
    pub fn run(&mut self) {
        while (0..self.spaces.len())
            .map(|from| self.deliver(from))
            .sum::<usize>()
            > 0
        {}
    }

    /// Gives `to` a send right to a new port of `of`: the port, and the right's name.
    pub fn offered(&mut self, of: usize, to: usize) -> (Name, Name) {
        let port = self.spaces[of].allocate_port();
        self.spaces[to].expect_offer(5);
        self.spaces[of]
            .offer(Self::link(of, to), 5, make_send(port))
            .unwrap();
        self.run();
        let at = self
            .others
            .iter()
            .position(|(task, output)| *task == to && matches!(output, Output::Offered { .. }));
        match self.others.remove(at.expect("it was offered")).1 {
            Output::Offered {
                right: Got::Send(name),
                ..
            } => (port, name),
            output => panic!("{output:?}"),
        }
    }

    /// Sends a message with these rights and delivers everything.
    pub fn send(&mut self, from: usize, to: Give, rights: &[Give]) -> Result<(), SendError> {
        let mut message = Message::new(to, 1);
        message.rights = rights.to_vec();
        self.spaces[from]
            .send(message)
            .map_err(|refused| refused.error)?;
        self.run();
        Ok(())
    }

    /// The first right of the next message, which must be there.
    pub fn got(&mut self, at: usize, port: Name) -> Got {
        let message = self.spaces[at].receive(port).expect("a message came");
        self.run();
        message.rights[0]
    }

    /// All notices that wait at a port.
    pub fn notices(&mut self, at: usize, port: Name) -> Vec<Notice> {
        let space = &mut self.spaces[at];
        let messages = std::iter::from_fn(|| space.receive(port).ok());
        messages
            .map(|message| Notice::of(&message).expect("a notice"))
            .collect()
    }
}

/// What a task wants to be told, at a port of its own.
pub fn ask(space: &mut Space, name: Name, request: Request) -> Name {
    let told = space.allocate_port();
    space
        .request(name, request, Some(make_send_once(told)))
        .unwrap();
    told
}
