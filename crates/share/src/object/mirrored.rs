//! A mirrored object: what another host sees is on two hosts before.

use std::sync::Weak;

use farpage_abi::PageIndex;
use farpage_coherence::{Epoch, Host, Message, Report, Violation};
use farpage_pagers::PagerError;

use super::{Shared, lock};
use crate::counters::count;
use crate::holds::Due;
use crate::mirrored::{
    Happening, Mirrored, One, PARCEL_BYTES_MAX, Parcel, State, Then, WRITTEN_BYTES_MAX, Written,
};
use crate::unit::{Kept, Places};
use crate::wire::Said;

/// Time that a backup takes to say that parcels have come: then it says it of all.
const SAYS_AFTER: std::time::Duration = std::time::Duration::from_millis(1);

impl Shared {
    /// True when no host takes anything with it that another has seen.
    pub(crate) fn is_mirrored(&self) -> bool {
        self.mirrored.is_some()
    }

    /// A parcel has come from a host whose backup this one is.
    pub(crate) fn parcel_came(&self, from: Host, parcel: Parcel) -> Result<(), Violation> {
        self.mirrors(Happening::Parcel { from, parcel })
    }

    /// The backup has all parcels up to this one.
    pub(crate) fn parcels_arrived(&self, number: u64) {
        // No peer can be wrong about it.
        let _ = self.mirrors(Happening::Arrived(number));
    }

    /// Units need not be kept before these versions.
    pub(crate) fn are_on_two(&self, units: Vec<(u64, Epoch)>) {
        let _ = self.mirrors(Happening::OnTwo(units));
    }

    /// It is time to say which parcels have come.
    pub(crate) fn says_arrived(&self) {
        let _ = self.mirrors(Happening::SayArrived);
    }

    /// Something happens to a mirrored object: it is done here, or by whoever is at work on it. The
    /// error is of the last message that cannot be.
    pub(super) fn mirrors(&self, happening: Happening) -> Result<(), Violation> {
        let _entered = self.shell.gate.enter();
        let Some(mirrored) = &self.mirrored else {
            return Ok(());
        };
        {
            let mut queue = lock(&mirrored.queue);
            queue.all.push_back(happening);
            if std::mem::replace(&mut queue.is_busy, true) {
                return Ok(());
            }
        }
        self.mirrors_queued(mirrored)
    }

    /// Does something to all of the object while the gate is closed; what happens meanwhile is done
    /// after it.
    pub(super) fn alone(&self, act: impl FnOnce()) {
        let Some(mirrored) = &self.mirrored else {
            return act();
        };
        let was_busy = std::mem::replace(&mut lock(&mirrored.queue).is_busy, true);
        assert!(!was_busy, "nobody is in the gate");
        act();
        if let Err(violation) = self.mirrors_queued(mirrored) {
            eprintln!("farpage: {violation}");
        }
    }

    fn mirrors_queued(&self, mirrored: &Mirrored) -> Result<(), Violation> {
        let mut wrong = Ok(());
        loop {
            let next = {
                let mut queue = lock(&mirrored.queue);
                let next = queue.all.pop_front();
                queue.is_busy = next.is_some();
                next
            };
            let Some(happening) = next else {
                return wrong;
            };
            if let Err(violation) = self.mirror_acts(mirrored, happening) {
                wrong = Err(violation);
            }
        }
    }

