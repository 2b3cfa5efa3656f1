//! The scheduler of a page of which several hosts may write different parts at once: release
//! consistency.
//!
//! The page has an owner, which stays the same as long as it takes part. Any other host may have a
//! copy. The first time that it writes to that it keeps a twin, the copy as it was, and writes on alone.
//! To release, it sends the owner what differs from the twin (a diff); the owner puts that in its own
//! contents, and says so. To acquire, a host drops its copy, and asks for another when it needs one.
//!
//! What always holds:
//!
//! 1. What a host reads after an acquire has all that was released before that began: a release has
//!    ended when the owner has the diff, and an acquire leaves no copy of before.
//! 2. A host sees what it has written itself: it asks for no copy before the owner has its diff.
//! 3. Only the bytes that a host has changed go to the owner: what others change beside them stays.
//! 4. One diff of a host is on its way at a time; the owner puts them in in the order in which they come.
//! 5. Whoever is let in to a copy keeps it for a while, also against an acquire: every fault is answered.
//!
//! Who is asked and does not own the page (any more) says who does: nothing is sent on.
//!
//! When a host dies, copies are dropped: one may lack what was released, so it is nobody's to go on
//! with. What its owner takes with it is lost. Twins stay, and diffs that nobody confirmed are sent again:
//! putting one in twice changes nothing, since nobody else writes there before it is released.

mod check;
mod crash;
mod message;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use farpage_object::Access;

use crate::coherence::hosts::Host;
use crate::coherence::message::{Epoch, Output, Violation};
use crate::coherence::page::allows;

pub use message::{TwinMessage, TwinOutput};

/// What a host has to do with the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    /// Another owns it.
    Other(Has),
    Owner,
    /// This one answers for it, and its contents are lost.
    Lost,
}

/// What a host has of a page that is another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Has {
    Nothing,
    Copy,
    /// A copy that it may write to, and what that was.
    Twin,
}

/// What a host has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Asked {
    Copy,
    Own,
}

/// Who is told something when the page has come, or its owner has time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Later {
    Ask { by: Host, to_own: bool },
    Diff { by: Host },
}

impl Later {
    fn by(self) -> Host {
        match self {
            Self::Ask { by, .. } | Self::Diff { by } => by,
        }
    }
}

/// Diffs: one after the other is sent and then confirmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Diffs {
    begun: u64,
    done: u64,
}

impl Diffs {
    fn is_under_way(self) -> bool {
        self.begun > self.done
    }
}

/// A diff that is being put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Applying {
    /// What the shell calls it.
    apply: u64,
    /// Whose, and which of its own; `None`: a host has died since, and it comes again.
    of: Option<(Host, u64)>,
}

/// Such a page at one host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Twinned {
    own: Host,
    /// As far as this host knows.
    owner: Host,
    epoch: Epoch,
    role: Role,
    /// What threads here wait for.
    wanted: Option<Access>,
    asked: Option<Asked>,
    /// Threads were let in and have not all run yet.
    is_held: bool,
    is_frozen: bool,
    diffs: Diffs,
    /// Another diff is to follow the one that is on its way.
    is_diff_due: bool,
    /// Copies that have gone.
    drops: u64,
    /// An acquire waits for the copy to go.
    is_drop_due: bool,
    /// The owner leaves, and this host is to have the page.
    is_own_due: bool,
    /// Diffs of others that were put in, or are being.
    applies: u64,
    applying: Vec<Applying>,
    later: Vec<Later>,
    outputs: VecDeque<TwinOutput>,
}

impl Twinned {
    /// A page of `own` that nobody has touched: `owner` owns it, with its first contents.
    #[must_use]
    pub fn new(own: Host, owner: Host) -> Self {
        Self {
            own,
            owner,
            epoch: Epoch(0),
            role: match own == owner {
                true => Role::Owner,
                false => Role::Other(Has::Nothing),
            },
            wanted: None,
            asked: None,
            is_held: false,
            is_frozen: false,
            diffs: Diffs::default(),
            is_diff_due: false,
            drops: 0,
            is_drop_due: false,
            is_own_due: false,
            applies: 0,
            applying: Vec::new(),
            later: Vec::new(),
            outputs: VecDeque::new(),
        }
    }

