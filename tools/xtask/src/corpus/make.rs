//! What the jobs need before they run: built programs, generated inputs, a compiler for all users.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::jobs::{Input, Job};
use crate::proc;
use crate::setup::SYSTEM_PYTHON;
use crate::world::{World, which};

/// What a job's command names, and the command that makes it.
const COMPILED: &[(&str, &str)] = &[
    (
        "hsjob",
        "ghc -v0 -O1 -threaded -outputdir {bin}/haskell -o {bin}/hsjob {src}/haskell/Job.hs",
    ),
    ("-run job main", "erlc -o {bin} {src}/erlang/job.erl"),
    ("Job.exe", "mcs -out:{bin}/Job.exe {src}/mono/Job.cs"),
    (
        "mljob",
        "ocamlopt -I +threads unix.cmxa threads.cmxa -o {bin}/mljob {src}/ocaml/job.ml",
    ),
    (
        "winjob",
        "x86_64-w64-mingw32-gcc -O2 -Wall -Wextra -Werror -o {bin}/winjob.exe {src}/win/job.c",
    ),
    (
        "fibers",
        "g++ -O2 -Wall -Wextra -Werror -o {bin}/fibers {src}/boost/job.cpp -lboost_context",
    ),
    (
        "pthjob",
        "gcc -O2 -Wall -Wextra -Werror -o {bin}/pthjob {src}/pth/job.c -lpth",
    ),
    (
        "mpijob",
        "mpicc -O2 -Wall -Wextra -Werror -o {bin}/mpijob {src}/mpi/job.c",
    ),
    (
        "contexts-asan",
        "gcc -O1 -fsanitize=address -o {bin}/contexts-asan {src}/c/contexts.c",
    ),
];

/// Folders that stand for the words in braces of a job's command.
pub(crate) struct Places {
    src: PathBuf,
    bin: PathBuf,
    input: PathBuf,
    rustc: PathBuf,
    python: PathBuf,
}

impl Places {
    /// Builds what is built once for the jobs in `jobs`.
    pub(crate) fn make(world: &World, jobs: &[&Job]) -> Result<Self> {
        let src = world.scratch("src")?;
        copy_tree(&world.root.join("corpus"), &src)?;
        let places = Self {
            bin: world.scratch("bin")?,
            input: world.scratch("in")?,
            rustc: world.scratch("rust")?.join("bin/rustc"),
            python: world.python(),
            src,
        };
        let uses = |word: &str| jobs.iter().any(|j| j.command.contains(word));
        places.c_programs()?;
        if uses("gojob") {
            places.go(world)?;
        }
        if uses("java ") {
            let mut javac = Command::new("javac");
            javac
                .arg("-d")
                .arg(&places.bin)
                .arg(places.src.join("java/Job.java"));
            proc::output(&mut javac, "javac")?;
        }
        for (program, compile) in COMPILED {
            if uses(program) {
                places.compile(compile)?;
            }
        }
        if uses("redis_job") && which("redis-server").is_none() {
            let link = places.bin.join("redis-server");
            let _ = fs::remove_file(&link);
            let program = which("redis-check-rdb").context("no redis-check-rdb")?;
            std::os::unix::fs::symlink(program, link)?;
        }
        if uses("{rustc}") && !places.rustc.exists() {
            places.rust()?;
        }
        Ok(places)
    }

    /// The PATH of the runs.
    pub(crate) fn path(&self) -> String {
        let node = which("node").and_then(|p| Some(p.parent()?.to_path_buf()));
        let java = which("java").and_then(|p| Some(p.parent()?.to_path_buf()));
        let mut dirs: Vec<String> = vec![self.bin.display().to_string()];
        dirs.extend(["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin"].map(String::from));
        dirs.extend(
            [node, java]
                .into_iter()
                .flatten()
                .map(|p| p.display().to_string()),
        );
        dirs.join(":")
    }

    /// The job's command, words filled in.
    pub(crate) fn command(&self, job: &Job, mib: u32) -> Vec<String> {
        let sized = |word: &str| {
            word.replace("{mib}", &mib.to_string())
                .replace("{half}", &(mib / 2).to_string())
        };
        let words = job.command.split_whitespace();
        words.map(|word| self.fill(&sized(word))).collect()
    }

    /// A word of a command, with the folders and programs that it stands for.
    fn fill(&self, word: &str) -> String {
        word.replace("{py}", &self.python.display().to_string())
            .replace("{syspy}", SYSTEM_PYTHON)
            .replace("{src}", &self.src.display().to_string())
            .replace("{bin}", &self.bin.display().to_string())
            .replace("{in}", &self.input.display().to_string())
            .replace("{rustc}", &self.rustc.display().to_string())
    }

    /// Generates the job's input unless it lies there from an earlier call.
    pub(crate) fn input(&self, job: &Job, mib: u32) -> Result<()> {
        let at = |name: &str, ext: &str| self.input.join(format!("{name}-{mib}{ext}"));
        match job.input {
            Input::None => Ok(()),
            Input::Lines => once(&at("lines", ""), |p| lines(p, mib)),
            Input::Tree => once(&at("tree", ""), |p| tree(p, mib)),
            Input::CSource => once(&at("source", ".c"), |p| c_source(p, mib)),
            Input::RustSource => once(&at("source", ".rs"), |p| rust_source(p, mib)),
        }
    }

