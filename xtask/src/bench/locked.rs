//! `bench locked`: locking and registering memory, first and again, beside what Linux has and UCX's cache.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result};
use farpage_test_machine::{HugePages, Machine};

use super::{figures, spread, truth};
use crate::args::Args;
use crate::proc;
use crate::table::{Table, median};
use crate::world::{World, machine};

/// 2 MiB each: what the largest area takes, and some more.
const HUGE: u64 = 520;

/// What `farpage-bench locked` and `hits` and the peer print: words that say of what, and figures.
struct Line {
    words: Vec<String>,
    figures: Vec<f64>,
}

/// Figures of all runs by their words.
type All = BTreeMap<Vec<String>, Vec<Vec<f64>>>;

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    if args.flag("--truth") {
        args.finish()?;
        return truth::bench(world);
    }
    let runs: u32 = args.number("--runs", 5)?;
    args.finish()?;
    let runs = runs.to_string();
    println!("{}", machine());
    let huge = huge_pages();
    let sizes = figures(world, &[], &["locked", "--runs", &runs], parse)?;
    drop(huge);
    let sizes = sorted(sizes);
    println!("\nus to lock or register, and to give up; median (least-most) of {runs} runs.");
    let mut table = Table::new([
        "memory",
        "size",
        "how",
        "first",
        "give up",
        "beside Linux's",
    ]);
    for memory in ["private", "shared", "huge"] {
        for bytes in [4096, 64 << 10, 1 << 20, 16 << 20, 1 << 30] {
            sizes_of(&sizes, memory, bytes, &mut table);
        }
    }
    table.print();
    let mut lines = figures(world, &[], &["hits", "--runs", &runs], parse)?;
    match peer(world, &runs) {
        Ok(of_peer) => lines.extend(of_peer),
        Err(why) => println!("\nUCX: not measured; {why:#}"),
    }
    let hits = sorted(lines);
    println!(
        "\nns to find a registration again and to put it back: one of so many pages, at random."
    );
    let mut table = Table::new(["regions", "threads", "farpage", "UCX", "farpage beside UCX"]);
    for regions in ["1", "10000", "100000"] {
        for threads in ["1", "2"] {
            let of = |who: &str| -> Vec<f64> {
                let words = ["hit", who, regions, threads].map(str::to_owned);
                let all = hits.get(words.as_slice()).into_iter().flatten();
                all.map(|figures| figures[0]).collect()
            };
            let (ours, ucx) = (of("farpage"), of("ucx"));
            let ratio = match ucx.is_empty() {
                true => "-".to_owned(),
                false => format!("{:.2}", median(&ours) / median(&ucx)),
            };
            let ucx = if ucx.is_empty() {
                "-".to_owned()
            } else {
                spread(&ucx, 1)
            };
            table.row([regions.into(), threads.into(), spread(&ours, 1), ucx, ratio]);
        }
    }
    table.print();
    Ok(())
}

/// Rows of one size of one kind of memory: each of ours beside what it asks of Linux.
fn sizes_of(all: &All, memory: &str, bytes: u64, table: &mut Table) {
    let ways = [
        ("mlock", "mlock", ""),
        ("resident", "lock_area", "mlock"),
        ("io_uring", "io_uring's buffers", ""),
        ("pinned", "lock_area, pinned", "both"),
        ("nested", "the same, locked already", ""),
        ("ring-cache", "cache, of a ring", "io_uring"),
        ("cache", "cache", "io_uring"),
        ("cache-hit", "cache, again", ""),
    ];
    let of = |way: &str, step: usize| -> Vec<f64> {
        let words = [way, memory, &bytes.to_string()].map(str::to_owned);
        let all = all.get(words.as_slice()).into_iter().flatten();
        all.map(|figures| figures[step]).collect()
    };
    for (way, name, beside) in ways {
        let first = of(way, 0);
        if first.is_empty() {
            continue;
        }
        let bare = match beside {
            "both" => median(&of("mlock", 0)) + median(&of("io_uring", 0)),
            "" => 0.0,
            one => median(&of(one, 0)),
        };
        let ratio = match bare {
            0.0 => String::new(),
            bare => format!("{:.2}", median(&first) / bare),
        };
        let give_up = match way {
            "cache-hit" => String::new(),
            _ => spread(&of(way, 1), 2),
        };
        let size = match bytes {
            mib if mib >= 1 << 20 => format!("{} MiB", mib >> 20),
            kib => format!("{} KiB", kib >> 10),
        };
        let digits = if way == "cache-hit" { 3 } else { 2 };
        table.row([
            memory.into(),
            size,
            name.into(),
            spread(&first, digits),
            give_up,
            ratio,
        ]);
    }
}

fn sorted(lines: Vec<Line>) -> All {
    let mut all = All::new();
    for line in lines {
        all.entry(line.words).or_default().push(line.figures);
    }
    all
}

/// Runs UCX's cache on the same regions.
fn peer(world: &World, runs: &str) -> Result<Vec<Line>> {
    let program = world.scratch("bench")?.join("rcache");
    let mut compile = Command::new("gcc");
    compile
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program);
    compile.arg(world.root.join("bench/peers/rcache.c"));
    compile.args(["-lucs", "-lucm", "-lpthread"]);
    proc::output(&mut compile, "rcache").context("as root: apt-get install libucx-dev")?;
    let text = proc::output(Command::new(&program).arg(runs), "rcache")?;
    let line = |line| parse(line).with_context(|| format!("not a line of figures: {line}"));
    text.lines().map(line).collect()
}

fn parse(line: &str) -> Option<Line> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let figures = if words.first() == Some(&"hit") { 4 } else { 3 };
    let (words, rest) = words.split_at_checked(figures)?;
    let figures: Result<Vec<f64>, _> = rest.iter().map(|word| word.parse()).collect();
    Some(Line {
        words: words.iter().map(|word| (*word).to_owned()).collect(),
        figures: figures.ok().filter(|figures| !figures.is_empty())?,
    })
}

/// So many huge pages as the bench needs, if they can be had; given back at the end.
fn huge_pages() -> Option<HugePages> {
    let huge = Machine::take().and_then(|machine| machine.huge_pages(HUGE));
    huge.inspect_err(|why| println!("Huge pages: not measured; {why:#}"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_line_of_figures_is_read() {
        let line = parse("mlock private 4096 0.5 0.25").unwrap();
        assert_eq!((line.words.len(), line.figures), (3, vec![0.5, 0.25]));
        let line = parse("hit ucx 10000 2 162.28").unwrap();
        assert_eq!((line.words.len(), line.figures), (4, vec![162.28]));
        assert!(parse("hit ucx 10000 2").is_none() && parse("mlock").is_none());
    }
}
