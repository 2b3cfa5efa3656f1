//! `cargo xtask`: sets up, tests, measures and demonstrates Farpage.

mod args;
mod bench;
mod chaos;
mod corpus;
mod demo;
mod flaky;
mod fresh;
mod fuzz;
mod harness;
mod install_c;
mod kept;
mod proc;
mod release;
mod rows;
mod setup;
mod signals;
mod sources;
mod table;
mod test;
mod wheel;
mod world;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::args::Args;
use crate::world::World;

const USAGE: &str = "\
cargo xtask COMMAND

  setup                      install what tests and benches need
  test [--all] [--only fuzz|corpus|chaos|s390x|peers|fresh|rows]... [--no-setup] [--jobs N]
       [--again] [--list] [WORD]...
                             the short run: lints and tests; --all: the groups as well, --only: a group
                             alone, from where it was ended; WORD: tests with it in their names
  flaky [--runs 10] [--beside busy] [--jobs N] [WORD]...
                             the tests of the short run again and again; what failed how often
  corpus [--full] [--only NAME]... [--user root|nobody|both] [--ram-share 0.25]
         [--repeat N] [--watch] [--json FILE] [--keep] [--list] [--bare]
                             the same programs with and without farpage, outputs compared
  bench run [--runs 5] [--mib 3072] [--only VARIANT]... [--data random|compressible]...
            [--zram-mib 768] [--limit-s 900] [--json FILE]
                             the NumPy job beyond its memory: farpage, swap file, zram, np.memmap
  bench cache [--runs 5] [--pages 16384]
                             pages from the cache on disk, beside pread and UFFDIO_COPY
  bench default-pager [--runs 5] [--mib 4096]
                             the default pager as a process of its own, beside that in the kernel
  bench exec [--runs 5] [--latency-ms 20] [--mb-per-s 60]
                             programs behind HTTP, beside rclone and downloading first
  bench fault [--runs 5] [--pages 16384]
                             page faults beside the bare kernel primitive and a minimal handler
  bench fits [--runs 5] [--mib 1024]
                             a program that fits into its budget, bare against farpage
  bench heap [--runs 5] [--pairs 1048576]
                             malloc in shared memory, beside the C library's
  bench local [--runs 5] [--mib 1024] [--pages 20000]
                             a file four times its memory, beside mmap, O_DIRECT and UMap
  bench ports [--runs 5] [--calls 2000]
                             calls between programs of two hosts by ports, beside bare TCP
  bench programs [--runs 5] [--only matmul|paths|particles|router]...
                             parallel programs on one, two and three hosts, beside bare processes
  bench remote [--runs 5] [--latency-ms 5] [--mb-per-s 60]
                             arrays behind HTTP, beside rclone, fsspec and downloading
  bench rpc [--runs 5] [--calls 10000]
                             calls between two processes and memory handed over, beside pipes and
                             other libraries
  bench share [--runs 5] [--pages 2048] [--argodsm PROGRAM]
                             pages that another host has, beside a bare round trip, Open MPI,
                             OpenSHMEM, ArgoDSM (bench/peers/argo.cpp), Redis and Ray
  bench shared [--runs 5] [--pages 65536]
                             pages of an object that two processes map, beside a bare memory file
  bench map-fd [--runs 5] [--mib 256]
                             a private copy of bytes of a file, beside read and mmap
  bench stdio [--runs 5] [--mib 1024]
                             a file read byte by byte and in pieces, by streams of the C library and
                             ours, beside read, mmap, BufReader and memmap2
  bench translate [--runs 5] [--mib 64]
                             numbers of other formats on page-in and page-out, beside memcpy
  chaos [--minutes 5] [--seed 1] [--hosts 4]
                             hosts that share memory, as network namespaces with etcd, killed, stopped and
                             cut off by seed: what their programs did is that of one memory
  fresh [--user root|ordinary|both] [--only install|demo|wheel|c|tests|artefacts]... [--keep]
                             the commands of README.md on a minimal Debian with nothing but what
                             README.md names; it takes root
  fuzz [--seconds 10] [TARGET]...
                             parsers given anything, each for so long; a finding is a failure
  install-c [--prefix /usr/local]
                             libfarpage.so, libfarpage.a, farpage.h and farpage.pc, for C
  wheel [--out dist] [--test]
                             the Python package with the farpage command in it, tried with NumPy
                             alone; --test: its tests
  demo                       a job that dies under a memory limit, and finishes with farpage
  release [--out dist/VERSION]
                             wheel, .deb, tar files, checksums and bill of materials, from a clone of
                             HEAD: uncommitted changes are refused
  rows [ROW]...              runs the command behind each row of docs/ROWS.md

FARPAGE=PATH uses that binary instead of building one.";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    signals::reset()?;
    let mut args = Args::new(std::env::args().skip(1));
    let world = World::find()?;
    match args.word().as_deref() {
        Some("setup") => args
            .finish()
            .and_then(|()| setup::setup(&world, setup::ALL)),
        Some("test") => test::test(&world, args),
        Some("corpus") => corpus::corpus(&world, args),
        Some("chaos") => chaos::chaos(&world, args),
        Some("bench") => bench::bench(&world, args),
        Some("flaky") => flaky::flaky(&world, args),
        Some("fresh") => fresh::fresh(&world, args),
        Some("fuzz") => fuzz::fuzz(&world, args),
        Some("install-c") => install_c::main(&world, args),
        Some("wheel") => wheel::wheel(&world, args),
        Some("demo") => args.finish().and_then(|()| demo::demo(&world)),
        Some("release") => release::release(&world, args),
        Some("rows") => rows::rows(&world, args),
        Some(harness::HOG) => {
            harness::be_busy(&args.word().unwrap_or_default())?;
            args.finish()
        }
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            Ok(())
        }
        other => bail!("unknown command {:?}\n{USAGE}", other.unwrap_or("")),
    }
}
