//! What must hold of what programs did, whatever failed meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use super::program::WORDS;

use crate::checker::{self, Done, FIRST};

/// Something that a program did to a word.
#[derive(Clone, Copy, Debug)]
pub struct Act {
    /// Which program.
    pub session: u64,
    pub word: usize,
    pub done: Done,
}

/// What is known beside it.
pub struct About<'a> {
    /// The host of each program.
    pub hosts: &'a BTreeMap<u64, u8>,
    /// Hosts of which a stay has ended meanwhile: what only they had seen may be undone.
    pub out: &'a BTreeSet<u8>,
    /// Hosts whose kernels were stopped. From the end of its lease on such a host's programs go on with
    /// the pages that they have, until their kernel goes on and finds itself out.
    pub stopped: &'a BTreeSet<u8>,
    /// What another host has seen is on two hosts, and all that its writer wrote before.
    pub is_mirrored: bool,
}

/// What a program recorded. A write of which only the beginning is there may have been done or not.
pub fn acts(session: u64, record: &str) -> Vec<Act> {
    let mut acts: Vec<Act> = Vec::new();
    // The last line may have been cut off.
    let whole = record
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    for line in whole {
        let words: Vec<&str> = line.trim_end().split(' ').collect();
        let [kind, word, begun, ended, value] = words[..] else {
            panic!("{line}?");
        };
        let is_begun = kind == "b";
        let done = Done {
            begun: begun.parse().unwrap(),
            ended: if is_begun {
                i64::MAX
            } else {
                ended.parse().unwrap()
            },
            value: value.parse().unwrap(),
            is_write: kind != "r",
        };
        let word = word.parse().unwrap();
        let act = Act {
            session,
            word,
            done,
        };
        match acts.last_mut() {
            Some(last) if kind == "w" && last.done.ended == i64::MAX => *last = act,
            Some(_) | None => acts.push(act),
        }
    }
    acts
}

/// Who wrote a value.
fn writer(value: u64) -> u64 {
    value >> 32
}

/// Why these are not what programs of one memory do. How many reads saw what another host wrote.
pub fn check(acts: &[Act], about: &About) -> Result<usize, String> {
    let reads = acts
        .iter()
        .filter(|act| !act.done.is_write && act.done.value > 0);
    let is_out = |session: u64| about.out.contains(&about.hosts[&session]);
    let of_others = |act: &&Act| about.hosts[&act.session] != about.hosts[&writer(act.done.value)];
    let of_others: Vec<&Act> = reads.clone().filter(of_others).collect();
    let read: BTreeSet<u64> = reads.map(|act| act.done.value).collect();
    // One that has died itself may take what it saw along, when it is not the only one.
    let counts = |act: &&&Act| about.out.len() < 2 || !is_out(act.session);
    let seen: BTreeSet<u64> = of_others
        .iter()
        .filter(counts)
        .map(|act| act.done.value)
        .collect();
    // The last write of a program that another host has seen, and with it all before.
    let mut kept: BTreeMap<u64, i64> = BTreeMap::new();
    for act in acts.iter().filter(|act| act.done.is_write) {
        if about.is_mirrored && about.out.len() < 2 && seen.contains(&act.done.value) {
            let begun = kept.entry(act.session).or_insert(act.done.begun);
            *begun = act.done.begun.max(*begun);
        }
    }
    let is_kept = |act: &Act| {
        let before = kept.get(&act.session);
        seen.contains(&act.done.value) || before.is_some_and(|begun| act.done.ended < *begun)
    };
    let may_be_undone = |act: &Act| {
        let was_done = act.done.ended < i64::MAX || read.contains(&act.done.value);
        act.done.is_write && (!was_done || is_out(act.session) && !is_kept(act))
    };
    let may_be_old = |act: &Act| {
        let is_stopped = about.stopped.contains(&about.hosts[&act.session]);
        !act.done.is_write && is_stopped && is_out(act.session)
    };
    let undone = acts.iter().filter(|act| may_be_undone(act));
    let undone: BTreeSet<u64> = undone.map(|act| act.done.value).collect();
    for word in 0..WORDS {
        let of_word = acts.iter().filter(|act| act.word == word);
        let counts = of_word.filter(|act| !undone.contains(&act.done.value) && !may_be_old(act));
        let history: Vec<Done> = [FIRST]
            .into_iter()
            .chain(counts.map(|act| act.done))
            .collect();
        if let Some(why) = checker::wrong(&history) {
            return Err(format!("word {word}: {why}\n{}", who(acts, &why, about)));
        }
    }
    Ok(of_others.len())
}

