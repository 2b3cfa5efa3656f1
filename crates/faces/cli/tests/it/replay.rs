//! `farpage run --map` with `--record` and `--replay`, and its figures for mapped files.

use std::fs;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use farpage::{Memory, OpenOptions};
use farpage_source::{Trace, Traces};
use farpage_testkit::server::{Answer, Server, Speed};
use farpage_testkit::{Started, until};
use serde_json::Value;

const MIB: usize = 1 << 20;

/// Waits for a line, then reads here and there in the files that it is given, by turns.
const READER: &str = "\
import hashlib, os, sys
files = [os.open(name, os.O_RDONLY) for name in sys.argv[1:]]
sys.stdin.readline()
sum = hashlib.sha256()
for at in 7, 1, 5, 3:
    for fd in files:
        for i in range(5):
            sum.update(os.pread(fd, 65536, at * 900_000 + i * 65536))
print(sum.hexdigest())
";

fn contents(bytes: usize, seed: u8) -> Vec<u8> {
    let numbers = (0..bytes.div_ceil(8)).map(|n| (n as u64) << 8 | u64::from(seed));
    let mut contents: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    contents.truncate(bytes);
    contents
}

/// `farpage run` in `folder`, with a trace, statistics in `stats` and the files of `maps`.
fn farpage(folder: &Path, options: &[&str], maps: &[String], program: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
    command.current_dir(folder).args(["run", "--ram", "64M"]);
    command.args(["--spill", "/tmp", "--stats", "stats"]);
    command.args(options);
    for map in maps {
        command.args(["--map", map]);
    }
    command.arg("--").args(program);
    command.env_remove("FARPAGE_CACHE");
    command
}

fn start(folder: &Path, options: &[&str], maps: &[String]) -> Started {
    let names = maps.iter().map(|map| map.split_once('=').unwrap().0);
    let program: Vec<&str> = ["python3", "-c", READER].into_iter().chain(names).collect();
    let mut command = farpage(folder, options, maps, &program);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    Started::new(piped.stderr(Stdio::piped()))
}

/// Lets the reader go on. Returns what it says, what Farpage says, and the figures of the files.
fn finish(folder: &Path, mut run: Started) -> (String, String, Vec<Value>) {
    run.stdin.take().unwrap().write_all(b"\n").unwrap();
    let Output {
        status,
        stdout,
        stderr,
    } = run.output();
    let (said, errors) = (text(&stdout), text(&stderr));
    assert!(status.success(), "{status} {errors}");
    (said, errors, figures(folder))
}

fn figures(folder: &Path) -> Vec<Value> {
    let stats: Value = serde_json::from_slice(&fs::read(folder.join("stats")).unwrap()).unwrap();
    stats["maps"].as_array().unwrap().clone()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn sum(of: &[Value], name: &str) -> u64 {
    of.iter().map(|map| map[name].as_u64().unwrap()).sum()
}

/// Waits until every run of the trace was asked of the server since `first` requests.
fn wait_for(server: &Server, first: u64, paths: &[&str], trace: &Traces) {
    let range = |text: &str| -> Option<Range<u64>> {
        let (start, end) = text.strip_prefix("bytes=")?.split_once('-')?;
        Some(start.parse().ok()?..end.parse::<u64>().ok()? + 1)
    };
    until("the server is asked for the whole trace", || {
        let log = server.log();
        let asked = |path: &str, page: u64| {
            let of = |request: &&farpage_testkit::server::Request| request.path == path;
            let mut ranges = log[first as usize..].iter().filter(of);
            let range =
                |request: &farpage_testkit::server::Request| range(request.header("range")?);
            ranges.any(|request| range(request).is_some_and(|range| range.contains(&(page << 12))))
        };
        let pages = |(at, run): &(usize, farpage::PageRange)| {
            (run.start.0..run.end.0).all(|page| asked(paths[*at], page))
        };
        trace.runs.iter().all(pages)
    });
}

fn slow_server(folder: &Path) -> Server {
    let speed = Speed {
        latency: Duration::from_millis(5),
        ..Speed::default()
    };
    Server::start(folder, speed).unwrap()
}

#[test]
fn what_was_recorded_is_there_before_it_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("x"), contents(8 * MIB + 77, 1)).unwrap();
    fs::write(folder.join("y"), contents(7 * MIB, 2)).unwrap();
    let server = slow_server(folder);
    let maps = ["x", "y"].map(|name| format!("{name}.far={}", server.url(&format!("/{name}"))));
    let bare = start(folder, &[], &maps);
    let (want, _, without) = finish(folder, bare);
    let before = server.requests();
    // The first time there is nothing to replay.
    let recorded = start(folder, &["--record", "trace", "--replay", "trace"], &maps);
    let (said, _, recorded) = finish(folder, recorded);
    let needed = server.requests() - before;
    assert_eq!(said, want);
    assert_eq!(
        (sum(&without, "ahead_bytes"), sum(&recorded, "ahead_bytes")),
        (0, 0)
    );
    assert!(sum(&recorded, "page_ins") >= 8, "{recorded:?}");

    let trace = Traces::read(&folder.join("trace")).unwrap();
    let names: Vec<_> = trace.sources.iter().map(|of| of.name.as_deref()).collect();
    assert_eq!(names, [Some("x.far"), Some("y.far")]);
    let turns = trace.runs.chunk_by(|a, b| a.0 == b.0).count();
    assert_eq!(turns, 8, "the order of both: {trace:?}");

    // The last answer can be on its way when the reader wants it.
    until("all is there before it is wanted", || {
        let before = server.requests();
        let replayed = start(folder, &["--replay", "trace"], &maps);
        wait_for(&server, before, &["/x", "/y"], &trace);
        let (said, errors, replayed) = finish(folder, replayed);
        assert_eq!(said, want, "{errors}");
        assert!(
            sum(&replayed, "ahead_bytes") >= 2 * 4 * 5 * 65536,
            "{replayed:?}"
        );
        let asked = server.requests() - before;
        assert!(
            asked <= needed,
            "{asked} requests, {needed} when they were needed"
        );
        let is_none = sum(&replayed, "page_ins") == 0;
        assert_eq!(errors.contains("ahead of need; 0 page-ins"), is_none);
        is_none
    });

    // Recorded again while it is replayed: the trace keeps what only the first run asked for.
    let before = server.requests();
    let both = start(folder, &["--replay", "trace", "--record", "trace"], &maps);
    wait_for(&server, before, &["/x", "/y"], &trace);
    finish(folder, both);
    let pages = |traces: &Traces| traces.runs.iter().map(|(_, run)| run.pages()).sum::<u64>();
    assert!(pages(&Traces::read(&folder.join("trace")).unwrap()) >= pages(&trace));
}

