//! Receive rights that leave: the port left behind forwards, and its holders follow in order.

use crate::error::Fault;
use crate::export::ExportState;
use crate::frame::{ExportId, Frame, WireRight};
use crate::import::{Import, ImportState};
use crate::message::{LinkId, RightKind};
use crate::port::{Content, Home, Letter, Place, Port};
use crate::right::{Right, Target};
use crate::settle::Work;
use crate::slab::{Key, NONE};
use crate::space::Space;
use crate::wait::On;

impl Space {
    /// The receive right of a port leaves by a Link; from now on the port forwards.
    pub(crate) fn move_out(&mut self, port: u32, link: LinkId) -> WireRight {
        let requests = [
            self.no_senders.remove(&port),
            self.port_destroyed.remove(&port),
        ];
        for request in requests.into_iter().flatten() {
            self.trash(request);
        }
        self.nonce += 1;
        let nonce = self.nonce;
        let (owner, from) = (self.link(link).task, self.task);
        let state = ImportState::Awaited { owner, from, nonce };
        let import = self
            .imports
            .insert(Import::new(RightKind::Send, state))
            .index;
        self.imports[import].feeds = true;
        self.accepts.insert((owner, from, nonce), import);
        let it = &mut self.ports[port];
        it.home = Home::Forward(Target::Import(import));
        it.place = Place::Loose;
        let limit = it.limit;
        let mut index = it.exports;
        while index != NONE {
            let key = self.exports.key(index);
            index = self.exports[index].older;
            self.work(Work::Move(key));
        }
        self.wake_all(On::Room(Target::Port(port)));
        self.work(Work::Forward(port));
        WireRight::Receive { nonce, limit }
    }

    /// A receive right arrives.
    pub(crate) fn move_in(&mut self, link: LinkId, nonce: u64, limit: u16) -> Right {
        let port = self.ports.insert(Port::new(limit)).index;
        self.ports[port].sends = 1;
        let from = self.link(link).task;
        let export = self.put_accepted(link, (from, nonce), port, RightKind::Send);
        self.exports[export.key().index].feeds = true;
        Right::Receive(port)
    }

    /// Tells a holder that it should follow. Send-once rights are used where they are.
    pub(crate) fn tell_moved(&mut self, key: Key) {
        let Some(export) = self.exports.of(key) else {
            return;
        };
        let live = export.state == ExportState::Live && export.kind == RightKind::Send;
        let (link, port) = (export.link, export.port);
        if live && self.forwards(port).is_some() {
            self.exports[key.index].state = ExportState::Moving;
            self.unjoin(key.index);
            let export = self.export_id(key.index);
            self.put_frame(link, Frame::Moved { export });
        }
    }

    pub(crate) fn moved_came(&mut self, link: LinkId, export: ExportId) -> Result<(), Fault> {
        let index = self.held_import(link, export)?;
        let import = &mut self.imports[index];
        match (import.kind, import.state) {
            (RightKind::Send, ImportState::Live) => {
                import.state = ImportState::Following;
                self.put_frame(link, Frame::Following { export });
                Ok(())
            }
            // The Release that is on its way says all.
            (RightKind::Send, ImportState::Releasing) => Ok(()),
            (
                RightKind::Send | RightKind::SendOnce,
                ImportState::Live
                | ImportState::Releasing
                | ImportState::Following
                | ImportState::Awaited { .. }
                | ImportState::Replaced(_)
                | ImportState::Dead,
            ) => Err(Fault::Contradiction),
        }
    }

    pub(crate) fn following_came(&mut self, link: LinkId, export: ExportId) -> Result<(), Fault> {
        let index = self.held_export(link, export)?;
        match self.exports[index].state {
            // Its holder will see that it is dead.
            ExportState::Dead => return Ok(()),
            ExportState::Moving => {}
            ExportState::Live | ExportState::Leaving => return Err(Fault::Contradiction),
        }
        self.exports[index].state = ExportState::Leaving;
        let port = self.exports[index].port;
        self.enqueue(
            port,
            Letter {
                next: NONE,
                from: None,
                local: false,
                hops: 0,
                to: Right::Dead,
                content: Content::Handover(export.key()),
            },
        );
        Ok(())
    }

