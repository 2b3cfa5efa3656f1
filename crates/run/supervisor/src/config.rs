//! What a run is like: what the command line says, checked and completed with defaults. Programs
//! are started from this and nothing else.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use farpage_default_pager::manager::paging::PagingConfig;
use farpage_object::{Control, Death};
use farpage_sys::file::Fd;
use farpage_sys::limits::Limit;

use crate::maps::{MapOption, MappedFiles};
use crate::shm::KeptMemory;

/// Anonymous private mappings below this many bytes are left to Linux.
pub const THRESHOLD_BYTES: u64 = 128 << 10;

/// Everything that `farpage run` was asked for, with every default filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// Where its pages may be.
    pub memory: PagingConfig,
    /// Mappings below this size are left alone, bytes.
    pub threshold_bytes: u64,
    /// `--memory`: what programs see as the memory of the machine, bytes. `None`: what there is.
    pub machine_bytes: Option<u64>,
    /// `--map`: files that the program finds.
    pub maps: Vec<MapOption>,
    /// The first of them is the program, and Linux executes it.
    pub exec: Option<Exec>,
    /// `--deadline`: how long far sources of them are tried again. `None`: the default.
    pub deadline: Option<Duration>,
    /// `--record`: where it goes which pages of them are asked for.
    pub record: Option<PathBuf>,
    /// `--replay`: what an earlier run asked for.
    pub replay: Option<PathBuf>,
    /// `--shm`: shared memory is kept in this process.
    pub shm: bool,
    /// `--stdio`: the program's streams read large files where they lie.
    pub stdio: bool,
    /// `--trace`: record page events.
    pub trace: bool,
    /// The executable file, found as a shell finds it.
    pub program: PathBuf,
    /// Its arguments, the name it was called by first (`argv[0]`).
    pub args: Vec<OsString>,
}

/// Where libraries come from, and what else is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    /// `--root`, without a slash at its end.
    pub root: Option<String>,
    /// Programs and libraries of at most this size come whole.
    pub ahead_bytes: u64,
}

/// A run that is ready to start: what `launch::start` takes.
pub struct Prepared {
    /// What was asked for.
    pub options: RunOptions,
    /// The control block, filled in: budget, threshold, tier, trace, supervisor, start, and the
    /// paging files (`control.spill[i]`, each open in this process as its `supervisor_fd`, which
    /// is close-on-exec). Only `fd_base` is left to `launch`.
    pub control: &'static Control,
    /// Its memory file, close-on-exec.
    pub control_fd: Fd,
    /// Signals that were blocked before the supervisor blocked those that it forwards: the
    /// program starts with this mask (bit n - 1 is signal n).
    pub signal_mask: u64,
    /// The limit on the size of the program's files.
    pub file_size: Limit,
    /// The mapped files, if there are any.
    pub maps: Option<MappedFiles>,
    /// Shared memory, if it is kept.
    pub shm: Option<KeptMemory>,
    /// The program's end of the connection to what keeps either, until it has been started: it
    /// notices by that alone when this process ends.
    pub socket: Option<OwnedFd>,
}

impl Prepared {
    /// True when descriptors of files are looked at: programs have some for that.
    pub fn looks_at_files(&self) -> bool {
        self.maps.is_some() || self.shm.is_some()
    }

    /// True when files that are opened are looked at.
    pub fn looks_at_opening(&self) -> bool {
        self.looks_at_files() || self.options.machine_bytes.is_some()
    }
}

/// A task that Farpage had to end. `launch` notes it when it takes back what the task held
/// (`Control::reap` forgets the cause).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Casualty {
    /// Process id.
    pub pid: u32,
    /// Name of the process (`/proc/PID/comm`), empty when it could no longer be read.
    pub name: String,
    /// What happened; never `Death::Alive`.
    pub cause: Death,
}
