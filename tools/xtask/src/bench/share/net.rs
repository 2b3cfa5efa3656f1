//! The two hosts of `bench share`, and programs on them that are told lines.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::bench::hosts::Hosts;
use crate::proc;
use crate::world::World;

const PATIENCE: Duration = Duration::from_secs(60);

/// Computes on a processor until it is dropped.
pub(super) struct Spinner(Child);

impl Spinner {
    pub(super) fn new(processor: &str) -> Result<Self> {
        let mut command = Command::new("taskset");
        command.args(["-c", processor, "sh", "-c", "while :; do :; done"]);
        Ok(Self(command.spawn().context("cannot start sh")?))
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// So many pages of so many bytes.
#[derive(Clone, Copy)]
pub(super) struct Pages {
    pub(super) count: u32,
    pub(super) unit: u32,
}

/// Two hosts, and what is measured on them.
pub(super) struct Net {
    pub(super) hosts: Hosts,
    bench: PathBuf,
}

/// A command of a host, on a processor.
pub(super) fn within(hosts: &Hosts, host: usize, processor: &str) -> Command {
    let mut command = hosts.within(host);
    command.args(["taskset", "-c", processor]);
    command
}

impl Net {
    pub(super) fn new(world: &World) -> Result<Self> {
        Ok(Self {
            hosts: Hosts::new(world, "share", 0, 2)?,
            bench: world.release_dir()?.join("farpage-bench"),
        })
    }

    pub(super) fn bench(&self) -> &Path {
        &self.bench
    }

    /// The median of a bare round trip for a page, in microseconds.
    pub(super) fn round_trip(&self, processors: [&str; 2], pages: Pages) -> Result<f64> {
        let (count, unit) = (pages.count.to_string(), pages.unit.to_string());
        let at = format!("{}:9000", self.hosts.address(0));
        let mut echo = within(&self.hosts, 0, processors[0]);
        echo.arg(&self.bench)
            .args(["share-echo", &at, "--unit", &unit]);
        let mut echo = Talker::start(echo)?;
        echo.until("ready")?;
        let mut ask = within(&self.hosts, 1, processors[1]);
        ask.arg(&self.bench)
            .args(["share-ask", &at, "--count", &count, "--unit", &unit]);
        let said = proc::output(&mut ask, "farpage-bench share-ask")?;
        us(&said)
    }

    pub(super) fn kernel(&self, at: usize, processor: &str) -> Result<(Talker, PathBuf)> {
        let socket = self.hosts.folder.join(format!("host{at}"));
        let mut up = within(&self.hosts, at, processor);
        up.arg(&self.hosts.farpage)
            .args(["up", "--ram", "256M", "--socket"])
            .arg(&socket);
        self.hosts.join(&mut up);
        up.args(["--host-name", &format!("host{at}")]);
        let mut up = Talker::start(up)?;
        up.until("the host kernel answers at")?;
        Ok((up, socket))
    }

    /// A program that has these pages under this name.
    pub(super) fn program(
        &self,
        at: usize,
        socket: &Path,
        processor: &str,
        name: &str,
        pages: Pages,
    ) -> Result<Talker> {
        let mut command = within(&self.hosts, at, processor);
        command.arg(&self.bench).arg("share-host").arg(socket);
        command.args([name, "--pages", &pages.count.to_string()]);
        command.args(["--unit", &pages.unit.to_string()]);
        let mut program = Talker::start(command)?;
        program.until("ready")?;
        Ok(program)
    }
}

/// A process that is told lines, and answers them.
pub(super) struct Talker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Talker {
    pub(super) fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start a program")?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Self {
            child,
            input,
            output,
        })
    }

    pub(super) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "a program has ended");
        Ok(line)
    }

    pub(super) fn until(&mut self, what: &str) -> Result<()> {
        let began = Instant::now();
        while !self.line()?.contains(what) {
            ensure!(began.elapsed() < PATIENCE, "not in time: {what}");
        }
        Ok(())
    }

    pub(super) fn tell(&mut self, what: &str) -> Result<()> {
        Ok(writeln!(self.input, "{what}")?)
    }

    /// A median, in microseconds.
    pub(super) fn answer(&mut self) -> Result<f64> {
        us(&self.line()?)
    }

    pub(super) fn does(&mut self, what: &str) -> Result<f64> {
        self.tell(what)?;
        self.answer()
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn us(line: &str) -> Result<f64> {
    let ns = line.split_whitespace().next().context("no figure")?;
    Ok(ns
        .parse::<f64>()
        .with_context(|| format!("not a figure: {line}"))?
        / 1000.0)
}
