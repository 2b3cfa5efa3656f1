//! The command line.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::cluster::ClusterArgs;
use crate::cluster::join::JoinArgs;
use crate::cluster::objects::{CreateArgs, FlushArgs, SealArgs, unit_bytes};
use crate::cluster::pages::PagesArgs;
use crate::exec::ExecArgs;
use crate::host::WhichHost;
use crate::host::figures::StatsArgs;
use crate::host::gc::GcArgs;
use crate::host::list::{LsArgs, RmArgs};
use crate::host::locks::LocksArgs;
use crate::host::ports::PortsArgs;
use crate::host::top::TopArgs;
use crate::host::trace::TraceArgs;
use crate::open::OpenArgs;
use crate::pager::PagerArgs;
use crate::up::UpArgs;
use farpage_manager::paging::WhenFull;
use farpage_text::time::seconds;

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

/// Where pages are.
#[derive(Args, Debug)]
pub struct MemoryArgs {
    /// RAM that pages may take, compressed part included
    ///
    /// At least 16M. A percentage is of the memory that this process may use: its cgroup's limit
    /// or what the machine has available, whichever is less. Without it, what the cgroup leaves,
    /// as that changes; without a cgroup's limit, 80% of what is available.
    #[arg(long, value_name = "SIZE")]
    pub ram: Option<String>,
    /// Part of it that may hold compressed pages; 0 turns compression off
    ///
    /// A percentage is of --ram. `run` takes as much of it as pays, and none where nothing does.
    /// [default: 75%; of a host kernel: 25%]
    #[arg(long, value_name = "SIZE")]
    pub compressed: Option<String>,
    #[command(flatten)]
    pub files: FileArgs,
    /// What becomes of who needs room when paging space has none: kill, wait or wait=TIME
    ///
    /// Who waits goes on when there is room: files were deleted, a paging file was added (farpage spill
    /// add). All others go on meanwhile. After TIME, such as 90s, 10m or 2h, one process is killed, and
    /// the rest waits anew. [default: wait; without a terminal wait=1h]
    #[arg(long, value_name = "WHAT", value_parser = WhenFull::parse)]
    pub when_full: Option<WhenFull>,
}

/// Where paging files are.
#[derive(Args, Debug)]
pub struct FileArgs {
    /// Directory for a paging file; give it again for more than one
    ///
    /// The file has no name and is gone with farpage, however it ends. A local disk is best;
    /// tmpfs is memory and gains little. [default: $FARPAGE_SPILL, else $TMPDIR, else /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub spill: Vec<PathBuf>,
    /// Disk space that all paging files together may take [default: no limit]
    #[arg(long, value_name = "SIZE")]
    pub spill_limit: Option<String>,
}

/// Run a program within a budget of RAM
///
/// The program sees as much memory as it asks for. What does not fit into the budget is compressed
/// in RAM and then written to paging files, and comes back when it is touched. Exit status and
/// signals pass through. On a terminal a line shows what is going on; at the end there is a
/// summary on standard error.
#[derive(Args, Debug)]
#[command(after_help = "Exit status:\n  \
    that of PROGRAM; by the same signal when a signal ended it\n  \
    122  PROGRAM was killed, for paging space was full\n  \
    125  farpage could not do its part\n  \
    126  PROGRAM could not be executed\n  \
    127  PROGRAM was not found\n  \
    2    an option is unknown, or something is missing\n\n\
    Sizes:\n  \
    512M, 1.5G, 1GiB (powers of 1024), 500MB (powers of 1000), 1073741824 (bytes), 50%")]
