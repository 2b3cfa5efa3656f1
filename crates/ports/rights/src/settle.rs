//! Work that an operation leaves behind, done before it returns. Never recursive.

use crate::input::Output;
use crate::message::{MemoryKind, Notice};
use crate::port::{Content, Home, Letter, Parcel, Place};
use crate::right::{Right, Target};
use crate::slab::{Key, NONE};
use crate::space::Space;
use crate::wait::On;

/// Something to be done.
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) enum Work {
    Drop(Right),
    /// Send on what is queued at a port whose receive right has left.
    Forward(u32),
    /// Tell the holder that the port has moved.
    Move(Key),
}

impl Space {
    pub(crate) fn work(&mut self, work: Work) {
        self.work.push_back(work);
    }

    pub(crate) fn trash(&mut self, right: Right) {
        if right != Right::Dead {
            self.work(Work::Drop(right));
        }
    }

    /// Lets the forwarders to a target try again.
    pub(crate) fn feed(&mut self, target: Target) {
        let least = (target, 0);
        while let Some(&(of, port)) = self.feeds.range(least..).next() {
            if of != target {
                return;
            }
            self.feeds.remove(&(of, port));
            self.work(Work::Forward(port));
        }
    }

    pub(crate) fn settle(&mut self) {
        while let Some(work) = self.work.pop_front() {
            match work {
                Work::Drop(right) => self.drop_right(right),
                Work::Forward(port) => self.forward(port),
                Work::Move(export) => self.tell_moved(export),
            }
        }
    }

    fn drop_right(&mut self, right: Right) {
        match right {
            Right::Dead => {}
            Right::Send(Target::Port(port)) => {
                self.ports[port].sends -= 1;
                if self.ports[port].sends == 0 {
                    self.no_senders_left(port);
                }
                self.free_port(port);
            }
            Right::Once(Target::Port(port)) => {
                self.ports[port].onces -= 1;
                if self.ports[port].home != Home::Dead {
                    let parcel = notice(Notice::SendOnce);
                    self.enqueue(port, Letter::new(parcel, Right::Dead));
                }
                self.free_port(port);
            }
            Right::Send(Target::Import(import)) | Right::Once(Target::Import(import)) => {
                self.imports[import].references -= 1;
                if self.imports[import].references == 0 {
                    self.import_unused(import);
                }
            }
            Right::Receive(port) => self.receive_dropped(port),
        }
    }

    fn receive_dropped(&mut self, port: u32) {
        self.ports[port].place = Place::Loose;
        let Some(request) = self.port_destroyed.remove(&port) else {
            self.port_dies(port);
            return;
        };
        let mut parcel = notice(Notice::PortDestroyed);
        parcel.rights.push(Right::Receive(port));
        self.notify(request, parcel);
    }

    /// The port is destroyed, or what it forwards to is dead.
    pub(crate) fn port_dies(&mut self, port: u32) {
        let home = core::mem::replace(&mut self.ports[port].home, Home::Dead);
        match home {
            Home::Dead => return,
            Home::Here => {}
            Home::Forward(next) => self.stop_forwarding(port, next),
        }
        while let Some(letter) = self.dequeue(port) {
            self.destroy_letter(letter);
        }
        self.exports_die(port);
        let requests = [
            self.no_senders.remove(&port),
            self.port_destroyed.remove(&port),
        ];
        for request in requests.into_iter().flatten() {
            self.trash(request);
        }
        self.dead_names(Target::Port(port));
        self.feed(Target::Port(port));
        self.wake_all(On::Queue(port));
        self.wake_all(On::Room(Target::Port(port)));
        self.free_port(port);
    }

    pub(crate) fn stop_forwarding(&mut self, port: u32, next: Target) {
        self.feeds.remove(&(next, port));
        self.trash(Right::Send(next));
    }

    /// Frees a port that nothing refers to, unless its receive right lives.
    pub(crate) fn free_port(&mut self, port: u32) {
        let it = &self.ports[port];
        if it.sends > 0 || it.onces > 0 || it.queued > 0 {
            return;
        }
        match it.home {
            Home::Here => return,
            Home::Dead => {}
            Home::Forward(next) => self.stop_forwarding(port, next),
        }
        self.feed(Target::Port(port));
        self.wake_all(On::Room(Target::Port(port)));
        self.ports.remove(port);
    }

    pub(crate) fn enqueue(&mut self, port: u32, letter: Letter) {
        if self.ports[port].home == Home::Dead {
            self.destroy_letter(letter);
            return;
        }
        if let Content::Parcel(parcel) = &letter.content {
            for right in &parcel.rights {
                if let Right::Receive(moving) = right {
                    self.ports[*moving].place = Place::Queued(port);
                }
            }
        }
        if letter.local {
            let local = &mut self.ports[port].local;
            *local = local.saturating_add(1);
        }
        let index = self.letters.insert(letter).index;
        let it = &mut self.ports[port];
        let last = core::mem::replace(&mut it.tail, index);
        it.queued += 1;
        match last {
            NONE => it.head = index,
            last => self.letters[last].next = index,
        }
        match self.ports[port].home {
            Home::Here if last == NONE => self.first_queued(port),
            Home::Here => self.wake_receiver(port),
            Home::Forward(_) => self.work(Work::Forward(port)),
            Home::Dead => unreachable!("checked above"),
        }
    }

    fn first_queued(&mut self, port: u32) {
        if self.ports[port].set != NONE {
            self.ready_push(port);
        }
        self.wake_receiver(port);
    }

    pub(crate) fn wake_receiver(&mut self, port: u32) {
        let on = match self.ports[port].set {
            NONE => On::Queue(port),
            set => On::Set(set),
        };
        self.wake_one(on);
    }

    /// Takes the oldest letter off a queue. Of a set's member, the caller keeps the ring.
    pub(crate) fn dequeue(&mut self, port: u32) -> Option<Letter> {
        let index = self.ports[port].head;
        if index == NONE {
            return None;
        }
        let letter = self.letters.remove(index);
        let it = &mut self.ports[port];
        it.head = letter.next;
        it.queued -= 1;
        if it.head == NONE {
            it.tail = NONE;
        }
        if letter.local {
            it.local = it.local.saturating_sub(1);
            self.wake_one(On::Room(Target::Port(port)));
        }
        Some(letter)
    }

    /// Destroys a message that nobody will receive, with all that it carries.
    pub(crate) fn destroy_letter(&mut self, letter: Letter) {
        self.trash(letter.to);
        if let Some(export) = letter.from {
            self.credit_back(export);
        }
        match letter.content {
            Content::Parcel(parcel) => self.destroy_parcel(parcel),
            // The export died with the port, and its holder was told.
            Content::Handover(_) => {}
        }
    }

    pub(crate) fn destroy_parcel(&mut self, parcel: Parcel) {
        for right in parcel.reply.into_iter().chain(parcel.rights) {
            self.trash(right);
        }
        for descriptor in parcel.descriptors {
            self.outputs.push_back(Output::Close(descriptor));
        }
        for memory in parcel.memory {
            self.outputs.push_back(match memory.kind {
                MemoryKind::Donated => Output::Close(crate::Descriptor(memory.handle)),
                MemoryKind::Lent => Output::Unused(memory),
            });
        }
    }
}

/// A notification's message.
pub(crate) fn notice(notice: Notice) -> Parcel {
    let (id, bytes) = notice.encode();
    Parcel {
        sender: crate::Sender::Space,
        id,
        reply: None,
        bytes,
        rights: alloc::vec::Vec::new(),
        descriptors: alloc::vec::Vec::new(),
        memory: alloc::vec::Vec::new(),
    }
}
