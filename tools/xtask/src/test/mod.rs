//! `cargo xtask test`: everything that must pass, from a bare machine on.
//!
//! Without options it is the short run, which a change must pass. `--all` adds the groups ([`groups`]), each
//! of which can be run alone by `--only`, and goes on where it was ended: what passed for the same sources
//! is not run again. Words are parts of the names of tests, and only these are run.

mod build;
mod groups;
mod report;
mod skips;

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::harness::{Case, Cells, Machine, Pool, Ran, run_all};
use crate::kept::{Kept, Seconds};
use crate::proc;
use crate::setup;
use crate::sources;
use crate::world::{World, own_program};
use crate::{tidy, wheel};
pub(crate) use groups::Group;
use report::{Steps, slowest};

/// What was asked for.
struct Options {
    setup: bool,
    all: bool,
    only: Vec<Group>,
    words: Vec<String>,
    jobs: usize,
    /// Run again what passed before for these sources.
    again: bool,
    list: bool,
}

impl Options {
    fn parse(mut args: Args) -> Result<Self> {
        let only = args.values("--only")?;
        let only = only
            .iter()
            .map(|name| Group::parse(name))
            .collect::<Result<Vec<_>>>()?;
        let mut options = Self {
            setup: !args.flag("--no-setup"),
            all: args.flag("--all"),
            only,
            words: Vec::new(),
            jobs: args.number("--jobs", jobs())?,
            again: args.flag("--again"),
            list: args.flag("--list"),
        };
        while let Some(word) = args.word() {
            options.words.push(word);
        }
        args.finish()?;
        if options.jobs == 0 {
            bail!("--jobs 0 would run nothing; give 1 or more");
        }
        Ok(options)
    }
}

/// How many tests run at a time: most of them wait for something most of the time.
pub(crate) fn jobs() -> usize {
    2 * thread::available_parallelism().map_or(1, usize::from)
}

/// Runs what was asked for, and says what failed.
pub(crate) fn test(world: &World, args: Args) -> Result<()> {
    let options = Options::parse(args)?;
    if options.list || !options.words.is_empty() {
        return named(world, &options);
    }
    let mut steps = Steps::new();
    let mut failed = Vec::new();
    if options.only.is_empty() {
        failed.extend(short(world, &options, &mut steps)?);
    }
    let groups = if options.all {
        Group::ALL.to_vec()
    } else {
        options.only.clone()
    };
    for group in groups {
        failed.extend(in_group(world, &options, group, &mut steps)?);
    }
    steps.print();
    match failed.as_slice() {
        [] => Ok(()),
        failed => bail!("{} tests failed:\n  {}", failed.len(), failed.join("\n  ")),
    }
}

/// The short run: lints, and every test that is in no group. Returns what failed.
fn short(world: &World, options: &Options, steps: &mut Steps) -> Result<Vec<String>> {
    if options.setup {
        steps.run("setup", || setup::setup(world, setup::SHORT))?;
    }
    steps.run("lints", || lints(world))?;
    let cases = steps.run("build", || short_cases(world))?;
    let ran = steps.run("tests", || run(world, options.jobs, "short", cases))?;
    let mut failed = failures(&ran);
    failed.extend(skips::check(world, &ran)?);
    Ok(failed)
}

/// Says how cases ended, and returns the names of those that failed.
fn failures(ran: &[Ran]) -> Vec<String> {
    slowest(ran, 10);
    report::summary(ran);
    let failed = ran.iter().filter(|ran| !ran.passed());
    failed.map(|ran| ran.name.clone()).collect()
}

/// Builds what the short run needs, and lists its cases.
fn short_cases(world: &World) -> Result<Vec<Case>> {
    cases_in(world, None)
}

/// The same of a group of tests of the workspace, or of the short run.
pub(crate) fn cases_in(world: &World, group: Option<Group>) -> Result<Vec<Case>> {
    let mut cases = all_cases(world)?;
    groups::check(&cases)?;
    cases.retain(|case| groups::of(&case.name) == group);
    wheel::prepare(world)?;
    Ok(cases)
}

/// Builds all tests, and lists them. Those of Python need [`wheel::prepare`] as well.
fn all_cases(world: &World) -> Result<Vec<Case>> {
    let mut cases = build::cases(world)?;
    cases.extend(wheel::cases(world)?);
    cases.push(build::doc_tests(world));
    cases.push(real_files(world)?);
    let name = "install-c installs what C programs need";
    cases.push(itself(world, name, &["install-c", "--check"])?);
    Ok(cases)
}

/// Files that other programs wrote, against the crate that says where their arrays lie.
fn real_files(world: &World) -> Result<Case> {
    let script = world.root.join("crates/pagers/format/tests/real_files.py");
    let layout = world.checked_dir()?.join("examples/layout");
    Ok(Case {
        name: "format/python files of other programs".into(),
        program: world.python(),
        args: vec![script.into(), layout.into()],
        env: Vec::new(),
        folder: world.root.clone(),
        limit: build::LIMIT,
    })
}

/// A case that is a command of xtask.
fn itself(world: &World, name: &str, args: &[&str]) -> Result<Case> {
    Ok(Case {
        name: format!("xtask/command {name}"),
        program: own_program(),
        args: args.iter().map(Into::into).collect(),
        env: Vec::new(),
        folder: world.root.clone(),
        limit: build::LIMIT,
    })
}

