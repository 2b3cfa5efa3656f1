//! A run, from its options to the exit status of its program.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use farpage_default_pager::manager::paging::{SpillSet, Watched};
use farpage_object::{Control, Tier};

use crate::config::{Casualty, Prepared, RunOptions};
use crate::control_socket::SpillServer;
use crate::follow::Follow;
use crate::heat::{HeatJson, HeatMap};
use crate::launch::{self, Running};
use crate::maps::{self, MapJson, MappedFiles};
use crate::sampler::{SERIES_STEP_NS, Sampler};
use crate::{limits, shm, signals};

/// Longest time between two looks at the control block.
const STEP: Duration = Duration::from_nanos(SERIES_STEP_NS);
/// Longest time between two looks while the budget follows a cgroup: what changes there must be
/// noticed in time.
const FOLLOW_STEP: Duration = Duration::from_millis(10);
/// Time between the first two looks, doubled until it is [`STEP`]: short programs have peaks too.
const FIRST_STEP: Duration = Duration::from_millis(1);

/// A program that runs, and all that is kept for it.
pub struct Run {
    prepared: Prepared,
    spill: Arc<SpillSet>,
    running: Running,
    started: Instant,
    step: Duration,
    full: Watched,
    sampler: Sampler,
    heat: Option<HeatMap>,
    follow: Option<Follow>,
    casualties: Vec<Casualty>,
    /// Answers `farpage spill`.
    _server: Option<SpillServer>,
}

/// What a look at a run found.
pub struct Look {
    /// What its user should be told now.
    pub said: Option<String>,
    /// How the program ended, if it has.
    pub ended: Option<ExitStatus>,
}

impl Run {
    /// Starts the program. `shared`: how its shared memory is kept, where the options say that it
    /// is.
    ///
    /// # Errors
    /// When the program cannot be started as asked.
    pub fn start(options: RunOptions, shared: Option<&shm::SharedMemoryConfig>) -> Result<Self> {
        let file_size = limits::raise_file_size()?;
        let (control_fd, control) = farpage_sys::control::create()
            .context("cannot make the control block; it takes 1 GiB of addresses (ulimit -v)")?;
        fill(control, &options)?;
        // Before there are threads, which would get them.
        let blocked = signals::block();
        let spill = SpillSet::start(control, &options.memory)?;
        // Without it `farpage spill` does not find this run; the run itself does not need it.
        let server = SpillServer::start(Arc::clone(&spill)).inspect_err(|error| {
            farpage_sys::say!("farpage: warning: farpage spill will not work: {error:#}")
        });
        let (maps, of_maps) = maps::start(control, &options)?.unzip();
        let shm = shared.filter(|_| options.shm).map(|shared| {
            let space = Arc::clone(&spill);
            shm::start(control, space, shared, options.memory.when_full)
        });
        let (shm, of_shm) = shm.transpose()?.unzip();
        let mut prepared = Prepared {
            maps,
            shm,
            socket: of_maps.or(of_shm),
            options,
            control,
            control_fd,
            signal_mask: blocked.mask_before,
            file_size,
        };
        let running = launch::start(&prepared)?;
        prepared.socket = None;
        let run = Self {
            started: Instant::now(),
            step: FIRST_STEP,
            full: Watched::default(),
            sampler: Sampler::new(control, prepared.options.trace),
            heat: prepared.options.trace.then(HeatMap::default),
            follow: match prepared.options.memory.follows_cgroup {
                true => Follow::new(control),
                false => None,
            },
            casualties: Vec::new(),
            prepared,
            spill,
            running,
            _server: server.ok(),
        };
        blocked.forward_to(run.program_pid())?;
        Ok(run)
    }

    /// Waits a moment, or until the program ends, and looks at what goes on.
    ///
    /// # Errors
    /// When the processes cannot be looked after any longer.
    pub fn look(&mut self) -> Result<Look> {
        let ended = self.running.wait(self.step)?;
        let longest = match self.follow {
            Some(_) => FOLLOW_STEP,
            None => STEP,
        };
        self.step = (self.step * 2).min(longest);
        let mut said = self.take_figures();
        if let Some(status) = ended {
            self.running.wait_until_buried(status);
        }
        self.casualties.extend(self.running.take_casualties());
        if ended.is_some() {
            // Passes what a writer of the trace that was killed left unfinished.
            said = self.take_figures().or(said);
        }
        Ok(Look { said, ended })
    }

    fn take_figures(&mut self) -> Option<String> {
        self.sampler.take(self.elapsed_ns());
        if let Some(follow) = &mut self.follow {
            follow.look(self.sampler.last().page_outs > 0);
        }
        if let Some(heat) = &mut self.heat {
            while let Some(event) = self.prepared.control.ring.pop() {
                heat.add(&event);
            }
        }
        self.full.look(self.prepared.control, &self.spill)
    }

    /// Ends what was kept for the program: the trace of its files is written, and shared memory of
    /// its is removed when the tasks that use it have ended.
    pub fn end(&self) -> Option<shm::SharedMemoryFigures> {
        if let Some(maps) = &self.prepared.maps {
            maps.end_record();
        }
        let shm = self.prepared.shm.as_ref();
        shm.map(|shm| shm.end(self.prepared.control))
    }

    /// What was asked for.
    pub fn options(&self) -> &RunOptions {
        &self.prepared.options
    }

    /// Process id of the program.
    pub fn program_pid(&self) -> u32 {
        self.running.program_pid()
    }

    /// Time since the start.
    pub fn elapsed_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// RAM that pages may take now.
    pub fn budget_bytes(&self) -> u64 {
        self.prepared.control.budget_bytes.load(Ordering::Relaxed)
    }

    /// The most that they could take so far.
    pub fn highest_budget_bytes(&self) -> u64 {
        match &self.follow {
            Some(follow) => follow.highest(),
            None => self.prepared.options.memory.ram_bytes,
        }
    }

    /// How userfaultfd is opened.
    pub fn tier(&self) -> Tier {
        let tier = self.prepared.control.tier.load(Ordering::Relaxed);
        Tier::from_raw(tier).unwrap_or(Tier::None)
    }

    /// Sums, samples and peaks.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// When programs waited for room in paging space.
    pub fn full(&self) -> &Watched {
        &self.full
    }

    /// The folders of all paging files that the run has had.
    pub fn spill_dirs(&self) -> Vec<PathBuf> {
        self.spill.list().into_iter().map(|file| file.dir).collect()
    }

    /// Tasks that Farpage had to end.
    pub fn casualties(&self) -> &[Casualty] {
        &self.casualties
    }

    /// What became of the files of `--map`.
    pub fn maps(&self) -> Vec<MapJson> {
        self.prepared
            .maps
            .iter()
            .flat_map(MappedFiles::figures)
            .collect()
    }

    /// What memory of several hosts has cost, once the run has ended.
    pub fn cost(&self) -> Option<&shm::Cost> {
        self.prepared.shm.as_ref()?.cost()
    }

    /// Which memory was used when, with `--trace`.
    pub fn heat(&self) -> Option<HeatJson> {
        let heat = self.heat.as_ref()?;
        Some(heat.to_json(self.prepared.control.ring.lost()))
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
