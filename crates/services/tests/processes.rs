//! A host kernel and programs that share memory through it: all of them processes.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farpage_abi::{ObjectId, PAGE_BYTES};
use farpage_host::Objects;
use farpage_pagers::{DataRequest, PageOut, Pager, PagerError, Supplied};
use farpage_services::{Error, Host, Refusal, Service, Shared};

const PROGRAM: &str = "FARPAGE_TEST_PROGRAM";
const RAM: u64 = 4 << 20;

type Page = Box<[u8; PAGE_BYTES]>;

/// Keeps pages in memory of its own.
#[derive(Default)]
struct Store(Mutex<HashMap<(ObjectId, u64), Page>>);

impl Pager for Store {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let (object, pages, all) = (request.object(), request.pages(), self.0.lock().unwrap());
        let buffer = request.buffer().chunks_exact_mut(PAGE_BYTES);
        for (page, into) in pages.iter().zip(buffer) {
            match all.get(&(object, page.0)) {
                Some(kept) => into.copy_from_slice(&**kept),
                None => into.fill(0),
            }
        }
        Ok(Supplied::clean(pages.pages()))
    }

    fn data_write(&self, object: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        let mut all = self.0.lock().unwrap();
        for page in pages {
            all.insert((object, page.page.0), Box::new(*page.bytes));
        }
        Ok(())
    }

    fn terminate(&self, object: ObjectId) {
        self.0.lock().unwrap().retain(|(of, _), _| *of != object);
    }
}

/// Another process: it does what it is told, a line at a time.
struct Program {
    child: Child,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
}

impl Program {
    fn start(kind: &str, socket: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["the_program", "--exact", "--nocapture"]);
        command.env(PROGRAM, kind).env("FARPAGE_HOST", socket);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let hears = child.stdin.take().unwrap();
        let mut program = Self { child, says, hears };
        assert_eq!(program.line(), "ready");
        program
    }

    /// What it says, but for what the test harness prints.
    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.says.read_line(&mut line).unwrap();
            assert!(read > 0, "the program has ended");
            if let Some(at) = line.find("> ") {
                return line[at + 2..].trim().to_owned();
            }
        }
    }

    fn does(&mut self, what: &str) -> String {
        writeln!(self.hears, "{what}").unwrap();
        self.line()
    }

    fn dies(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn view(shared: &Shared) -> &[std::sync::atomic::AtomicU64] {
    shared.words()
}

/// What programs do; nothing when it is run as a test.
#[test]
fn the_program() {
    let Ok(kind) = std::env::var(PROGRAM) else {
        return;
    };
    let socket = farpage_services::default_socket();
    if kind == "host" {
        let objects = Objects::start(RAM).unwrap();
        let service = Service::new(objects, RAM, Arc::new(Store::default())).unwrap();
        let _listening = service.listen(&socket).unwrap();
        println!("> ready");
        let Err(error) = service.run();
        panic!("{error}");
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
    let kernel = Program::start("host", &socket);
    let host = Host::connect(&socket).unwrap();
    (folder, kernel, host)
}

fn program(folder: &tempfile::TempDir) -> Program {
    Program::start("program", &folder.path().join("host"))
}

/// Waits until nothing is listed: the host kernel hears of a death when Linux tells it.
fn until_gone(host: &Host) {
    let began = Instant::now();
    while !host.list().unwrap().is_empty() {
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{:?}",
            host.list()
        );
        std::thread::yield_now();
    }
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
    let unnamed = host.create("", 9000).unwrap();
    view(&unnamed)[1].store(6, Ordering::Relaxed);
    let listed = host.list().unwrap();
    assert_eq!(
        (listed.len(), listed[0].name.as_str(), listed[0].bytes),
        (3, "", 9000)
    );
    drop((new, shared, unnamed));
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
        std::thread::sleep(Duration::from_micros(round * 300));
        program.dies();
    }
    until_gone(&host);
    let began = Instant::now();
    while host.status().unwrap().resident_bytes > 0 {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::yield_now();
    }
    assert_eq!(host.status().unwrap().objects, 0);
    kernel.dies();
}

#[test]
fn what_is_closed_leaves_no_threads_and_no_descriptors() {
    let (_folder, kernel, host) = host();
    let count = |what: &str| {
        std::fs::read_dir(format!("/proc/self/{what}"))
            .unwrap()
            .count()
    };
    let round = |number: usize| drop(host.create(&format!("n{number}"), 100_000).unwrap());
    (0..3).for_each(round);
    let before = (count("task"), count("fd"));
    (3..60).for_each(round);
    until_gone(&host);
    let after = (count("task"), count("fd"));
    // Other tests of this process have some, too.
    assert!(
        after.0 < before.0 + 30 && after.1 < before.1 + 40,
        "{before:?} {after:?}"
    );
    kernel.dies();
}

#[test]
fn without_a_host_kernel_the_error_says_how_to_start_one() {
    let folder = tempfile::tempdir().unwrap();
    let error = Host::connect(&folder.path().join("none")).err().unwrap();
    assert!(
        error.to_string().ends_with("start one: farpage up"),
        "{error}"
    );
}

#[test]
fn a_socket_of_another_user_is_not_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("host");
    std::fs::write(&socket, "").unwrap();
    if std::os::unix::fs::chown(&socket, Some(12345), None).is_err() {
        println!("skipped: only root can give files away");
        return;
    }
    for given in [socket.as_path(), folder.path()] {
        let error = Host::connect(&socket).err().unwrap().to_string();
        let shown = format!("'{}' belongs to user 12345", given.display());
        assert!(error.starts_with(&shown), "{error}");
        std::os::unix::fs::chown(folder.path(), Some(12345), None).unwrap();
    }
}
