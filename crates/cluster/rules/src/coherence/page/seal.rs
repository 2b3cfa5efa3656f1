//! A page that nobody writes any more: whoever has it gives it to others.
//!
//! Hosts come to know at different times that a page is sealed, from their shell. Nobody writes it from
//! the time on at which its owner knows: what is here then is *final*, and so is each copy that is given
//! as such. A final copy is never told to go, so that it need not be kept track of, and who has one
//! answers reads as the owner does. The owner gives the first few copies, and sends later readers on to
//! earlier ones, any of them: contents go along a tree.
//!
//! A reader that was sent on waits where its copy is to come from until that has come there. Nobody
//! waits in a circle: it is sent on only the first time that it asks, to one that has asked before it.
//! One that has dropped its copy again sends the request back, and the owner answers it itself.

use alloc::boxed::Box;

use farpage_object::Access;

use super::{Page, Role};
use crate::coherence::hosts::{Host, Hosts};
use crate::coherence::message::{Epoch, Message, Output, Request};

/// Copies that the owner gives before it sends readers on.
const FANOUT: u32 = 2;

impl Page {
    /// Nobody is to write the page any more: what this host owns now, or will, nobody does. Who
    /// wants to is told so ([`Output::Sealed`]), and gets the ownership for nothing: so a host that leaves
    /// is relieved of it. A lock for writing is given back first.
    pub fn seal(&mut self) {
        self.is_sealed = true;
        let is_time = self.is_to_settle() && !self.is_frozen && !self.is_final;
        if matches!(self.role, Role::Owner { .. }) && is_time {
            // Those who have copies so far keep them, and do not know that they may give them on.
            self.settle(Hosts::NONE);
            self.catch_up();
        }
        self.rest();
    }

    /// True when nobody writes the page any more, for certain.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.is_final
    }

    /// True when nobody writes the page from the time on at which this host owns it.
    pub(super) fn is_to_settle(&self) -> bool {
        self.is_sealed && self.locked() != Some(Access::Write)
    }

    /// This host owns a page that is sealed; these have final copies.
    pub(super) fn settle(&mut self, copies: Hosts) {
        self.is_final = true;
        self.role = Role::Owner { copies };
        if self.allowed != Some(Access::Read) {
            self.allow(Some(Access::Read));
        }
        let wanted = self.wanted();
        if wanted.is_some() {
            self.answer(Access::Read);
        }
        if wanted == Some(Access::Write) {
            self.now().wanted = None;
            self.output(Output::Sealed);
        }
    }

    pub(super) fn sealed_own_came(&mut self, epoch: Epoch, copies: Hosts, contents: bool) {
        (self.owner, self.epoch) = (self.own, epoch);
        self.is_written = true;
        if contents {
            self.output(Output::Take);
        }
        self.now().asked = None;
        self.settle(copies);
    }

    pub(super) fn sealed_copy_came(&mut self, epoch: Epoch, owner: Host) {
        self.now().asked = None;
        if epoch >= self.epoch {
            (self.owner, self.epoch) = (owner, epoch);
        }
        self.is_final = true;
        self.output(Output::Take);
        self.allow(Some(Access::Read));
        // First, as others wait for those in turn.
        self.catch_up();
        self.answer(Access::Read);
        self.ask();
    }

    /// True when this host, which is not the owner, answers a request that was sent on to it.
    pub(super) fn has_for_others(&self, request: Request) -> bool {
        request.to_copy && self.is_final && self.allowed.is_some()
    }

    /// True when it is time for what the owner sent on to this host: it has a copy, or none is to come.
    pub(super) fn is_copy_due(&self, request: Request) -> bool {
        match self.asked() {
            _ if self.has_for_others(request) => true,
            None => true,
            Some(Access::Read) => false,
            // It is to be the owner.
            Some(Access::Write) => request.known <= self.epoch,
        }
    }

    pub(super) fn give_copy(&mut self, to: Host) {
        let (epoch, owner) = (self.epoch, self.owner);
        self.send(to, Message::Sealed { epoch, owner });
    }

    pub(super) fn serve_sealed(&mut self, request: Request, mut copies: Hosts) {
        let by = request.by;
        if request.to_write {
            return self.hand_on(request, copies);
        }
        let earlier = copies.count();
        let is_first = !copies.has(by);
        copies.add(by);
        self.role = Role::Owner { copies };
        match is_first && earlier >= FANOUT && !request.to_copy {
            true => {
                let at = scattered(earlier + u32::from(by.0) * 64) % earlier;
                let giver = copies.less(Hosts::of(by)).iter().nth(at as usize);
                let request = Request {
                    to_copy: true,
                    ..request
                };
                self.send_on(request, giver.expect("there are more"));
            }
            false => self.give_copy(by),
        }
    }

    /// Another host answers for the page from now on. Copies stay, this host's too.
    fn hand_on(&mut self, request: Request, mut copies: Hosts) {
        let contents = !(copies.remove(request.by) && request.has_copy);
        copies.add(self.own);
        self.role = Role::Other;
        (self.owner, self.epoch) = (request.by, Epoch(self.epoch.0 + 1));
        self.is_written = false;
        let own = Message::Own {
            epoch: self.epoch,
            copies,
            contents,
            waiting: Box::default(),
            migrates: false,
            is_sealed: true,
        };
        self.send(request.by, own);
    }
}

/// A number that has nothing to do with its neighbours': who gives copies is to be anybody among those who
/// can, in whatever order hosts ask.
fn scattered(number: u32) -> u32 {
    number.wrapping_mul(2_654_435_769) >> 16
}
