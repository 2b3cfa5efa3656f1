//! `cargo xtask rows`: runs the commands behind each row of `docs/ROWS.md`, and says whether they show it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::bench::{BUSY, Busy};
use crate::proc;
use crate::world::World;

/// Ends a command that hangs.
const LIMIT: Duration = Duration::from_secs(3600);
/// What a test or a bench prints before the reason why it does not run.
const SKIPPED: &str = "skipped: ";

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    name: String,
    what: String,
    state: String,
    /// One after the other.
    commands: Vec<String>,
}

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ended {
    /// With the reasons of what was skipped.
    Passed(Vec<String>),
    /// The machine does other things as well: what it said.
    Busy(String),
    /// How, and what it said last.
    Failed(String),
}

/// What a row is, after its commands have run.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Everything passed, and nothing was skipped.
    Shown,
    Skipped(Vec<String>),
    Busy(String),
    Failed(String),
    /// It claims something, and has no command.
    Missing,
    /// It claims nothing.
    Open,
}

impl Row {
    fn is_open(&self) -> bool {
        self.state.starts_with("open")
    }

    /// `ended` runs a command, or knows what became of it.
    fn verdict(&self, mut ended: impl FnMut(&str) -> Ended) -> Verdict {
        match (self.is_open(), self.commands.is_empty()) {
            (true, true) => return Verdict::Open,
            (false, true) => return Verdict::Missing,
            (_, false) => (),
        }
        let (mut skipped, mut busy) = (Vec::new(), None);
        for command in &self.commands {
            match ended(command) {
                Ended::Passed(reasons) => skipped.extend(reasons),
                Ended::Busy(why) => busy = Some(why),
                Ended::Failed(why) => return Verdict::Failed(why),
            }
        }
        match busy {
            None if skipped.is_empty() => Verdict::Shown,
            None => {
                skipped.sort();
                skipped.dedup();
                Verdict::Skipped(skipped)
            }
            Some(why) => Verdict::Busy(why),
        }
    }

    /// What is printed. Anything but `ok` comes with its reason.
    fn line(&self, verdict: &Verdict) -> String {
        match verdict {
            Verdict::Shown if self.state.starts_with("done") => "ok".into(),
            Verdict::Shown => format!("ok as far as it goes: {}", self.state),
            Verdict::Skipped(reasons) => format!("not shown: skipped: {}", reasons.join("; ")),
            Verdict::Busy(why) => format!("not shown: busy: {why}"),
            Verdict::Failed(why) => format!("failed: {why}"),
            Verdict::Missing => format!("missing: it is {} and has no command", self.state),
            Verdict::Open => "open: nothing of it is there yet".into(),
        }
    }
}

impl Verdict {
    fn is_good(&self) -> bool {
        matches!(self, Self::Shown | Self::Open)
    }
}

/// Entry point: the named rows, or all.
pub(crate) fn rows(world: &World, mut args: Args) -> Result<()> {
    let lists = args.flag("--list");
    let mut named = Vec::new();
    while let Some(name) = args.word() {
        named.push(name);
    }
    args.finish()?;
    let path = world.root.join("docs/ROWS.md");
    let text = fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
    let rows = parse(&text);
    if lists {
        let claim = rows.iter().filter(|row| !row.is_open());
        claim.for_each(|row| println!("{}", row.name));
        return Ok(());
    }
    if let Some(name) = named.iter().find(|n| rows.iter().all(|r| r.name != **n)) {
        bail!("{} has no row {name}", path.display());
    }
    let log = world.scratch("rows")?.join("output");
    let mut ran: HashMap<String, Ended> = HashMap::new();
    let mut verdicts = Vec::new();
    for row in rows
        .iter()
        .filter(|r| named.is_empty() || named.contains(&r.name))
    {
        print!("{:4} {:45} ", row.name, row.what);
        std::io::stdout().flush()?;
        let verdict = row.verdict(|command| {
            let run =
                || run(world, command, &log).unwrap_or_else(|e| Ended::Failed(format!("{e:#}")));
            ran.entry(command.to_owned()).or_insert_with(run).clone()
        });
        println!("{}", row.line(&verdict));
        verdicts.push(verdict);
    }
    judge(&verdicts)
}

/// Fails when a row is not shown. What only a busy machine kept from being shown may be tried again.
fn judge(verdicts: &[Verdict]) -> Result<()> {
    let bad = verdicts.iter().filter(|verdict| !verdict.is_good());
    let busy = verdicts.iter().filter(|v| matches!(v, Verdict::Busy(_)));
    match (bad.count(), busy.count()) {
        (0, _) => Ok(()),
        (bad, busy) if bad == busy => {
            Err(Busy::new(format!("{busy} rows were not measured")).into())
        }
        (bad, _) => bail!("{bad} of {} rows are not shown", verdicts.len()),
    }
}

/// Runs `command` by the shell in the repository.
fn run(world: &World, command: &str, log: &Path) -> Result<Ended> {
    let mut sh = Command::new("/bin/sh");
    sh.args(["-c", command]).current_dir(&world.root);
    let file = File::create(log)?;
    sh.stdout(file.try_clone()?).stderr(file);
    let outcome = proc::run(&mut sh, LIMIT, false)?;
    let said = fs::read(log)?;
    let said = String::from_utf8_lossy(&said);
    Ok(match outcome.status.code() {
        Some(0) => Ended::Passed(skipped(&said)),
        Some(code) if code == i32::from(BUSY) => Ended::Busy(busy(&said)),
        _ => Ended::Failed(format!("`{command}`: {}{}", outcome.ending(), last(&said))),
    })
}

/// The reasons in lines `skipped: REASON`, and in those that end with `(skipped: REASON)` once or more.
fn skipped(said: &str) -> Vec<String> {
    let mut reasons = Vec::new();
    for line in said.lines() {
        if let Some(reason) = line.strip_prefix(SKIPPED) {
            reasons.push(reason.to_owned());
        }
        let inner = line.split(" (skipped: ").skip(1);
        reasons.extend(inner.map(|part| part.strip_suffix(')').unwrap_or(part).to_owned()));
    }
    reasons
}

/// What is said after `busy: `.
fn busy(said: &str) -> String {
    let found = said
        .lines()
        .rev()
        .find_map(|line| line.split_once("busy: "));
    found
        .map_or("its bench does not say why", |(_, why)| why)
        .to_owned()
}

/// What failed by name, and the last lines.
fn last(said: &str) -> String {
    let lines: Vec<&str> = said.lines().filter(|l| !l.trim().is_empty()).collect();
    let (before, end) = lines.split_at(lines.len().saturating_sub(5));
    let failed = before.iter().filter(|line| line.starts_with("FAILED"));
    let told = failed.chain(end);
    told.map(|line| format!("\n       {line}")).collect()
}

/// The rows of all tables in `text`; other lines are prose.
fn parse(text: &str) -> Vec<Row> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
        let [name, what, state, command, ..] = cells.as_slice() else {
            return None;
        };
        let (letter, number) = name.split_at_checked(1)?;
        let is_row =
            letter.starts_with(|c: char| c.is_ascii_uppercase()) && number.parse::<u32>().is_ok();
        let commands = command.trim_matches('`').split(" && ");
        is_row.then(|| Row {
            name: (*name).to_owned(),
            what: (*what).to_owned(),
            state: (*state).to_owned(),
            commands: commands
                .filter(|c| !c.is_empty())
                .map(String::from)
                .collect(),
        })
    };
    text.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests;
