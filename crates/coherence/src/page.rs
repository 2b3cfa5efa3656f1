//! The distributed scheduler of a page: the owner serialises.
//!
//! Who owns a page answers what is asked of it. A host that wants to read gets a copy; one that
//! wants to write gets the page: the old owner tells all who have copies to drop them, and they tell
//! the new owner, who writes when all have. So a read costs two messages, and a write two and two
//! for each copy, when the one who asks knows the owner; each host that only knew an earlier owner
//! costs one more.
//!
//! What the order of messages could break is kept right by epochs: a host believes who owns the page
//! only together with the epoch of that, and only a later one. A request that knows more than its
//! receiver waits there, so that no request goes in a circle. A copy that is older than an order to
//! drop copies is not taken, and asked for again.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use farpage_abi::Access;

use crate::hosts::{HOSTS_MAX, Host, Hosts};
use crate::message::{Epoch, Message, Output, Request, Violation};

/// What a host has to do with the ownership.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Role {
    /// Another host owns the page.
    Other,
    /// This one does, and these have copies.
    Owner { copies: Hosts },
    /// This one does, and may write when these have dropped their copies.
    Becoming { copies: Hosts },
}

/// What is to be done once the host has let go, or knows more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Later {
    Request(Request),
    Invalidate { epoch: Epoch, owner: Host },
}

/// A page at one host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Page {
    own: Host,
    role: Role,
    /// Who owns it, as of `epoch`.
    owner: Host,
    epoch: Epoch,
    allowed: Option<Access>,
    /// What threads here wait for.
    wanted: Option<Access>,
    /// What was asked for and has not come.
    asked: Option<Access>,
    /// Threads were given access and have not all used it yet.
    is_held: bool,
    /// The latest epoch whose copies this host was told to drop.
    dropped: Epoch,
    /// Hosts that dropped copies for an ownership that is still on its way here.
    early: Hosts,
    later: Vec<Later>,
    outputs: VecDeque<Output>,
}

