//! `cargo xtask corpus`: real programs, each run bare and under `farpage run` with a quarter of the
//! memory that it needs, or with more where [`Job::share`] says so. Their output must be the same to the byte.

mod compare;
mod jobs;
mod make;
mod run;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::args::Args;
use crate::table::{Table, mib};
use crate::world::World;
use jobs::JOBS;
use make::Places;
use run::Paged;

pub(crate) use jobs::{Job, job};
pub(crate) use run::{Runner, User};

/// What was asked for.
struct Options {
    full: bool,
    only: Vec<String>,
    /// The one job with this name.
    exactly: Option<String>,
    users: Vec<User>,
    /// Budget as a share of the measured demand, for every job; without it each has its own.
    share: Option<f64>,
    /// Runs under farpage of each job and user.
    repeat: u32,
    json: Option<PathBuf>,
    /// Leave the run directories.
    keep: bool,
    /// Only bare runs: checks the jobs themselves.
    bare: bool,
    /// Sample the anonymous memory of runs under farpage too; it costs them some time.
    watch: bool,
    /// Jobs with `--shm` can run, as the user who called.
    has_shm: bool,
}

impl Options {
    fn parse(world: &World, mut args: Args) -> Result<Self> {
        let users = match args.value("--user")?.as_deref() {
            None | Some("both") => User::all(world),
            Some("root") if world.is_root() => vec![User::Current],
            Some("nobody") if world.is_root() => vec![User::Nobody],
            Some(other) => bail!("--user {other}: root, nobody or both, and only root can choose"),
        };
        let options = Self {
            full: args.flag("--full"),
            only: args.values("--only")?,
            exactly: args.value("--exactly")?,
            share: args.given("--ram-share")?,
            repeat: args.number("--repeat", 1)?,
            json: args.value("--json")?.map(PathBuf::from),
            keep: args.flag("--keep"),
            bare: args.flag("--bare"),
            watch: args.flag("--watch"),
            has_shm: world.is_root(),
            users,
        };
        args.finish()?;
        Ok(options)
    }

    fn wants(&self, job: &Job) -> bool {
        if let Some(name) = &self.exactly {
            return job.name == name;
        }
        self.only.is_empty()
            || self
                .only
                .iter()
                .any(|name| job.name.contains(name.as_str()))
    }
}

/// Entry point of the command.
pub(crate) fn corpus(world: &World, mut args: Args) -> Result<()> {
    if args.flag("--list") {
        JOBS.iter()
            .for_each(|j| println!("{:18} {}", j.name, j.command));
        return args.finish();
    }
    if args.flag("--names") {
        JOBS.iter().for_each(|job| println!("{}", job.name));
        return args.finish();
    }
    let options = Options::parse(world, args)?;
    check(world, &options)
}

