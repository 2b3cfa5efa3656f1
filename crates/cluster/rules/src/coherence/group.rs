//! A page of a host whose pages are larger than the object's: all units of it, or nothing.
//!
//! An object is shared in units of the smallest page of any of its hosts. A host with larger pages
//! can map one only when it may do the same with all its units, but others ask for units one by one.
//! So a group asks for all that it lacks at once, and keeps units in ascending order only: one that
//! comes before all lower ones are here may be taken away again, and is asked for again in its turn.
//! Whoever holds units and waits thus waits for a higher one, and nobody waits in a circle; since
//! what is held stays, each group gets on by a unit at a time, however busy small hosts are.
//!
//! What is taken away is a unit: the others stay, and asking for one again costs what a page costs.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use farpage_object::Access;

use crate::coherence::hosts::Host;
use crate::coherence::message::{Message, Output, Violation};
use crate::coherence::page::{Page, allows};

/// What the shell does for a group, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum GroupOutput {
    /// What a unit says, except its answers: contents are those of the unit, and what it allows is
    /// about its contents only.
    Unit(usize, Output),
    /// Tasks may do so much with the host's page from now on.
    Allow(Option<Access>),
    /// Threads that wait for this access go on; [`Group::let_go`] as with [`Output::Answer`].
    Answer(Access),
    /// Threads that wait are told that contents of the page are lost.
    Lost,
    /// The same, that nobody may write any more.
    Sealed,
}

/// Units are being brought together, and the lowest of them held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Round {
    access: Access,
    held: usize,
}

/// The units of one page of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    units: Vec<Page>,
    allowed: Option<Access>,
    round: Option<Round>,
    /// Threads want to write, and the round is one to read that has been answered.
    then_write: bool,
    outputs: VecDeque<GroupOutput>,
}

impl Group {
    /// The units of a page, in ascending order.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn new(units: Vec<Page>) -> Self {
        assert!(!units.is_empty(), "a page has units");
        let allowed = least(&units);
        Self {
            units,
            allowed,
            round: None,
            then_write: false,
            outputs: VecDeque::new(),
        }
    }

    /// What tasks of this host may do with all of it.
    #[must_use]
    pub fn allowed(&self) -> Option<Access> {
        self.allowed
    }

    /// Its units.
    #[must_use]
    pub fn units(&self) -> &[Page] {
        &self.units
    }

    /// What threads here wait for.
    #[must_use]
    pub fn wanted(&self) -> Option<Access> {
        match self.round {
            Some(round) if !self.is_complete(round) => Some(round.access),
            Some(_) | None => self.then_write.then_some(Access::Write),
        }
    }

    /// True until [`Group::let_go`] after an answer.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.round.is_some_and(|round| self.is_complete(round))
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<GroupOutput> {
        self.outputs.pop_front()
    }

    /// A thread of this host waits for an access.
    pub fn fault(&mut self, access: Access) {
        if allows(self.allowed, access) {
            return self.outputs.push_back(GroupOutput::Answer(access));
        }
        match self.round {
            None => self.begin(access),
            Some(round) if allows(Some(round.access), access) => {}
            // What it holds to read cannot be held while it asks for lower ones to write.
            Some(round) if !self.is_complete(round) => {
                self.release();
                self.begin(access);
            }
            Some(_) => self.then_write = true,
        }
    }

    /// The threads that were answered have run, or had time enough.
    pub fn let_go(&mut self) {
        if !self.is_held() {
            return;
        }
        self.release();
        if core::mem::take(&mut self.then_write) {
            self.fault(Access::Write);
        }
    }

    /// A message about a unit has come.
    ///
    /// # Errors
    /// [`Violation`]; nothing has changed then.
    ///
    /// # Panics
    /// When there is no such unit.
    pub fn handle(&mut self, unit: usize, from: Host, message: Message) -> Result<(), Violation> {
        self.at(unit, |page| page.handle(from, message))
    }

    /// Does something else to a unit: freezes or resumes it, mirrors it, drops its copy.
    ///
    /// # Panics
    /// When there is no such unit.
    pub fn at<R>(&mut self, unit: usize, act: impl FnOnce(&mut Page) -> R) -> R {
        let result = act(&mut self.units[unit]);
        self.drain(unit);
        self.hold_more();
        result
    }

    fn is_complete(&self, round: Round) -> bool {
        round.held == self.units.len()
    }

    fn begin(&mut self, access: Access) {
        self.round = Some(Round { access, held: 0 });
        for unit in 0..self.units.len() {
            self.ask(unit, access);
        }
        self.hold_more();
    }

    fn ask(&mut self, unit: usize, access: Access) {
        let page = &mut self.units[unit];
        let wants = page
            .wanted()
            .is_some_and(|wanted| allows(Some(wanted), access));
        if !allows(page.allowed(), access) && !wants {
            page.fault(access);
            self.drain(unit);
        }
    }

    /// Holds the next units as far as they are here, and asks for the first that is not.
    fn hold_more(&mut self) {
        while let Some(round) = self.round.filter(|round| !self.is_complete(*round)) {
            let unit = round.held;
            if !self.units[unit].hold(round.access) {
                return self.ask(unit, round.access);
            }
            let held = unit + 1;
            self.round = Some(Round { held, ..round });
            if held == self.units.len() {
                self.outputs.push_back(GroupOutput::Answer(round.access));
            }
        }
    }

    /// Holds nothing any more.
    fn release(&mut self) {
        let held = self.round.take().map_or(0, |round| round.held);
        for unit in 0..held {
            self.units[unit].let_go();
            self.drain(unit);
        }
    }

    /// Passes on what a unit says. The host's page is taken away before a unit of it is, and given
    /// after.
    fn drain(&mut self, unit: usize) {
        let mut over = None;
        loop {
            let least = least(&self.units);
            if rank(least) < rank(self.allowed) {
                self.allow(least);
            }
            let Some(output) = self.units[unit].poll_output() else {
                break;
            };
            match output {
                Output::Answer(_) if !self.keeps(unit) => self.units[unit].let_go(),
                Output::Answer(_) => {}
                Output::Lost => over = Some(GroupOutput::Lost),
                Output::Sealed => over = Some(GroupOutput::Sealed),
                Output::Send(..)
                | Output::Show { .. }
                | Output::Keep(_)
                | Output::Restore(_)
                | Output::Take
                | Output::Withdraw
                | Output::Allow(_) => self.outputs.push_back(GroupOutput::Unit(unit, output)),
            }
        }
        let least = least(&self.units);
        if least != self.allowed {
            self.allow(least);
        }
        if let Some(over) = over {
            self.then_write = false;
            self.release();
            self.outputs.push_back(over);
        }
    }

    fn allow(&mut self, access: Option<Access>) {
        self.allowed = access;
        self.outputs.push_back(GroupOutput::Allow(access));
    }

    /// True when a unit that is here is held, or is the next to be.
    fn keeps(&self, unit: usize) -> bool {
        self.round.is_some_and(|round| {
            let is_next = unit == round.held && allows(self.units[unit].allowed(), round.access);
            unit < round.held || is_next
        })
    }
}

/// What may be done with all units.
fn least(units: &[Page]) -> Option<Access> {
    let all = units.iter().map(Page::allowed);
    all.min_by_key(|allowed| rank(*allowed)).flatten()
}

fn rank(allowed: Option<Access>) -> u8 {
    match allowed {
        None => 0,
        Some(Access::Read) => 1,
        Some(Access::Write) => 2,
    }
}
