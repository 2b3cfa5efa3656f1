//! Messages and rights on their way out.

use crate::few::each;
use crate::frame::{Frame, MessageFrame, WireMemory, WireRight};
use crate::import::ImportState;
use crate::input::Output;
use crate::message::{Descriptor, LinkId, MemoryKind, RightKind, Sender};
use crate::port::{Content, Home, Parcel, Port};
use crate::right::{Right, Target};
use crate::settle::Work;
use crate::space::Space;
use crate::third::MAX_PROVIDED;

impl Space {
    /// Puts a message out by an import that is live; a send right's credit is used.
    pub(crate) fn transmit(&mut self, import: u32, parcel: Parcel, hops: u8) {
        let it = &mut self.imports[import];
        let (link, to) = (it.link, it.export);
        if it.kind == RightKind::Send && !(it.feeds && hops > 0) {
            it.credits -= 1;
        }
        let origin = match parcel.sender {
            Sender::Space | Sender::Own => None,
            Sender::Peer { task, forwards, .. } => Some(forwards.unwrap_or(task)),
        };
        let own = parcel.descriptors.len();
        let mut descriptors = parcel.descriptors;
        let memory = each(parcel.memory, |memory| {
            let donated = memory.kind == MemoryKind::Donated;
            if donated {
                descriptors.push(Descriptor(memory.handle));
            }
            WireMemory {
                kind: memory.kind,
                region: if donated { 0 } else { memory.handle },
                length: memory.length,
            }
        });
        let reply = parcel.reply.map(|right| self.carry(right, link, false));
        let rights = each(parcel.rights, |right| self.carry(right, link, false));
        let frame = MessageFrame {
            to,
            reply,
            id: parcel.id,
            origin,
            hops,
            bytes: parcel.bytes,
            rights,
            descriptors: own as u8,
            memory,
        };
        self.outputs.push_back(Output::Frame {
            link,
            frame: Frame::Message(frame),
            descriptors,
        });
    }

    /// Turns a right into words that the peer of a Link understands. `fresh`: not joined with one
    /// that it holds already.
    pub(crate) fn carry(&mut self, right: Right, link: LinkId, fresh: bool) -> WireRight {
        match right {
            Right::Dead => WireRight::Dead,
            Right::Send(target) | Right::Once(target) if self.is_dead(target) => {
                self.trash(right);
                WireRight::Dead
            }
            Right::Send(target) => {
                let now = self.resolve(target);
                if now != target {
                    self.hold(now);
                    self.trash(Right::Send(target));
                }
                match now {
                    Target::Port(port) => {
                        let (export, credits) = match fresh {
                            true => self.export(link, port, RightKind::Send),
                            false => self.export_joined(link, port),
                        };
                        let kind = RightKind::Send;
                        WireRight::Mine {
                            export,
                            kind,
                            credits,
                        }
                    }
                    Target::Import(import) => self.carry_import(import, link),
                }
            }
            Right::Once(Target::Port(port)) => {
                let kind = RightKind::SendOnce;
                let (export, credits) = self.export(link, port, kind);
                WireRight::Mine {
                    export,
                    kind,
                    credits,
                }
            }
            Right::Once(Target::Import(import)) => self.carry_import(import, link),
            Right::Receive(port) => self.move_out(port, link),
        }
    }

    /// Carries one reference of an import.
    fn carry_import(&mut self, import: u32, link: LinkId) -> WireRight {
        if !self.is_settled(import, link) {
            return self.carry_by_forwarder(import, link);
        }
        let it = &self.imports[import];
        let (owner, export, kind) = (it.link, it.export, it.kind);
        let wire = if owner == link {
            WireRight::Yours { export, kind }
        } else {
            self.provide(owner, export, kind, link)
        };
        match kind {
            RightKind::Send => self.trash(Right::Send(Target::Import(import))),
            RightKind::SendOnce => self.import_used(import),
        }
        wire
    }

    /// A right that its owner has not accepted yet, or whose port is on the move, leaves by a
    /// forwarder of its own; whoever gets it follows when there is something to follow.
    fn carry_by_forwarder(&mut self, import: u32, link: LinkId) -> WireRight {
        let kind = self.imports[import].kind;
        let mut port = Port::new(0);
        port.home = Home::Forward(Target::Import(import));
        match kind {
            RightKind::Send => port.sends = 1,
            RightKind::SendOnce => port.onces = 1,
        }
        let port = self.ports.insert(port).index;
        self.work(Work::Forward(port));
        let (export, credits) = self.export(link, port, kind);
        WireRight::Mine {
            export,
            kind,
            credits,
        }
    }

    /// Whether a right can leave by a Link as what it is.
    pub(crate) fn is_settled(&self, import: u32, link: LinkId) -> bool {
        let it = &self.imports[import];
        let live = it.state == ImportState::Live;
        live && (it.link == link || self.link(it.link).unsettled < MAX_PROVIDED)
    }

    /// Sends the message of a send-once right as soon as the right is accepted.
    pub(crate) fn send_held(&mut self, import: u32) {
        let it = &mut self.imports[import];
        if it.state != ImportState::Live {
            return;
        }
        let Some(letter) = it.held.take() else {
            return;
        };
        let hops = letter.hops;
        let Content::Parcel(parcel) = letter.content else {
            unreachable!("only messages are held");
        };
        self.transmit(import, parcel, hops);
        self.import_used(import);
    }

    /// Whether the receive right of a port has left.
    pub(crate) fn forwards(&self, port: u32) -> Option<Target> {
        match self.ports.get(port)?.home {
            Home::Forward(next) => Some(next),
            Home::Here | Home::Dead => None,
        }
    }
}
