//! `farpage run`: from the command line to the program's exit status.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use farpage_abi::{Control, Death, Tier};

use crate::args::RunArgs;
use crate::control_socket::Server;
use crate::follow::Follow;
use crate::heat::HeatMap;
use crate::launch::{self, Running};
use crate::live::Live;
use crate::maps::{self, Maps};
use crate::options::{Casualty, Prepared, RunOptions};
use crate::sampler::{SERIES_STEP_NS, Sampler};
use crate::stats::{self, CasualtyJson, Exit, SeriesJson, Settings, Stats, Trace};
use crate::summary::{self, Outcome};
use crate::{limits, nested, prepare, shm, signals};
use farpage_manager::paging::{SpillSet, Watched};
use farpage_sys::memory_limit::MemoryLimit;
use farpage_sys::userfaultfd::tier_name;
use rustix::time::{ClockId, clock_gettime};

/// Exit status when the program was killed because paging space was full.
const NO_ROOM: i32 = 122;
/// Longest time between two looks at the control block.
const STEP: Duration = Duration::from_nanos(SERIES_STEP_NS);
/// The same while the budget follows a cgroup: what changes there must be noticed in time.
const FOLLOW_STEP: Duration = Duration::from_millis(10);
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
    let shared = shm::Shared {
        join: &args.join,
        replicas: args.replicas,
        unit_bytes: args.page_size,
    };
    with_options(options, &limit, Some(shared))
}

/// As [`main`], from options. `shared`: how shared memory is kept, when it is.
///
/// # Errors
/// As there.
pub fn with_options(
    options: RunOptions,
    limit: &MemoryLimit,
    shared: Option<shm::Shared<'_>>,
) -> Result<ExitStatus> {
    if nested::is_inside() {
        match nested::run(&options)? {}
    }
    for warning in prepare::warnings(&options, limit) {
        farpage_sys::say!("farpage: {warning}");
    }
    let output = options.stats.as_deref().map(stats::Output::open);
    let output = output.transpose()?;
    let file_size = limits::raise_file_size()?;
    let (control_fd, control) = farpage_sys::control::create()
        .context("cannot make the control block; it takes 1 GiB of addresses (ulimit -v)")?;
    fill(control, &options)?;
    // Before there are threads, which would get them.
    let blocked = signals::block();
    let spill = SpillSet::start(control, &options.memory)?;
    // Without it `farpage spill` does not find this run; the run itself needs it not.
    let server = Server::start(Arc::clone(&spill)).inspect_err(|error| {
        farpage_sys::say!("farpage: warning: farpage spill will not work: {error:#}")
    });
    let maps = maps::start(control, &options)?;
    let shm = shared.filter(|_| options.shm).map(|shared| {
        shm::start(
            control,
            Arc::clone(&spill),
            shared,
            options.memory.when_full,
        )
    });
    let shm = shm.transpose()?;
    let mut prepared = Prepared {
        maps,
        shm,
        options,
        control,
        control_fd,
        signal_mask: blocked.mask_before,
        file_size,
    };
    let mut running = launch::start(&prepared)?;
    if let Some(maps) = &mut prepared.maps {
        // The program notices by it when this process ends.
        maps.socket = None;
    }
    if let Some(shm) = &mut prepared.shm {
        shm.socket = None;
    }
    let mut watch = Watch::new(&prepared, &spill);
    blocked.forward_to(running.program_pid())?;
    let status = watch.until_end(&mut running);
    if let Some(maps) = &prepared.maps {
        maps.end_record();
    }
    watch.shm = prepared.shm.as_ref().map(|shm| shm.end(control));
    let status = status?;
    watch.report(status, output)?;
    drop(server);
    let program = running.program_pid();
    let of_no_room = |dead: &Casualty| {
        dead.pid == program && matches!(dead.cause, Death::OutOfSpace | Death::WriteError)
    };
    match watch.casualties.iter().any(of_no_room) {
        true => Ok(ExitStatus::from_raw(NO_ROOM << 8)),
        false => Ok(status),
    }
}

/// Writes what the tasks need to know into a fresh control block.
fn fill(control: &Control, options: &RunOptions) -> Result<()> {
    options.memory.fill(control)?;
    let threshold = &control.threshold_bytes;
    threshold.store(options.threshold_bytes, Ordering::Relaxed);
    let machine = options.machine_bytes.unwrap_or(0);
    control.machine_bytes.store(machine, Ordering::Relaxed);
    control
        .trace
        .store(u32::from(options.trace), Ordering::Release);
    Ok(())
}

/// Looks on while the program runs.
struct Watch<'a> {
    prepared: &'a Prepared,
    spill: &'a SpillSet,
    full: Watched,
    started: Instant,
    sampler: Sampler,
    heat: Option<HeatMap>,
    follow: Option<Follow>,
    live: Option<Live>,
    casualties: Vec<Casualty>,
    shm: Option<shm::Figures>,
}

