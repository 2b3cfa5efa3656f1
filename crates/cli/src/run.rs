//! `farpage run`: from the command line to the program's exit status.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use farpage_abi::{Control, Tier};

use crate::args::RunArgs;
use crate::control_socket::Server;
use crate::heat::HeatMap;
use crate::launch::{self, Running};
use crate::live::Live;
use crate::maps::{self, Maps};
use crate::options::{Casualty, Prepared, RunOptions};
use crate::sampler::{SERIES_STEP_NS, Sampler};
use crate::spill_set::SpillSet;
use crate::stats::{self, CasualtyJson, Exit, SeriesJson, Settings, Stats, Trace};
use crate::summary::{self, Outcome};
use crate::userfaultfd::{self, tier_name};
use crate::{prepare, signals};
use farpage::memory_limit::MemoryLimit;

/// Longest time between two looks at the control block.
const STEP: Duration = Duration::from_nanos(SERIES_STEP_NS);
/// Time between the first looks, doubled until it is [`STEP`]: short programs have peaks too.
const FIRST_STEP: Duration = Duration::from_millis(1);
/// Time between two drawings of the live line, and before the first.
const REDRAW: Duration = Duration::from_millis(200);

/// Runs the program and ends as it ended.
///
/// # Errors
/// When the run can't start as asked, or the supervisor loses its hold of it.
pub fn main(args: &RunArgs) -> Result<ExitStatus> {
    let limit = MemoryLimit::read();
    let options = prepare::options(args, &limit)?;
    for warning in prepare::warnings(&options, &limit) {
        eprintln!("farpage: {warning}");
    }
    let output = options.stats.as_deref().map(stats::Output::open);
    let output = output.transpose()?;
    let (control_fd, control) =
        farpage_sys::control::create().context("cannot make the control block")?;
    fill(control, &options)?;
    let spill = Arc::new(SpillSet::new(control));
    for dir in &options.spill_dirs {
        let added = spill.add_at_start(dir, options.segments_per_file())?;
        if let Some(warning) = added.warning {
            eprintln!("farpage: {warning}");
        }
    }
    let blocked = signals::block();
    // Without it `farpage spill` does not find this run; the run itself needs it not.
    let server = Server::start(Arc::clone(&spill))
        .inspect_err(|error| eprintln!("farpage: warning: farpage spill will not work: {error:#}"));
    let maps = maps::start(control, &options)?;
    let mut prepared = Prepared {
        maps,
        options,
        control,
        control_fd,
        signal_mask: blocked.mask_before,
    };
    let mut running = launch::start(&prepared)?;
    if let Some(maps) = &mut prepared.maps {
        // The program notices by it when this process ends.
        maps.socket = None;
    }
    let mut watch = Watch::new(&prepared);
    blocked.forward_to(running.program_pid())?;
    let status = watch.until_end(&mut running);
    if let Some(maps) = &prepared.maps {
        maps.end_record();
    }
    let status = status?;
    watch.report(status, &spill, output)?;
    drop(server);
    Ok(status)
}

/// Writes what the tasks need to know into a fresh control block.
fn fill(control: &Control, options: &RunOptions) -> Result<()> {
    let set = |word: &std::sync::atomic::AtomicU64, value| word.store(value, Ordering::Relaxed);
    set(&control.budget_bytes, options.ram_bytes);
    set(&control.compressed_max_bytes, options.compressed_max_bytes);
    set(&control.threshold_bytes, options.threshold_bytes);
    set(&control.started_ns, farpage_sys::time::now_ns());
    control
        .trace
        .store(u32::from(options.trace), Ordering::Release);
    fill_tier(control)
}

/// Writes into a control block what this process can do.
///
/// # Errors
/// When it gets no userfaultfd.
pub fn fill_tier(control: &Control) -> Result<()> {
    let found = userfaultfd::probe();
    if found.tier == Tier::None {
        bail!(
            "cannot run: this user gets no userfaultfd here ({}); \
             farpage doctor says how to change that",
            found
                .error
                .map_or("unknown error", farpage_sys::Errno::name)
        );
    }
    control.tier.store(found.tier as u32, Ordering::Relaxed);
    let rings = farpage_sys::probe::io_uring().is_ok();
    control.io_uring.store(rings.into(), Ordering::Relaxed);
    control
        .supervisor_pid
        .store(std::process::id(), Ordering::Relaxed);
    Ok(())
}

/// Looks on while the program runs.
struct Watch<'a> {
    prepared: &'a Prepared,
    started: Instant,
    sampler: Sampler,
    heat: Option<HeatMap>,
    live: Option<Live>,
    casualties: Vec<Casualty>,
}

