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
mod tidy;
mod wheel;
mod world;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::args::Args;
use crate::world::World;

const USAGE: &str = "\
cargo xtask COMMAND

  setup                      install what tests and benches need
  test [--all] [--only long|fuzz|corpus|calls|chaos|s390x|peers|fresh|rows]... [--no-setup] [--jobs N]
       [--again] [--list] [WORD]...
                             the short run: lints and tests; --all: the groups as well, --only: a group
                             alone, from where it was ended; WORD: tests with it in their names
  flaky [--long] [--runs 10] [--beside busy] [--jobs N] [WORD]...
                             the tests of the short run again and again, or with --long those of the group
                             long; what failed how often
  corpus [--full] [--only NAME]... [--user root|nobody|both] [--ram-share N]
         [--repeat N] [--watch] [--json FILE] [--keep] [--list] [--bare]
                             the same programs with and without farpage, outputs compared
  bench NAME... [--assert] [OPTION]...
                             figures beside bare Linux and peers; --assert: status 1 if one is worse than
                             the bounds, 75 if the machine is busy; bench --help: all names and options
  chaos [--minutes 5] [--seed 1] [--hosts 4]
                             hosts that share memory, as network namespaces with etcd, killed, stopped and
                             cut off by seed: what their programs did is that of one memory
  fresh [--user root|ordinary|both] [--only install|demo|wheel|c|tests|artefacts]... [--keep]
                             the commands of README.md on a minimal Debian with nothing but what
                             README.md names; it takes root
  tidy [--write] [--rule NAME]...
                             the rules of the house: what breaks one and is not in tools/xtask/tidy.txt fails;
                             --write lowers that list, --rule shows what breaks a rule
  fuzz [--seconds 10] [TARGET]...
                             parsers given anything, each for so long; a finding is a failure
  install-c [--prefix /usr/local]
                             libfarpage.so, libfarpage.a, farpage.h and farpage.pc, for C
  wheel [--out dist]         the Python package with the farpage command in it, tried with NumPy
                             alone; `test python` runs its tests
  demo                       a job that dies under a memory limit, and finishes with farpage
  release [--out dist/VERSION]
                             wheel, .deb, tar files, checksums and bill of materials, from a clone of
                             HEAD: uncommitted changes are refused
  rows [ROW]...              runs the command behind each row of docs/ROWS.md that is done or in progress,
                             and says why when it does not print ok

FARPAGE=PATH uses that binary instead of building one.";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            if e.is::<bench::Busy>() {
                return ExitCode::from(bench::BUSY);
            }
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    signals::reset()?;
    let mut args = Args::new(std::env::args().skip(1));
    let command = args.word();
    // The benches tell of their own options.
    if command.as_deref() != Some("bench") && args.wants_help() {
        println!("{USAGE}");
        return Ok(());
    }
    let world = World::find()?;
    match command.as_deref() {
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
        Some("tidy") => tidy::tidy(&world, args),
        Some(harness::HOG) => {
            harness::be_busy(&args.word().unwrap_or_default())?;
            args.finish()
        }
        Some("help") => {
            println!("{USAGE}");
            Ok(())
        }
        other => bail!("unknown command {:?}\n{USAGE}", other.unwrap_or_default()),
    }
}
