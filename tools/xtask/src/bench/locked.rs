//! `bench locked`: locking and registering memory, first and again, by one process and by several, beside
//! what Linux has and UCX's cache.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use farpage_testkit::{HugePages, Machine};

use super::bounds::{Asserts, Bound, quotients};
use super::{figures, locked_io, program, spread, truth};
use crate::args::Args;
use crate::proc;
use crate::table::{Table, median};
use crate::world::{World, machine};

/// 2 MiB each: what the largest area takes, and some more.
const HUGE: u64 = 520;

/// What docs/ROWS.md says of row B6. Others are slowed down by two threads as chance has it.
pub(super) const BOUNDS: [Bound; 4] = [
    Bound::at_least(HIT, 3.9, 25),
    Bound::at_least(HIT_OF_TWO, 30.7, 60),
    Bound::at_most(FIRST, 1.01, 15),
    Bound::at_most(FIRST_OF_RING, 1.0, 15),
];
const HIT: &str = "found again of 10000 regions: UCX / ours";
const HIT_OF_TWO: &str = "found again by two threads: UCX / ours";
const FIRST: &str = "lock_area / mlock, 1 MiB";
const FIRST_OF_RING: &str = "cache of a ring / io_uring's buffers, 16 MiB";

/// What `farpage-bench locked` and `hits` and the peer print: words that say of what, and figures.
struct Line {
    words: Vec<String>,
    figures: Vec<f64>,
}

/// Figures of all runs by their words.
type All = BTreeMap<Vec<String>, Vec<Vec<f64>>>;

/// Entry point. `--io`: transfers to locked and registered memory. `--truth`: what becomes of locked memory.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    if args.flag("--io") {
        return locked_io::bench(world, args);
    }
    if args.flag("--truth") {
        args.finish()?;
        return truth::bench(world);
    }
    let runs: u32 = args.number("--runs", 5)?;
    let libfabric = args.value("--libfabric")?;
    let mut asserts = Asserts::wanted(&mut args, runs)?;
    args.finish()?;
    program(world, &[])?;
    asserts.begin()?;
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
    for memory in ["private", "shared", "elsewhere", "huge"] {
        for bytes in [4096, 64 << 10, 1 << 20, 16 << 20, 1 << 30] {
            sizes_of(&sizes, memory, bytes, &mut table);
        }
    }
    table.print();
    println!("\nns to lock an area, and to give it up, among so many that overlap within one.");
    let all = sorted(figures(world, &[], &["areas", "--runs", &runs], parse)?);
    let mut table = Table::new(["areas", "lock", "give up", "beside 1000"]);
    let of = |count: &str, step| of(&all, &["areas", count], step);
    for count in ["1000", "10000", "100000", "1000000"] {
        let sum = |count| median(&of(count, 0)) + median(&of(count, 1));
        let ratio = format!("{:.2}", sum(count) / sum("1000"));
        let [lock, give_up] = [0, 1].map(|step| spread(&of(count, step), 0));
        table.row([count.into(), lock, give_up, ratio]);
    }
    table.print();
    let mut lines = figures(world, &[], &["hits", "--runs", &runs], parse)?;
    match ucx(world).and_then(|program| peer(&program, &runs)) {
        Ok(of_peer) => lines.extend(of_peer),
        Err(why) => println!("\nUCX: not measured; {why:#}"),
    }
    match libfabric {
        Some(program) => lines.extend(peer(Path::new(&program), &runs)?),
        None => println!(
            "\nlibfabric: not measured; --libfabric PROGRAM runs one that prints the same lines."
        ),
    }
    let hits = sorted(lines);
    hits_of(&hits);
    asserts.end(&BOUNDS, |what| ratios(&sizes, &hits, what))
}

/// Those of all runs that a bound is about.
fn ratios(sizes: &All, hits: &All, what: &str) -> Vec<f64> {
    let hit = |who: &str, threads: &str| of(hits, &["hit", who, "10000", threads], 0);
    let first = |way: &str, mib: u64| of(sizes, &[way, "private", &(mib << 20).to_string()], 0);
    match what {
        HIT => quotients(&hit("ucx", "1"), &hit("farpage", "1")),
        HIT_OF_TWO => quotients(&hit("ucx", "2"), &hit("farpage", "2")),
        FIRST => quotients(&first("resident", 1), &first("mlock", 1)),
        _ => quotients(&first("ring-cache", 16), &first("io_uring", 16)),
    }
}

