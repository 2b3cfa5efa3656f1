//! An object to which everything happens one after the other at a host: nothing may be shown between the
//! gathering of what is written and its sending, and what the simple scheduler says is in order.

use farpage_rules::coherence::{Host, Violation};
use farpage_sys::lock;

use super::{Kind, Shared};
use crate::line::Happening;
use crate::wire::Said;

impl Shared {
    pub(super) fn is_in_line(&self) -> bool {
        match self.kind {
            Kind::Plain | Kind::Twinned(_) => false,
            Kind::Mirrored(_) | Kind::Simple(_) => true,
        }
    }

    /// Something happens to the object: it is done here, or by whoever is at work on it. The error is
    /// of the last message that cannot be.
    pub(super) fn happens_in_line(&self, happening: Happening) -> Result<(), Violation> {
        let _entered = self.shell.gate.enter();
        let is_busy = {
            let mut line = lock(&self.line);
            line.all.push_back(happening);
            std::mem::replace(&mut line.is_busy, true)
        };
        match is_busy {
            true => Ok(()),
            false => self.does_all_in_line(),
        }
    }

    /// A message of a host has come, with which it is time for these.
    pub(super) fn come_in_order(
        &self,
        from: Host,
        due: impl FnOnce() -> Result<Vec<Happening>, &'static str>,
    ) -> Result<(), Violation> {
        let _entered = self.shell.gate.enter();
        let is_busy = {
            // What is next is found and put into the line at once, or another thread overtakes.
            let mut line = lock(&self.line);
            let due = due().map_err(|what| Violation { by: from, what })?;
            line.all.extend(due);
            std::mem::replace(&mut line.is_busy, true)
        };
        match is_busy {
            true => Ok(()),
            false => self.does_all_in_line(),
        }
    }

    /// Does something to all of the object while the gate is closed; what happens meanwhile is done
    /// after it.
    pub(super) fn alone(&self, act: impl FnOnce()) {
        if !self.is_in_line() {
            return act();
        }
        let was_busy = std::mem::replace(&mut lock(&self.line).is_busy, true);
        assert!(!was_busy, "nobody is in the gate");
        act();
        if let Err(violation) = self.does_all_in_line() {
            farpage_sys::say!("farpage: {violation}");
        }
    }

    fn does_all_in_line(&self) -> Result<(), Violation> {
        let mut wrong = Ok(());
        loop {
            let next = {
                let mut line = lock(&self.line);
                let next = line.all.pop_front();
                line.is_busy = next.is_some();
                next
            };
            let Some(happening) = next else {
                return wrong;
            };
            if let Err(violation) = self.does_in_line(happening) {
                wrong = Err(violation);
            }
        }
    }

    fn does_in_line(&self, happening: Happening) -> Result<(), Violation> {
        match (happening, &self.kind) {
            (Happening::Unit(unit, event), Kind::Mirrored(mirrored)) => {
                let done = self.act(unit, event);
                self.mirrors_much(mirrored);
                done
            }
            (Happening::Unit(unit, event), Kind::Plain | Kind::Twinned(_) | Kind::Simple(_)) => {
                self.act(unit, event)
            }
            (Happening::Parcel { from, parcel }, Kind::Mirrored(mirrored)) => {
                self.takes_parcel(mirrored, from, parcel)
            }
            (Happening::Arrived(number), Kind::Mirrored(mirrored)) => {
                let on_two = lock(mirrored).arrived(number);
                self.releases(mirrored, &on_two);
                let told = lock(mirrored).tell();
                if let Some(units) = told {
                    self.tells_on_two(&units);
                }
                Ok(())
            }
            (Happening::SayArrived, Kind::Mirrored(mirrored)) => {
                let came = lock(mirrored).take_came();
                for (to, number) in came {
                    self.says(to, |generation| Said::Arrived {
                        object: self.about.number,
                        generation,
                        number,
                    });
                }
                Ok(())
            }
            (Happening::OnTwo(units), Kind::Mirrored(mirrored)) => {
                self.releases(mirrored, &units);
                Ok(())
            }
            (Happening::Simple { from, said }, Kind::Simple(_)) => self.simple_acts(from, said),
            // Refused before.
            (
                Happening::Parcel { .. }
                | Happening::Arrived(_)
                | Happening::SayArrived
                | Happening::OnTwo(_),
                Kind::Plain | Kind::Twinned(_) | Kind::Simple(_),
            )
            | (Happening::Simple { .. }, Kind::Plain | Kind::Twinned(_) | Kind::Mirrored(_)) => {
                Ok(())
            }
        }
    }
}
