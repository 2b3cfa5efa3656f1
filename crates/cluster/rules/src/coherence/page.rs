//! The distributed scheduler of a page: the owner serialises.
//!
//! Who owns a page answers what is asked of it. A host that wants to read gets a copy; one that
//! wants to write gets the page: the old owner tells all who have copies to drop them, and they tell
//! the new owner, who writes when all have. So a read costs two messages, and a write two and two
//! for each copy, when the one who asks knows the owner; each host that only knew an earlier owner
//! costs one more.
//!
//! What waits at the old owner goes to the new one with the page, and is served in the order of
//! asking. The old owner then asks, when it wants the page back, the last of those that wait to
//! write: that one will own the page, so that the request waits there and runs after nobody. So a
//! write costs two messages also where all hosts want to write all the time.
//!
//! What the order of messages could break is kept right by epochs: a host believes who owns the page
//! only together with the epoch of that, and only a later one. A request that knows more than its
//! receiver waits there, so that no request goes in a circle. An order to drop a copy that is still
//! on its way waits for it, so that who reads has read once before, and no reader starves; only a host
//! that had dropped an earlier copy by itself cannot know, and asks again if the copy comes too late.

mod check;
mod crash;
mod lock;
mod owner;
mod seal;
mod stale;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use farpage_object::Access;

use crate::coherence::hosts::{Host, Hosts};
use crate::coherence::message::{Epoch, Message, Output, Request, Violation};

/// What a host has to do with the ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    /// Another host owns the page.
    Other,
    /// This one does, and these have copies.
    Owner { copies: Hosts },
    /// This one does, and may write when these have dropped their copies.
    Becoming { copies: Hosts },
    /// This one answers for it, and its contents are lost.
    Lost,
}

/// What is to be done once the host has let go, or knows more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Later {
    Request(Request),
    Invalidate { epoch: Epoch, owner: Host },
}

/// What is only there while a page has something under way: of millions of pages few have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct UnderWay {
    /// What threads here wait for.
    wanted: Option<Access>,
    /// What was asked for and has not come.
    asked: Option<Access>,
    /// Threads were given access and have not all used it yet.
    is_held: bool,
    locks: lock::Locks,
    /// Hosts that dropped copies for an ownership that is still on its way here.
    early: Hosts,
    /// One request of a host at most, and one order to drop a copy.
    later: Vec<Later>,
    outputs: VecDeque<Output>,
}

impl UnderWay {
    fn is_over(&self) -> bool {
        self.wanted.is_none()
            && self.asked.is_none()
            && !self.is_held
            && self.locks.are_none()
            && self.later.is_empty()
            && self.outputs.is_empty()
    }
}

/// A page at one host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Page {
    own: Host,
    /// Who owned it at `epoch`, or waited then to own it later.
    owner: Host,
    allowed: Option<Access>,
    /// Owners count this host among those that have copies, though it may have dropped its own.
    is_listed: bool,
    /// Written contents are shown only by way of a backup.
    is_mirrored: bool,
    /// What this host owns may be nowhere else.
    is_written: bool,
    is_frozen: bool,
    /// Who reads is to get the page when others have read and then written it.
    finds_migration: bool,
    /// They have.
    migrates: bool,
    /// Copies are kept for a time, and writers do not wait for them.
    lends: bool,
    /// This host knows that nobody is to write any more.
    is_sealed: bool,
    /// Nobody does: its owner has known it.
    is_final: bool,
    role: Role,
    epoch: Epoch,
    /// What this host owns is elsewhere as of this epoch, unless it is written.
    version: Epoch,
    under_way: Option<Box<UnderWay>>,
}

impl Page {
    /// A page of `own` that nobody has touched: `owner` owns it, with its first contents.
    #[must_use]
    pub fn new(own: Host, owner: Host) -> Self {
        let copies = Hosts::NONE;
        let is_owner = own == owner;
        let (role, allowed) = match is_owner {
            true => (Role::Owner { copies }, Some(Access::Write)),
            false => (Role::Other, None),
        };
        Self {
            own,
            owner,
            allowed,
            is_listed: false,
            is_mirrored: false,
            is_written: is_owner,
            is_frozen: false,
            finds_migration: false,
            migrates: false,
            lends: false,
            is_sealed: false,
            is_final: false,
            role,
            epoch: Epoch(0),
            version: Epoch(0),
            under_way: None,
        }
    }

    /// The same on an object that loses nothing when a host dies. Its owner may read it at first,
    /// so that it is known whether it has written.
    #[must_use]
    pub fn mirrored(own: Host, owner: Host) -> Self {
        let is_mirrored = true;
        Self {
            is_mirrored,
            ..Self::new(own, owner).flushed()
        }
    }

    /// Its owner may read it at first, so that it is known whether it has written: its first contents
    /// are elsewhere.
    #[must_use]
    pub fn flushed(self) -> Self {
        let allowed = self.allowed.map(|_| Access::Read);
        let is_written = false;
        Self {
            allowed,
            is_written,
            ..self
        }
    }

