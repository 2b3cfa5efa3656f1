//! The process that a host is, for those on its machine: they can see that it has ended.

use std::fmt;
use std::fs;
use std::str::FromStr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process. Numbers mean the same to those that have the same [`Machine`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    machine: Machine,
    pid: i32,
    /// When it was started: another process may have its number by now.
    started: u64,
}

/// Where numbers of processes, and times, mean one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Machine {
    boot: String,
    processes: String,
    clocks: String,
}

impl Machine {
    /// `None` where that cannot be told: what is at /proc may be another's.
    fn own() -> Option<Self> {
        let link = |path: &str| Some(fs::read_link(path).ok()?.to_str()?.to_owned());
        let is_own = link("/proc/self")? == std::process::id().to_string();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        is_own.then_some(Self {
            boot: boot.trim().into(),
            processes: link("/proc/self/ns/pid")?,
            clocks: link("/proc/self/ns/time")?,
        })
    }
}

/// When a process was started, in ticks of the machine.
fn started(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may have anything in it, and stands in brackets.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(19)?.parse().ok()
}

/// This process.
pub(super) fn own() -> Option<Process> {
    let pid = i32::try_from(std::process::id()).ok()?;
    Some(Process {
        machine: Machine::own()?,
        pid,
        started: started(pid)?,
    })
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine {
            boot,
            processes,
            clocks,
        } = &self.machine;
        write!(
            f,
            "{boot} {processes} {clocks} {} {}",
            self.pid, self.started
        )
    }
}

/// It says of no process which it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unknown;

impl FromStr for Process {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Self, Unknown> {
        let words: Vec<&str> = text.split(' ').collect();
        let [boot, processes, clocks, pid, started] = words[..] else {
            return Err(Unknown);
        };
        Ok(Self {
            machine: Machine {
                boot: boot.into(),
                processes: processes.into(),
                clocks: clocks.into(),
            },
            pid: pid.parse().map_err(|_| Unknown)?,
            started: started.parse().map_err(|_| Unknown)?,
        })
    }
}

impl Process {
    /// It can be told here whether it has ended.
    pub(super) fn is_of_this_machine(&self) -> bool {
        Machine::own().as_ref() == Some(&self.machine)
    }

    /// It has ended, all of it. False when that cannot be told.
    pub(super) fn has_ended(&self) -> bool {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return false;
        };
        let opened = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(opened) => opened,
            Err(errno) => return errno == Errno::SRCH,
        };
        let mut ends = [PollFd::new(&opened, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let is_over = poll(&mut ends, Some(&now)) == Ok(1);
        is_over || started(self.pid).is_some_and(|started| started != self.started)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_has_ended_when_it_or_what_had_its_number_before_has() {
        let own = own().unwrap();
        assert!(own.is_of_this_machine() && !own.has_ended());
        assert_eq!(own.to_string().parse(), Ok(own.clone()));
        let earlier = Process {
            started: own.started - 1,
            ..own.clone()
        };
        assert!(earlier.has_ended());
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let started = started(pid).unwrap();
        let of_child = Process {
            pid,
            started,
            ..own.clone()
        };
        assert!(!of_child.has_ended());
        child.kill().unwrap();
        // It is one that nobody has waited for, and then none.
        while !of_child.has_ended() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(of_child.has_ended());
    }

    #[test]
    fn of_other_machines_nothing_can_be_told() {
        let own = own().unwrap().to_string();
        let (boot, rest) = own.split_once(' ').unwrap();
        let other: Process = format!("{boot}x {rest}").parse().unwrap();
        assert!(!other.is_of_this_machine());
        for nothing in ["", "a b c d e", "a b c 1", "a b c 1 2 3"] {
            assert_eq!(nothing.parse::<Process>(), Err(Unknown), "{nothing}");
        }
    }
}