    fn c_programs(&self) -> Result<()> {
        for entry in fs::read_dir(self.src.join("c"))? {
            let source = entry?.path();
            if source.extension().is_none_or(|e| e != "c") {
                continue;
            }
            let name = source
                .file_stem()
                .context("no name")?
                .to_string_lossy()
                .into_owned();
            for (suffix, extra) in [("", None), ("-static", Some("-static"))] {
                let mut gcc = Command::new("gcc");
                gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread"])
                    .args(extra);
                gcc.arg("-o")
                    .arg(self.bin.join(format!("{name}{suffix}")))
                    .arg(&source);
                proc::output(&mut gcc, "gcc")?;
            }
        }
        Ok(())
    }

    fn compile(&self, command: &str) -> Result<()> {
        let words: Vec<String> = command.split(' ').map(|word| self.fill(word)).collect();
        let mut compiler = Command::new(&words[0]);
        compiler.args(&words[1..]);
        proc::output(&mut compiler, &words[0]).map(drop)
    }

    fn go(&self, world: &World) -> Result<()> {
        let mut go = Command::new(which("go").context("no go")?);
        go.args(["build", "-trimpath", "-o"])
            .arg(self.bin.join("gojob"))
            .arg(".");
        go.current_dir(self.src.join("go"))
            .env("CGO_ENABLED", "0")
            .env("GOFLAGS", "-mod=mod");
        go.env("GOCACHE", world.scratch("gocache")?)
            .env("GOTOOLCHAIN", "local");
        proc::output(&mut go, "go build").map(drop)
    }

    /// Links (or copies) the compiler out of the user's home, where others may not read it.
    fn rust(&self) -> Result<()> {
        let mut rustc = Command::new("rustc");
        let sysroot = proc::output(rustc.args(["--print", "sysroot"]), "rustc --print sysroot")?;
        let (from, to) = (PathBuf::from(sysroot.trim()), self.rustc.ancestors().nth(2));
        let to = to.context("no folder for rustc")?;
        copy_tree(&from.join("lib"), &to.join("lib"))?;
        fs::create_dir_all(to.join("bin"))?;
        link_or_copy(&from.join("bin/rustc"), &self.rustc)
    }
}

/// Makes `path` by `make` under another name first, so that half-made inputs are never used.
fn once(path: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let half = path.with_file_name("half-made");
    let _ = fs::remove_dir_all(&half);
    make(&half).with_context(|| format!("cannot make the input {}", path.display()))?;
    Ok(fs::rename(half, path)?)
}

fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    let _ = fs::remove_file(to);
    if fs::hard_link(from, to).is_err() {
        fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(())
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("no {}", from.display()))? {
        let entry = entry?;
        let (path, goal) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_tree(&path, &goal)?;
        } else {
            link_or_copy(&path, &goal)?;
        }
    }
    Ok(())
}

/// Repeatable numbers (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}

fn lines(path: &Path, mib: u32) -> Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    let (mut numbers, mut left) = (Numbers(1), i64::from(mib) << 20);
    while left > 0 {
        let line = format!(
            "{:016x} line {}\n",
            numbers.next(),
            numbers.next() % 100_000
        );
        left -= i64::try_from(line.len())?;
        out.write_all(line.as_bytes())?;
    }
    Ok(out.flush()?)
}

/// Files of 0 to 512 KiB in folders; a third of them does not compress.
fn tree(path: &Path, mib: u32) -> Result<()> {
    let (mut numbers, mut left, mut at) = (Numbers(2), i64::from(mib) << 20, 0);
    while left > 0 {
        let dir = path.join(format!("dir {}", at / 40));
        fs::create_dir_all(&dir)?;
        let (len, random) = (numbers.next() % (512 << 10), at % 3 == 0);
        let word = |i: u64, n: &mut Numbers| if random { n.next() } else { i / 9 };
        let bytes: Vec<u8> = (0..len / 8)
            .flat_map(|i| word(i, &mut numbers).to_le_bytes())
            .collect();
        left -= i64::try_from(bytes.len())? + 4096;
        fs::write(dir.join(format!("file-{at}")), bytes)?;
        at += 1;
    }
    Ok(())
}

fn c_source(path: &Path, mib: u32) -> Result<()> {
    let (mut text, mut n) = (String::from("#include <stdint.h>\n"), Numbers(3));
    for f in 0..mib * 10 {
        let (a, b, c) = (n.next() % 1000, n.next() % 60 + 1, n.next() % 7 + 2);
        write!(
            text,
            "uint64_t f{f}(uint64_t x, const uint64_t *p) {{\n\
             \x20   for (int i = 0; i < {c}; i++)\n\
             \x20       x = x * {a}u ^ (x >> {b}) ^ p[i] + (x > {a} ? p[i + 1] : x / (p[i] | 1));\n\
             \x20   switch (x % 5) {{ case 0: return x + {a}; case 1: return x ^ p[{b}];\n\
             \x20   case 2: return f{g}(x, p); default: return x; }}\n}}\n",
            g = if f == 0 { 0 } else { f - 1 },
        )?;
    }
    Ok(fs::write(path, text)?)
}

fn rust_source(path: &Path, mib: u32) -> Result<()> {
    let (mut text, mut n) = (String::new(), Numbers(4));
    for f in 0..mib * 10 {
        let (a, b) = (n.next() % 1000, n.next() % 30 + 1);
        write!(
            text,
            "pub struct S{f} {{ pub a: Vec<u64>, pub b: String }}\n\
             impl S{f} {{\n    pub fn go(&mut self, x: u64) -> Option<u64> {{\n\
             \x20       self.a.iter_mut().for_each(|v| *v = v.rotate_left({b}) ^ x);\n\
             \x20       self.b.push_str(&format!(\"{{x}} {{}}\", {a}));\n\
             \x20       self.a.iter().copied().filter(|v| v % {b} == 0).map(|v| v + {a}).max()\n\
             \x20   }}\n}}\n",
        )?;
    }
    Ok(fs::write(path, text)?)
}
