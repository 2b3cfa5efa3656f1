//! Units that programs have locked at this host: others do not take them away.
//!
//! Of a lock the units are taken in their order, each when it is here: as if a thread had touched it. A copy
//! is then kept as what nobody else has; Linux could drop it otherwise.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use farpage_object::{Access, PagerError};
use farpage_sys::lock;

use super::{FENCED, Kind, SEALED, Shared, UNREADABLE};
use crate::cell::{Cell, Event};
use crate::unit::Places;

/// Why units are not locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// Its scheduler has no locks.
    Kind,
    /// This host has some of it locked to read, and wants to write.
    Exchanged,
    /// A unit cannot be had.
    Failed(PagerError),
    /// Who asked does not want it any more.
    GivenUp,
}

/// Is told how locking has ended, perhaps within an event of the object.
pub(crate) type OnLocked = Box<dyn FnOnce(Result<(), NotTaken>) + Send>;

/// A lock of some units that is being taken.
pub(crate) struct Locking {
    units: Range<u64>,
    access: Access,
    state: Mutex<State>,
}

struct State {
    /// The unit that is asked for.
    at: u64,
    /// What became of it.
    answer: Option<Result<(), NotTaken>>,
    /// Who asked has gone away: whoever answers goes on.
    is_left: bool,
    /// It waits for no unit that has to come.
    is_given_up: bool,
    on_end: Option<OnLocked>,
}

/// What a unit does when it is to be locked.
enum Tried {
    Taken,
    Refused(NotTaken),
    /// It has to come first, for this access.
    Wants(Access),
}

impl Shared {
    /// Keeps units at this host, for at least this access, from when `on_end` is told. What [`Shared::gives_up`]
    /// wants, unless it has ended already.
    pub(crate) fn locks(
        &self,
        units: Range<u64>,
        access: Access,
        on_end: OnLocked,
    ) -> Option<Arc<Locking>> {
        let why = match (&self.kind, units.is_empty()) {
            (Kind::Twinned(_) | Kind::Simple(_), _) => Some(NotTaken::Kind),
            (Kind::Plain | Kind::Mirrored(_), true) => {
                on_end(Ok(()));
                return None;
            }
            (Kind::Plain | Kind::Mirrored(_), false) => self.over().map(NotTaken::Failed),
        };
        if let Some(why) = why {
            on_end(Err(why));
            return None;
        }
        let state = State {
            at: units.start,
            answer: None,
            is_left: false,
            is_given_up: false,
            on_end: Some(on_end),
        };
        let locking = Locking {
            units,
            access,
            state: Mutex::new(state),
        };
        let locking = Arc::new(locking);
        self.locks_next(&locking);
        Some(locking)
    }

    /// Who asked for units waits for none of them from now on. When all that are left are at this host, they are
    /// locked; else what it has of them is given back. `on_end` is told, unless it has been.
    pub(crate) fn gives_up(&self, locking: &Arc<Locking>) {
        let at = {
            let mut state = lock(&locking.state);
            state.is_given_up = true;
            state.at
        };
        // No peer has to do with it.
        let _ = self.happens(at, Event::GiveUp(Arc::clone(locking)));
    }

    /// Whether all of them are locked for this access.
    pub(crate) fn has_locked(&self, mut units: Range<u64>, access: Access) -> bool {
        self.over().is_none()
            && units.all(|unit| {
                let mut part = self.part(unit);
                let page = part.get_mut(&unit).and_then(|cell| cell.unit.page());
                page.is_some_and(|page| page.has_lock(access))
            })
    }

    /// Gives back what was locked so.
    pub(crate) fn unlocks_units(&self, units: Range<u64>, access: Access) {
        for unit in units {
            // No peer has to do with it.
            let _ = self.happens(unit, Event::GiveBack(access));
        }
    }

    /// Asks for one unit after the other, until one does not answer at once.
    fn locks_next(&self, locking: &Arc<Locking>) {
        loop {
            let unit = lock(&locking.state).at;
            // No peer has to do with it.
            let _ = self.happens(unit, Event::Lock(Arc::clone(locking)));
            if !self.locks_on(locking) {
                return;
            }
        }
    }

    /// Looks at the answer. False when there is none yet, or all is over.
    fn locks_on(&self, locking: &Locking) -> bool {
        let mut state = lock(&locking.state);
        let ended = match state.answer.take() {
            None => {
                state.is_left = true;
                return false;
            }
            Some(Ok(())) if state.at + 1 < locking.units.end => {
                state.at += 1;
                return true;
            }
            Some(ended) => ended,
        };
        let (at, on_end) = (state.at, state.on_end.take());
        drop(state);
        if ended.is_err() {
            self.unlocks_units(locking.units.start..at, locking.access);
        }
        if let Some(on_end) = on_end {
            on_end(ended);
        }
        false
    }

    /// What became of the unit that was asked for.
    pub(super) fn answers_lock(&self, locking: &Arc<Locking>, answer: Result<(), NotTaken>) {
        let is_left = {
            let mut state = lock(&locking.state);
            state.answer = Some(answer);
            std::mem::take(&mut state.is_left)
        };
        if is_left && self.locks_on(locking) {
            self.locks_next(locking);
        }
    }

    /// Event::Lock.
    pub(super) fn is_to_lock(
        &self,
        places: &Places<'_>,
        unit: u64,
        locking: Arc<Locking>,
    ) -> Result<(), PagerError> {
        self.with(unit, |cell| cell.locking.push(locking));
        self.takes_locks(places, unit)
    }