/// Who did what is wrong.
fn who(acts: &[Act], why: &str, about: &About) -> String {
    let mut told: Vec<&Act> = acts
        .iter()
        .filter(|act| why.contains(&format!("value: {},", act.done.value)))
        .collect();
    told.sort_by_key(|act| act.done.begun);
    let line = |act: &&Act| {
        let (host, done) = (about.hosts[&act.session], act.done);
        let what = if done.is_write { "writes" } else { "reads" };
        let Act { session, word, .. } = act;
        let Done {
            begun,
            ended,
            value,
            ..
        } = done;
        format!(
            "program {session} of host{host} {what} word {word}: {value} from {begun} to {ended}"
        )
    };
    told.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Whether it is seen that these are wrong when the last read that saw a write of another host is said to
/// have seen the first contents; `None` when no read can be damaged so.
pub fn sees_damage(acts: &[Act], about: &About) -> Option<bool> {
    let is_write_of = |value: u64| move |act: &&Act| act.done.is_write && act.done.value == value;
    let candidates = acts.iter().enumerate().filter(|(_, act)| {
        let value = act.done.value;
        let is_read = !act.done.is_write && value > 0;
        // A program of a host that stayed has seen what one of another such host wrote.
        let stayed = |session: u64| !about.out.contains(&about.hosts[&session]);
        is_read && stayed(act.session) && stayed(writer(value)) && {
            let of = acts.iter().find(is_write_of(value));
            of.is_some_and(|of| of.done.ended < act.done.begun)
        }
    });
    let (at, _) = candidates.max_by_key(|(_, act)| act.done.begun)?;
    let mut damaged = acts.to_vec();
    damaged[at].done.value = 0;
    Some(check(&damaged, about).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(session: u64, kind: &str, at: i64, value: u64) -> Act {
        let (begun, ended) = (at, if kind == "b" { i64::MAX } else { at + 1 });
        let is_write = kind != "r";
        let done = Done {
            begun,
            ended,
            value,
            is_write,
        };
        Act {
            session,
            word: 0,
            done,
        }
    }

    /// Programs 1 and 2 are of hosts 1 and 2, program 3 of host 3.
    fn wrong(acts: &[Act], out: &[u8], is_mirrored: bool) -> bool {
        is_wrong(acts, out, &[], is_mirrored)
    }

    fn is_wrong(acts: &[Act], out: &[u8], stopped: &[u8], is_mirrored: bool) -> bool {
        let hosts = BTreeMap::from([(1, 1), (2, 2), (3, 3)]);
        let out = out.iter().copied().collect();
        let stopped = stopped.iter().copied().collect();
        let about = About {
            hosts: &hosts,
            out: &out,
            stopped: &stopped,
            is_mirrored,
        };
        check(acts, &about).is_err()
    }

    const A: u64 = 1 << 32 | 1;
    const B: u64 = 1 << 32 | 2;

    #[test]
    fn what_another_host_has_seen_is_never_undone() {
        let seen = [one(1, "w", 0, A), one(2, "r", 10, A), one(3, "r", 20, 0)];
        assert!(wrong(&seen, &[1], true) && wrong(&seen, &[], true) && wrong(&seen, &[1], false));
        let unseen = [one(1, "w", 0, A), one(2, "r", 10, 0)];
        assert!(!wrong(&unseen, &[1], true));
        assert!(wrong(&unseen, &[], true), "its host lives");
        assert!(wrong(&unseen, &[2], true), "another died");
    }

    #[test]
    fn only_programs_of_a_host_that_was_stopped_and_is_out_may_read_what_is_old() {
        let acts = [one(1, "w", 0, A), one(3, "r", 5, A), one(2, "r", 10, 0)];
        assert!(!is_wrong(&acts, &[2], &[2], true));
        assert!(is_wrong(&acts, &[2], &[], true), "it was cut off");
        assert!(
            is_wrong(&acts, &[], &[2], true),
            "it was stopped for a moment"
        );
        assert!(is_wrong(&acts, &[2], &[3], true), "another was");
    }

    #[test]
    fn of_mirrored_memory_all_that_was_written_before_is_kept_as_well() {
        let other = Act {
            word: 1,
            ..one(1, "w", 5, B)
        };
        let sees = Act {
            word: 1,
            ..one(2, "r", 10, B)
        };
        let acts = [one(1, "w", 0, A), other, sees, one(3, "r", 20, 0)];
        assert!(wrong(&acts, &[1], true));
        assert!(!wrong(&acts, &[1], false));
    }

    #[test]
    fn a_write_that_was_begun_may_have_been_done_or_not() {
        let begun = one(1, "b", 0, A);
        for value in [0, A] {
            assert!(!wrong(&[begun, one(2, "r", 10, value)], &[], true));
        }
        let both = [begun, one(2, "r", 10, A), one(3, "r", 20, 0)];
        assert!(wrong(&both, &[], true), "done and then not");
    }

    #[test]
    fn a_record_is_read_up_to_where_its_program_was_killed() {
        let record = "b 0 1 0 9\nw 0 1 2 9\nr 1 3 4 0\nb 1 5 0 10\nr 1 6 7";
        let acts = acts(1, record);
        let done: Vec<(i64, bool)> = acts
            .iter()
            .map(|a| (a.done.ended, a.done.is_write))
            .collect();
        assert_eq!(done, [(2, true), (4, false), (i64::MAX, true)]);
    }

    #[test]
    fn a_damaged_history_is_refused() {
        let hosts = BTreeMap::from([(1, 1), (2, 2)]);
        let out = BTreeSet::new();
        let about = About {
            hosts: &hosts,
            out: &out,
            stopped: &out,
            is_mirrored: false,
        };
        let acts = [one(1, "w", 0, A), one(2, "r", 10, A)];
        assert_eq!(check(&acts, &about), Ok(1));
        assert_eq!(sees_damage(&acts, &about), Some(true));
    }
}
