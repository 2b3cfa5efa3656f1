//! What a run is to be like, after the command line was read, checked and completed with defaults.
//! `launch` starts programs from this and nothing else.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use farpage_abi::{Control, Death, Tier};
use farpage_sys::file::Fd;
use farpage_sys::limits::Limit;

use crate::exec::Exec;
use crate::maps::{MapOption, Maps};
use crate::shm::Shm;
use crate::userfaultfd;
use crate::when_full::WhenFull;

/// Smallest `--ram`: below it the agent's own working memory would be most of the budget.
pub const RAM_MIN_BYTES: u64 = 16 << 20;
/// Anonymous private mappings below this many bytes are left to Linux.
pub const THRESHOLD_BYTES: u64 = 128 << 10;

/// `bytes`, less what is no whole page.
pub fn whole_pages(bytes: u64) -> u64 {
    bytes / farpage_abi::PAGE_BYTES as u64 * farpage_abi::PAGE_BYTES as u64
}

/// Where pages may be, with every default filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// `--ram`: resident pages, pages set aside and compressed tier together, bytes. At least
    /// [`RAM_MIN_BYTES`], a multiple of the page size.
    pub ram_bytes: u64,
    /// `ram_bytes` is only where the budget begins: then it follows what the cgroup leaves.
    pub follows_cgroup: bool,
    /// `--compressed`: largest size of the compressed tier, part of `ram_bytes`. 0: no such tier.
    pub compressed_max_bytes: u64,
    /// `--spill`: directories of paging files, checked: each takes a file. One file per entry.
    pub spill_dirs: Vec<PathBuf>,
    /// `--spill-limit`: bytes that all paging files together may take. `None`: as the disks allow.
    pub spill_limit_bytes: Option<u64>,
    /// `--when-full`.
    pub when_full: WhenFull,
}

/// Everything that `farpage run` was asked for, with every default filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// Where its pages may be.
    pub memory: Memory,
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
    /// `--stats`: where the statistics go at the end.
    pub stats: Option<PathBuf>,
    /// `--trace`: record page events.
    pub trace: bool,
    /// `--quiet`: no live line, no summary.
    pub quiet: bool,
    /// The executable file, found as a shell finds it.
    pub program: PathBuf,
    /// Its arguments, the name it was called by first (`argv[0]`).
    pub args: Vec<OsString>,
}

/// A run that is ready to start: what `launch::start` takes. Nothing of it changes any more.
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
    pub maps: Option<Maps>,
    /// Shared memory, if it is kept.
    pub shm: Option<Shm>,
}

impl Prepared {
    /// What the program is to have to talk to this process.
    pub fn socket(&self) -> Option<&OwnedFd> {
        let maps = self.maps.as_ref().and_then(|maps| maps.socket.as_ref());
        maps.or_else(|| self.shm.as_ref()?.socket.as_ref())
    }

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
    /// Name of the process (`/proc/PID/comm`), empty when it could not be read any more.
    pub name: String,
    /// What happened; never `Death::Alive`.
    pub cause: Death,
}

impl Memory {
    /// Writes what there is into a fresh control block, and what this process can do.
    ///
    /// # Errors
    /// When it gets no userfaultfd.
    pub fn fill(&self, control: &Control) -> Result<()> {
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
        let set = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
        set(&control.budget_bytes, self.ram_bytes);
        set(&control.compressed_max_bytes, self.compressed_max_bytes);
        set(&control.full.patience_ns, self.when_full.patience_ns());
        set(&control.started_ns, farpage_sys::time::now_ns());
        let set = |word: &AtomicU32, value| word.store(value, Ordering::Relaxed);
        set(&control.tier, found.tier as u32);
        let rings = farpage_sys::probe::io_uring().is_ok();
        set(&control.io_uring, rings.into());
        set(&control.supervisor_pid, std::process::id());
        Ok(())
    }

    /// Segments that each paging file may take: `--spill-limit` in equal shares, the largest
    /// number without it.
    pub fn segments_per_file(&self) -> u32 {
        let Some(limit) = self.spill_limit_bytes else {
            return farpage_abi::SEGMENTS_MAX as u32;
        };
        let files = self.spill_dirs.len().max(1) as u64;
        let share = limit / files / farpage_abi::SEGMENT_BYTES as u64;
        share.min(farpage_abi::SEGMENTS_MAX as u64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(dirs: usize, limit: Option<u64>) -> Memory {
        Memory {
            ram_bytes: 1 << 30,
            follows_cgroup: false,
            compressed_max_bytes: 1 << 28,
            spill_dirs: vec![PathBuf::from("/var/tmp"); dirs],
            spill_limit_bytes: limit,
            when_full: WhenFull::Kill,
        }
    }

    #[test]
    fn the_spill_limit_is_shared_out() {
        assert_eq!(memory(2, Some(10 << 20)).segments_per_file(), 5);
        assert_eq!(memory(1, Some(10 << 20)).segments_per_file(), 10);
        assert_eq!(memory(1, None).segments_per_file(), 1 << 20);
        assert_eq!(
            memory(1, Some(u64::MAX)).segments_per_file(),
            farpage_abi::SEGMENTS_MAX as u32
        );
    }
}