pub struct RunArgs {
    /// Where its pages are.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// A file that the program finds at PATH, with the contents of URL; may be given again
    ///
    /// PATH need not exist, and is not listed in its folder; a relative one is seen from the folder
    /// that farpage is started in. URL is http://, https://, s3://, gs://, az://, a local path or
    /// file:///path. The program opens, reads and maps it like a file that cannot be written to;
    /// what it uses of it is brought in when it is used, and counts against --ram.
    #[arg(long, value_name = "PATH=URL")]
    pub map: Vec<OsString>,
    /// Seconds for which a far source of --map is tried again before an access to it fails
    ///
    /// [default: 60, and 20 when it is opened]
    #[arg(long, value_name = "SECONDS", requires = "map", value_parser = seconds)]
    pub deadline: Option<Duration>,
    /// Record which pages of the mapped files are asked for, in which order, for --replay
    ///
    /// TRACE is complete when the run ends, however the program ends. Of one --map it is also what
    /// `farpage.open(..., replay=TRACE)` takes.
    #[arg(long, value_name = "TRACE", requires = "map")]
    pub record: Option<PathBuf>,
    /// Bring in what an earlier run recorded, while the program already runs
    ///
    /// In the recorded order, as far as there is room, and at most half of --ram. Several files are
    /// known by their PATH of --map. Of one that has changed since then, which a message says, the
    /// pages come in that it still has. May be the same TRACE as that of --record: the first time,
    /// when it is not there, nothing is replayed.
    #[arg(long, value_name = "TRACE", requires = "map")]
    pub replay: Option<PathBuf>,
    /// Keep shared memory within --ram, too, and leave none of it behind
    ///
    /// That of POSIX (/dev/shm) and System V that the program and its children make, and what they
    /// map to share with their children. It pages out as other memory does, may be larger than
    /// /dev/shm, and is gone with its last user, however that ends. Its names are Linux's own; other
    /// processes find them empty.
    #[arg(long, conflicts_with = "map")]
    pub shm: bool,
    /// What the program sees as the memory of this machine
    ///
    /// For programs that size their heaps and caches by it, such as databases and the JVM. sysinfo,
    /// sysconf, /proc/meminfo and the files of memory cgroups say it, and as free what of it the programs
    /// of the run do not use. It bounds nothing: --ram does. [default: what there is]
    #[arg(id = "machine", long = "memory", value_name = "SIZE")]
    pub machine: Option<String>,
    /// Let the program's C library read large files where they lie, instead of copying them
    ///
    /// For programs that are linked to glibc and read through its streams (getc, fgets, fread and
    /// their like): they do the same as without it.
    #[arg(long)]
    pub stdio: bool,
    /// With --cluster, the same shared memory is there for programs at all its hosts.
    #[command(flatten)]
    pub join: JoinArgs,
    /// On how many hosts each page is that was written to: with 2, one that dies loses nothing
    #[arg(
        long,
        value_name = "HOSTS",
        requires = "cluster",
        default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(1..=2)
    )]
    pub replicas: u8,
    /// With --cluster, what goes from host to host together: 4K to 2M
    ///
    /// Of memory that is made in this run. Little where hosts write to neighbouring places, much where
    /// one reads what another wrote.
    #[arg(
        long,
        value_name = "SIZE",
        requires = "cluster",
        default_value = "4K",
        value_parser = unit_bytes
    )]
    pub page_size: u64,
    /// Write statistics to a file, as JSON, when the program has ended
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Record what happens to which page when, for `farpage plot` (needs --stats)
    #[arg(long, requires = "stats")]
    pub trace: bool,
    /// Show neither the line on the terminal nor the summary
    #[arg(long, short)]
    pub quiet: bool,
    /// Leave mappings below this size to Linux
    #[arg(long, value_name = "SIZE", hide = true)]
    pub threshold: Option<String>,
    /// The program and its arguments
    #[arg(
        required = true,
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub program: Vec<OsString>,
}

/// True when what is taken for the program is more likely a mistyped option: it begins with `-`, and
/// no `--` among `words` says that options end.
pub fn is_mistyped_option(program: &OsStr, words: impl Iterator<Item = OsString>) -> bool {
    let mut before = words.take_while(|word| word != program);
    program.as_encoded_bytes().starts_with(b"-") && !before.any(|word| word == "--")
}

/// Say what works on this machine and how to improve it
///
/// Tries what `farpage run` needs: userfaultfd, kernel features, limits, room for paging files.
/// For each shortcoming it prints the command that removes it. Exit status 1 when `farpage run`
/// could not work.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Directory for paging files to look at; may be given again
    ///
    /// [default: $FARPAGE_SPILL, else $TMPDIR, else /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub spill: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Draw the statistics of a traced run as an HTML page
///
/// Takes the file of `farpage run --trace --stats FILE`. The page stands alone: it loads nothing
/// from anywhere.
#[derive(Args, Debug)]
pub struct PlotArgs {
    /// Statistics of a run with --trace
    #[arg(value_name = "STATS.json", required_unless_present = "cluster")]
    pub stats: Option<PathBuf>,
    /// Draw instead, for so long, what the hosts of a cluster own and send to one another
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "10",
        conflicts_with = "stats", require_equals = true)]
    pub cluster: Option<u32>,
    #[command(flatten)]
    pub which: WhichHost,
    /// The page to write; `-` for standard output
    #[arg(short, long, value_name = "FILE", default_value = "farpage.html")]
    pub output: PathBuf,
}

/// Add, remove or list the paging files of a run
#[derive(Args, Debug)]
pub struct SpillArgs {
    /// What to do with them.
    #[command(subcommand)]
    pub command: SpillCommand,
}

/// What can be done with paging files.
#[derive(Subcommand, Debug)]
pub enum SpillCommand {
    /// Add a paging file in a directory to a run, or change what one may take
    Add {
        /// Directory for the file
        dir: PathBuf,
        /// Disk space that it may take [default: no limit]
        #[arg(long, value_name = "SIZE")]
        limit: Option<String>,
        #[command(flatten)]
        which: WhichRun,
    },
    /// Move everything out of the paging file in a directory and remove it
    Rm {
        /// Directory of the file, as `spill ls` shows it
        dir: PathBuf,
        #[command(flatten)]
        which: WhichRun,
    },
    /// List the paging files of a run
    Ls {
        #[command(flatten)]
        which: WhichRun,
    },
}

/// Which run is meant.
#[derive(Args, Debug)]
pub struct WhichRun {
    /// Process id of `farpage run`; needed when you have more than one
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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
            assert!(refused.contains("it is no time; give seconds"), "{refused}");
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
