//! `cargo xtask flaky`: the tests of the short run, or those that take long, again and again beside a busy
//! machine, and what failed how often. Results are kept by the sources, so that runs add up.

use anyhow::{Result, bail};

use crate::args::Args;
use crate::harness::Busy;
use crate::kept::Kept;
use crate::sources;
use crate::table::Table;
use crate::test::{self, Group};
use crate::world::World;

/// Entry point.
pub(crate) fn flaky(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 10)?;
    let jobs: usize = args.number("--jobs", test::jobs())?;
    let beside = args.value("--beside")?;
    let long = args.flag("--long").then_some(Group::Long);
    let is_busy = match beside.as_deref() {
        None => false,
        Some("busy") => true,
        Some(other) => bail!("--beside {other} is not known; give --beside busy, or nothing"),
    };
    let mut words = Vec::new();
    while let Some(word) = args.word() {
        words.push(word);
    }
    args.finish()?;
    if runs == 0 || jobs == 0 {
        bail!("--runs and --jobs must be 1 or more");
    }
    let group = match (is_busy, long) {
        (false, None) => "flaky",
        (false, Some(_)) => "flaky-long",
        (true, None) => "flaky-busy",
        (true, Some(_)) => "flaky-busy-long",
    };
    let mut cases = test::cases_in(world, long)?;
    cases.retain(|case| words.is_empty() || words.iter().any(|word| case.name.contains(word)));
    if cases.is_empty() {
        bail!("no test's name has '{}' in it", words.join("' or '"));
    }
    // Beside four times as much work as there are processors, what only hangs is still told apart.
    cases.iter_mut().for_each(|case| case.limit *= 3);
    for run in 1..=runs {
        println!("== run {run} of {runs}: {} tests", cases.len());
        let busy = if is_busy { Some(Busy::start()?) } else { None };
        test::run(world, jobs, group, cases.clone())?;
        drop(busy);
    }
    report(&Kept::open(&sources::hash(world)?, group)?)
}

/// All runs of these sources, also those of earlier calls.
fn report(kept: &Kept) -> Result<()> {
    let records = kept.records()?;
    let runs = records
        .values()
        .map(|record| record.passed + record.failed)
        .max()
        .unwrap_or(0);
    let failed: Vec<_> = records
        .iter()
        .filter(|(_, record)| record.failed > 0)
        .collect();
    println!(
        "{} tests, the most often run {runs} times with these sources",
        records.len()
    );
    if failed.is_empty() {
        println!("none has failed");
        return Ok(());
    }
    let mut table = Table::new(["test", "failed", "of"]);
    for (name, record) in &failed {
        let of = record.passed + record.failed;
        table.row([(*name).clone(), record.failed.to_string(), of.to_string()]);
    }
    table.print();
    for (name, record) in &failed {
        let first: Vec<&str> = record.why.lines().take(20).collect();
        println!("\n{name}: {}", first.join("\n    "));
    }
    bail!("{} tests have failed at least once", failed.len())
}
