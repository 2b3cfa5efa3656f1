//! `cargo xtask bench`: figures, always beside the bare kernel and the peers of the same run.

mod costs;
mod default_pager;
mod exec;
mod fault;
mod fits;
mod heap;
mod hosts;
mod job;
mod local;
mod locked;
mod locked_io;
mod map_fd;
mod ports;
mod programs;
mod remote;
mod rpc;
mod share;
mod shared;
mod stdio;
mod translate;
mod truth;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::proc;
use crate::table::{median, quantile};
use crate::world::World;

/// Dispatches to one bench.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    match args.word().as_deref() {
        Some("run") => job::bench(world, args),
        Some("costs") => costs::bench(world, args),
        Some("default-pager") => default_pager::bench(world, args),
        Some("exec") => exec::bench(world, args),
        Some("fault") => fault::bench(world, args),
        Some("heap") => heap::bench(world, args),
        Some("fits") => fits::bench(world, args),
        Some("cache") => fault::bench_cache(world, args),
        Some("local") => local::bench(world, args),
        Some("locked") => locked::bench(world, args),
        Some("map-fd") => map_fd::bench(world, args),
        Some("ports") => ports::bench(world, args),
        Some("programs") => programs::bench(world, args),
        Some("remote") => remote::bench(world, args),
        Some("rpc") => rpc::bench(world, args),
        Some("share") => share::bench(world, args),
        Some("shared") => shared::bench(world, args),
        Some("stdio") => stdio::bench(world, args),
        Some("translate") => translate::bench(world, args),
        other => bail!(
            "bench run, costs, default-pager, exec, fault, fits, heap, cache, local, locked, map-fd, ports, programs, remote, rpc, share, shared, stdio or translate, not {:?}",
            other.unwrap_or("")
        ),
    }
}

/// The program of crate `bench`, built.
fn program(world: &World, features: &[&str]) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--quiet", "-p", "farpage-bench"]);
    cargo.args(features).current_dir(&world.root);
    proc::must(&mut cargo, "cargo build --release -p farpage-bench")?;
    Ok(world.release_dir()?.join("farpage-bench"))
}

/// What the program of crate `bench` prints, each line as `parse` reads it.
fn figures<T>(
    world: &World,
    features: &[&str],
    arguments: &[&str],
    parse: fn(&str) -> Option<T>,
) -> Result<Vec<T>> {
    let mut command = Command::new(program(world, features)?);
    let text = proc::output(command.args(arguments), "farpage-bench")?;
    let line = |l: &str| parse(l).with_context(|| format!("not a line of figures: {l}"));
    text.lines().map(line).collect()
}

/// `median (least-most)`.
fn spread(values: &[f64], decimals: usize) -> String {
    let (low, high) = (quantile(values, 0.0), quantile(values, 1.0));
    format!(
        "{:.d$} ({low:.d$}-{high:.d$})",
        median(values),
        d = decimals
    )
}
