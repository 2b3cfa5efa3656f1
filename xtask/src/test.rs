//! `cargo xtask test`: everything that must pass, from a bare machine on.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::corpus;
use crate::fuzz;
use crate::install_c;
use crate::proc;
use crate::setup;
use crate::wheel;
use crate::world::World;

/// Runs all checks in order and stops at the first that fails.
pub(crate) fn test(world: &World, mut args: Args) -> Result<()> {
    let skip_setup = args.flag("--no-setup");
    args.finish()?;
    if !skip_setup {
        setup::setup(world)?;
    }
    cargo(world, "cargo fmt", &["fmt", "--all", "--check"])?;
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--quiet",
        "--",
        "-D",
        "warnings",
    ];
    cargo(world, "cargo clippy", &clippy)?;
    let fuzz = ["fmt", "--check", "--manifest-path", "fuzz/Cargo.toml"];
    cargo(world, "cargo fmt of fuzz", &fuzz)?;
    unit_tests(world)?;
    real_files(world)?;
    println!("== install-c");
    install_c::check(world)?;
    wheel::test(world)?;
    println!("== fuzz");
    fuzz::fuzz(
        world,
        Args::new(["--seconds", "10"].map(String::from).into_iter()),
    )?;
    println!("== corpus (quick)");
    corpus::check(world, &corpus::Options::quick(world))?;
    println!("\nall checks passed");
    Ok(())
}

fn cargo(world: &World, name: &str, args: &[&str]) -> Result<()> {
    println!("== {name}");
    proc::must(
        Command::new("cargo").args(args).current_dir(&world.root),
        name,
    )
}

/// All tests of the workspace. A test that lacks a privilege prints `skipped: reason`; more of them
/// than `xtask/skips.txt` says is a failure.
fn unit_tests(world: &World) -> Result<()> {
    println!("== cargo test");
    let mut child = Command::new("cargo")
        .args([
            "test",
            "--workspace",
            "--no-fail-fast",
            "--",
            "--show-output",
        ])
        .current_dir(&world.root)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo test")?;
    let mut skipped = Vec::new();
    for line in BufReader::new(child.stdout.take().context("no output")?).lines() {
        let line = line?;
        println!("{line}");
        if line.starts_with("skipped: ") {
            skipped.push(line);
        }
    }
    let status = child.wait()?;
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
fn real_files(world: &World) -> Result<()> {
    let build = [
        "build",
        "--quiet",
        "--package",
        "farpage-format",
        "--example",
        "layout",
    ];
    cargo(world, "files of other programs", &build)?;
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
