//! Frames that come in: checked in full, then believed.

use alloc::vec::Vec;

use crate::error::Fault;
use crate::export::{ExportState, Link};
use crate::few::each;
use crate::frame::{ExportId, Frame, MessageFrame, WireRight};
use crate::import::ImportState;
use crate::input::Output;
use crate::message::{
    Descriptor, LinkId, MAX_INLINE, MAX_MEMORY, MAX_RIGHTS, Memory, MemoryKind, RightKind, Sender,
};
use crate::port::{Letter, Parcel};
use crate::right::{Right, Target};
use crate::space::Space;

/// What a message has named so far.
#[derive(PartialEq, Eq)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) enum Named {
    /// A send-once right, which is named once.
    Once(ExportId),
    Mine(ExportId, RightKind),
    Third(crate::TaskId, u64),
    Receive(u64),
}

impl Space {
    /// Takes in a frame of a Link that is up.
    pub(crate) fn accept(
        &mut self,
        link: LinkId,
        frame: Frame,
        descriptors: Vec<Descriptor>,
    ) -> Result<(), Fault> {
        let frame = match frame {
            Frame::Message(message) => return self.message_came(link, message, descriptors),
            frame => frame,
        };
        if !descriptors.is_empty() {
            self.close(descriptors);
            return Err(Fault::Descriptors);
        }
        match frame {
            Frame::Message(_) => unreachable!("dealt with above"),
            Frame::Offer { token, right } => self.offer_came(link, token, right),
            Frame::Release { export, count } => self.release_came(link, export, count),
            Frame::Freed { export } => self.freed_came(link, export),
            Frame::Credit { export, credits } => self.credit_came(link, export, credits),
            Frame::Dead { export } => self.dead_came(link, export),
            Frame::Provide { nonce, export, to } => self.provide_came(link, nonce, export, to),
            Frame::Withdraw { nonce } => self.withdraw_came(link, nonce),
            Frame::Settled { nonce } => self.settled_came(link, nonce),
            Frame::Accept { from, nonce, kind } => self.accept_came(link, from, nonce, kind),
            Frame::Accepted {
                from,
                nonce,
                export,
                credits,
            } => self.accepted_came(link, from, nonce, (export, credits)),
            Frame::Refused { from, nonce } => self.refused_came(link, from, nonce),
            Frame::Decline { owner, nonce } => self.decline_came(link, owner, nonce),
            Frame::Moved { export } => self.moved_came(link, export),
            Frame::Following { export } => self.following_came(link, export),
            Frame::Handed { export, right } => self.handed_came(link, export, right),
        }
    }

    fn close(&mut self, descriptors: Vec<Descriptor>) {
        self.outputs
            .extend(descriptors.into_iter().map(Output::Close));
    }

    /// An entry of this Link's own table that the peer may still name.
    pub(crate) fn held_export(&self, link: LinkId, export: ExportId) -> Result<u32, Fault> {
        match self.exports.of(export.key()) {
            Some(it)
                if it.link == link
                    && it.state != ExportState::Leaving
                    && it.is_proxy == export.is_proxy() =>
            {
                Ok(export.key().index)
            }
            Some(_) | None => Err(Fault::NotHeld),
        }
    }

    /// What this task holds of the peer's.
    pub(crate) fn held_import(&self, link: LinkId, export: ExportId) -> Result<u32, Fault> {
        let imports = &self.link(link).imports;
        imports.get(&export).copied().ok_or(Fault::NotGiven)
    }

    fn message_came(
        &mut self,
        link: LinkId,
        message: MessageFrame,
        descriptors: Vec<Descriptor>,
    ) -> Result<(), Fault> {
        let mut named = core::mem::take(&mut self.named);
        let checked = self.check_message(link, &message, descriptors.len(), &mut named);
        named.clear();
        self.named = named;
        let index = match checked {
            Ok(index) => index,
            Err(fault) => {
                self.close(descriptors);
                return Err(fault);
            }
        };
        let (to, hops) = (message.to, message.hops);
        let parcel = self.take_parcel(link, message, descriptors);
        let from = match self.exports[index].kind {
            RightKind::Send if self.exports[index].feeds && hops > 0 => None,
            RightKind::Send => {
                let export = &mut self.exports[index];
                export.credits -= 1;
                export.queued += 1;
                Some(to.key())
            }
            RightKind::SendOnce => None,
        };
        match self.use_export(index) {
            Right::Once(target) => self.send_once(target, parcel, hops),
            Right::Send(Target::Port(port)) => {
                let to = Right::Send(Target::Port(port));
                let mut letter = Letter::new(parcel, to);
                letter.from = from;
                letter.hops = hops;
                self.enqueue(port, letter);
            }
            Right::Dead | Right::Receive(_) | Right::Send(Target::Import(_)) => {
                let mut letter = Letter::new(parcel, Right::Dead);
                letter.from = from;
                self.destroy_letter(letter);
            }
        }
        Ok(())
    }

