//! `bench translate`: how fast numbers of other formats become those of memory, beside memcpy.

use anyhow::Result;

use super::{figures, spread};
use crate::args::Args;
use crate::table::{Table, median};
use crate::world::{World, machine};

/// The least share of memcpy's speed, in bytes read and written.
const TO_REACH: f64 = 0.5;

/// One run of one translation, as `farpage-bench translate` prints it.
struct Line {
    name: String,
    read_bytes: f64,
    written_bytes: f64,
    ns: f64,
    copy_ns: f64,
}

impl Line {
    fn moved(&self) -> f64 {
        self.read_bytes + self.written_bytes
    }
}

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let mib: u32 = args.number("--mib", 64)?;
    args.finish()?;
    let (size, count) = (mib.to_string(), runs.to_string());
    let arguments = ["translate", "--runs", &count, "--mib", &size];
    let lines = figures(world, &[], &arguments, parse)?;
    println!("{}", machine());
    println!(
        "{mib} MiB of memory, {runs} runs: median (least-most), each run beside a memcpy of as"
    );
    println!("many bytes as it writes. Moved is read and written: memcpy reads what it writes, a");
    println!("translation reads as many numbers, each of the size that it has on that side.");
    print(&lines);
    Ok(())
}

fn parse(line: &str) -> Option<Line> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [name, way, read, written, ns, copy] = words.as_slice() else {
        return None;
    };
    Some(Line {
        name: format!("{name} {way}"),
        read_bytes: read.parse().ok()?,
        written_bytes: written.parse().ok()?,
        ns: ns.parse().ok()?,
        copy_ns: copy.parse().ok()?,
    })
}

fn print(lines: &[Line]) {
    let mut table = Table::new([
        "",
        "written GB/s",
        "memcpy",
        "ratio",
        "moved GB/s",
        "memcpy",
        "ratio",
        "to reach",
    ]);
    let mut names: Vec<&str> = Vec::new();
    for line in lines {
        if !names.contains(&line.name.as_str()) {
            names.push(&line.name);
        }
    }
    for name in names {
        let column = |of: fn(&Line) -> f64| -> Vec<f64> {
            lines
                .iter()
                .filter(|line| line.name == name)
                .map(of)
                .collect()
        };
        let moved = column(|line| line.moved() / line.ns);
        let moved_copy = column(|line| 2.0 * line.written_bytes / line.copy_ns);
        let ratio: Vec<f64> = moved.iter().zip(&moved_copy).map(|(a, b)| a / b).collect();
        let verdict = if median(&ratio) >= TO_REACH {
            "yes"
        } else {
            "NO"
        };
        table.row([
            name.to_owned(),
            spread(&column(|line| line.written_bytes / line.ns), 1),
            spread(&column(|line| line.written_bytes / line.copy_ns), 1),
            spread(&column(|line| line.copy_ns / line.ns), 2),
            spread(&moved, 1),
            spread(&moved_copy, 1),
            spread(&ratio, 2),
            format!("{TO_REACH}: {verdict}"),
        ]);
    }
    table.print();
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_line_of_figures_is_read() {
        let line = parse("f16-f32 in 32 64 8 4").unwrap();
        assert_eq!(
            (line.name.as_str(), line.read_bytes, line.written_bytes),
            ("f16-f32 in", 32.0, 64.0)
        );
        assert_eq!((line.ns, line.copy_ns), (8.0, 4.0));
        assert!(parse("f16-f32 in 32 64 8").is_none());
    }
}
