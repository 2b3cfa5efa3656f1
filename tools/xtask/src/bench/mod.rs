//! `cargo xtask bench`: figures, always beside the bare kernel and the peers of the same run.

mod against;
mod bounds;
mod costs;
mod default_pager;
mod exec;
mod fault;
mod fits;
mod heap;
mod hosts;
mod job;
mod load;
mod local;
mod locked;
mod locked_io;
mod map_fd;
mod open;
mod ports;
mod process;
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

pub(crate) use self::load::{BUSY, Busy};

use self::bounds::Bound;
use crate::args::Args;
use crate::proc;
use crate::table::{median, quantile};
use crate::world::World;

/// A bench, and what is said of it.
struct Bench {
    name: &'static str,
    options: &'static str,
    what: &'static str,
    /// What `--assert` asserts.
    bounds: &'static [Bound],
    run: fn(&World, Args) -> Result<()>,
}

const fn bench_of(
    name: &'static str,
    options: &'static str,
    what: &'static str,
    bounds: &'static [Bound],
    run: fn(&World, Args) -> Result<()>,
) -> Bench {
    Bench {
        name,
        options,
        what,
        bounds,
        run,
    }
}

const BENCHES: [Bench; 22] = [
    bench_of(
        "against",
        "[--runs 5] [--only PROGRAM]... [--at 75|50|25]... [--limit-s 300] [--assert]",
        "programs of the corpus within a memory limit, beside a swap file and zram; goes on where it was ended",
        &against::BOUNDS,
        against::bench,
    ),
    bench_of(
        "cache",
        "[--runs 5] [--pages 16384]",
        "pages from the cache on disk, beside pread and UFFDIO_COPY",
        &[],
        fault::bench_cache,
    ),
    bench_of(
        "costs",
        "[--runs 5] [--assert]",
        "messages and time of faults between hosts, beside the paper's",
        &costs::BOUNDS,
        costs::bench,
    ),
    bench_of(
        "default-pager",
        "[--runs 5] [--mib 4096] [--assert]",
        "the default pager as a process of its own, beside that in the kernel; --mib 0: only a program of 7 MB",
        &default_pager::BOUNDS,
        default_pager::bench,
    ),
    bench_of(
        "exec",
        "[--runs 5] [--latency-ms 20] [--mb-per-s 60]",
        "programs behind HTTP, beside rclone and downloading first",
        &[],
        exec::bench,
    ),
    bench_of(
        "fault",
        "[--runs 5] [--pages 16384]",
        "page faults beside the bare kernel primitive and a minimal handler",
        &[],
        fault::bench,
    ),
    bench_of(
        "fits",
        "[--runs 5] [--mib 1024]",
        "a program that fits into its budget, bare against farpage",
        &[],
        fits::bench,
    ),
    bench_of(
        "heap",
        "[--runs 5] [--pairs 1048576]",
        "malloc in shared memory, beside the C library's",
        &[],
        heap::bench,
    ),
    bench_of(
        "local",
        "[--runs 5] [--mib 1024] [--pages 20000]",
        "a file four times its memory, beside mmap, O_DIRECT and UMap",
        &[],
        local::bench,
    ),
    bench_of(
        "locked",
        "[--runs 5] [--libfabric PROGRAM] [--assert] | --io | --truth",
        "locking and registering memory, beside Linux and UCX; --io: transfers; --truth: what becomes of it",
        &locked::BOUNDS,
        locked::bench,
    ),
    bench_of(
        "map-fd",
        "[--runs 5] [--mib 256]",
        "a private copy of bytes of a file, beside read and mmap",
        &[],
        map_fd::bench,
    ),
    bench_of(
        "open",
        "[--runs 5] [--mib 1024] [--assert]",
        "a local file opened for reading, beside mmap",
        &open::BOUNDS,
        open::bench,
    ),
    bench_of(
        "ports",
        "[--runs 5] [--calls 2000]",
        "calls between programs of two hosts by ports, beside bare TCP",
        &[],
        ports::bench,
    ),
    bench_of(
        "process",
        "[--runs 5] [--assert]",
        "fork, a core and SIGKILL of a process of which most is paged out, beside bare Linux",
        &process::BOUNDS,
        process::bench,
    ),
    bench_of(
        "programs",
        "[--runs 5] [--only matmul|paths|particles|router]... [--assert]",
        "parallel programs on one, two and three hosts, beside bare processes",
        &programs::BOUNDS,
        programs::bench,
    ),
    bench_of(
        "remote",
        "[--runs 5] [--latency-ms 5] [--mb-per-s 60]",
        "arrays behind HTTP, beside rclone, fsspec and downloading",
        &[],
        remote::bench,
    ),
    bench_of(
        "rpc",
        "[--runs 5] [--calls 10000] [--bare] [--assert]",
        "calls between two processes and memory handed over, beside pipes and other libraries; --bare: beside pipes alone",
        &rpc::BOUNDS,
        rpc::bench,
    ),
    bench_of(
        "run",
        "[--runs 5] [--mib 3072] [--only VARIANT]... [--data random|compressible]... [--zram-mib 768] [--limit-s 900] [--json FILE]",
        "the NumPy job beyond its memory: farpage, swap file, zram, np.memmap",
        &[],
        job::bench,
    ),
    bench_of(
        "share",
        "[--runs 5] [--pages 2048] [--argodsm PROGRAM] [--bare] [--assert]",
        "pages that another host has, beside a bare round trip, Open MPI, OpenSHMEM, ArgoDSM (tools/bench/peers/argo.cpp), Redis and Ray; --bare: beside the round trip alone",
        &share::BOUNDS,
        share::bench,
    ),
    bench_of(
        "shared",
        "[--runs 5] [--pages 65536]",
        "pages of an object that two processes map, beside a bare memory file",
        &[],
        shared::bench,
    ),
    bench_of(
        "stdio",
        "[--runs 5] [--mib 1024] [--assert]",
        "a file read byte by byte and in pieces, by streams of the C library and ours, beside read, mmap, BufReader and memmap2",
        &stdio::BOUNDS,
        stdio::bench,
    ),
    bench_of(
        "translate",
        "[--runs 5] [--mib 64]",
        "numbers of other formats on page-in and page-out, beside memcpy",
        &[],
        translate::bench,
    ),
];