/// Ours beside what others take to find a registration.
fn hits_of(hits: &All) {
    println!(
        "\nns to find a registration again and to put it back: one of so many pages, at random."
    );
    let mut table = Table::new([
        "regions",
        "threads",
        "farpage",
        "UCX",
        "beside it",
        "libfabric",
        "beside it",
    ]);
    for regions in ["1", "10000", "100000"] {
        for threads in ["1", "2"] {
            let of = |who: &str| of(hits, &["hit", who, regions, threads], 0);
            let ours = of("farpage");
            let beside = |who: &str| match of(who) {
                none if none.is_empty() => ["-".to_owned(), "-".to_owned()],
                all => [
                    spread(&all, 1),
                    format!("{:.2}", median(&ours) / median(&all)),
                ],
            };
            let ([ucx, to_ucx], [fabric, to_fabric]) = (beside("ucx"), beside("libfabric"));
            table.row([
                regions.into(),
                threads.into(),
                spread(&ours, 1),
                ucx,
                to_ucx,
                fabric,
                to_fabric,
            ]);
        }
    }
    table.print();
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
        ("host", "by the host kernel", "both"),
    ];
    let of = |way: &str, step| of(all, &[way, memory, &bytes.to_string()], step);
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
            "cache-hit" | "host" => String::new(),
            _ => spread(&of(way, 1), 2),
        };
        let size = match bytes {
            mib if mib >= 1 << 20 => format!("{} MiB", mib >> 20),
            kib => format!("{} KiB", kib >> 10),
        };
        let digits = if way == "cache-hit" { 3 } else { 2 };
        let memory = match memory {
            "elsewhere" => "shared, another process has it locked",
            other => other,
        };
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

/// One of the figures of each run, of what those words say; none when it was not measured.
fn of(all: &All, words: &[&str], step: usize) -> Vec<f64> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let runs = all.get(&words).into_iter().flatten();
    runs.map(|figures| figures[step]).collect()
}

fn sorted(lines: Vec<Line>) -> All {
    let mut all = All::new();
    for line in lines {
        all.entry(line.words).or_default().push(line.figures);
    }
    all
}

/// Builds a program that has UCX's cache on the same regions.
fn ucx(world: &World) -> Result<PathBuf> {
    let program = world.scratch("bench")?.join("rcache");
    let mut compile = Command::new("gcc");
    compile
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program);
    compile.arg(world.root.join("tools/bench/peers/rcache.c"));
    compile.args(["-lucs", "-lucm", "-lpthread"]);
    proc::output(&mut compile, "rcache").context("as root: apt-get install libucx-dev")?;
    Ok(program)
}

fn peer(program: &Path, runs: &str) -> Result<Vec<Line>> {
    let text = proc::output(Command::new(program).arg(runs), "the peer")?;
    let line = |line| parse(line).with_context(|| format!("not a line of figures: {line}"));
    text.lines().map(line).collect()
}

fn parse(line: &str) -> Option<Line> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let words_first = match *words.first()? {
        "hit" => 4,
        "areas" => 2,
        _ => 3,
    };
    let (words, rest) = words.split_at_checked(words_first)?;
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
    use super::*;

    #[test]
    fn a_line_of_figures_is_read() {
        let line = parse("mlock private 4096 0.5 0.25").unwrap();
        assert_eq!((line.words.len(), line.figures), (3, vec![0.5, 0.25]));
        let line = parse("hit ucx 10000 2 162.28").unwrap();
        assert_eq!((line.words.len(), line.figures), (4, vec![162.28]));
        let line = parse("areas 1000 300.5 200.5").unwrap();
        assert_eq!(line.figures, vec![300.5, 200.5]);
        assert!(parse("hit ucx 10000 2").is_none() && parse("mlock").is_none());
    }

    #[test]
    fn bounds_are_about_figures_of_the_same_run() {
        let lines = |lines: &[&str]| sorted(lines.iter().map(|l| parse(l).unwrap()).collect());
        let hits = lines(&["hit farpage 10000 1 9", "hit ucx 10000 1 36"]);
        let sizes = lines(&[
            "mlock private 1048576 70 3",
            "resident private 1048576 77 3",
        ]);
        assert_eq!(ratios(&sizes, &hits, HIT), [4.0]);
        assert_eq!(ratios(&sizes, &hits, FIRST), [1.1]);
        assert!(ratios(&sizes, &hits, FIRST_OF_RING).is_empty());
    }
}