    /// Event::GiveUp.
    pub(super) fn gives_up_lock(
        &self,
        places: &Places<'_>,
        unit: u64,
        locking: &Arc<Locking>,
    ) -> Result<(), PagerError> {
        let is_it = |one: &mut Arc<Locking>| Arc::ptr_eq(one, locking);
        let waited = self.with(unit, |cell| {
            cell.locking.extract_if(.., is_it).next().is_some()
        });
        if waited {
            self.answers_lock(locking, Err(NotTaken::GivenUp));
        }
        // Others may have waited behind it.
        self.takes_locks(places, unit)
    }

    /// Event::GiveBack.
    pub(super) fn gives_lock_back(&self, unit: u64, access: Access) {
        self.with(unit, |cell| {
            // A host that leaves has given it back already.
            if let Some(page) = cell.unit.page().filter(|page| page.has_lock(access)) {
                page.unlock(access);
            }
        });
    }

    /// Event::GiveAllBack.
    pub(super) fn gives_locks_back(&self, unit: u64) {
        self.with(unit, |cell| {
            let Some(page) = cell.unit.page() else { return };
            for access in [Access::Read, Access::Write] {
                while page.has_lock(access) {
                    page.unlock(access);
                }
            }
        });
        self.refuses_locks(unit, NotTaken::Failed(FENCED), |_| true);
    }

    /// This host leaves: others get what programs have locked.
    pub(crate) fn gives_all_locks_back(&self) {
        for unit in self.touched() {
            // No peer has to do with it.
            let _ = self.happens(unit, Event::GiveAllBack);
        }
    }

    /// Those who wait to lock a unit are refused.
    pub(super) fn refuses_locks(&self, unit: u64, why: NotTaken, of: impl Fn(Access) -> bool) {
        let refused: Vec<_> = self.with(unit, |cell| {
            let locking = cell
                .locking
                .extract_if(.., |one| of(self.needs(one.access)));
            locking.collect()
        });
        for one in refused {
            self.answers_lock(&one, Err(why));
        }
    }

    /// What this host has to be allowed to lock for an access: copies that are lent go by themselves.
    fn needs(&self, access: Access) -> Access {
        match self.about.stale {
            Some(_) => Access::Write,
            None => access,
        }
    }

    /// Locks a unit for all who want that, as far as it is here; else it is asked for.
    pub(super) fn takes_locks(&self, places: &Places<'_>, unit: u64) -> Result<(), PagerError> {
        while let Some(locking) = self.with(unit, |cell| cell.locking.first().cloned()) {
            let is_copy = |cell: &mut Cell| {
                !cell.unit.is_owner() && cell.unit.allowed() == Some(Access::Read)
            };
            let is_copy = self.with(unit, is_copy);
            let (was_kept, is_bad) = self.with(unit, |cell| (cell.contents.is_some(), cell.is_bad));
            if is_bad {
                self.refuses_locks(unit, NotTaken::Failed(UNREADABLE), |_| true);
                return Ok(());
            }
            if is_copy {
                // It may have gone, as copies may.
                self.keep_copy(places, unit)?;
            }
            let answer = match self.tries_lock(unit, locking.access) {
                Tried::Taken if is_copy => self.keeps_for_good(places, unit, was_kept),
                Tried::Taken => Ok(()),
                Tried::Refused(why) => Err(why),
                Tried::Wants(_) if lock(&locking.state).is_given_up => Err(NotTaken::GivenUp),
                Tried::Wants(access) => {
                    let waits = self.with(unit, |cell| cell.unit.wanted());
                    if waits != Some(Access::Write) && waits != Some(access) {
                        self.asks_to(places, unit, access)?;
                    }
                    return Ok(());
                }
            };
            if let Err(NotTaken::Failed(_)) = answer {
                self.gives_lock_back(unit, locking.access);
            }
            self.with(unit, |cell| {
                cell.locking.retain(|one| !Arc::ptr_eq(one, &locking))
            });
            self.answers_lock(&locking, answer);
        }
        Ok(())
    }

    fn tries_lock(&self, unit: u64, access: Access) -> Tried {
        self.with(unit, |cell| {
            let page = cell.unit.page().expect("others have no locks");
            if access == Access::Write && page.locked() == Some(Access::Read) {
                return Tried::Refused(NotTaken::Exchanged);
            }
            match page.lock(access) {
                true => Tried::Taken,
                false => Tried::Wants(self.needs(access)),
            }
        })
    }

    /// A copy does not go by itself any more: paging space has what the kernel has not.
    fn keeps_for_good(
        &self,
        places: &Places<'_>,
        unit: u64,
        was_kept: bool,
    ) -> Result<(), NotTaken> {
        let contents = self.with(unit, |cell| match was_kept {
            true => cell.contents.clone(),
            false => cell.contents.take(),
        });
        let kept = match contents {
            Some(contents) => places.keep(self.pages_of(unit), &contents),
            None => Err(PagerError::Corrupt),
        };
        kept.map_err(NotTaken::Failed)
    }

    /// Output::Sealed: who wants to lock it to write waits in vain.
    pub(super) fn refuses_to_lock(&self, unit: u64) {
        let writes = |access| access == Access::Write;
        self.refuses_locks(unit, NotTaken::Failed(SEALED), writes);
    }
}
