//! `bench shared`: pages of an object that two processes map, beside those of a bare memory file;
//! and faults that the host's daemon answers, beside the embedded kernel's.

use anyhow::Result;

use super::{figures, spread};
use crate::args::Args;
use crate::table::{Table, median};
use crate::world::{World, machine};

/// Times the time of a bare memory file, for pages that are there.
const TO_REACH_THERE: f64 = 1.1;
/// Times the time of the embedded kernel, for pages that the pager has.
const TO_REACH_ABSENT: f64 = 1.3;
/// Times the pages of a hot set that are asked for again when pages leave in the order they came.
const TO_REACH_HOT: f64 = 0.6;
/// Times the size of an object that eight processes and the host kernel take together.
const TO_REACH_TOGETHER: f64 = 1.05;
/// MiB of that object.
const TOGETHER_MIB: f64 = 2048.0;

/// What was measured, of whom, and nanoseconds.
pub(super) struct Line {
    pub(super) what: String,
    pub(super) name: String,
    pub(super) ns: f64,
}

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let pages: u32 = args.number("--pages", 65_536)?;
    args.finish()?;
    let (pages, count) = (pages.to_string(), runs.to_string());
    let arguments = ["shared", "--runs", &count, "--pages", &pages];
    let lines = figures(world, &[], &arguments, parse)?;
    println!("{}", machine());
    println!("{runs} runs: median (least-most) of ns a page, and of the ratios of each run.");
    println!("there: another process has written to all of them. new: nobody has.");
    println!("absent: the pager has them; one at a time, far apart, the median of each run.");
    println!(
        "hot: not ns, but pages of a hot set (a quarter of memory, used all the time) that are \
         asked for again beside scans of four times memory; peer: pages leave in the order they came."
    );
    println!(
        "together: not ns, but MiB that 8 processes and the host kernel take that share {TOGETHER_MIB} \
         MiB: proportional shares, and page tables."
    );
    let ratios = print(&lines);
    for (what, most) in [
        ("there", TO_REACH_THERE),
        ("absent", TO_REACH_ABSENT),
        ("hot", TO_REACH_HOT),
    ] {
        let of = ratios.iter().filter(|(name, _)| name.starts_with(what));
        let worst = of.map(|(_, ratios)| median(ratios)).fold(0.0, f64::max);
        let reached = if worst <= most { "yes" } else { "NO" };
        println!("{what}: {worst:.2} at worst; to reach {most}: {reached}");
    }
    let is_together = |l: &&Line| l.what.starts_with("together") && l.name == "farpage";
    let most = lines.iter().filter(is_together).map(|l| l.ns);
    let times = most.fold(0.0, f64::max) / TOGETHER_MIB;
    let reached = if times <= TO_REACH_TOGETHER {
        "yes"
    } else {
        "NO"
    };
    println!("together: {times:.3} of the object; to reach {TO_REACH_TOGETHER}: {reached}");
    Ok(())
}

pub(super) fn parse(line: &str) -> Option<Line> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [kind, name, order, _count, ns] = words.as_slice() else {
        return None;
    };
    Some(Line {
        what: format!("{kind}, {}", order.replace('_', " ")),
        name: (*name).to_owned(),
        ns: ns.parse().ok()?,
    })
}

/// Prints the table. Returns the ratios of all runs.
pub(super) fn print(lines: &[Line]) -> Vec<(String, Vec<f64>)> {
    let mut table = Table::new(["", "peer", "peer ns", "farpage ns", "ratio"]);
    let mut kinds: Vec<&str> = Vec::new();
    for line in lines {
        if !kinds.contains(&line.what.as_str()) {
            kinds.push(&line.what);
        }
    }
    kinds.sort_unstable();
    let mut all = Vec::new();
    for what in kinds {
        let of = |own: bool| -> Vec<&Line> {
            let is_one = |l: &&Line| l.what == what && (l.name == "farpage") == own;
            lines.iter().filter(is_one).collect()
        };
        let (peers, own) = (of(false), of(true));
        let ns = |lines: &[&Line]| lines.iter().map(|l| l.ns).collect::<Vec<_>>();
        let ratios: Vec<f64> = own.iter().zip(&peers).map(|(o, p)| o.ns / p.ns).collect();
        let peer = peers.first().map_or("", |line| line.name.as_str());
        table.row([
            what.to_owned(),
            peer.to_owned(),
            spread(&ns(&peers), 0),
            spread(&ns(&own), 0),
            spread(&ratios, 2),
        ]);
        all.push((what.to_owned(), ratios));
    }
    table.print();
    all
}

#[cfg(test)]
mod tests {
    use super::{Line, parse, print};

    #[test]
    fn a_line_of_figures_is_read() {
        let line = parse("there bare read_in_order 65536 177.2").unwrap();
        let read = (line.what.as_str(), line.name.as_str(), line.ns);
        assert_eq!(read, ("there, read in order", "bare", 177.2));
        assert!(parse("there bare read_in_order 65536").is_none());
    }

    #[test]
    fn ratios_are_of_the_same_run() {
        let line = |name: &str, ns: f64| Line {
            what: "there".into(),
            name: name.into(),
            ns,
        };
        let runs = [(100.0, 120.0), (200.0, 220.0), (50.0, 100.0)];
        let lines = runs.map(|(peer, own)| [line("bare", peer), line("farpage", own)]);
        let expected = [("there".to_owned(), vec![1.2, 1.1, 2.0])];
        assert_eq!(print(lines.as_flattened()), expected);
    }
}
