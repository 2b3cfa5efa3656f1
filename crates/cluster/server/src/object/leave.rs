//! What a shared object gives to others when this host leaves.

use farpage_object::Access;
use farpage_rules::coherence::{Host, Hosts, Known, Message, TwinMessage, Violation};
use farpage_sys::lock;

use super::{FENCED, Kind, NotTaken, Shared};
use crate::cell::{Cell, Event};
use crate::server::Stage;
use crate::units::Units;

/// What is known of units that nobody has, when their home has gone.
#[derive(Default)]
pub(super) struct Untouched {
    /// What the home has touched, which is about to leave and lets nobody touch more.
    told: Option<Units>,
    /// What was touched before, or since, of an object whose home before this one left so: the rest is
    /// zeros. `None`: a home has died, and may have written to all.
    touched: Option<Units>,
}

impl Shared {
    /// Units that this host has to give, and who has copies of each.
    pub(crate) fn to_give(&self) -> Vec<(u64, Hosts)> {
        if self.ends_with_this_host() {
            return Vec::new();
        }
        let mut all = Vec::new();
        for part in &self.cells {
            let part = lock(part);
            let of = part.iter();
            all.extend(of.filter_map(|(unit, cell)| Some((*unit, cell.unit.to_give()?))));
        }
        all.sort_unstable_by_key(|(unit, _)| *unit);
        all
    }

    /// True when this host has yet to give a unit.
    pub(crate) fn has_to_give(&self, unit: u64) -> bool {
        let part = self.part(unit);
        part.get(&unit)
            .is_some_and(|cell| cell.unit.to_give().is_some())
    }

    /// A host that leaves has a unit: this one wants it, unless it leaves too.
    pub(crate) fn takes_over(&self, unit: u64) {
        if self.shell.stage() == Stage::Stays && !self.has_to_give(unit) {
            // No peer has to do with it.
            let _ = self.happens(unit, Event::TakeOver);
        }
    }

    /// True while threads of this host still wait for something, so that it may yet come, or what they
    /// wrote is not with its owner.
    pub(crate) fn waits(&self) -> bool {
        let waits = |cell: &Cell| cell.unit.wanted().is_some() || cell.unit.is_unreleased();
        self.cells.iter().any(|part| lock(part).values().any(waits))
    }

    pub(crate) fn is_home(&self) -> bool {
        self.home() == self.shell.own
    }

    /// Nobody can have it without its home, which is this host.
    pub(crate) fn ends_with_this_host(&self) -> bool {
        self.is_home() && (self.is_simple() || self.is_durable())
    }

    /// True when all of it is with its home.
    pub(crate) fn is_simple(&self) -> bool {
        self.simple().is_some()
    }

    /// What others have to know when this host, its home, leaves: all that it has touched. `None` when
    /// they need not, or it does not know.
    pub(crate) fn touched_at_home(&self) -> Option<Units> {
        let home = *lock(&self.home);
        let is_told = matches!(self.kind, Kind::Plain | Kind::Twinned(_)) && !self.has_file();
        if home.host != self.shell.own || !is_told {
            return None;
        }
        let mut touched = match home.is_next {
            true => lock(&self.untouched).touched.clone()?,
            false => Units::default(),
        };
        self.touched()
            .into_iter()
            .for_each(|unit| touched.add(unit));
        Some(touched)
    }

    /// Its home leaves, and has told what it touched.
    pub(crate) fn home_leaves(&self, from: Host, touched: Units) -> Result<(), Violation> {
        if from != self.home() {
            let what = "what the home of an object has touched, and is not its home";
            return Err(Violation { by: from, what });
        }
        // A host has died: the home goes on for now, and tells it again.
        if !self.shell.is_frozen() {
            lock(&self.untouched).told = Some(touched);
        }
        Ok(())
    }

    /// Hosts have died or left, perhaps the home.
    pub(super) fn home_has_gone(&self, has_gone: bool) {
        let mut untouched = lock(&self.untouched);
        let told = untouched.told.take();
        if has_gone {
            untouched.touched = told;
        }
    }

    /// What is known of a unit that survivors tell of, and of which none has the contents.
    pub(crate) fn known_of_told(&self, unit: u64) -> Known {
        match self.mirrored() {
            Some(mirrored) if lock(mirrored).loses_several => Known::Nothing,
            Some(_) => Known::Mirrored,
            None => self.known(unit),
        }
    }

    /// Several hosts have died since all went on after a death.
    pub(crate) fn loses_several(&self) {
        let is_next = lock(&self.home).is_next;
        if let Some(mirrored) = self.mirrored() {
            let mut state = lock(mirrored);
            state.loses_several = true;
            state.has_lost_home |= is_next;
        }
    }

    /// What is known of a unit that no survivor tells of.
    pub(crate) fn known(&self, unit: u64) -> Known {
        if let Some(mirrored) = self.mirrored() {
            return match lock(mirrored).has_lost_home {
                true => Known::Nothing,
                false => Known::Mirrored,
            };
        }
        let touched = &lock(&self.untouched).touched;
        match touched {
            Some(touched) if !touched.has(unit) => Known::NeverWritten,
            Some(_) | None => Known::Nothing,
        }
    }

    /// From now on somebody may write to a unit.
    pub(super) fn is_touched(&self, unit: u64) {
        if let Some(touched) = &mut lock(&self.untouched).touched {
            touched.add(unit);
        }
    }

    /// What happens to a unit, if it still does while this host leaves: its threads get no more.
    pub(super) fn as_it_leaves(&self, unit: u64, event: Event) -> Option<Event> {
        match (self.shell.stage(), event) {
            (Stage::Stays, event) => Some(event),
            (Stage::Gives | Stage::Closed | Stage::Goes, Event::Lock(locking)) => {
                self.answers_lock(&locking, Err(NotTaken::Failed(FENCED)));
                None
            }
            // A diff needs the page that it is put in.
            (_, event @ Event::Wanted(_)) if self.is_applying(unit) => Some(event),
            (Stage::Gives | Stage::Closed | Stage::Goes, Event::Wanted(ticket)) => {
                lock(&self.failures).insert(unit, FENCED);
                ticket.fail(FENCED);
                None
            }
            (
                Stage::Closed | Stage::Goes,
                Event::Came {
                    message: Message::Request(_),
                    ..
                },
            )
            | (
                Stage::Closed | Stage::Goes,
                Event::Twin {
                    message: TwinMessage::Ask { .. } | TwinMessage::Diff { .. },
                    ..
                },
            ) => None,
            (
                Stage::Gives | Stage::Closed | Stage::Goes,
                event @ (Event::Unlock | Event::TakeOver),
            ) => {
                let allowed = self.part(unit).get(&unit)?.unit.allowed();
                match allowed {
                    Some(Access::Write) => Some(event),
                    // It is told when the unit goes.
                    Some(Access::Read) | None => {
                        self.forgets(unit);
                        None
                    }
                }
            }
            (Stage::Gives | Stage::Closed | Stage::Goes, event) => Some(event),
        }
    }

    fn forgets(&self, unit: u64) {
        let forget = |cell: &mut Cell| {
            if cell.unit.to_give().is_none() {
                cell.unit.let_go();
                cell.unit.forget();
            }
        };
        // No peer has to do with it.
        let _ = self.acts(unit, |_| {
            self.with(unit, forget);
            Ok(Ok(()))
        });
    }
}
