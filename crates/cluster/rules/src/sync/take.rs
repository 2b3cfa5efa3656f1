//! To take a lock, or a place of a semaphore.

use crate::sync::words::{Held, WAITING};
use crate::sync::{Cell, Cells, Ground, Patience, Process, Slept, Steps};

/// What came of [`Take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Taken {
    /// The caller has it.
    Taken {
        /// A process died that had it, and nobody has said since that all is right.
        is_marked: bool,
    },
    /// Others have all that there is, and the caller does not wait any longer.
    Busy,
}

/// Takes one of some places, and waits until one is free.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Take {
    own: Process,
    cells: Cells,
    waits: bool,
    /// Nobody came for a place that was kept, for long enough.
    is_impatient: bool,
    /// It has said that it waits.
    has_announced: bool,
    at: u32,
    round: Round,
    step: Step,
}

/// Why the places are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Round {
    /// Before anything is said.
    First,
    /// It is known that threads of this host wait. What was seen before, and whether a place is kept
    /// for another host.
    Announced { seen: u32, is_kept: bool },
    /// Whether who has them lives.
    Asks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Looks,
    Takes {
        word: u64,
        is_dead: bool,
    },
    Asks {
        word: u64,
        holder: Process,
    },
    Sees,
    Announces {
        seen: u32,
    },
    Sleeps {
        seen: u32,
        is_kept: bool,
    },
    /// Nobody is to take it for waiting any more: it has a place, or its time is over.
    Forgets {
        has: Option<Taken>,
    },
    /// Others of its host say again that they wait.
    WakesOwn {
        has: Option<Taken>,
    },
}

impl Take {
    /// For process `own`. Who does not wait takes what is free, or a dead process's.
    #[must_use]
    pub fn new(own: Process, cells: Cells, waits: bool) -> Self {
        Self {
            own,
            cells,
            waits,
            is_impatient: false,
            has_announced: false,
            at: 0,
            round: Round::First,
            step: Step::Looks,
        }
    }

    /// What it saw when it last looked, if the next thing that it does is to sleep.
    #[must_use]
    pub fn sleeps(&self) -> Option<(u32, Patience)> {
        match self.step {
            Step::Sleeps { seen, is_kept } => Some((seen, patience(is_kept))),
            Step::Looks
            | Step::Takes { .. }
            | Step::Asks { .. }
            | Step::Sees
            | Step::Announces { .. }
            | Step::Forgets { .. }
            | Step::WakesOwn { .. } => None,
        }
    }

    fn begins(&mut self, round: Round) -> Step {
        (self.round, self.at) = (round, 0);
        Step::Looks
    }

    /// What to do about a place.
    fn looked(&mut self, word: u64, own: u8) -> Result<Step, Taken> {
        let takes = Step::Takes {
            word,
            is_dead: false,
        };
        match (Cell::from_word(word).held, &mut self.round) {
            (Held::Free, _) => Ok(takes),
            (Held::For(host), _) if host == own || self.is_impatient => Ok(takes),
            (Held::For(_), Round::Announced { is_kept, .. }) => {
                *is_kept = true;
                self.next()
            }
            // It is not waited for: who waits for it may never come.
            (Held::For(_), Round::First | Round::Asks) if !self.waits => Ok(takes),
            (Held::For(_), Round::First | Round::Asks) => self.next(),
            (Held::By(holder), Round::Asks) if holder != self.own => {
                Ok(Step::Asks { word, holder })
            }
            (Held::By(_), Round::First | Round::Announced { .. } | Round::Asks) => self.next(),
        }
    }

    /// Goes on to the next place; after the last, to what follows.
    fn next(&mut self) -> Result<Step, Taken> {
        self.at += 1;
        if self.at < self.cells.count {
            return Ok(Step::Looks);
        }
        match self.round {
            Round::First if self.waits => Ok(Step::Sees),
            Round::First => Ok(self.begins(Round::Asks)),
            Round::Announced { seen, is_kept } => Ok(Step::Sleeps { seen, is_kept }),
            Round::Asks if self.waits => Ok(Step::Sees),
            Round::Asks => Err(Taken::Busy),
        }
    }

    fn ended(&self, taken: Taken) -> Result<Step, Taken> {
        match self.has_announced {
            true => Ok(Step::Forgets { has: Some(taken) }),
            false => Err(taken),
        }
    }

    fn forgot(&mut self, has: Option<Taken>) -> Result<Step, Taken> {
        match has {
            Some(taken) => Err(taken),
            None => {
                // Who often waits for a moment finds a death, too.
                (self.has_announced, self.waits) = (false, false);
                Ok(self.begins(Round::Asks))
            }
        }
    }

    fn slept(&mut self, slept: Slept, is_kept: bool) -> Step {
        match slept {
            Slept::Woken => self.begins(Round::First),
            Slept::Looks if is_kept => {
                self.is_impatient = true;
                self.begins(Round::First)
            }
            Slept::Looks => self.begins(Round::Asks),
            Slept::TimedOut => Step::Forgets { has: None },
        }
    }
}

fn patience(is_kept: bool) -> Patience {
    match is_kept {
        true => Patience::Short,
        false => Patience::Long,
    }
}

impl Steps for Take {
    type Outcome = Taken;

    fn step<G: Ground>(&mut self, ground: &mut G) -> Result<Option<Taken>, G::Error> {
        let place = self.cells.word(self.at);
        let next = match self.step {
            Step::Looks => self.looked(ground.load(place)?, ground.host()),
            Step::Takes { word, is_dead } => {
                let is_marked = is_dead || Cell::from_word(word).is_marked;
                let held = Held::By(self.own);
                let taken = Cell { held, is_marked }.word();
                match ground.exchange(place, word, taken)? {
                    Ok(()) => self.ended(Taken::Taken { is_marked }),
                    Err(_) => Ok(Step::Looks),
                }
            }
            Step::Asks { word, holder } => match ground.lives(holder)? {
                true => self.next(),
                false => Ok(Step::Takes {
                    word,
                    is_dead: true,
                }),
            },
            Step::Sees => Ok(Step::Announces {
                seen: ground.seen(),
            }),
            Step::Announces { seen } => {
                ground.set(WAITING, 1 << ground.host())?;
                self.has_announced = true;
                let is_kept = false;
                Ok(self.begins(Round::Announced { seen, is_kept }))
            }
            Step::Sleeps { seen, is_kept } => {
                let slept = ground.sleep(seen, patience(is_kept));
                Ok(self.slept(slept, is_kept))
            }
            Step::Forgets { has } => {
                let own = 1 << ground.host();
                match (ground.clear(WAITING, own)?, has) {
                    // Who waits was told already.
                    (0, has) => self.forgot(has),
                    (_, has) => Ok(Step::WakesOwn { has }),
                }
            }
            Step::WakesOwn { has } => {
                ground.wake(1 << ground.host())?;
                self.forgot(has)
            }
        };
        match next {
            Ok(step) => {
                self.step = step;
                Ok(None)
            }
            Err(taken) => Ok(Some(taken)),
        }
    }
}