impl<'a> Watch<'a> {
    fn new(prepared: &'a Prepared, spill: &'a SpillSet) -> Self {
        let options = &prepared.options;
        let live = (!options.quiet).then(Live::new);
        let follows = options.memory.follows_cgroup;
        Self {
            prepared,
            spill,
            full: Watched::default(),
            started: Instant::now(),
            sampler: Sampler::new(prepared.control, options.trace),
            heat: options.trace.then(HeatMap::new),
            follow: follows.then(|| Follow::new(prepared.control)).flatten(),
            live: live.flatten(),
            casualties: Vec::new(),
            shm: None,
        }
    }

    fn until_end(&mut self, running: &mut Running) -> Result<ExitStatus> {
        let mut step = FIRST_STEP;
        let mut redraw_at = self.started + REDRAW;
        loop {
            let ended = running.wait(step)?;
            let most = match self.follow {
                Some(_) => FOLLOW_STEP,
                None => STEP,
            };
            step = (step * 2).min(most);
            self.look();
            if let Some(status) = ended {
                running.wait_until_buried(status);
            }
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
                let budget = self.prepared.control.budget_bytes.load(Ordering::Relaxed);
                live.draw(self.sampler.last(), budget, self.full.waits_ns());
                redraw_at = Instant::now() + REDRAW;
            }
        }
    }

    fn elapsed_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn look(&mut self) {
        self.sampler.take(self.elapsed_ns());
        if let Some(follow) = &mut self.follow {
            follow.look(self.sampler.last().page_outs > 0);
        }
        if let Some(word) = self.full.look(self.prepared.control, self.spill) {
            if let Some(live) = &mut self.live {
                live.clear();
            }
            farpage_sys::say!("{word}");
        }
        if let Some(heat) = &mut self.heat {
            while let Some(event) = self.prepared.control.ring.pop() {
                heat.add(&event);
            }
        }
    }

    fn report(&self, status: ExitStatus, output: Option<stats::Output>) -> Result<()> {
        let options = &self.prepared.options;
        let outcome = Outcome {
            ram_bytes: match &self.follow {
                Some(follow) => follow.highest(),
                None => options.memory.ram_bytes,
            },
            totals: self.sampler.totals(),
            last: self.sampler.last(),
            peaks: self.sampler.peaks(),
            wall_ns: self.elapsed_ns(),
            shared: self.shm,
        };
        let files = self.spill.list().into_iter();
        let dirs: Vec<PathBuf> = files.map(|file| file.dir).collect();
        for dead in &self.casualties {
            if let Some(said) = summary::casualty(dead, options, &dirs) {
                farpage_text::print::errors(&said);
            }
        }
        if !options.quiet {
            farpage_text::print::errors(&summary::text(&outcome));
            if let Some(maps) = &self.prepared.maps {
                farpage_text::print::errors(&maps.summary());
            }
            if let Some(shm) = &self.shm {
                farpage_text::print::errors(&shm.summary());
            }
            if let Some(cost) = self.cost() {
                farpage_text::print::errors(&cost.summary());
            }
        }
        match output {
            Some(output) => output.write(&self.stats(&outcome, status)),
            None => Ok(()),
        }
    }

    fn cost(&self) -> Option<&shm::Cost> {
        self.prepared.shm.as_ref().and_then(|shm| shm.cost())
    }

    fn stats(&self, outcome: &Outcome, status: ExitStatus) -> Stats {
        let control = self.prepared.control;
        let options = &self.prepared.options;
        let tier = Tier::from_raw(control.tier.load(Ordering::Relaxed)).unwrap_or(Tier::None);
        let counters = outcome
            .totals
            .iter()
            .map(|(name, value)| (name.to_string(), value));
        let dirs = self.spill.list().into_iter();
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
            supervisor_cpu_s: cpu_s(),
            kernel: kernel_release(),
            tier: tier_name(tier).to_string(),
            settings: Settings {
                ram_bytes: options.memory.ram_bytes,
                compressed_max_bytes: options.memory.compressed_max_bytes,
                threshold_bytes: options.threshold_bytes,
                spill_dirs: dirs.map(|file| file.dir.display().to_string()).collect(),
                spill_limit_bytes: options.memory.spill_limit_bytes,
            },
            peaks: *outcome.peaks,
            counters: counters.collect::<BTreeMap<_, _>>(),
            compression_ratio: outcome.compression_ratio(),
            stalled_share: outcome.stalled(),
            full_times: self.full.times,
            full_s: self.full.waited_ns() as f64 / 1e9,
            casualties: self.casualties.iter().map(casualty_json).collect(),
            maps: self.prepared.maps.iter().flat_map(Maps::json).collect(),
            shm: self.shm,
            cluster: self.cost().cloned(),
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
