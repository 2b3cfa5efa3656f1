//! `cargo xtask fuzz`: parsers of what others wrote, given anything, by libFuzzer.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::proc;
use crate::world::World;

/// Coverage as libFuzzer needs it, with AddressSanitizer.
const FLAGS: &[&str] = &[
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "-Zsanitizer=address",
];
/// Named, so that build scripts are not instrumented.
const HOST: &str = "x86_64-unknown-linux-gnu";
/// How long a target may take to start and to end beside the time asked for.
const GRACE: Duration = Duration::from_secs(120);

/// Entry point.
pub(crate) fn fuzz(world: &World, mut args: Args) -> Result<()> {
    let seconds: u64 = args.number("--seconds", 10)?;
    let lists = args.flag("--list");
    let mut wanted = Vec::new();
    while let Some(target) = args.word() {
        wanted.push(target);
    }
    args.finish()?;
    if seconds == 0 {
        bail!("--seconds 0 would run without an end");
    }
    let program = build(world)?;
    let mut list = Command::new(&program);
    let list = proc::output(list.env("FARPAGE_FUZZ", "list"), "farpage-fuzz")?;
    let all: Vec<&str> = list.lines().collect();
    if lists {
        all.iter().for_each(|name| println!("{name}"));
        return Ok(());
    }
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(&name.as_str())) {
        bail!("no fuzz target {unknown}; there are {}", all.join(" "));
    }
    for name in all {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            run(world, &program, name, seconds)?;
        }
    }
    Ok(())
}

fn build(world: &World) -> Result<PathBuf> {
    let target = world.target_dir()?.join("fuzz");
    let mut cargo = Command::new("cargo");
    cargo.args([
        "build",
        "--release",
        "--quiet",
        "--locked",
        "--target",
        HOST,
    ]);
    cargo
        .arg("--manifest-path")
        .arg(world.root.join("tools/fuzz/Cargo.toml"));
    cargo.arg("--target-dir").arg(&target);
    // The sanitizer is in the stable compiler, but asking for it is not stable.
    cargo.env("RUSTC_BOOTSTRAP", "1");
    cargo.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"));
    proc::must(&mut cargo, "cargo build of fuzz/ (it needs g++)")?;
    Ok(target.join(HOST).join("release/farpage-fuzz"))
}

/// Fuzzes one target; its corpus is kept for the next time.
fn run(world: &World, program: &Path, name: &str, seconds: u64) -> Result<()> {
    let corpus = world.scratch(&format!("fuzz/{name}/corpus"))?;
    let findings = world.scratch(&format!("fuzz/{name}/findings"))?;
    let log = findings.with_file_name("log");
    let mut command = Command::new(program);
    command.arg(&corpus).args([
        format!("-max_total_time={seconds}"),
        format!("-artifact_prefix={}/", findings.display()),
        "-max_len=16384".into(),
        "-timeout=10".into(),
        "-rss_limit_mb=2048".into(),
        "-detect_leaks=0".into(), // it needs ptrace, which containers forbid
        "-print_final_stats=1".into(),
    ]);
    command
        .env("FARPAGE_FUZZ", name)
        .env("FARPAGE_FUZZ_SEEDS", &corpus);
    let file = File::create(&log).with_context(|| format!("{}", log.display()))?;
    command.stdout(file.try_clone()?).stderr(file);
    let limit = Duration::from_secs(seconds) + GRACE;
    let outcome = proc::run(&mut command, limit, false)?;
    let said = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    if !outcome.status.success() {
        let lines: Vec<&str> = said.lines().filter(|l| !l.starts_with('#')).collect();
        eprintln!("{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        bail!(
            "{name}: {}; {}",
            outcome.ending(),
            finding(&said, name, program, &log)
        );
    }
    let inputs = fs::read_dir(&corpus)?.count();
    let runs = number(&said, "stat::number_of_executed_units:");
    let runs = runs.with_context(|| format!("no count of runs in {}", log.display()))?;
    println!("{name}: {seconds} s, {runs} runs, {inputs} inputs kept, no finding");
    Ok(())
}

/// Where the input is that did it, and how to replay it.
fn finding(said: &str, name: &str, program: &Path, log: &Path) -> String {
    let path = said
        .lines()
        .find_map(|l| l.split_once("Test unit written to ").map(|(_, p)| p));
    match path {
        Some(path) => format!(
            "the input is {path}; replay: FARPAGE_FUZZ={name} {} {path}",
            program.display()
        ),
        None => format!("it left no input; see {}", log.display()),
    }
}

fn number(said: &str, after: &str) -> Option<u64> {
    said.lines()
        .find_map(|l| l.strip_prefix(after)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_of_a_finding_is_named() {
        let said = "==1== ERROR\nartifact_prefix='/x/'; Test unit written to /x/crash-1\n";
        let text = finding(said, "npy", Path::new("/f"), Path::new("/log"));
        assert!(text.contains("FARPAGE_FUZZ=npy /f /x/crash-1"), "{text}");
        assert!(finding("", "npy", Path::new("/f"), Path::new("/log")).contains("/log"));
    }

    #[test]
    fn the_runs_are_counted() {
        let said = "Done\nstat::number_of_executed_units: 8371\n";
        assert_eq!(number(said, "stat::number_of_executed_units:"), Some(8371));
        assert_eq!(number("Done", "stat::number_of_executed_units:"), None);
    }
}
