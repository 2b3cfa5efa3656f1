//! Processes that end with the test that started them.

use std::fs;
use std::io;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Output};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// A process that a test started. When it is dropped it is killed, with all that it started: a test that
/// fails leaves nothing that runs on.
#[derive(Debug)]
pub struct Started(Option<Child>);

impl Started {
    /// Starts it.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    pub fn new(command: &mut Command) -> Self {
        let child = command.spawn();
        Self(Some(child.unwrap_or_else(|error| {
            panic!("cannot start {command:?}: {error}")
        })))
    }

    /// Lets it go on after the test: it ends by itself.
    pub fn leave(&mut self) {
        self.0 = None;
    }

    /// Waits until it has ended; how it did and what it said, as far as nobody has read that.
    ///
    /// # Panics
    /// When it cannot be waited for.
    #[track_caller]
    pub fn output(mut self) -> Output {
        let child = self.0.take().expect("it is there until now");
        child
            .wait_with_output()
            .expect("it is this process's child")
    }
}

impl Deref for Started {
    type Target = Child;

    fn deref(&self) -> &Child {
        self.0
            .as_ref()
            .expect("it is there until its output is taken")
    }
}

impl DerefMut for Started {
    fn deref_mut(&mut self) -> &mut Child {
        self.0
            .as_mut()
            .expect("it is there until its output is taken")
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let Some(child) = &mut self.0 else {
            return;
        };
        let pid = Pid::from_child(child);
        let looks = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // Its number is its own until it has been waited for, which a test may have done.
        if waitid(WaitId::Pid(pid), looks).is_ok() {
            kill_all(pid);
        }
        let _ = child.wait();
    }
}

/// Kills a process before those that it started, which it would miss.
fn kill_all(pid: Pid) {
    // It stands still, and starts no others.
    let _ = kill_process(pid, Signal::STOP);
    let children = children(pid);
    let _ = kill_process(pid, Signal::KILL);
    children.into_iter().for_each(kill_all);
}

/// The processes that any of its threads started.
fn children(pid: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
    let of = |task: io::Result<fs::DirEntry>| {
        let path = task.ok()?.path().join("children");
        fs::read_to_string(path).ok()
    };
    let texts: Vec<String> = tasks.into_iter().flatten().filter_map(of).collect();
    let numbers = texts.iter().flat_map(|text| text.split_whitespace());
    numbers
        .filter_map(|n| Pid::from_raw(n.parse().ok()?))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::Started;
    use crate::until;

    #[test]
    fn what_it_started_ends_with_it() {
        let script = "exec 3<&0; sh -c 'cat <&3 & echo $!; wait'; echo over";
        let mut started = Started::new(
            Command::new("sh")
                .args(["-c", script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped()),
        );
        let mut line = String::new();
        BufReader::new(started.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let other = format!("/proc/{}", line.trim());
        assert!(Path::new(&other).exists());
        let input = started.stdin.take();
        drop(started);
        let is_dead = || {
            let stat = std::fs::read_to_string(format!("{other}/stat"));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        until("it is dead", is_dead);
        drop(input);
    }

    #[test]
    fn what_was_waited_for_is_left_alone() {
        let mut started = Started::new(&mut Command::new("true"));
        assert!(started.wait().unwrap().success());
        drop(started);
        let said = Started::new(Command::new("echo").arg("word").stdout(Stdio::piped()));
        assert_eq!(said.output().stdout, b"word\n");
    }
}
