//! A page when a host has died: it stops, tells what it has, and goes on as it is told.

use farpage_object::Access;

use super::{Page, Role, allows};
use crate::coherence::hosts::{HOSTS_MAX, Host, Hosts};
use crate::coherence::message::{Epoch, Message, Output, Violation};
use crate::coherence::recovery::{Contents, Report, Standing, Verdict};

impl Page {
    /// A host has died: until the verdict the page sends nothing, and takes of what comes only the
    /// ownership. What threads here may do they do on, but for copies that are lent; what they wait for is
    /// asked for afterwards.
    ///
    /// # Panics
    /// When outputs were left.
    pub fn freeze(&mut self) {
        if let Some(now) = &mut self.under_way {
            assert!(now.outputs.is_empty(), "outputs are done before");
            now.later.clear();
            now.early = Hosts::NONE;
        }
        // It may be old, and is nobody's to go on with.
        self.returns();
        self.is_frozen = true;
        self.rest();
    }

    /// True from [`Page::freeze`] to [`Page::resume`].
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// What a frozen page takes of what survivors had sent before: nobody else has the contents that
    /// come with the ownership. All else is asked for or sent again.
    pub(super) fn absorb(&mut self, from: Host, message: Message) -> Result<(), Violation> {
        let Message::Own {
            epoch,
            contents,
            is_sealed,
            ..
        } = &message
        else {
            return Ok(());
        };
        self.check(from, &message)?;
        (self.owner, self.epoch) = (self.own, *epoch);
        self.is_listed = false;
        self.is_sealed |= *is_sealed;
        self.is_written = true;
        let copies = Hosts::NONE;
        self.role = Role::Becoming { copies };
        if *contents {
            self.output(Output::Take);
        }
        Ok(())
    }

    /// What this host has of the page, and knows; what it keeps for others is the shell's to add.
    /// All messages of before have come ([`crate::coherence::Members::is_drained`]).
    ///
    /// # Panics
    /// When it is not frozen.
    #[must_use]
    pub fn report(&self) -> Report {
        assert!(self.is_frozen, "what is reported stays so");
        let standing = match self.role {
            Role::Other if self.allowed.is_some() => Standing::Copy,
            Role::Other => Standing::Nothing,
            Role::Owner { .. } | Role::Becoming { .. } => Standing::Owner {
                is_written: self.is_written,
                version: self.version,
            },
            Role::Lost => Standing::Lost,
        };
        Report {
            standing,
            epoch: self.epoch,
            owner: self.owner,
            kept: None,
        }
    }

    /// The home has decided. Threads that wait ask again, or are told that the page is lost.
    ///
    /// # Errors
    /// When the verdict does not fit what this host has; nothing has changed then.
    pub fn resume(&mut self, by: Host, verdict: &Verdict) -> Result<(), Violation> {
        if let Some(what) = self.unfit(verdict) {
            return Err(Violation { by, what });
        }
        let was_owner = self.is_owner();
        self.migrates = false;
        self.is_final = false;
        self.is_frozen = false;
        (self.owner, self.epoch) = (verdict.owner, verdict.epoch);
        self.is_listed = verdict.copies.has(self.own);
        if self.under_way.is_some() {
            self.now().asked = None;
        }
        match verdict.owner == self.own {
            true => self.own_after(verdict, was_owner),
            false => {
                self.role = Role::Other;
                self.is_written = false;
            }
        }
        self.want_again();
        self.rest();
        Ok(())
    }

    fn unfit(&self, verdict: &Verdict) -> Option<&'static str> {
        let is_own = verdict.owner == self.own;
        let is_current = verdict.contents == Contents::Current;
        let has = self.allowed.is_some() || self.is_owner();
        let what = if !self.is_frozen {
            "a verdict that nobody waits for"
        } else if verdict.owner.0 >= HOSTS_MAX || verdict.copies.has(verdict.owner) {
            "a verdict for an owner that cannot be"
        } else if verdict.epoch < self.epoch || verdict.epoch > Epoch::MAX {
            "an old verdict"
        } else if self.role == Role::Lost && is_own && is_current {
            "that lost contents are here"
        } else if self.role != Role::Lost && self.is_owner() && !(is_own && is_current) {
            "that a page is another's, which this host has"
        } else if self.role != Role::Lost && has && !is_own && !verdict.copies.has(self.own) {
            "that a copy is none"
        } else if !has && (verdict.copies.has(self.own) || is_own && is_current) {
            "that contents are here which are not"
        } else {
            return None;
        };
        Some(what)
    }

    fn own_after(&mut self, verdict: &Verdict, was_owner: bool) {
        let copies = verdict.copies;
        self.role = Role::Owner { copies };
        match verdict.contents {
            Contents::Current => {
                self.is_written |= !was_owner || !verdict.is_kept;
                if self.allowed != Some(Access::Write) {
                    self.allow(Some(Access::Read));
                }
            }
            Contents::Kept(version) => {
                self.is_written = true;
                self.restore(version);
            }
            Contents::First => {
                self.is_written = false;
                self.restore(Epoch(0));
            }
            Contents::Lost { .. } => {
                self.is_written = false;
                self.role = Role::Lost;
            }
        }
        if self.is_to_settle() && self.role != Role::Lost {
            self.settle(Hosts::NONE);
        }
    }

    fn restore(&mut self, version: Epoch) {
        self.version = version;
        self.output(Output::Restore(version));
        self.allow(Some(Access::Read));
    }

    fn want_again(&mut self) {
        match self.wanted() {
            Some(_) if self.role == Role::Lost => self.tell_lost(),
            Some(access) if allows(self.allowed, access) => self.answer(access),
            Some(_) => self.ask(),
            None => {}
        }
    }

    /// Threads that wait here are told.
    pub(super) fn tell_lost(&mut self) {
        self.now().wanted = None;
        self.now().asked = None;
        self.output(Output::Lost);
    }

    /// The page gets new contents, all of it: it was lost. The shell has put them there. False when
    /// it is not this host that answers for a lost page.
    pub fn reset(&mut self) -> bool {
        let may = self.role == Role::Lost && !self.is_frozen;
        if may {
            self.epoch = Epoch(self.epoch.0 + 1);
            let copies = Hosts::NONE;
            self.role = Role::Owner { copies };
            self.allow(Some(Access::Write));
        }
        may
    }
}
