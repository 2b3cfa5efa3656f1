//! `bench locked --truth`: what becomes of locked memory, beside what docs/locked.md promises.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::proc;
use crate::table::Table;
use crate::world::{World, machine};

/// Why something was not measured begins with it.
const NOT_HERE: &str = "not here: ";
const SECRET: &str = "secret";

/// What the program prints of one kind of memory under one event.
struct Cell {
    hold: String,
    memory: String,
    event: String,
    outcome: String,
    is_kept: bool,
}

/// Prints a table for each way to hold memory. Fails when a promise is broken.
pub(crate) fn bench(world: &World) -> Result<()> {
    let cells = measured(world)?;
    println!("{}", machine());
    for hold in ["resident", "pinned"] {
        println!("\n{hold}:");
        let of_hold: Vec<&Cell> = cells.iter().filter(|cell| cell.hold == hold).collect();
        print(&of_hold);
    }
    let said = |prefix: &str| {
        let all = cells
            .iter()
            .filter_map(|cell| cell.outcome.strip_prefix(prefix));
        let found: Vec<&str> = all.collect();
        found
    };
    let mut why: BTreeMap<&str, u32> = BTreeMap::new();
    for reason in said(NOT_HERE) {
        *why.entry(reason).or_default() += 1;
    }
    println!();
    for (why, cells) in why {
        println!("{NOT_HERE}{why} ({cells} cells)");
    }
    let secret = cells.iter().find(|cell| cell.memory == SECRET);
    println!(
        "memfd_secret: {}",
        secret.map_or("not measured", |cell| &cell.outcome)
    );
    let broken: Vec<&Cell> = cells.iter().filter(|cell| !cell.is_kept).collect();
    println!(
        "{} cells, {} against docs/locked.md",
        cells.len(),
        broken.len()
    );
    for cell in &broken {
        println!(
            "{} {}, {}: {}",
            cell.hold, cell.memory, cell.event, cell.outcome
        );
    }
    match broken.is_empty() {
        true => Ok(()),
        false => bail!("promises of docs/locked.md are broken"),
    }
}

fn print(cells: &[&Cell]) {
    let memories = ["private", "memfd", "System V", "huge page", "huge memfd"];
    let mut table = Table::new(["what happens to it"].into_iter().chain(memories));
    let mut events: Vec<&str> = Vec::new();
    let mut rows: BTreeMap<&str, BTreeMap<&str, String>> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| cell.memory != SECRET) {
        if !events.contains(&cell.event.as_str()) {
            events.push(&cell.event);
        }
        let text = match (cell.is_kept, cell.outcome.starts_with(NOT_HERE)) {
            (true, true) => "not here".to_owned(),
            (true, false) => cell.outcome.clone(),
            (false, _) => format!("BROKEN {}", cell.outcome),
        };
        let row = rows.entry(&cell.event).or_default();
        row.insert(&cell.memory, text);
    }
    for event in events {
        let of = |memory| {
            rows[event]
                .get(memory)
                .map_or("-", String::as_str)
                .to_owned()
        };
        table.row([event.to_owned()].into_iter().chain(memories.map(of)));
    }
    table.print();
}

fn measured(world: &World) -> Result<Vec<Cell>> {
    let package = ["-p", "farpage-testkit", "--features", "truth"];
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--quiet"]).args(package);
    proc::must(cargo.current_dir(&world.root), "cargo build")?;
    let program = world.checked_dir()?.join("truth");
    // Broken promises are what it fails for, too.
    let done = Command::new(&program).output();
    let done = done.with_context(|| format!("cannot start {}", program.display()))?;
    let text = String::from_utf8_lossy(&done.stdout);
    let cells: Option<Vec<Cell>> = text.lines().map(parse).collect();
    match cells {
        Some(cells) if !cells.is_empty() => Ok(cells),
        _ => bail!(
            "{}: {}",
            done.status,
            String::from_utf8_lossy(&done.stderr).trim()
        ),
    }
}

fn parse(line: &str) -> Option<Cell> {
    let words: Vec<&str> = line.split('\t').collect();
    let [hold, memory, event, outcome, kept] = words[..] else {
        return None;
    };
    Some(Cell {
        hold: hold.to_owned(),
        memory: memory.to_owned(),
        event: event.replace('`', ""),
        outcome: outcome.to_owned(),
        is_kept: match kept {
            "kept" => true,
            "broken" => false,
            _ => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_line_is_a_cell() {
        let cell = parse("pinned\tmemfd\t`fork`, then both write\tsame frames\tkept").unwrap();
        assert_eq!(
            (cell.hold.as_str(), cell.memory.as_str()),
            ("pinned", "memfd")
        );
        assert_eq!(
            (cell.event.as_str(), cell.is_kept),
            ("fork, then both write", true)
        );
        assert_eq!(cell.outcome, "same frames");
        assert!(parse("pinned\tmemfd").is_none());
    }
}
