//! Which words of a unit this host changes, while somebody wants to know: what it has when it may write is
//! compared with what it has when it may not any more.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Bytes of what is compared.
const WORD_BYTES: usize = 8;
/// A unit is looked at so long after somebody last wanted to know.
const PATIENCE: Duration = Duration::from_secs(10);
/// Runs of words that are told at most.
const RUNS_MAX: usize = 64;

/// What a host changed of a unit while that was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Times that it might write, and then not any more.
    pub turns: u32,
    /// Words of 8 bytes that had other contents after that: so many from each first one.
    pub words: Vec<(u32, u32)>,
    /// There are more than are told.
    pub is_cut: bool,
    /// Who of this host faulted on it, those that did most first, in words: a process and a place in its
    /// program.
    pub by: Vec<(String, u32)>,
}

/// A unit that is looked at.
pub(crate) struct Watch {
    asked: Instant,
    /// What it was when threads here were let in to write.
    was: Option<Box<[u8]>>,
    turns: u32,
    /// A bit for each word that was changed.
    words: Vec<u64>,
}

impl Watch {
    /// Of a unit of so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            asked: Instant::now(),
            was: None,
            turns: 0,
            words: vec![0; bytes.div_ceil(WORD_BYTES * 64)],
        }
    }

    /// Somebody wants to know.
    pub(crate) fn is_asked(&mut self) {
        self.asked = Instant::now();
    }

    /// Nobody does any more.
    pub(crate) fn is_over(&self) -> bool {
        self.asked.elapsed() > PATIENCE
    }

    /// This host may write, and these are the contents before that.
    pub(crate) fn begins(&mut self, contents: Box<[u8]>) {
        self.was = Some(contents);
    }

    /// True when it is known what was there before threads here wrote.
    pub(crate) fn has_begun(&self) -> bool {
        self.was.is_some()
    }

    /// It may not write any more, and these are the contents after that.
    pub(crate) fn ends(&mut self, contents: &[u8]) {
        let Some(was) = self.was.take() else {
            return;
        };
        self.turns = self.turns.saturating_add(1);
        let both = was.chunks(WORD_BYTES).zip(contents.chunks(WORD_BYTES));
        for (at, _) in both.enumerate().filter(|(_, (was, is))| was != is) {
            self.words[at / 64] |= 1 << (at % 64);
        }
    }

    /// What was found so far.
    pub(crate) fn changed(&self) -> Changed {
        let has = |at: &usize| self.words[at / 64] >> (at % 64) & 1 == 1;
        let mut words: Vec<(u32, u32)> = Vec::new();
        let mut is_cut = false;
        for at in (0..self.words.len() * 64).filter(has) {
            let at = at as u32;
            let has_room = words.len() < RUNS_MAX;
            match words.last_mut() {
                Some((first, count)) if *first + *count == at => *count += 1,
                Some(_) | None if has_room => words.push((at, 1)),
                Some(_) | None => {
                    is_cut = true;
                    break;
                }
            }
        }
        Changed {
            turns: self.turns,
            words,
            is_cut,
            by: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_differ_after_a_turn_are_told_in_runs() {
        let mut watch = Watch::new(4096);
        watch.ends(&[1; 4096]);
        assert_eq!(
            watch.changed(),
            Changed::default(),
            "it is not known what was before"
        );
        watch.begins(vec![0; 4096].into());
        let mut now = vec![0; 4096];
        (now[0], now[15], now[800], now[4095]) = (1, 1, 1, 1);
        watch.ends(&now);
        watch.begins(now.clone().into());
        now[16] = 7;
        watch.ends(&now);
        let changed = watch.changed();
        assert_eq!(changed.words, [(0, 3), (100, 1), (511, 1)]);
        assert_eq!((changed.turns, changed.is_cut), (2, false));
    }

    #[test]
    fn many_runs_are_cut() {
        let mut watch = Watch::new(4096);
        watch.begins(vec![0; 4096].into());
        let now: Vec<u8> = (0..4096).map(|at| u8::from(at / 8 % 2 == 0)).collect();
        watch.ends(&now);
        let changed = watch.changed();
        assert!(changed.is_cut && changed.words.len() == RUNS_MAX);
        assert!(!watch.is_over());
    }
}
