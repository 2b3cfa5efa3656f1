//! `farpage run`: what is shown while the program runs, and said at its end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use farpage_abi::Death;
use farpage_supervisor::config::{Casualty, RunOptions};
use farpage_supervisor::{Run, shm};
use farpage_sys::memory_limit::MemoryLimit;
use farpage_sys::userfaultfd::tier_name;
use farpage_text::output;
use farpage_text::time::seconds;
use rustix::time::{ClockId, clock_gettime};

use crate::cluster::join::JoinArgs;
use crate::cluster::objects::unit_bytes;
use crate::live::Live;
use crate::prepare::{self, MemoryArgs};
use crate::stats::{self, CasualtyJson, Exit, SeriesJson, Settings, Stats, Trace};
use crate::summary::{self, Outcome};
use crate::{maps, nested};

/// Exit status when the program was killed because paging space was full.
const NO_ROOM: i32 = 122;
/// Time between two drawings of the live line, and before the first.
const REDRAW: Duration = Duration::from_millis(200);

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

/// Runs the program and ends as it ended.
///
/// # Errors
/// When the run can't start as asked, or the supervisor loses its hold of it.
pub fn main(args: &RunArgs) -> Result<ExitStatus> {
    let limit = MemoryLimit::read();
    let options = prepare::options(args, &limit)?;
    let shared = shm::SharedMemoryConfig {
        join: args.join.config(),
        replicas: args.replicas,
        unit_bytes: args.page_size,
    };
    let report = Report {
        stats: args.stats.clone(),
        quiet: args.quiet,
    };
    with_options(options, &report, &limit, Some(&shared))
}

/// As [`main`], from options. `shared`: how shared memory is kept, when it is.
///
/// # Errors
/// As there.
pub fn with_options(
    options: RunOptions,
    report: &Report,
    limit: &MemoryLimit,
    shared: Option<&shm::SharedMemoryConfig>,
) -> Result<ExitStatus> {
    if nested::is_inside() {
        match nested::run(&options, report)? {}
    }
    for warning in prepare::warnings(&options, limit) {
        farpage_sys::say!("farpage: {warning}");
    }
    let output = report.stats.as_deref().map(stats::Output::open);
    let output = output.transpose()?;
    let mut run = Run::start(options, shared)?;
    let status = until_end(&mut run, report.quiet);
    let shared = run.end();
    let status = status?;
    let outcome = outcome(&run, shared);
    tell(&run, &outcome, report.quiet);
    if let Some(output) = output {
        output.write(&statistics(&run, &outcome, status))?;
    }
    let program = run.program_pid();
    let of_no_room = |dead: &Casualty| {
        dead.pid == program && matches!(dead.cause, Death::OutOfSpace | Death::WriteError)
    };
    match run.casualties().iter().any(of_no_room) {
        true => Ok(ExitStatus::from_raw(NO_ROOM << 8)),
        false => Ok(status),
    }
}

/// Looks on while the program runs.
fn until_end(run: &mut Run, quiet: bool) -> Result<ExitStatus> {
    let mut live = if quiet { None } else { Live::new() };
    let mut redraw_at = Instant::now() + REDRAW;
    loop {
        let look = run.look()?;
        if let Some(live) = &mut live
            && (look.said.is_some() || look.ended.is_some())
        {
            live.clear();
        }
        if let Some(word) = look.said {
            farpage_sys::say!("{word}");
        }
        if let Some(status) = look.ended {
            return Ok(status);
        }
        if Instant::now() >= redraw_at
            && let Some(live) = &mut live
        {
            let waits_ns = run.full().waits_ns();
            live.draw(run.sampler().last(), run.budget_bytes(), waits_ns);
            redraw_at = Instant::now() + REDRAW;
        }
    }
}

fn outcome(run: &Run, shared: Option<shm::SharedMemoryFigures>) -> Outcome<'_> {
    Outcome {
        ram_bytes: run.highest_budget_bytes(),
        totals: run.sampler().totals(),
        last: run.sampler().last(),
        peaks: run.sampler().peaks(),
        wall_ns: run.elapsed_ns(),
        shared,
    }
}

/// Says who had to die of what, and unless it is `quiet` what the run took.
fn tell(run: &Run, outcome: &Outcome<'_>, quiet: bool) {
    let dirs = run.spill_dirs();
    for dead in run.casualties() {
        if let Some(said) = summary::casualty(dead, run.options(), &dirs) {
            output::errors(&said);
        }
    }
    if quiet {
        return;
    }
    output::errors(&summary::text(outcome));
    for map in run.maps() {
        output::errors(&maps::line(&map));
    }
    if let Some(shm) = &outcome.shared {
        output::errors(&shm.summary());
    }
    if let Some(cost) = run.cost() {
        output::errors(&cost.summary());
    }
}

fn statistics(run: &Run, outcome: &Outcome<'_>, status: ExitStatus) -> Stats {
    let options = run.options();
    let counters = outcome.totals.iter();
    let counters = counters.map(|(name, value)| (name.to_string(), value));
    let args = options.args.iter();
    let dirs = run.spill_dirs().into_iter();
    let series = run.sampler().series().map(SeriesJson::new);
    Stats {
        format: stats::FORMAT,
        farpage: env!("CARGO_PKG_VERSION").to_string(),
        program: args.map(|arg| arg.to_string_lossy().into_owned()).collect(),
        exit: Exit {
            code: status.code(),
            signal: status.signal(),
        },
        wall_s: outcome.wall_ns as f64 / 1e9,
        supervisor_cpu_s: cpu_s(),
        kernel: kernel_release(),
        tier: tier_name(run.tier()).to_string(),
        settings: Settings {
            ram_bytes: options.memory.ram_bytes,
            compressed_max_bytes: options.memory.compressed_max_bytes,
            threshold_bytes: options.threshold_bytes,
            spill_dirs: dirs.map(|dir| dir.display().to_string()).collect(),
            spill_limit_bytes: options.memory.spill_limit_bytes,
        },
        peaks: *outcome.peaks,
        counters: counters.collect::<BTreeMap<_, _>>(),
        compression_ratio: outcome.compression_ratio(),
        stalled_share: outcome.stalled(),
        full_times: run.full().times,
        full_s: run.full().waited_ns() as f64 / 1e9,
        casualties: run.casualties().iter().map(casualty_json).collect(),
        maps: run.maps(),
        shm: outcome.shared,
        cluster: run.cost().cloned(),
        trace: series
            .zip(run.heat())
            .map(|(series, heat)| Trace { series, heat }),
    }
}

fn casualty_json(casualty: &Casualty) -> CasualtyJson {
    CasualtyJson {
        pid: casualty.pid,
        name: casualty.name.clone(),
        cause: format!("{:?}", casualty.cause),
    }
}

/// Processor time of this process.
fn cpu_s() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// `uname -r`.
pub fn kernel_release() -> String {
    let uname = rustix::system::uname();
    uname.release().to_string_lossy().into_owned()
}
