//! What else the machine does while something is measured. Figures of a busy machine show nothing.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::proc;

/// Processors that others may use.
pub(crate) const MOST: f64 = 0.5;
/// The status of a bench that was not measured since the machine was busy: EX_TEMPFAIL of sysexits.h.
pub(crate) const BUSY: u8 = 75;
/// How long the machine is looked at before a bench begins.
const LOOK: Duration = Duration::from_secs(1);
/// Linux counts the time of processors in hundredths of a second (USER_HZ).
const TICKS_A_SECOND: f64 = 100.0;
/// All threads of the kernel are children of this process.
const KERNEL_THREADS: u32 = 2;

/// The machine does other things as well. It is worth trying again later.
#[derive(Debug)]
pub(crate) struct Busy(String);

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "busy: {}", self.0)
    }
}

impl std::error::Error for Busy {}

impl Busy {
    pub(crate) fn new(why: String) -> Self {
        Self(why)
    }
}

/// Looks at the machine from before a bench to its end.
pub(crate) struct Load {
    began: Instant,
    /// Ticks of others until then.
    others: u64,
}

impl Load {
    /// Looks for a second, in which this process does nothing. Fails with [`Busy`].
    pub(crate) fn begin() -> Result<Self> {
        let began = Instant::now();
        let before = all()?.busy;
        thread::sleep(LOOK);
        judge(all()?.busy - before, began.elapsed(), "before the run")?;
        Ok(Self {
            began: Instant::now(),
            others: others()?,
        })
    }

    /// Fails with [`Busy`] when others used too much since it began.
    pub(crate) fn end(self) -> Result<()> {
        let ticks = others()?.saturating_sub(self.others);
        judge(ticks, self.began.elapsed(), "during the run")
    }
}

fn judge(ticks: u64, time: Duration, when: &str) -> Result<()> {
    let processors = ticks as f64 / TICKS_A_SECOND / time.as_secs_f64();
    if processors <= MOST {
        return Ok(());
    }
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    Err(Busy(format!(
        "others used {processors:.1} processors {when}, more than {MOST} (load average {load})"
    ))
    .into())
}

/// Ticks of all processors together.
#[derive(Debug, PartialEq)]
struct Ticks {
    /// With those that the hypervisor gave to other machines.
    busy: u64,
    stolen: u64,
}

fn all() -> Result<Ticks> {
    let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    parse_all(&text).context("/proc/stat does not begin with a line of all processors")
}

/// `cpu  USER NICE SYSTEM IDLE IOWAIT IRQ SOFTIRQ STEAL ...`
fn parse_all(text: &str) -> Option<Ticks> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Result<Vec<u64>, _> = line.split_whitespace().map(str::parse).collect();
    let [user, nice, system, _idle, _wait, irq, softirq, stolen, ..] = ticks.ok()?[..] else {
        return None;
    };
    Some(Ticks {
        busy: user + nice + system + irq + softirq + stolen,
        stolen,
    })
}

/// Ticks of all processes that are not of this one's tree, with those of their children that have ended, and
/// of other machines on the same processors.
fn others() -> Result<u64> {
    let own: HashSet<u32> = proc::descendants(std::process::id()).into_iter().collect();
    let folders = fs::read_dir("/proc")
        .context("cannot read /proc")?
        .flatten();
    let of = |folder: fs::DirEntry| {
        let pid: u32 = folder.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(folder.path().join("stat")).ok()?;
        let (parent, ticks) = parse_one(&stat)?;
        let is_kernels = pid == KERNEL_THREADS || parent == KERNEL_THREADS;
        (!is_kernels && !own.contains(&pid)).then_some(ticks)
    };
    Ok(folders.filter_map(of).sum::<u64>() + all()?.stolen)
}

/// The parent and the ticks that `/proc/PID/stat` tells. The name in it may have spaces and brackets.
fn parse_one(stat: &str) -> Option<(u32, u64)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    // User and system time of itself, then of children that were waited for: fields 14 to 17.
    let ticks: Result<Vec<u64>, _> = words.get(11..15)?.iter().map(|word| word.parse()).collect();
    Some((words.get(1)?.parse().ok()?, ticks.ok()?.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_all_processors_is_read() {
        let ticks = parse_all("cpu  10 20 30 1000 500 1 2 4 0 0\ncpu0 5 10 15 500 1 1 1 1 0 0\n");
        let expected = Ticks {
            busy: 67,
            stolen: 4,
        };
        assert_eq!(ticks, Some(expected));
        assert_eq!(parse_all("cpu 1 2\n"), None);
    }

    #[test]
    fn the_time_of_a_process_is_that_of_it_and_its_children() {
        let stat = "12 (a) b) S 7 12 12 0 -1 4194304 1 2 3 4 100 20 3 1 20 0 1 0 99 1 1\n";
        assert_eq!(parse_one(stat), Some((7, 124)));
        assert_eq!(parse_one("12 (sh"), None);
    }

    #[test]
    fn half_a_processor_may_be_used_by_others() {
        let second = Duration::from_secs(1);
        judge(50, second, "before the run").unwrap();
        let busy = judge(120, second, "before the run").unwrap_err();
        assert!(busy.is::<Busy>());
        let said = busy.to_string();
        assert!(
            said.starts_with("busy: others used 1.2 processors before the run, more than 0.5"),
            "{said}"
        );
    }

    #[test]
    fn this_machine_is_looked_at() {
        assert!(all().unwrap().busy > 0);
        others().unwrap();
    }
}
