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
    let mut skipped = Vec::new();
    let status = proc::lines(tests.current_dir(&world.root), SILENCE_MAX, |line| {
        println!("{line}");
        if line.starts_with("skipped: ") {
            skipped.push(line);
        }
    })?;
    if !status.success() {
        bail!("cargo test failed: {status}");
    }
    let allowed = allowed_skips(world)?;
    println!("== {} tests skipped, {allowed} allowed", skipped.len());
    match skipped.len() {
        n if n > allowed => bail!("more tests skipped than before:\n{}", skipped.join("\n")),
        n if n < allowed => bail!("fewer tests skipped: write {n} into xtask/skips.txt"),
        _ => Ok(()),
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
