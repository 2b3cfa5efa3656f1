//! `--shm`: shared memory of the programs of a run, whose pages are kept here.
//!
//! The names stay Linux's. What is made of them in the run is noted ([`names`]), and removed when
//! it is left at the end; the objects behind them are made when they are first mapped
//! ([`objects`]). Tasks ask over connections of their own ([`serve`]).

mod cluster;
mod cost;
mod ledger;
mod names;
mod objects;
mod serve;
mod sysv;

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use farpage_default_pager::DefaultPager;
use farpage_host::Objects;
use farpage_object::{Control, Tier};
use farpage_server::joined::join::JoinConfig;
use serde::{Deserialize, Serialize};

use crate::signals;
pub use cost::Cost;
use farpage_default_pager::manager::paging::{SpillSet, WhenFull};
use farpage_text::size::{counted, human};
use objects::KeptObjects;

/// Where the names are.
const FOLDER: &str = "/dev/shm";
/// How long tasks that keep no shared memory may go on after the program: one of them may be about
/// to remove a name.
const GRACE: Duration = Duration::from_secs(2);
/// Time between two looks whether tasks have ended.
const LOOK: Duration = Duration::from_millis(10);

/// The shared memory of a run.
pub struct KeptMemory {
    kept: Arc<Mutex<KeptObjects>>,
    /// What other hosts have, too.
    names: Option<Arc<cluster::ClusterNames>>,
    serving: Arc<serve::ShmServing>,
    /// What the summary says of the cluster.
    cost: OnceLock<Cost>,
}

/// Which cluster has the memory, and how.
#[derive(Clone, Debug)]
pub struct SharedMemoryConfig {
    /// The cluster, if there is one.
    pub join: JoinConfig,
    /// On how many hosts each page is that was written to.
    pub replicas: u8,
    /// What goes from host to host together, of what is made here.
    pub unit_bytes: u64,
}

/// Starts to answer for shared memory. Also returns what the program is to have to talk to this
/// process.
///
/// # Errors
/// Where that cannot be had.
pub fn start(
    control: &'static Control,
    spill: Arc<SpillSet>,
    shared: &SharedMemoryConfig,
    when_full: WhenFull,
) -> Result<(KeptMemory, OwnedFd)> {
    if control.tier.load(Ordering::Relaxed) == Tier::UserModeOnly as u32 {
        bail!(
            "cannot run with --shm: it needs a userfaultfd that serves system calls, and this \
             user's serves programs alone; farpage doctor says how to get one"
        );
    }
    let folder = std::fs::metadata(FOLDER)
        .with_context(|| format!("cannot run with --shm: there is no {FOLDER}"))?;
    tidy();
    let objects = Objects::in_tree(control)?;
    if let Some(patience) = when_full.patience_of_shared() {
        objects.set_patience(patience);
    }
    let slot = control.claim_another(std::process::id());
    let slot = slot.context("cannot run with --shm: there is no account left")?;
    let pager = DefaultPager::new(control, slot);
    let pager = pager.map_err(|error| anyhow::anyhow!("cannot make paging space: {error}"))?;
    let ledger = ledger::Ledger::start()?;
    let memory_device =
        memory_device().context("cannot run with --shm: there are no memory files")?;
    control
        .shm
        .memory_device
        .store(memory_device, Ordering::Relaxed);
    control.shm.set_marks(std::process::id());
    let pager = Arc::new(pager);
    let kept = KeptObjects::new(objects, Arc::clone(&pager), ledger, &control.shm);
    let kept = Arc::new(Mutex::new(kept));
    let names = cluster::start(shared, &kept, pager)?;
    let is_cluster = u64::from(names.is_some());
    control.shm.cluster.store(is_cluster, Ordering::Relaxed);
    let (serving, socket) = serve::start(Arc::clone(&kept), names.clone(), spill)?;
    control.shm.device.store(folder.dev(), Ordering::Release);
    let memory = KeptMemory {
        kept,
        names,
        serving,
        cost: OnceLock::new(),
    };
    Ok((memory, socket))
}