impl Page {
    /// A page of `own` that nobody has touched: `owner` owns it, with its first contents.
    #[must_use]
    pub fn new(own: Host, owner: Host) -> Self {
        let is_owner = own == owner;
        Self {
            own,
            role: match is_owner {
                true => Role::Owner {
                    copies: Hosts::NONE,
                },
                false => Role::Other,
            },
            owner,
            epoch: Epoch(0),
            allowed: is_owner.then_some(Access::Write),
            wanted: None,
            asked: None,
            is_held: false,
            dropped: Epoch(0),
            early: Hosts::NONE,
            later: Vec::new(),
            outputs: VecDeque::new(),
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

    /// What threads here wait for.
    #[must_use]
    pub fn wanted(&self) -> Option<Access> {
        self.wanted
    }

    /// True until [`Page::let_go`] after an answer.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// True when others wait for this host to let go of what it holds.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.is_held && !self.later.is_empty()
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// A thread of this host waits for an access.
    pub fn fault(&mut self, access: Access) {
        if allows(self.allowed, access) {
            return self.outputs.push_back(Output::Answer(access));
        }
        if self.wanted != Some(Access::Write) {
            self.wanted = Some(access);
        }
        self.ask();
    }

    /// The threads that were answered have run, or had time enough.
    pub fn let_go(&mut self) {
        self.is_held = false;
        self.catch_up();
    }

    /// The host drops its copy to have room. False when it must keep the page: it owns it, or has
    /// said that it has a copy.
    pub fn forget(&mut self) -> bool {
        let may = self.role == Role::Other
            && self.allowed == Some(Access::Read)
            && self.asked.is_none()
            && !self.is_held;
        if may {
            self.allow(None);
        }
        may
    }

    /// A message has come.
    ///
    /// # Errors
    /// [`Violation`]; nothing has changed then.
    pub fn handle(&mut self, from: Host, message: Message) -> Result<(), Violation> {
        self.check(from, message)?;
        match message {
            Message::Request(request) => self.later.push(Later::Request(request)),
            Message::Copy { epoch } => self.copy_came(from, epoch),
            Message::Own {
                epoch,
                copies,
                contents,
            } => self.own_came(epoch, copies, contents),
            Message::Invalidate { epoch, owner } => {
                // A copy on its way is too old, whenever this host lets go of the one that it has.
                self.dropped = self.dropped.max(epoch);
                self.later.push(Later::Invalidate { epoch, owner });
            }
            Message::Dropped { .. } => match &mut self.role {
                Role::Becoming { copies } => {
                    copies.remove(from);
                    self.may_have_become();
                }
                Role::Other | Role::Owner { .. } => self.early.add(from),
            },
        }
        self.catch_up();
        Ok(())
    }

    fn check(&self, from: Host, message: Message) -> Result<(), Violation> {
        let what = match message {
            Message::Request(request) if request.by == self.own && self.is_owner() => {
                "this host's own request to it"
            }
            Message::Copy { .. } if self.asked != Some(Access::Read) => {
                "a copy that was not asked for"
            }
            Message::Own { .. } if self.asked != Some(Access::Write) || self.is_owner() => {
                "a page that was not asked for"
            }
            Message::Own { epoch, .. } if epoch <= self.epoch => "a page of an old epoch",
            Message::Own { copies, .. } if !copies.has_all(self.early) || copies.has(self.own) => {
                "others than those that have copies"
            }
            Message::Invalidate { owner, .. } if self.is_owner() || owner == self.own => {
                "an order to the owner to drop a copy"
            }
            // Who is told to drop a copy holds up all later owners until it has.
            Message::Invalidate { epoch, .. } if epoch <= self.epoch => "an old order",
            Message::Dropped { epoch } if !self.waits_for(from, epoch) => {
                "that it dropped a copy, which nobody asked it to"
            }
            Message::Request(_)
            | Message::Copy { .. }
            | Message::Own { .. }
            | Message::Invalidate { .. }
            | Message::Dropped { .. } => return Ok(()),
        };
        Err(Violation { by: from, what })
    }

    /// True when a host may tell that it has dropped its copy for this epoch.
    fn waits_for(&self, from: Host, epoch: Epoch) -> bool {
        match self.role {
            Role::Becoming { copies } => copies.has(from) && epoch == self.epoch,
            Role::Other => {
                let is_asked = self.asked == Some(Access::Write) && epoch > self.epoch;
                is_asked && from.0 < HOSTS_MAX && from != self.own && !self.early.has(from)
            }
            Role::Owner { .. } => false,
        }
    }

    fn copy_came(&mut self, from: Host, epoch: Epoch) {
        self.asked = None;
        if epoch >= self.dropped && epoch >= self.epoch {
            (self.owner, self.epoch) = (from, epoch);
            self.outputs.push_back(Output::Take);
            self.allow(Some(Access::Read));
            self.answer(Access::Read);
        }
        // Else it was to be dropped before it came.
        self.ask();
    }

    fn own_came(&mut self, epoch: Epoch, copies: Hosts, contents: bool) {
        (self.owner, self.epoch) = (self.own, epoch);
        if contents {
            self.outputs.push_back(Output::Take);
        }
        let early = core::mem::take(&mut self.early);
        let copies = copies.less(early);
        self.role = Role::Becoming { copies };
        self.may_have_become();
    }

    fn may_have_become(&mut self) {
        let copies = Hosts::NONE;
        if self.role == (Role::Becoming { copies }) {
            self.role = Role::Owner { copies };
            self.asked = None;
            self.allow(Some(Access::Write));
            self.answer(Access::Write);
        }
    }

    /// Asks for what threads want, if nothing is asked for.
    fn ask(&mut self) {
        let Some(access) = self.wanted.filter(|_| self.asked.is_none()) else {
            return;
        };
        self.asked = Some(access);
        match self.role {
            Role::Owner { copies } => {
                // It wants to write: the owner may always read.
                self.epoch = Epoch(self.epoch.0 + 1);
                self.invalidate(copies, self.own);
                self.role = Role::Becoming { copies };
                self.may_have_become();
            }
            Role::Other | Role::Becoming { .. } => {
                let request = Request {
                    by: self.own,
                    to_write: access == Access::Write,
                    has_copy: self.allowed.is_some(),
                    known: self.epoch,
                    hops: 0,
                };
                self.send(self.owner, Message::Request(request));
            }
        }
    }

    /// Does what had to wait and need not any more.
    fn catch_up(&mut self) {
        while let Some(at) = self.later.iter().position(|later| self.is_time(later)) {
            match self.later.remove(at) {
                Later::Request(request) => self.serve(request),
                Later::Invalidate { epoch, owner } => self.drop_copy(epoch, owner),
            }
        }
    }

    fn is_time(&self, later: &Later) -> bool {
        match later {
            Later::Request(request) => match self.role {
                Role::Becoming { .. } => false,
                Role::Owner { .. } => !self.is_held,
                Role::Other => request.known <= self.epoch,
            },
            Later::Invalidate { .. } => !self.is_held,
        }
    }

    fn serve(&mut self, request: Request) {
        let Role::Owner { copies } = &mut self.role else {
            let hops = request.hops.saturating_add(1);
            let known = self.epoch;
            let on = Request {
                known,
                hops,
                ..request
            };
            return self.send(self.owner, Message::Request(on));
        };
        if !request.to_write {
            copies.add(request.by);
            if self.allowed == Some(Access::Write) {
                self.allow(Some(Access::Read));
            }
            let epoch = self.epoch;
            return self.send(request.by, Message::Copy { epoch });
        }
        let contents = !(copies.has(request.by) && request.has_copy);
        let copies = copies.less(Hosts::of(request.by));
        self.role = Role::Other;
        (self.owner, self.epoch) = (request.by, Epoch(self.epoch.0 + 1));
        self.invalidate(copies, request.by);
        if self.allowed == Some(Access::Write) {
            self.allow(Some(Access::Read));
        }
        let own = Message::Own {
            epoch: self.epoch,
            copies,
            contents,
        };
        self.send(request.by, own);
        self.allow(None);
    }

    /// Tells all who have copies to drop them.
    fn invalidate(&mut self, copies: Hosts, owner: Host) {
        let epoch = self.epoch;
        for host in copies.iter() {
            self.send(host, Message::Invalidate { epoch, owner });
        }
    }

    fn drop_copy(&mut self, epoch: Epoch, owner: Host) {
        assert!(epoch > self.epoch, "later owners wait for this host");
        (self.owner, self.epoch) = (owner, epoch);
        if self.allowed.is_some() {
            self.allow(None);
        }
        self.send(owner, Message::Dropped { epoch });
    }

    fn send(&mut self, to: Host, message: Message) {
        self.outputs.push_back(Output::Send(to, message));
    }

    fn allow(&mut self, access: Option<Access>) {
        self.allowed = access;
        self.outputs.push_back(Output::Allow(access));
    }

    fn answer(&mut self, access: Access) {
        if self
            .wanted
            .is_some_and(|wanted| allows(Some(access), wanted))
        {
            self.wanted = None;
        }
        self.is_held = true;
        self.outputs.push_back(Output::Answer(access));
    }
}

/// True when who may do `allowed` may do `access`.
fn allows(allowed: Option<Access>, access: Access) -> bool {
    allowed == Some(Access::Write) || allowed == Some(access)
}
