//! A mirrored object: what another host sees is on two hosts before.

use std::sync::{Mutex, Weak};

use farpage_object::{PageIndex, PagerError};
use farpage_rules::coherence::{Epoch, Host, Message, Report, Violation};
use farpage_sys::lock;

use super::{Kind, Shared};
use crate::cell::Cell;
use crate::counters::count;
use crate::holds::Due;
use crate::line::Happening;
use crate::mirrored::{One, PARCEL_BYTES_MAX, Parcel, State, Then, WRITTEN_BYTES_MAX, Written};
use crate::unit::{Kept, Places};
use crate::wire::Said;

/// Time that a backup takes to say that parcels have come: then it says it of all.
const SAYS_AFTER: std::time::Duration = std::time::Duration::from_millis(1);

impl Shared {
    /// True when no host takes anything with it that another has seen.
    pub(crate) fn is_mirrored(&self) -> bool {
        self.mirrored().is_some()
    }

    pub(super) fn mirrored(&self) -> Option<&Mutex<State>> {
        match &self.kind {
            Kind::Mirrored(state) => Some(state),
            Kind::Plain | Kind::Twinned(_) | Kind::Simple(_) => None,
        }
    }

    /// A parcel has come from a host whose backup this one is.
    pub(crate) fn parcel_came(
        &self,
        from: Host,
        order: u64,
        parcel: Parcel,
    ) -> Result<(), Violation> {
        let Some(mirrored) = self.mirrored() else {
            return Ok(());
        };
        self.come_in_order(from, || {
            let due = lock(mirrored).lanes.came(from, order, parcel)?;
            Ok(due
                .into_iter()
                .map(|parcel| Happening::Parcel { from, parcel })
                .collect())
        })
    }

    /// The backup has all parcels up to this one.
    pub(crate) fn parcels_arrived(&self, number: u64) {
        // No peer can be wrong about it.
        let _ = self.happens_in_line(Happening::Arrived(number));
    }

    /// Units need not be kept before these versions.
    pub(crate) fn are_on_two(&self, units: Vec<(u64, Epoch)>) {
        let _ = self.happens_in_line(Happening::OnTwo(units));
    }

    /// It is time to say which parcels have come.
    pub(crate) fn says_arrived(&self) {
        let _ = self.happens_in_line(Happening::SayArrived);
    }

    /// Another host is to see what this one has written, or has from one of which that is not known
    /// to be on two hosts.
    pub(super) fn shows(
        &self,
        places: &Places<'_>,
        unit: u64,
        to: Host,
        message: Message,
        version: Option<Epoch>,
    ) {
        let Some(contents) = self.contents_to_send(places, unit) else {
            // It shows nothing.
            return self.says_of_unit(unit, to, message, None);
        };
        let mut written = Vec::new();
        let mut then = Then {
            to,
            unit,
            message,
            contents: None,
        };
        match version {
            Some(version) => written.push((unit, version, contents)),
            None => then.contents = Some(contents),
        }
        self.sends_written(places, written, Some(then));
    }

    /// True when messages with contents go by the backup.
    pub(super) fn goes_by_backup(&self) -> bool {
        let mirrored = self.mirrored();
        mirrored.is_some_and(|mirrored| !lock(mirrored).mirror.is_settled())
    }

    /// A unit may have been written here, and be nowhere else.
    pub(super) fn may_have_written(&self, unit: u64) {
        if let Some(mirrored) = self.mirrored()
            && self.with(unit, |cell| {
                cell.unit.page().is_some_and(|page| page.is_written())
            })
        {
            lock(mirrored).mirror.may_write(PageIndex(unit));
        }
    }

    /// Sends a parcel that nobody waits for, when much is on this host only.
    pub(super) fn mirrors_much(&self, mirrored: &Mutex<State>) {
        let units = lock(mirrored).mirror.written();
        let is_much = units > (WRITTEN_BYTES_MAX / self.unit_bytes()).max(1);
        if is_much && !self.shell.is_frozen() {
            self.mirrors_all();
        }
    }

    /// Sends all that is on this host only to its backup.
    pub(super) fn mirrors_all(&self) {
        let Some(kernel) = self.kernel.get().and_then(Weak::upgrade) else {
            return;
        };
        self.sends_written(&self.places(&kernel), Vec::new(), None);
    }

