//! A shared object after a host has died. The gate is closed meanwhile.

use std::collections::HashMap;
use std::sync::{Mutex, Weak};

use farpage_abi::{PAGE_BYTES, PageRange};
use farpage_coherence::{Host, Report, Standing, Verdict, Violation};
use farpage_pagers::PagerError;

use super::{FENCED, Home, Shared, lock};
use crate::cell::Cell;
use crate::recovery::of_nobody;
use crate::unit::Places;

impl Shared {
    /// Nothing is sent any more, and what comes is only kept, until the verdict.
    pub(crate) fn freeze(&self) {
        let Some(kernel) = self.kernel.get().and_then(Weak::upgrade) else {
            return;
        };
        let places = self.places(&kernel);
        self.alone(|| {
            for unit in self.touched() {
                self.keeps_copy_or_forgets(&places, unit);
                self.with(unit, |cell| cell.page.freeze());
            }
        });
    }

    fn touched(&self) -> Vec<u64> {
        let of =
            |part: &Mutex<HashMap<u64, Cell>>| lock(part).keys().copied().collect::<Vec<u64>>();
        self.cells.iter().flat_map(of).collect()
    }

    /// A copy may become the only contents: it may not go without a word any more. One that has gone
    /// is forgotten.
    fn keeps_copy_or_forgets(&self, places: &Places<'_>, unit: u64) {
        let is_copy = self.with(unit, |cell| {
            let page = &cell.page;
            !page.is_frozen()
                && !page.is_owner()
                && page.allowed().is_some()
                && cell.contents.is_none()
        });
        if is_copy && !self.keeps_copy(places, unit).unwrap_or(false) {
            self.with(unit, |cell| {
                cell.page.let_go();
                cell.page.forget();
            });
            self.carry_out(places, unit, None);
        }
    }

    fn keeps_copy(&self, places: &Places<'_>, unit: u64) -> Result<bool, PagerError> {
        for page in self.pages_of(unit).iter() {
            let is_here = places.kernel.make_precious(page)?;
            if !is_here && !places.paged_out(page, &mut [0; PAGE_BYTES])? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What this host has.
    pub(crate) fn reports(&self) -> Vec<(u64, Report)> {
        let report = |unit: u64| {
            let report = self.with(unit, |cell| cell.page.report());
            (unit, self.with_kept(unit, report))
        };
        self.touched().into_iter().map(report).collect()
    }

    /// Its home, from the next verdicts on.
    pub(crate) fn has_home(&self, home: Home) {
        *lock(&self.home) = home;
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
        let nobody_told = match home.is_next {
            true => of_nobody(home.host, self.known()),
            false => Verdict::untouched(home.host),
        };
        if let Some(mirrored) = &self.mirrored {
            lock(&mirrored.state).resume();
        }
        let mut wrong = Vec::new();
        self.alone(|| {
            let mut units = self.touched();
            units.sort_unstable();
            for unit in units {
                let (by, verdict) = verdict(unit).unwrap_or((home.host, nobody_told));
                let resumed = self.with(unit, |cell| {
                    cell.is_new &= cell.page.report().standing != Standing::Nothing;
                    cell.page.resume(by, &verdict)
                });
                wrong.extend(resumed.err());
                self.carry_out(&places, unit, None);
                self.let_go(&places, unit);
            }
            // Another host may die as well, later.
            self.mirrors_all();
        });
        wrong
    }

    /// What this host, the home, has of a unit that others have told of.
    pub(crate) fn report_of(&self, unit: u64) -> Report {
        let mut part = self.part(unit);
        let cell = part.entry(unit).or_insert_with(|| self.untouched());
        let report = cell.page.report();
        drop(part);
        self.with_kept(unit, report)
    }

    /// This host may not act any more: nothing of the object is here.
    pub(crate) fn fence(&self) {
        let Some(kernel) = self.kernel.get().and_then(Weak::upgrade) else {
            return;
        };
        // What is left can be used by nobody else either.
        let _ = kernel.take_away(PageRange::new(0, kernel.pages()));
        for unit in self.touched() {
            self.fails(unit, FENCED);
        }
    }
}
