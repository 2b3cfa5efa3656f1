//! Whether what was read from a word and written to it is what a single memory does.

use std::collections::BTreeMap;

/// What was done to a word, between two moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub begun: i64,
    pub ended: i64,
    pub value: u64,
    pub is_write: bool,
}

/// The first contents, 0, were written before the history began.
pub const FIRST: Done = Done {
    begun: -2,
    ended: -1,
    value: 0,
    is_write: true,
};

/// Why the history of a word is not one of a single register: no two writes are of one value, so
/// that it is known which write each read saw. The word has a value at least from the first end of
/// what wrote or read it to the last begin of that, if those are in this order: then no other value
/// has it meanwhile, for as long or for a moment (Gibbons and Korach, Testing shared memories, 1997).
pub fn wrong(history: &[Done]) -> Option<String> {
    let mut of_value: BTreeMap<u64, Vec<Done>> = BTreeMap::new();
    for done in history {
        of_value.entry(done.value).or_default().push(*done);
    }
    let mut zones = Vec::new();
    for (value, all) in &of_value {
        let Some(write) = all.iter().find(|done| done.is_write) else {
            return Some(format!("nobody wrote {all:?}"));
        };
        if let Some(early) = all.iter().find(|done| done.ended < write.begun) {
            return Some(format!("{early:?} before {write:?}"));
        }
        let first_end = all.iter().map(|done| done.ended).min();
        let last_begin = all.iter().map(|done| done.begun).max();
        let (first_end, last_begin) = first_end.zip(last_begin).expect("it was written");
        zones.push((*value, first_end, last_begin));
    }
    for one in zones.iter().filter(|one| one.1 < one.2) {
        for other in zones.iter().filter(|other| other.0 != one.0) {
            let (from, to) = (other.1.min(other.2), other.1.max(other.2));
            let is_for_long = other.1 < other.2;
            let is_meanwhile = match is_for_long {
                true => one.1 < to && from < one.2,
                false => one.1 < from && to < one.2,
            };
            if is_meanwhile {
                return Some(format!(
                    "{:?} and {:?} at one time",
                    of_value[&one.0], of_value[&other.0]
                ));
            }
        }
    }
    None
}
