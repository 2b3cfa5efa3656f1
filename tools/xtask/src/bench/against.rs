//! `bench against`: programs of the corpus within a memory limit, under `farpage run` and as they are with a swap file or
//! zram. All have the same limit in a cgroup; `farpage run` chooses its own budget from it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use farpage_testkit::{Cgroup, Swap};
use serde_json::{Value, json};

use super::bounds::{Asserts, Bound};
use super::spread;
use crate::args::Args;
use crate::corpus::{Job, Runner, User, job};
use crate::kept::Lines;
use crate::setup::{self, Part};
use crate::sources;
use crate::table::{Table, median};
use crate::world::{World, machine};

const PROGRAMS: &[&str] = &[
    "php-ksort",
    "perl-hash",
    "lua-tree",
    "py-collect",
    "c-touch-1",
    "c-touch-2",
    "c-touch-4",
    "c-touch-order",
    "c-rounds",
    "go-static",
    "numpy-sort",
    "numpy-matmul",
    "sklearn-fit",
    "pandas-groupby",
    "torch-train",
    "sqlite-memory",
    "sort",
    "gcc",
    "redis-bgsave",
    "node",
    "jvm-g1",
    "ocaml",
    "erlang",
];
/// Limits, in percent of the most memory that the program has.
const SHARES: [u64; 3] = [75, 50, 25];
/// `farpage run` takes no budget below 16 MiB, and needs some memory for itself.
const LIMIT_LEAST: u64 = 24 << 20;
const SWAP_BYTES: u64 = 4 << 30;

const AT_75: &str = "the best of the others / ours at 75%, worst program";
const AT_50: &str = "the best of the others / ours at 50%, worst program";
const AT_25: &str = "the best of the others / ours at 25%, worst program";
const ALL: &str = "swap file / ours, geometric mean of all programs and limits";
pub(super) const BOUNDS: [Bound; 4] = [
    Bound::at_least(AT_75, 0.97, 0),
    Bound::at_least(AT_50, 0.97, 0),
    Bound::at_least(AT_25, 0.9, 0),
    Bound::at_least(ALL, 1.5, 0),
];

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Farpage,
    /// In the user-mode-only tier.
    FarpageAsNobody,
    SwapFile,
    Zram,
}

impl Side {
    const ALL: [Self; 4] = [
        Self::Farpage,
        Self::SwapFile,
        Self::FarpageAsNobody,
        Self::Zram,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Farpage => "farpage",
            Self::FarpageAsNobody => "farpage as nobody",
            Self::SwapFile => "swap file",
            Self::Zram => "zram",
        }
    }

    fn is_ours(self) -> bool {
        matches!(self, Self::Farpage | Self::FarpageAsNobody)
    }
}

/// Seconds of a run, or how it ended.
type Run = Result<f64, String>;

/// One program within one limit.
struct Line {
    program: &'static str,
    share: u64,
    limit: u64,
    bare_s: f64,
    runs: BTreeMap<Side, Vec<Run>>,
}