    /// Sends all that this host has written to its backup, which passes `then` on. What is too much
    /// for a parcel goes in others before.
    fn sends_written(&self, places: &Places<'_>, mut parcel: Written, then: Option<Then>) {
        let Some(mirrored) = self.mirrored() else {
            return;
        };
        if self.shell.backup_view().backup_of(self.shell.own).is_none() {
            return;
        }
        let shown = then.as_ref().map(|then| then.unit);
        let last = std::mem::take(&mut parcel);
        let mut bytes = 0;
        let written = lock(mirrored).mirror.take_written();
        for unit in written.into_iter().map(|page| page.0) {
            if Some(unit) == shown {
                continue;
            }
            match self.mirrors_unit(places, unit) {
                Ok(Some(one)) => {
                    bytes += one.2.len();
                    parcel.push(one);
                }
                Ok(None) => self.may_have_written(unit),
                Err(error) => {
                    self.fails(unit, error);
                    lock(mirrored).mirror.may_write(PageIndex(unit));
                }
            }
            if bytes > PARCEL_BYTES_MAX {
                bytes = 0;
                self.sends_parcel(&mut lock(mirrored), std::mem::take(&mut parcel), None);
            }
        }
        parcel.extend(last);
        if !parcel.is_empty() || then.is_some() {
            self.sends_parcel(&mut lock(mirrored), parcel, then);
        }
    }

    /// Nobody writes to a unit from now on without a fault: what it has, if that is only here.
    fn mirrors_unit(&self, places: &Places<'_>, unit: u64) -> Result<Option<One>, PagerError> {
        let mirror = |cell: &mut Cell| cell.unit.page()?.mirror();
        let Some(version) = self.with(unit, mirror) else {
            return Ok(None);
        };
        self.carry_out(places, unit, None);
        Ok(Some((unit, version, self.contents(places, unit)?)))
    }

    fn sends_parcel(&self, state: &mut State, parcel: Written, then: Option<Then>) {
        let view = self.shell.backup_view();
        let Some((backup, number)) = state.mirror.parcel(self.shell.own, view) else {
            return;
        };
        let units: Vec<(u64, Epoch)> = parcel.iter().map(|one| (one.0, one.1)).collect();
        let Some(generation) = self.shell.generation_to(backup) else {
            // It has died: all is told anew after that.
            return;
        };
        let order = state.lanes.next(backup);
        state.flies(number, units.clone());
        count(&self.counters.sent);
        count(&self.counters.parcels);
        let head = Said::Parcel {
            object: self.about.number,
            generation,
            order,
            number,
            units,
            then: then.as_ref().map(Then::passed),
        };
        let head = head.bytes();
        let units = parcel
            .iter()
            .map(|(unit, _, contents)| (*unit, &**contents));
        let own = then.as_ref();
        let own = own.and_then(|then| Some((then.unit, then.contents.as_deref()?)));
        let contents: Vec<_> = units
            .chain(own)
            .map(|(unit, contents)| self.abroad(unit, contents))
            .collect();
        let mut parts: Vec<&[u8]> = vec![&head];
        parts.extend(contents.iter().map(|contents| &**contents));
        self.shell.send(backup, &parts);
    }

    pub(super) fn takes_parcel(
        &self,
        mirrored: &Mutex<State>,
        from: Host,
        mut parcel: Parcel,
    ) -> Result<(), Violation> {
        for (unit, version, contents) in &parcel.units {
            self.keeps(mirrored, *unit, *version, contents);
        }
        lock(mirrored).took(from, parcel.number);
        self.will_say_arrived(mirrored);
        let Some(mut then) = parcel.then.take() else {
            return Ok(());
        };
        if then.message.has_contents() && then.contents.is_none() {
            let mut units = parcel.units.into_iter();
            let shown = units.find(|(unit, ..)| *unit == then.unit);
            then.contents = shown.map(|(.., contents)| contents);
        }
        self.passes(from, then)
    }

    /// What a host whose backup this one is has to say goes on, or has come.
    fn passes(&self, origin: Host, then: Then) -> Result<(), Violation> {
        let Then {
            to,
            unit,
            message,
            contents,
        } = then;
        if to == self.shell.own {
            let event = crate::cell::Event::Came {
                from: origin,
                message,
                contents,
            };
            return self.act(unit, event);
        }
        if self.shell.is_frozen() {
            // It is asked for again.
            return Ok(());
        }
        let Some(generation) = self.shell.generation_to(to) else {
            return Ok(());
        };
        count(&self.counters.sent);
        count(&self.counters.passed);
        let said = Said::Unit {
            object: self.about.number,
            unit,
            generation,
            origin,
            message,
        };
        let contents = contents.unwrap_or_default();
        self.shell
            .send(to, &[&said.bytes(), &self.abroad(unit, &contents)]);
        Ok(())
    }