    fn mirror_acts(&self, mirrored: &Mirrored, happening: Happening) -> Result<(), Violation> {
        match happening {
            Happening::Unit(unit, event) => {
                let done = self.act(unit, event);
                self.mirrors_much(mirrored);
                done
            }
            Happening::Parcel { from, parcel } => self.takes_parcel(mirrored, from, parcel),
            Happening::Arrived(number) => {
                let on_two = lock(&mirrored.state).arrived(number);
                self.releases(mirrored, &on_two);
                if let Some(units) = lock(&mirrored.state).tell() {
                    self.tells_on_two(&units);
                }
                Ok(())
            }
            Happening::SayArrived => {
                for (to, number) in lock(&mirrored.state).take_came() {
                    self.says(to, |generation| Said::Arrived {
                        object: self.about.number,
                        generation,
                        number,
                    });
                }
                Ok(())
            }
            Happening::OnTwo(units) => {
                self.releases(mirrored, &units);
                Ok(())
            }
        }
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
    ) -> Result<(), PagerError> {
        let contents = self.contents(places, unit)?;
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
        Ok(())
    }

    /// True when messages with contents go by the backup.
    pub(super) fn goes_by_backup(&self) -> bool {
        let mirrored = self.mirrored.as_ref();
        mirrored.is_some_and(|mirrored| !lock(&mirrored.state).mirror.is_settled())
    }

    /// A unit may have been written here, and be nowhere else.
    pub(super) fn may_have_written(&self, unit: u64) {
        if let Some(mirrored) = &self.mirrored
            && self.with(unit, |cell| cell.page.is_written())
        {
            lock(&mirrored.state).mirror.may_write(PageIndex(unit));
        }
    }

