//! `cargo xtask demo`: a NumPy job that dies under a memory limit, and finishes with farpage.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use farpage_test_machine::Cgroup;

use crate::proc::{self, Outcome};
use crate::setup;
use crate::table::mib;
use crate::world::{World, machine};

/// Numbers to sort, memory limit, and farpage's budget inside it: the rest is for Python itself.
const JOB_MIB: u32 = 1200;
const LIMIT_BYTES: u64 = 512 << 20;
const BUDGET: &str = "384M";

/// Runs both and prints how they ended.
pub(crate) fn demo(world: &World) -> Result<()> {
    let probe = Cgroup::new("demo-probe", LIMIT_BYTES, false);
    drop(probe.context("the demo needs a memory limit that kills")?);
    setup::numpy(world)?;
    println!("building farpage, which takes minutes the first time ...");
    let farpage = world.farpage()?;
    let dir = world.scratch("demo")?;
    let needed = mib(u64::from(JOB_MIB) << 20);
    println!("{}", machine());
    println!(
        "job: NumPy sorts {needed} MiB of random numbers; limit {} MiB",
        mib(LIMIT_BYTES)
    );

    let python = world.python();
    let (bare, killed) = limited(world, &dir, &python, &[])?;
    println!("without farpage: {}", told(&bare, killed, &dir));
    let spill = dir.display().to_string();
    let wrap = ["run", "--ram", BUDGET, "--spill", &spill, "--"];
    let (with, killed_too) = limited(world, &dir, &farpage, &wrap)?;
    println!("with farpage:    {}", told(&with, killed_too, &dir));
    let summary = fs::read_to_string(dir.join("stderr")).unwrap_or_default();
    summary
        .lines()
        .for_each(|l| println!("                 {l}"));

    if bare.status.success() {
        bail!("the job did not need farpage: the memory limit did not hold");
    }
    if !with.status.success() {
        bail!("farpage did not carry the job through");
    }
    println!(
        "the same program under the same limit finishes with `farpage run --ram {BUDGET}` (three \
         quarters of it: Python itself needs the rest)"
    );
    Ok(())
}

/// Runs the job under the limit, after `farpage run ... --` when `wrap` has that.
fn limited(world: &World, dir: &Path, program: &Path, wrap: &[&str]) -> Result<(Outcome, u64)> {
    let cgroup = Cgroup::new("demo", LIMIT_BYTES, false)?;
    let mut command: Command = cgroup.command(program);
    if !wrap.is_empty() {
        command.args(wrap).arg(world.python());
    }
    command
        .arg(world.root.join("xtask/demo.py"))
        .arg(JOB_MIB.to_string());
    command.env("OPENBLAS_NUM_THREADS", "1");
    command.stdout(File::create(dir.join("stdout"))?);
    command.stderr(File::create(dir.join("stderr"))?);
    let outcome = proc::run(&mut command, Duration::from_secs(1800), false)?;
    Ok((outcome, cgroup.kills()))
}

fn told(outcome: &Outcome, kills: u64, dir: &Path) -> String {
    let seconds = outcome.wall.as_secs_f64();
    let said = fs::read_to_string(dir.join("stdout")).unwrap_or_default();
    if outcome.status.success() {
        format!("finished in {seconds:.1} s: {}", said.trim())
    } else if kills > 0 {
        format!(
            "killed by the kernel, out of memory, after {seconds:.1} s ({})",
            outcome.ending()
        )
    } else {
        format!("failed after {seconds:.1} s: {}", outcome.ending())
    }
}
