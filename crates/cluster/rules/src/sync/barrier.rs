//! Barriers: nobody goes on before all parties have come.

use crate::sync::words::{STATE, WAITING, is_of, party, party_of};
use crate::sync::{Cells, Ground, Patience, Process, Slept, Steps, WakeAll};

/// What came of [`Arrive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arrived {
    /// All have come; the number of the caller's cell, which no other party of this time has.
    All(u32),
    /// A party died, did not wait any longer, or somebody has broken the barrier.
    Broken,
}

const BROKEN: u64 = 1;
/// A reset begins a new epoch.
const EPOCH: u64 = 1 << 40;

/// The state: an epoch, a generation, and whether it is broken.
fn generation(state: u64) -> u64 {
    state >> 1
}

/// Arrives, and waits for all others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Arrive {
    own: Process,
    cells: Cells,
    at: u32,
    /// The state in which it arrives.
    state: u64,
    step: Step,
}

/// Which cell suits best: its own of before, one that nobody ever had, any that is not marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Suits {
    Free,
    New,
    Own,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Begins,
    /// Finds a cell: the best so far.
    Finds(Option<(Suits, u32, u64)>),
    Marks {
        at: u32,
        word: u64,
    },
    /// Have all come? If not, it may ask whether those live that have not.
    Counts {
        own: u32,
        asks: bool,
        is_all: bool,
    },
    Asks {
        own: u32,
        party: Process,
    },
    /// All have come, the caller among them or not.
    Completes {
        own: Option<u32>,
    },
    /// Somebody will not.
    Breaks {
        own: u32,
    },
    /// And then this comes of it, or it begins anew.
    Wakes {
        then: Option<Arrived>,
        wakes: WakeAll,
    },
    Sees {
        own: u32,
    },
    Announces {
        own: u32,
        seen: u32,
    },
    Looks {
        own: u32,
        seen: u32,
    },
    Sleeps {
        own: u32,
        seen: u32,
    },
}

impl Arrive {
    /// For process `own`.
    #[must_use]
    pub fn new(own: Process, cells: Cells) -> Self {
        Self {
            own,
            cells,
            at: 0,
            state: 0,
            step: Step::Begins,
        }
    }

    /// What it saw when it last looked, if the next thing that it does is to sleep.
    #[must_use]
    pub fn sleeps(&self) -> Option<(u32, Patience)> {
        match self.step {
            Step::Sleeps { seen, .. } => Some((seen, Patience::Long)),
            Step::Begins
            | Step::Finds(_)
            | Step::Marks { .. }
            | Step::Counts { .. }
            | Step::Asks { .. }
            | Step::Completes { .. }
            | Step::Breaks { .. }
            | Step::Wakes { .. }
            | Step::Sees { .. }
            | Step::Announces { .. }
            | Step::Looks { .. } => None,
        }
    }

    fn counts(&mut self, own: u32, asks: bool) -> Step {
        self.at = 0;
        Step::Counts {
            own,
            asks,
            is_all: true,
        }
    }

    /// After a cell that suits so well, the next one, or the best.
    fn found(&mut self, best: Option<(Suits, u32, u64)>) -> Step {
        self.at += 1;
        match best {
            _ if self.at < self.cells.count => Step::Finds(best),
            Some((_, at, word)) => Step::Marks { at, word },
            // All have come, and nobody has said so yet.
            None => Step::Completes { own: None },
        }
    }

    fn suits(&self, word: u64) -> Option<Suits> {
        match party_of(word) {
            _ if is_of(word, generation(self.state)) => None,
            None => Some(Suits::New),
            Some(process) if process == self.own => Some(Suits::Own),
            Some(_) => Some(Suits::Free),
        }
    }

    /// After a cell, the next; after the last one what follows from all.
    fn counted(&mut self, own: u32, asks: bool, is_all: bool) -> Step {
        self.at += 1;
        match is_all {
            _ if self.at < self.cells.count => Step::Counts { own, asks, is_all },
            true => Step::Completes { own: Some(own) },
            false => Step::Sees { own },
        }
    }

    /// The state is not the one in which it arrived.
    fn is_over(&self, own: u32, state: u64) -> Arrived {
        match state & BROKEN == 0 && state / EPOCH == self.state / EPOCH {
            true => Arrived::All(own),
            false => Arrived::Broken,
        }
    }
}

impl Steps for Arrive {
    type Outcome = Arrived;

