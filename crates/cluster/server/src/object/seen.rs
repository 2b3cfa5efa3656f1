//! What others may know of the units of an object at this host.

use std::collections::{HashMap, HashSet};
use std::sync::Weak;

use farpage_object::Access;
use farpage_sys::lock;

use super::Shared;
use crate::cell::{Cell, Event};
use crate::changed::Watch;
use crate::seen::{Holds, UnitFigures};
use crate::unit::Places;

/// Bytes of units of an object that are looked at together, at most.
const WATCHED_BYTES_MAX: usize = 16 << 20;

impl Shared {
    /// Units of which most messages told, so many at most.
    pub(crate) fn hottest(&self, most: usize) -> Vec<UnitFigures> {
        let mut all: Vec<(u64, u64)> = Vec::new();
        for part in &self.cells {
            let part = lock(part);
            let counted = part.iter().map(|(unit, cell)| (heat(cell), *unit));
            all.extend(counted.filter(|(heat, _)| *heat > 0));
            drop(part);
            // Of each part, what may be among them.
            all.sort_unstable_by(|one, other| other.cmp(one));
            all.truncate(most);
        }
        let units: Vec<u64> = all.into_iter().map(|(_, unit)| unit).collect();
        self.figures_of(&units)
    }

    /// Those of `units` that were touched here.
    pub(crate) fn figures_of(&self, units: &[u64]) -> Vec<UnitFigures> {
        let one = |unit: &u64| {
            let part = self.part(*unit);
            part.get(unit).map(|cell| self.told(*unit, cell))
        };
        units.iter().filter_map(one).collect()
    }

    fn told(&self, unit: u64, cell: &Cell) -> UnitFigures {
        let holds = match (cell.unit.is_owner(), cell.unit.allowed()) {
            (true, _) => Holds::Owner,
            (false, Some(_)) => Holds::Copy,
            (false, None) => Holds::Nothing,
        };
        let owner = match holds {
            Holds::Owner => self.shell.own,
            Holds::Copy | Holds::Nothing => cell.unit.owner(),
        };
        let copies = cell.unit.copies();
        UnitFigures {
            unit,
            holds,
            owner: owner.0,
            copies: copies.map(|all| all.iter().fold(0, |bits, host| bits | 1 << host.0)),
            counts: cell.counts,
            changed: cell.watch.as_ref().map(|watch| watch.changed()),
        }
    }

    /// Looks from now on at what this host changes of these units, of which there may be so many; for a
    /// while, unless it is told again.
    pub(crate) fn watch_all(&self, units: &[u64]) {
        if let Some(kernel) = self.kernel.get().and_then(Weak::upgrade) {
            // From now on it keeps who faults.
            kernel.trace(u64::MAX, 0);
        }
        let mut watched = self.watched();
        let most = (WATCHED_BYTES_MAX / self.unit_bytes()).max(1);
        for unit in units {
            let is_touched = self.part(*unit).contains_key(unit);
            let has_room = watched.contains(unit) || watched.len() < most;
            if is_touched && has_room {
                watched.insert(*unit);
                // No peer has to do with it.
                let _ = self.happens(*unit, Event::Watch);
            }
        }
    }

    /// Units that are looked at; no more those for which nobody asked any more.
    fn watched(&self) -> HashSet<u64> {
        let mut all = HashSet::new();
        for part in &self.cells {
            for (unit, cell) in lock(part).iter_mut() {
                cell.watch.take_if(|watch| watch.is_over());
                if cell.watch.is_some() {
                    all.insert(*unit);
                }
            }
        }
        all
    }

    /// Threads that faulted lately on units that are looked at: the unit, the thread, the instruction, and
    /// how often.
    pub(crate) fn faulted(&self) -> HashMap<(u64, u32, u64), u32> {
        let mut all = HashMap::new();
        let Some(kernel) = self.kernel.get().and_then(Weak::upgrade) else {
            return all;
        };
        let (_, events) = kernel.trace(0, usize::MAX);
        let faults = events.into_iter().filter(|event| event.thread != 0);
        for event in faults {
            let unit = event.pages.start.0 / self.about.unit_pages;
            *all.entry((unit, event.thread, event.instruction))
                .or_default() += 1;
        }
        all
    }

    pub(super) fn watch(&self, places: &Places<'_>, unit: u64) {
        let bytes = self.unit_bytes_of(unit);
        let is_begun = self.with(unit, |cell| {
            let watch = cell
                .watch
                .get_or_insert_with(|| Box::new(Watch::new(bytes)));
            watch.is_asked();
            watch.has_begun()
        });
        let allowed = self.with(unit, |cell| cell.unit.allowed());
        if !is_begun && allowed == Some(Access::Write) {
            self.may_change(places, unit);
        }
    }

    /// Threads here are about to be let in to write to a unit.
    pub(super) fn may_change(&self, places: &Places<'_>, unit: u64) {
        let is_watched = self.with(unit, |cell| {
            cell.watch.take_if(|watch| watch.is_over());
            cell.watch.is_some()
        });
        // It is only not looked at when its contents cannot be had.
        if is_watched && let Ok(contents) = self.contents(places, unit) {
            self.with(unit, |cell| {
                cell.watch
                    .iter_mut()
                    .for_each(|watch| watch.begins(contents.clone()));
            });
        }
    }

    /// No thread here writes to a unit any more.
    pub(super) fn has_changed(&self, places: &Places<'_>, unit: u64) {
        let has_begun =
            |cell: &mut Cell| cell.watch.as_ref().is_some_and(|watch| watch.has_begun());
        if self.with(unit, has_begun)
            && let Ok(contents) = self.contents(places, unit)
        {
            self.with(unit, |cell| {
                cell.watch
                    .iter_mut()
                    .for_each(|watch| watch.ends(&contents));
            });
        }
    }
}

/// How much is said of a unit.
fn heat(cell: &Cell) -> u64 {
    cell.counts.messages()
}
