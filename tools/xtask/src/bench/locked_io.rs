//! `bench locked --io`: a disk's transfers to locked and registered memory, each compared, while memory
//! is scarce, moved, forked and let go of.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use farpage_testkit::{Cgroup, Swap};

use super::program;
use crate::args::Args;
use crate::proc;
use crate::world::{World, machine};

/// Memory of all of it.
const LIMIT_MIB: u64 = 768;
/// What another process there uses: with the areas, the pins, and children of fork it does not fit.
const PRESSURE_MIB: u64 = 384;
const SWAP_MIB: u64 = 2048;
/// It tells how it goes each two seconds.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// Entry point.
pub(super) fn bench(world: &World, mut args: Args) -> Result<()> {
    let minutes: f64 = args.number("--minutes", 10.0)?;
    let seed: u64 = args.number("--seed", 1)?;
    let folder = args.value("--in")?.map(PathBuf::from);
    args.finish()?;
    let program = program(world, &[])?;
    let folder = match folder {
        Some(folder) => folder,
        None => world.scratch("bench")?,
    };
    println!("{}", machine());
    let swap =
        Swap::zram(SWAP_MIB << 20, SWAP_MIB << 19).or_else(|_| Swap::file(&folder, SWAP_MIB << 20));
    if let Err(why) = &swap {
        println!("No memory is taken away: no swap space; {why:#}");
    }
    let cgroup = Cgroup::new("locked-io", LIMIT_MIB << 20, true);
    if let Err(why) = &cgroup {
        println!("Memory is not limited: {why:#}");
    }
    let inside = || match &cgroup {
        Ok(cgroup) => cgroup.command(&program),
        Err(_) => Command::new(&program),
    };
    let mut pressure = None;
    if swap.is_ok() && cgroup.is_ok() {
        println!("{LIMIT_MIB} MiB of memory, of which another process uses {PRESSURE_MIB}");
        pressure = Some(presses(inside())?);
    }
    let mut transfers = inside();
    let seconds = (minutes * 60.0).ceil().to_string();
    transfers.arg("locked-io").arg(&folder);
    transfers.args(["--seconds", &seconds, "--seed", &seed.to_string()]);
    let mut again = 0;
    let ended = proc::lines(&mut transfers, SILENCE_MAX, |line| {
        println!("{line}");
        // Where much is locked Linux may find nothing else to take than the process that uses memory.
        if let Some(pressure) = &mut pressure
            && matches!(pressure.try_wait(), Ok(Some(_)))
            && let Ok(other) = presses(inside())
        {
            *pressure = other;
            again += 1;
        }
    });
    if let Some(mut pressure) = pressure {
        pressure.kill()?;
        pressure.wait()?;
        println!("the process that uses memory was started again {again} times");
    }
    let ended = ended?;
    if let Ok(cgroup) = &cgroup {
        println!("killed for want of memory: {}", cgroup.kills()?);
    }
    if !ended.success() {
        bail!("farpage-bench locked-io --seed {seed}: {ended}");
    }
    Ok(())
}

/// Starts the process that uses memory.
fn presses(mut inside: Command) -> Result<Child> {
    inside.args(["locked-io-pressure", "--mib", &PRESSURE_MIB.to_string()]);
    inside.spawn().context("cannot start farpage-bench")
}
