//! The command line.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::cluster::ClusterArgs;
use crate::cluster::objects::{CreateArgs, FlushArgs, SealArgs};
use crate::cluster::pages::PagesArgs;
use crate::doctor::DoctorArgs;
use crate::exec::ExecArgs;
use crate::host::figures::StatsArgs;
use crate::host::gc::GcArgs;
use crate::host::list::{LsArgs, RmArgs};
use crate::host::locks::LocksArgs;
use crate::host::ports::PortsArgs;
use crate::host::top::TopArgs;
use crate::host::trace::TraceArgs;
use crate::open::OpenArgs;
use crate::pager::PagerArgs;
use crate::plot::PlotArgs;
use crate::run::RunArgs;
use crate::spill::SpillArgs;
use crate::up::UpArgs;

/// Runs programs with as much memory as they ask for.
#[derive(Parser, Debug)]
#[command(
    name = "farpage",
    version,
    about = "Runs a program with as much memory as it asks for, and little of it in RAM",
    long_about = "Farpage runs an unmodified program with as much memory as it asks for, keeps at \
        most a budget of it in RAM, and pages the rest to a compressed tier and to paging files. \
        No root, no swap, no daemon, no change to the program, no kernel module.",
    after_help = "First steps:\n  \
        farpage doctor                           what works on this machine\n  \
        farpage run --ram 1G -- python3 job.py   run a job within 1 GiB of RAM",
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    Run(RunArgs),
    Exec(ExecArgs),
    Doctor(DoctorArgs),
    Open(OpenArgs),
    Up(UpArgs),
    Cluster(ClusterArgs),
    Create(CreateArgs),
    Seal(SealArgs),
    Flush(FlushArgs),
    Ls(LsArgs),
    Rm(RmArgs),
    Stats(StatsArgs),
    Top(TopArgs),
    Trace(TraceArgs),
    Pages(PagesArgs),
    Ports(PortsArgs),
    Locks(LocksArgs),
    Gc(GcArgs),
    Pager(PagerArgs),
    Plot(PlotArgs),
    Spill(SpillArgs),
    /// Print a completion script for a shell
    ///
    /// For bash: farpage completions bash > ~/.local/share/bash-completion/completions/farpage
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Wait until standard input ends: a child that `doctor` tries things on
    #[command(hide = true)]
    Wait,
    /// Write the manual pages into a directory
    ///
    /// Then read them with: man -l DIR/farpage.1
    Man {
        /// Existing directory that gets farpage.1, farpage-run.1, ...
        dir: PathBuf,
    },
}

/// True when what is taken for the program is more likely a mistyped option: it begins with `-`, and
/// no `--` among `words` says that options end.
pub fn is_mistyped_option(program: &OsStr, words: impl Iterator<Item = OsString>) -> bool {
    let mut before = words.take_while(|word| word != program);
    program.as_encoded_bytes().starts_with(b"-") && !before.any(|word| word == "--")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_deadline_is_a_time_and_needs_a_map() {
        let parse = |words: &[&str]| {
            let line = ["farpage", "run"].iter().chain(words).chain(&["ls"]);
            Cli::try_parse_from(line).map(|cli| match cli.command {
                Command::Run(run) => run.deadline,
                other => panic!("{other:?}"),
            })
        };
        let given = |time| parse(&["--map", "a=b", "--deadline", time]);
        assert_eq!(given("0.5").unwrap(), Some(Duration::from_millis(500)));
        assert_eq!(parse(&["--map", "a=b"]).unwrap(), None);
        for nonsense in ["0", "-1", "inf", "nan", "1e300", "soon", ""] {
            let refused = given(nonsense).unwrap_err().to_string();
            assert!(
                refused.contains("is not a duration; give seconds"),
                "{refused}"
            );
        }
        let alone = parse(&["--deadline", "5"]).unwrap_err().to_string();
        assert!(alone.contains("--map"), "{alone}");
    }

    #[test]
    fn options_after_the_program_are_the_programs() {
        let line = ["farpage", "run", "--ram", "1G", "ls", "--ram", "-x"];
        let Command::Run(run) = Cli::try_parse_from(line).unwrap().command else {
            panic!("not a run");
        };
        assert_eq!(run.memory.ram.as_deref(), Some("1G"));
        assert_eq!(run.program, ["ls", "--ram", "-x"]);
    }
}
