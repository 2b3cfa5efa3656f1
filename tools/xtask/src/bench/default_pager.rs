//! `bench default-pager`: a program that needs more memory than there is, with the default pager inside
//! the host kernel and as a process of its own, and what that process takes.

use anyhow::Result;

use super::bounds::{Asserts, Bound};
use super::shared::{Line, parse, print};
use super::{figures, program};
use crate::args::Args;
use crate::table::median;
use crate::world::{World, machine};

/// Times the time with the default pager inside: with enough memory, and with little.
const TO_REACH: (f64, f64) = (1.01, 1.05);

/// Of a program of 7 MB with the pager outside, beside the pager inside. What docs/ROWS.md says of row D6.
pub(super) const BOUNDS: [Bound; 6] = [
    Bound::at_most("6.5 of 7 MB, in order", 1.10, 15),
    Bound::at_most("2.5 of 7 MB, in order", 1.12, 15),
    Bound::at_most("1.5 of 7 MB, in order", 1.07, 15),
    Bound::at_most("6.5 of 7 MB, at random", 1.23, 15),
    Bound::at_most("2.5 of 7 MB, at random", 1.29, 15),
    Bound::at_most("1.5 of 7 MB, at random", 1.26, 15),
];

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let mib: u32 = args.number("--mib", 4096)?;
    let mut asserts = Asserts::wanted(&mut args, runs)?;
    args.finish()?;
    program(world, &[])?;
    asserts.begin()?;
    let (count, mib) = (runs.to_string(), mib.to_string());
    let arguments = ["default-pager", "--runs", &count, "--mib", &mib];
    let lines = figures(world, &[], &arguments, parse)?;
    println!("{}", machine());
    println!("{runs} runs: median (least-most) of ns a page, and of the ratios of each run.");
    println!(
        "A program reads and writes all of its memory, of which so much is there. disk: pages go"
    );
    println!("to a paging file. compressed: a quarter of memory is for compressed ones. peer: the");
    println!("default pager is inside the host kernel; farpage: it is a process of its own.");
    let (memory, times): (Vec<Line>, Vec<Line>) = lines
        .into_iter()
        .partition(|line| line.what.starts_with("memory"));
    let ratios = print(&times);
    for (enough, most) in [(true, TO_REACH.0), (false, TO_REACH.1)] {
        let of = ratios.iter().filter(|(what, _)| is_enough(what) == enough);
        let worst = of.map(|(_, ratios)| median(ratios)).fold(0.0, f64::max);
        let (what, reached) = (
            if enough {
                "enough memory"
            } else {
                "little memory"
            },
            if worst <= most { "yes" } else { "NO" },
        );
        println!("{what}: {worst:.2} at worst; to reach {most}: {reached}");
    }
    println!("\nWhat the process takes, in KiB (threads: how many):");
    for line in memory {
        println!("{:>10}  {}", line.ns, line.name.replace('_', " "));
    }
    asserts.end(&BOUNDS, |what| {
        let of = ratios.iter().find(|(name, _)| *name == called(what));
        of.map(|(_, ratios)| ratios.clone()).unwrap_or_default()
    })
}

/// What `farpage-bench` calls `2.5 of 7 MB, in order`: `disk_2_of_7_MB, in order`.
fn called(what: &str) -> String {
    let mut parts = what.split(['.', ',']);
    let (mega, order) = (parts.next(), parts.next_back());
    let (mega, order) = (mega.unwrap_or_default(), order.unwrap_or_default());
    format!("disk_{mega}_of_7_MB,{order}")
}

/// Nearly all of the program's memory is there: "6500 of 7000".
fn is_enough(what: &str) -> bool {
    let mut numbers = what.split('_').filter_map(|word| word.parse::<f64>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(there), Some(all)) => there / all > 0.8,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_is_nearly_all() {
        assert!(is_enough("disk_6_of_7_MB, in order"));
        assert!(is_enough("disk_3988_of_4294_MB, in order"));
        assert!(!is_enough("compressed_2_of_7_MB, at random"));
        assert!(!is_enough("disk"));
    }

    #[test]
    fn bounds_are_about_what_is_measured() {
        assert_eq!(called(BOUNDS[1].what), "disk_2_of_7_MB, in order");
        assert_eq!(called(BOUNDS[3].what), "disk_6_of_7_MB, at random");
    }
}
