//! A program of a host: reads and writes words of what hosts share, and keeps a record of it that is
//! there also when it is killed.

use std::io::Write;
use std::path::Path;
use std::process::exit;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use farpage_client::Host;
use rustix::time::{ClockId, clock_gettime};

use super::dice::Dice;
use super::net::appended;

/// What a program is told.
pub const PROGRAM: &str = "FARPAGE_CHAOS_PROGRAM";
/// Words of an object, two in each of its units.
pub const WORDS: usize = 4;
/// How a program ends that could not begin.
pub const NOT_YET: i32 = 3;

/// Does what it is told, when this test is run as one; nothing otherwise.
pub fn run() {
    let Ok(told) = std::env::var(PROGRAM) else {
        return;
    };
    let told: Vec<&str> = told.split('|').collect();
    let [socket, object, session, unit, rounds, record, stop] = told[..] else {
        panic!("{told:?}?");
    };
    let session: u64 = session.parse().unwrap();
    let host = Host::connect(Path::new(socket)).unwrap_or_else(|error| not_yet(&error));
    let found = host.shared(object, None);
    let (shared, _) = found.unwrap_or_else(|error| not_yet(&error));
    let words = shared.words();
    let unit: usize = unit.parse().unwrap();
    let at = |word: usize| &words[(word % 2 * unit + word / 2 * 8) / 8];
    let mut record = Record(appended(Path::new(record)));
    match rounds {
        "looks" => (0..WORDS).for_each(|word| record.reads(word, at(word))),
        _ => works(session, at, &mut record, Path::new(stop)),
    }
    exit(0);
}

fn not_yet<T>(error: &dyn std::fmt::Display) -> T {
    eprintln!("{error}");
    exit(NOT_YET)
}

/// Until it is told to stop. No two writes of any program are of the same value.
fn works<'a>(session: u64, at: impl Fn(usize) -> &'a AtomicU64, record: &mut Record, stop: &Path) {
    let mut dice = Dice::new(session);
    for count in 1_u64.. {
        if count.is_multiple_of(8) && stop.exists() {
            return;
        }
        let word = dice.below(WORDS as u64) as usize;
        match dice.below(2) {
            0 => record.writes(word, at(word), session << 32 | count),
            _ => record.reads(word, at(word)),
        }
        // Or it has done all while the unit is here.
        if dice.below(4) > 0 {
            thread::sleep(Duration::from_micros(dice.below(3000)));
        }
    }
}

struct Record(std::fs::File);

impl Record {
    fn says(&mut self, line: &str) {
        self.0.write_all(line.as_bytes()).unwrap();
    }

    /// It is said before, since it may be the last that this program does.
    fn writes(&mut self, word: usize, at: &AtomicU64, value: u64) {
        let begun = now();
        self.says(&format!("b {word} {begun} 0 {value}\n"));
        at.store(value, Ordering::SeqCst);
        let ended = now();
        self.says(&format!("w {word} {begun} {ended} {value}\n"));
    }

    fn reads(&mut self, word: usize, at: &AtomicU64) {
        let begun = now();
        let value = at.load(Ordering::SeqCst);
        let ended = now();
        self.says(&format!("r {word} {begun} {ended} {value}\n"));
    }
}

/// The same to all programs of this machine.
fn now() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
