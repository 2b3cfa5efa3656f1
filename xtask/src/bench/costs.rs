//! `bench costs`: what the paper on the shared memory server says of its costs, beside the same counted and
//! measured here. The figures are those of a test, which fails where they are worse than the paper's.

use std::process::Command;

use anyhow::Result;

use crate::args::Args;
use crate::proc;
use crate::world::{World, machine};

/// Entry point.
pub(crate) fn bench(world: &World, args: Args) -> Result<()> {
    args.finish()?;
    println!("{}", machine());
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--quiet", "--release", "-p", "farpage-share"]);
    cargo.args([
        "--test",
        "it",
        "costs::",
        "--",
        "--nocapture",
        "--test-threads",
        "1",
    ]);
    let said = proc::output(
        cargo.current_dir(&world.root),
        "cargo test --test it costs::",
    )?;
    // What the test harness says goes in between.
    let lines = said.lines().map(|line| line.trim_start_matches('.'));
    let is_figure = |line: &&str| {
        let harness = ["running ", "test result"];
        !line.is_empty() && !harness.iter().any(|begin| line.starts_with(begin))
    };
    lines.filter(is_figure).for_each(|line| println!("{line}"));
    println!("Translation of numbers: cargo xtask bench translate");
    Ok(())
}
