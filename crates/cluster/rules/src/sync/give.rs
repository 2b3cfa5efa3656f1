//! To give back what was taken.

use crate::sync::words::{Held, WAITING};
use crate::sync::{Cell, Cells, Ground, Process, Steps, WakeAll};

/// Gives a place back. True: the process had one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Give {
    own: Process,
    cells: Cells,
    /// Whether who died matters to who has it next.
    keeps_mark: bool,
    at: u32,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Looks,
    LooksWhoWaits {
        word: u64,
    },
    Gives {
        word: u64,
        next: Option<u8>,
    },
    Clears {
        host: u8,
    },
    Wakes {
        host: u8,
    },
    /// No other host waited when it was looked at, before it was given back.
    LooksAgain(WakeAll),
}

impl Give {
    /// For process `own`.
    #[must_use]
    pub fn new(own: Process, cells: Cells, keeps_mark: bool) -> Self {
        Self {
            own,
            cells,
            keeps_mark,
            at: 0,
            step: Step::Looks,
        }
    }

    /// Which place it is about to give back by its next step.
    #[must_use]
    pub fn gives(&self) -> Option<u32> {
        match self.step {
            Step::Gives { .. } => Some(self.at),
            Step::Looks
            | Step::LooksWhoWaits { .. }
            | Step::Clears { .. }
            | Step::Wakes { .. }
            | Step::LooksAgain(_) => None,
        }
    }
}

/// Of those that wait the first after this host, in turn; this host is the last.
fn next(waiting: u64, own: u8) -> Option<u8> {
    let turned = waiting.rotate_right(u32::from(own) + 1);
    let further = turned.trailing_zeros();
    (waiting != 0).then(|| (u32::from(own) + 1 + further) as u8 % crate::sync::HOSTS_MAX)
}

impl Steps for Give {
    type Outcome = bool;

    fn step<G: Ground>(&mut self, ground: &mut G) -> Result<Option<bool>, G::Error> {
        let (place, own) = (self.cells.word(self.at), ground.host());
        self.step = match &mut self.step {
            Step::Looks => {
                let word = ground.load(place)?;
                match Cell::from_word(word).held {
                    Held::By(process) if process == self.own => Step::LooksWhoWaits { word },
                    Held::By(_) | Held::Free | Held::For(_) => {
                        self.at += 1;
                        if self.at == self.cells.count {
                            return Ok(Some(false));
                        }
                        Step::Looks
                    }
                }
            }
            Step::LooksWhoWaits { word } => {
                let next = next(ground.load(WAITING)?, own);
                Step::Gives { word: *word, next }
            }
            Step::Gives { word, next } => {
                let held = match next {
                    Some(host) if *host != own => Held::For(*host),
                    Some(_) | None => Held::Free,
                };
                let is_marked = self.keeps_mark && Cell::from_word(*word).is_marked;
                match (
                    ground.exchange(place, *word, Cell { held, is_marked }.word())?,
                    next,
                ) {
                    (Ok(()), Some(host)) if *host != own => Step::Clears { host: *host },
                    (Ok(()), Some(_) | None) => Step::LooksAgain(WakeAll::default()),
                    // Another thread of the process gave it back.
                    (Err(_), _) => {
                        self.at = 0;
                        Step::Looks
                    }
                }
            }
            Step::Clears { host } => {
                ground.clear(WAITING, 1 << *host)?;
                Step::Wakes { host: *host }
            }
            Step::Wakes { host } => {
                ground.wake(1 << *host)?;
                return Ok(Some(true));
            }
            Step::LooksAgain(wakes) => {
                if wakes.step(ground)? {
                    return Ok(Some(true));
                }
                Step::LooksAgain(*wakes)
            }
        };
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::next;

    #[test]
    fn hosts_have_their_turn_one_after_another() {
        assert_eq!(next(0, 3), None);
        assert_eq!(next(0b1001, 3), Some(0), "itself is the last");
        assert_eq!(next(0b1000, 3), Some(3));
        assert_eq!(next(1 << 63 | 1 << 5, 5), Some(63));
        assert_eq!(next(1 << 63 | 1, 63), Some(0));
        assert_eq!(next(0b110, 0), Some(1));
        assert_eq!(next(0b110, 1), Some(2));
        assert_eq!(next(0b110, 2), Some(1));
    }
}
