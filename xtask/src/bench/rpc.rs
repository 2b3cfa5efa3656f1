//! `bench rpc`: null calls between two processes and memory handed over, beside pipes and peers.

use anyhow::Result;

use super::{figures, spread};
use crate::args::Args;
use crate::setup;
use crate::table::{Table, median};
use crate::world::{World, machine};

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
    args.finish()?;
    setup::peers(world)?;
    let (calls, count) = (calls.to_string(), runs.to_string());
    let arguments = ["rpc", "--runs", &count, "--calls", &calls];
    let lines = figures(world, &["--features", "peers"], &arguments, parse)?;
    println!("{}", machine());
    println!(
        "{runs} runs: median (least-most). Calls: there and back, both processes on one processor"
    );
    println!("(same) or on two (other). Memory: what the receiver spends until it has both ends.");
    print(&lines);
    Ok(())
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
    let column = |what: &str, name: &str| -> Vec<f64> {
        let of = lines.iter().filter(|l| l.what == what && l.name == name);
        of.map(|line| line.ns / 1000.0).collect()
    };
    seen.sort_by_key(|(what, _)| lines.iter().position(|line| line.what == *what));
    for (what, name) in &seen {
        let first = seen.iter().find(|(other, _)| other == what);
        let bare = first.map_or(0.0, |(what, name)| median(&column(what, name)));
        let own = column(what, name);
        let ratio = format!("{:.2}", median(&own) / bare);
        table.row([format!("{what}: {name}"), spread(&own, 2), ratio]);
    }
    table.print();
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_line_of_figures_is_read() {
        let line = parse("call farpage_link same 64 1234").unwrap();
        let read = (line.what.as_str(), line.name.as_str(), line.ns);
        assert_eq!(read, ("call same 64 B", "farpage link", 1234.0));
        assert!(parse("call farpage_link same 64").is_none());
    }
}
