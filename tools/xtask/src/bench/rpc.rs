//! `bench rpc`: null calls between two processes and memory handed over, beside pipes and peers.

use anyhow::Result;

use super::bounds::{Asserts, Bound, quotients};
use super::{figures, program, spread};
use crate::args::Args;
use crate::setup;
use crate::table::{Table, median};
use crate::world::{World, machine};

/// Of calls of 64 bytes. What docs/ROWS.md says of row C2. On two processors a pipe mostly wakes the other one up.
pub(super) const BOUNDS: [Bound; 4] = [
    Bound::at_most("farpage link / pipe, on one processor", 0.78, 25),
    Bound::at_most("farpage port / pipe, on one processor", 1.35, 25),
    Bound::at_most("farpage link / pipe, on two processors", 0.014, 200),
    Bound::at_most("farpage port / pipe, on two processors", 0.045, 200),
];

/// What was measured, and nanoseconds.
struct Line {
    /// Kind, place and bytes.
    what: String,
    name: String,
    ns: f64,
}

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let calls: u32 = args.number("--calls", 10_000)?;
    let mut asserts = Asserts::wanted(&mut args, runs)?;
    let is_bare = args.flag("--bare");
    args.finish()?;
    let mut features = ["--features", "peers"].as_slice();
    if is_bare {
        features = &[];
    } else {
        setup::peers(world)?;
    }
    program(world, features)?;
    asserts.begin()?;
    let (calls, count) = (calls.to_string(), runs.to_string());
    let arguments = ["rpc", "--runs", &count, "--calls", &calls];
    let lines = figures(world, features, &arguments, parse)?;
    println!("{}", machine());
    println!(
        "{runs} runs: median (least-most). Calls: there and back, both processes on one processor"
    );
    println!("(same) or on two (other). Memory: what the receiver spends until it has both ends.");
    print(&lines);
    asserts.end(&BOUNDS, |what| ratios(&lines, what))
}

/// Those of all runs: `NAME / pipe, on one processor` or `on two processors`.
fn ratios(lines: &[Line], what: &str) -> Vec<f64> {
    let place = if what.ends_with("one processor") {
        "call same 64 B"
    } else {
        "call other 64 B"
    };
    let name = what.split(" / ").next().unwrap_or_default();
    quotients(&column(lines, place, name), &column(lines, place, "pipe"))
}

/// Microseconds of all runs.
fn column(lines: &[Line], what: &str, name: &str) -> Vec<f64> {
    let of = lines.iter().filter(|l| l.what == what && l.name == name);
    of.map(|line| line.ns / 1000.0).collect()
}

fn parse(line: &str) -> Option<Line> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [kind, name, place, bytes, ns] = words.as_slice() else {
        return None;
    };
    let bytes: u64 = bytes.parse().ok()?;
    Some(Line {
        what: format!("{kind} {place} {bytes} B"),
        name: name.replace('_', " "),
        ns: ns.parse().ok()?,
    })
}

fn print(lines: &[Line]) {
    let mut table = Table::new(["", "us", "to the first"]);
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for line in lines {
        let key = (line.what.as_str(), line.name.as_str());
        if !seen.contains(&key) {
            seen.push(key);
        }
    }
    seen.sort_by_key(|(what, _)| lines.iter().position(|line| line.what == *what));
    for (what, name) in &seen {
        let first = seen.iter().find(|(other, _)| other == what);
        let bare = first.map_or(0.0, |(what, name)| median(&column(lines, what, name)));
        let own = column(lines, what, name);
        let ratio = format!("{:.2}", median(&own) / bare);
        table.row([format!("{what}: {name}"), spread(&own, 2), ratio]);
    }
    table.print();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_figures_is_read() {
        let line = parse("call farpage_link same 64 1234").unwrap();
        let read = (line.what.as_str(), line.name.as_str(), line.ns);
        assert_eq!(read, ("call same 64 B", "farpage link", 1234.0));
        assert!(parse("call farpage_link same 64").is_none());
    }

    #[test]
    fn bounds_are_about_calls_of_64_bytes() {
        let lines = [
            "call pipe same 64 4000",
            "call farpage_port same 64 5000",
            "call farpage_port same 1024 9000",
            "call pipe other 64 64000",
            "call farpage_port other 64 3200",
        ];
        let lines: Vec<Line> = lines.iter().map(|line| parse(line).unwrap()).collect();
        assert_eq!(ratios(&lines, BOUNDS[1].what), [1.25]);
        assert_eq!(ratios(&lines, BOUNDS[3].what), [0.05]);
        assert!(ratios(&lines, BOUNDS[0].what).is_empty());
    }
}
