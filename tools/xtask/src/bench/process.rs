//! `bench process`: what a process of which most is paged out costs those who fork it, look at it or end it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::bounds::{Asserts, Bound, quotients};
use super::remote::serve;
use super::spread;
use crate::args::Args;
use crate::proc;
use crate::table::Table;
use crate::world::{World, machine};

/// Times of ours by those of the bare program.
pub(crate) const BOUNDS: [Bound; 3] = [
    Bound::at_most("fork", 0.6, 60),
    Bound::at_most("child", 0.65, 60),
    Bound::at_most("core", 0.8, 30),
];

const FORK_MIB: &str = "256";
const FORK_RAM: &str = "64M";
/// A core has what was touched, and Linux looks at all that was reserved.
const CORE_RESERVED_MIB: &str = "16384";
const CORE_MIB: &str = "64";
const CORE_RAM: &str = "16M";
const WAIT_RAM: &str = "64M";
const FILE: &str = "file";
const FILE_BYTES: usize = 32 << 20;
/// Where programs find the file.
const PATH: &str = "/tmp/farpage-bench-process";
const LOOKED_AT: [&str; 3] = ["cmdline", "maps", "environ"];

/// A row of the table: what is measured, in which unit.
const ROWS: [(&str, &str); 6] = [
    ("fork", "fork of 256 MiB, until it returns, ms"),
    ("child", "fork of 256 MiB, until the child runs, ms"),
    ("core", "core of 64 MiB in 16 GiB that are reserved, s"),
    ("core MiB", "the same on the disk, MiB"),
    ("look", "cmdline, maps and environ while a thread waits, ms"),
    ("end", "SIGKILL while a thread waits, until it is gone, ms"),
];

/// What one run found, in the order in which it was found.
type Figures = Vec<(&'static str, f64)>;

struct Bench {
    program: PathBuf,
    farpage: PathBuf,
    folder: PathBuf,
    data: PathBuf,
    makes_cores: bool,
}

/// Entry point: bare and farpage in turn, so that both see the same machine.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let mut asserts = Asserts::wanted(&mut args, runs)?;
    args.finish()?;
    let bench = Bench::new(world)?;
    asserts.begin()?;
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        bare.push(bench.bare()?);
        ours.push(bench.ours(world)?);
    }
    println!("{}", machine());
    println!(
        "{runs} runs in turn; median (least-most). A quarter of the memory of ours is in RAM."
    );
    let of = |runs: &[Figures], name: &str| -> Vec<f64> {
        let all = runs.iter().flatten();
        all.filter(|(what, _)| *what == name)
            .map(|(_, value)| *value)
            .collect()
    };
    let ratio = |name: &str| quotients(&of(&ours, name), &of(&bare, name));
    let mut table = Table::new(["", "bare", "farpage", "beside"]);
    for (name, what) in ROWS {
        let decimals = if name == "core MiB" { 0 } else { 2 };
        let cells = [of(&bare, name), of(&ours, name)].map(|values| spread(&values, decimals));
        let [bare, ours] = cells;
        table.row([what.to_owned(), bare, ours, spread(&ratio(name), 2)]);
    }
    if !bench.makes_cores {
        println!("skipped: cores go elsewhere here (/proc/sys/kernel/core_pattern)");
    }
    table.print();
    asserts.end(&BOUNDS, ratio)
}

