//! An object with release consistency: hosts write to copies, and what they changed goes to who owns them.
//!
//! A twin is in memory, and in paging space when there are many. Who owns a unit puts diffs in it as one
//! of its tasks would write: the page may be in memory, or come from paging space first.

use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use farpage_object::{PAGE_BYTES, PageIndex, PagerError, errno};
use farpage_rules::coherence::{Host, TwinMessage, TwinOutput, Twinned, Violation};
use farpage_sys::lock;

use super::{FENCED, Kind, LOST, Shared, Work};
use crate::cell::{Cell, Event};
use crate::counters::{add, count};
use crate::diff::{diff, runs};
use crate::holds::Due;
use crate::twins::{Call, OnEnd, Runs, State, Twin, Waits};
use crate::unit::Places;
use crate::wire::Said;

/// Bytes of an object's twins in memory at most; more are in paging space.
const TWINS_MAX: u64 = 64 << 20;
/// What could not be put in a page is tried again after so long.
const AGAIN: Duration = Duration::from_millis(10);
/// And so often: then its page cannot be had.
const TRIES: u32 = 200;

/// A diff that is being put in the pages of a unit.
struct Putting {
    own: Weak<Shared>,
    unit: u64,
    apply: u64,
    /// Pages, and one for who began.
    left: AtomicUsize,
    has_failed: AtomicBool,
}

