//! What a program reads from words of shared memory and writes to them, and when.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::checker::{Done, FIRST};

/// Words that are used: in two pages.
pub const WORDS: usize = 4;

/// Something done to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acted {
    word: usize,
    done: Done,
}

/// Reads and writes words at random, as one of so many programs. No two writes are of the same value.
pub fn work(words: &[AtomicU64], seed: u64, program: u64, count: u64, rounds: u64) -> Vec<Acted> {
    let mut seed = seed << 32 ^ program;
    let act = |round: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Or it has done all while the unit is here.
        if (seed >> 45).is_multiple_of(2) {
            thread::sleep(Duration::from_micros((seed >> 55) % 200));
        }
        let word = (seed >> 40) as usize % WORDS;
        let at = &words[word % 2 * 512 + word / 2];
        let is_write = (seed >> 50).is_multiple_of(2);
        let mut value = 1 + round * count + program;
        let begun = now();
        match is_write {
            true => at.store(value, Ordering::SeqCst),
            false => value = at.load(Ordering::SeqCst),
        }
        let done = Done {
            begun,
            ended: now(),
            value,
            is_write,
        };
        Acted { word, done }
    };
    (0..rounds).map(act).collect()
}

/// The same to all programs of this machine.
fn now() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// As one line.
pub fn put(all: &[Acted]) -> String {
    let put = |acted: &Acted| {
        let (word, done) = (acted.word, acted.done);
        let write = u8::from(done.is_write);
        format!(
            "{word} {} {} {} {write}",
            done.begun, done.ended, done.value
        )
    };
    all.iter().map(put).collect::<Vec<_>>().join(",")
}

/// From the line.
pub fn take(line: &str) -> Vec<Acted> {
    let take = |acted: &str| {
        let numbers: Vec<i64> = acted.split(' ').map(|one| one.parse().unwrap()).collect();
        let [word, begun, ended, value, write] = numbers[..] else {
            panic!("{acted}?");
        };
        let done = Done {
            begun,
            ended,
            value: value as u64,
            is_write: write == 1,
        };
        let word = word as usize;
        Acted { word, done }
    };
    line.split(',').map(take).collect()
}

/// What all programs did to a word.
pub fn of_word(all: &[Vec<Acted>], word: usize) -> Vec<Done> {
    let acted = all.iter().flatten().filter(|acted| acted.word == word);
    [FIRST]
        .into_iter()
        .chain(acted.map(|acted| acted.done))
        .collect()
}

/// How many reads saw what another program had written.
pub fn reads_of_others(all: &[Vec<Acted>]) -> usize {
    let is_others = |program: usize, done: &Done| {
        !done.is_write && done.value > 0 && (done.value - 1) as usize % all.len() != program
    };
    let of = |(program, acted): (usize, &Vec<Acted>)| {
        let all = acted.iter();
        all.filter(|acted| is_others(program, &acted.done)).count()
    };
    all.iter().enumerate().map(of).sum()
}
