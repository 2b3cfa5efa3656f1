//! `bench costs`: what the paper on the shared memory server says of its costs, beside the same counted and
//! measured here. The figures are those of a test, which fails where they are worse than the paper's.

use std::process::Command;

use anyhow::{Context, Result};

use super::bounds::{Asserts, Bound};
use crate::args::Args;
use crate::proc;
use crate::world::{World, machine};

/// Of the time of a fault. What docs/ROWS.md says of row E11.
pub(super) const BOUNDS: [Bound; 1] = [Bound::at_most(
    "pages eight times Linux's / Linux's",
    1.77,
    15,
)];

const ALL: &str = "costs::";
const PAGES: &str = "costs::pages_of_eight";
/// How the line begins that says how much longer a fault on eight pages takes.
const LONGER: &str = "of a fault on one page";

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let mut asserts = Asserts::wanted(&mut args, runs)?;
    args.finish()?;
    proc::output(&mut test(world, &["--no-run"]), "cargo test --no-run")?;
    asserts.begin()?;
    println!("{}", machine());
    println!("1 run of all, and {runs} of single faults.");
    figures(world, ALL)?;
    let ratio = |_| {
        let lines = figures(world, PAGES)?;
        let ratio = lines.iter().find_map(|line| longer(line));
        ratio.with_context(|| format!("the test prints no '{LONGER}'"))
    };
    let ratios = (0..runs).map(ratio).collect::<Result<Vec<f64>>>()?;
    println!("Translation of numbers: cargo xtask bench translate");
    asserts.end(&BOUNDS, |_| ratios.clone())
}

/// Cargo with the test, as it is released.
fn test(world: &World, more: &[&str]) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.args(["test", "--quiet", "--release", "-p", "farpage-server"]);
    cargo.args(["--test", "it"]).args(more);
    cargo.current_dir(&world.root);
    cargo
}

/// What the tests of this name print, which is printed.
fn figures(world: &World, name: &str) -> Result<Vec<String>> {
    let mut cargo = test(world, &[name, "--", "--nocapture", "--test-threads", "1"]);
    let said = proc::output(&mut cargo, &format!("cargo test --test it {name}"))?;
    // What the test harness says goes in between.
    let lines = said.lines().map(|line| line.trim_start_matches('.'));
    let is_figure = |line: &&str| {
        let harness = ["running ", "test result"];
        !line.is_empty() && !harness.iter().any(|begin| line.starts_with(begin))
    };
    let lines: Vec<String> = lines.filter(is_figure).map(String::from).collect();
    lines.iter().for_each(|line| println!("{line}"));
    Ok(lines)
}

/// How many times as long as one on a page of Linux's.
fn longer(line: &str) -> Option<f64> {
    let percent = line
        .trim()
        .strip_prefix(LONGER)?
        .split_whitespace()
        .last()?;
    Some(1.0 + percent.strip_suffix('%')?.parse::<f64>().ok()? / 100.0)
}

#[cfg(test)]
mod tests {
    use super::longer;

    #[test]
    fn how_much_longer_is_read_and_nothing_else() {
        assert_eq!(longer("    of a fault on one page   13%   72%"), Some(1.72));
        assert_eq!(longer("  zero-fill   1500   3.5"), None);
    }
}