/// Runs one bench or several, one after the other.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let is_help = args.wants_help();
    let mut chosen = Vec::new();
    while let Some(word) = args.word() {
        chosen.push(find(&word)?);
    }
    if is_help {
        println!("{}", help(&chosen));
        return Ok(());
    }
    match chosen.as_slice() {
        [] => {
            bail!("which bench? `cargo xtask bench --help` lists them; names come before options")
        }
        [one] => (one.run)(world, args),
        several => one_after_the_other(world, several, &args),
    }
}

fn find(name: &str) -> Result<&'static Bench> {
    let found = BENCHES.iter().find(|bench| bench.name == name);
    found.with_context(|| {
        let names = BENCHES.map(|bench| bench.name).join(", ");
        format!("there is no bench '{name}'; there are {names}")
    })
}

/// One that fails keeps no other from running.
fn one_after_the_other(world: &World, benches: &[&Bench], args: &Args) -> Result<()> {
    let mut failed = Vec::new();
    let mut busy = None;
    for bench in benches {
        println!("== {}", bench.name);
        if let Err(why) = (bench.run)(world, args.clone()) {
            println!("{}: {why:#}", bench.name);
            match why.downcast::<Busy>() {
                Ok(why) => busy = Some(why),
                Err(_) => failed.push(bench.name),
            }
        }
        println!();
    }
    match (failed.as_slice(), busy) {
        ([], None) => Ok(()),
        ([], Some(busy)) => Err(busy.into()),
        (failed, _) => bail!("{} benches failed: {}", failed.len(), failed.join(", ")),
    }
}

/// Of these benches, or of all.
fn help(chosen: &[&Bench]) -> String {
    let all: Vec<&Bench> = BENCHES.iter().collect();
    let benches = if chosen.is_empty() { &all } else { chosen };
    let mut text = "cargo xtask bench NAME... [OPTION]...\n".to_owned();
    for bench in benches {
        text += &format!(
            "\n  {} {}\n      {}\n",
            bench.name, bench.options, bench.what
        );
        let bound = |bound: &Bound| format!("      {}: {}\n", bound.what, bound.promise());
        text.extend(bench.bounds.iter().map(bound));
    }
    text += &format!(
        "
Several benches run one after the other, all with the same options, which come after the names.
--assert fails (status 1) and names each bound that was missed. Bounds are about medians of ratios of figures
of the same run, of 5 runs or more. What others use of the processors is looked at for a second before and
during the run: if it is more than {} of one processor, nothing is judged, and the status is {}.",
        load::MOST,
        BUSY
    );
    text
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benches_are_found_by_name_and_help_says_what_they_assert() {
        assert_eq!(find("stdio").unwrap().name, "stdio");
        let Err(refused) = find("stdin") else {
            panic!("there is no such bench");
        };
        assert!(
            refused
                .to_string()
                .contains("'stdin'; there are against, cache, costs")
        );
        let all = help(&[]);
        assert!(BENCHES.iter().all(|bench| all.contains(bench.what)));
        let one = help(&[find("stdio").unwrap()]);
        assert!(one.contains("getc of glibc / ours: at least") && !one.contains("fits"));
        assert!(one.contains("0.5 of one processor") && one.contains("status is 75"));
    }

    #[test]
    fn a_bench_has_bounds_if_it_has_the_option() {
        for bench in &BENCHES {
            let has_option = bench.options.contains("--assert");
            assert_eq!(has_option, !bench.bounds.is_empty(), "{}", bench.name);
        }
    }
}
