//! `bench programs`: the parallel programs of `examples/c/parallel` as processes of one Linux, and as
//! parts on one, two and three hosts that run them unmodified.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::bounds::{Asserts, Bound, quotients};
use super::hosts::Hosts;
use super::spread;
use crate::args::Args;
use crate::proc;
use crate::table::{Table, median};
use crate::world::{World, machine};

const HOSTS_MAX: usize = 3;
/// What takes longer has failed.
const LIMIT: Duration = Duration::from_secs(300);
/// Between two looks at what has ended.
const LOOK: Duration = Duration::from_millis(5);

const LEGEND: &str = ". A part of a program is a process, one on each host.
wall, CPU: of the part that took the most, between the first barrier and the last.
speed-up: by CPU time, of one part at the same place; all hosts have these processors together.
waited: for pages, the host where it was most (not the one that sets and checks the problem).
farpage: CPU time of its process, the host where it was most, joining and leaving too.
faults: on pages that another host had; messages: between hosts; both of all hosts.";

struct Program {
    name: &'static str,
    sizes: &'static [&'static str],
    /// On hosts, with each of these as `--page-size`.
    units: &'static [&'static str],
    what: &'static str,
}

const PROGRAMS: [Program; 5] = [
    Program {
        name: "matmul",
        sizes: &["--size", "256"],
        units: &["4K", "64K"],
        what: "matrix multiplication, 256x256; in the paper 241, 122, 80 s on 1, 2, 3 machines",
    },
    Program {
        name: "matmul",
        sizes: &["--size", "1024"],
        units: &["4K", "64K"],
        what: "matrix multiplication, 1024x1024",
    },
    Program {
        name: "paths",
        sizes: &["--side", "256"],
        units: &["4K"],
        what: "shortest paths, 256x256 points",
    },
    Program {
        name: "particles",
        sizes: &["--particles", "131072", "--steps", "50"],
        units: &["4K"],
        what: "particles, 131072 in 8192 cells, 50 steps",
    },
    Program {
        name: "router",
        sizes: &["--wires", "2000", "--columns", "1024"],
        units: &["4K"],
        what: "router, 2000 wires, 16 channels of 1024 columns, 2 rounds",
    },
];

/// Speed-ups by CPU time, of one part at the same place. What docs/ROWS.md says of row E10.
pub(super) const BOUNDS: [Bound; 6] = [
    Bound::at_least("matmul 256, 2 hosts, 64K", 1.9, 15),
    // 2.7 where a processor takes longer for the same work, of which there is little.
    Bound::at_least("matmul 256, 3 hosts, 64K", 2.1, 15),
    Bound::at_least("matmul 1024, 2 hosts, 64K", 1.9, 15),
    Bound::at_least("matmul 1024, 3 hosts, 64K", 2.6, 15),
    Bound::at_least("matmul 1024, 2 hosts, 4K", 1.7, 15),
    Bound::at_least("matmul 1024, 3 hosts, 4K", 2.4, 15),
];

/// Where the parts of a program are.
#[derive(Clone, Copy)]
enum Place {
    /// Processes of this Linux, without Farpage.
    Bare,
    /// One on each host, with this `--page-size`.
    Hosts(&'static str),
}

/// A row of a table.
struct Row {
    place: Place,
    parts: usize,
    runs: Vec<Run>,
}

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let only = args.values("--only")?;
    let mut asserts = Asserts::wanted(&mut args, runs)?;
    args.finish()?;
    let is_wanted = |program: &&Program| only.is_empty() || only.iter().any(|o| o == program.name);
    let programs: Vec<&Program> = PROGRAMS.iter().filter(is_wanted).collect();
    ensure!(
        !programs.is_empty(),
        "--only {}: give matmul, paths, particles or router",
        only.join(" ")
    );
    println!("{}", machine());
    println!("{runs} runs: median (least-most){LEGEND}");
    let hosts = Hosts::new(world, "programs", 1, HOSTS_MAX)?;
    let mut speed_ups = HashMap::<String, Vec<f64>>::new();
    asserts.begin()?;
    for program in programs {
        let compiled = compile(world, &hosts.folder, program.name)?;
        let hosts_of = program.units.iter().map(|unit| Place::Hosts(unit));
        let mut rows: Vec<Row> = Vec::new();
        for place in std::iter::once(Place::Bare).chain(hosts_of) {
            rows.extend((1..=HOSTS_MAX).map(|parts| Row {
                place,
                parts,
                runs: Vec::new(),
            }));
        }
        // In turn, so that a noisy minute is not one row's alone.
        for _ in 0..runs {
            for row in &mut rows {
                let run = one(&hosts, &compiled, program, row.place, row.parts)?;
                row.runs.push(run);
            }
        }
        same_results(&rows)?;
        print(program, &rows);
        speed_ups.extend(speed_ups_of(program, &rows));
    }
    asserts.end(&BOUNDS, |what| {
        speed_ups.get(what).cloned().unwrap_or_default()
    })
}