struct Bench {
    runner: Runner,
    swaps: PathBuf,
    results: Results,
    sides: Vec<Side>,
    runs: u32,
    /// A run that takes longer is lost.
    limit: Duration,
}

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let limit = Duration::from_secs(args.number("--limit-s", 300)?);
    let only = args.values("--only")?;
    let mut shares = args.values("--at")?;
    let mut asserts = Asserts::wanted(&mut args, runs)?;
    args.finish()?;
    if shares.is_empty() {
        shares = SHARES.map(|share| share.to_string()).into();
    }
    let shares: Vec<u64> = shares.iter().map(|at| share(at)).collect::<Result<_>>()?;
    let is_wanted = |name: &&&str| only.is_empty() || only.iter().any(|word| name.contains(word));
    let programs: Vec<&Job> = PROGRAMS
        .iter()
        .filter(is_wanted)
        .map(|name| job(name))
        .collect();
    if programs.is_empty() {
        bail!(
            "no program's name has '{}' in it; there are {}",
            only.join("' or '"),
            PROGRAMS.join(", ")
        );
    }
    if !world.is_root() {
        bail!("bench against makes cgroups, swap files and zram devices: run it as root");
    }
    setup::setup(world, &[Part::Corpus])?;
    let mut sides: Vec<Side> = Side::ALL.into();
    if let Err(why) = Swap::zram(LIMIT_LEAST, LIMIT_LEAST) {
        println!("without zram: {why:#}");
        sides.retain(|side| *side != Side::Zram);
    }
    let mut bench = Bench {
        runner: Runner::of(world, &programs)?,
        swaps: world.scratch("bench")?,
        results: Results::open(&sources::hash(world)?)?,
        sides,
        runs,
        limit,
    };
    println!("{}", machine());
    asserts.begin()?;
    let mut lines = Vec::new();
    for program in programs {
        lines.extend(bench.program(program, &shares)?);
    }
    print(&lines, &bench.sides, limit);
    asserts.end(&BOUNDS, |what| ratios(&lines, what, runs, limit))
}

fn share(text: &str) -> Result<u64> {
    let share = SHARES.iter().find(|share| share.to_string() == text);
    share
        .copied()
        .with_context(|| format!("--at {text} is not one of {SHARES:?}"))
}

impl Bench {
    /// Makes the runs that are not there from an earlier call.
    fn program(&mut self, job: &'static Job, shares: &[u64]) -> Result<Vec<Line>> {
        self.runner.prepare(job)?;
        // What the program writes when it is bare.
        let mut is_there = false;
        let [peak_of, bare_of] = ["peak", "bare"].map(|what| format!("{} {what}", job.name));
        if self.results.number(&peak_of).is_none() {
            let (peak, _) = self.runner.bare(job, "bare", true)?;
            self.results.add(&peak_of, &json!(peak))?;
        }
        if self.results.number(&bare_of).is_none() {
            let (_, seconds) = self.runner.bare(job, "bare", false)?;
            self.results.add(&bare_of, &json!(seconds))?;
            is_there = true;
        }
        let known = |of: &str| self.results.number(of).unwrap_or_default();
        let (peak, bare_s) = (known(&peak_of), known(&bare_of));
        let mut lines = Vec::new();
        for &share in shares {
            let limit = (peak as u64 * share / 100)
                .max(LIMIT_LEAST)
                .next_multiple_of(1 << 20);
            let mut line = Line {
                program: job.name,
                share,
                limit,
                bare_s,
                runs: BTreeMap::new(),
            };
            for round in 0..self.runs {
                for side in self.sides.clone() {
                    let case = format!("{} {share}% {} {round}", job.name, side.name());
                    let run = match self.results.run(&case) {
                        Some(run) => run,
                        None => {
                            if !is_there {
                                self.runner.bare(job, "bare", false)?;
                                is_there = true;
                            }
                            let run = self.once(job, limit, side)?;
                            println!("{case}: {}", told(&run));
                            self.results.add(&case, &as_json(&run))?;
                            run
                        }
                    };
                    line.runs.entry(side).or_default().push(run);
                }
            }
            lines.push(line);
        }
        if is_there {
            self.runner.clean(job)?;
        }
        Ok(lines)
    }

    fn once(&self, job: &Job, limit: u64, side: Side) -> Result<Run> {
        let _ = fs::write("/proc/sys/vm/drop_caches", "3");
        // What zram has is no memory of the cgroup's: it is taken from its limit.
        let (swap, limit) = match side {
            Side::SwapFile => (Some(Swap::file(&self.swaps, SWAP_BYTES)?), limit),
            Side::Zram => (Some(Swap::zram(SWAP_BYTES, limit / 2)?), limit / 2),
            _ => (None, limit),
        };
        let cgroup = Cgroup::new("against", limit, swap.is_some())?;
        let user = match side {
            Side::Farpage => Some(User::Current),
            Side::FarpageAsNobody => Some(User::Nobody),
            _ => None,
        };
        let outcome = self
            .runner
            .within(job, "limited", user, &cgroup, self.limit)?;
        if !outcome.status.success() || outcome.timed_out {
            return Ok(Err(outcome.ending()));
        }
        let differs = self.runner.compare(job, "bare", "limited")?;
        if !differs.is_empty() {
            bail!(
                "{} with {}: its output is another than bare:\n{}",
                job.name,
                side.name(),
                differs.join("\n")
            );
        }
        Ok(Ok(outcome.wall.as_secs_f64()))
    }
}

