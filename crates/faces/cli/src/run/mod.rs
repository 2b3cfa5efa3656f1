//! `farpage run`: what is shown while the program runs, and said at its end.

mod args;
mod nested;
mod options;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Result;
use farpage_object::Death;
use farpage_supervisor::config::{Casualty, RunOptions};
use farpage_supervisor::{Run, shm};
use farpage_sys::memory_limit::MemoryLimit;
use farpage_sys::probe::kernel_release;
use farpage_sys::userfaultfd::tier_name;
use farpage_text::output;
use rustix::time::{ClockId, clock_gettime};

pub use args::{Report, RunArgs};

use crate::live::Live;
use crate::maps;
use crate::stats::{self, CasualtyJson, Exit, SeriesJson, Settings, Stats, Trace};
use crate::summary::{self, Outcome};

/// Exit status when the program was killed because paging space was full.
const NO_ROOM: i32 = 122;
/// Time between two drawings of the live line, and before the first.
const REDRAW: Duration = Duration::from_millis(200);

/// Runs the program and ends as it ended.
///
/// # Errors
/// When the run can't start as asked, or the supervisor loses its hold of it.
pub fn main(args: &RunArgs) -> Result<ExitStatus> {
    let limit = MemoryLimit::read();
    let options = options::of(args, &limit)?;
    with_options(options, &args.report(), &limit, Some(&args.shared_memory()))
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
    for warning in options::warnings(&options, limit) {
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