    /// Gives the page to who reads it, when each host reads it and then writes it: so a turn costs two
    /// messages and not four. Where a host turns out only to read, the next one has a copy again.
    #[must_use]
    pub fn find_migration(self) -> Self {
        let finds_migration = true;
        Self {
            finds_migration,
            ..self
        }
    }

    /// What tasks of this host may do with the page.
    #[must_use]
    pub fn allowed(&self) -> Option<Access> {
        self.allowed
    }

    /// True when this host answers for the page's contents.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.role != Role::Other
    }

    /// Who owns the page, or is to own it next, as far as this host knows.
    #[must_use]
    pub fn owner(&self) -> Host {
        match self.is_owner() {
            true => self.own,
            false => self.owner,
        }
    }

    /// Hosts that have copies of what this host has to give to another; `None` when that is nothing.
    #[must_use]
    pub fn copies(&self) -> Option<Hosts> {
        match self.role {
            Role::Owner { copies } | Role::Becoming { copies } => Some(copies),
            Role::Other | Role::Lost => None,
        }
    }

    /// True when the page's contents here may be nowhere else: it may have been written since
    /// [`Page::mirror`].
    #[must_use]
    pub fn is_written(&self) -> bool {
        self.is_written
    }

    /// What threads here wait for.
    #[must_use]
    pub fn wanted(&self) -> Option<Access> {
        self.under_way.as_ref()?.wanted
    }

    /// True until [`Page::let_go`] after an answer.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.under_way.as_ref().is_some_and(|now| now.is_held)
    }

    /// True when others wait for this host to let go of what it holds, or to give a lock back.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        let now = self.under_way.as_ref();
        now.is_some_and(|now| now.is_held && !now.later.is_empty()) || self.is_lock_awaited()
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        let next = self.under_way.as_mut()?.outputs.pop_front();
        self.rest();
        next
    }

    /// A thread of this host waits for an access.
    pub fn fault(&mut self, access: Access) {
        if allows(self.allowed, access) {
            return self.output(Output::Answer(access));
        }
        if self.role == Role::Lost && !self.is_frozen {
            return self.output(Output::Lost);
        }
        if self.is_final && self.is_owner() {
            return self.output(Output::Sealed);
        }
        let now = self.now();
        if now.wanted != Some(Access::Write) {
            now.wanted = Some(access);
        }
        self.ask();
    }

    /// Keeps what this host may do until [`Page::let_go`], as after an answer. False when it may not
    /// do so much.
    pub fn hold(&mut self, access: Access) -> bool {
        let may = allows(self.allowed, access);
        if may {
            self.now().is_held = true;
        }
        may
    }

    /// The threads that were answered have run, or had time enough.
    pub fn let_go(&mut self) {
        self.now().is_held = false;
        self.catch_up();
        self.rest();
    }

    /// The host drops its copy to have room. False when it must keep the page: it owns it, has
    /// said that it has a copy, or has locked it.
    pub fn forget(&mut self) -> bool {
        let may = self.role == Role::Other
            && self.allowed == Some(Access::Read)
            && self.asked().is_none()
            && !self.is_held()
            && self.locks().are_none()
            && !self.is_frozen;
        if may {
            self.allow(None);
        }
        may
    }

    /// The contents are about to be put elsewhere: with a backup, or where they are flushed to. The
    /// version under which to keep them; none when there is nothing new. Who writes from now on
    /// faults.
    pub fn mirror(&mut self) -> Option<Epoch> {
        let version = match self.role {
            Role::Owner { .. } => self.epoch,
            // It has not written yet in this one.
            Role::Becoming { .. } => Epoch(self.epoch.0 - 1),
            Role::Other | Role::Lost => return None,
        };
        if !self.is_written || self.is_frozen {
            return None;
        }
        if self.allowed == Some(Access::Write) {
            self.allow(Some(Access::Read));
        }
        self.is_written = false;
        self.version = version;
        Some(version)
    }

    /// A message has come.
    ///
    /// # Errors
    /// [`Violation`]; nothing has changed then.
    pub fn handle(&mut self, from: Host, message: Message) -> Result<(), Violation> {
        if self.is_frozen {
            return self.absorb(from, message);
        }
        self.check(from, &message)?;
        match message {
            Message::Request(request) => self.now().later.push(Later::Request(request)),
            Message::Copy { epoch } => self.copy_came(from, epoch),
            Message::Own {
                epoch,
                copies,
                contents,
                waiting,
                migrates,
                is_sealed,
            } => {
                self.migrates = migrates;
                self.is_sealed |= is_sealed;
                let waiting = waiting.into_iter().map(Later::Request);
                self.now().later.splice(0..0, waiting);
                match is_sealed {
                    true => self.sealed_own_came(epoch, copies, contents),
                    false => self.own_came(epoch, copies, contents),
                }
            }
            Message::Invalidate { epoch, owner } => {
                self.now().later.push(Later::Invalidate { epoch, owner });
            }
            Message::Dropped { .. } => match &mut self.role {
                Role::Becoming { copies } => {
                    copies.remove(from);
                    self.may_have_become();
                }
                Role::Other | Role::Owner { .. } | Role::Lost => self.now().early.add(from),
            },
            Message::Lost { epoch } => {
                (self.owner, self.epoch) = (from, epoch);
                self.tell_lost();
            }
            Message::Sealed { epoch, owner } => self.sealed_copy_came(epoch, owner),
        }
        self.catch_up();
        self.rest();
        Ok(())
    }

    fn copy_came(&mut self, from: Host, epoch: Epoch) {
        self.now().asked = None;
        if epoch >= self.epoch {
            (self.owner, self.epoch) = (from, epoch);
            self.is_listed = !self.lends;
            self.output(Output::Take);
            self.allow(Some(Access::Read));
            self.answer(Access::Read);
        }
        // Else it was to be dropped before it came.
        self.ask();
    }

    fn own_came(&mut self, epoch: Epoch, copies: Hosts, contents: bool) {
        (self.owner, self.epoch) = (self.own, epoch);
        self.is_listed = false;
        self.is_written = true;
        if contents {
            self.output(Output::Take);
        }
        let early = core::mem::take(&mut self.now().early);
        let copies = copies.less(early);
        self.role = Role::Becoming { copies };
        self.may_have_become();
    }

    fn may_have_become(&mut self) {
        let copies = Hosts::NONE;
        if self.role == (Role::Becoming { copies }) {
            self.role = Role::Owner { copies };
            self.now().asked = None;
            if self.is_to_settle() {
                return self.settle(copies);
            }
            // Who only reads is not taken for a writer before it writes.
            let access = self.wanted().unwrap_or(Access::Write);
            self.allow(Some(access));
            self.answer(access);
        }
    }

    /// Asks for what threads want, if nothing is asked for.
    fn ask(&mut self) {
        let is_time = self.asked().is_none() && !self.is_frozen;
        let Some(access) = self.wanted().filter(|_| is_time) else {
            return;
        };
        self.now().asked = Some(access);
        match self.role {
            Role::Owner { copies } => {
                // It wants to write: the owner may always read.
                self.epoch = Epoch(self.epoch.0 + 1);
                self.invalidate(copies, self.own);
                self.role = Role::Becoming { copies };
                self.may_have_become();
            }
            Role::Other | Role::Becoming { .. } | Role::Lost => {
                if access == Access::Write {
                    self.returns();
                }
                let request = Request {
                    by: self.own,
                    to_write: access == Access::Write,
                    has_copy: self.allowed.is_some(),
                    known: self.epoch,
                    hops: 0,
                    to_copy: false,
                };
                self.send(self.owner, Message::Request(request));
            }
        }
    }

    /// Does what had to wait and need not any more.
    fn catch_up(&mut self) {
        while let Some(at) = self.due() {
            match self.now().later.remove(at) {
                Later::Request(request) => self.serve(request),
                Later::Invalidate { epoch, owner } => self.drop_copy(epoch, owner),
            }
        }
    }

    /// Where among what waits the first is that need not wait any more.
    fn due(&self) -> Option<usize> {
        let now = self.under_way.as_ref()?;
        now.later.iter().position(|later| match later {
            Later::Request(request) => match self.role {
                Role::Becoming { .. } => false,
                Role::Owner { .. } => !now.is_held && !self.forbids(*request),
                Role::Lost => true,
                Role::Other if request.to_copy => self.is_copy_due(*request),
                Role::Other => request.known <= self.epoch,
            },
            // A host that is not listed is told to drop the copy that is on its way.
            Later::Invalidate { .. } => {
                let is_here = self.is_listed || now.asked != Some(Access::Read);
                !now.is_held && now.locks.are_none() && is_here
            }
        })
    }

    fn send(&mut self, to: Host, message: Message) {
        self.output(Output::Send(to, message));
    }

    fn allow(&mut self, access: Option<Access>) {
        self.allowed = access;
        self.is_written |= access == Some(Access::Write);
        self.output(Output::Allow(access));
    }

    fn answer(&mut self, access: Access) {
        let now = self.now();
        if now
            .wanted
            .is_some_and(|wanted| allows(Some(access), wanted))
        {
            now.wanted = None;
        }
        now.is_held = true;
        self.output(Output::Answer(access));
    }

    fn output(&mut self, output: Output) {
        self.now().outputs.push_back(output);
    }

    fn asked(&self) -> Option<Access> {
        self.under_way.as_ref()?.asked
    }

    fn early(&self) -> Hosts {
        self.under_way.as_ref().map_or(Hosts::NONE, |now| now.early)
    }

    fn now(&mut self) -> &mut UnderWay {
        self.under_way.get_or_insert_default()
    }

    /// Forgets what was under way when it is over.
    fn rest(&mut self) {
        if self.under_way.as_ref().is_some_and(|now| now.is_over()) {
            self.under_way = None;
        }
    }
}

/// True when who may do `allowed` may do `access`.
pub(crate) fn allows(allowed: Option<Access>, access: Access) -> bool {
    allowed == Some(Access::Write) || allowed == Some(access)
}