fn lints(world: &World) -> Result<()> {
    // The lock files are wanted as they are: what is missing in them is told first.
    for manifest in ["Cargo.toml", "tools/fuzz/Cargo.toml"] {
        cargo(
            world,
            &["fetch", "--quiet", "--locked", "--manifest-path", manifest],
        )?;
        cargo(
            world,
            &["fmt", "--all", "--check", "--manifest-path", manifest],
        )?;
    }
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--quiet",
    ];
    cargo(world, &[&clippy[..], &["--", "-D", "warnings"]].concat())?;
    tidy::tidy(world, Args::new(std::iter::empty()))
}

fn cargo(world: &World, args: &[&str]) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(args).current_dir(&world.root);
    proc::must(&mut cargo, &format!("cargo {}", args.join(" ")))
}

/// One group. What passed before for the same sources is counted and not run again.
fn in_group(
    world: &World,
    options: &Options,
    group: Group,
    steps: &mut Steps,
) -> Result<Vec<String>> {
    if options.setup {
        steps.run(&format!("setup for {}", group.name()), || {
            setup::setup(world, group.needs())
        })?;
    }
    let tests = match group {
        Group::Long | Group::Calls | Group::Chaos | Group::S390x | Group::Peers => {
            steps.run("build", || all_cases(world))?
        }
        Group::Fuzz | Group::Corpus | Group::Fresh | Group::Rows => Vec::new(),
    };
    let cases = group.cases(world, &tests)?;
    let records = Kept::open(&sources::hash(world)?, group.name())?.records()?;
    let has_passed = |case: &Case| records.get(&case.name).is_some_and(|r| r.last_passed);
    let all = cases.len();
    let left: Vec<Case> = cases
        .into_iter()
        .filter(|case| options.again || !has_passed(case))
        .collect();
    if all > left.len() {
        println!(
            "{} of {all} passed before with these sources",
            all - left.len()
        );
    }
    prepare(world, &left)?;
    let jobs = if group.is_alone() { 1 } else { options.jobs };
    let ran = steps.run(group.name(), || run(world, jobs, group.name(), left))?;
    let mut failed = failures(&ran);
    if group == Group::Long {
        failed.extend(skips::check(world, &ran)?);
    }
    Ok(failed)
}

/// Tests whose names have one of the words in them, of the short run and of the groups.
fn named(world: &World, options: &Options) -> Result<()> {
    let tests = all_cases(world)?;
    let wanted = |case: &Case, word: &String| case.name.contains(word.as_str());
    if let Some(word) = options
        .words
        .iter()
        .find(|word| !tests.iter().any(|t| wanted(t, word)))
    {
        bail!("no test's name has '{word}' in it; `cargo xtask test --list` prints all names");
    }
    let is_named = |case: &Case| {
        options.words.is_empty() || options.words.iter().any(|word| wanted(case, word))
    };
    let cases: Vec<Case> = tests.into_iter().filter(is_named).collect();
    if options.list {
        cases.iter().for_each(|case| println!("{}", case.name));
        return Ok(());
    }
    prepare(world, &cases)?;
    let ran = run(world, options.jobs, "named", cases)?;
    for one in &ran {
        let skipped = one.skipped.iter().map(|why| format!(" (skipped: {why})"));
        let verdict = if one.passed() { "ok" } else { "FAILED" };
        println!(
            "{verdict:6} {:8.2} s  {}{}",
            one.seconds,
            one.name,
            skipped.collect::<String>()
        );
    }
    report::summary(&ran);
    match ran.iter().filter(|ran| !ran.passed()).count() {
        0 => Ok(()),
        failed => bail!("{failed} of {} tests failed", ran.len()),
    }
}

/// Prepares what cases of Python need, if there are any.
fn prepare(world: &World, cases: &[Case]) -> Result<()> {
    if cases.iter().any(|case| case.name.starts_with("python ")) {
        wheel::prepare(world)?;
    }
    Ok(())
}

/// Runs the cases, the longest first, keeps what became of them, and fails when the machine is not as it was.
pub(crate) fn run(
    world: &World,
    jobs: usize,
    group: &str,
    mut cases: Vec<Case>,
) -> Result<Vec<Ran>> {
    let before = Machine::look();
    let mut kept = Kept::open(&sources::hash(world)?, group)?;
    let mut seconds = Seconds::read();
    cases.sort_by(|a, b| seconds.of(&b.name).total_cmp(&seconds.of(&a.name)));
    let cells = Cells::new(&[&world.shared_folder(), &world.root, &world.checked_dir()?])?;
    let pool = Pool {
        jobs,
        fail_fast: false,
    };
    let mut trouble = Ok(());
    let mut ran = run_all(&pool, &cells, cases, |ran| {
        if let Err(why) = kept.add(ran) {
            trouble = Err(why);
        }
    });
    drop(cells);
    trouble.context("results cannot be kept")?;
    seconds.note(&ran)?;
    if let Some(why) = left_behind(&before) {
        println!("{why}");
        let name = format!("{group}: the machine is as it was");
        let ran_last = Ran {
            name,
            seconds: 0.0,
            failure: Some(why),
            skipped: Vec::new(),
        };
        kept.add(&ran_last)?;
        ran.push(ran_last);
    }
    Ok(ran)
}

/// What the tests left on the machine. What cleans up after a killed process may need a moment.
fn left_behind(before: &Machine) -> Option<String> {
    let began = Instant::now();
    loop {
        let new = Machine::look().new_since(before);
        if new.is_empty() {
            return None;
        }
        if began.elapsed() > Duration::from_secs(120) {
            return Some(format!("left on this machine: {}", new.join(", ")));
        }
        thread::sleep(Duration::from_millis(200));
    }
}
