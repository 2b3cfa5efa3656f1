//! `cargo xtask bench`: figures, always beside the bare kernel and the peers of the same run.

mod fault;
mod fits;
mod job;
mod local;
mod remote;
mod rpc;
mod shared;
mod swap;
mod translate;

use anyhow::{Result, bail};

use crate::args::Args;
use crate::table::{median, quantile};
use crate::world::World;

/// Dispatches to one bench.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    match args.word().as_deref() {
        Some("run") => job::bench(world, args),
        Some("fault") => fault::bench(world, args),
        Some("fits") => fits::bench(world, args),
        Some("cache") => fault::bench_cache(world, args),
        Some("local") => local::bench(world, args),
        Some("remote") => remote::bench(world, args),
        Some("rpc") => rpc::bench(world, args),
        Some("shared") => shared::bench(world, args),
        Some("translate") => translate::bench(world, args),
        other => bail!(
            "bench run, fault, fits, cache, local, remote, rpc, shared or translate, not {:?}",
            other.unwrap_or("")
        ),
    }
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
