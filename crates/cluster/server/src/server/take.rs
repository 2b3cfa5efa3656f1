//! What comes from other hosts, looked at before anything is done with it.

use std::sync::Arc;

use farpage_rules::coherence::{Epoch, Generation, HOSTS_MAX, Host, Message, Receipt, TwinMessage};
use farpage_sys::lock;

use super::{EARLY_MAX, Server, Wrong, wrong};
use crate::mirrored::{Parcel, Then, Written};
use crate::object::Shared;
use crate::parts::Place;
use crate::simple;
use crate::units::Units;
use crate::wire::{Garbled, Passed, Said, UNITS_MAX};

impl Server {
    /// A message has come from a peer.
    ///
    /// # Errors
    /// What is wrong with it; nothing was done then.
    pub fn received(&self, from: Host, bytes: &[u8]) -> Result<(), Wrong> {
        self.takes(from, bytes, false)
    }

    /// The same; `is_counted`: it had come before its object was open here.
    pub(super) fn takes(&self, from: Host, bytes: &[u8], is_counted: bool) -> Result<(), Wrong> {
        let bytes = Come { bytes, is_counted };
        let garbled = |error: Garbled| wrong(from, error);
        let (said, contents) = Said::take(bytes.bytes).map_err(garbled)?;
        match said {
            Said::Unit {
                object,
                unit,
                generation,
                origin,
                message,
            } => self.counted(from, object, generation, bytes, |shared| {
                take_unit(shared, (from, origin), unit, message, contents)
            }),
            Said::Parcel {
                object,
                generation,
                order,
                number,
                units,
                then,
            } => self.counted(from, object, generation, bytes, |shared| {
                let parcel = parcel(shared, units, then, contents);
                let (units, then) = parcel.map_err(|what| wrong(from, what))?;
                let parcel = Parcel {
                    number,
                    units,
                    then,
                };
                Ok(shared.parcel_came(from, order, parcel)?)
            }),
            Said::Arrived {
                object,
                generation,
                number,
            } => self.counted(from, object, generation, bytes, |shared| {
                shared.parcels_arrived(number);
                Ok(())
            }),
            Said::OnTwo {
                object,
                generation,
                units,
            } => self.counted(from, object, generation, bytes, |shared| {
                shared.are_on_two(units);
                Ok(())
            }),
            Said::Simple {
                object,
                unit,
                generation,
                number,
                message,
            } => self.counted(from, object, generation, bytes, |shared| {
                let contents = contents_of(shared, unit, message.has_contents(), contents);
                let said = simple::Said {
                    unit,
                    message,
                    contents: contents.map_err(|what| wrong(from, what))?,
                };
                Ok(shared.simple_came(from, number, said)?)
            }),
            Said::Twinned {
                object,
                unit,
                generation,
                message,
            } => self.counted(from, object, generation, bytes, |shared| {
                take_twinned(shared, from, unit, message, contents)
            }),
            Said::TakeOver {
                object,
                generation,
                units,
            } => self.counted(from, object, generation, bytes, |shared| {
                take_over(shared, &units).map_err(|what| wrong(from, what))
            }),
            Said::Touched { object, generation } => {
                self.counted(from, object, generation, bytes, |shared| {
                    let touched = Units::of(contents, shared.units());
                    let what = "units beyond the end of their object";
                    let touched = touched.ok_or_else(|| wrong(from, what))?;
                    Ok(shared.home_leaves(from, touched)?)
                })
            }
            Said::Leaves => {
                self.other_leaves(from);
                Ok(())
            }
            Said::Has {
                received,
                is_leaving,
            } => {
                self.other_has(from, received, is_leaving);
                Ok(())
            }
            Said::Part {
                message,
                part,
                count,
            } => {
                let place = Place {
                    message,
                    part,
                    count,
                };
                let whole = self.shell.parts.came(from, place, contents);
                let Some(whole) = whole.map_err(|what| wrong(from, what))? else {
                    return Ok(());
                };
                self.received(from, &whole)
            }
            Said::Began(generation) => {
                let entered = self.shell.gate.enter();
                let mut members = lock(&self.shell.members);
                if generation > members.view().generation {
                    // Who has just come may be heard of before it is seen.
                    lock(&self.kept).push((from, bytes.bytes.to_vec()));
                    return Ok(());
                }
                members.began(from, generation)?;
                let (fence, view) = (members.fence(), members.view());
                drop(members);
                if generation <= view.generation {
                    lock(&self.shell.met).add(from);
                }
                if generation >= fence
                    && let Some(now) = &mut *lock(&self.recovering)
                {
                    now.excuse(from);
                }
                drop(entered);
                self.goes_on();
                Ok(())
            }
            Said::Marker(marker) => {
                lock(&self.shell.members).marked(from, marker)?;
                self.goes_on();
                Ok(())
            }
            Said::Reports {
                fence,
                units,
                is_last,
            } => self.told(from, fence, bytes.bytes, |now| {
                now.reported(from, units, is_last)
            }),
            Said::Verdicts {
                fence,
                units,
                is_last,
            } => self.told(from, fence, bytes.bytes, |now| {
                now.decided(from, units, is_last)
            }),
        }
    }