/// The device number of memory files.
fn memory_device() -> Result<u64> {
    let file = farpage_sys::memory_file::create(c"probe", 0)?;
    Ok(std::fs::File::from(file).metadata()?.dev())
}

/// Removes what killed runs have left, and says so when that was something.
pub fn tidy() {
    let count = ledger::remove_what_dead_runs_left(false);
    if count > 0 {
        let names = counted(count, "name");
        farpage_sys::say!(
            "farpage: removed shared memory that earlier runs, which were killed, left: {names}"
        );
    }
}

/// As [`tidy`], and returns how many names there were. With `dry` nothing is removed.
pub fn collect(dry: bool) -> u64 {
    ledger::remove_what_dead_runs_left(dry)
}

/// What became of shared memory in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedMemoryFigures {
    /// Objects that were made.
    pub objects: u64,
    /// The most bytes of them that were in memory at a time.
    pub resident_max_bytes: u64,
    /// What left memory, over all.
    pub paged_out_bytes: u64,
    /// What came back.
    pub paged_in_bytes: u64,
    /// Faults in them.
    pub faults: u64,
    /// Time that these took, to a tenth.
    pub stall_ns: u64,
    /// The longest.
    pub stall_ns_max: u64,
    /// Names that nobody had removed.
    pub removed: u64,
    /// Memory files that were large and written to, and stayed Linux's.
    pub left: u64,
}

impl KeptMemory {
    /// Waits for the tasks that use shared memory, or for a signal; then removes what of its names
    /// is left.
    pub fn end(&self, control: &Control) -> SharedMemoryFigures {
        signals::program_has_ended();
        let ended = Instant::now();
        let is_used = || self.serving.connections() > 0;
        let is_early = || has_tasks(control) && ended.elapsed() < GRACE;
        while !signals::end_is_wanted() && (is_used() || is_early()) {
            std::thread::sleep(LOOK);
        }
        if let Some(names) = &self.names {
            names.hide();
        }
        let figures = farpage_sys::lock(&self.kept).end();
        if let Some(names) = &self.names {
            self.cost.get_or_init(|| names.cost());
            names.end();
        }
        figures
    }

    /// What the cluster's memory has cost, once the run has ended.
    pub fn cost(&self) -> Option<&Cost> {
        self.cost.get()
    }
}

/// True while a task of the run lives.
fn has_tasks(control: &Control) -> bool {
    control.slots().iter().any(|task| {
        let pid = task.pid.load(Ordering::Acquire);
        pid != 0 && pid != std::process::id() && pid <= i32::MAX as u32
    })
}

impl SharedMemoryFigures {
    /// For the summary: a line, or two.
    pub fn summary(&self) -> String {
        let mut text = format!(
            "farpage: shared memory: {} mapped, {} in RAM at most\n",
            counted(self.objects, "object"),
            human(self.resident_max_bytes)
        );
        if self.left > 0 {
            text += &format!(
                "farpage: {} stayed with Linux, beside the budget: mapped in small parts, or \
                 sealed, before\n",
                counted(self.left, "memory file")
            );
        }
        if self.removed > 0 {
            text += &removed(self.removed);
        }
        text
    }
}

/// `removed shared memory that nobody unlinked: 3 names`.
pub fn removed(count: u64) -> String {
    let names = counted(count, "name");
    format!("farpage: removed shared memory that nobody unlinked: {names}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_removed_is_said() {
        let none = SharedMemoryFigures {
            objects: 2,
            resident_max_bytes: 3 << 20,
            ..SharedMemoryFigures::default()
        };
        let line = "farpage: shared memory: 2 objects mapped, 3.00 MiB in RAM at most\n";
        assert_eq!(none.summary(), line);
        let some = SharedMemoryFigures { removed: 1, ..none };
        let more = "farpage: removed shared memory that nobody unlinked: 1 name\n";
        assert_eq!(some.summary(), format!("{line}{more}"));
        let left = SharedMemoryFigures { left: 2, ..none };
        assert!(left.summary().contains("2 memory files stayed with Linux"));
    }
}
