//! What a mirrored object needs at a host besides its cells: which parcels are on their way, and what
//! they had.

use std::collections::{HashMap, VecDeque};

use farpage_rules::coherence::{Epoch, Host, Message, Mirror};

use crate::line::Lanes;
use crate::wire::Passed;

/// So much is written and on one host only; then a parcel goes, without anybody who waits for it.
pub(crate) const WRITTEN_BYTES_MAX: usize = 4 << 20;
/// Contents of a parcel at most, but for one unit: a backup has it in memory until all of it is there.
pub(crate) const PARCEL_BYTES_MAX: usize = 8 << 20;
/// Units of which others are told at a time that they need not keep them.
const ON_TWO_MAX: usize = 64;

/// A unit that was written: version and contents.
pub(crate) type One = (u64, Epoch, Box<[u8]>);
/// Some of them.
pub(crate) type Written = Vec<One>;

/// Written units of another host, and what to pass on when they are kept.
pub(crate) struct Parcel {
    pub(crate) number: u64,
    pub(crate) units: Written,
    pub(crate) then: Option<Then>,
}

/// What is passed on.
pub(crate) struct Then {
    pub(crate) to: Host,
    pub(crate) unit: u64,
    pub(crate) message: Message,
    pub(crate) contents: Option<Box<[u8]>>,
}

impl Then {
    pub(crate) fn passed(&self) -> Passed {
        Passed {
            to: self.to,
            unit: self.unit,
            message: self.message.clone(),
        }
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) mirror: Mirror,
    pub(crate) lanes: Lanes<Parcel>,
    /// What they had, until they are known to have arrived.
    flying: VecDeque<(u64, Vec<(u64, Epoch)>)>,
    /// On two hosts; others were not told yet.
    on_two: Vec<(u64, Epoch)>,
    /// The last parcels that came, of which their senders were not told.
    came: HashMap<Host, u64>,
    /// They will be.
    pub(crate) is_timed: bool,
    /// Several hosts have died since all went on: what the last had seen of another may be with none
    /// that lives.
    pub(crate) loses_several: bool,
    /// The home was among such, once: it had what nobody knows of.
    pub(crate) has_lost_home: bool,
}

impl State {
    /// A parcel was sent with these.
    pub(crate) fn flies(&mut self, number: u64, units: Vec<(u64, Epoch)>) {
        self.flying.push_back((number, units));
    }

    /// Parcels that are not known to have arrived.
    pub(crate) fn on_their_way(&self) -> u64 {
        self.flying.len() as u64
    }

    /// The backup has all parcels up to this one: what is on two hosts by that.
    pub(crate) fn arrived(&mut self, number: u64) -> Vec<(u64, Epoch)> {
        self.mirror.arrived(number);
        let mut all = Vec::new();
        while self
            .flying
            .front()
            .is_some_and(|(first, _)| *first <= number)
        {
            all.extend(self.flying.pop_front().into_iter().flat_map(|one| one.1));
        }
        self.on_two.extend(all.iter().copied());
        all
    }

    /// What others are told now, if it is worth while.
    pub(crate) fn tell(&mut self) -> Option<Vec<(u64, Epoch)>> {
        (self.on_two.len() >= ON_TWO_MAX).then(|| std::mem::take(&mut self.on_two))
    }

    /// A parcel was taken.
    pub(crate) fn took(&mut self, from: Host, number: u64) {
        self.came.insert(from, number);
    }

    /// Whose parcels have come, up to which, since this was last asked.
    pub(crate) fn take_came(&mut self) -> HashMap<Host, u64> {
        self.is_timed = false;
        std::mem::take(&mut self.came)
    }

    /// All go on after a death.
    pub(crate) fn resume(&mut self) {
        self.mirror.resume();
        self.flying.clear();
        self.loses_several = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_arrived_is_on_two_hosts() {
        let mut state = State::default();
        let (one, two) = ((7, Epoch(3)), (8, Epoch(1)));
        state.flies(1, vec![one]);
        state.flies(2, vec![two]);
        assert_eq!(state.arrived(1), [one]);
        assert_eq!(state.arrived(1), []);
        assert_eq!(state.arrived(2), [two]);
        assert_eq!(state.tell(), None);
        state.flies(3, vec![one; ON_TWO_MAX]);
        state.arrived(3);
        assert_eq!(state.tell().unwrap().len(), ON_TWO_MAX + 2);
        assert_eq!(state.tell(), None);
    }
}
