//! `bench share`: faults on memory that another host has, beside a bare round trip of the same bytes
//! and a bare fault. Hosts are network namespaces; each has its host kernel and a program.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::hosts::Hosts;
use super::{fault, spread};
use crate::args::Args;
use crate::proc;
use crate::table::{Table, median};
use crate::world::{World, machine};

/// Times a round trip of the same bytes and a bare fault.
const TO_REACH: f64 = 1.2;
const PATIENCE: Duration = Duration::from_secs(60);

/// Where everything of the two hosts runs: on which processor.
const PLACES: [(&str, [&str; 2]); 2] = [
    ("one processor", ["0", "0"]),
    ("two processors", ["0", "1"]),
];

/// What is done by which of two hosts, one after the other, and what that is.
const STEPS: [(usize, &str, &str); 4] = [
    (0, "write", "at home, nobody else has it"),
    (1, "read", "read miss"),
    (1, "write", "upgrade"),
    (0, "write", "write miss"),
];

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let pages: u32 = args.number("--pages", 2048)?;
    args.finish()?;
    world.build_release()?;
    let fault = fault::compile(world, "fault")?;
    println!("{}", machine());
    println!("{runs} runs of {pages} pages: median (least-most) of the runs' medians, in us.");
    println!(
        "bare: 64 bytes there and 4096 back over TCP between the same hosts, and one page fault"
    );
    println!("by a minimal handler. busy: the other host's processor computes meanwhile.");
    let mut table = Table::new(["", "what", "us", "bare TCP", "bare fault", "ratio"]);
    let mut worst: f64 = 0.0;
    for (place, processors) in PLACES {
        let mut measured = Vec::new();
        for run in 0..runs {
            measured.push(one(world, &fault, processors, pages, run)?);
        }
        let of = |which: fn(&Run) -> f64| measured.iter().map(which).collect::<Vec<f64>>();
        let (tcp, bare) = (of(|run| run.tcp), of(|run| run.fault));
        for (at, (what, _)) in measured[0].ours.iter().enumerate() {
            let us: Vec<f64> = measured.iter().map(|run| run.ours[at].1).collect();
            let ratios = measured
                .iter()
                .map(|run| run.ours[at].1 / (run.tcp + run.fault));
            let ratios: Vec<f64> = ratios.collect();
            if what.contains("miss") {
                worst = worst.max(median(&ratios));
            }
            table.row([
                place.to_owned(),
                what.clone(),
                spread(&us, 1),
                spread(&tcp, 1),
                spread(&bare, 1),
                spread(&ratios, 2),
            ]);
        }
    }
    table.print();
    let reached = if worst <= TO_REACH { "yes" } else { "NO" };
    println!("\na miss takes {worst:.2} times the sum at worst; to reach {TO_REACH}: {reached}");
    Ok(())
}

/// Microseconds of one run.
struct Run {
    tcp: f64,
    fault: f64,
    ours: Vec<(String, f64)>,
}

