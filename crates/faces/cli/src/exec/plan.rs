//! `farpage exec --plan`: what loading a program takes.

use std::ops::Range;

use anyhow::{Result, anyhow};
use farpage_plan::{Command, Kind, Plan, PlanError, Protection, Role, plan};
use farpage_supervisor::{exec as load, maps};
use farpage_text::columns::{Side, columns};
use farpage_text::size::human;
use serde::Serialize;

use super::ExecArgs;

/// A plan, and what it took to know it.
#[derive(Serialize)]
struct Planned<'a> {
    address: &'a str,
    /// Bytes that were read of it.
    read_bytes: u64,
    /// Bytes of its segments.
    mapped_bytes: u64,
    /// Bytes that are fetched before it starts.
    before_start_bytes: u64,
    #[serde(flatten)]
    plan: &'a Plan,
}

/// Prints the plan of the program at `url`.
///
/// # Errors
/// When there is none, or it cannot be read.
pub fn print(url: &str, args: &ExecArgs) -> Result<()> {
    let (source, _) = maps::open(url, args.deadline).map_err(load::missing)?;
    let mut read_bytes = 0;
    let mut read = |offset: u64, bytes: usize| {
        let mut part = vec![0; bytes];
        read_bytes += bytes as u64;
        source.read_at(offset, &mut part).map(|()| part)
    };
    let plan = plan(source.size(), &mut read).map_err(|error| match error {
        PlanError::Load(error) => load::refused(url, &error),
        PlanError::Read { error, .. } => anyhow!(error),
        error @ PlanError::ShortRead { .. } => anyhow!(error.to_string()),
    })?;
    if args.json {
        let planned = Planned {
            address: url,
            read_bytes,
            mapped_bytes: plan.mapped_bytes(),
            before_start_bytes: plan.bytes_before_start(),
            plan: &plan,
        };
        outln!("{}", serde_json::to_string_pretty(&planned)?);
        return Ok(());
    }
    outln!("{url}: {}, {}", kind(plan.kind), human(plan.bytes));
    let sides = [Side::Left, Side::Left, Side::Left, Side::Left];
    let head = ["COMMAND", "FILE", "MEMORY", "WHAT"];
    for line in columns(sides, head, plan.commands.iter().map(|c| row(c, plan.kind))) {
        outln!("{line}");
    }
    outln!(
        "mapped: {}; fetched before it starts: {} ({}); read for this: {}",
        human(plan.mapped_bytes()),
        human(plan.bytes_before_start()),
        list(&plan.before_start),
        human(read_bytes)
    );
    Ok(())
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Dynamic => "a program at a fixed address",
        Kind::DynamicPie => "a program at any address",
        Kind::Static => "a static program at a fixed address",
        Kind::StaticPie => "a static program at any address",
        Kind::Library => "a library",
    }
}

fn row(command: &Command, kind: Kind) -> [String; 4] {
    let at = |address: &Range<u64>| {
        let sign = if kind.is_relative() { "+" } else { "" };
        format!("{sign}{:#x}..{:#x}", address.start, address.end)
    };
    let bytes = |range: &Range<u64>| human(range.end - range.start);
    let (name, file, memory, what) = match command {
        Command::ReadOnly {
            file,
            address,
            protection,
        } => {
            let what = format!("{} {}, one copy", letters(*protection), bytes(file));
            ("READ_ONLY", span(file), at(address), what)
        }
        Command::Writeable {
            file,
            address,
            protection,
        } => {
            let what = format!("{} {}, copy-on-write", letters(*protection), bytes(file));
            ("WRITEABLE", span(file), at(address), what)
        }
        Command::ZeroFill { address } => {
            let what = format!("rw- {}", bytes(address));
            ("ZEROFILL", String::new(), at(address), what)
        }
        Command::Register {
            entry,
            tls_bytes,
            executable_stack,
        } => {
            let mut what = "first instruction; stack".to_owned();
            what += if *executable_stack { " rwx" } else { " rw-" };
            if *tls_bytes > 0 {
                what += &format!("; {} of each thread", human(*tls_bytes));
            }
            let sign = if kind.is_relative() { "+" } else { "" };
            ("REGISTER", String::new(), format!("{sign}{entry:#x}"), what)
        }
        Command::LoadFile { name, role } => {
            let role = match role {
                Role::Interpreter => "dynamic linker",
                Role::Library => "library",
            };
            (
                "LOADFILE",
                String::new(),
                String::new(),
                format!("{name}, {role}"),
            )
        }
        Command::Relocate {
            table,
            file,
            entries,
        } => {
            let what = format!("{table}, {entries} entries");
            ("RELOCATE", span(file), String::new(), what)
        }
        Command::EndLoad => ("END_LOAD", String::new(), String::new(), String::new()),
    };
    [name.to_owned(), file, memory, what]
}

fn letters(protection: Protection) -> String {
    let letter = |is: bool, letter: char| if is { letter } else { '-' };
    [
        letter(protection.read, 'r'),
        letter(protection.write, 'w'),
        letter(protection.execute, 'x'),
    ]
    .iter()
    .collect()
}

fn span(range: &Range<u64>) -> String {
    format!("{:#x}..{:#x}", range.start, range.end)
}

fn list(ranges: &[Range<u64>]) -> String {
    let all: Vec<String> = ranges.iter().map(span).collect();
    all.join(", ")
}
