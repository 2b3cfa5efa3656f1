//! `cargo xtask rows`: runs the command behind each row of `docs/ROWS.md`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::proc;
use crate::world::World;

/// Longest that one command may take.
const LIMIT: Duration = Duration::from_secs(3600);

/// One line of the table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    name: String,
    what: String,
    state: String,
    command: String,
}

/// Entry point: the named rows whatever they claim, or all rows that claim to be done.
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
        rows.iter()
            .filter(|row| !row.command.is_empty())
            .for_each(|row| println!("{}", row.name));
        return Ok(());
    }
    if let Some(name) = named.iter().find(|n| rows.iter().all(|r| r.name != **n)) {
        bail!("{} has no row {name}", path.display());
    }
    let mut ran: HashMap<String, Result<(), String>> = HashMap::new();
    let mut bad = 0;
    for row in rows
        .iter()
        .filter(|r| named.is_empty() || named.contains(&r.name))
    {
        let claims = row.state.starts_with("done");
        print!("{:4} {:45} ", row.name, row.what);
        std::io::stdout().flush()?;
        let verdict = if !claims && named.is_empty() {
            row.state.clone()
        } else if row.command.is_empty() {
            bad += 1;
            format!("missing: it is {} and has no command", row.state)
        } else {
            let run = || run(world, &row.command).map_err(|e| format!("{e:#}"));
            match ran.entry(row.command.clone()).or_insert_with(run) {
                Ok(()) if claims => "ok".to_owned(),
                Ok(()) => format!("ok as far as it goes: {}", row.state),
                Err(e) => {
                    bad += 1;
                    format!("missing: {e}")
                }
            }
        };
        println!("{verdict}");
    }
    if bad > 0 {
        bail!("{bad} rows lack something");
    }
    Ok(())
}

/// Runs `command` by the shell in the repository; the error ends with what it said last.
fn run(world: &World, command: &str) -> Result<()> {
    let log = world.scratch("rows")?.join("output");
    let mut sh = Command::new("/bin/sh");
    sh.args(["-c", command]).current_dir(&world.root);
    let file = File::create(&log)?;
    sh.stdout(file.try_clone()?).stderr(file);
    let outcome = proc::run(&mut sh, LIMIT, false)?;
    if outcome.status.success() {
        return Ok(());
    }
    let said = fs::read(&log)?;
    let said = String::from_utf8_lossy(&said);
    let lines: Vec<&str> = said.lines().filter(|l| !l.trim().is_empty()).collect();
    let last = lines[lines.len().saturating_sub(5)..].join("\n       ");
    bail!("`{command}`: {}\n       {last}", outcome.ending())
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
        is_row.then(|| Row {
            name: (*name).to_owned(),
            what: (*what).to_owned(),
            state: (*state).to_owned(),
            command: command.trim_matches('`').to_owned(),
        })
    };
    text.lines().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn rows_are_read_and_prose_is_not() {
        let text = "# Rows\n| row | what | state | command | test | figure |\n\
                    |---|---|---|---|---|---|\n\
                    | A4 | pager interface | done | `cargo test -p x` | | |\nA5 is prose\n\
                    | B1 | locks | open | | | |\n";
        let rows = parse(text);
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0].command, "cargo test -p x");
        assert_eq!(
            (rows[1].name.as_str(), rows[1].command.as_str()),
            ("B1", "")
        );
    }

    #[test]
    fn the_committed_table_names_every_row_once() {
        let rows = parse(include_str!("../../docs/ROWS.md"));
        let mut names: Vec<_> = rows.iter().map(|r| r.name.clone()).collect();
        names.dedup();
        assert_eq!(names.len(), 11 + 6 + 14 + 6 + 11);
        assert_eq!(rows.len(), names.len());
    }
}
