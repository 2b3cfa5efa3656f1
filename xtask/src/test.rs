//! `cargo xtask test`: everything that must pass, from a bare machine on.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::corpus;
use crate::fuzz;
use crate::install_c;
use crate::proc;
use crate::setup;
use crate::wheel;
use crate::world::World;

/// Longest that the tests may print nothing: the slowest takes two minutes on two busy processors.
const SILENCE_MAX: Duration = Duration::from_secs(900);

/// Runs all checks in order and stops at the first that fails.
pub(crate) fn test(world: &World, mut args: Args) -> Result<()> {
    let skip_setup = args.flag("--no-setup");
    args.finish()?;
    let began = Instant::now();
    if !skip_setup {
        setup::setup(world)?;
    }
    // The last steps want these lock files as they are: what is missing in them is told first.
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        let fetch = ["fetch", "--quiet", "--locked", "--manifest-path", manifest];
        cargo(world, began, "cargo fetch --locked", &fetch)?;
    }
    cargo(world, began, "cargo fmt", &["fmt", "--all", "--check"])?;
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ];
    cargo(world, began, "cargo clippy", &clippy)?;
    let fuzz = ["fmt", "--check", "--manifest-path", "fuzz/Cargo.toml"];
    cargo(world, began, "cargo fmt of fuzz", &fuzz)?;
    unit_tests(world, began)?;
    real_files(world, began)?;
    step(began, "install-c");
    install_c::check(world)?;
    step(began, "python");
    wheel::test(world)?;
    step(began, "fuzz");
    fuzz::fuzz(
        world,
        Args::new(["--seconds", "10"].map(String::from).into_iter()),
    )?;
    step(began, "corpus (quick)");
    corpus::check(world, &corpus::Options::quick(world))?;
    step(began, "all checks passed");
    Ok(())
}

/// Says what begins, and how long after the first.
fn step(began: Instant, name: &str) {
    let seconds = began.elapsed().as_secs();
    println!("== {name} (after {} min {} s)", seconds / 60, seconds % 60);
}

fn cargo(world: &World, began: Instant, name: &str, args: &[&str]) -> Result<()> {
    step(began, name);
    proc::must(
        Command::new("cargo").args(args).current_dir(&world.root),
        name,
    )
}

/// All tests of the workspace. A test that lacks a privilege prints `skipped: reason`; more of them
/// than `xtask/skips.txt` says is a failure.
fn unit_tests(world: &World, began: Instant) -> Result<()> {
    let build = ["test", "--workspace", "--no-run", "--quiet"];
    cargo(world, began, "cargo test: building", &build)?;
    step(began, "cargo test");
    let mut tests = Command::new("cargo");
    tests.args([
        "test",
        "--workspace",
        "--no-fail-fast",
        "--",
        "--show-output",
    ]);
    let mut report = Report::default();
    let status = proc::lines(tests.current_dir(&world.root), SILENCE_MAX, |line| {
        if report.tells(&line) {
            println!("{line}");
        }
    });
    report.failures.iter().for_each(|line| println!("{line}"));
    let status = status?;
    if !status.success() {
        bail!("cargo test: {status}\n{}", report.failed.join("\n"));
    }
    let skipped = report.skipped;
    let allowed = allowed_skips(world)?;
    println!("== {} tests skipped, {allowed} allowed", skipped.len());
    match skipped.len() {
        n if n > allowed => bail!("more tests skipped than before:\n{}", skipped.join("\n")),
        n if n < allowed => bail!("fewer tests skipped: write {n} into xtask/skips.txt"),
        _ => Ok(()),
    }
}

/// What matters of the lines that tests print.
#[derive(Default)]
struct Report {
    /// What tests that pass have printed is left out.
    in_successes: bool,
    in_failures: bool,
    skipped: Vec<String>,
    /// `test name ... FAILED`.
    failed: Vec<String>,
    /// What these have printed, to be told again where it is found: at the end.
    failures: Vec<String>,
}

impl Report {
    /// Takes note of a line; true when it is to be printed.
    fn tells(&mut self, line: &str) -> bool {
        if line.starts_with("skipped: ") {
            self.skipped.push(line.to_owned());
        }
        if line.starts_with("test ") && line.ends_with("FAILED") {
            self.failed.push(line.to_owned());
        }
        let (successes, failures) = (line == "successes:", line == "failures:");
        if successes || failures || line.starts_with("test result: ") {
            (self.in_successes, self.in_failures) = (successes, failures);
        }
        if self.in_failures {
            self.failures.push(line.to_owned());
        }
        !self.in_successes
    }
}

/// Files that other programs wrote, against the crate that says where their arrays lie.
fn real_files(world: &World, began: Instant) -> Result<()> {
    let build = [
        "build",
        "--quiet",
        "--package",
        "farpage-format",
        "--example",
        "layout",
    ];
    cargo(world, began, "files of other programs", &build)?;
    let release = world.release_dir()?;
    let layout = release.with_file_name("debug").join("examples/layout");
    let mut python = Command::new(world.python());
    python
        .arg(world.root.join("crates/format/tests/real_files.py"))
        .arg(layout);
    proc::must(&mut python, "real_files.py")
}

/// `xtask/skips.txt` has one number for root and one for other users.
fn allowed_skips(world: &World) -> Result<usize> {
    let who = if world.is_root() { "root " } else { "user " };
    let text = fs::read_to_string(world.root.join("xtask/skips.txt"))?;
    let line = text.lines().find_map(|l| l.strip_prefix(who));
    let number = line.and_then(|n| n.trim().parse().ok());
    number.with_context(|| format!("xtask/skips.txt has no line '{who}N'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_told_and_what_passes_is_not() {
        let printed = "\
running 2 tests
test one ... ok
test two ... FAILED

successes:

---- one stdout ----
skipped: not root

successes:
    one

failures:

---- two stdout ----
why

failures:
    two

test result: FAILED. 1 passed; 1 failed
running 1 test";
        let mut report = Report::default();
        let told: Vec<&str> = printed.lines().filter(|line| report.tells(line)).collect();
        assert!(told.contains(&"why") && told.contains(&"test one ... ok"));
        assert!(!told.contains(&"skipped: not root"));
        assert_eq!(told.last(), Some(&"running 1 test"));
        assert_eq!(report.skipped, ["skipped: not root"]);
        assert_eq!(report.failed, ["test two ... FAILED"]);
        assert!(report.failures.contains(&"why".to_owned()));
    }
}