    fn take_parcel(
        &mut self,
        link: LinkId,
        message: MessageFrame,
        mut descriptors: Vec<Descriptor>,
    ) -> Parcel {
        // Donated memory comes last.
        let own = usize::from(message.descriptors);
        let donated = if descriptors.len() > own {
            descriptors.split_off(own)
        } else {
            Vec::new()
        };
        let mut donated = donated.into_iter();
        let memory = each(message.memory, |memory| Memory {
            kind: memory.kind,
            handle: match memory.kind {
                MemoryKind::Donated => donated.next().expect("counted").0,
                MemoryKind::Lent => memory.region,
            },
            length: memory.length,
        });
        let Link { task, badge, .. } = *self.link(link);
        Parcel {
            sender: Sender::Peer {
                link,
                task,
                badge,
                forwards: message.origin,
            },
            id: message.id,
            reply: message.reply.map(|wire| self.take(link, wire)),
            bytes: message.bytes,
            rights: each(message.rights, |wire| self.take(link, wire)),
            descriptors,
            memory,
        }
    }

    fn check_message(
        &self,
        link: LinkId,
        message: &MessageFrame,
        descriptors: usize,
        named: &mut Vec<Named>,
    ) -> Result<u32, Fault> {
        if message.bytes.len() > MAX_INLINE
            || message.rights.len() > MAX_RIGHTS
            || message.memory.len() > MAX_MEMORY
        {
            return Err(Fault::TooMuch);
        }
        let donated = message.memory.iter();
        let donated = donated.filter(|memory| memory.kind == MemoryKind::Donated);
        if descriptors != usize::from(message.descriptors) + donated.count() {
            return Err(Fault::Descriptors);
        }
        let index = self.held_export(link, message.to)?;
        match self.exports[index].kind {
            RightKind::Send if self.exports[index].feeds && message.hops > 0 => {}
            RightKind::Send if self.exports[index].credits == 0 => return Err(Fault::NoCredit),
            RightKind::Send => {}
            RightKind::SendOnce => named.push(Named::Once(message.to)),
        }
        if matches!(message.reply, Some(WireRight::Receive { .. })) {
            return Err(Fault::Contradiction);
        }
        for &wire in message.reply.iter().chain(&message.rights) {
            self.check_right(link, wire, named)?;
        }
        Ok(index)
    }

    fn check_right(
        &self,
        link: LinkId,
        wire: WireRight,
        named: &mut Vec<Named>,
    ) -> Result<(), Fault> {
        let (name, fault) = match wire {
            WireRight::Dead => return Ok(()),
            WireRight::Mine {
                export,
                kind,
                credits,
            } => {
                self.check_mine(link, export, kind, credits)?;
                let other = match kind {
                    RightKind::Send => RightKind::SendOnce,
                    RightKind::SendOnce => RightKind::Send,
                };
                if named.contains(&Named::Mine(export, other)) {
                    return Err(Fault::Contradiction);
                }
                let name = Named::Mine(export, kind);
                if credits > 0 && named.contains(&name) {
                    return Err(Fault::Contradiction);
                }
                if kind == RightKind::Send {
                    named.push(name);
                    return Ok(());
                }
                (name, Fault::Contradiction)
            }
            WireRight::Yours { export, kind } => {
                let index = self.held_export(link, export)?;
                if self.exports[index].kind != kind {
                    return Err(Fault::NotHeld);
                }
                if kind == RightKind::Send {
                    return Ok(());
                }
                (Named::Once(export), Fault::NotHeld)
            }
            WireRight::Third { task, nonce, .. } => {
                let from = self.link(link).task;
                if task == self.task || task == from {
                    return Err(Fault::NotThird);
                }
                if self.accepts.contains_key(&(task, from, nonce)) {
                    return Err(Fault::Replay);
                }
                (Named::Third(task, nonce), Fault::Replay)
            }
            WireRight::Receive { nonce, .. } => (Named::Receive(nonce), Fault::Replay),
        };
        if named.contains(&name) {
            return Err(fault);
        }
        named.push(name);
        Ok(())
    }

