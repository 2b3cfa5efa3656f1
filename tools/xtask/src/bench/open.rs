//! `bench open`: a local file opened for reading, beside a mapping of Linux's.

use anyhow::Result;

use super::bounds::{Asserts, Bound, quotients};
use super::{figures, spread};
use crate::args::Args;
use crate::table::Table;
use crate::world::{World, machine};

/// Times of ours by those of a plain mapping.
pub(crate) const BOUNDS: [Bound; 4] = [
    Bound::at_most("farpage warm", 1.0, 5),
    Bound::at_most("farpage cold", 1.0, 10),
    Bound::at_most("quarter warm", 1.2, 15),
    Bound::at_most("quarter cold", 1.1, 20),
];

/// One run of one way, as `farpage-bench open` prints it.
struct Line {
    way: String,
    state: String,
    ms: f64,
}

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let mib: u32 = args.number("--mib", 1024)?;
    let mut asserts = Asserts::wanted(&mut args, runs)?;
    args.finish()?;
    super::program(world, &[])?;
    asserts.begin()?;
    let (size, count) = (mib.to_string(), runs.to_string());
    let lines = figures(
        world,
        &[],
        &["open", "--runs", &count, "--mib", &size],
        parse,
    )?;
    println!("{}", machine());
    println!(
        "{mib} MiB of a local file summed in order, {runs} runs in turn; ms since it was opened:"
    );
    println!(
        "median (least-most). Warm: the file is in the page cache. Beside: of a plain mapping's time."
    );
    let of = |way: &str, state: &str| -> Vec<f64> {
        let same = lines
            .iter()
            .filter(|line| line.way == way && line.state == state);
        same.map(|line| line.ms).collect()
    };
    let ratio = |way: &str, state: &str| quotients(&of(way, state), &of("mmap", state));
    let mut table = Table::new(["", "warm", "beside", "cold", "beside"]);
    let names = [
        ("mmap", "mmap, as np.memmap"),
        ("farpage", "farpage"),
        ("quarter", "farpage, a quarter of it in memory"),
    ];
    for (way, name) in names {
        let [warm, cold] = ["warm", "cold"]
            .map(|state| (spread(&of(way, state), 0), spread(&ratio(way, state), 2)));
        table.row([name.to_owned(), warm.0, warm.1, cold.0, cold.1]);
    }
    table.print();
    asserts.end(&BOUNDS, |what| {
        let (way, state) = what.split_once(' ').unwrap_or_default();
        ratio(way, state)
    })
}

fn parse(line: &str) -> Option<Line> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [way, state, _, ms] = words.as_slice() else {
        return None;
    };
    Some(Line {
        way: (*way).to_owned(),
        state: (*state).to_owned(),
        ms: ms.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_line_of_figures_is_read() {
        let line = parse("farpage warm 64 0.5").unwrap();
        assert_eq!(
            (line.way.as_str(), line.state.as_str(), line.ms),
            ("farpage", "warm", 0.5)
        );
        assert!(parse("farpage warm 64").is_none());
    }
}
