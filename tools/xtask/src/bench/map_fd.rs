//! `bench map-fd`: a private copy of the bytes of a file, beside reading them and a private mapping.

use anyhow::Result;

use super::{figures, spread};
use crate::args::Args;
use crate::table::Table;
use crate::world::{World, machine};

/// One run of one way, as `farpage-bench map-fd` prints it.
struct Line {
    way: String,
    ms: [f64; 3],
}

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let mib: u32 = args.number("--mib", 256)?;
    args.finish()?;
    let (size, count) = (mib.to_string(), runs.to_string());
    let lines = figures(
        world,
        &[],
        &["map-fd", "--runs", &count, "--mib", &size],
        parse,
    )?;
    println!("{}", machine());
    println!(
        "{mib} MiB from byte 77 of a file in the page cache, {runs} runs in turn; ms since the"
    );
    println!(
        "start: median (least-most). A private mapping is no copy: it shows what others write."
    );
    let mut table = Table::new(["", "first byte", "a page in 64", "all pages", "beside read"]);
    let names = [
        ("read", "read into new memory"),
        ("mmap", "mmap, MAP_PRIVATE"),
        ("map_fd", "map_fd"),
    ];
    let of = |way: &str, step: usize| -> Vec<f64> {
        let of_way = lines.iter().filter(|line| line.way == way);
        of_way.map(|line| line.ms[step]).collect()
    };
    for (way, name) in names {
        let all = of(way, 2);
        let ratio: Vec<f64> = all.iter().zip(of("read", 2)).map(|(a, b)| a / b).collect();
        let ms = [0, 1, 2].map(|step| spread(&of(way, step), 2));
        let [first, few, all] = ms;
        table.row([name.to_owned(), first, few, all, spread(&ratio, 2)]);
    }
    table.print();
    Ok(())
}

fn parse(line: &str) -> Option<Line> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [way, _, first, few, all] = words.as_slice() else {
        return None;
    };
    Some(Line {
        way: (*way).to_owned(),
        ms: [first.parse().ok()?, few.parse().ok()?, all.parse().ok()?],
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_line_of_figures_is_read() {
        let line = parse("map_fd 64 0.5 1 2.25").unwrap();
        assert_eq!((line.way.as_str(), line.ms), ("map_fd", [0.5, 1.0, 2.25]));
        assert!(parse("map_fd 64 0.5 1").is_none());
    }
}
