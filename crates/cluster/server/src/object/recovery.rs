//! A shared object after a host has died. The gate is closed meanwhile.

use std::collections::HashMap;
use std::sync::{Mutex, Weak};

use farpage_host::Object;
use farpage_object::{PAGE_BYTES, PageRange, PagerError};
use farpage_rules::coherence::{Host, Hosts, Page, Report, Standing, Twinned, Verdict, Violation};
use farpage_sys::lock;

use super::{FENCED, HOMELESS, Home, Shared};
use crate::cell::Cell;
use crate::recovery::of_nobody;
use crate::unit::Places;

impl Shared {
    /// Hosts have died. What is sent by this is still of the view before.
    pub(crate) fn keeps_copies(&self) {
        let Some(kernel) = self.kernel.get().and_then(Weak::upgrade) else {
            return;
        };
        let places = self.places(&kernel);
        self.alone(|| {
            for unit in self.touched() {
                self.keeps_copy_or_forgets(&places, unit);
            }
        });
    }

    /// Nothing is sent any more, and what comes is only kept, until the verdict. Objects with the
    /// simple scheduler need none.
    pub(crate) fn freeze(&self, died: Hosts) {
        if let Some(mirrored) = self.mirrored() {
            let mut state = lock(mirrored);
            died.iter().for_each(|host| state.lanes.is_gone(host));
        }
        for unit in self.touched() {
            self.with(unit, |cell| cell.unit.freeze());
        }
    }

    /// All have been told how much was sent before: those with the simple scheduler go on.
    pub(crate) fn goes_on(&self, died: Hosts) {
        let Some(kernel) = self.kernel.get().and_then(Weak::upgrade) else {
            return;
        };
        if self.simple().is_some() {
            let places = self.places(&kernel);
            self.alone(|| self.simple_after(&places, died));
        }
    }

    /// The same as [`Shared::with`], of an object that has not the simple scheduler.
    fn with_page<T>(&self, unit: u64, act: impl FnOnce(&mut Page) -> T) -> Option<T> {
        self.with(unit, |cell| cell.unit.page().map(act))
    }

    pub(super) fn touched(&self) -> Vec<u64> {
        let of =
            |part: &Mutex<HashMap<u64, Cell>>| lock(part).keys().copied().collect::<Vec<u64>>();
        self.cells.iter().flat_map(of).collect()
    }

    /// A copy may become the only contents: it may not go without a word any more. One that has gone
    /// is forgotten.
    fn keeps_copy_or_forgets(&self, places: &Places<'_>, unit: u64) {
        if self.twins().is_some() {
            self.with(unit, |cell| cell.unit.twinned().map(Twinned::give_up_copy));
            return self.carry_out(places, unit, None);
        }
        let is_copy = self.with_page(unit, |page| {
            !page.is_frozen() && !page.is_owner() && page.allowed().is_some()
        });
        let is_elsewhere = self.with(unit, |cell| cell.contents.is_none());
        if self.with(unit, |cell| cell.returns()) {
            return self.carry_out(places, unit, None);
        }
        let is_copy = is_copy == Some(true) && is_elsewhere;
        if is_copy && !self.keeps_copy(places, unit).unwrap_or(false) {
            self.with(unit, |cell| {
                cell.unit.let_go();
                cell.unit.forget();
            });
            self.carry_out(places, unit, None);
        }
    }

    fn keeps_copy(&self, places: &Places<'_>, unit: u64) -> Result<bool, PagerError> {
        for page in self.pages_of(unit).iter() {
            let mut unused = [0; PAGE_BYTES];
            let is_here = places.kernel.make_precious(page)?
                || places.paged_out(page, &mut unused)?
                || places.at_rest(page, &mut unused, false)?;
            if !is_here {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What this host has.
    pub(crate) fn reports(&self) -> Vec<(u64, Report)> {
        let report = |unit: u64| {
            let report = self.with(unit, |cell| cell.unit.report())?;
            Some((unit, self.with_kept(unit, report)))
        };
        self.touched().into_iter().filter_map(report).collect()
    }

    /// Its home, from the next verdicts on, since hosts have come or gone.
    pub(crate) fn has_home(&self, home: Home, has_anybody_gone: bool) {
        let before = std::mem::replace(&mut *lock(&self.home), home);
        if has_anybody_gone {
            self.home_has_gone(before.host != home.host);
        }
        if home.is_next {
            self.loses_home();
        }
        if let Some(simple) = self.simple() {
            lock(simple).is_homeless |= home.is_next;
        }
    }

    pub(crate) fn home(&self) -> Host {
        lock(&self.home).host
    }

    /// All goes on: `verdict` says how, of a unit. Returns what is wrong.
    pub(crate) fn resume(
        &self,
        verdict: impl Fn(u64) -> Option<(Host, Verdict)>,
    ) -> Vec<Violation> {
        let Some(kernel) = self.kernel.get().and_then(Weak::upgrade) else {
            return Vec::new();
        };
        let places = self.places(&kernel);
        let home = *lock(&self.home);
        let nobody_told = |unit| match home.is_next {
            true => of_nobody(home.host, self.known(unit)),
            false => Verdict::untouched(home.host),
        };
        if self.simple().is_some() {
            return Vec::new();
        }
        if self.is_without_home() {
            self.ends(&kernel, HOMELESS);
            return Vec::new();
        }
        if let Some(mirrored) = self.mirrored() {
            lock(mirrored).resume();
        }
        let mut wrong = Vec::new();
        self.alone(|| {
            let mut units = self.touched();
            units.sort_unstable();
            for unit in units {
                let (by, verdict) = verdict(unit).unwrap_or_else(|| (home.host, nobody_told(unit)));
                self.is_touched(unit);
                self.may_be_here(unit);
                let resumed = self.with(unit, |cell| {
                    let standing = cell.unit.report()?.standing;
                    cell.is_new &= standing != Standing::Nothing;
                    cell.unit.resume(by, &verdict).err()
                });
                wrong.extend(resumed);
                self.carry_out(&places, unit, None);
                self.let_go(&places, unit);
                self.ends_calls(unit);
            }
            // Another host may die as well, later.
            self.mirrors_all();
        });
        wrong
    }

    /// What this host, the home, has of a unit that others have told of.
    pub(crate) fn report_of(&self, unit: u64) -> Option<Report> {
        let mut part = self.part(unit);
        let cell = part.entry(unit).or_insert_with(|| self.untouched(unit));
        let report = cell.unit.report()?;
        drop(part);
        Some(self.with_kept(unit, report))
    }

    /// This host may not act any more: nothing of the object is here.
    pub(crate) fn fence(&self) {
        let Some(kernel) = self.kernel.get().and_then(Weak::upgrade) else {
            return;
        };
        self.ends(&kernel, FENCED);
    }

    /// Nobody of this host can have any of it from now on.
    fn ends(&self, kernel: &Object, why: PagerError) {
        // What is left can be used by nobody else either.
        let _ = kernel.take_away(PageRange::new(0, kernel.pages()));
        for unit in self.touched() {
            self.fails(unit, why);
            self.fails_calls(unit, why);
        }
    }
}
