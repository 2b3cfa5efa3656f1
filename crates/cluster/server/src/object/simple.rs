//! An object of the simple scheduler: its home has all contents that no host may write, in paging space
//! and not in its kernel, where its own tasks would see them.
//!
//! What a host had that died, and had not given back, is not there: the contents that its home has
//! count. Nobody else has seen others of that unit. When the home dies, the object is gone with it.

use std::sync::Mutex;

use farpage_object::{PageRange, PagerError};
use farpage_rules::coherence::{Host, Hosts, Violation};
use farpage_sys::lock;

use super::{HOMELESS, Kind, Shared, UNREADABLE};
use crate::counters::count;
use crate::line::Happening;
use crate::simple::{Message, Said, State};
use crate::unit::Places;
use crate::wire;

impl Shared {
    pub(super) fn simple(&self) -> Option<&Mutex<State>> {
        match &self.kind {
            Kind::Simple(state) => Some(state),
            Kind::Plain | Kind::Twinned(_) | Kind::Mirrored(_) => None,
        }
    }

    pub(super) fn is_homeless(&self) -> bool {
        self.is_without_home() || self.simple().is_some_and(|state| lock(state).is_homeless)
    }

    /// A host says something, as its message of this number to this host. Refused of an object of
    /// another scheduler.
    pub(crate) fn simple_came(&self, from: Host, number: u64, said: Said) -> Result<(), Violation> {
        self.come_in_order(from, || {
            let state = self.simple().ok_or("a message of another scheduler")?;
            let due = lock(state).lanes.came(from, number, said)?;
            let due = due.into_iter();
            Ok(due.map(|said| Happening::Simple { from, said }).collect())
        })
    }

    pub(super) fn simple_acts(&self, from: Host, said: Said) -> Result<(), Violation> {
        let Said {
            unit,
            message,
            contents,
        } = said;
        let is_other = from != self.shell.own;
        let handle = |cell: &mut crate::cell::Cell| {
            if is_other {
                cell.counts.came();
            }
            match cell.unit.simple() {
                Some(simple) => simple.handle(from, message),
                None => Ok(()),
            }
        };
        self.acts(unit, |places| {
            self.with(unit, handle)?;
            self.carry_out(places, unit, contents);
            Ok(Ok(()))
        })
    }

    /// Client and server tell each other something.
    pub(super) fn says_simple(&self, places: &Places<'_>, unit: u64, to: Host, message: Message) {
        let Some(state) = self.simple() else {
            return;
        };
        let contents = match message {
            Message::Returned { .. } => self.contents_to_send(places, unit),
            Message::Supply { contents: true, .. } => {
                let stored = self.stored(state, unit);
                stored.map_err(|error| self.cannot_read(unit, error)).ok()
            }
            Message::Supply {
                contents: false, ..
            }
            | Message::Asks { .. }
            | Message::Dropped
            | Message::Recall { .. }
            | Message::Drop => None,
        };
        let from = self.shell.own;
        if to == from {
            let said = Said {
                unit,
                message,
                contents,
            };
            // This thread is at work on the object, so it is done next.
            return match self.happens_in_line(Happening::Simple { from, said }) {
                Ok(()) => {}
                Err(violation) => unreachable!("{violation}"),
            };
        }
        let Some(generation) = self.shell.generation_to(to) else {
            return;
        };
        count(&self.counters.sent);
        if let Message::Supply { to_write: true, .. } = message {
            count(&self.counters.given);
        }
        if contents.is_some() {
            count(&self.counters.contents_sent);
        }
        let said = wire::Said::Simple {
            object: self.about.number,
            unit,
            generation,
            number: lock(state).lanes.next(to),
            message,
        };
        let contents = contents.unwrap_or_default();
        self.shell
            .send(to, &[&said.bytes(), &self.abroad(unit, &contents)]);
    }

    /// The server has contents back, or is told that they cannot be read.
    pub(super) fn stores(&self, unit: u64, contents: Option<Box<[u8]>>) {
        let Some(state) = self.simple() else {
            return;
        };
        let Some(contents) = contents else {
            let mut state = lock(state);
            state.unstored.remove(&unit);
            state.bad.insert(unit);
            return self.kept().forget(self.pages_of(unit));
        };
        let is_put = self.kept().put(self.pages_of(unit), &contents).is_ok();
        let mut state = lock(state);
        state.bad.remove(&unit);
        match is_put {
            true => state.unstored.remove(&unit),
            // There is no room in paging space: they stay in memory.
            false => state.unstored.insert(unit, contents),
        };
    }

    fn stored(&self, state: &Mutex<State>, unit: u64) -> Result<Box<[u8]>, PagerError> {
        let has = lock(state);
        if has.bad.contains(&unit) {
            return Err(UNREADABLE);
        }
        if let Some(contents) = has.unstored.get(&unit) {
            return Ok(contents.clone());
        }
        drop(has);
        self.kept().get(self.pages_of(unit), true)
    }

    /// Hosts have died, and the gate is closed.
    pub(super) fn simple_after(&self, places: &Places<'_>, died: Hosts) {
        for host in died.iter() {
            if let Some(state) = self.simple() {
                lock(state).lanes.is_gone(host);
            }
        }
        if self.is_homeless() {
            // Copies could be read on, but nobody would keep them as they are.
            let all = PageRange::new(0, places.kernel.pages());
            let _ = places.kernel.take_away(all);
            self.shell.paging_space.discard(places.number, all);
            self.touched()
                .into_iter()
                .for_each(|unit| self.fails(unit, HOMELESS));
            return;
        }
        for unit in self.touched() {
            for host in died.iter() {
                self.with(unit, |cell| {
                    if let Some(simple) = cell.unit.simple() {
                        simple.is_gone(host);
                    }
                });
            }
            self.carry_out(places, unit, None);
        }
    }
}