impl Line {
    /// What each run of `other` took of ours: a run that was lost counts as `limit`, and two of them say nothing.
    fn ratios(&self, other: Side, ours: Side, limit: Duration) -> Vec<f64> {
        let (Some(theirs), Some(ours)) = (self.runs.get(&other), self.runs.get(&ours)) else {
            return Vec::new();
        };
        let seconds = |run: &Run| *run.as_ref().unwrap_or(&limit.as_secs_f64());
        let pairs = theirs
            .iter()
            .zip(ours)
            .filter(|(a, b)| a.is_ok() || b.is_ok());
        pairs.map(|(a, b)| seconds(a) / seconds(b)).collect()
    }

    /// The ratios to whichever of the others is best.
    fn to_best(&self, ours: Side, limit: Duration) -> Vec<f64> {
        let others = self.runs.keys().filter(|side| !side.is_ours());
        let all = others.map(|other| self.ratios(*other, ours, limit));
        let some = all.filter(|ratios| !ratios.is_empty());
        some.min_by(|a, b| median(a).total_cmp(&median(b)))
            .unwrap_or_default()
    }
}

/// What a bound is about.
fn ratios(lines: &[Line], what: &str, runs: u32, limit: Duration) -> Vec<f64> {
    let ours = [Side::Farpage, Side::FarpageAsNobody];
    let worst = |share: u64| {
        let lines = lines.iter().filter(|line| line.share == share);
        let all = lines.flat_map(|line| ours.map(|side| line.to_best(side, limit)));
        let some = all.filter(|ratios| !ratios.is_empty());
        some.min_by(|a, b| median(a).total_cmp(&median(b)))
            .unwrap_or_default()
    };
    match what {
        AT_75 => worst(75),
        AT_50 => worst(50),
        AT_25 => worst(25),
        _ => {
            let all = lines
                .iter()
                .map(|line| line.ratios(Side::SwapFile, Side::Farpage, limit));
            let all: Vec<Vec<f64>> = all.collect();
            let of_run = |run: usize| mean(all.iter().filter_map(|line| line.get(run).copied()));
            (0..runs as usize).filter_map(of_run).collect()
        }
    }
}

/// The geometric mean.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let logarithms: Vec<f64> = values.map(f64::ln).collect();
    let count = logarithms.len() as f64;
    (count > 0.0).then(|| (logarithms.iter().sum::<f64>() / count).exp())
}

fn print(lines: &[Line], sides: &[Side], limit: Duration) {
    println!(
        "\nseconds, median (least-most), and ratios of the best of the others to ours in the same turn; \
         a run of more than {} s is lost and counts as such a one",
        limit.as_secs()
    );
    let heading = ["program", "limit", "bare"].into_iter().map(String::from);
    let heading: Vec<String> = heading
        .chain(sides.iter().map(|side| side.name().to_owned()))
        .chain(["best / ours".to_owned(), "as nobody".to_owned()])
        .collect();
    let mut table = Table::new(heading.iter().map(String::as_str));
    for line in lines {
        let head = [
            line.program.to_owned(),
            format!("{}% {}M", line.share, line.limit >> 20),
            format!("{:.1}", line.bare_s),
        ];
        let seconds = sides.iter().map(|side| {
            let runs = line.runs.get(side).map_or(&[][..], Vec::as_slice);
            let done: Vec<f64> = runs.iter().flatten().copied().collect();
            match runs.iter().find_map(|run| run.as_ref().err()) {
                Some(why) => format!("{} of {} ({why})", done.len(), runs.len()),
                None => spread(&done, 1),
            }
        });
        let ratio = |ours| match line.to_best(ours, limit).as_slice() {
            [] => "-".to_owned(),
            ratios => spread(ratios, 2),
        };
        let ratios = [ratio(Side::Farpage), ratio(Side::FarpageAsNobody)];
        table.row(head.into_iter().chain(seconds).chain(ratios));
    }
    table.print();
    let all = lines
        .iter()
        .map(|line| median(&line.ratios(Side::SwapFile, Side::Farpage, limit)));
    if let Some(mean) = mean(all.filter(|ratio| *ratio > 0.0)) {
        println!("swap file / farpage, geometric mean: {mean:.2}");
    }
}

