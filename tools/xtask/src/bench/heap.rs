//! `bench heap`: blocks of a heap in shared memory, beside the C library's malloc.

use anyhow::Result;

use super::figures;
use super::shared::{parse, print};
use crate::args::Args;
use crate::world::{World, machine};

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let pairs: u32 = args.number("--pairs", 1 << 20)?;
    args.finish()?;
    let (pairs, count) = (pairs.to_string(), runs.to_string());
    let arguments = ["heap", "--runs", &count, "--pairs", &pairs];
    let lines = figures(world, &[], &arguments, parse)?;
    println!("{}", machine());
    println!("{runs} runs: median (least-most) of ns, and of the ratios of each run.");
    println!("One of 10,000 blocks, at random, is freed, and another allocated. malloc: the C");
    println!("library's, in memory of the process's own. one, two: processes that use the heap.");
    print(&lines);
    Ok(())
}
