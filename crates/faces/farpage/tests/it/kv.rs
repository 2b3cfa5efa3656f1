//! The store of `examples/kv.rs`, killed at any instant.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Its own tests.
#[expect(dead_code, reason = "tests open a store, and do not run the program")]
#[path = "../../../../../examples/kv.rs"]
mod store;

const KILLS: u64 = 1000;

fn example() -> PathBuf {
    // Built beside this test: .../target/debug/examples/kv.
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().join("examples/kv")
}

/// From when a pause counts.
#[derive(PartialEq)]
enum Since {
    Start,
    /// The first round that was durable.
    Round,
}

/// Runs transfers, kills them after `pause`, and returns the last round that was durable.
fn killed_after(folder: &Path, seed: u64, since: Since, pause: Duration, mode: &[&str]) -> u64 {
    let mut command = Command::new(example());
    command
        .arg(folder)
        .args(["transfers", &seed.to_string()])
        .args(mode);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut rounds = lines
        .map_while(Result::ok)
        .filter_map(|line| line.parse().ok());
    let first = (since == Since::Round).then(|| rounds.next()).flatten();
    farpage_testkit::pass(pause);
    child.kill().unwrap();
    let last = rounds.last().or(first).unwrap_or(0);
    child.wait().unwrap();
    last
}

/// The round that the store has, and the sum of all accounts: after recovery, in a process of its
/// own, because a kernel stays as long as its process.
fn state(folder: &Path) -> (u64, i64) {
    let mut command = Command::new(example());
    let done = command.arg(folder).arg("state").output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let (round, sum) = said.trim().split_once(' ').unwrap();
    (round.parse().unwrap(), sum.parse().unwrap())
}

#[test]
fn a_store_killed_at_a_thousand_instants_has_every_durable_transfer_and_no_half_one() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    for kill in 0..KILLS {
        let pause = Duration::from_micros(5_000 + kill.wrapping_mul(7919) % 45_000);
        let durable = killed_after(folder.path(), kill, Since::Start, pause, &[]);
        let (round, sum) = state(folder.path());
        assert!(
            durable <= round,
            "round {durable} of kill {kill} is lost: {round}"
        );
        assert_eq!(sum, 0, "half a transfer after kill {kill}, round {round}");
    }
}

/// What the test above would say if the pager did not hold the barrier.
#[test]
fn without_the_barrier_half_a_transfer_is_found() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let torn = (0..500).any(|kill| {
        let pause = Duration::from_micros(kill * 7919 % 60_000);
        killed_after(folder.path(), kill, Since::Round, pause, &["unordered"]);
        state(folder.path()).1 != 0
    });
    assert!(
        torn,
        "the workload does not depend on the barrier: it shows nothing"
    );
}
