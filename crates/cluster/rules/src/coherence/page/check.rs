//! What other hosts may send, and when: all else is refused, and changes nothing.

use farpage_object::Access;

use super::{Later, Page, Role};
use crate::coherence::hosts::{HOSTS_MAX, Host, Hosts};
use crate::coherence::message::{Epoch, Message, Request, Violation};

impl Page {
    pub(super) fn check(&self, from: Host, message: &Message) -> Result<(), Violation> {
        let what = match message {
            _ if from.0 >= HOSTS_MAX || from == self.own => {
                "a message as a host that cannot be there"
            }
            _ if message.epoch() > Epoch::MAX => "an epoch that cannot be",
            Message::Request(request) if request.by == self.own && self.is_owner() => {
                "this host's own request to it"
            }
            Message::Request(request) if request.by.0 >= HOSTS_MAX || self.has(request.by) => {
                "a request of a host that waits here, or cannot be"
            }
            Message::Request(request) if request.to_copy && request.to_write => {
                "a request to write to who has a copy"
            }
            Message::Copy { .. } if self.asked() != Some(Access::Read) => {
                "a copy that was not asked for"
            }
            Message::Copy { epoch } if self.told().is_some_and(|told| *epoch >= told) => {
                "a copy that is later than the order to drop it"
            }
            Message::Own {
                copies, migrates, ..
            } if !self.is_own_asked(*migrates && copies.is_empty()) => {
                "a page that was not asked for"
            }
            Message::Own { .. } | Message::Invalidate { .. } if self.told().is_some() => {
                "what comes after a copy is gone, which is not"
            }
            Message::Own { epoch, .. } if *epoch <= self.epoch => "a page of an old epoch",
            Message::Own { copies, .. }
                if !copies.has_all(self.early()) || copies.has(self.own) =>
            {
                "others than those that have copies"
            }
            Message::Own { waiting, .. } if !self.may_wait(waiting) => {
                "requests that wait twice, or of hosts that cannot be"
            }
            Message::Invalidate { owner, .. }
                if self.is_owner() || *owner == self.own || owner.0 >= HOSTS_MAX =>
            {
                "an order to the owner to drop a copy"
            }
            // Who is told to drop a copy holds up all later owners until it has.
            Message::Invalidate { epoch, .. } if *epoch <= self.epoch => "an old order",
            Message::Dropped { epoch } if !self.waits_for(from, *epoch) => {
                "that it dropped a copy, which nobody asked it to"
            }
            Message::Lost { epoch }
                if self.asked().is_none()
                    || self.allowed.is_some()
                    || self.told().is_some()
                    || self.is_owner()
                    || *epoch < self.epoch =>
            {
                "that a page is lost, which nobody asked for"
            }
            Message::Sealed { .. } if self.asked() != Some(Access::Read) => {
                "a copy that was not asked for"
            }
            Message::Sealed { epoch, owner }
                if owner.0 >= HOSTS_MAX || *owner == self.own && *epoch >= self.epoch =>
            {
                "a copy of an owner that cannot be"
            }
            Message::Sealed { .. } if self.told().is_some() => {
                "that nobody writes a page which somebody does"
            }
            Message::Request(_)
            | Message::Sealed { .. }
            | Message::Copy { .. }
            | Message::Own { .. }
            | Message::Invalidate { .. }
            | Message::Lost { .. }
            | Message::Dropped { .. } => return Ok(()),
        };
        Err(Violation { by: from, what })
    }

    /// True when the page may come: a read is answered so when the page migrates.
    fn is_own_asked(&self, to_read: bool) -> bool {
        let is_asked = match self.asked() {
            Some(Access::Write) => true,
            Some(Access::Read) => to_read,
            None => false,
        };
        is_asked && !self.is_owner()
    }

    /// The order to drop a copy that waits here: there is one at most.
    fn told(&self) -> Option<Epoch> {
        let later = &self.under_way.as_ref()?.later;
        later.iter().find_map(|one| match one {
            Later::Invalidate { epoch, .. } => Some(*epoch),
            Later::Request(_) => None,
        })
    }

    /// True when a request of a host waits here.
    fn has(&self, by: Host) -> bool {
        let later = self.under_way.as_ref().map(|now| &now.later);
        let is_by = |one: &Later| matches!(one, Later::Request(request) if request.by == by);
        later.is_some_and(|later| later.iter().any(is_by))
    }

    /// True when these requests may come with the page.
    fn may_wait(&self, waiting: &[Request]) -> bool {
        let mut all = Hosts::of(self.own);
        waiting.iter().all(|request| {
            let by = request.by;
            let is_new = by.0 < HOSTS_MAX && !all.has(by) && !self.has(by);
            if is_new {
                all.add(by);
            }
            is_new
        })
    }

    /// True when a host may tell that it has dropped its copy for this epoch.
    fn waits_for(&self, from: Host, epoch: Epoch) -> bool {
        match self.role {
            Role::Becoming { copies } => copies.has(from) && epoch == self.epoch,
            Role::Other => {
                let is_asked = self.asked() == Some(Access::Write) && epoch > self.epoch;
                is_asked && !self.early().has(from)
            }
            Role::Owner { .. } | Role::Lost => false,
        }
    }
}
