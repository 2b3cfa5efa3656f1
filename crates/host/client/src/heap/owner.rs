//! Processes as a heap knows them.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};

use farpage_sys::Errno;
use farpage_sys::fork::AtFork;

/// Who the processes of a heap are. Those of [`Heap::open`](crate::heap::Heap::open) are known by their number and by when
/// they started, as Linux tells it; processes of several hosts need another way.
pub trait Processes: Send + Sync {
    /// This process: above 0 and below 2^63, and no other that has been or will be.
    fn own(&self) -> u64;

    /// Which way this is: a heap is used in one way.
    fn way(&self) -> u64;

    /// True when a process is no more; false as long as nobody knows.
    fn is_dead(&self, process: u64) -> bool;

    /// True when what a process writes is cheap to read here: it is on the same host. Processes that
    /// are not allocate from different pages, as long as there are enough.
    fn is_near(&self, process: u64) -> bool;
}

/// Processes of this machine.
pub(crate) struct Local {
    own: u64,
    /// The namespace of process ids that this process sees.
    namespace: u64,
}

const PID_BITS: u32 = 22;

impl Local {
    pub(crate) fn this_process() -> io::Result<Self> {
        Ok(Self {
            own: number(std::process::id())?,
            namespace: std::fs::metadata("/proc/self/ns/pid")?.ino(),
        })
    }
}

impl Processes for Local {
    fn own(&self) -> u64 {
        self.own
    }

    fn way(&self) -> u64 {
        self.namespace
    }

    fn is_dead(&self, process: u64) -> bool {
        let pid = (process & ((1 << PID_BITS) - 1)) as u32;
        match number(pid) {
            Ok(now) => now != process,
            // Anything else says nothing about the process.
            Err(error) => {
                [None, Some(Errno::ENOENT.0), Some(Errno::ESRCH.0)].contains(&error.raw_os_error())
            }
        }
    }

    fn is_near(&self, _: u64) -> bool {
        true
    }
}

/// Of a process that there is, what it is not mistaken by for a later one of the same id: 22 bits of the id
/// (Linux has no more), 41 bits of when it started.
fn number(pid: u32) -> io::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name, in parentheses, may hold anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next();
    let started: Option<u64> = fields.nth(18).and_then(|text| text.parse().ok());
    match started {
        Some(started) if !matches!(state, Some("Z" | "X")) => {
            Ok(started << (PID_BITS + 1) >> 1 | u64::from(pid))
        }
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

static FORKS: AtomicU64 = AtomicU64::new(0);

/// How many forks lie between this process and the one that started the program.
pub(crate) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Counts them from now on.
pub(crate) fn count_forks() {
    extern "C" fn nothing() {}
    extern "C" fn child() {
        COUNTED.in_child();
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static COUNTED: AtFork = AtFork::new(nothing, nothing, child);
    COUNTED.begin();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_another_of_its_number_is_dead() {
        let local = Local::this_process().unwrap();
        assert!(!local.is_dead(local.own()));
        assert!(local.is_dead(local.own() ^ 1 << 40));
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let other = number(child.id()).unwrap();
        assert!(!local.is_dead(other));
        child.kill().unwrap();
        // Not waited for: it is a zombie, and dead.
        while !local.is_dead(other) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(local.is_dead(other));
    }
}
