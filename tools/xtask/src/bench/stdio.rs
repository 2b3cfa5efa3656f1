//! `bench stdio`: tables 6-1 to 6-3 of the paper on mapped files: a file read byte by byte and in
//! pieces, by the C library's streams, by ours, and by what else programs have.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::bounds::{Asserts, Bound, quotients};
use super::{fault, spread};
use crate::args::Args;
use crate::table::{Table, median};
use crate::world::{World, machine};
use crate::{install_c, proc};

/// How a program comes to read.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// `tools/bench/c/stdio.c` with the C library alone.
    Glibc,
    /// The same with our library before it.
    Preloaded,
    /// Compiled with our header, and linked.
    Header,
    /// Crate `bench`.
    Rust,
}

/// What is measured: as it is printed, how, and what.
const WAYS: [(&str, How, &str); 15] = [
    ("getc", How::Glibc, "getc"),
    ("getc, preloaded", How::Preloaded, "getc"),
    ("getc, our header", How::Header, "getc"),
    ("getc_unlocked", How::Glibc, "getc_unlocked"),
    ("getc_unlocked, \"rm\"", How::Glibc, "getc_unlocked-rm"),
    ("getc_unlocked, preloaded", How::Preloaded, "getc_unlocked"),
    ("fread 4K", How::Glibc, "fread-4K"),
    ("fread 4K, preloaded", How::Preloaded, "fread-4K"),
    ("fread 64K", How::Glibc, "fread-64K"),
    ("fread 64K, preloaded", How::Preloaded, "fread-64K"),
    ("read 64K", How::Glibc, "read-64K"),
    ("whole, by array", How::Glibc, "whole"),
    ("fmap, by array", How::Header, "fmap"),
    ("Rust BufReader", How::Rust, "bufreader"),
    ("Rust memmap2", How::Rust, "memmap2"),
];
/// Where in `WAYS` what is to be reached is measured against.
const OURS: usize = 2;
const TO_REACH: [(usize, f64); 4] = [(0, 4.0), (3, 1.5), (10, 1.2), (14, 1.6)];
/// Of processor time the second time. What docs/ROWS.md says of row A11.
pub(super) const BOUNDS: [Bound; 4] = [
    Bound::at_least(GETC_BY_OURS, 3.9, 10),
    Bound::at_least(GETC_BY_FMAP, 5.4, 10),
    Bound::at_least(WHOLE_BY_FMAP, 1.55, 10),
    Bound::at_most(THREE, 0.89, 10),
];
const GETC_BY_OURS: &str = "getc of glibc / ours";
const GETC_BY_FMAP: &str = "getc of glibc / fmap";
const WHOLE_BY_FMAP: &str = "the whole file read / fmap";
const THREE: &str = "fmap / read, three readers at once";
/// Where in `WAYS`.
const GETC: usize = 0;
const WHOLE: usize = 11;
const FMAP: usize = 12;
/// Those that three programs use at once, with `read` and `fmap` among them.
const TOGETHER: [usize; 5] = [0, 2, 3, 10, 12];
/// Sizes of files that are opened, read and closed, and how often.
const SMALL: [(u64, u32); 5] = [
    (1, 20_000),
    (4096, 20_000),
    (65_536, 5_000),
    (262_144, 2_000),
    (1 << 20, 500),
];

/// What a program prints.
#[derive(Clone, Copy, Debug)]
struct Figures {
    bytes: u64,
    processor_ms: f64,
    ms: f64,
    blocks: u64,
    kib: u64,
}

struct Bench {
    glibc: PathBuf,
    header: PathBuf,
    library: PathBuf,
    rust: PathBuf,
    folder: PathBuf,
}

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let mib: u64 = args.number("--mib", 1024)?;
    let mut asserts = Asserts::wanted(&mut args, runs)?;
    args.finish()?;
    let bench = Bench::new(world)?;
    asserts.begin()?;
    println!("{}, lines of text without zeros", machine());
    println!(
        "{runs} runs in turn: median (least-most) of processor ms. second time: the file is in the"
    );
    println!(
        "page cache. first time: it is not (ms by the clock). ours: times 'getc, our header'.\n"
    );
    let mut sizes = vec![64, mib];
    sizes.dedup();
    // Of the last size.
    let (mut last, mut three) = (Vec::new(), Vec::new());
    for mib in sizes {
        let file = bench.text(mib)?;
        let warm = bench.all(&file, runs, false)?;
        let cold = bench.all(&file, runs.min(3), true)?;
        print(mib, &warm, &cold);
        if mib >= 1024 {
            reached(&warm);
        }
        three = bench.together(mib, &file, runs)?;
        std::fs::remove_file(&file)?;
        last = warm;
    }
    bench.small(runs)?;
    let ms = |at: usize| -> Vec<f64> { last[at].iter().map(|one| one.processor_ms).collect() };
    asserts.end(&BOUNDS, |what| match what {
        GETC_BY_OURS => quotients(&ms(GETC), &ms(OURS)),
        GETC_BY_FMAP => quotients(&ms(GETC), &ms(FMAP)),
        WHOLE_BY_FMAP => quotients(&ms(WHOLE), &ms(FMAP)),
        _ => three.clone(),
    })
}