    pub(crate) fn handed_came(
        &mut self,
        link: LinkId,
        export: ExportId,
        wire: WireRight,
    ) -> Result<(), Fault> {
        let index = self.held_import(link, export)?;
        if self.imports[index].state != ImportState::Following {
            return Err(Fault::NotGiven);
        }
        self.check_handed(link, wire)?;
        if let WireRight::Yours { export, .. } = wire {
            let yours = &self.exports[export.key().index];
            // A dead port's slot may be another's by now; one that lives must not be found behind
            // itself.
            let lives = yours.state != ExportState::Dead;
            if lives && self.leads_to(Target::Port(yours.port), index) {
                return Err(Fault::Contradiction);
            }
        }
        self.link_mut(link).imports.remove(&export);
        let Right::Send(next) = self.take(link, wire) else {
            self.import_dies(index);
            return Ok(());
        };
        let next = {
            let now = self.resolve(next);
            if now != next {
                self.hold(now);
                self.trash(Right::Send(next));
            }
            now
        };
        if self.is_dead(next) {
            self.trash(Right::Send(next));
            self.import_dies(index);
            return Ok(());
        }
        self.imports[index].state = ImportState::Replaced(next);
        self.requests_follow(Target::Import(index), next);
        self.import_event(index);
        if self.imports[index].references == 0 {
            self.import_unused(index);
        }
        Ok(())
    }

    /// Dead-name requests wait for the death of what stands for the old target now.
    fn requests_follow(&mut self, old: Target, next: Target) {
        let least = (old, crate::Name(0));
        while let Some((&(of, name), _)) = self.requests.range(least..).next() {
            if of != old {
                return;
            }
            self.refresh(name.key().index);
            if let Some(request) = self.requests.remove(&(of, name)) {
                self.requests.insert((next, name), request);
            }
        }
    }

    /// Sends on what is queued at a port whose receive right has left, as far as it goes.
    pub(crate) fn forward(&mut self, port: u32) {
        while let Some(next) = self.forwards(port) {
            let now = self.resolve(next);
            if now != next {
                self.hold(now);
                self.stop_forwarding(port, next);
                self.ports[port].home = Home::Forward(now);
            }
            if self.is_dead(now) {
                self.port_dies(port);
                return;
            }
            self.feeds.insert((now, port));
            let head = self.ports[port].head;
            if head == NONE {
                self.free_port(port);
                return;
            }
            if !self.goes_on(head, now) {
                return;
            }
            let letter = self.dequeue(port).expect("its head is there");
            match letter.content {
                Content::Handover(export) => self.hand_over(export, now),
                Content::Parcel(_) => self.forward_letter(port, letter, now),
            }
        }
    }

    /// Whether a letter can go on to `now` at once.
    fn goes_on(&self, letter: u32, now: Target) -> bool {
        let Target::Import(import) = now else {
            return true;
        };
        let it = &self.imports[import];
        match &self.letters[letter].content {
            Content::Handover(export) => {
                let leaving = self.exports.of(*export);
                let leaving = leaving.filter(|it| it.state == ExportState::Leaving);
                leaving.is_none_or(|leaving| self.is_settled(import, leaving.link))
            }
            Content::Parcel(_) => match it.kind {
                RightKind::Send => it.state == ImportState::Live && (it.feeds || it.credits > 0),
                RightKind::SendOnce => true,
            },
        }
    }

    fn hand_over(&mut self, export: Key, now: Target) {
        let leaving = self.exports.of(export);
        if leaving.is_none_or(|it| it.state != ExportState::Leaving) {
            return;
        }
        let link = self.exports[export.index].link;
        let id = self.export_id(export.index);
        self.hold(now);
        let right = self.carry(Right::Send(now), link, true);
        let gone = self.remove_export(export.index);
        self.trash(gone);
        let export = id;
        self.put_frame(link, Frame::Handed { export, right });
    }

    fn forward_letter(&mut self, port: u32, mut letter: Letter, now: Target) {
        let Some(hops) = letter.hops.checked_add(1) else {
            self.destroy_letter(letter);
            return;
        };
        letter.hops = hops;
        let Content::Parcel(parcel) = &letter.content else {
            unreachable!("handovers are not forwarded");
        };
        match now {
            Target::Port(to) => {
                let circular = parcel.rights.iter().any(|right| match right {
                    Right::Receive(moving) => self.is_circular(to, *moving),
                    Right::Dead | Right::Send(_) | Right::Once(_) => false,
                });
                if circular {
                    self.destroy_letter(letter);
                    return;
                }
                self.hold(now);
                let old = core::mem::replace(&mut letter.to, Right::Send(now));
                self.trash(old);
                letter.next = NONE;
                self.enqueue(to, letter);
            }
            Target::Import(import) => {
                self.trash(letter.to);
                if let Some(export) = letter.from {
                    self.credit_back(export);
                }
                let Content::Parcel(parcel) = letter.content else {
                    unreachable!("looked at above");
                };
                match self.imports[import].kind {
                    RightKind::Send => self.transmit(import, parcel, hops),
                    RightKind::SendOnce => {
                        // The one message that the forwarder was made for.
                        self.feeds.remove(&(now, port));
                        self.ports[port].home = Home::Dead;
                        self.send_once(now, parcel, hops);
                        self.free_port(port);
                    }
                }
            }
        }
    }
}
