//! `bench fault`: what one page fault costs, beside the bare kernel primitive, a minimal handler
//! and other people's user-space paging.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::spread;
use crate::args::Args;
use crate::proc;
use crate::table::{Table, median};
use crate::world::{World, machine};

/// Faulting threads of the scaling table.
const THREADS: &[u32] = &[1, 2, 4, 8];

/// One line that a bench program printed: `mode threads pin faults p50_ns p99_ns kfaults_per_s`.
struct Line {
    who: String,
    threads: u32,
    pinned: bool,
    p50_us: f64,
    p99_us: f64,
    kfaults_per_s: f64,
}

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let pages: u32 = args.number("--pages", 16384)?;
    args.finish()?;
    let fault = compile(world, "fault")?;
    println!("{}", machine());
    let mut lines = Vec::new();
    let mut measure = |mode: &str, threads: u32, pin: bool, who: &str| -> Result<()> {
        let mut command = Command::new(&fault);
        command
            .arg(mode)
            .arg(threads.to_string())
            .arg(u32::from(pin).to_string());
        command.arg(pages.to_string()).arg(runs.to_string());
        lines.extend(read(&mut command, Some(who))?);
        Ok(())
    };
    measure("copy", 1, true, "UFFDIO_COPY alone")?;
    measure("follow", 1, true, "minimal handler, follows")?;
    for &threads in THREADS {
        measure("follow", threads, false, "minimal handler, follows")?;
        measure("percpu", threads, false, "minimal handlers, one per CPU")?;
    }
    lines.extend(ours(world, runs, pages)?);
    lines.extend(random_reads(world, &fault)?);
    lines.extend(umap()?);
    print(&merged(lines));
    Ok(())
}

/// `bench cache`: a page-in from the cache on disk, which the page cache has, beside pread(2) and
/// `UFFDIO_COPY`.
pub(crate) fn bench_cache(world: &World, mut args: Args) -> Result<()> {
    /// Times the time of the peer.
    const TO_REACH: f64 = 1.5;
    let runs: u32 = args.number("--runs", 5)?;
    let pages: u32 = args.number("--pages", 16384)?;
    args.finish()?;
    let fault = compile(world, "fault")?;
    world.build_release()?;
    println!("{}", machine());
    println!("{pages} pages of 4 KiB, each once in random order, one thread, {runs} runs in turn");
    let numbers = [pages.to_string(), "1".to_owned()];
    let mut lines = Vec::new();
    let mut ratios = Vec::new();
    for _ in 0..runs {
        for (mode, who) in [
            ("copy-file", "pread and UFFDIO_COPY alone"),
            ("follow-file", "minimal handler, pread and copy"),
        ] {
            let mut command = Command::new(&fault);
            command.args([mode, "1", "0"]).args(&numbers);
            lines.extend(read(&mut command, Some(who))?);
        }
        let mut ours = Command::new(world.release_dir()?.join("farpage-bench"));
        ours.args(["cache", "--runs", "1", "--pages", &numbers[0]]);
        lines.extend(read(&mut ours, None)?);
        if let [.., minimal, ours] = lines.as_slice() {
            ratios.push(ours.p50_us / minimal.p50_us);
        }
    }
    print(&merged(lines));
    let reached = median(&ratios) <= TO_REACH;
    println!(
        "\na page-in from the cache takes {} times that of the minimal handler; to reach {TO_REACH}: {}",
        spread(&ratios, 2),
        if reached { "yes" } else { "NO" }
    );
    Ok(())
}

/// `farpage-bench fault`, when it is built: it prints lines of the same form, its own names first.
fn ours(world: &World, runs: u32, pages: u32) -> Result<Vec<Line>> {
    world.build_release()?;
    let program = world.release_dir()?.join("farpage-bench");
    let mut help = Command::new(&program);
    let knows = help.arg("--help").output();
    if !knows.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("fault")) {
        println!("skipped: farpage-bench has no `fault` yet");
        return Ok(Vec::new());
    }
    let mut command = Command::new(&program);
    command.args([
        "fault",
        "--runs",
        &runs.to_string(),
        "--pages",
        &pages.to_string(),
    ]);
    read(&mut command, None)
}

/// Random reads of a program under `farpage run`, three quarters of it paged out.
fn random_reads(world: &World, fault: &Path) -> Result<Vec<Line>> {
    let farpage = match world.farpage() {
        Ok(path) => path,
        Err(e) => {
            println!("skipped: random reads under farpage: {e:#}");
            return Ok(Vec::new());
        }
    };
    let mut lines = Vec::new();
    for pin in ["0", "1"] {
        let mut command = Command::new(&farpage);
        command.args(["run", "--ram", "128M", "--"]);
        if pin == "1" {
            command.args(["taskset", "-c", "0"]);
        }
        command
            .arg(fault)
            .args(["read", "1", pin, "131072", "20000"]);
        lines.extend(read(&mut command, Some("farpage run, random reads"))?);
    }
    Ok(lines)
}

