//! `bench fits`: what farpage costs a program that stays within its budget.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use super::spread;
use crate::args::Args;
use crate::proc;
use crate::table::{Table, median};
use crate::world::{World, machine};

const PHASES: &[&str] = &["huge", "small", "heap", "whole"];

/// Entry point: pairs of runs, bare and farpage in turn, so that both see the same machine.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: usize = args.number("--runs", 5)?;
    let mib: u64 = args.number("--mib", 1024)?;
    args.finish()?;
    let farpage = world.farpage()?;
    let program = super::fault::compile(world, "fits")?;
    let budget = format!("{}M", mib * 2);
    let size = mib.to_string();
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for round in 0..=runs {
        let mut command = Command::new(&program);
        let first = once(command.arg(&size))?;
        let mut command = Command::new(&farpage);
        command
            .args(["run", "--ram", &budget, "--"])
            .arg(&program)
            .arg(&size);
        let second = once(&mut command)?;
        if round > 0 {
            bare.push(first); // the first pair warms up
            ours.push(second);
        }
    }
    println!("{}", machine());
    println!("{mib} MiB used, budget {budget}, {runs} pairs: seconds, median (least-most)");
    print(&bare, &ours, &program);
    Ok(())
}

fn print(bare: &[Vec<f64>], ours: &[Vec<f64>], program: &Path) {
    let name = program
        .file_name()
        .map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let mut table = Table::new([
        name.as_str(),
        "bare",
        "farpage",
        "ratio of pairs",
        "to reach",
    ]);
    for (at, phase) in PHASES.iter().enumerate() {
        let column = |runs: &[Vec<f64>]| runs.iter().map(|r| r[at]).collect::<Vec<f64>>();
        let (b, o) = (column(bare), column(ours));
        let ratios: Vec<f64> = o.iter().zip(&b).map(|(o, b)| o / b).collect();
        let verdict = if median(&ratios) <= 1.03 {
            "1.03: yes"
        } else {
            "1.03: NO"
        };
        table.row([
            (*phase).to_owned(),
            spread(&b, 3),
            spread(&o, 3),
            spread(&ratios, 3),
            verdict.to_owned(),
        ]);
    }
    table.print();
}

/// Seconds of each phase.
fn once(command: &mut Command) -> Result<Vec<f64>> {
    let began = Instant::now();
    let text = proc::output(command, "the program that fits")?;
    let whole = began.elapsed().as_secs_f64();
    let phase = |name: &&str| {
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(name)?.trim().parse::<f64>().ok());
        line.with_context(|| format!("it printed no {name}"))
    };
    let mut seconds: Vec<f64> = PHASES[..3].iter().map(phase).collect::<Result<_>>()?;
    seconds.push(whole);
    Ok(seconds)
}
