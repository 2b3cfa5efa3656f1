//! Conditions: a word that counts how often somebody said that something has changed.

use crate::sync::words::{STATE, WAITING};
use crate::sync::{Ground, Patience, Slept, Steps, WakeAll};

/// Waits until the count is not what it was when the caller had the lock. False: its time was over
/// before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Await {
    turn: u64,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Sees,
    Announces { seen: u32 },
    Looks { seen: u32 },
    Sleeps { seen: u32 },
    LooksLast,
}

impl Await {
    /// `turn`: what [`STATE`] was.
    #[must_use]
    pub fn new(turn: u64) -> Self {
        Self {
            turn,
            step: Step::Sees,
        }
    }

    /// What it saw when it last looked, if the next thing that it does is to sleep.
    #[must_use]
    pub fn sleeps(&self) -> Option<(u32, Patience)> {
        match self.step {
            Step::Sleeps { seen } => Some((seen, Patience::Long)),
            Step::Sees | Step::Announces { .. } | Step::Looks { .. } | Step::LooksLast => None,
        }
    }
}

impl Steps for Await {
    type Outcome = bool;

    fn step<G: Ground>(&mut self, ground: &mut G) -> Result<Option<bool>, G::Error> {
        self.step = match self.step {
            Step::Sees => Step::Announces {
                seen: ground.seen(),
            },
            Step::Announces { seen } => {
                ground.set(WAITING, 1 << ground.host())?;
                Step::Looks { seen }
            }
            Step::Looks { seen } => match ground.load(STATE)? == self.turn {
                true => Step::Sleeps { seen },
                false => return Ok(Some(true)),
            },
            Step::Sleeps { seen } => match ground.sleep(seen, Patience::Long) {
                Slept::Woken | Slept::Looks => Step::Sees,
                Slept::TimedOut => Step::LooksLast,
            },
            Step::LooksLast => return Ok(Some(ground.load(STATE)? != self.turn)),
        };
        Ok(None)
    }
}

/// Says that something has changed: all who wait go on and look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Notify(Says);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Says {
    #[default]
    Looks,
    Counts(u64),
    Wakes(WakeAll),
}

impl Steps for Notify {
    type Outcome = ();

    fn step<G: Ground>(&mut self, ground: &mut G) -> Result<Option<()>, G::Error> {
        self.0 = match &mut self.0 {
            Says::Looks => Says::Counts(ground.load(STATE)?),
            Says::Counts(turn) => match ground.exchange(STATE, *turn, turn.wrapping_add(1))? {
                Ok(()) => Says::Wakes(WakeAll::default()),
                Err(other) => Says::Counts(other),
            },
            Says::Wakes(wakes) => {
                if wakes.step(ground)? {
                    return Ok(Some(()));
                }
                Says::Wakes(*wakes)
            }
        };
        Ok(None)
    }
}
