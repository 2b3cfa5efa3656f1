//! `cargo xtask demo`: a NumPy job that dies under a memory limit, and finishes with farpage. Where
//! no limit can be set, the same job within a budget.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use farpage_testkit::Cgroup;

use crate::proc::{self, Outcome};
use crate::setup;
use crate::table::mib;
use crate::world::{World, machine};

/// Numbers to sort, memory limit, and farpage's budget inside it: the rest is for Python itself.
const JOB_MIB: u32 = 1200;
const LIMIT_BYTES: u64 = 512 << 20;
const BUDGET: &str = "384M";

/// What managed memory may have beside the budget for a moment: pages that are on their way out.
const OVER_BYTES: u64 = 16 << 20;

/// Runs both and prints how they ended. Where no limit can be set, runs the job within a budget.
pub(crate) fn demo(world: &World) -> Result<()> {
    let no_limit = Cgroup::new("demo-probe", LIMIT_BYTES, false).err();
    setup::numpy(world)?;
    println!("building farpage, which takes minutes the first time ...");
    let farpage = world.farpage()?;
    let dir = world.scratch("demo")?;
    println!("{}", machine());
    let needed = mib(u64::from(JOB_MIB) << 20);
    println!("job: NumPy sorts {needed} MiB of random numbers");
    match no_limit {
        None => beyond_the_limit(world, &dir, &farpage),
        Some(why) => {
            println!("no memory limit can be set here: {why:#}");
            println!("so nothing is killed; the job has to stay within a budget instead");
            within_the_budget(world, &dir, &farpage)
        }
    }
}

/// The job is killed without farpage, and finishes with it.
fn beyond_the_limit(world: &World, dir: &Path, farpage: &Path) -> Result<()> {
    println!("memory limit: {} MiB", mib(LIMIT_BYTES));
    let python = world.python();
    let (bare, killed) = limited(world, dir, &python, &[])?;
    println!("without farpage: {}", told(&bare, killed, dir));
    let spill = dir.display().to_string();
    let wrap = ["run", "--ram", BUDGET, "--spill", &spill, "--"];
    let (with, killed_too) = limited(world, dir, farpage, &wrap)?;
    println!("with farpage:    {}", told(&with, killed_too, dir));
    summary(dir);

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

/// The job finishes, and the statistics say that its memory stayed within the budget.
fn within_the_budget(world: &World, dir: &Path, farpage: &Path) -> Result<()> {
    let stats = dir.join("stats.json");
    let mut command = Command::new(farpage);
    command
        .args(["run", "--ram", BUDGET, "--stats"])
        .arg(&stats);
    command
        .arg("--spill")
        .arg(dir)
        .arg("--")
        .arg(world.python());
    let outcome = job(world, dir, &mut command)?;
    println!("with farpage:    {}", told(&outcome, 0, dir));
    summary(dir);
    if !outcome.status.success() {
        bail!("farpage did not carry the job through");
    }
    let text = fs::read_to_string(&stats).context("farpage wrote no statistics")?;
    let figures = Figures::of(&text)?;
    figures.must_hold()?;
    println!(
        "the job had {} MiB of memory and kept {} MiB of it in RAM, compressed pages included, of \
         {} MiB that `farpage run --ram {BUDGET}` allows",
        mib(figures.demand_bytes),
        mib(figures.used_bytes),
        mib(figures.budget_bytes)
    );
    Ok(())
}

/// What `farpage run --stats` says of a run.
struct Figures {
    budget_bytes: u64,
    /// Memory that was mapped at one time.
    demand_bytes: u64,
    /// The most that was in RAM at one time, compressed or not.
    used_bytes: u64,
}

impl Figures {
    fn of(stats: &str) -> Result<Self> {
        let stats: serde_json::Value = serde_json::from_str(stats)?;
        let number = |at: &str| {
            let value = stats.pointer(at).and_then(serde_json::Value::as_u64);
            value.with_context(|| format!("the statistics have no {at}"))
        };
        Ok(Self {
            budget_bytes: number("/settings/ram_bytes")?,
            demand_bytes: number("/peaks/demand_bytes")?,
            used_bytes: number("/peaks/used_bytes")?,
        })
    }

    fn must_hold(&self) -> Result<()> {
        let (used, budget) = (mib(self.used_bytes), mib(self.budget_bytes));
        if self.demand_bytes <= self.budget_bytes {
            bail!("the job did not need farpage: its memory fits into {budget} MiB");
        }
        if self.used_bytes > self.budget_bytes + OVER_BYTES {
            bail!("the budget did not hold: {used} MiB were in RAM, {budget} MiB are allowed");
        }
        Ok(())
    }
}

/// What farpage printed at the end.
fn summary(dir: &Path) {
    let summary = fs::read_to_string(dir.join("stderr")).unwrap_or_default();
    for line in summary.lines() {
        println!("                 {line}");
    }
}

/// Runs the job under the limit, after `farpage run ... --` when `wrap` has that.
fn limited(world: &World, dir: &Path, program: &Path, wrap: &[&str]) -> Result<(Outcome, u64)> {
    let cgroup = Cgroup::new("demo", LIMIT_BYTES, false)?;
    let mut command: Command = cgroup.command(program);
    if !wrap.is_empty() {
        command.args(wrap).arg(world.python());
    }
    let outcome = job(world, dir, &mut command)?;
    Ok((outcome, cgroup.kills()?))
}

/// Runs the job by `command`, which names Python last. What it prints goes to files.
fn job(world: &World, dir: &Path, command: &mut Command) -> Result<Outcome> {
    command.arg(world.root.join("tools/xtask/demo.py"));
    command.arg(JOB_MIB.to_string());
    command.env("OPENBLAS_NUM_THREADS", "1");
    command.stdout(File::create(dir.join("stdout"))?);
    command.stderr(File::create(dir.join("stderr"))?);
    proc::run(command, Duration::from_secs(1800), false)
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

#[cfg(test)]
mod tests {
    use super::Figures;

    fn figures(demand: u64, used: u64) -> Figures {
        let stats = format!(
            r#"{{"settings": {{"ram_bytes": 402653184}},
                "peaks": {{"demand_bytes": {demand}, "used_bytes": {used}}}}}"#
        );
        Figures::of(&stats).unwrap()
    }

    #[test]
    fn memory_beyond_the_budget_is_told() {
        assert!(figures(1200 << 20, 384 << 20).must_hold().is_ok());
        let error = |figures: Figures| figures.must_hold().unwrap_err().to_string();
        assert!(error(figures(1200 << 20, 600 << 20)).contains("600 MiB were in RAM"));
        assert!(error(figures(300 << 20, 300 << 20)).contains("did not need farpage"));
        assert!(Figures::of("{}").is_err());
    }
}
