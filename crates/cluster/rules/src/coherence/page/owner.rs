//! What an owner does with requests, and others with orders to drop their copies.

use alloc::boxed::Box;

use farpage_object::Access;

use super::{Later, Page, Role};
use crate::coherence::hosts::{Host, Hosts};
use crate::coherence::message::{Epoch, Message, Output, Request};

impl Page {
    pub(super) fn serve(&mut self, request: Request) {
        match self.role {
            Role::Owner { copies } if self.is_final => self.serve_sealed(request, copies),
            Role::Owner { copies } if request.to_write || self.is_to_migrate(request, copies) => {
                self.give(request, copies);
            }
            Role::Owner { mut copies } => {
                self.migrates = false;
                if !self.lends {
                    copies.add(request.by);
                }
                self.role = Role::Owner { copies };
                if self.allowed == Some(Access::Write) {
                    self.allow(Some(Access::Read));
                }
                let epoch = self.epoch;
                self.show(request.by, Message::Copy { epoch }, epoch);
            }
            Role::Lost => {
                let epoch = self.epoch;
                self.send(request.by, Message::Lost { epoch });
            }
            Role::Other if self.has_for_others(request) => self.give_copy(request.by),
            Role::Other | Role::Becoming { .. } => self.send_on(request, self.owner),
        }
    }

    pub(super) fn send_on(&mut self, request: Request, to: Host) {
        let on = Request {
            known: self.epoch.max(request.known),
            hops: request.hops.saturating_add(1),
            ..request
        };
        self.send(to, Message::Request(on));
    }

    /// True when who reads will most likely write, as this host did.
    fn is_to_migrate(&self, request: Request, copies: Hosts) -> bool {
        let is_read = !copies.less(Hosts::of(request.by)).is_empty();
        let is_free = self.locks().are_none();
        self.migrates && self.allowed == Some(Access::Write) && !is_read && is_free
    }

    /// Another host owns the page from now on.
    fn give(&mut self, request: Request, copies: Hosts) {
        let has_read = request.has_copy && copies == Hosts::of(request.by);
        let has_written = self.allowed == Some(Access::Write);
        let migrates = self.finds_migration && (has_read || self.migrates && has_written);
        let contents = !(copies.has(request.by) && request.has_copy);
        let copies = copies.less(Hosts::of(request.by));
        let waiting: Box<[Request]> = self.take_waiting();
        let last = waiting.iter().rev().find(|one| one.to_write);
        let version = match self.is_written {
            true => self.epoch,
            false => self.version,
        };
        self.role = Role::Other;
        self.epoch = Epoch(self.epoch.0 + 1);
        // Who waits to write will own the page: it keeps what this host asks until then.
        self.owner = last.map_or(request.by, |last| last.by);
        self.invalidate(copies, request.by);
        if self.allowed == Some(Access::Write) {
            self.allow(Some(Access::Read));
        }
        let own = Message::Own {
            epoch: self.epoch,
            copies,
            contents,
            waiting,
            migrates,
            is_sealed: false,
        };
        // Nobody here reads on when the other writes.
        self.output(Output::Withdraw);
        self.show(request.by, own, version);
        self.is_written = false;
        if self.is_mirrored && version > Epoch(0) {
            self.output(Output::Keep(version));
        }
        self.allow(None);
    }

    /// Another host is to see the contents of this version, if the message has them.
    fn show(&mut self, to: Host, message: Message, version: Epoch) {
        if !(self.is_mirrored && self.is_written && message.has_contents()) {
            return self.send(to, message);
        }
        (self.is_written, self.version) = (false, version);
        self.output(Output::Show {
            to,
            message,
            version,
        });
    }

    fn take_waiting(&mut self) -> Box<[Request]> {
        let later = self.now().later.drain(..);
        let requests = later.map(|one| match one {
            Later::Request(request) => request,
            Later::Invalidate { .. } => unreachable!("an owner is told to drop no copy"),
        });
        requests.collect()
    }

    /// Tells all who have copies to drop them.
    pub(super) fn invalidate(&mut self, copies: Hosts, owner: Host) {
        let epoch = self.epoch;
        for host in copies.iter() {
            self.send(host, Message::Invalidate { epoch, owner });
        }
    }

    pub(super) fn drop_copy(&mut self, epoch: Epoch, owner: Host) {
        assert!(epoch > self.epoch, "later owners wait for this host");
        (self.owner, self.epoch) = (owner, epoch);
        self.is_listed = false;
        if self.allowed.is_some() {
            self.allow(None);
        }
        self.send(owner, Message::Dropped { epoch });
    }
}
