//! Commands in a root, one after another in one shell, each with a limit of its own.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command as Process, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use farpage_testkit::Guard;

use crate::fresh::readme::Command;

/// How many of the last lines a failure is shown with.
const TAIL_LINES: usize = 40;

/// Stands before the number of a command that begins.
const MARK: char = '\u{1e}';

/// Ends the processes of group `$1` and removes the cgroups `$2` that they had.
pub(crate) const END: &str = r#"
kill -s KILL -- "-$1" 2>/dev/null
for mount in $(awk '$3 == "cgroup" || $3 == "cgroup2" {print $2}' /proc/self/mounts); do
    for i in 1 2 3 4 5 6 7 8 9 10; do
        [ -d "$mount/$2" ] || break
        find "$mount/$2" -depth -type d -exec rmdir {} \; 2>/dev/null
        [ ! -d "$mount/$2" ] || sleep 0.5
    done
    [ ! -d "$mount/$2" ] || echo "cannot remove the cgroup $mount/$2" >&2
done"#;

/// How one command ended.
pub(crate) struct Step {
    pub(crate) command: Command,
    pub(crate) wall: Duration,
    /// Why it failed, and the last lines that it printed.
    pub(crate) failure: Option<(String, Vec<String>)>,
}

/// A script that runs `commands` in order and stops at the first that fails.
pub(crate) fn script(before: &str, commands: &[Command]) -> String {
    let mut script = format!("cd \"$HOME\" || exit\n{before}\n");
    for (at, command) in commands.iter().enumerate() {
        // A line of its own: a here-document ends with the line before it.
        let _ = write!(
            script,
            "printf '{MARK}%s\\n' {at}\n{}\nstatus=$?; [ $status = 0 ] || exit $status\n",
            command.text
        );
    }
    script
}

/// Runs `process`, whose script [`script`] has made of `commands`, and writes all that it prints to
/// `log`. When a command takes longer than `limit`, it ends all of them.
pub(crate) fn run(
    process: &mut Process,
    cgroup: &str,
    commands: &[Command],
    limit: Duration,
    log: &mut File,
    mut began: impl FnMut(&Command),
) -> Result<Vec<Step>> {
    let mut child = process
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot enter the fresh machine")?;
    let guard = Guard::new(END, &[&child.id().to_string(), cgroup])?;
    let lines = lines_of(child.stdout.take().context("no output")?);
    let mut progress = Progress::new(commands);
    let late = loop {
        match lines.recv_timeout(limit.saturating_sub(progress.since.elapsed())) {
            Ok(line) => match progress.begins(&line) {
                Some(command) => began(command),
                None => {
                    writeln!(log, "{line}")?;
                    progress.printed(line);
                }
            },
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => break true,
        }
    };
    if late {
        drop(guard);
    }
    let status = child.wait()?;
    let failure = match (late, status.success()) {
        (true, _) => Some(format!("killed: it took more than {} s", limit.as_secs())),
        (false, true) => None,
        (false, false) => Some(status.to_string()),
    };
    Ok(progress.end(failure))
}

/// The lines that a program prints, as they come.
fn lines_of(printed: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (line, lines) = mpsc::channel();
    thread::spawn(move || {
        for bytes in BufReader::new(printed).split(b'\n').map_while(Result::ok) {
            if line
                .send(String::from_utf8_lossy(&bytes).into_owned())
                .is_err()
            {
                break;
            }
        }
    });
    lines
}

/// Which command runs, and how those before it ended.
struct Progress<'a> {
    commands: &'a [Command],
    done: Vec<Step>,
    /// Its place among the commands; none before the first has begun.
    now: Option<usize>,
    since: Instant,
    tail: VecDeque<String>,
}

impl<'a> Progress<'a> {
    fn new(commands: &'a [Command]) -> Self {
        Self {
            commands,
            done: Vec::new(),
            now: None,
            since: Instant::now(),
            tail: VecDeque::new(),
        }
    }

    /// The command that a line says has begun.
    fn begins(&mut self, line: &str) -> Option<&'a Command> {
        // What the command before has printed last may lack its line end.
        let (rest, number) = line.rsplit_once(MARK)?;
        let at: usize = number.parse().ok()?;
        let command = self.commands.get(at)?;
        if !rest.is_empty() {
            self.printed(rest.to_owned());
        }
        self.finish(None);
        (self.now, self.since) = (Some(at), Instant::now());
        self.tail.clear();
        Some(command)
    }

    fn printed(&mut self, line: String) {
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(line);
    }

    fn finish(&mut self, failure: Option<String>) {
        let command = match self.now {
            Some(at) => self.commands[at].clone(),
            None if failure.is_none() => return,
            None => Command::spoken("enter the fresh machine"),
        };
        self.done.push(Step {
            command,
            wall: self.since.elapsed(),
            failure: failure.map(|why| (why, self.tail.iter().cloned().collect())),
        });
    }

    fn end(mut self, failure: Option<String>) -> Vec<Step> {
        self.finish(failure);
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(120);

    fn commands(texts: &[&str]) -> Vec<Command> {
        let numbered = texts.iter().zip(1..);
        numbered
            .map(|(text, line)| Command {
                line,
                text: (*text).to_owned(),
            })
            .collect()
    }

    /// Runs the commands on this machine.
    fn steps(texts: &[&str], limit: Duration) -> Vec<Step> {
        let commands = commands(texts);
        let mut shell = Process::new("bash");
        shell.args(["-c", &script("", &commands)]);
        let mut log = File::create("/dev/null").unwrap();
        let cgroup = "farpage-no-such-cgroup";
        run(&mut shell, cgroup, &commands, limit, &mut log, |_| {}).unwrap()
    }

    #[test]
    fn what_a_command_changes_is_there_for_the_next() {
        let done = steps(
            &["cd /usr; value=7", "printf half; [ $PWD$value = /usr7 ]"],
            PATIENCE,
        );
        assert_eq!(done.len(), 2);
        assert!(done.iter().all(|step| step.failure.is_none()));
    }

    #[test]
    fn the_first_that_fails_ends_it_with_what_it_printed() {
        let done = steps(&["echo first", "echo why; false", "echo never"], PATIENCE);
        assert_eq!(done.len(), 2);
        assert!(done[0].failure.is_none());
        let (why, tail) = done[1].failure.as_ref().unwrap();
        assert!(why.contains("exit status: 1"), "{why}");
        assert_eq!((done[1].command.line, tail), (2, &vec!["why".to_owned()]));
    }

    #[test]
    fn the_program_of_a_here_document_is_one_command() {
        let program = "cat - <<'END'\nprinted\nEND";
        let done = steps(&[program, "true"], PATIENCE);
        assert!(done.len() == 2 && done.iter().all(|step| step.failure.is_none()));
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_its_children() {
        let done = steps(&["true", "cat <(sleep 1000)"], Duration::from_millis(200));
        let (why, _) = done.last().unwrap().failure.as_ref().unwrap();
        assert!(why.starts_with("killed"), "{why}");
    }
}