fn one(world: &World, fault: &PathBuf, processors: [&str; 2], pages: u32, run: u32) -> Result<Run> {
    let pages = pages.to_string();
    let mut bare = Command::new("taskset");
    bare.args(["-c", processors[1]])
        .arg(fault)
        .args(["follow", "1", "0", &pages, "1"]);
    let bare = proc::output(&mut bare, "fault")?;
    let p50 = bare.split_whitespace().nth(4).context("no figure")?;
    let net = Net::new(world)?;
    let tcp = net.round_trip(processors, &pages)?;
    let kernels = [net.kernel(0, processors[0])?, net.kernel(1, processors[1])?];
    let mut ours = Vec::new();
    for is_busy in [false, true] {
        let name = format!("run-{run}-{is_busy}");
        let mut hosts =
            [0, 1].map(|at| net.program(at, &kernels[at].1, processors[at], &name, &pages));
        for (host, what, called) in STEPS {
            let spin = is_busy
                .then(|| Spinner::new(processors[1 - host]))
                .transpose()?;
            let us = hosts[host]
                .as_mut()
                .map_err(|error| anyhow::anyhow!("{error:#}"))?
                .does(what)?;
            drop(spin);
            let busy = if is_busy { ", busy" } else { "" };
            ours.push((format!("{called}{busy}"), us));
        }
        if !is_busy {
            let [one, two] = &mut hosts;
            let (Ok(one), Ok(two)) = (one, two) else {
                bail!("a program has ended");
            };
            one.tell("add 20000")?;
            two.tell("add 20000")?;
            let us = (one.answer()? + two.answer()?) / 2.0;
            ours.push(("hot spot: one increment".into(), us));
            one.tell("turns 20000")?;
            ours.push(("a lock, taken and given back, alone".into(), one.answer()?));
            one.tell("turns 1000")?;
            two.tell("turns 1000")?;
            let us = (one.answer()? + two.answer()?) / 2.0;
            ours.push(("a lock in turn with the other host".into(), us));
        }
    }
    Ok(Run {
        tcp,
        fault: p50.parse::<f64>()? / 1000.0,
        ours,
    })
}

/// Computes on a processor until it is dropped.
struct Spinner(Child);

impl Spinner {
    fn new(processor: &str) -> Result<Self> {
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

/// Two hosts, and what is measured on them.
struct Net {
    hosts: Hosts,
    bench: PathBuf,
}

fn within(hosts: &Hosts, host: usize, processor: &str) -> Command {
    let mut command = hosts.within(host);
    command.args(["taskset", "-c", processor]);
    command
}

impl Net {
    fn new(world: &World) -> Result<Self> {
        Ok(Self {
            hosts: Hosts::new(world, "share", 0, 2)?,
            bench: world.release_dir()?.join("farpage-bench"),
        })
    }

    /// The median of a bare round trip, in microseconds.
    fn round_trip(&self, processors: [&str; 2], count: &str) -> Result<f64> {
        let at = format!("{}:9000", self.hosts.address(0));
        let mut echo = within(&self.hosts, 0, processors[0]);
        echo.arg(&self.bench).args(["share-echo", &at]);
        let mut echo = Talker::start(echo)?;
        echo.until("ready")?;
        let mut ask = within(&self.hosts, 1, processors[1]);
        ask.arg(&self.bench)
            .args(["share-ask", &at, "--count", count]);
        let said = proc::output(&mut ask, "farpage-bench share-ask")?;
        us(&said)
    }

    fn kernel(&self, at: usize, processor: &str) -> Result<(Talker, PathBuf)> {
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

    fn program(
        &self,
        at: usize,
        socket: &PathBuf,
        processor: &str,
        name: &str,
        pages: &str,
    ) -> Result<Talker> {
        let mut command = within(&self.hosts, at, processor);
        command.arg(&self.bench).arg("share-host").arg(socket);
        command.args([name, "--pages", pages]);
        let mut program = Talker::start(command)?;
        program.until("ready")?;
        Ok(program)
    }
}

/// A process that is told lines, and answers them.
struct Talker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Talker {
    fn start(mut command: Command) -> Result<Self> {
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

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "a program has ended");
        Ok(line)
    }

    fn until(&mut self, what: &str) -> Result<()> {
        let began = Instant::now();
        while !self.line()?.contains(what) {
            ensure!(began.elapsed() < PATIENCE, "not in time: {what}");
        }
        Ok(())
    }

    fn tell(&mut self, what: &str) -> Result<()> {
        Ok(writeln!(self.input, "{what}")?)
    }

    /// A median, in microseconds.
    fn answer(&mut self) -> Result<f64> {
        us(&self.line()?)
    }

    fn does(&mut self, what: &str) -> Result<f64> {
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

fn us(line: &str) -> Result<f64> {
    let ns = line.split_whitespace().next().context("no figure")?;
    Ok(ns
        .parse::<f64>()
        .with_context(|| format!("not a figure: {line}"))?
        / 1000.0)
}
