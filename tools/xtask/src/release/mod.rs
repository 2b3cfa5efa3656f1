//! `cargo xtask release`: everything that is handed out, built from a clean clone of HEAD.

mod deb;
mod names;
mod notices;
mod sbom;
mod source;
mod strip;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::proc;
use crate::table::Table;
use crate::world::World;

pub(crate) use names::{Artefacts, artefacts};

/// The version that is released.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The command, stripped, stays below this.
const COMMAND_BYTES_MAX: u64 = 20_000_000;

/// Smaller programs for a longer build: set for a release alone.
const SMALLER: &[(&str, &str)] = &[
    ("CARGO_PROFILE_RELEASE_LTO", "thin"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
];

/// Where a release of this tree goes without `--out`.
pub(crate) fn folder(world: &World) -> PathBuf {
    world.root.join("dist").join(VERSION)
}

/// Builds all of it into `--out`, and prints what was made and how long that took.
pub(crate) fn release(world: &World, mut args: Args) -> Result<()> {
    let out = args.value("--out")?;
    args.finish()?;
    let out = std::path::absolute(out.map_or_else(|| folder(world), PathBuf::from))?;
    let mut steps = Steps::default();
    let scratch = world.scratch("release")?;
    let source = steps.take("clone", || source::clone(world, &scratch.join("source")))?;
    let made = artefacts(&out, VERSION);
    made.empty()?;

    let build = Build {
        source: &source,
        target: scratch.join("target"),
    };
    let prefix = scratch.join("prefix");
    let symbols = scratch.join("symbols").join(made.symbols_name());
    steps.take("command", || build.command())?;
    steps.take("library for C", || build.library(&prefix))?;
    tree::fill(&prefix, &build.target.join("release/farpage"))?;
    steps.take("strip", || strip::apart(&prefix, &symbols))?;
    small_enough(&prefix.join("bin/farpage"))?;
    steps.take("wheel", || build.wheel(&made.folder))?;

    let linked = sbom::linked(&source)?;
    let notices = steps.take("licences", || notices::collect(&linked))?;
    let bom = sbom::document(&linked, VERSION, &source.date);
    fs::write(&made.sbom, serde_json::to_string_pretty(&bom)? + "\n")?;

    let parts = tree::Parts {
        prefix: &prefix,
        source: &source,
        notices: &notices,
    };
    let root = scratch.join("tar").join(made.tree_name());
    steps.take("tar", || {
        tree::relocatable(&parts, &root)?;
        tar(&root, &made.tar, &source.epoch)
    })?;
    steps.take("symbols", || tar(&symbols, &made.symbols, &source.epoch))?;
    let root = scratch.join("deb");
    steps.take("deb", || deb::build(&parts, &root, &made.deb))?;
    fs::write(&made.sums, sums(&made)?)?;
    print(&made, &steps)
}

fn small_enough(command: &Path) -> Result<()> {
    let bytes = fs::metadata(command)?.len();
    if bytes >= COMMAND_BYTES_MAX {
        bail!(
            "the stripped command has {bytes} bytes, and must have less than {COMMAND_BYTES_MAX}; \
             see what is large with: nm --size-sort --print-size target/release/farpage"
        );
    }
    Ok(())
}

/// `folder`, with its name, as a tar file of which all dates are `epoch` and all files root's.
fn tar(folder: &Path, to: &Path, epoch: &str) -> Result<()> {
    let parent = folder.parent().context("a folder lies in one")?;
    let name = folder.file_name().context("a folder has a name")?;
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.args(["--format=gnu", "--mode=u+rw,go=rX"]);
    tar.arg(format!("--mtime=@{epoch}"));
    tar.args(["--use-compress-program", "gzip -9n", "--create", "--file"]);
    tar.arg(to).arg("--directory").arg(parent).arg(name);
    proc::output(&mut tar, "tar").map(drop)
}

/// What cargo builds, in the clone, with its own `xtask`.
struct Build<'a> {
    source: &'a source::Source,
    target: PathBuf,
}

impl Build<'_> {
    fn cargo(&self, args: &[&str]) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.args(args).current_dir(&self.source.root);
        cargo.env("CARGO_TARGET_DIR", &self.target);
        cargo.env("SOURCE_DATE_EPOCH", &self.source.epoch);
        for flags in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
            cargo.env_remove(flags);
        }
        cargo.envs(SMALLER.iter().copied());
        cargo
    }

    fn command(&self) -> Result<()> {
        let args = ["build", "--release", "--locked", "--quiet"];
        let mut cargo = self.cargo(&args);
        cargo.args(["--package", "farpage-cli"]);
        proc::must(&mut cargo, "cargo build of the command")
    }

    fn library(&self, prefix: &Path) -> Result<()> {
        tree::anew(prefix)?;
        let mut cargo = self.cargo(&["xtask", "install-c", "--prefix"]);
        proc::must(cargo.arg(prefix), "cargo xtask install-c")
    }

    fn wheel(&self, out: &Path) -> Result<()> {
        let mut cargo = self.cargo(&["xtask", "wheel", "--out"]);
        proc::must(cargo.arg(out), "cargo xtask wheel")
    }
}

/// How long each step took.
#[derive(Default)]
struct Steps(Vec<(&'static str, Duration)>);

impl Steps {
    fn take<T>(&mut self, name: &'static str, step: impl FnOnce() -> Result<T>) -> Result<T> {
        println!("release: {name}");
        let began = Instant::now();
        let made = step()?;
        self.0.push((name, began.elapsed()));
        Ok(made)
    }
}

/// `SHA256SUMS`: as `sha256sum --check` reads it.
fn sums(made: &Artefacts) -> Result<String> {
    let names: Result<Vec<String>> = made.files()?.iter().map(|file| name_of(file)).collect();
    let mut sum = Command::new("sha256sum");
    sum.args(names?).current_dir(&made.folder);
    proc::output(&mut sum, "sha256sum")
}

fn name_of(file: &Path) -> Result<String> {
    let name = file.file_name().context("an artefact has a name")?;
    Ok(name.to_string_lossy().into_owned())
}

/// The closing tables: files, and steps.
fn print(made: &Artefacts, steps: &Steps) -> Result<()> {
    let sums = fs::read_to_string(&made.sums)?;
    let mut files = Table::new(["file", "bytes", "SHA-256"]);
    for file in made.files()? {
        let name = name_of(&file)?;
        let sum = sums.lines().find(|line| line.ends_with(&name));
        let sum = sum.and_then(|line| line.get(..12)).unwrap_or_default();
        let bytes = fs::metadata(&file)?.len().to_string();
        files.row([name, bytes, sum.to_owned()]);
    }
    let mut times = Table::new(["step", "seconds"]);
    for (name, took) in &steps.0 {
        times.row([(*name).to_owned(), format!("{:.1}", took.as_secs_f64())]);
    }
    println!();
    files.print();
    println!();
    times.print();
    println!(
        "\nrelease: farpage {VERSION} is in {}",
        made.folder.display()
    );
    Ok(())
}
