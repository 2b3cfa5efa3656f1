//! `cargo xtask chaos`: hosts that share memory under faults by seed, for as long as is wanted.

use std::process::Command;

use anyhow::{Result, bail};

use crate::args::Args;
use crate::proc;
use crate::world::World;

/// Runs the tests `chaos` of the command for longer, with this seed and so many hosts.
pub(crate) fn chaos(world: &World, mut args: Args) -> Result<()> {
    let minutes: f64 = args.number("--minutes", 5.0)?;
    let seed: u64 = args.number("--seed", 1)?;
    let hosts: u64 = args.number("--hosts", 4)?;
    args.finish()?;
    if !(2..=8).contains(&hosts) {
        bail!("--hosts {hosts} cannot be; give 2 to 8");
    }
    if !(0.0..=100_000.0).contains(&minutes) {
        bail!("--minutes {minutes} cannot be; give a number from 0 on");
    }
    let mut cargo = Command::new("cargo");
    cargo.current_dir(&world.root).args([
        "test",
        "--quiet",
        "--package",
        "farpage-cli",
        "--test",
        "it",
        "--",
        "--nocapture",
        "--test-threads=1",
        "chaos::whatever_fails",
    ]);
    let seconds = (minutes * 60.0) as u64;
    cargo.env("FARPAGE_CHAOS_SECONDS", seconds.to_string());
    cargo.env("FARPAGE_CHAOS_SEED", seed.to_string());
    cargo.env("FARPAGE_CHAOS_MANY", "1");
    cargo.env("FARPAGE_CHAOS_HOSTS", hosts.to_string());
    proc::must(&mut cargo, "chaos")
}