    fn check_mine(
        &self,
        link: LinkId,
        export: ExportId,
        kind: RightKind,
        credits: u16,
    ) -> Result<(), Fault> {
        let Some(&index) = self.link(link).imports.get(&export) else {
            return Ok(());
        };
        let import = &self.imports[index];
        let known = matches!(import.state, ImportState::Live | ImportState::Releasing);
        let fine = known && (import.kind, kind) == (RightKind::Send, RightKind::Send);
        // Credits for what is held already come by frames of their own.
        let room = import.received < u32::MAX - MAX_RIGHTS as u32 - 1;
        if fine && room && credits == 0 {
            Ok(())
        } else {
            Err(Fault::Contradiction)
        }
    }

    /// A right that is handed over stands for nothing that is held already.
    pub(crate) fn check_handed(&self, link: LinkId, wire: WireRight) -> Result<(), Fault> {
        match wire {
            WireRight::Mine { export, kind, .. } => {
                if kind == RightKind::SendOnce || self.held_import(link, export).is_ok() {
                    return Err(Fault::Contradiction);
                }
            }
            WireRight::Yours { kind, .. } | WireRight::Third { kind, .. } => {
                if kind == RightKind::SendOnce {
                    return Err(Fault::Contradiction);
                }
            }
            WireRight::Receive { .. } | WireRight::Dead => return Err(Fault::Contradiction),
        }
        self.check_right(link, wire, &mut Vec::new())
    }

    /// A right out of a frame; it was checked.
    pub(crate) fn take(&mut self, link: LinkId, wire: WireRight) -> Right {
        match wire {
            WireRight::Dead => Right::Dead,
            WireRight::Mine {
                export,
                kind,
                credits,
            } => {
                let target = Target::Import(self.import(link, export, kind, credits));
                match kind {
                    RightKind::Send => Right::Send(target),
                    RightKind::SendOnce => Right::Once(target),
                }
            }
            WireRight::Yours { export, .. } => self.use_export(export.key().index),
            WireRight::Third { task, nonce, kind } => self.introduced(link, task, nonce, kind),
            WireRight::Receive { nonce, limit } => self.move_in(link, nonce, limit),
        }
    }

    fn offer_came(&mut self, link: LinkId, token: u64, wire: WireRight) -> Result<(), Fault> {
        if matches!(wire, WireRight::Receive { .. }) {
            return Err(Fault::Contradiction);
        }
        self.check_right(link, wire, &mut Vec::new())?;
        let right = self.take(link, wire);
        if !self.expected.remove(&token) {
            // Whoever waited for it has given up: it goes back.
            self.trash(right);
            return Ok(());
        }
        let right = self.copy_out(right);
        self.outputs
            .push_back(Output::Offered { link, token, right });
        Ok(())
    }

    fn release_came(&mut self, link: LinkId, export: ExportId, count: u32) -> Result<(), Fault> {
        let index = self.held_export(link, export)?;
        let it = &mut self.exports[index];
        if count == 0 || count > it.count {
            return Err(Fault::Count);
        }
        it.count -= count;
        if it.count > 0 {
            return Ok(());
        }
        if it.kind == RightKind::Send && it.state != ExportState::Dead {
            self.put_frame(link, Frame::Freed { export });
        }
        let right = self.remove_export(index);
        self.trash(right);
        Ok(())
    }

    fn freed_came(&mut self, link: LinkId, export: ExportId) -> Result<(), Fault> {
        let index = self.held_import(link, export)?;
        if self.imports[index].state != ImportState::Releasing {
            return Err(Fault::Contradiction);
        }
        self.link_mut(link).imports.remove(&export);
        self.free_import(index);
        Ok(())
    }

    fn credit_came(&mut self, link: LinkId, export: ExportId, credits: u16) -> Result<(), Fault> {
        let index = self.held_import(link, export)?;
        let import = &mut self.imports[index];
        if import.kind == RightKind::SendOnce || import.state == ImportState::Following {
            return Err(Fault::Contradiction);
        }
        let sum = import.credits.checked_add(credits);
        import.credits = sum.ok_or(Fault::Contradiction)?;
        self.feed(Target::Import(index));
        for _ in 0..credits {
            if !self.wake_one(crate::wait::On::Room(Target::Import(index))) {
                break;
            }
        }
        Ok(())
    }

    /// A send-once right may have been used meanwhile, and is unknown then.
    fn dead_came(&mut self, link: LinkId, export: ExportId) -> Result<(), Fault> {
        let Ok(index) = self.held_import(link, export) else {
            return Ok(());
        };
        self.link_mut(link).imports.remove(&export);
        let import = &self.imports[index];
        let count = import.received;
        if import.state != ImportState::Releasing {
            self.put_frame(link, Frame::Release { export, count });
        }
        self.import_dies(index);
        Ok(())
    }
}
