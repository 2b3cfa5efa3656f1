//! What a run of tests prints at its end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::harness::Ran;
use crate::table::Table;

/// The steps of a run and how long each took.
pub(super) struct Steps {
    began: Instant,
    took: Vec<(String, Duration)>,
}

impl Steps {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            took: Vec::new(),
        }
    }

    /// Says what begins, does it, and remembers how long it took.
    pub(super) fn run<T>(&mut self, name: &str, step: impl FnOnce() -> Result<T>) -> Result<T> {
        println!("== {name} (after {})", clock(self.began.elapsed()));
        let began = Instant::now();
        let done = step();
        self.took.push((name.to_owned(), began.elapsed()));
        done
    }

    pub(super) fn print(&self) {
        println!();
        let mut table = Table::new(["step", "min:s"]);
        for (name, took) in &self.took {
            table.row([name.clone(), clock(*took)]);
        }
        table.row(["all".to_owned(), clock(self.began.elapsed())]);
        table.print();
    }
}

fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

/// Prints the tests that took longest.
pub(super) fn slowest(ran: &[Ran], count: usize) {
    let mut by_time: Vec<&Ran> = ran.iter().collect();
    by_time.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    println!("the slowest:");
    for ran in by_time.iter().take(count) {
        println!("  {:7.1} s  {}", ran.seconds, ran.name);
    }
}

/// Prints a line for each crate, and one for all.
pub(super) fn summary(ran: &[Ran]) {
    let mut crates = BTreeMap::<&str, [f64; 4]>::new();
    for one in ran {
        let name = one.name.split(['/', ' ']).next().unwrap_or("");
        let sums = crates.entry(name).or_default();
        sums[0] += 1.0;
        sums[1] += f64::from(u8::from(!one.passed()));
        sums[2] += f64::from(u8::from(!one.skipped.is_empty()));
        sums[3] += one.seconds;
    }
    let mut table = Table::new(["crate", "tests", "failed", "skipped", "seconds"]);
    for (name, [tests, failed, skipped, seconds]) in crates {
        let numbers = [tests, failed, skipped].map(|n| format!("{n:.0}"));
        table.row(
            std::iter::once(name.to_owned())
                .chain(numbers)
                .chain([format!("{seconds:.1}")]),
        );
    }
    table.print();
    let failed = ran.iter().filter(|ran| !ran.passed()).count();
    let skipped: usize = ran.iter().map(|ran| ran.skipped.len()).sum();
    println!(
        "{} tests, {failed} failed, {skipped} reasons to skip",
        ran.len()
    );
}
