//! The owner's side of a Link: what the peer may name.

use crate::few::Few;
use crate::frame::{ExportId, Frame};
use crate::message::{LinkId, RightKind, TaskId};
use crate::port::Home;
use crate::right::{Right, Target};
use crate::settle::Work;
use crate::slab::{Key, NONE};
use crate::space::Space;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum ExportState {
    Live,
    /// The holder was told that the port is dead; the entry waits for its Release.
    Dead,
    /// The holder was told that the port has moved.
    Moving,
    /// The holder sends no more; a handover is in the port's queue.
    Leaving,
}

/// A right that was given to a peer.
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Export {
    pub(crate) link: LinkId,
    pub(crate) port: u32,
    pub(crate) kind: RightKind,
    /// That of the port, whose slot another may have when it is dead.
    pub(crate) is_proxy: bool,
    pub(crate) state: ExportState,
    /// How often it was given and not released.
    pub(crate) count: u32,
    /// Messages that the holder may send, as far as this side knows.
    pub(crate) credits: u16,
    /// Messages of the holder's in the port's queue.
    pub(crate) queued: u16,
    /// The receive right came by it: what its holder forwards needs no credit.
    pub(crate) feeds: bool,
    /// Neighbours in the port's list.
    pub(crate) newer: u32,
    pub(crate) older: u32,
}

/// A Link that is up.
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Link {
    pub(crate) task: TaskId,
    /// The exports that further send rights to a port join.
    pub(crate) joined: Few<u32, u32>,
    pub(crate) exports: Few<u32, ()>,
    pub(crate) imports: Few<ExportId, u32>,
    /// The largest number of a Provide of the peer's.
    pub(crate) last_nonce: u64,
    /// Provides of the peer's that wait to be accepted.
    pub(crate) provided: u32,
    /// Own Provides that the peer has not settled.
    pub(crate) unsettled: u32,
    /// Rights that the peer has introduced and that are not accepted yet.
    pub(crate) introduced: u32,
    /// Accepts of the peer's that came before their Provide.
    pub(crate) early: u32,
    /// What the shell said of the peer.
    pub(crate) badge: u64,
}

impl Link {
    pub(crate) fn new(task: TaskId, badge: u64) -> Self {
        Self {
            task,
            joined: Few::new(),
            exports: Few::new(),
            imports: Few::new(),
            last_nonce: 0,
            provided: 0,
            unsettled: 0,
            introduced: 0,
            early: 0,
            badge,
        }
    }
}

impl Space {
    /// Enters a right to a port here into a Link's table; the entry takes over its reference.
    /// Answers the entry and the credits that go with it.
    pub(crate) fn export(&mut self, link: LinkId, port: u32, kind: RightKind) -> (ExportId, u16) {
        let credits = self.first_credits(port, kind);
        let first = self.ports[port].exports;
        let key = self.exports.insert(Export {
            link,
            port,
            kind,
            is_proxy: self.ports[port].is_proxy,
            state: ExportState::Live,
            count: 1,
            credits,
            queued: 0,
            feeds: false,
            newer: NONE,
            older: first,
        });
        if first != NONE {
            self.exports[first].newer = key.index;
        }
        self.ports[port].exports = key.index;
        self.link_mut(link).exports.insert(key.index, ());
        if kind == RightKind::Send && self.ports[port].home != Home::Here {
            self.work(Work::Move(key));
        }
        (self.export_id(key.index), credits)
    }

    /// What the peer calls an entry.
    pub(crate) fn export_id(&self, index: u32) -> ExportId {
        ExportId::new(self.exports.key(index), self.exports[index].is_proxy)
    }

    fn first_credits(&self, port: u32, kind: RightKind) -> u16 {
        match (kind, self.ports[port].home) {
            (RightKind::Send, Home::Here) => self.ports[port].limit,
            (RightKind::Send, Home::Forward(_) | Home::Dead) | (RightKind::SendOnce, _) => 0,
        }
    }

    /// As [`Self::export`], but a send right joins the entry that the peer holds already.
    pub(crate) fn export_joined(&mut self, link: LinkId, port: u32) -> (ExportId, u16) {
        if let Some(&index) = self.link(link).joined.get(&port) {
            let export = &mut self.exports[index];
            if let Some(count) = export.count.checked_add(1) {
                export.count = count;
                self.trash(Right::Send(Target::Port(port)));
                return (self.export_id(index), 0);
            }
        }
        let (id, credits) = self.export(link, port, RightKind::Send);
        let index = id.key().index;
        self.link_mut(link).joined.insert(port, index);
        (id, credits)
    }

    /// Takes an entry off its port's list and its Link's, but leaves its slot.
    pub(crate) fn detach_export(&mut self, index: u32) {
        let Export {
            port, newer, older, ..
        } = self.exports[index];
        match newer {
            NONE if self.ports[port].exports == index => self.ports[port].exports = older,
            NONE => {}
            newer => self.exports[newer].older = older,
        }
        if older != NONE {
            self.exports[older].newer = newer;
        }
        self.exports[index].newer = NONE;
        self.exports[index].older = NONE;
        self.unjoin(index);
    }

    /// No further right joins this entry.
    pub(crate) fn unjoin(&mut self, index: u32) {
        let Export { link, port, .. } = self.exports[index];
        let joined = &mut self.link_mut(link).joined;
        if joined.get(&port) == Some(&index) {
            joined.remove(&port);
        }
    }

    /// Frees an entry; its reference of the port goes to the caller.
    pub(crate) fn remove_export(&mut self, index: u32) -> Right {
        let dead = self.exports[index].state == ExportState::Dead;
        if !dead {
            self.detach_export(index);
        }
        let export = self.exports.remove(index);
        self.link_mut(export.link).exports.remove(&index);
        match (dead, export.kind) {
            (true, _) => Right::Dead,
            (false, RightKind::Send) => Right::Send(Target::Port(export.port)),
            (false, RightKind::SendOnce) => Right::Once(Target::Port(export.port)),
        }
    }

    /// Tells the holders of a dead port; their entries wait for Release.
    pub(crate) fn exports_die(&mut self, port: u32) {
        while self.ports[port].exports != NONE {
            let index = self.ports[port].exports;
            self.detach_export(index);
            let id = self.export_id(index);
            let export = &mut self.exports[index];
            export.state = ExportState::Dead;
            let (link, kind) = (export.link, export.kind);
            match kind {
                RightKind::Send => self.ports[port].sends -= 1,
                RightKind::SendOnce => self.ports[port].onces -= 1,
            }
            self.put_frame(link, Frame::Dead { export: id });
        }
    }

    /// A message of the holder's has left the port's queue.
    pub(crate) fn credit_back(&mut self, key: Key) {
        if self.exports.of(key).is_some() {
            self.exports[key.index].queued -= 1;
            self.top_up(key.index);
        }
    }

    /// Gives credits once the holder has used half of them.
    pub(crate) fn top_up(&mut self, index: u32) {
        let export = &self.exports[index];
        let port = match export.state {
            ExportState::Live => &self.ports[export.port],
            ExportState::Dead | ExportState::Moving | ExportState::Leaving => return,
        };
        if export.kind == RightKind::SendOnce || port.home != Home::Here {
            return;
        }
        let room = port.limit.saturating_sub(export.credits + export.queued);
        if room == 0 || export.credits > port.limit / 2 {
            return;
        }
        let link = export.link;
        self.exports[index].credits += room;
        let export = self.export_id(index);
        let credits = room;
        self.put_frame(link, Frame::Credit { export, credits });
    }
}