    fn step<G: Ground>(&mut self, ground: &mut G) -> Result<Option<Arrived>, G::Error> {
        let cell = self.cells.word(self.at);
        self.step = match self.step {
            Step::Begins => {
                (self.state, self.at) = (ground.load(STATE)?, 0);
                if self.state & BROKEN != 0 {
                    return Ok(Some(Arrived::Broken));
                }
                Step::Finds(None)
            }
            Step::Finds(best) => {
                let word = ground.load(cell)?;
                let suits = self.suits(word).map(|suits| (suits, self.at, word));
                let is_better = |(one, ..): (Suits, u32, u64)| best.is_none_or(|(b, ..)| one > b);
                let best = suits.filter(|one| is_better(*one)).or(best);
                self.found(best)
            }
            Step::Marks { at, word } => {
                let marked = party(self.own, generation(self.state));
                match ground.exchange(self.cells.word(at), word, marked)? {
                    Ok(()) => self.counts(at, false),
                    Err(_) => Step::Begins,
                }
            }
            Step::Counts { own, asks, is_all } => {
                let word = ground.load(cell)?;
                match party_of(word) {
                    _ if is_of(word, generation(self.state)) => self.counted(own, asks, is_all),
                    Some(party) if asks => Step::Asks { own, party },
                    Some(_) | None => self.counted(own, asks, false),
                }
            }
            Step::Asks { own, party } => match ground.lives(party)? {
                true => self.counted(own, true, false),
                false => Step::Breaks { own },
            },
            Step::Completes { own } => {
                match (ground.exchange(STATE, self.state, self.state + 2)?, own) {
                    (Ok(()), own) => Step::Wakes {
                        then: own.map(Arrived::All),
                        wakes: WakeAll::default(),
                    },
                    (Err(_), None) => Step::Begins,
                    (Err(state), Some(own)) => return Ok(Some(self.is_over(own, state))),
                }
            }
            Step::Breaks { own } => {
                match ground.exchange(STATE, self.state, self.state | BROKEN)? {
                    Ok(()) => Step::Wakes {
                        then: Some(Arrived::Broken),
                        wakes: WakeAll::default(),
                    },
                    Err(state) => return Ok(Some(self.is_over(own, state))),
                }
            }
            Step::Wakes { then, mut wakes } => match (wakes.step(ground)?, then) {
                (false, then) => Step::Wakes { then, wakes },
                (true, None) => Step::Begins,
                (true, Some(arrived)) => return Ok(Some(arrived)),
            },
            Step::Sees { own } => Step::Announces {
                own,
                seen: ground.seen(),
            },
            Step::Announces { own, seen } => {
                ground.set(WAITING, 1 << ground.host())?;
                Step::Looks { own, seen }
            }
            Step::Looks { own, seen } => match ground.load(STATE)? {
                state if state == self.state => Step::Sleeps { own, seen },
                state => return Ok(Some(self.is_over(own, state))),
            },
            Step::Sleeps { own, seen } => match ground.sleep(seen, Patience::Long) {
                Slept::Woken => Step::Sees { own },
                Slept::Looks => self.counts(own, true),
                Slept::TimedOut => Step::Breaks { own },
            },
        };
        Ok(None)
    }
}

/// Breaks a barrier, which ends all waiting for it, and makes it as new if that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reset {
    cells: Cells,
    at: u32,
    is_new: bool,
    step: Resets,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Resets {
    Looks,
    Breaks(u64),
    Wakes(u64, WakeAll),
    Clears(u64),
    Begins(u64),
}

impl Reset {
    /// `is_new`: it can be used again then.
    #[must_use]
    pub fn new(cells: Cells, is_new: bool) -> Self {
        Self {
            cells,
            at: 0,
            is_new,
            step: Resets::Looks,
        }
    }
}

impl Steps for Reset {
    type Outcome = ();

    fn step<G: Ground>(&mut self, ground: &mut G) -> Result<Option<()>, G::Error> {
        self.step = match &mut self.step {
            Resets::Looks => Resets::Breaks(ground.load(STATE)?),
            Resets::Breaks(state) => {
                let broken = *state | BROKEN;
                match ground.exchange(STATE, *state, broken)? {
                    Ok(()) => Resets::Wakes(broken, WakeAll::default()),
                    Err(other) => Resets::Breaks(other),
                }
            }
            Resets::Wakes(state, wakes) => match wakes.step(ground)? {
                true if self.is_new => Resets::Clears(*state),
                true => return Ok(Some(())),
                false => Resets::Wakes(*state, *wakes),
            },
            Resets::Clears(state) => {
                ground.clear(self.cells.word(self.at), u64::MAX)?;
                self.at += 1;
                match self.at < self.cells.count {
                    true => Resets::Clears(*state),
                    false => Resets::Begins(*state),
                }
            }
            Resets::Begins(state) => {
                let next = (*state / EPOCH + 1).wrapping_mul(EPOCH);
                // Another reset may have been faster.
                let _ = ground.exchange(STATE, *state, next)?;
                return Ok(Some(()));
            }
        };
        Ok(None)
    }
}