    /// What tasks of this host may do with the page.
    #[must_use]
    pub fn allowed(&self) -> Option<Access> {
        match self.role {
            Role::Owner | Role::Other(Has::Twin) => Some(Access::Write),
            Role::Other(Has::Copy) => Some(Access::Read),
            Role::Other(Has::Nothing) | Role::Lost => None,
        }
    }

    /// True when this host answers for the page's contents.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        matches!(self.role, Role::Owner | Role::Lost)
    }

    /// True when this host has contents that it may give to another.
    #[must_use]
    pub fn has_to_give(&self) -> bool {
        self.role == Role::Owner
    }

    /// True when this host has a copy and its twin.
    #[must_use]
    pub fn has_twin(&self) -> bool {
        self.role == Role::Other(Has::Twin)
    }

    /// True when something that this host has written is not with the owner yet, as far as it knows.
    #[must_use]
    pub fn is_unreleased(&self) -> bool {
        self.has_twin() || self.diffs.is_under_way()
    }

    /// True when a release or an acquire may be about what this host has, has asked for or has sent.
    #[must_use]
    pub fn is_here(&self) -> bool {
        let has_some = matches!(self.role, Role::Other(Has::Copy | Has::Twin));
        has_some || self.asked == Some(Asked::Copy) || self.diffs.is_under_way()
    }

    /// Who owns the page, as far as this host knows.
    #[must_use]
    pub fn owner(&self) -> Host {
        match self.is_owner() {
            true => self.own,
            false => self.owner,
        }
    }

    /// What threads here wait for.
    #[must_use]
    pub fn wanted(&self) -> Option<Access> {
        self.wanted
    }

    /// True until [`Twinned::let_go`] after an answer.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// True when somebody waits for threads here to let go of what they were let in to.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        let has_copy = matches!(self.role, Role::Other(Has::Copy | Has::Twin));
        let goes = has_copy && (self.is_drop_due || self.is_own_due);
        self.is_held && (goes || self.role == Role::Owner && !self.later.is_empty())
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<TwinOutput> {
        self.outputs.pop_front()
    }

    /// A thread of this host waits for an access.
    pub fn fault(&mut self, access: Access) {
        if allows(self.allowed(), access) {
            return self.answer(access);
        }
        if self.role == Role::Lost && !self.is_frozen {
            return self.does(Output::Lost);
        }
        if self.wanted != Some(Access::Write) {
            self.wanted = Some(access);
        }
        self.catch_up();
    }

    /// What was written here until now is to be with the owner. The number of the diff that has it then
    /// ([`Twinned::has_released`]); `None`: it is.
    pub fn release(&mut self) -> Option<u64> {
        let is_under_way = self.diffs.is_under_way();
        if !self.has_twin() {
            return is_under_way.then_some(self.diffs.begun);
        }
        self.is_diff_due = true;
        let number = self.diffs.begun + 1;
        self.catch_up();
        Some(number)
    }

    /// True when the owner has the diff of this number, or it is known to be lost.
    #[must_use]
    pub fn has_released(&self, number: u64) -> bool {
        self.diffs.done >= number
    }

    /// No thread here is to read what was here until now, if that may be old. Which drop that is
    /// ([`Twinned::has_acquired`]); `None`: it is so.
    pub fn acquire(&mut self) -> Option<u64> {
        let has_some = matches!(self.role, Role::Other(Has::Copy | Has::Twin));
        if !has_some && self.asked != Some(Asked::Copy) {
            return None;
        }
        self.is_drop_due = true;
        let number = self.drops + 1;
        self.catch_up();
        (!self.has_acquired(number)).then_some(number)
    }

    /// True when what was here then has gone.
    #[must_use]
    pub fn has_acquired(&self, number: u64) -> bool {
        self.drops >= number
    }

    /// The owner leaves: this host is to own the page.
    pub fn take_over(&mut self) {
        if !self.is_owner() && self.asked != Some(Asked::Own) {
            self.is_own_due = true;
            self.catch_up();
        }
    }

    /// The threads that were let in have run, or had time enough.
    pub fn let_go(&mut self) {
        self.is_held = false;
        self.catch_up();
    }

    /// The copy has gone to have room. False when there is none that may.
    pub fn forget(&mut self) -> bool {
        let may = self.role == Role::Other(Has::Copy) && !self.is_held;
        if may {
            self.drop_copy();
            self.catch_up();
        }
        may
    }

    /// Nothing was changed since the twin was kept, so that no diff was sent.
    ///
    /// # Panics
    /// When no diff is under way.
    pub fn unchanged(&mut self) {
        assert!(self.diffs.is_under_way(), "what differs is looked for once");
        self.diffs.done = self.diffs.begun;
        self.catch_up();
    }

    /// A diff is in the page.
    ///
    /// # Panics
    /// When it was not to be put in.
    pub fn applied(&mut self, apply: u64) {
        self.ends_putting(apply, |number| TwinMessage::Applied { number });
    }

    /// A diff cannot be put in the page, which cannot be read: who sent it is told that it is lost.
    ///
    /// # Panics
    /// When it was not to be put in.
    pub fn not_applied(&mut self, apply: u64) {
        self.ends_putting(apply, |_| TwinMessage::Lost);
    }

    /// A message has come.
    ///
    /// # Errors
    /// [`Violation`]; nothing has changed then.
    pub fn handle(&mut self, from: Host, message: TwinMessage) -> Result<(), Violation> {
        self.check(from, message)?;
        if self.is_frozen {
            self.absorb(message);
            return Ok(());
        }
        match message {
            TwinMessage::Ask { to_own } => self.later.push(Later::Ask { by: from, to_own }),
            TwinMessage::Diff { number } => self.diff_came(from, number),
            TwinMessage::Copy => self.copy_came(),
            TwinMessage::Own { epoch } => {
                self.own_came(epoch);
                self.answer(self.wanted.unwrap_or(Access::Write));
            }
            TwinMessage::Applied { number } => {
                self.diffs.done = self.diffs.done.max(number);
            }
            TwinMessage::Elsewhere { owner } => self.is_elsewhere(owner),
            TwinMessage::Lost => self.lost_came(),
        }
        self.catch_up();
        Ok(())
    }

    fn ends_putting(&mut self, apply: u64, says: fn(u64) -> TwinMessage) {
        let at = self.applying.iter().position(|one| one.apply == apply);
        let one = self
            .applying
            .swap_remove(at.expect("a diff is put in once"));
        if let Some((of, number)) = one.of {
            self.send(of, says(number));
        }
        self.catch_up();
    }

    fn diff_came(&mut self, from: Host, number: u64) {
        match self.role {
            Role::Owner => {
                self.applies += 1;
                let (apply, of) = (self.applies, Some((from, number)));
                self.applying.push(Applying { apply, of });
                self.outputs.push_back(TwinOutput::Apply(apply));
            }
            Role::Lost => self.send(from, TwinMessage::Lost),
            // Who sent it has it still.
            Role::Other(_) => self.later.push(Later::Diff { by: from }),
        }
    }

    fn copy_came(&mut self) {
        self.asked = None;
        self.does(Output::Take);
        let access = self.wanted.unwrap_or(Access::Read);
        match access {
            Access::Read => {
                self.role = Role::Other(Has::Copy);
                self.does(Output::Allow(Some(Access::Read)));
                self.answer(Access::Read);
            }
            Access::Write => self.begins_to_write(),
        }
    }

    fn begins_to_write(&mut self) {
        self.role = Role::Other(Has::Twin);
        self.outputs.push_back(TwinOutput::Twin);
        self.does(Output::Allow(Some(Access::Write)));
        self.answer(Access::Write);
    }

    fn own_came(&mut self, epoch: Epoch) {
        self.asked = None;
        self.is_own_due = false;
        (self.owner, self.epoch) = (self.own, epoch);
        self.role = Role::Owner;
        self.does(Output::Take);
        self.does(Output::Allow(Some(Access::Write)));
    }

    fn is_elsewhere(&mut self, owner: Host) {
        self.owner = owner;
        if self.diffs.is_under_way() {
            let number = self.diffs.begun;
            self.outputs
                .push_back(TwinOutput::Again { to: owner, number });
        } else if let Some(asked) = self.asked {
            let to_own = asked == Asked::Own;
            self.send(owner, TwinMessage::Ask { to_own });
        }
    }

    fn lost_came(&mut self) {
        self.loses_copy();
        self.asked = None;
        self.is_own_due = false;
        self.tell_lost();
    }

    /// Does what had to wait and need not any more.
    fn catch_up(&mut self) {
        if self.is_frozen {
            return;
        }
        self.tells_who_waits();
        match self.role {
            Role::Other(has) => self.catches_up(has),
            Role::Owner | Role::Lost => self.has_dropped(),
        }
    }

    /// Answers others, as far as it is known what.
    fn tells_who_waits(&mut self) {
        let mut at = 0;
        while let Some(later) = self.later.get(at).copied() {
            let is_busy = self.is_held || !self.applying.is_empty();
            let waits = match (self.role, later) {
                (Role::Other(_), _) => self.asked == Some(Asked::Own),
                (Role::Owner, Later::Ask { to_own, .. }) => to_own && is_busy,
                (Role::Owner | Role::Lost, _) => false,
            };
            if waits {
                at += 1;
                continue;
            }
            self.later.remove(at);
            match (self.role, later) {
                (Role::Owner, Later::Ask { by, to_own: true }) => {
                    self.gives(by);
                    at = 0;
                }
                (Role::Owner, Later::Ask { by, to_own: false }) => self.send(by, TwinMessage::Copy),
                (Role::Lost, Later::Ask { by, .. }) => self.send(by, TwinMessage::Lost),
                (Role::Other(_), _) | (Role::Owner | Role::Lost, Later::Diff { .. }) => {
                    let owner = self.owner();
                    self.send(later.by(), TwinMessage::Elsewhere { owner });
                }
            }
        }
    }

    /// Another host owns the page from now on.
    fn gives(&mut self, to: Host) {
        let epoch = Epoch(self.epoch.0 + 1);
        // Nobody writes what is not seen any more.
        self.does(Output::Allow(Some(Access::Read)));
        self.does(Output::Withdraw);
        self.send(to, TwinMessage::Own { epoch });
        self.does(Output::Allow(None));
        (self.owner, self.epoch) = (to, epoch);
        self.role = Role::Other(Has::Nothing);
    }

    fn catches_up(&mut self, has: Has) {
        let goes = self.is_drop_due || self.is_own_due;
        let may_send = !self.diffs.is_under_way();
        match has {
            Has::Twin if may_send && (self.is_diff_due || goes && !self.is_held) => {
                self.sends_diff();
                self.catches_up(Has::Copy);
            }
            Has::Copy if goes && !self.is_held => {
                self.drop_copy();
                self.catches_up(Has::Nothing);
            }
            Has::Copy if self.wanted == Some(Access::Write) => self.begins_to_write(),
            Has::Twin | Has::Copy => {}
            Has::Nothing => {
                if self.asked != Some(Asked::Copy) {
                    self.has_dropped();
                }
                if may_send {
                    self.ask();
                }
            }
        }
    }

    fn sends_diff(&mut self) {
        self.is_diff_due = false;
        self.role = Role::Other(Has::Copy);
        self.does(Output::Allow(Some(Access::Read)));
        self.diffs.begun += 1;
        let (to, number) = (self.owner, self.diffs.begun);
        self.outputs.push_back(TwinOutput::Diff { to, number });
    }

    fn drop_copy(&mut self) {
        self.role = Role::Other(Has::Nothing);
        self.is_drop_due = true;
        self.has_dropped();
        self.does(Output::Allow(None));
    }

    /// Nothing is here that an acquire waits for to go.
    fn has_dropped(&mut self) {
        if core::mem::take(&mut self.is_drop_due) {
            self.drops += 1;
        }
    }

    fn ask(&mut self) {
        if self.asked.is_some() {
            return;
        }
        let asked = match (self.is_own_due, self.wanted) {
            (true, _) => Asked::Own,
            (false, Some(_)) => Asked::Copy,
            (false, None) => return,
        };
        self.asked = Some(asked);
        let to_own = asked == Asked::Own;
        self.send(self.owner, TwinMessage::Ask { to_own });
    }

    fn answer(&mut self, access: Access) {
        if self
            .wanted
            .is_some_and(|wanted| allows(self.allowed(), wanted))
        {
            self.wanted = None;
        }
        self.is_held = true;
        // Whoever waits to write as well may, where this host may.
        let access = self.allowed().unwrap_or(access);
        self.does(Output::Answer(access));
    }

    fn does(&mut self, output: Output) {
        self.outputs.push_back(TwinOutput::As(output));
    }

    fn send(&mut self, to: Host, message: TwinMessage) {
        self.outputs.push_back(TwinOutput::Send(to, message));
    }

    /// Threads that wait here are told.
    fn tell_lost(&mut self) {
        if self.wanted.take().is_some() {
            self.does(Output::Lost);
        }
    }
}
