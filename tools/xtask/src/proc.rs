//! Running programs: with a time limit, with their memory watched, and never left behind.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use farpage_testkit::Guard;
use rustix::process::{self, Pid, Signal};

use crate::harness::tell;

/// How a program ended.
pub(crate) struct Outcome {
    pub(crate) status: ExitStatus,
    pub(crate) wall: Duration,
    /// Most anonymous memory that the program and its descendants had at once; 0 when not watched.
    pub(crate) peak_anon_bytes: u64,
    pub(crate) timed_out: bool,
}

impl Outcome {
    /// `exit 3`, `signal 9`, `time limit`.
    pub(crate) fn ending(&self) -> String {
        match (self.timed_out, self.status.code(), self.status.signal()) {
            (true, _, _) => format!("time limit after {:.0} s", self.wall.as_secs_f64()),
            (false, Some(code), _) => format!("exit {code}"),
            (false, None, signal) => format!("signal {}", signal.unwrap_or(0)),
        }
    }
}

/// Runs `command` in a process group of its own for at most `limit`; `watch` samples its memory.
pub(crate) fn run(command: &mut Command, limit: Duration, watch: bool) -> Result<Outcome> {
    let began = Instant::now();
    let mut child = command
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
    let pid = child.id();
    let group = Guard::new("kill -s KILL -- -$1 2>/dev/null", &[&pid.to_string()])?;
    let (ended, end) = mpsc::channel();
    thread::spawn(move || ended.send((child.wait(), began.elapsed())));
    let mut outcome = (0, false); // peak, timed out
    let mut pause = Duration::from_millis(5);
    loop {
        let left = limit.saturating_sub(began.elapsed());
        let wait = if watch && !outcome.1 {
            pause.min(left)
        } else {
            left
        };
        match end.recv_timeout(if outcome.1 {
            Duration::from_secs(60)
        } else {
            wait
        }) {
            Ok((status, wall)) => {
                drop(group);
                let status = status?;
                let (peak_anon_bytes, timed_out) = outcome;
                return Ok(Outcome {
                    status,
                    wall,
                    peak_anon_bytes,
                    timed_out,
                });
            }
            Err(_) if outcome.1 => bail!("process {pid} does not end, though killed"),
            Err(_) if began.elapsed() >= limit => {
                outcome.1 = true;
                kill_tree(pid);
            }
            Err(_) => {
                let asked = Instant::now();
                outcome.0 = outcome.0.max(anon_of_tree(pid));
                pause = (asked.elapsed() * 4).max(Duration::from_millis(5));
            }
        }
    }
}

/// Runs `command` and gives `each` the lines that it prints. When it prints nothing for `silence`,
/// says what its processes are doing, and kills them.
pub(crate) fn lines(
    command: &mut Command,
    silence: Duration,
    mut each: impl FnMut(String),
) -> Result<ExitStatus> {
    let mut child = command
        .process_group(0)
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
    let pid = child.id();
    let _group = Guard::new("kill -s KILL -- -$1 2>/dev/null", &[&pid.to_string()])?;
    let printed = BufReader::new(child.stdout.take().context("no output")?);
    let (line, lines) = mpsc::channel();
    thread::spawn(move || {
        for read in printed.lines() {
            let failed = read.is_err();
            if line.send(read).is_err() || failed {
                break;
            }
        }
    });
    loop {
        match lines.recv_timeout(silence) {
            Ok(read) => each(read.context("what it prints cannot be read")?),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(child.wait()?),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                eprintln!("{}", tell(&descendants(pid)));
                kill_tree(pid);
                bail!("nothing printed for {} s: killed", silence.as_secs());
            }
        }
    }
}

/// Runs `command` with the caller's terminal and fails unless it exits with 0.
pub(crate) fn must(command: &mut Command, what: &str) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {what}"))?;
    if !status.success() {
        bail!("{what} failed: {status}");
    }
    Ok(())
}

/// Runs `command` and gives what it printed; fails with its error output.
pub(crate) fn output(command: &mut Command, what: &str) -> Result<String> {
    let out = command
        .output()
        .with_context(|| format!("cannot start {what}"))?;
    if !out.status.success() {
        bail!(
            "{what} failed: {}\n{}",
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn kill_group(group: u32) {
    if let Some(group) = Pid::from_raw(group as i32) {
        let _ = process::kill_process_group(group, Signal::KILL);
    }
}

/// Kills a process, unless it has ended.
pub(crate) fn kill(process: u32) {
    if let Some(process) = Pid::from_raw(process as i32) {
        let _ = process::kill_process(process, Signal::KILL);
    }
}

fn kill_tree(root: u32) {
    let tree = descendants(root);
    kill_group(root);
    tree.into_iter().for_each(kill);
}

/// `root` and all that descend from it.
pub(crate) fn descendants(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let parent = after_name.split(' ').nth(1).and_then(|p| p.parse().ok());
        children.entry(parent.unwrap_or(0)).or_default().push(pid);
    }
    let mut tree = vec![root];
    let mut at = 0;
    while let Some(pid) = tree.get(at) {
        tree.extend(children.remove(pid).unwrap_or_default());
        at += 1;
    }
    tree
}

/// Anonymous bytes of a tree, each page counted once (proportional shares after fork).
fn anon_of_tree(root: u32) -> u64 {
    let of = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix("Pss_Anon:"));
        let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    };
    descendants(root).iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_past_its_limit_is_killed_with_its_children() {
        let mut sh = Command::new("sh");
        sh.args(["-c", "sleep 1000 & sleep 1000"]);
        let outcome = run(&mut sh, Duration::from_millis(50), false).unwrap();
        assert!(outcome.timed_out);
        assert!(outcome.ending().starts_with("time limit"));
    }

    #[test]
    fn a_program_that_falls_silent_is_killed_with_its_children() {
        let mut sh = Command::new("sh");
        sh.args(["-c", "echo one; sleep 1000 & sleep 1000"]);
        let mut said = Vec::new();
        let ended = lines(&mut sh, Duration::from_secs(5), |line| said.push(line));
        assert!(ended.unwrap_err().to_string().contains("nothing printed"));
        assert_eq!(said, ["one"]);
    }

    #[test]
    fn the_exit_status_passes_through() {
        let mut sh = Command::new("sh");
        let outcome = run(sh.args(["-c", "exit 7"]), Duration::from_secs(60), false).unwrap();
        assert_eq!(outcome.ending(), "exit 7");
    }
}