/// The command in `farpage`, as a user without privileges: then Linux does not wait for pages of
/// programs that read. `None` when this user cannot become another.
fn as_other(farpage: &Command, folder: &Path) -> Option<Command> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root, to be another user");
        return None;
    }
    let copy = folder.join("farpage");
    farpage_testkit::name_program(farpage.get_program(), &copy).unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    other.arg(copy).args(farpage.get_args()).current_dir(folder);
    Some(other)
}

#[test]
fn a_program_that_is_killed_leaves_a_trace() {
    let program = "\
import mmap, os
f = open('far', 'rb')
os.pread(f.fileno(), 10, 3 << 20)
m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
m[1 << 20]
os.kill(os.getpid(), 9)
";
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("x"), contents(4 * MIB, 3)).unwrap();
    let maps = [format!("far={}", folder.join("x").display())];
    let program = ["python3", "-c", program];
    let own = farpage(folder, &["--record", "trace"], &maps, &program);
    let other = as_other(&own, folder);
    for mut run in [Some(own), other].into_iter().flatten() {
        let ended = run.output().unwrap();
        assert_eq!(ended.status.signal(), Some(9), "{}", text(&ended.stderr));
        let trace = Trace::read(&folder.join("trace")).unwrap();
        assert_eq!(trace.source.size, 4 << 20);
        let at = |page: u64| {
            let has = |run: &farpage::PageRange| (run.start.0..run.end.0).contains(&page);
            trace.runs.iter().position(has)
        };
        let (read, mapped) = (at(768).expect("read"), at(256).expect("mapped"));
        assert!(read < mapped && at(512).is_none(), "{trace:?}");
        for name in ["trace", "stats"] {
            fs::remove_file(folder.join(name)).unwrap();
        }
    }
}

#[test]
fn traces_of_one_file_are_those_of_the_library() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let path = folder.join("x");
    fs::write(&path, contents(8 * MIB, 4)).unwrap();
    let maps = [format!("far={}", path.display())];
    finish(folder, start(folder, &["--record", "trace"], &maps));
    let options = OpenOptions {
        replay: Some(Arc::new(Trace::read(&folder.join("trace")).unwrap())),
        ..OpenOptions::default()
    };
    let memory = Memory::open(path.to_str().unwrap(), &options).unwrap();
    until("what was traced is in memory", || {
        memory.stats().resident_bytes >= 4 * 5 * 65536
    });
    drop(memory);

    let memory = Memory::open(path.to_str().unwrap(), &OpenOptions::default()).unwrap();
    memory.record(&folder.join("trace")).unwrap();
    memory.prefetch(MIB as u64..2 * MIB as u64, |_| ()).unwrap();
    drop(memory);
    let replayed = start(folder, &["--replay", "trace"], &maps);
    let (_, errors, _) = finish(folder, replayed);
    assert!(!errors.contains("is not replayed"), "{errors}");
    assert!(!errors.contains("has changed"), "{errors}");
}