fn print(mib: u64, warm: &[Vec<Figures>], cold: &[Vec<Figures>]) {
    let mut table = Table::new([
        &*format!("{mib} MiB"),
        "second time",
        "ours",
        "first time",
        "blocks",
        "KiB",
    ]);
    for (at, (name, ..)) in WAYS.iter().enumerate() {
        let ms: Vec<f64> = warm[at].iter().map(|one| one.processor_ms).collect();
        let ratios: Vec<f64> = warm[at]
            .iter()
            .zip(&warm[OURS])
            .map(|(one, ours)| one.processor_ms / ours.processor_ms)
            .collect();
        let clock: Vec<f64> = cold[at].iter().map(|one| one.ms).collect();
        let blocks = cold[at].first().map_or(0, |one| one.blocks);
        let kib = warm[at].first().map_or(0, |one| one.kib);
        table.row([
            (*name).to_owned(),
            spread(&ms, 0),
            spread(&ratios, 2),
            spread(&clock, 0),
            blocks.to_string(),
            kib.to_string(),
        ]);
    }
    table.print();
}

/// What the header's `getc` is to be faster than, and by how much.
fn reached(warm: &[Vec<Figures>]) {
    for (at, times) in TO_REACH {
        let pairs = warm[at].iter().zip(&warm[OURS]);
        let ratios: Vec<f64> = pairs
            .map(|(one, ours)| one.processor_ms / ours.processor_ms)
            .collect();
        let is = median(&ratios);
        let said = if is >= times { "yes" } else { "NO" };
        println!(
            "{} {is:.2} times ours; to reach {times}: {said}",
            WAYS[at].0
        );
    }
    println!();
}

impl Bench {
    fn new(world: &World) -> Result<Self> {
        let folder = world.scratch("bench-stdio")?;
        let prefix = folder.join("prefix");
        install_c::install(world, &prefix)?;
        let glibc = fault::compile(world, "stdio")?;
        let header = folder.join("stdio-header");
        let lib = prefix.join("lib");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-DWITH_HEADER", "-I"]);
        gcc.arg(prefix.join("include")).arg("-o").arg(&header);
        gcc.arg(world.root.join("tools/bench/c/stdio.c"));
        gcc.arg(format!("-L{}", lib.display()));
        gcc.arg(format!("-Wl,-rpath,{}", lib.display()));
        gcc.args(["-Wl,--no-as-needed", "-lfarpage-stdio"]);
        proc::output(&mut gcc, "gcc")?;
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--release", "--quiet", "-p", "farpage-bench"]);
        proc::must(cargo.current_dir(&world.root), "cargo build --release")?;
        Ok(Self {
            glibc,
            header,
            library: lib.join("libfarpage-stdio.so"),
            rust: world.release_dir()?.join("farpage-bench"),
            folder,
        })
    }

    /// Lines of random letters.
    fn text(&self, mib: u64) -> Result<PathBuf> {
        let path = self.folder.join(format!("text-{mib}"));
        let mut file = BufWriter::new(File::create(&path)?);
        let mut dice = 0x9e37_79b9_7f4a_7c15_u64;
        let mut line = [0; 64];
        for _ in 0..mib << 14 {
            for byte in &mut line[..63] {
                dice ^= dice << 13;
                dice ^= dice >> 7;
                dice ^= dice << 17;
                *byte = b'a' + (dice >> 40) as u8 % 26;
            }
            line[63] = b'\n';
            file.write_all(&line)?;
        }
        file.into_inner().context("cannot write")?.sync_all()?;
        Ok(path)
    }

    fn command(&self, how: How, what: &str, file: &Path) -> Command {
        let mut command = match how {
            How::Glibc | How::Preloaded => Command::new(&self.glibc),
            How::Header => Command::new(&self.header),
            How::Rust => Command::new(&self.rust),
        };
        if how == How::Preloaded {
            command.env("LD_PRELOAD", &self.library);
        }
        if how == How::Rust {
            command.arg("stdio");
        }
        command.arg(what).arg(file);
        command
    }

    fn one(&self, (name, how, what): (&str, How, &str), file: &Path) -> Result<Figures> {
        let said = proc::output(&mut self.command(how, what, file), name)?;
        let figures = parse(&said).with_context(|| format!("{name} prints {said}"))?;
        ensure!(figures.bytes == file.metadata()?.len(), "{name}: {said}");
        Ok(figures)
    }

