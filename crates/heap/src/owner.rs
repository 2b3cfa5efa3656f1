//! Processes as the heap knows them.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use farpage_sys::Errno;

/// A process that is not mistaken for a later one of the same number: 22 bits of it (Linux has no
/// more), 41 bits of when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(pub(crate) u64);

const PID_BITS: u32 = 22;

impl Owner {
    pub(crate) fn this_process() -> io::Result<Self> {
        Self::of(std::process::id())
    }

    /// Of a process that there is.
    fn of(pid: u32) -> io::Result<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name, in parentheses, may hold anything.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let mut fields = fields.split_ascii_whitespace();
        let state = fields.next();
        let started: Option<u64> = fields.nth(18).and_then(|text| text.parse().ok());
        match started {
            Some(started) if !matches!(state, Some("Z" | "X")) => {
                Ok(Self(started << (PID_BITS + 1) >> 1 | u64::from(pid)))
            }
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// True when the process is no more.
    pub(crate) fn is_dead(self) -> bool {
        #[cfg(test)]
        if let Some(dead) = crate::sim::is_dead(self.0) {
            return dead;
        }
        let pid = (self.0 & ((1 << PID_BITS) - 1)) as u32;
        match Self::of(pid) {
            Ok(now) => now != self,
            // Anything else says nothing about the process.
            Err(error) => {
                [None, Some(Errno::ENOENT.0), Some(Errno::ESRCH.0)].contains(&error.raw_os_error())
            }
        }
    }
}

/// The namespace of process ids that this process sees.
pub(crate) fn namespace() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/self/ns/pid")?.ino())
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
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| farpage_sys::fork::at_fork(nothing, nothing, child));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_another_of_its_number_is_dead() {
        let own = Owner::this_process().unwrap();
        assert!(!own.is_dead());
        assert!(Owner(own.0 ^ 1 << 40).is_dead());
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let other = Owner::of(child.id()).unwrap();
        assert!(!other.is_dead());
        child.kill().unwrap();
        // Not waited for: it is a zombie, and dead.
        while !other.is_dead() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(other.is_dead());
    }
}
