//! `bench ports`: calls between programs of two hosts by ports, beside bare TCP and calls within a host.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::hosts::Hosts;
use super::spread;
use crate::args::Args;
use crate::proc;
use crate::table::{Table, median};
use crate::world::{World, machine};

const TCP_PORT: u16 = 7700;
/// Between which programs, and by what.
const WAYS: [&str; 3] = [
    "bare TCP between hosts",
    "ports within a host",
    "ports between hosts",
];
/// Bytes of a call and of its answer, as the programs print them.
const SIZES: [(u64, &str); 2] = [(64, "null call"), (1 << 20, "1 MiB there and back")];

/// Ended when it is dropped.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Started {
    /// Starts it, and waits until its first line has this.
    fn new(mut command: Command, says: &str) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("it has an output")?;
        let started = Self(child);
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(line.contains(says), "{command:?} said {line:?}");
        Ok(started)
    }
}

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let calls: u32 = args.number("--calls", 2000)?;
    args.finish()?;
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--quiet", "-p", "farpage-bench"]);
    proc::must(
        cargo.current_dir(&world.root),
        "cargo build --release -p farpage-bench",
    )?;
    let program = world.release_dir()?.join("farpage-bench");
    let hosts = Hosts::new(world, "ports", 5, 2)?;
    let kernels = [kernel(&hosts, 0)?, kernel(&hosts, 1)?];
    let address = format!("{}:{TCP_PORT}", hosts.address(0));
    let within = |host: usize, words: &[&str]| {
        let mut command = hosts.within(host);
        command.arg(&program).args(words);
        command
    };
    let sockets = [socket(&hosts, 0), socket(&hosts, 1)];
    let sockets = sockets.map(|socket| socket.display().to_string());
    let serves = ["ports-serve", &sockets[0], "bench"];
    let _served = [
        Started::new(within(0, &serves), "ready")?,
        Started::new(within(0, &["ports-tcp-serve", &address]), "ready")?,
    ];
    let count = calls.to_string();
    let mut lines = Vec::new();
    for _ in 0..runs {
        for (way, name) in WAYS.iter().enumerate() {
            let mut command = match way {
                0 => within(1, &["ports-tcp-call", &address, "--calls", &count]),
                1 => within(0, &["ports-call", &sockets[0], "bench", "--calls", &count]),
                _ => within(1, &["ports-call", &sockets[1], "bench", "--calls", &count]),
            };
            for line in proc::output(&mut command, name)?.lines() {
                let (bytes, ns) = parse(line).with_context(|| format!("no figures: {line}"))?;
                lines.push((way, bytes, ns));
            }
        }
    }
    drop(kernels);
    println!("{}", machine());
    println!(
        "{runs} runs of {calls} calls: median (least-most), us a call. Both hosts on this machine."
    );
    print(&lines);
    Ok(())
}

fn socket(hosts: &Hosts, host: usize) -> PathBuf {
    hosts.folder.join(format!("host{host}"))
}

/// The host kernel of a host.
fn kernel(hosts: &Hosts, host: usize) -> Result<Started> {
    let mut command = hosts.within(host);
    command
        .arg(&hosts.farpage)
        .args(["up", "--ram", "64M", "--socket"]);
    command.arg(socket(hosts, host));
    command.arg("--spill").arg(&hosts.folder);
    hosts.join(&mut command);
    Started::new(command, "the host kernel answers")
}

fn parse(line: &str) -> Option<(u64, f64)> {
    let (bytes, ns) = line.split_once(' ')?;
    Some((bytes.parse().ok()?, ns.parse().ok()?))
}

fn print(lines: &[(usize, u64, f64)]) {
    let mut table = Table::new(["", "us", "to TCP"]);
    for (size, what) in SIZES {
        let of = |way: usize| -> Vec<f64> {
            let of = lines.iter().filter(|line| (line.0, line.1) == (way, size));
            of.map(|line| line.2 / 1000.0).collect()
        };
        for (way, name) in WAYS.iter().enumerate() {
            let ratio = median(&of(way)) / median(&of(0));
            table.row([
                format!("{what}: {name}"),
                spread(&of(way), 1),
                format!("{ratio:.2}"),
            ]);
        }
    }
    table.print();
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_line_of_figures_is_read() {
        assert_eq!(parse("64 1234"), Some((64, 1234.0)));
        assert!(parse("64").is_none() && parse("a 1").is_none());
    }
}
