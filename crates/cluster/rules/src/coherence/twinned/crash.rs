//! Such a page when a host has died: it stops, tells what it has, and goes on as it is told.

use farpage_object::Access;

use super::{Has, Role, TwinMessage, TwinOutput, Twinned};
use crate::coherence::hosts::{HOSTS_MAX, Host};
use crate::coherence::message::{Epoch, Output, Violation};
use crate::coherence::recovery::{Contents, Report, Standing, Verdict};

impl Twinned {
    /// A host has died, and pages are about to be frozen: a copy that nobody wrote to is dropped. What is
    /// to be done for that is done before [`Twinned::freeze`].
    pub fn give_up_copy(&mut self) {
        if self.role == Role::Other(Has::Copy) && !self.is_frozen {
            self.drop_copy();
        }
    }

    /// A host has died: until the verdict the page sends nothing, and takes of what comes only the
    /// ownership. Who may write does on.
    ///
    /// # Panics
    /// When outputs were left.
    pub fn freeze(&mut self) {
        assert!(self.outputs.is_empty(), "outputs are done before");
        self.later.clear();
        self.applying.iter_mut().for_each(|one| one.of = None);
        self.is_frozen = true;
    }

    /// True from [`Twinned::freeze`] to [`Twinned::resume`].
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// What a frozen page takes of what survivors had sent before. All else is asked for, or sent, again.
    pub(super) fn absorb(&mut self, message: TwinMessage) {
        if let TwinMessage::Own { epoch } = message {
            self.own_came(epoch);
        }
    }

    /// What this host has of the page, and knows. Copies do not count.
    ///
    /// # Panics
    /// When it is not frozen.
    #[must_use]
    pub fn report(&self) -> Report {
        assert!(self.is_frozen, "what is reported stays so");
        let standing = match self.role {
            Role::Other(_) => Standing::Nothing,
            Role::Owner => Standing::Owner {
                is_written: true,
                version: self.epoch,
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

    /// The home has decided. Diffs that nobody confirmed go to the owner, and threads that wait ask again
    /// or are told that the page is lost.
    ///
    /// # Errors
    /// When the verdict does not fit what this host has; nothing has changed then.
    pub fn resume(&mut self, by: Host, verdict: &Verdict) -> Result<(), Violation> {
        if let Some(what) = self.unfit(verdict) {
            return Err(Violation { by, what });
        }
        self.is_frozen = false;
        (self.owner, self.epoch) = (verdict.owner, verdict.epoch);
        (self.asked, self.is_own_due) = (None, false);
        match verdict.owner == self.own {
            true => self.own_after(verdict.contents),
            false if self.diffs.is_under_way() => {
                let (to, number) = (self.owner, self.diffs.begun);
                self.outputs.push_back(TwinOutput::Again { to, number });
            }
            false => {}
        }
        self.catch_up();
        Ok(())
    }

    fn unfit(&self, verdict: &Verdict) -> Option<&'static str> {
        let is_own = verdict.owner == self.own;
        let is_current = verdict.contents == Contents::Current;
        let what = if !self.is_frozen {
            "a verdict that nobody waits for"
        } else if verdict.owner.0 >= HOSTS_MAX || matches!(verdict.contents, Contents::Kept(_)) {
            "a verdict for an owner, or of contents, that cannot be"
        } else if verdict.epoch < self.epoch || verdict.epoch > Epoch::MAX {
            "an old verdict"
        } else if self.role == Role::Owner && !(is_own && is_current) {
            "that a page is another's, which this host has"
        } else if self.role != Role::Owner && is_own && is_current {
            "that contents are here which are not"
        } else {
            return None;
        };
        Some(what)
    }

    fn own_after(&mut self, contents: Contents) {
        if self.role != Role::Owner {
            self.loses_copy();
        }
        match contents {
            Contents::Current | Contents::Kept(_) => {}
            Contents::First => {
                self.role = Role::Owner;
                self.does(Output::Restore(Epoch(0)));
                self.does(Output::Allow(Some(Access::Write)));
            }
            Contents::Lost { .. } => self.role = Role::Lost,
        }
        if self.role == Role::Lost {
            self.tell_lost();
        } else if let Some(wanted) = self.wanted {
            self.answer(wanted);
        }
    }

    /// The page is lost, and with it what was to be put in it.
    pub(super) fn loses_copy(&mut self) {
        let is_unreleased = self.is_unreleased();
        // The diff that was to follow counts as well.
        self.diffs.begun += u64::from(self.has_twin());
        if matches!(self.role, Role::Other(Has::Copy | Has::Twin)) {
            self.is_diff_due = false;
            self.drop_copy();
        }
        // Who is told of it reads nothing of it any more.
        if is_unreleased {
            self.diffs.done = self.diffs.begun;
            self.outputs.push_back(TwinOutput::DiffLost);
        }
    }
}