    /// A message of an object has come, which counts in its view.
    fn counted(
        &self,
        from: Host,
        object: u64,
        generation: Generation,
        come: Come<'_>,
        take: impl FnOnce(&Shared) -> Result<(), Wrong>,
    ) -> Result<(), Wrong> {
        let entered = self.shell.gate.enter();
        let receipt = match come.is_counted {
            true => Receipt::Take,
            false => lock(&self.shell.members).receive(from, generation),
        };
        match receipt {
            Receipt::Take => {}
            Receipt::Keep => {
                lock(&self.kept).push((from, come.bytes.to_vec()));
                return Ok(());
            }
            Receipt::Refuse => return Ok(()),
        }
        lock(&self.shell.met).add(from);
        let opened = lock(&self.shared)
            .get(&object)
            .map(|open| Arc::clone(&open.shared));
        let taken = match opened {
            Some(shared) => take(&shared),
            None => self.comes_early(from, object, come.bytes),
        };
        drop(entered);
        self.goes_on();
        taken
    }

    /// A message of an object that is not open here: it waits until that is.
    fn comes_early(&self, from: Host, object: u64, bytes: &[u8]) -> Result<(), Wrong> {
        if self.shell.is_frozen() {
            // It is asked for, or brought, again.
            return Ok(());
        }
        if lock(&self.closed).contains(&object) {
            return Ok(());
        }
        let mut early = lock(&self.early);
        let is_new = !early.contains_key(&object);
        if is_new && early.len() >= EARLY_MAX {
            let what = "messages of too many objects that this host does not know";
            return Err(wrong(from, what));
        }
        let waiting = early.entry(object).or_default();
        waiting.push((from, bytes.to_vec()));
        Err(Wrong::Unknown { by: from, object })
    }
}

/// A message as it came.
#[derive(Clone, Copy)]
struct Come<'a> {
    bytes: &'a [u8],
    /// It is no more to be counted.
    is_counted: bool,
}

/// A host that leaves has units, which this one wants from now on.
fn take_over(shared: &Shared, units: &[(u64, u64)]) -> Result<(), &'static str> {
    let beyond = |(first, count): &(u64, u64)| {
        let end = first.checked_add(*count);
        end.is_none_or(|end| end > shared.units())
    };
    if units.iter().any(beyond) {
        return Err("units beyond the end of their object");
    }
    let units = units
        .iter()
        .flat_map(|(first, count)| *first..first + count);
    for (at, unit) in units.enumerate() {
        if at == UNITS_MAX {
            return Err("too many units to take over");
        }
        shared.takes_over(unit);
    }
    Ok(())
}

fn take_unit(
    shared: &Shared,
    (from, origin): (Host, Host),
    unit: u64,
    message: Message,
    contents: &[u8],
) -> Result<(), Wrong> {
    if origin != from && (!shared.is_mirrored() || origin.0 >= HOSTS_MAX) {
        return Err(wrong(from, "a message as another host"));
    }
    let contents = contents_of(shared, unit, message.has_contents(), contents);
    let contents = contents.map_err(|what| wrong(from, what))?;
    Ok(shared.came(origin, unit, message, contents)?)
}

/// Of an object with release consistency.
fn take_twinned(
    shared: &Shared,
    from: Host,
    unit: u64,
    message: TwinMessage,
    came: &[u8],
) -> Result<(), Wrong> {
    let came = match message {
        TwinMessage::Diff { .. } => {
            unit_bytes(shared, unit).map_err(|what| wrong(from, what))?;
            Some(came.into())
        }
        _ => {
            let came = contents_of(shared, unit, message.has_contents(), came);
            came.map_err(|what| wrong(from, what))?
        }
    };
    Ok(shared.twin_came(from, unit, message, came)?)
}

/// What came with a message of a unit: nothing, also where contents belong to it, when its sender cannot
/// read them.
fn contents_of(
    shared: &Shared,
    unit: u64,
    has_contents: bool,
    contents: &[u8],
) -> Result<Option<Box<[u8]>>, &'static str> {
    let bytes = unit_bytes(shared, unit)?;
    match contents.len() {
        0 => Ok(None),
        length if has_contents && length == bytes => Ok(Some(shared.at_home(unit, contents))),
        _ => Err("a message with the wrong number of bytes"),
    }
}

fn unit_bytes(shared: &Shared, unit: u64) -> Result<usize, &'static str> {
    match unit < shared.units() {
        true => Ok(shared.unit_bytes_of(unit)),
        false => Err("a message of a place beyond the end of its object"),
    }
}

/// A parcel, from what its head says and the contents behind it.
fn parcel(
    shared: &Shared,
    units: Vec<(u64, Epoch)>,
    then: Option<Passed>,
    mut contents: &[u8],
) -> Result<(Written, Option<Then>), &'static str> {
    if !shared.is_mirrored() {
        return Err("a parcel of an object that is not mirrored");
    }
    let mut take = |unit: u64| -> Result<Box<[u8]>, &'static str> {
        let bytes = unit_bytes(shared, unit)?;
        let parts = contents.split_at_checked(bytes);
        let (first, rest) = parts.ok_or("a parcel that is cut off")?;
        contents = rest;
        Ok(shared.at_home(unit, first))
    };
    let mut all = Written::new();
    for (unit, version) in units {
        all.push((unit, version, take(unit)?));
    }
    let then = match then {
        Some(Passed { to, unit, message }) => {
            if to.0 >= HOSTS_MAX || unit >= shared.units() {
                return Err("something to pass on that cannot be");
            }
            let is_along = all.iter().any(|(other, ..)| *other == unit);
            let has_own = message.has_contents() && !is_along;
            let contents = has_own.then(|| take(unit)).transpose()?;
            Some(Then {
                to,
                unit,
                message,
                contents,
            })
        }
        None => None,
    };
    match contents.is_empty() {
        true => Ok((all, then)),
        false => Err("a parcel with more than it says"),
    }
}