    /// All ways in turn, so often.
    fn all(&self, file: &Path, runs: u32, is_cold: bool) -> Result<Vec<Vec<Figures>>> {
        let mut all = vec![Vec::new(); WAYS.len()];
        // All of it is in the page cache.
        self.one(WAYS[10], file)?;
        for _ in 0..runs {
            for (way, figures) in WAYS.iter().zip(&mut all) {
                if is_cold {
                    let mut drop = self.command(How::Glibc, "drop", file);
                    proc::output(&mut drop, "drop")?;
                }
                figures.push(self.one(*way, file)?);
            }
        }
        Ok(all)
    }

    /// Three programs at once, as in table 6-2. Returns how many times what `read` takes `fmap` does.
    fn together(&self, mib: u64, file: &Path, runs: u32) -> Result<Vec<f64>> {
        let name = format!("{mib} MiB, three readers at once");
        let mut table = Table::new([&*name, "processor ms, all", "times read 64K", "KiB, all"]);
        let mut all = vec![Vec::new(); TOGETHER.len()];
        for _ in 0..runs {
            for (at, figures) in TOGETHER.iter().zip(&mut all) {
                let (name, how, what) = WAYS[*at];
                let start = |_| {
                    let mut command = self.command(how, what, file);
                    command.stdout(Stdio::piped()).spawn()
                };
                let children: Vec<_> = (0..3).map(start).collect::<std::io::Result<_>>()?;
                let (mut processor_ms, mut kib) = (0.0, 0);
                for child in children {
                    let said = child.wait_with_output()?.stdout;
                    let said = String::from_utf8_lossy(&said).into_owned();
                    let one = parse(&said).with_context(|| format!("{name} prints {said}"))?;
                    processor_ms += one.processor_ms;
                    kib += one.kib;
                }
                figures.push((processor_ms, kib));
            }
        }
        let base = &all[3];
        let mut of_fmap = Vec::new();
        for (at, figures) in TOGETHER.iter().zip(&all) {
            let ms: Vec<f64> = figures.iter().map(|one| one.0).collect();
            let pairs = figures.iter().zip(base);
            let ratios: Vec<f64> = pairs.map(|(one, base)| one.0 / base.0).collect();
            let kib = figures.first().map_or(0, |one| one.1);
            if *at == FMAP {
                of_fmap.clone_from(&ratios);
            }
            table.row([
                WAYS[*at].0.to_owned(),
                spread(&ms, 0),
                spread(&ratios, 2),
                kib.to_string(),
            ]);
        }
        table.print();
        println!();
        Ok(of_fmap)
    }

    /// Open, read, close.
    fn small(&self, runs: u32) -> Result<()> {
        let heading = [
            "open to close, us",
            "read 64K",
            "fread 64K",
            "the same, preloaded",
            "ratio",
        ];
        let mut table = Table::new(heading);
        for (bytes, rounds) in SMALL {
            let path = self.folder.join("small");
            std::fs::write(&path, vec![b'x'; bytes as usize])?;
            let us = |how: How, what: &str| -> Result<f64> {
                let mut command = self.command(how, what, &path);
                let said = proc::output(command.arg(rounds.to_string()), what)?;
                let figures = parse(&said).with_context(|| format!("{what} prints {said}"))?;
                Ok(figures.processor_ms * 1e3 / f64::from(rounds))
            };
            let mut all = [Vec::new(), Vec::new(), Vec::new()];
            for _ in 0..runs {
                all[0].push(us(How::Glibc, "read-64K")?);
                all[1].push(us(How::Glibc, "fread-64K")?);
                all[2].push(us(How::Preloaded, "fread-64K")?);
            }
            let pairs = all[2].iter().zip(&all[1]);
            let ratios: Vec<f64> = pairs.map(|(ours, glibc)| ours / glibc).collect();
            table.row([
                format!("{bytes} bytes"),
                spread(&all[0], 1),
                spread(&all[1], 1),
                spread(&all[2], 1),
                spread(&ratios, 2),
            ]);
        }
        table.print();
        Ok(())
    }
}

fn parse(said: &str) -> Option<Figures> {
    let words: Vec<&str> = said.split_whitespace().collect();
    let [bytes, _, processor_ms, ms, blocks, kib] = words[..] else {
        return None;
    };
    Some(Figures {
        bytes: bytes.parse().ok()?,
        processor_ms: processor_ms.parse().ok()?,
        ms: ms.parse().ok()?,
        blocks: blocks.parse().ok()?,
        kib: kib.parse().ok()?,
    })
}
