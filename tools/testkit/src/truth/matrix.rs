//! Each kind of memory under each event, in a process of its own.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use farpage::{Hold, LockError, lock_area};

use super::events::{Happened, LIMIT_BYTES, happens};
use super::memory::Memory;
use super::seen::Seen;
use super::{Backing, Event, Outcome, Promise, hold_name, promised};
use crate::{Cgroup, HugePages, Machine, Setting, Swap};

/// Set in a process that is to call [`one`]: what it measures.
pub const CELL: &str = "FARPAGE_TRUTH";
/// What it prints before the outcome.
const FOUND: &str = "found: ";
/// One for the memory, one for its copy of a child of fork, and some to be free.
const HUGE_PAGES: u64 = 4;
const SWAP_BYTES: u64 = 256 << 20;
const HOLDS: [Hold; 2] = [Hold::Resident, Hold::Pinned];

/// A program that calls [`one`] when [`CELL`] is set.
pub struct Program {
    /// Where it is.
    pub path: PathBuf,
    /// What it is given.
    pub arguments: Vec<String>,
}

/// What became of a kind of memory under an event.
#[derive(Clone, Debug)]
pub struct Cell {
    /// How it was held.
    pub hold: Hold,
    /// What it was.
    pub backing: Backing,
    /// What happened.
    pub event: Event,
    /// What became of it.
    pub outcome: Outcome,
    /// What is promised.
    pub promise: Promise,
}

impl Cell {
    /// The promise is kept.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.promise.is_kept_by(&self.outcome)
    }
}

/// All of it.
pub struct Matrix {
    /// In the order of the events.
    pub cells: Vec<Cell>,
}

/// What an event needs of the machine, as long as it happens.
#[derive(Default)]
struct Stage {
    _settings: Vec<Setting>,
    _swap: Option<Swap>,
    /// Why there is none.
    missing: Option<String>,
}

/// Measures what becomes of memory under the events that are `wanted`. The machine's settings are
/// changed meanwhile, and set back.
///
/// # Errors
/// When a process cannot be started.
pub fn run(program: &Program, wanted: impl Fn(Event) -> bool) -> Result<Matrix> {
    let machine = Machine::take()?;
    let huge = machine.huge_pages(HUGE_PAGES);
    let mut cells = Vec::new();
    for event in Event::ALL.into_iter().filter(|event| wanted(*event)) {
        let stage = Stage::new(event, &machine);
        for backing in Backing::ALL {
            // It is not locked in the first place, whatever happens then.
            if backing == Backing::Secret && event != Event::Compaction {
                continue;
            }
            for hold in HOLDS {
                let promise = promised(backing, hold, event);
                if promise == Promise::Nothing {
                    continue;
                }
                let outcome = match missing(&stage, &huge, backing) {
                    Some(why) => Outcome::NotHere(why),
                    None => program.measure(backing, hold, event)?,
                };
                cells.push(Cell {
                    hold,
                    backing,
                    event,
                    outcome,
                    promise,
                });
            }
        }
    }
    Ok(Matrix { cells })
}

fn missing(stage: &Stage, huge: &Result<HugePages>, backing: Backing) -> Option<String> {
    match (backing, huge) {
        (Backing::Huge | Backing::HugeMemfd, Err(why)) => Some(format!("{why:#}")),
        _ => stage.missing.clone(),
    }
}

impl Stage {
    fn new(event: Event, machine: &Machine) -> Self {
        match event {
            Event::Pressure => {
                // A limit is of no use where there is no cgroup for it.
                let probe = Cgroup::new("truth-probe", LIMIT_BYTES, true);
                let swap = probe.and_then(|_| Swap::any(&std::env::temp_dir(), SWAP_BYTES));
                match swap {
                    Ok(swap) => Self {
                        _swap: Some(swap),
                        ..Self::default()
                    },
                    Err(why) => Self::without(&why),
                }
            }
            Event::Merging => {
                let settings = [
                    ("/sys/kernel/mm/ksm/pages_to_scan", "10000"),
                    ("/sys/kernel/mm/ksm/sleep_millisecs", "2"),
                    ("/sys/kernel/mm/ksm/run", "1"),
                ];
                let set = settings.map(|(path, value)| machine.set(path, value));
                match set.into_iter().collect() {
                    Ok(settings) => Self {
                        _settings: settings,
                        ..Self::default()
                    },
                    Err(why) => Self::without(&why),
                }
            }
            _ => Self::default(),
        }
    }