#[test]
fn a_file_that_has_changed_is_replayed_as_far_as_it_is_there_and_read_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("x"), contents(8 * MIB, 5)).unwrap();
    let server = slow_server(folder);
    let maps = [format!("far={}", server.url("/x"))];
    finish(folder, start(folder, &["--record", "trace"], &maps));
    let trace = Traces::read(&folder.join("trace")).unwrap();
    for (bytes, what) in [
        (8 * MIB, "it was \""),
        (7 * MIB + 1, "it had 8388608 bytes and has 7340033"),
    ] {
        fs::write(folder.join("x"), contents(bytes, 6)).unwrap();
        let (want, _, _) = finish(folder, start(folder, &[], &maps));
        let before = server.requests();
        let replayed = start(folder, &["--replay", "trace"], &maps);
        wait_for(&server, before, &["/x"], &trace);
        let (said, errors, figures) = finish(folder, replayed);
        let line = format!("farpage: 'far' has changed since its trace was recorded: {what}");
        assert_eq!(errors.matches(&line).count(), 1, "{errors}");
        assert_eq!(said, want);
        assert!(sum(&figures, "ahead_bytes") > 0, "{errors}");
    }
}

#[test]
fn a_server_that_fails_is_tried_as_long_as_the_deadline_says() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("x"), contents(4 * MIB, 8)).unwrap();
    let server = slow_server(folder);
    let maps = [format!("far={}", server.url("/x"))];
    let program = ["sh", "-c", "echo started; read line; tail -c 100000 far"];
    let mut run = farpage(folder, &["--deadline", "5"], &maps, &program);
    let piped = run.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = Started::new(piped.stderr(Stdio::piped()));
    let mut started = [0; 8];
    run.stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut started)
        .unwrap();
    server.always("/x", Answer::Status(503, Vec::new()));
    run.stdin.take().unwrap().write_all(b"\n").unwrap();
    let ended = run.output();
    assert!(!ended.status.success());
    let errors = text(&ended.stderr);
    assert!(errors.contains("did not answer within 5 s"), "{errors}");
}

#[test]
fn the_summary_and_the_statistics_say_what_each_file_took() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("x"), contents(3 * MIB + 5, 7)).unwrap();
    let server = slow_server(folder);
    let url = server.url("/x");
    let (far, near) = (format!("far={url}"), format!("near={}/x", folder.display()));
    let maps = [far, near];
    let mut runs = Vec::new();
    for _ in 0..2 {
        let mut run = farpage(
            folder,
            &[],
            &maps,
            &["sh", "-c", "cat far > copy; cmp copy x"],
        );
        let ended = run
            .env("FARPAGE_CACHE", folder.join("cache"))
            .output()
            .unwrap();
        assert!(ended.status.success(), "{}", text(&ended.stderr));
        runs.push((figures(folder), text(&ended.stderr)));
    }
    for ((figures, errors), hits) in runs.into_iter().zip([0, 3 * MIB as u64]) {
        let [far, near] = figures.as_slice() else {
            panic!("{figures:?}");
        };
        let whole = 3 * MIB as u64 + 5;
        let of = |map: &Value, name: &str| map[name].as_u64().unwrap();
        assert_eq!(
            (&far["source"], of(far, "bytes")),
            (&Value::from(url.as_str()), whole)
        );
        assert_eq!(far["path"], folder.join("far").display().to_string());
        assert!(
            of(far, "reads") > 0 && of(far, "read_bytes") >= whole,
            "{far}"
        );
        assert!(
            of(far, "page_ins") > 0 && of(far, "paged_in_bytes") >= whole,
            "{far}"
        );
        assert!(
            of(far, "resident_max_bytes") >= of(far, "resident_bytes"),
            "{far}"
        );
        assert_eq!(of(far, "failures"), 0);
        let cached = of(far, "cache_hit_bytes");
        assert!(
            if hits > 0 {
                cached >= hits
            } else {
                cached < whole
            },
            "{far}"
        );
        assert_eq!(errors.contains("from the cache"), cached > 0, "{errors}");
        assert_eq!(
            (of(near, "reads"), &near["cache_hit_bytes"]),
            (0, &Value::Null)
        );
        for name in ["far", "near"] {
            let line = format!(
                "farpage: mapped {}/{name}: 3.00 MiB; read ",
                folder.display()
            );
            assert!(errors.contains(&line), "{errors}");
        }
    }
}