/// LLNL UMap: `$FARPAGE_UMAP` is a program that reads 4 KiB at random through UMap and prints lines
/// of the same form.
fn umap() -> Result<Vec<Line>> {
    match std::env::var_os("FARPAGE_UMAP") {
        Some(path) => read(&mut Command::new(path), Some("UMap, random reads")),
        None => {
            println!("skipped: UMap, FARPAGE_UMAP does not name its program");
            Ok(Vec::new())
        }
    }
}

/// Compiles `tools/bench/c/NAME.c`.
pub(super) fn compile(world: &World, name: &str) -> Result<PathBuf> {
    let program = world.scratch("bench")?.join(name);
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program);
    gcc.arg(world.root.join("tools/bench/c").join(format!("{name}.c")));
    proc::output(&mut gcc, "gcc")?;
    Ok(program)
}

/// Several runs of the same thing become one line of medians.
fn merged(lines: Vec<Line>) -> Vec<Line> {
    let mut groups: Vec<Vec<Line>> = Vec::new();
    for line in lines {
        let same = |g: &&mut Vec<Line>| {
            (&g[0].who, g[0].threads, g[0].pinned) == (&line.who, line.threads, line.pinned)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(line),
            None => groups.push(vec![line]),
        }
    }
    let one = |group: Vec<Line>| {
        let middle = |of: fn(&Line) -> f64| median(&group.iter().map(of).collect::<Vec<_>>());
        Line {
            p50_us: middle(|l| l.p50_us),
            p99_us: middle(|l| l.p99_us),
            kfaults_per_s: middle(|l| l.kfaults_per_s),
            who: group[0].who.clone(),
            ..group[0]
        }
    };
    groups.into_iter().map(one).collect()
}

/// Lines of `command`; `who` replaces the first word, which otherwise is the name.
fn read(command: &mut Command, who: Option<&str>) -> Result<Vec<Line>> {
    let name = format!("{command:?}");
    let text = proc::output(command, &name)?;
    let line = |l: &str| parse(l, who).with_context(|| format!("not a line of figures: {l}"));
    text.lines().filter(|l| !l.is_empty()).map(line).collect()
}

fn parse(line: &str, who: Option<&str>) -> Option<Line> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, threads, pin, _faults, p50, p99, rate] = words.as_slice() else {
        return None;
    };
    let us = |ns: &str| Some(ns.parse::<f64>().ok()? / 1000.0);
    Some(Line {
        who: who.map_or_else(|| name.replace('_', " "), String::from),
        threads: threads.parse().ok()?,
        pinned: *pin == "1",
        p50_us: us(p50)?,
        p99_us: us(p99)?,
        kfaults_per_s: rate.parse().ok()?,
    })
}

fn print(lines: &[Line]) {
    let mut table = Table::new([
        "",
        "threads",
        "pinned",
        "p50 us",
        "p99 us",
        "thousand/s",
        "p50 : minimal",
        "rate : minimal",
    ]);
    for line in lines {
        let like = |m: &&Line| {
            m.who.starts_with("minimal") && m.threads == line.threads && m.pinned == line.pinned
        };
        let minimal = || lines.iter().filter(like);
        let p50 = minimal().map(|m| m.p50_us).reduce(f64::min);
        let rate = minimal().map(|m| m.kfaults_per_s).reduce(f64::max);
        let ratio = |ours: f64, best: Option<f64>| {
            best.map_or_else(String::new, |b| format!("{:.2}", ours / b))
        };
        table.row([
            line.who.clone(),
            line.threads.to_string(),
            if line.pinned { "yes" } else { "no" }.to_owned(),
            format!("{:.2}", line.p50_us),
            format!("{:.2}", line.p99_us),
            format!("{:.0}", line.kfaults_per_s),
            ratio(line.p50_us, p50),
            ratio(line.kfaults_per_s, rate),
        ]);
    }
    table.print();
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_line_of_figures_is_read() {
        let line = parse("in_thread 2 1 1000 3000 9500 410.5", None).unwrap();
        assert_eq!(
            (line.who.as_str(), line.threads, line.pinned),
            ("in thread", 2, true)
        );
        assert_eq!(
            (line.p50_us, line.p99_us, line.kfaults_per_s),
            (3.0, 9.5, 410.5)
        );
        assert!(parse("nonsense", None).is_none());
    }
}
