//! The comparison of policies, as tables.

use std::path::Path;
use std::process::ExitCode;

use farpage_sim::policy::{Costs, Kind, Outcome, Setup, Trace, decode, run};

/// Memory, in hundredths of what the program touches, where the command says nothing else.
const MEMORY: [usize; 2] = [50, 25];
const TIERS: [(Costs, &str); 2] = [(Costs::COMPRESSED, "compressed"), (Costs::DISK, "disk")];
/// Parts of memory that may lie aside: one in so many.
const ASIDE: [usize; 4] = [4, 8, 16, 32];

struct Named {
    name: String,
    trace: Trace,
}

/// What is not the policy's own in a comparison.
#[derive(Clone, Copy)]
struct How {
    /// One in so many pages of memory may lie aside.
    aside: usize,
    clean_aside: bool,
    neighbours: bool,
}

/// What the first tables compare policies with, for both tiers.
const USUAL: How = How {
    aside: 8,
    clean_aside: false,
    neighbours: true,
};

/// As paging to a disk is.
const AS_DISK: How = How {
    aside: 16,
    clean_aside: true,
    neighbours: true,
};

/// The sizes of memory, in hundredths of what a program touches, and the trace files. `None` when
/// they make no sense.
pub fn arguments(args: &[String]) -> Option<(Vec<usize>, &[String])> {
    let (percents, files) = match args {
        [first, list, files @ ..] if first == "--memory" => {
            let percents: Result<Vec<usize>, _> = list.split(',').map(str::parse).collect();
            (percents.ok()?, files)
        }
        files => (MEMORY.to_vec(), files),
    };
    let sensible = !files.is_empty() && percents.iter().all(|percent| (1..=100).contains(percent));
    sensible.then_some((percents, files))
}

/// Prints the tables for some trace files, with memory of so many hundredths of what each touches.
pub fn print(percents: &[usize], files: &[String]) -> ExitCode {
    let mut traces = Vec::new();
    for file in files {
        let bytes = match std::fs::read(file) {
            Ok(bytes) => bytes,
            Err(error) => {
                eprintln!("cannot read {file}: {error}");
                return ExitCode::FAILURE;
            }
        };
        let name = Path::new(file).file_stem().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        match decode(&bytes) {
            Ok(trace) => traces.push(Named { name, trace }),
            Err(error) => {
                eprintln!("{file}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    for (costs, tier) in TIERS {
        for &percent in percents {
            println!("\n{tier} tier, memory {percent}% of the footprint, 1/8 aside; ms");
            table(&traces, costs, percent);
        }
    }
    for &percent in percents {
        println!(
            "\npages paged in, memory {percent}% of the footprint, 1/16 aside, as from a disk"
        );
        page_ins(&traces, percent);
    }
    for (costs, tier) in TIERS {
        println!("\n{tier} tier, means over all memories, against FIFO that asks for pages alone");
        summary(&traces, costs, percents);
    }
    ExitCode::SUCCESS
}

fn outcome(trace: &Trace, kind: Kind, percent: usize, how: How) -> Outcome {
    let memory = trace.footprint * percent / 100;
    let setup = Setup {
        kind,
        memory,
        aside: memory / how.aside,
        clean_aside: how.clean_aside,
        neighbours: how.neighbours,
    };
    run(trace, setup)
}

fn header(first: &str) {
    print!("{first:24}");
    for kind in Kind::ALL {
        print!("{:>12}", kind.name());
    }
    println!();
}

fn table(traces: &[Named], costs: Costs, percent: usize) {
    header("trace, pages touched");
    let mut logs = [0.0; Kind::ALL.len()];
    for Named { name, trace } in traces {
        print!("{name:16}{:>8}", trace.footprint);
        for (sum, kind) in logs.iter_mut().zip(Kind::ALL) {
            let ms = outcome(trace, kind, percent, USUAL).cost_ms(&costs);
            *sum += ms.ln();
            print!("{ms:>12.1}");
        }
        println!();
    }
    means("mean against FIFO", &logs, logs[0], traces.len());
}

/// Pages that came in, and how many times those of the best policy that sees only faults they are.
fn page_ins(traces: &[Named], percent: usize) {
    header("trace, pages touched");
    for Named { name, trace } in traces {
        print!("{name:16}{:>8}", trace.footprint);
        let paged_in = Kind::ALL.map(|kind| outcome(trace, kind, percent, AS_DISK).paged_in);
        let all = paged_in.iter().zip(Kind::ALL);
        let seeing = all.filter(|(_, kind)| kind.sees_only_faults());
        let best = seeing.map(|(pages, _)| *pages).min().unwrap_or(0);
        for pages in paged_in {
            print!(
                "{:>12}",
                format!("{pages} {:.2}", pages as f64 / best.max(1) as f64)
            );
        }
        println!();
    }
}

fn means(first: &str, logs: &[f64], base: f64, count: usize) {
    print!("{first:24}");
    for sum in logs {
        print!("{:>12.3}", ((sum - base) / count as f64).exp());
    }
    println!();
}

fn summary(traces: &[Named], costs: Costs, percents: &[usize]) {
    header("");
    let mut base = None;
    for (clean_aside, neighbours) in [(false, false), (false, true), (true, false), (true, true)] {
        for aside in ASIDE {
            let mut logs = [0.0; Kind::ALL.len()];
            for (sum, kind) in logs.iter_mut().zip(Kind::ALL) {
                for Named { trace, .. } in traces {
                    for &percent in percents {
                        let how = How {
                            aside,
                            clean_aside,
                            neighbours,
                        };
                        let outcome = outcome(trace, kind, percent, how);
                        *sum += outcome.cost_ms(&costs).ln();
                    }
                }
            }
            let clean = if clean_aside { "all" } else { "dirty" };
            let with = if neighbours { "near" } else { "alone" };
            let base = *base.get_or_insert(logs[0]);
            let cells = traces.len() * percents.len();
            means(&format!("1/{aside}, {clean}, {with}"), &logs, base, cells);
        }
    }
}