/// Those of each run on hosts, by `NAME SIZE, N hosts, UNIT`.
fn speed_ups_of(program: &Program, rows: &[Row]) -> Vec<(String, Vec<f64>)> {
    let size = program.sizes.get(1).unwrap_or(&"");
    let cpu = |row: &Row| row.runs.iter().map(|run| run.cpu_s).collect::<Vec<f64>>();
    let mut alone = Vec::new();
    let mut all = Vec::new();
    for row in rows {
        if row.parts == 1 {
            alone = cpu(row);
        } else if let Place::Hosts(unit) = row.place {
            let name = format!("{} {size}, {} hosts, {unit}", program.name, row.parts);
            all.push((name, quotients(&alone, &cpu(row))));
        }
    }
    all
}

fn compile(world: &World, folder: &Path, name: &str) -> Result<PathBuf> {
    let to = folder.join(name);
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&to);
    gcc.arg(world.root.join(format!("examples/c/parallel/{name}.c")));
    proc::output(&mut gcc, "gcc")?;
    Ok(to)
}

/// What one run of a program took.
#[derive(Default)]
struct Run {
    result: String,
    wall_s: f64,
    cpu_s: f64,
    waited_s: f64,
    farpage_s: f64,
    faults: f64,
    messages: f64,
}

fn one(
    hosts: &Hosts,
    compiled: &Path,
    program: &Program,
    place: Place,
    parts: usize,
) -> Result<Run> {
    let stats = |host: usize| hosts.folder.join(format!("stats{host}"));
    let mut started = Started(Vec::new());
    for part in 0..parts {
        let mut command = match place {
            Place::Bare => Command::new(compiled),
            Place::Hosts(unit) => run(hosts, part, unit, &stats(part), compiled),
        };
        command.args(program.sizes).args(["--name", "/bench"]);
        command.args(["--part", &part.to_string(), "--of", &parts.to_string()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        started
            .0
            .push(command.spawn().context("cannot start a program")?);
    }
    let mut run = Run::default();
    for (part, output) in started.outputs()?.into_iter().enumerate() {
        run.add(&output)?;
        if let Place::Hosts(_) = place {
            // The first one's part sets the problem and checks the result beside.
            run.count(&stats(part), part > 0 || parts == 1)?;
        }
    }
    Ok(run)
}

/// `farpage run --cluster` at a host, which has a /dev/shm of its own.
fn run(hosts: &Hosts, host: usize, unit: &str, stats: &Path, compiled: &Path) -> Command {
    let mut command = hosts.within(host);
    let own = "mount -t tmpfs -o size=64k tmpfs /dev/shm && exec \"$@\"";
    command.args(["unshare", "--ipc", "--mount", "sh", "-c", own, "sh"]);
    command.arg(&hosts.farpage).args(["run", "--ram", "256M"]);
    command.arg("--spill").arg(&hosts.folder);
    hosts.join(&mut command);
    command.args(["--page-size", unit]);
    command.arg("--stats").arg(stats).arg("--").arg(compiled);
    command
}

/// Killed when dropped, so that a part that fails leaves no others that wait for it.
struct Started(Vec<Child>);

impl Started {
    /// Of all parts. When one fails the others, which may wait for it, are killed.
    fn outputs(mut self) -> Result<Vec<Output>> {
        let began = Instant::now();
        loop {
            let mut running = 0;
            for at in 0..self.0.len() {
                match self.0[at].try_wait()? {
                    None => running += 1,
                    Some(status) if status.success() => {}
                    Some(status) => {
                        let output = self.0.remove(at).wait_with_output()?;
                        let said = String::from_utf8_lossy(&output.stderr);
                        bail!("part {at} failed ({status}): {said}");
                    }
                }
            }
            if running == 0 {
                break;
            }
            let limit = LIMIT.as_secs();
            ensure!(began.elapsed() < LIMIT, "not done after {limit} s");
            std::thread::sleep(LOOK);
        }
        let children = std::mem::take(&mut self.0).into_iter();
        Ok(children
            .map(Child::wait_with_output)
            .collect::<Result<_, _>>()?)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Run {
    /// The line that a part said.
    fn add(&mut self, output: &Output) -> Result<()> {
        let (line, told) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let words = line.split_whitespace();
        let values: HashMap<&str, &str> = words.filter_map(|word| word.split_once('=')).collect();
        let value = |name: &str| values.get(name).with_context(|| format!("{line}{told}"));
        ensure!(*value("check")? == "right", "wrong: {line}{told}");
        self.result = (*value("result")?).to_owned();
        self.wall_s = self.wall_s.max(value("wall_s")?.parse()?);
        self.cpu_s = self.cpu_s.max(value("cpu_s")?.parse()?);
        Ok(())
    }

    /// The statistics of a host's run.
    fn count(&mut self, stats: &Path, only_computes: bool) -> Result<()> {
        let stats: Value = serde_json::from_slice(&std::fs::read(stats)?)?;
        let of = |part: &str, name: &str| {
            let value = stats[part][name].as_f64();
            value.with_context(|| format!("no {part}.{name} in: {stats}"))
        };
        if only_computes {
            self.waited_s = self.waited_s.max(of("shm", "stall_ns")? / 1e9);
        }
        let farpage = stats["supervisor_cpu_s"].as_f64();
        self.farpage_s = self.farpage_s.max(farpage.context("no CPU time")?);
        for fault in ["read_misses", "write_misses", "upgrades"] {
            self.faults += of("cluster", fault)?;
        }
        self.messages += of("cluster", "messages_sent")?;
        Ok(())
    }
}

/// What comes out does not depend on where the parts are.
fn same_results(rows: &[Row]) -> Result<()> {
    let mut all = rows.iter().flat_map(|row| &row.runs);
    let first = &all.next().context("no runs")?.result;
    match all.find(|run| run.result != *first) {
        None => Ok(()),
        Some(other) => bail!(
            "one run has {first} as its result, another {}",
            other.result
        ),
    }
}

fn print(program: &Program, rows: &[Row]) {
    println!("\n{}", program.what);
    let mut table = Table::new([
        "",
        "wall s",
        "CPU s",
        "speed-up",
        "waited s",
        "farpage s",
        "faults",
        "messages",
    ]);
    let mut one_part = 0.0;
    for Row { place, parts, runs } in rows {
        let values = |of: fn(&Run) -> f64| runs.iter().map(of).collect::<Vec<f64>>();
        let cpu = values(|run| run.cpu_s);
        if *parts == 1 {
            one_part = median(&cpu);
        }
        let plural = if *parts == 1 { "" } else { "s" };
        let (name, is_bare) = match place {
            Place::Bare => (format!("bare, {parts} part{plural}"), true),
            Place::Hosts(unit) => (format!("{parts} host{plural}, {unit}"), false),
        };
        let of = |of: fn(&Run) -> f64, decimals: usize| match is_bare {
            true => String::new(),
            false => format!("{:.decimals$}", median(&values(of))),
        };
        table.row([
            name,
            spread(&values(|run| run.wall_s), 3),
            spread(&cpu, 3),
            format!("{:.2}", one_part / median(&cpu)),
            of(|run| run.waited_s, 3),
            of(|run| run.farpage_s, 3),
            of(|run| run.faults, 0),
            of(|run| run.messages, 0),
        ]);
    }
    table.print();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speed_ups_are_of_the_same_run_and_place() {
        let row = |place, parts, cpu: [f64; 2]| Row {
            place,
            parts,
            runs: Vec::from(cpu.map(|cpu_s| Run {
                cpu_s,
                ..Run::default()
            })),
        };
        let rows = [
            row(Place::Bare, 1, [9.0, 9.0]),
            row(Place::Bare, 2, [9.0, 9.0]),
            row(Place::Hosts("64K"), 1, [4.0, 6.0]),
            row(Place::Hosts("64K"), 2, [2.0, 4.0]),
        ];
        let all = speed_ups_of(&PROGRAMS[0], &rows);
        assert_eq!(all, [(BOUNDS[0].what.to_owned(), vec![2.0, 1.5])]);
    }

    #[test]
    fn bounds_name_what_is_measured() {
        let hosts = |unit: &&'static str| {
            let unit = *unit;
            (1..=HOSTS_MAX).map(move |parts| Row {
                place: Place::Hosts(unit),
                parts,
                runs: Vec::new(),
            })
        };
        let of = |program: &Program| {
            let rows: Vec<Row> = program.units.iter().flat_map(hosts).collect();
            speed_ups_of(program, &rows)
        };
        let names: Vec<String> = PROGRAMS.iter().flat_map(of).map(|(name, _)| name).collect();
        assert!(
            BOUNDS
                .iter()
                .all(|bound| names.iter().any(|n| n == bound.what))
        );
    }
}