    fn will_say_arrived(&self, mirrored: &Mutex<State>) {
        let mut state = lock(mirrored);
        if !std::mem::replace(&mut state.is_timed, true) {
            let at = std::time::Instant::now() + SAYS_AFTER;
            let object = Weak::clone(&self.own);
            self.shell.holds.add(at, object, Due::SayArrived);
        }
    }

    pub(super) fn says(
        &self,
        to: Host,
        said: impl FnOnce(farpage_rules::coherence::Generation) -> Said,
    ) {
        if let Some(generation) = self.shell.generation_to(to) {
            count(&self.counters.background);
            self.shell.send(to, &[&said(generation).bytes()]);
        }
    }

    /// Others need not keep what is older.
    pub(super) fn tells_on_two(&self, units: &[(u64, Epoch)]) {
        let own = self.shell.own;
        let view = self.shell.backup_view();
        for to in view.living.iter().filter(|to| *to != own) {
            self.says(to, |generation| Said::OnTwo {
                object: self.about.number,
                generation,
                units: units.to_vec(),
            });
        }
    }
}

/// What is kept for the day when another host dies.
impl Shared {
    pub(super) fn kept(&self) -> Kept<'_> {
        let number = *self.number.get().expect("the kernel has begun to use it");
        Kept {
            paging_space: &*self.shell.paging_space,
            number: Kept::number_of(number),
        }
    }

    /// Output::Keep: what this host gives away stays with it.
    pub(super) fn keeps_own(&self, places: &Places<'_>, unit: u64, version: Epoch) {
        if let Some(mirrored) = self.mirrored()
            && let Some(contents) = self.contents_to_send(places, unit)
        {
            self.keeps(mirrored, unit, version, &contents);
        }
    }

    /// Keeps contents, unless later ones are kept.
    fn keeps(&self, mirrored: &Mutex<State>, unit: u64, version: Epoch, contents: &[u8]) {
        let page = PageIndex(unit);
        let before = lock(mirrored).mirror.kept(page);
        if before.is_some_and(|before| before >= version) {
            return;
        }
        // It is reported after a death.
        self.part(unit)
            .entry(unit)
            .or_insert_with(|| self.untouched(unit));
        let put = self.kept().put(self.pages_of(unit), contents);
        let mut state = lock(mirrored);
        match put {
            Ok(()) => drop(state.mirror.keep(page, version)),
            Err(error) => {
                if let Some(before) = before {
                    state.mirror.release(page, before);
                }
                drop(state);
                self.kept().forget(self.pages_of(unit));
                let name = &self.about.name;
                farpage_sys::say!(
                    "farpage: cannot keep a second copy of unit {unit} of '{name}' ({error:?}): it is \
                     on one host only; give this host more paging space"
                );
            }
        }
    }

    /// These versions are on two hosts: earlier ones go.
    pub(super) fn releases(&self, mirrored: &Mutex<State>, units: &[(u64, Epoch)]) {
        for (unit, version) in units {
            let older = Epoch(version.0.saturating_sub(1));
            let is_old = lock(mirrored).mirror.release(PageIndex(*unit), older);
            if is_old {
                self.kept().forget(self.pages_of(*unit));
            }
        }
    }

    /// Output::Restore: the unit has again what is kept of it.
    pub(super) fn restores(
        &self,
        places: &Places<'_>,
        unit: u64,
        version: Epoch,
    ) -> Result<(), PagerError> {
        if version == Epoch(0) {
            self.with(unit, |cell| {
                (cell.contents, cell.is_bad, cell.is_new) = (None, false, true)
            });
            return Ok(());
        }
        let contents = self.kept().get(self.pages_of(unit), false)?;
        let is_put = places.keep(self.pages_of(unit), &contents).is_ok();
        self.with(unit, |cell| {
            cell.is_bad = false;
            (cell.contents, cell.is_new) = ((!is_put).then_some(contents), false);
        });
        Ok(())
    }

    /// With what this host keeps of a unit for others.
    pub(super) fn with_kept(&self, unit: u64, report: Report) -> Report {
        let kept = self.mirrored();
        let kept = kept.and_then(|all| lock(all).mirror.kept(PageIndex(unit)));
        Report { kept, ..report }
    }
}