impl Bench {
    fn new(world: &World) -> Result<Self> {
        let folder = world.scratch("bench-process")?;
        let data = folder.join("data");
        fs::create_dir_all(&data)?;
        fs::write(data.join(FILE), vec![1; FILE_BYTES])?;
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&world.root).args([
            "build",
            "--release",
            "--quiet",
            "-p",
            "farpage-testkit",
        ]);
        proc::must(&mut cargo, "cargo build --release -p farpage-testkit")?;
        let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern")?;
        Ok(Self {
            program: super::fault::compile(world, "process")?,
            farpage: world.farpage()?,
            makes_cores: pattern.trim() == "core",
            folder,
            data,
        })
    }

    fn bare(&self) -> Result<Figures> {
        let mut found = self.fork(&[])?;
        found.extend(self.core(&[])?);
        let file = self.data.join(FILE).display().to_string();
        found.extend(self.wait(&[], &file, || Ok(()))?);
        Ok(found)
    }

    fn ours(&self, world: &World) -> Result<Figures> {
        let mut found = self.fork(&self.under(&["--ram", FORK_RAM]))?;
        found.extend(self.core(&self.under(&["--ram", CORE_RAM]))?);
        let (server, url) = serve(world, &self.data, 0, 1000)?;
        let map = format!("{PATH}={url}/{FILE}");
        let under = self.under(&["--ram", WAIT_RAM, "--map", &map]);
        let source = Pid::from_raw(server.id() as i32).context("no process")?;
        // From then on it answers nothing, and takes whatever it is sent.
        let fall_silent = || Ok(kill_process(source, Signal::STOP)?);
        found.extend(self.wait(&under, PATH, fall_silent)?);
        Ok(found)
    }

    fn under(&self, options: &[&str]) -> Vec<String> {
        let farpage = self.farpage.display().to_string();
        let mut words = vec![farpage, "run".into(), "--quiet".into()];
        words.extend(options.iter().map(|option| (*option).to_owned()));
        words.push("--".into());
        words
    }

    fn command(&self, under: &[String], words: &[&str]) -> Command {
        // In a shell, which lets it have a core.
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -c unlimited; exec \"$@\"", "sh"]);
        command.args(under).arg(&self.program).args(words);
        command.current_dir(&self.folder);
        command
    }

    fn fork(&self, under: &[String]) -> Result<Figures> {
        let text = proc::output(&mut self.command(under, &["fork", FORK_MIB]), "fork")?;
        let of = |name: &'static str| -> Result<(&'static str, f64)> {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let ms = line.with_context(|| format!("it printed no {name}"))?;
            Ok((name, ms.trim().parse()?))
        };
        Ok(vec![of("fork")?, of("child")?])
    }

    fn core(&self, under: &[String]) -> Result<Figures> {
        if !self.makes_cores {
            return Ok(Vec::new());
        }
        let mut command = self.command(under, &["core", CORE_RESERVED_MIB, CORE_MIB]);
        // That the core is not whole is said: not here.
        let (mut child, _) = started(command.stderr(Stdio::null()))?;
        let died = Instant::now();
        child.wait()?;
        let seconds = died.elapsed().as_secs_f64();
        let mut bytes = 0;
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("core") {
                bytes += entry.metadata()?.blocks() * 512;
                fs::remove_file(entry.path())?;
            }
        }
        ensure!(bytes > 0, "it left no core in {}", self.folder.display());
        Ok(vec![
            ("core", seconds),
            ("core MiB", bytes as f64 / 1_048_576.0),
        ])
    }

    /// While a thread waits for the end of `path`, others look at the process, and end it.
    fn wait(
        &self,
        under: &[String],
        path: &str,
        fall_silent: impl FnOnce() -> Result<()>,
    ) -> Result<Figures> {
        let mut command = self.command(under, &["wait", path]);
        let (mut child, process) = started(command.stdin(Stdio::piped()))?;
        fall_silent()?;
        let stdin = child.stdin.as_mut().context("no input")?;
        stdin.write_all(b"go on\n")?;
        line(&mut child)?;
        let began = Instant::now();
        for name in LOOKED_AT {
            fs::read(Path::new("/proc").join(&process).join(name))?;
        }
        let look = began.elapsed();
        let began = Instant::now();
        proc::kill(process.parse()?);
        child.wait()?;
        let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
        Ok(vec![("look", ms(look)), ("end", ms(began.elapsed()))])
    }
}

/// Starts a program, and waits for the first line that it prints.
fn started(command: &mut Command) -> Result<(Child, String)> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let line = line(&mut child)?;
    Ok((child, line))
}

fn line(child: &mut Child) -> Result<String> {
    let output = child.stdout.as_mut().context("no output")?;
    // It prints the next line only when it is asked to, so nothing is read ahead.
    let mut line = String::new();
    BufReader::with_capacity(64, output).read_line(&mut line)?;
    ensure!(line.ends_with('\n'), "it ended before it printed a line");
    Ok(line.trim().to_owned())
}