    fn without(why: &anyhow::Error) -> Self {
        Self {
            missing: Some(format!("{why:#}")),
            ..Self::default()
        }
    }
}

impl Program {
    fn measure(&self, backing: Backing, hold: Hold, event: Event) -> Result<Outcome> {
        let cgroup = match event {
            Event::Pressure => Some(Cgroup::new("truth", LIMIT_BYTES, true)?),
            _ => None,
        };
        let mut command = match &cgroup {
            Some(cgroup) => cgroup.command(&self.path),
            None => Command::new(&self.path),
        };
        command.args(&self.arguments);
        command.env(CELL, format!("{} {backing:?} {event:?}", hold_name(hold)));
        let done = command.output();
        let done = done.with_context(|| format!("cannot start {}", self.path.display()))?;
        let said = String::from_utf8_lossy(&done.stdout);
        let found = said.lines().find_map(|line| line.strip_prefix(FOUND));
        Ok(found.and_then(Outcome::parse).unwrap_or_else(|| {
            let error = String::from_utf8_lossy(&done.stderr);
            let error = error.lines().last().unwrap_or_default();
            Outcome::Failed(format!("{}: {error}", done.status))
        }))
    }
}

/// Measures what [`CELL`] says, and prints it.
///
/// # Panics
/// When that is no kind of memory and event.
pub fn one(cell: &str) {
    let words: Vec<&str> = cell.split(' ').collect();
    let hold = HOLDS.into_iter().find(|hold| hold_name(*hold) == words[0]);
    let backing = Backing::ALL
        .into_iter()
        .find(|one| format!("{one:?}") == words[1]);
    let event = Event::ALL
        .into_iter()
        .find(|one| format!("{one:?}") == words[2]);
    let (hold, backing, event) = (hold.unwrap(), backing.unwrap(), event.unwrap());
    let outcome = measured(backing, hold, event);
    let outcome = outcome.unwrap_or_else(|why| Outcome::Failed(format!("{why:#}")));
    let line = outcome.to_string().replace('\n', " ");
    println!("\n{FOUND}{line}");
}

fn measured(backing: Backing, hold: Hold, event: Event) -> Result<Outcome> {
    let memory = match Memory::new(backing) {
        Ok(memory) => memory,
        Err(why) => return Ok(Outcome::NotHere(format!("{why:#}"))),
    };
    let (at, bytes) = (memory.range().start, memory.range().len());
    let locked = match lock_area(at, bytes, hold) {
        Ok(locked) => locked,
        Err(why) => return Ok(Outcome::NotLocked(why.to_string())),
    };
    locked.check().context("it is not well at once")?;
    let before = Seen::new(&memory)?;
    let happened = happens(event, &memory)?;
    if let Happened::NotHere(why) = happened {
        return Ok(Outcome::NotHere(why));
    }
    // In this order: a look brings nothing back.
    let checked = locked.check();
    let after = Seen::new(&memory)?;
    let lost = lost(&before, &after, hold);
    Ok(match (checked, lost, happened) {
        (Err(LockError::Stale { .. }), Some(_), Happened::Done) => Outcome::Detected,
        (Err(why), None, _) => Outcome::Failed(format!("nothing is lost, and check says: {why}")),
        (Err(why), Some(lost), _) => Outcome::Failed(format!("{lost}, and check says: {why}")),
        (Ok(()), None, Happened::Refused(errno)) => Outcome::Refused(errno.name().into()),
        (Ok(()), Some(lost), Happened::Refused(_)) => {
            Outcome::Failed(format!("refused, and all the same {lost}"))
        }
        (Ok(()), Some(lost), _) => Outcome::Unseen(lost.into()),
        (Ok(()), None, _) if before.frames == after.frames => Outcome::Same,
        (Ok(()), None, _) => Outcome::Moved,
    })
}

/// What is different that must not be.
fn lost(before: &Seen, after: &Seen, hold: Hold) -> Option<&'static str> {
    if after.frames.iter().any(Option::is_none) {
        return Some("not in memory");
    }
    match (after.is_filled, hold, before.frames == after.frames) {
        (false, ..) => Some("other bytes"),
        (true, Hold::Pinned, false) => Some("other frames"),
        (true, ..) => None,
    }
}
