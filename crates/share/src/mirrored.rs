//! What a mirrored object needs at a host besides its cells: which parcels are on their way, and in
//! which order those of others are taken.
//!
//! Everything that happens to a mirrored object at a host happens one after the other: a parcel has
//! all that the host has written, and nothing may be shown between.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Mutex;

use farpage_coherence::{Epoch, Generation, Host, Message, Mirror};

use crate::cell::Event;
use crate::wire::Passed;

/// So much is written and on one host only; then a parcel goes, without anybody who waits for it.
pub(crate) const WRITTEN_BYTES_MAX: usize = 4 << 20;
/// Contents of a parcel at most, but for one unit: a backup has it in memory until all of it is there.
pub(crate) const PARCEL_BYTES_MAX: usize = 8 << 20;
/// Units of which others are told at a time that they need not keep them.
const ON_TWO_MAX: usize = 64;

/// What happens to a mirrored object.
pub(crate) enum Happening {
    /// To a unit.
    Unit(u64, Event),
    /// A host whose backup this one is has written.
    Parcel { from: Host, parcel: Parcel },
    /// The backup has all parcels up to this one.
    Arrived(u64),
    /// It is time to say which parcels have come.
    SayArrived,
    /// Units need not be kept before these versions.
    OnTwo(Vec<(u64, Epoch)>),
}

/// A unit that was written: version and contents.
pub(crate) type One = (u64, Epoch, Box<[u8]>);
/// Some of them.
pub(crate) type Written = Vec<One>;

/// Written units of another host, and what to pass on when they are kept.
pub(crate) struct Parcel {
    pub(crate) era: Generation,
    pub(crate) order: u64,
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
pub(crate) struct Mirrored {
    pub(crate) queue: Mutex<Queue>,
    pub(crate) state: Mutex<State>,
}

/// What has yet to happen.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) all: VecDeque<Happening>,
    /// Somebody is at work.
    pub(crate) is_busy: bool,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) mirror: Mirror,
    /// How many parcels went to a host since an era began.
    sent: HashMap<Host, (Generation, u64)>,
    /// What they had, until they are known to have arrived.
    flying: VecDeque<(u64, Vec<(u64, Epoch)>)>,
    /// On two hosts; others were not told yet.
    on_two: Vec<(u64, Epoch)>,
    coming: HashMap<Host, Coming>,
    /// The last parcels that came, of which their senders were not told.
    came: HashMap<Host, u64>,
    /// They will be.
    pub(crate) is_timed: bool,
}

/// Parcels of one host.
#[derive(Default)]
struct Coming {
    era: Generation,
    next: u64,
    early: BTreeMap<(Generation, u64), Parcel>,
}

impl State {
    /// Which parcel to a host the next one is, of this era.
    pub(crate) fn order(&mut self, to: Host, era: Generation) -> u64 {
        let (of, count) = self.sent.entry(to).or_insert((era, 0));
        if *of != era {
            (*of, *count) = (era, 0);
        }
        *count += 1;
        *count - 1
    }

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

    /// A parcel has come: those that it is time to take, in order. The error is what is wrong.
    pub(crate) fn came(&mut self, from: Host, parcel: Parcel) -> Result<Vec<Parcel>, &'static str> {
        let coming = self.coming.entry(from).or_default();
        let at = (parcel.era, parcel.order);
        if at < (coming.era, coming.next) || coming.early.contains_key(&at) {
            return Err("a parcel that has come");
        }
        if parcel.era > coming.era {
            // A sender begins an era when all of before has come, or never will.
            (coming.era, coming.next) = (parcel.era, 0);
            coming.early.retain(|(era, _), _| *era == parcel.era);
        }
        coming.early.insert(at, parcel);
        let mut due = Vec::new();
        while let Some(parcel) = coming.early.remove(&(coming.era, coming.next)) {
            coming.next += 1;
            self.came.insert(from, parcel.number);
            due.push(parcel);
        }
        Ok(due)
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BY: Host = Host(2);

    fn parcel(era: u64, order: u64) -> Parcel {
        Parcel {
            era: Generation(era),
            order,
            number: era * 10 + order,
            units: Vec::new(),
            then: None,
        }
    }

    fn came(state: &mut State, era: u64, order: u64) -> Option<Vec<u64>> {
        let due = state.came(BY, parcel(era, order)).ok()?;
        Some(due.iter().map(|parcel| parcel.number).collect())
    }

    #[test]
    fn parcels_are_taken_in_order() {
        let mut state = State::default();
        assert_eq!(came(&mut state, 1, 2), Some(vec![]));
        assert_eq!(came(&mut state, 1, 0), Some(vec![10]));
        assert_eq!(came(&mut state, 1, 0), None, "twice");
        assert_eq!(came(&mut state, 1, 2), None, "twice, and not taken yet");
        assert_eq!(came(&mut state, 1, 1), Some(vec![11, 12]));
        assert_eq!(state.take_came(), HashMap::from([(BY, 12)]));
        assert_eq!(came(&mut state, 4, 1), Some(vec![]));
        assert_eq!(came(&mut state, 1, 3), None, "of an era that is over");
        assert_eq!(came(&mut state, 4, 0), Some(vec![40, 41]));
    }

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

    #[test]
    fn parcels_to_each_host_are_counted_anew_in_each_era() {
        let mut state = State::default();
        let mut order = |to, era| state.order(Host(to), Generation(era));
        assert_eq!([order(1, 1), order(1, 1), order(2, 1)], [0, 1, 0]);
        assert_eq!([order(1, 5), order(1, 5), order(2, 5)], [0, 1, 0]);
    }
}
