//! A host kernel and programs that share memory through it: all of them processes.

use std::io::Write;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farpage_client::{Error, Host, Refusal, Shared};

use crate::support::{PROGRAM, Program, RAM, run_host, until, until_gone};

fn view(shared: &Shared) -> &[std::sync::atomic::AtomicU64] {
    shared.words()
}

/// What programs do; nothing when it is run as a test.
#[test]
fn the_program() {
    let Ok(kind) = std::env::var(PROGRAM) else {
        return;
    };
    let socket = farpage_client::default_socket();
    if kind == "host" {
        run_host();
    }
    let host = Host::connect(&socket).unwrap();
    let mut held: Vec<Shared> = Vec::new();
    println!("> ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let answer = match words[0] {
            "create" => host.create(words[1], number(2)).map(|one| held.push(one)),
            "open" => host.open(words[1]).map(|one| held.push(one)),
            "unlink" => host.unlink(words[1]),
            "close" => {
                held.clear();
                Ok(())
            }
            // Each word of each page: its number and what it is given.
            "fill" => {
                let words = view(&held[0]).iter().enumerate();
                words.for_each(|(at, word)| word.store(at as u64 + number(1), Ordering::Relaxed));
                Ok(())
            }
            "check" => {
                let add = number(1);
                let mut words = view(&held[0]).iter().enumerate();
                let wrong =
                    words.find(|(at, word)| word.load(Ordering::Relaxed) != *at as u64 + add);
                println!(
                    "> {}",
                    wrong.map_or("right".into(), |(at, _)| format!("word {at}"))
                );
                continue;
            }
            "count" => {
                for _ in 0..number(1) {
                    let words = view(&held[0]);
                    let step = words.len() / 64;
                    words.iter().step_by(step).for_each(|word| {
                        word.fetch_add(1, Ordering::Relaxed);
                    });
                }
                Ok(())
            }
            "sum" => {
                let words = view(&held[0]);
                let counters = words.iter().step_by(words.len() / 64);
                let sum: u64 = counters.map(|word| word.load(Ordering::Relaxed)).sum();
                println!("> {sum}");
                continue;
            }
            other => panic!("no such thing: {other}"),
        };
        match answer {
            Ok(()) => println!("> done"),
            Err(error) => println!("> {error}"),
        }
    }
    std::process::exit(0);
}

/// A host kernel and where it listens.
fn host() -> (tempfile::TempDir, Program, Host) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("host");
    let kernel = Program::start("processes::host", &socket);
    let host = Host::connect(&socket).unwrap();
    (folder, kernel, host)
}

fn program(folder: &tempfile::TempDir) -> Program {
    Program::start("processes::program", &folder.path().join("host"))
}

#[test]
fn what_one_writes_the_other_reads_beyond_what_memory_holds() {
    let (folder, kernel, host) = host();
    let (mut one, mut other) = (program(&folder), program(&folder));
    assert_eq!(one.does("create numbers 20000000"), "done");
    assert_eq!(one.does("fill 7"), "done");
    assert_eq!(other.does("open numbers"), "done");
    assert_eq!(other.does("check 7"), "right");
    assert_eq!(other.does("fill 9"), "done");
    assert_eq!(one.does("check 9"), "right");
    let listed = host.list().unwrap();
    assert_eq!((listed.len(), listed[0].bytes), (1, 20_000_000));
    let mut pids = [one.child.id(), other.child.id()];
    pids.sort_unstable();
    assert_eq!(listed[0].mapped_by, pids);
    assert_eq!(listed[0].pid, one.child.id());
    assert!(listed[0].resident_bytes <= RAM + (1 << 20), "{listed:?}");
    one.dies();
    assert_eq!(other.does("check 9"), "right");
    other.dies();
    until_gone(&host);
    drop(host);
    kernel.dies();
}

#[test]
fn no_count_is_lost_between_processes() {
    let (folder, kernel, host) = host();
    let mut programs: Vec<Program> = (0..4).map(|_| program(&folder)).collect();
    assert_eq!(programs[0].does("create counters 8000000"), "done");
    for program in &mut programs[1..] {
        assert_eq!(program.does("open counters"), "done");
    }
    for program in &mut programs {
        writeln!(program.hears, "count 500").unwrap();
    }
    for program in &mut programs {
        assert_eq!(program.line(), "done");
    }
    let words = 1_000_000usize;
    let counters = words.div_ceil(words / 64) as u64;
    assert_eq!(programs[3].does("sum"), (4 * 500 * counters).to_string());
    programs.into_iter().for_each(Program::dies);
    until_gone(&host);
    kernel.dies();
}

#[test]
fn names_are_refused_found_and_taken_away() {
    let (folder, kernel, host) = host();
    let mut one = program(&folder);
    assert_eq!(one.does("create x 5000"), "done");
    assert!(matches!(
        host.create("x", 10),
        Err(Error::Refused(Refusal::Exists(_)))
    ));
    assert!(matches!(
        host.create("", 0),
        Err(Error::Refused(Refusal::Size(0)))
    ));
    assert!(matches!(
        host.create("a/b", 10),
        Err(Error::Refused(Refusal::Name(_)))
    ));
    assert!(matches!(
        host.open("y"),
        Err(Error::Refused(Refusal::NotFound(_)))
    ));
    let shared = host.open("x").unwrap();
    assert_eq!((shared.bytes(), shared.name()), (5000, "x"));
    host.unlink("x").unwrap();
    assert!(host.open("x").is_err() && host.unlink("x").is_err());
    // A new one of that name is another one.
    let new = host.create("x", 4096).unwrap();
    view(&new)[0].store(5, Ordering::Relaxed);
    assert_eq!(view(&shared)[0].load(Ordering::Relaxed), 0);
    assert_eq!(host.list().unwrap().len(), 2);
    drop((new, shared));
    one.dies();
    until_gone(&host);
    kernel.dies();
}

#[test]
fn killed_at_any_moment_programs_leave_nothing() {
    let (folder, kernel, host) = host();
    for round in 0..60u64 {
        let mut program = program(&folder);
        writeln!(program.hears, "create big{round} 3000000\nfill 1\nclose").unwrap();
        farpage_testkit::pass(Duration::from_micros(round * 300));
        program.dies();
    }
    until_gone(&host);
    until("nothing is in memory", || {
        host.status().unwrap().resident_bytes == 0
    });
    assert_eq!(host.status().unwrap().objects, 0);
    kernel.dies();
}

#[test]
fn without_a_host_kernel_the_error_says_how_to_start_one() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("none");
    let error = Host::connect(&socket).err().unwrap();
    let ends = format!("start one: farpage up --socket {}", socket.display());
    assert!(error.to_string().ends_with(&ends), "{error}");
}