/// Runs what `options` ask for; fails if any output differs.
fn check(world: &World, options: &Options) -> Result<()> {
    let jobs: Vec<&Job> = JOBS.iter().filter(|j| options.wants(j)).collect();
    if jobs.is_empty() {
        let names = options
            .exactly
            .as_ref()
            .map_or(options.only.join(" or "), String::clone);
        bail!("no job is called {names}; `cargo xtask corpus --names` prints all names");
    }
    let farpage = if options.bare {
        None
    } else {
        Some(world.farpage()?)
    };
    let runner = Runner::new(Places::make(world, &jobs)?, world, farpage, options.full)?;
    let (mut lines, mut failed) = (Vec::new(), Vec::new());
    for job in jobs {
        let line = one(&runner, options, job).unwrap_or_else(|e| Line {
            job: job.name,
            error: Some(e),
            ..Line::default()
        });
        for verdict in line.verdicts() {
            println!("{:18} {verdict}", job.name);
        }
        if line.failed() {
            failed.push(job.name);
        } else if !options.keep {
            runner.clean(job)?;
        }
        lines.push(line);
    }
    summary(&lines);
    if let Some(path) = &options.json {
        let all: Vec<Value> = lines.iter().map(Line::json).collect();
        fs::write(path, format!("{:#}\n", Value::from(all)))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if !failed.is_empty() {
        bail!(
            "{} of {} jobs failed: {}",
            failed.len(),
            lines.len(),
            failed.join(" ")
        );
    }
    Ok(())
}

/// All runs of one job.
#[derive(Default)]
struct Line {
    job: &'static str,
    bare_s: f64,
    demand: u64,
    ram: u64,
    paged: Vec<Paged>,
    error: Option<anyhow::Error>,
}

fn one(runner: &Runner, options: &Options, job: &Job) -> Result<Line> {
    runner.prepare(job)?;
    let (demand, _) = runner.bare(job, "bare", true)?;
    let (_, bare_s) = runner.bare(job, "again", false)?;
    let differs = runner.compare(job, "bare", "again")?;
    if !differs.is_empty() {
        bail!(
            "two bare runs differ, the job is no test:\n{}",
            differs.join("\n")
        );
    }
    let ram = ((demand as f64 * options.share.unwrap_or(job.share)) as u64)
        .max(16 << 20)
        .next_multiple_of(1 << 20);
    let mut line = Line {
        job: job.name,
        bare_s,
        demand,
        ram,
        ..Line::default()
    };
    if !options.bare {
        let can = |user: &&User| !job.shm || options.has_shm && **user == User::Current;
        for &user in options.users.iter().filter(can) {
            for _ in 0..options.repeat {
                line.paged
                    .push(runner.paged(job, user, ram, options.watch)?);
            }
        }
    }
    Ok(line)
}

impl Line {
    fn failed(&self) -> bool {
        self.error.is_some() || self.paged.iter().any(|p| !p.problems.is_empty())
    }

    fn verdicts(&self) -> Vec<String> {
        let head = format!("demand {} MiB, bare {:.2} s", mib(self.demand), self.bare_s);
        if let Some(e) = &self.error {
            return vec![format!("FAIL {e:#}")];
        }
        if self.paged.is_empty() {
            return vec![format!("ok   {head}")];
        }
        let told = |p: &Paged| match p.problems.as_slice() {
            [] => format!(
                "ok   {head}; {} with {} MiB: {:.2} s, {} MiB out",
                p.user.name(),
                mib(self.ram),
                p.wall_s,
                p.out_mib(),
            ),
            problems => format!(
                "FAIL {head}; {} with {} MiB:\n{}",
                p.user.name(),
                mib(self.ram),
                problems.join("\n")
            ),
        };
        self.paged.iter().map(told).collect()
    }

    fn json(&self) -> Value {
        let paged = |p: &Paged| {
            json!({
                "user": p.user.name(), "seconds": p.wall_s, "ratio": p.wall_s / self.bare_s,
                "problems": p.problems, "peak_anon_bytes": p.peak_anon_bytes,
                "paged_out_pages": p.stats.as_ref().map(|s| s.paged_out_pages),
                "tier": p.stats.as_ref().map(|s| &s.tier),
            })
        };
        json!({
            "job": self.job, "bare_seconds": self.bare_s, "demand_bytes": self.demand,
            "ram_bytes": self.ram, "error": self.error.as_ref().map(|e| format!("{e:#}")),
            "runs": self.paged.iter().map(paged).collect::<Vec<_>>(),
        })
    }
}

impl Paged {
    fn out_mib(&self) -> String {
        self.stats
            .as_ref()
            .map_or("?".into(), |s| mib(s.paged_out_pages << 12))
    }

    fn result(&self) -> &'static str {
        match (self.problems.is_empty(), &self.stats) {
            (false, _) => "FAIL",
            (true, Some(s)) if s.paged_out_pages == 0 => "same, nothing paged",
            (true, _) => "same",
        }
    }
}

fn summary(lines: &[Line]) {
    let mut table = Table::new([
        "job",
        "demand MiB",
        "ram MiB",
        "bare s",
        "user",
        "tier",
        "farpage s",
        "ratio",
        "out MiB",
        "peak MiB",
        "result",
    ]);
    for line in lines {
        let head = [line.job.to_owned(), mib(line.demand), mib(line.ram)];
        let head = head.into_iter().chain([format!("{:.2}", line.bare_s)]);
        if line.paged.is_empty() {
            let verdict = if line.failed() { "FAIL" } else { "same" };
            let rest = ["", "", "", "", "", "", verdict].map(String::from);
            table.row(head.clone().chain(rest));
        }
        for p in &line.paged {
            let peak = if p.peak_anon_bytes > 0 {
                mib(p.peak_anon_bytes)
            } else {
                String::new()
            };
            table.row(head.clone().chain([
                p.user.name().to_owned(),
                p.stats.as_ref().map_or("?", |s| &s.tier).to_owned(),
                format!("{:.2}", p.wall_s),
                format!("{:.2}", p.wall_s / line.bare_s.max(0.001)),
                p.out_mib(),
                peak,
                p.result().to_owned(),
            ]));
        }
    }
    println!();
    table.print();
}
