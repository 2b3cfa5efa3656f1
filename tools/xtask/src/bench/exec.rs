//! `bench exec`: programs that are behind HTTP, beside rclone and downloading first.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::remote::{Mount, Running, serve};
use super::spread;
use crate::args::Args;
use crate::proc;
use crate::table::Table;
use crate::world::{World, machine, which};

/// Where libraries of Debian are.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

/// A program that is started.
struct Program {
    what: &'static str,
    /// In the folder that is served, as all of its libraries are.
    name: String,
    /// Where it finds itself.
    path: String,
    libraries: Vec<String>,
    arguments: Vec<String>,
}

/// One start.
#[derive(Clone, Copy)]
struct Start {
    /// Until its first output.
    seconds: f64,
    /// What the server sent for it.
    bytes: u64,
}

/// What all starts need.
struct Bench {
    farpage: PathBuf,
    url: String,
    server: Running,
    scratch: PathBuf,
}

const WAYS: [&str; 4] = [
    "farpage exec, cold",
    "farpage exec, replayed",
    "download, then run",
    "rclone mount",
];

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let latency: u32 = args.number("--latency-ms", 20)?;
    let rate: u32 = args.number("--mb-per-s", 60)?;
    args.finish()?;
    for program in ["rclone", "fusermount3", "curl", "cc"] {
        ensure!(
            which(program).is_some(),
            "{program} is needed here; as root: apt-get install rclone fuse3 curl gcc"
        );
    }
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(&world.root)
        .args(["build", "--release", "--quiet"])
        .args(["-p", "farpage-cli", "-p", "farpage-testkit"]);
    proc::must(&mut cargo, "cargo build --release")?;
    let scratch = world.scratch("bench-exec")?;
    let data = scratch.join("data");
    fs::create_dir_all(&data)?;
    let programs = programs(world, &data)?;
    let (server, url) = serve(world, &data, latency, rate)?;
    let bench = Bench {
        farpage: world.release_dir()?.join("farpage"),
        url,
        server,
        scratch,
    };
    println!("{}", machine());
    println!("a server of {latency} ms and {rate} MB/s a connection; {runs} runs in turn:");
    println!("median (least-most)");
    for program in &programs {
        bench.measure(program, runs)?;
    }
    Ok(())
}

/// Python, the C compiler proper, and one that is made here, with their libraries in `data`.
fn programs(world: &World, data: &Path) -> Result<Vec<Program>> {
    let large = data.join("large");
    let mut cc = Command::new("cc");
    cc.arg("-O1").arg(world.root.join("tools/bench/c/large.c"));
    proc::must(cc.arg("-o").arg(&large), "cc large.c")?;
    let source = data.join("hello.c");
    fs::write(
        &source,
        "int main(int n, char **v) { return n * 3 + v[0][0]; }\n",
    )?;
    let python = fs::canonicalize("/usr/bin/python3").context("no Python of the system")?;
    let cc1 = proc::output(Command::new("cc").arg("-print-prog-name=cc1"), "cc")?;
    let script = "import json, zlib; print(json.dumps([zlib.crc32(b'x')]))";
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let source = source.display().to_string();
    Ok(vec![
        program("Python", &python, text(&["-c", script]), data)?,
        program(
            "the C compiler (cc1)",
            Path::new(cc1.trim()),
            text(&["-quiet", &source, "-o", "-"]),
            data,
        )?,
        program("a program of 200 MB", &large, Vec::new(), data)?,
    ])
}

/// Copies a program, and what it loads but for the C library, to `data`.
fn program(
    what: &'static str,
    path: &Path,
    arguments: Vec<String>,
    data: &Path,
) -> Result<Program> {
    let copy = |from: &Path| -> Result<String> {
        let name = from.file_name().context("no name")?;
        let name = name.to_str().context("an odd name")?;
        if from.parent() != Some(data) {
            fs::copy(from, data.join(name))?;
        }
        Ok(name.to_owned())
    };
    let name = copy(path)?;
    let list = proc::output(Command::new("ldd").arg(path), "ldd")?;
    let mut libraries = Vec::new();
    for line in list.lines() {
        let Some((name, rest)) = line.trim().split_once(" => ") else {
            continue;
        };
        let from = rest.split_whitespace().next().unwrap_or_default();
        if !["libc.", "libm."]
            .iter()
            .any(|begin| name.starts_with(begin))
        {
            fs::copy(from, data.join(name))?;
            libraries.push(name.to_owned());
        }
    }
    Ok(Program {
        what,
        name,
        path: path.display().to_string(),
        libraries,
        arguments,
    })
}