    /// Sends a parcel that nobody waits for, when much is on this host only.
    fn mirrors_much(&self, mirrored: &Mirrored) {
        let units = lock(&mirrored.state).mirror.written();
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
        let Some(mirrored) = &self.mirrored else {
            return;
        };
        if self.shell.backup_view().backup_of(self.shell.own).is_none() {
            return;
        }
        let shown = then.as_ref().map(|then| then.unit);
        let last = std::mem::take(&mut parcel);
        let mut bytes = 0;
        let written = lock(&mirrored.state).mirror.take_written();
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
                    lock(&mirrored.state).mirror.may_write(PageIndex(unit));
                }
            }
            if bytes > PARCEL_BYTES_MAX {
                bytes = 0;
                self.sends_parcel(
                    &mut lock(&mirrored.state),
                    std::mem::take(&mut parcel),
                    None,
                );
            }
        }
        parcel.extend(last);
        if !parcel.is_empty() || then.is_some() {
            self.sends_parcel(&mut lock(&mirrored.state), parcel, then);
        }
    }

    /// Nobody writes to a unit from now on without a fault: what it has, if that is only here.
    fn mirrors_unit(&self, places: &Places<'_>, unit: u64) -> Result<Option<One>, PagerError> {
        let Some(version) = self.with(unit, |cell| cell.page.mirror()) else {
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
        let era = self.shell.era();
        let order = state.order(backup, era);
        let Some(generation) = self.shell.generation_to(backup) else {
            // It has died: all is told anew after that.
            return;
        };
        state.flies(number, units.clone());
        count(&self.counters.sent);
        count(&self.counters.parcels);
        let head = Said::Parcel {
            object: self.about.number,
            generation,
            era,
            order,
            number,
            units,
            then: then.as_ref().map(Then::passed),
        };
        let head = head.bytes();
        let mut parts: Vec<&[u8]> = vec![&head];
        parts.extend(parcel.iter().map(|one| &*one.2));
        parts.extend(then.as_ref().and_then(|then| then.contents.as_deref()));
        self.shell.send(backup, &parts);
    }

    fn takes_parcel(
        &self,
        mirrored: &Mirrored,
        from: Host,
        parcel: Parcel,
    ) -> Result<(), Violation> {
        let due = lock(&mirrored.state).came(from, parcel);
        let due = due.map_err(|what| Violation { by: from, what })?;
        let mut done = Ok(());
        for mut parcel in due {
            for (unit, version, contents) in &parcel.units {
                self.keeps(mirrored, *unit, *version, contents);
            }
            let Some(mut then) = parcel.then.take() else {
                continue;
            };
            if then.message.has_contents() && then.contents.is_none() {
                let mut units = parcel.units.into_iter();
                let shown = units.find(|(unit, ..)| *unit == then.unit);
                then.contents = shown.map(|(.., contents)| contents);
            }
            if let Err(violation) = self.passes(from, then) {
                done = Err(violation);
            }
        }
        self.will_say_arrived(mirrored);
        done
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
        self.shell.send(to, &[&said.bytes(), &contents]);
        Ok(())
    }

    fn will_say_arrived(&self, mirrored: &Mirrored) {
        let mut state = lock(&mirrored.state);
        if !std::mem::replace(&mut state.is_timed, true) {
            let at = std::time::Instant::now() + SAYS_AFTER;
            let object = Weak::clone(&self.own);
            self.shell.holds.add(at, object, Due::SayArrived);
        }
    }

    fn says(&self, to: Host, said: impl FnOnce(farpage_coherence::Generation) -> Said) {
        if let Some(generation) = self.shell.generation_to(to) {
            count(&self.counters.background);
            self.shell.send(to, &[&said(generation).bytes()]);
        }
    }

    /// Others need not keep what is older.
    fn tells_on_two(&self, units: &[(u64, Epoch)]) {
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
    fn kept(&self) -> Kept<'_> {
        let number = *self.number.get().expect("the kernel has begun to use it");
        Kept {
            paging_space: &*self.shell.paging_space,
            number: Kept::number_of(number),
        }
    }

    /// Output::Keep: what this host gives away stays with it.
    pub(super) fn keeps_own(
        &self,
        places: &Places<'_>,
        unit: u64,
        version: Epoch,
    ) -> Result<(), PagerError> {
        let contents = self.contents(places, unit)?;
        if let Some(mirrored) = &self.mirrored {
            self.keeps(mirrored, unit, version, &contents);
        }
        Ok(())
    }

    /// Keeps contents, unless later ones are kept.
    fn keeps(&self, mirrored: &Mirrored, unit: u64, version: Epoch, contents: &[u8]) {
        let page = PageIndex(unit);
        let before = lock(&mirrored.state).mirror.kept(page);
        if before.is_some_and(|before| before >= version) {
            return;
        }
        // It is reported after a death.
        self.part(unit)
            .entry(unit)
            .or_insert_with(|| self.untouched());
        let put = self.kept().put(self.pages_of(unit), contents);
        let mut state = lock(&mirrored.state);
        match put {
            Ok(()) => drop(state.mirror.keep(page, version)),
            Err(error) => {
                if let Some(before) = before {
                    state.mirror.release(page, before);
                }
                drop(state);
                self.kept().forget(self.pages_of(unit));
                let name = &self.about.name;
                eprintln!(
                    "farpage: cannot keep a second copy of unit {unit} of '{name}' ({error:?}): it is \
                     on one host only; give this host more paging space"
                );
            }
        }
    }

    /// These versions are on two hosts: earlier ones go.
    fn releases(&self, mirrored: &Mirrored, units: &[(u64, Epoch)]) {
        for (unit, version) in units {
            let older = Epoch(version.0.saturating_sub(1));
            let is_old = lock(&mirrored.state)
                .mirror
                .release(PageIndex(*unit), older);
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
            self.with(unit, |cell| (cell.contents, cell.is_new) = (None, true));
            return Ok(());
        }
        let contents = self.kept().get(self.pages_of(unit))?;
        let is_put = places.keep(self.pages_of(unit), &contents).is_ok();
        self.with(unit, |cell| {
            (cell.contents, cell.is_new) = ((!is_put).then_some(contents), false);
        });
        Ok(())
    }

    /// With what this host keeps of a unit for others.
    pub(super) fn with_kept(&self, unit: u64, report: Report) -> Report {
        let kept = self.mirrored.as_ref();
        let kept = kept.and_then(|all| lock(&all.state).mirror.kept(PageIndex(unit)));
        Report { kept, ..report }
    }
}