fn told(run: &Run) -> String {
    match run {
        Ok(seconds) => format!("{seconds:.2} s"),
        Err(ending) => format!("lost: {ending}"),
    }
}

fn as_json(run: &Run) -> Value {
    match run {
        Ok(seconds) => json!(seconds),
        Err(ending) => json!(ending),
    }
}

/// What was measured with these sources: a run that was ended goes on where it was.
struct Results {
    lines: Lines,
    known: BTreeMap<String, Value>,
}

impl Results {
    fn open(sources: &str) -> Result<Self> {
        let lines = Lines::open(sources, "against")?;
        let known = lines.read()?.into_iter().filter_map(|mut line| {
            let case = line["case"].as_str()?.to_owned();
            Some((case, line["is"].take()))
        });
        let known = known.collect();
        Ok(Self { lines, known })
    }

    fn number(&self, case: &str) -> Option<f64> {
        self.known.get(case)?.as_f64()
    }

    fn run(&self, case: &str) -> Option<Run> {
        let known = self.known.get(case)?;
        let ending = || Some(Err(known.as_str()?.to_owned()));
        known.as_f64().map(Ok).or_else(ending)
    }

    fn add(&mut self, case: &str, is: &Value) -> Result<()> {
        self.lines.add(&json!({ "case": case, "is": is }))?;
        self.known.insert(case.to_owned(), is.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(100);

    fn line(farpage: [Run; 2], swap: [Run; 2], zram: [Run; 2]) -> Line {
        let runs = [
            (Side::Farpage, farpage.into()),
            (Side::SwapFile, swap.into()),
            (Side::Zram, zram.into()),
        ];
        Line {
            program: "p",
            share: 50,
            limit: 64 << 20,
            bare_s: 1.0,
            runs: runs.into(),
        }
    }

    fn lost() -> Run {
        Err("time limit".into())
    }

    #[test]
    fn the_best_of_the_others_counts_and_a_lost_run_is_as_long_as_the_limit() {
        let one = line([Ok(2.0), Ok(4.0)], [Ok(4.0), Ok(8.0)], [lost(), lost()]);
        assert_eq!(one.to_best(Side::Farpage, LIMIT), [2.0, 2.0]);
        assert_eq!(one.ratios(Side::Zram, Side::Farpage, LIMIT), [50.0, 25.0]);
        let two = line([Ok(2.0), lost()], [Ok(1.0), Ok(50.0)], [Ok(4.0), lost()]);
        assert_eq!(two.to_best(Side::Farpage, LIMIT), [0.5, 0.5]);
        assert_eq!(two.ratios(Side::Zram, Side::Farpage, LIMIT), [2.0]);
        assert!(two.to_best(Side::FarpageAsNobody, LIMIT).is_empty());
        let lines = [one, two];
        assert_eq!(ratios(&lines, AT_50, 2, LIMIT), [0.5, 0.5]);
        assert!(ratios(&lines, AT_75, 2, LIMIT).is_empty());
        assert_eq!(ratios(&lines, ALL, 2, LIMIT), [1.0, 1.0]);
    }

    #[test]
    fn all_programs_are_of_the_corpus() {
        PROGRAMS
            .iter()
            .for_each(|name| assert_eq!(job(name).name, *name));
        assert!(share("50").is_ok() && share("60").is_err());
    }
}
