//! The comparison of policies, as tables.

use std::path::Path;
use std::process::ExitCode;

use farpage_sim::policy::{Costs, Kind, Setup, Trace, decode, run};

/// Memory, in hundredths of what the program touches.
const MEMORY: [usize; 2] = [50, 25];
const TIERS: [(Costs, &str); 2] = [(Costs::COMPRESSED, "compressed"), (Costs::DISK, "disk")];
/// Parts of memory that may lie aside: one in so many.
const ASIDE: [usize; 4] = [4, 8, 16, 32];

struct Named {
    name: String,
    trace: Trace,
}

/// Prints the tables for some trace files.
pub fn print(files: &[String]) -> ExitCode {
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
        for percent in MEMORY {
            println!("\n{tier} tier, memory {percent}% of the footprint, 1/8 aside; ms");
            table(&traces, costs, percent);
        }
    }
    for percent in MEMORY {
        println!(
            "\npages paged in, memory {percent}% of the footprint, 1/16 aside, as from a disk"
        );
        page_ins(&traces, percent);
    }
    for (costs, tier) in TIERS {
        println!("\n{tier} tier, means over both memories, against FIFO that asks for pages alone");
        summary(&traces, costs);
    }
    ExitCode::SUCCESS
}

fn cost_ms(
    trace: &Trace,
    costs: &Costs,
    kind: Kind,
    percent: usize,
    how: (usize, bool, bool),
) -> f64 {
    let memory = trace.footprint * percent / 100;
    let setup = Setup {
        kind,
        memory,
        aside: memory / how.0,
        clean_aside: how.1,
        neighbours: how.2,
    };
    run(trace, setup).cost_ms(costs)
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
            let ms = cost_ms(trace, &costs, kind, percent, (8, false, true));
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
        let memory = trace.footprint * percent / 100;
        let paged_in = Kind::ALL.map(|kind| {
            let setup = Setup {
                kind,
                memory,
                aside: memory / 16,
                clean_aside: true,
                neighbours: true,
            };
            run(trace, setup).paged_in
        });
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

fn summary(traces: &[Named], costs: Costs) {
    header("");
    let mut base = None;
    for (clean_aside, neighbours) in [(false, false), (false, true), (true, false), (true, true)] {
        for aside in ASIDE {
            let mut logs = [0.0; Kind::ALL.len()];
            for (sum, kind) in logs.iter_mut().zip(Kind::ALL) {
                for Named { trace, .. } in traces {
                    for percent in MEMORY {
                        let how = (aside, clean_aside, neighbours);
                        *sum += cost_ms(trace, &costs, kind, percent, how).ln();
                    }
                }
            }
            let clean = if clean_aside { "all" } else { "dirty" };
            let with = if neighbours { "near" } else { "alone" };
            let base = *base.get_or_insert(logs[0]);
            let cells = traces.len() * MEMORY.len();
            means(&format!("1/{aside}, {clean}, {with}"), &logs, base, cells);
        }
    }
}