impl<'a> Watch<'a> {
    fn new(prepared: &'a Prepared) -> Self {
        let options = &prepared.options;
        let live = (!options.quiet).then(|| Live::new(options.ram_bytes));
        Self {
            prepared,
            started: Instant::now(),
            sampler: Sampler::new(prepared.control, options.trace),
            heat: options.trace.then(HeatMap::new),
            live: live.flatten(),
            casualties: Vec::new(),
        }
    }

    fn until_end(&mut self, running: &mut Running) -> Result<ExitStatus> {
        let mut step = FIRST_STEP;
        let mut redraw_at = self.started + REDRAW;
        loop {
            let ended = running.wait(step)?;
            step = (step * 2).min(STEP);
            self.look();
            self.casualties.extend(running.take_casualties());
            if let Some(status) = ended {
                // Passes what a writer of the trace that was killed left unfinished.
                self.look();
                if let Some(live) = &mut self.live {
                    live.clear();
                }
                return Ok(status);
            }
            if Instant::now() >= redraw_at
                && let Some(live) = &mut self.live
            {
                live.draw(self.sampler.last());
                redraw_at = Instant::now() + REDRAW;
            }
        }
    }

    fn elapsed_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn look(&mut self) {
        self.sampler.take(self.elapsed_ns());
        if let Some(heat) = &mut self.heat {
            while let Some(event) = self.prepared.control.ring.pop() {
                heat.add(&event);
            }
        }
    }

    fn report(
        &self,
        status: ExitStatus,
        spill: &SpillSet,
        output: Option<stats::Output>,
    ) -> Result<()> {
        let options = &self.prepared.options;
        let outcome = Outcome {
            options,
            totals: self.sampler.totals(),
            last: self.sampler.last(),
            peaks: self.sampler.peaks(),
            wall_ns: self.elapsed_ns(),
        };
        let dirs: Vec<PathBuf> = spill.list().into_iter().map(|file| file.dir).collect();
        for casualty in &self.casualties {
            eprint!("{}", summary::casualty(casualty, options, &dirs));
        }
        if !options.quiet {
            eprint!("{}", summary::text(&outcome));
            if let Some(maps) = &self.prepared.maps {
                eprint!("{}", maps.summary());
            }
        }
        match output {
            Some(output) => output.write(&self.stats(&outcome, status, spill)),
            None => Ok(()),
        }
    }

    fn stats(&self, outcome: &Outcome, status: ExitStatus, spill: &SpillSet) -> Stats {
        use std::os::unix::process::ExitStatusExt;
        let control = self.prepared.control;
        let options = &self.prepared.options;
        let tier = Tier::from_raw(control.tier.load(Ordering::Relaxed)).unwrap_or(Tier::None);
        let counters = outcome
            .totals
            .iter()
            .map(|(name, value)| (name.to_string(), value));
        let dirs = spill.list().into_iter();
        let heat = self
            .heat
            .as_ref()
            .map(|heat| heat.to_json(control.ring.lost()));
        let series = self.sampler.series().map(SeriesJson::new);
        Stats {
            format: stats::FORMAT,
            farpage: env!("CARGO_PKG_VERSION").to_string(),
            program: options
                .args
                .iter()
                .map(|arg| arg.to_string_lossy().into_owned())
                .collect(),
            exit: Exit {
                code: status.code(),
                signal: status.signal(),
            },
            wall_s: outcome.wall_ns as f64 / 1e9,
            kernel: kernel_release(),
            tier: tier_name(tier).to_string(),
            settings: Settings {
                ram_bytes: options.ram_bytes,
                compressed_max_bytes: options.compressed_max_bytes,
                threshold_bytes: options.threshold_bytes,
                spill_dirs: dirs.map(|file| file.dir.display().to_string()).collect(),
                spill_limit_bytes: options.spill_limit_bytes,
            },
            peaks: *outcome.peaks,
            counters: counters.collect::<BTreeMap<_, _>>(),
            compression_ratio: outcome.compression_ratio(),
            stalled_share: outcome.stalled(),
            casualties: self.casualties.iter().map(casualty_json).collect(),
            maps: self.prepared.maps.iter().flat_map(Maps::json).collect(),
            trace: series
                .zip(heat)
                .map(|(series, heat)| Trace { series, heat }),
        }
    }
}

fn casualty_json(casualty: &Casualty) -> CasualtyJson {
    CasualtyJson {
        pid: casualty.pid,
        name: casualty.name.clone(),
        cause: format!("{:?}", casualty.cause),
    }
}

/// `uname -r`.
pub fn kernel_release() -> String {
    let uname = rustix::system::uname();
    uname.release().to_string_lossy().into_owned()
}
