//! The processes of a cell, found by what all descendants inherit: a variable in their environment, and mounts.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use crate::proc;
use crate::world::which;

/// What tells the processes of a cell, or of a run, from all others.
pub(super) struct Mark {
    /// `NAME=VALUE` in their environment.
    pub(super) variable: String,
    /// A part of the path of what is mounted for them: some programs overwrite their environment, nginx for one.
    pub(super) mounted: String,
}

/// What those have that clean up after tests, and outlive them.
pub(super) const GUARD: &str = "FARPAGE_TEST_GUARD=1";

impl Mark {
    fn is_on(&self, pid: u32) -> bool {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let has = |variable: &str| environ.split(|b| *b == 0).any(|v| v == variable.as_bytes());
        if has(&self.variable) {
            return true;
        }
        let mounts = || fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        !has(GUARD)
            && has_own_mounts(pid)
            && String::from_utf8_lossy(&mounts()).contains(&self.mounted)
    }
}

/// Whether its mounts are not those of this process.
fn has_own_mounts(pid: u32) -> bool {
    static OWN: OnceLock<Option<PathBuf>> = OnceLock::new();
    let its = fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    its.is_some() && its != *OWN.get_or_init(|| fs::read_link("/proc/self/ns/mnt").ok())
}

/// Processes that have the mark and have not ended.
pub(super) fn marked(mark: &Mark) -> Vec<u32> {
    all().filter(|pid| mark.is_on(*pid)).collect()
}

/// All processes of the machine.
fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Kills all that have the mark, and those that they make meanwhile; false when some do not end.
pub(super) fn kill(mark: &Mark) -> bool {
    let began = Instant::now();
    loop {
        let left = marked(mark);
        if left.is_empty() {
            return true;
        }
        if began.elapsed() > Duration::from_secs(60) {
            return false;
        }
        left.into_iter().for_each(proc::kill);
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until only `but` has the mark, and returns what has it still after `grace`.
pub(super) fn wait_for_ends(mark: &Mark, but: u32, grace: Duration) -> Vec<u32> {
    let began = Instant::now();
    loop {
        let left: Vec<u32> = marked(mark).into_iter().filter(|pid| *pid != but).collect();
        if left.is_empty() || began.elapsed() > grace {
            return left;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The command line of a process.
pub(super) fn command_line(pid: u32) -> String {
    let text = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).replace(['\0', '\n'], " ");
    text.trim().chars().take(200).collect()
}

/// What each thread of these processes is doing: its stack, where a program that reads stacks is installed,
/// and in any case what it waits for in the kernel.
pub(crate) fn tell(pids: &[u32]) -> String {
    let mut text = String::new();
    for pid in pids {
        let _ = writeln!(text, "process {pid}: {}", command_line(*pid));
        threads(*pid, &mut text);
        if which("eu-stack").is_some() {
            user_stacks(*pid, &mut text);
        }
    }
    text
}

fn threads(pid: u32, text: &mut String) {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let of = |what: &str| fs::read_to_string(task.path().join(what)).unwrap_or_default();
        let stat = of("stat");
        let after_name = stat.rsplit_once(") ").map_or("?", |(_, rest)| rest);
        let _ = writeln!(
            text,
            "    {} {} {} in {}; system call {}",
            task.file_name().to_string_lossy(),
            after_name.chars().next().unwrap_or('?'),
            of("comm").trim(),
            of("wchan"),
            of("syscall").trim()
        );
        for frame in of("stack").lines().take(8) {
            let _ = writeln!(text, "        {frame}");
        }
    }
}

/// The stacks in user space. Reading them stops the process, so it is given little time.
fn user_stacks(pid: u32, text: &mut String) {
    let mut stacks = Command::new("timeout");
    stacks.args(["-s", "KILL", "20", "eu-stack", "-n", "24", "-p"]);
    let Ok(out) = stacks.arg(pid.to_string()).stderr(Stdio::null()).output() else {
        return;
    };
    for line in String::from_utf8_lossy(&out.stdout).lines().take(400) {
        let _ = writeln!(text, "    {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_told_of_and_killed() {
        let mark = Mark {
            variable: format!("FARPAGE_TEST_MARK=processes-{}", std::process::id()),
            mounted: "/is mounted nowhere ".into(),
        };
        let (name, value) = mark.variable.split_once('=').unwrap();
        let mut sh = Command::new("sh");
        sh.args(["-c", "trap '' TERM; setsid sleep 1000 & echo; read _"]);
        sh.env(name, value)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = sh.spawn().unwrap();
        let mut line = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let found = marked(&mark);
        assert!(found.contains(&child.id()), "{found:?}");
        assert!(tell(&[child.id()]).contains("system call"));
        assert!(kill(&mark));
        assert!(marked(&mark).is_empty());
        child.wait().unwrap();
    }
}