impl Putting {
    /// One less is left; true of the last.
    fn is_last(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Shared {
    pub(super) fn twins(&self) -> Option<&State> {
        match &self.kind {
            Kind::Twinned(state) => Some(state),
            Kind::Plain | Kind::Mirrored(_) | Kind::Simple(_) => None,
        }
    }

    /// All that was written here until now is with its owners when `on_end` is told.
    pub(crate) fn releases_all(&self, on_end: OnEnd) {
        self.calls_all(on_end, Event::Release);
    }

    /// When `on_end` is told, nobody here reads what was here until now and may be old.
    pub(crate) fn acquires_all(&self, on_end: OnEnd) {
        self.calls_all(on_end, Event::Acquire);
    }

    fn calls_all(&self, on_end: OnEnd, event: fn(Call) -> Event) {
        let call = Call::new(on_end);
        let Some(state) = self.twins() else {
            return;
        };
        if self.shell.is_fenced() {
            return call.fails(FENCED);
        }
        let units: Vec<u64> = lock(&state.here).iter().copied().collect();
        for unit in units {
            // No peer has to do with it.
            let _ = self.happens(unit, event(call.clone()));
        }
    }

    /// A peer sent a message of a unit, with contents or a diff where they belong to it.
    pub(crate) fn twin_came(
        &self,
        from: Host,
        unit: u64,
        message: TwinMessage,
        came: Option<Box<[u8]>>,
    ) -> Result<(), Violation> {
        let what = match (self.twins(), message) {
            (None, _) => "a message of another scheduler",
            (Some(_), TwinMessage::Diff { .. })
                if runs(
                    came.as_deref().unwrap_or_default(),
                    self.unit_bytes_of(unit),
                )
                .is_none() =>
            {
                "a diff that is none"
            }
            (Some(_), _) => {
                return self.happens(
                    unit,
                    Event::Twin {
                        from,
                        message,
                        came,
                    },
                );
            }
        };
        Err(Violation { by: from, what })
    }

    /// A diff is in a unit, or could not be put there.
    pub(crate) fn has_put(&self, unit: u64, apply: u64, is_put: bool) {
        // No peer has to do with it.
        let _ = self.happens(unit, Event::Put { apply, is_put });
    }

    /// Before anything happens to a unit: a release or an acquire may be about it from now on.
    pub(super) fn may_be_here(&self, unit: u64) {
        if let Some(state) = self.twins() {
            lock(&state.here).insert(unit);
        }
    }

    /// After it: who waited for what has come to be is told, and the unit is forgotten that neither is
    /// about.
    pub(super) fn ends_calls(&self, unit: u64) {
        let Some(state) = self.twins() else {
            return;
        };
        let (ended, is_here) = self.with(unit, |cell| {
            let Some(page) = cell.unit.twinned() else {
                return (Vec::new(), false);
            };
            let is_here = page.is_here();
            let Some(twins) = &mut cell.twins else {
                return (Vec::new(), is_here);
            };
            let has_ended = |(waits, _): &mut (Waits, Call)| match *waits {
                Waits::Released(number) => page.has_released(number),
                Waits::Acquired(number) => page.has_acquired(number),
            };
            let ended: Vec<_> = twins.waiting.extract_if(.., has_ended).collect();
            if !page.is_unreleased() {
                twins.diff = None;
            }
            (ended, is_here)
        });
        if !is_here {
            lock(&state.here).remove(&unit);
        }
        drop(ended);
    }

    /// A release or an acquire is about a unit.
    pub(super) fn calls(&self, unit: u64, call: Call, of: fn(&mut Twinned) -> Option<Waits>) {
        self.with(unit, |cell| {
            let waits = cell.unit.twinned().and_then(of);
            if let Some(waits) = waits {
                cell.twins().waiting.push((waits, call));
            }
        });
    }

    /// Nobody waits for a unit any more.
    pub(super) fn fails_calls(&self, unit: u64, error: PagerError) {
        let waiting = self.with(unit, |cell| {
            let twins = cell.twins.as_mut();
            twins.map(|twins| std::mem::take(&mut twins.waiting))
        });
        for (_, call) in waiting.into_iter().flatten() {
            call.fails(error);
        }
    }

    /// The twin of a unit: what is nowhere else at this host is as that was.
    pub(super) fn twin_of(&self, unit: u64) -> Result<Option<Box<[u8]>>, PagerError> {
        let twin = self.with(unit, |cell| match &cell.twins.as_ref()?.twin {
            Some(Twin::Here(twin)) => Some(Some(twin.clone())),
            Some(Twin::Kept) => Some(None),
            None => None,
        });
        match twin {
            Some(Some(twin)) => Ok(Some(twin)),
            Some(None) => self.kept().get(self.pages_of(unit), false).map(Some),
            None => Ok(None),
        }
    }

    /// Does what the scheduler says besides what others do.
    pub(super) fn does_twinned(
        &self,
        places: &Places<'_>,
        unit: u64,
        output: TwinOutput,
        work: &mut Work,
    ) -> Result<(), PagerError> {
        match output {
            TwinOutput::As(output) => self.does(places, unit, output, work),
            TwinOutput::Send(to, message) => {
                if let TwinMessage::Own { .. } = message {
                    count(&self.counters.given);
                }
                let contents = match message.has_contents() {
                    true => self.contents_to_send(places, unit),
                    false => None,
                };
                let contents = contents
                    .as_deref()
                    .map(|contents| self.abroad(unit, contents));
                self.says_twinned(unit, to, message, contents.as_deref().unwrap_or_default());
                Ok(())
            }
            TwinOutput::Twin => self.twins_now(places, unit),
            TwinOutput::Diff { to, number } => {
                if let Err(error) = self.sends_diff(places, unit, to, number) {
                    self.forgets_twin(unit);
                    lock(&self.failures).insert(unit, error);
                    self.fails_calls(unit, error);
                    self.with(unit, |cell| cell.unit.twinned().map(Twinned::unchanged));
                }
                Ok(())
            }
            TwinOutput::Again { to, number } => {
                let diff = self.with(unit, |cell| cell.twins().diff.clone());
                let message = TwinMessage::Diff { number };
                self.says_twinned(unit, to, message, diff.as_deref().unwrap_or_default());
                Ok(())
            }
            TwinOutput::Apply(apply) => {
                let came = work.came.take().unwrap_or_default();
                let runs = self.runs_at_home(unit, &came);
                self.with(unit, |cell| cell.twins().applying.insert(apply, (runs, 0)));
                self.puts(places, unit, apply);
                Ok(())
            }
            TwinOutput::DiffLost => {
                self.forgets_twin(unit);
                lock(&self.failures).insert(unit, LOST);
                self.fails_calls(unit, LOST);
                Ok(())
            }
        }
    }

    fn says_twinned(&self, unit: u64, to: Host, message: TwinMessage, contents: &[u8]) {
        let Some(generation) = self.shell.generation_to(to) else {
            // It has died: what it asked for is not asked for any more.
            return;
        };
        count(&self.counters.sent);
        if message.has_contents() {
            count(&self.counters.contents_sent);
        }
        let said = Said::Twinned {
            object: self.about.number,
            unit,
            generation,
            message,
        };
        self.shell.send(to, &[&said.bytes(), contents]);
    }

    /// Keeps the unit as it is, which nobody writes to yet.
    fn twins_now(&self, places: &Places<'_>, unit: u64) -> Result<(), PagerError> {
        let Some(state) = self.twins() else {
            return Ok(());
        };
        let contents = self.contents(places, unit)?;
        let bytes = contents.len() as u64;
        let has_room = state.bytes.load(Ordering::Relaxed) + bytes <= TWINS_MAX;
        // Where paging space has no room either, memory has to do.
        let twin = match has_room || self.kept().put(self.pages_of(unit), &contents).is_err() {
            true => {
                state.bytes.fetch_add(bytes, Ordering::Relaxed);
                Twin::Here(contents)
            }
            false => Twin::Kept,
        };
        self.with(unit, |cell| cell.twins().twin = Some(twin));
        Ok(())
    }

    pub(super) fn forgets_twin(&self, unit: u64) {
        let twin = self.with(unit, |cell| cell.twins.as_mut()?.twin.take());
        match (twin, self.twins()) {
            (Some(Twin::Here(twin)), Some(state)) => {
                state.bytes.fetch_sub(twin.len() as u64, Ordering::Relaxed);
            }
            (Some(Twin::Kept), _) => self.kept().forget(self.pages_of(unit)),
            (Some(Twin::Here(_)) | None, _) => {}
        }
    }

    /// The unit is compared with its twin, which goes.
    fn sends_diff(
        &self,
        places: &Places<'_>,
        unit: u64,
        to: Host,
        number: u64,
    ) -> Result<(), PagerError> {
        if self.with(unit, |cell| cell.is_bad) {
            // Nobody could write to it.
            self.forgets_twin(unit);
            self.with(unit, |cell| cell.unit.twinned().map(Twinned::unchanged));
            return Ok(());
        }
        let twin = self.twin_of(unit)?.ok_or(PagerError::Corrupt)?;
        let contents = self.contents(places, unit)?;
        // In the order of bytes between hosts.
        let found = diff(&self.abroad(unit, &twin), &self.abroad(unit, &contents));
        self.forgets_twin(unit);
        let Some(found) = found else {
            self.with(unit, |cell| cell.unit.twinned().map(Twinned::unchanged));
            return Ok(());
        };
        count(&self.counters.diffs);
        add(&self.counters.diff_bytes, found.len() as u64);
        self.says_twinned(unit, to, TwinMessage::Diff { number }, &found);
        self.with(unit, |cell| cell.twins().diff = Some(found.into()));
        Ok(())
    }

    /// What a diff that came changes here.
    fn runs_at_home(&self, unit: u64, came: &[u8]) -> Runs {
        let bytes = self.unit_bytes_of(unit);
        let all = runs(came, bytes).expect("it was looked at when it came");
        if self.about.turned.is_none() {
            return all;
        }
        // Which bytes it changes is turned as the bytes are.
        let (mut changes, mut changed) = (vec![0; bytes], vec![0; bytes]);
        for (at, run) in &all {
            changes[*at..*at + run.len()].copy_from_slice(run);
            changed[*at..*at + run.len()].fill(1);
        }
        let (changes, changed) = (self.at_home(unit, &changes), self.at_home(unit, &changed));
        let places = (0..bytes).filter(|at| changed[*at] == 1);
        places.map(|at| (at, [changes[at]].into())).collect()
    }

    /// Puts a diff in the pages of a unit.
    fn puts(&self, places: &Places<'_>, unit: u64, apply: u64) {
        let first = self.pages_of(unit).start.0;
        let mut by_page: Vec<(u64, Runs)> = Vec::new();
        self.with(unit, |cell| {
            let runs = cell.twins().applying.get(&apply).map(|(runs, _)| runs);
            for (at, run) in runs.into_iter().flatten() {
                let mut rest = &run[..];
                let mut at = *at;
                while !rest.is_empty() {
                    let (page, start) = (first + (at / PAGE_BYTES) as u64, at % PAGE_BYTES);
                    let (part, left) = rest.split_at(rest.len().min(PAGE_BYTES - start));
                    match by_page.last_mut() {
                        Some((last, all)) if *last == page => all.push((start, part.into())),
                        Some(_) | None => by_page.push((page, vec![(start, part.into())])),
                    }
                    (rest, at) = (left, at + part.len());
                }
            }
        });
        let putting = Arc::new(Putting {
            own: Weak::clone(&self.own),
            unit,
            apply,
            left: AtomicUsize::new(by_page.len() + 1),
            has_failed: AtomicBool::new(false),
        });
        for (page, all) in by_page {
            let (one, shell) = (Arc::clone(&putting), Arc::clone(&self.shell));
            let on_put = move |done: Result<(), String>| {
                one.has_failed.fetch_or(done.is_err(), Ordering::Relaxed);
                if one.is_last() {
                    let is_put = !one.has_failed.load(Ordering::Relaxed);
                    let at = Instant::now() + if is_put { Duration::ZERO } else { AGAIN };
                    let due = Due::Put(one.unit, one.apply, is_put);
                    shell.holds.add(at, Weak::clone(&one.own), due);
                }
            };
            places
                .kernel
                .put_later(PageIndex(page), all, Box::new(on_put));
        }
        if putting.is_last() {
            let is_put = !putting.has_failed.load(Ordering::Relaxed);
            match is_put {
                true => self.is_put(unit, apply),
                false => {
                    let due = Due::Put(unit, apply, false);
                    let own = Weak::clone(&self.own);
                    self.shell.holds.add(Instant::now() + AGAIN, own, due);
                }
            }
        }
    }

    fn is_put(&self, unit: u64, apply: u64) {
        self.with(unit, |cell| {
            cell.twins().applying.remove(&apply);
            if let Some(page) = cell.unit.twinned() {
                page.applied(apply);
            }
        });
    }

    /// Event::Put.
    pub(super) fn after_put(&self, places: &Places<'_>, unit: u64, apply: u64, is_put: bool) {
        match is_put {
            true => self.is_put(unit, apply),
            false if self.is_to_try_again(unit, apply) => self.puts(places, unit, apply),
            false => self.cannot_put(unit, apply),
        }
    }

    fn is_to_try_again(&self, unit: u64, apply: u64) -> bool {
        self.with(unit, |cell| {
            let one = cell.twins().applying.get_mut(&apply);
            one.is_some_and(|(_, tries)| {
                *tries += 1;
                *tries < TRIES
            })
        })
    }

    /// Who sent the diff is told that it is lost.
    fn cannot_put(&self, unit: u64, apply: u64) {
        self.cannot_read(unit, PagerError::Read(errno::EIO));
        self.with(unit, |cell| {
            cell.twins().applying.remove(&apply);
            if let Some(page) = cell.unit.twinned() {
                page.not_applied(apply);
            }
        });
    }

    /// True when something of others is being put in a unit.
    pub(super) fn is_applying(&self, unit: u64) -> bool {
        let is_applying = |cell: &Cell| {
            let twins = cell.twins.as_ref();
            twins.is_some_and(|twins| !twins.applying.is_empty())
        };
        self.part(unit).get(&unit).is_some_and(is_applying)
    }

    /// This host leaves: nothing that it wrote is to be here only.
    pub(crate) fn gives_back(&self) {
        self.acquires_all(Box::new(drop));
    }
}
