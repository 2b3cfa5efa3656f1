//! What `farpage run` is told.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use farpage_supervisor::shm::SharedMemoryConfig;
use farpage_text::time::seconds;

use crate::cluster::join::JoinArgs;
use crate::cluster::objects::unit_bytes;
use crate::memory::MemoryArgs;

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
    /// /dev/shm, and is gone with its last user, however that ends. Its names are Linux's own;
    /// other processes find them empty.
    #[arg(long, conflicts_with = "map")]
    pub shm: bool,
    /// What the program sees as the memory of this machine
    ///
    /// For programs that size their heaps and caches by it, such as databases and the JVM. sysinfo,
    /// sysconf, /proc/meminfo and the files of memory cgroups say it, and as free what of it the
    /// programs of the run do not use. It bounds nothing: --ram does. [default: what there is]
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
    /// Of memory that is made in this run. Little where hosts write to neighbouring places, much
    /// where one reads what another wrote.
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

/// What is said of a run.
#[derive(Default)]
pub struct Report {
    /// `--stats`: where the statistics go at the end.
    pub stats: Option<PathBuf>,
    /// `--quiet`: no live line, no summary.
    pub quiet: bool,
}

impl RunArgs {
    /// What is said of it.
    pub fn report(&self) -> Report {
        Report {
            stats: self.stats.clone(),
            quiet: self.quiet,
        }
    }

    /// How its shared memory is kept.
    pub fn shared_memory(&self) -> SharedMemoryConfig {
        SharedMemoryConfig {
            join: self.join.config(),
            replicas: self.replicas,
            unit_bytes: self.page_size,
        }
    }
}
