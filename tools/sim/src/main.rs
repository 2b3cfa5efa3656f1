//! Runs seeds: `--seeds N [--from N]`, or replays one: `--seed N [--verbose]`; or compares
//! replacement policies on recorded traces: `--policies TRACE...`.

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use farpage_sim::{Coverage, Log, explore, replay, run};

mod table;

const USAGE: &str = "usage: farpage-sim --seeds N [--from N] | --seed N [--verbose]
       farpage-sim --explore PAGES | --policies [--memory PERCENT,...] TRACE...";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1)?.parse::<u64>().ok()
    };
    if let Some(seed) = number("--seed") {
        let verbose = args.iter().any(|arg| arg == "--verbose");
        let log: Option<Log> = verbose.then(|| Box::new(|line| println!("{line}")) as Log);
        println!("{:?}", run(seed, log));
        return ExitCode::SUCCESS;
    }
    if args.first().is_some_and(|arg| arg == "--policies") {
        return match table::arguments(&args[1..]) {
            Some((percents, files)) => table::print(&percents, files),
            None => usage(),
        };
    }
    if let Some(pages) = number("--explore") {
        for own in [false, true] {
            let worlds = explore(pages as usize, own, &mut |line| println!("{line}"));
            let whose = if own {
                "first page of an own pager"
            } else {
                "temporary"
            };
            println!("{worlds} worlds of {pages} pages ({whose}), two threads, no law broken");
        }
        return ExitCode::SUCCESS;
    }
    let Some(seeds) = number("--seeds") else {
        return usage();
    };
    many(number("--from").unwrap_or(0), seeds)
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// Runs seeds on every processor.
fn many(from: u64, seeds: u64) -> ExitCode {
    let (next, steps, failed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let coverage = Mutex::new(Coverage::default());
    let begin = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= seeds {
                        return;
                    }
                    match catch_unwind(|| run(from + n, None)) {
                        Ok(report) => {
                            steps.fetch_add(report.steps, Ordering::Relaxed);
                            if let Ok(mut sum) = coverage.lock() {
                                sum.add(&report.coverage);
                            }
                        }
                        Err(_) => {
                            eprintln!("seed {} fails; replay: {}", from + n, replay(from + n));
                            if failed.fetch_add(1, Ordering::Relaxed) >= 9 {
                                next.store(seeds, Ordering::Relaxed);
                            }
                        }
                    }
                    if (n + 1).is_multiple_of(10_000) {
                        let rate = (n + 1) as f64 / begin.elapsed().as_secs_f64();
                        eprintln!("{} seeds, {rate:.0} seeds/s", n + 1);
                    }
                }
            });
        }
    });
    let (failed, steps) = (failed.into_inner(), steps.into_inner());
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds from {from}: {failed} failed, {steps} steps, {seconds:.1} s, {:.0} seeds/s",
        seeds as f64 / seconds
    );
    if let Ok(sum) = coverage.into_inner() {
        println!("{sum}");
    }
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