impl Bench {
    fn measure(&self, program: &Program, runs: u32) -> Result<()> {
        let trace = self.scratch.join("trace");
        let _ = fs::remove_file(&trace);
        // What is replayed was recorded by a start that does not count.
        let mut record = self.exec(program);
        record.arg("--record").arg(&trace);
        let want = self.start(self.started(record, program))?.1;
        let mut found: BTreeMap<&str, Vec<Start>> = BTreeMap::new();
        for run in 1..=runs {
            for way in WAYS {
                let (start, said) = match way {
                    "farpage exec, cold" => {
                        self.start(self.started(self.exec(program), program))?
                    }
                    "farpage exec, replayed" => {
                        let mut exec = self.exec(program);
                        exec.arg("--replay").arg(&trace);
                        self.start(self.started(exec, program))?
                    }
                    "download, then run" => self.start(self.download(program)?)?,
                    _ => {
                        let folder = self.scratch.join("mount");
                        let _mount = Mount::new(&folder, &self.url, &program.name)?;
                        self.start(local(program, &folder))?
                    }
                };
                ensure!(
                    said == want,
                    "{way} of {} said something else",
                    program.what
                );
                eprintln!(
                    "  {run}/{runs} {}, {way}: {:.2}",
                    program.what, start.seconds
                );
                found.entry(way).or_default().push(start);
            }
        }
        let files = [&program.name].into_iter().chain(&program.libraries);
        let size = |name: &String| fs::metadata(self.scratch.join("data").join(name));
        let sizes: Result<Vec<u64>, _> = files.map(|name| size(name).map(|m| m.len())).collect();
        let all = sizes?.iter().sum::<u64>() as f64 / 1e6;
        println!("\n{}: {all:.1} MB", program.what);
        let mut table = Table::new(["", "seconds to first output", "MB fetched", "of all"]);
        for way in WAYS {
            let starts = &found[way];
            let seconds: Vec<f64> = starts.iter().map(|start| start.seconds).collect();
            let fetched: Vec<f64> = starts
                .iter()
                .map(|start| start.bytes as f64 / 1e6)
                .collect();
            let share = crate::table::median(&fetched) / all * 100.0;
            table.row([
                way.to_owned(),
                spread(&seconds, 3),
                spread(&fetched, 1),
                format!("{share:.0}%"),
            ]);
        }
        table.print();
        Ok(())
    }

    /// `farpage exec`, without the program.
    fn exec(&self, program: &Program) -> Command {
        let mut exec = Command::new(&self.farpage);
        exec.args(["exec", "--quiet", "--as", &program.path]);
        for library in &program.libraries {
            let map = format!("{LIBRARIES}/{library}={}/{library}", self.url);
            exec.args(["--map", &map]);
        }
        exec
    }

    fn started(&self, mut exec: Command, program: &Program) -> Command {
        exec.arg(format!("{}/{}", self.url, program.name));
        exec.args(&program.arguments);
        exec
    }

    fn download(&self, program: &Program) -> Result<Command> {
        let folder = self.scratch.join("copy");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let mut sh = Command::new("sh");
        // All files at a time, as one would who is in a hurry.
        let fetch = "cd \"$1\" && shift && url=$1 && shift && name=$1 && all= && \
            while [ \"$1\" != -- ]; do all=\"$all -O $url/$1\"; shift; done && shift && \
            curl -sfZ $all && chmod +x \"$name\" && LD_LIBRARY_PATH=. exec \"./$name\" \"$@\"";
        sh.args(["-c", fetch, "sh"]).arg(&folder).arg(&self.url);
        sh.arg(&program.name).args(&program.libraries).arg("--");
        sh.args(&program.arguments);
        Ok(sh)
    }

    /// Starts a command and waits for its first output, and its end. What it said, too.
    fn start(&self, mut command: Command) -> Result<(Start, String)> {
        let before = self.sent()?;
        let began = Instant::now();
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut out = child.stdout.take().context("no output")?;
        let mut said = vec![0; 1];
        out.read_exact(&mut said).context("it said nothing")?;
        let seconds = began.elapsed().as_secs_f64();
        out.read_to_end(&mut said)?;
        ensure!(child.wait()?.success(), "a start has failed");
        let bytes = self.sent()? - before;
        let said = String::from_utf8(said)?;
        Ok((Start { seconds, bytes }, said))
    }

    /// Bytes of files that the server has sent so far.
    fn sent(&self) -> Result<u64> {
        let io = fs::read_to_string(format!("/proc/{}/io", self.server.id()))?;
        let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
        line.context("no count")?.parse().context("no number")
    }
}

/// The program as it lies in `folder`.
fn local(program: &Program, folder: &Path) -> Command {
    let mut command = Command::new(folder.join(&program.name));
    command.args(&program.arguments);
    command.env("LD_LIBRARY_PATH", folder);
    command
}
