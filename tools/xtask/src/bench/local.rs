//! `bench local`: a local file four times the memory given for it, beside mmap in a memory cgroup,
//! reads and writes past the page cache, userfaultfd handlers that do nothing else, and UMap.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use farpage_testkit::Cgroup;

use super::spread;
use crate::args::Args;
use crate::proc;
use crate::table::Table;
use crate::world::{World, machine};

/// What a process takes beside the pages of the file: its code, stacks, buffers, page tables, what is
/// read ahead and what is being written.
const BESIDE: u64 = 64 << 20;

/// One way to go through the file.
struct Pattern {
    title: &'static str,
    name: &'static str,
    threads: u32,
    /// What is to be reached: the peer, and times its time.
    to_reach: Option<(&'static str, f64)>,
}

const PATTERNS: [Pattern; 5] = [
    Pattern {
        title: "sequential, read",
        name: "seq",
        threads: 1,
        to_reach: Some(("disk", 1.1)),
    },
    Pattern {
        title: "random, read, 1 thread",
        name: "rand",
        threads: 1,
        to_reach: Some(("direct", 1.25)),
    },
    Pattern {
        title: "random, read, 4 threads",
        name: "rand",
        threads: 4,
        to_reach: Some(("direct", 1.25)),
    },
    Pattern {
        title: "sequential, read and write",
        name: "seqw",
        threads: 1,
        to_reach: None,
    },
    Pattern {
        title: "random, read and write, 4 threads",
        name: "randw",
        threads: 4,
        to_reach: None,
    },
];

/// How the file is accessed: what the program calls it, and what people do.
const WAYS: [(&str, &str); 6] = [
    ("disk", "disk alone"),
    ("direct", "O_DIRECT"),
    ("bare", "userfaultfd, bare"),
    ("farpage", "farpage"),
    ("mmap", "mmap"),
    ("umap", "UMap"),
];

/// The programs, the file, and how large everything is.
struct Bench {
    program: PathBuf,
    libraries: PathBuf,
    umap: Option<PathBuf>,
    file: PathBuf,
    ram_bytes: u64,
    pages: u64,
}

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let mib: u32 = args.number("--mib", 1024)?;
    let pages: u32 = args.number("--pages", 20_000)?;
    args.finish()?;
    let bytes = u64::from(mib) << 20;
    ensure!(
        u64::from(pages) <= bytes / 4096,
        "--pages {pages} are more than the file has; give fewer, or a larger --mib"
    );
    let scratch = world.scratch("bench-local")?;
    let bench = Bench {
        program: compile(world, &scratch)?,
        libraries: scratch.join("lib"),
        umap: std::env::var_os("FARPAGE_UMAP_LOCAL").map(PathBuf::from),
        file: scratch.join("file"),
        ram_bytes: bytes / 4,
        pages: u64::from(pages),
    };
    make_file(&bench.file, bytes)?;
    println!("{}", machine());
    println!(
        "a file of {mib} MiB, {} MiB of memory for it (and {} MiB for the rest of the process, in a",
        mib / 4,
        BESIDE >> 20
    );
    println!(
        "memory cgroup), nothing of it in the page cache at first. Sequential: all of it, every"
    );
    println!(
        "byte looked at. Random: {pages} pages of 4 KiB, each once. Seconds of {runs} runs in"
    );
    println!("turn, median (least-most); and times the time of others in the same run.");
    if bench.umap.is_none() {
        println!("skipped: UMap, FARPAGE_UMAP_LOCAL does not name its program");
    }
    for pattern in &PATTERNS {
        let found = bench.measure(pattern, runs)?;
        print(pattern, &found);
    }
    Ok(())
}

impl Bench {
    fn measure(&self, pattern: &Pattern, runs: u32) -> Result<BTreeMap<&'static str, Vec<f64>>> {
        let mut found: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
        let mut sum = None;
        for run in 1..=runs {
            for (way, title) in WAYS {
                let Some(mut command) = self.command(way, pattern)? else {
                    continue;
                };
                let text = proc::output(&mut command.0, title)?;
                let words: Vec<&str> = text.split_whitespace().collect();
                let [seconds, _, read] = words.as_slice() else {
                    anyhow::bail!("not a line of figures: {text}");
                };
                if way != "disk" {
                    // The same bytes, whoever read them.
                    let first = sum.get_or_insert_with(|| (*read).to_owned());
                    ensure!(first == read, "{title} read other bytes");
                }
                eprintln!("  {run}/{runs} {}, {title}: {seconds}", pattern.title);
                found.entry(way).or_default().push(seconds.parse()?);
            }
        }
        Ok(found)
    }

    /// The command, and the cgroup that it runs in.
    fn command(&self, way: &str, pattern: &Pattern) -> Result<Option<(Command, Cgroup)>> {
        let program = match (way, &self.umap) {
            ("umap", None) => return Ok(None),
            ("bare", _) if pattern.name != "rand" => return Ok(None),
            ("umap", Some(umap)) => umap,
            _ => &self.program,
        };
        let cgroup = Cgroup::new("bench-local", self.ram_bytes + BESIDE, false)?;
        let mut command = cgroup.command(program);
        command
            .env("LD_LIBRARY_PATH", &self.libraries)
            .args([way, pattern.name, &pattern.threads.to_string()])
            .arg(&self.file)
            .args([self.ram_bytes.to_string(), self.pages.to_string()]);
        Ok(Some((command, cgroup)))
    }
}

fn print(pattern: &Pattern, found: &BTreeMap<&'static str, Vec<f64>>) {
    println!("\n{}", pattern.title);
    let ours = &found["farpage"];
    let mut table = Table::new(["", "seconds", "farpage takes", "to reach"]);
    for (way, title) in WAYS {
        let Some(times) = found.get(way) else {
            continue;
        };
        let ratios: Vec<f64> = ours.iter().zip(times).map(|(our, its)| our / its).collect();
        let verdict = match pattern.to_reach {
            Some((peer, most)) if peer == way => {
                let reached = crate::table::median(&ratios) <= most;
                format!("{most}: {}", if reached { "yes" } else { "NO" })
            }
            _ => String::new(),
        };
        table.row([
            title.to_owned(),
            spread(times, 2),
            spread(&ratios, 2),
            verdict,
        ]);
    }
    table.print();
}

/// Installs the library for C and compiles `tools/bench/c/local.c` with it.
fn compile(world: &World, scratch: &Path) -> Result<PathBuf> {
    crate::install_c::install(world, scratch)?;
    let program = scratch.join("local");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(world.root.join("tools/bench/c/local.c"))
        .arg("-I")
        .arg(scratch.join("include"))
        .arg("-L")
        .arg(scratch.join("lib"))
        .arg("-lfarpage");
    proc::output(&mut gcc, "gcc")?;
    Ok(program)
}

/// A file of `bytes` bytes that are no zeros and cannot be compressed.
fn make_file(path: &Path, bytes: u64) -> Result<()> {
    if fs::metadata(path).is_ok_and(|m| m.len() == bytes) {
        return Ok(());
    }
    let made = || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        let random = File::open("/dev/urandom")?;
        let mut block = vec![0; 1 << 20];
        for _ in 0..bytes >> 20 {
            random.read_exact_at(&mut block, 0)?;
            file.write_all(&block)?;
        }
        file.sync_all()
    };
    made().with_context(|| format!("cannot make {}", path.display()))
}
