//! `farpage exec`: programs that are somewhere else run from there.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use farpage_testkit::server::{Answer, Server, Speed};
use farpage_testkit::{Started, until};

use crate::support;
use crate::support::up;

const MIB: u64 = 1 << 20;

/// A folder with the programs of these tests, as a root of another machine has them.
fn dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(support::folder_of_this_process)
}

fn compile(name: &str, flags: &[&str]) -> PathBuf {
    let to = dir().join(name);
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    support::compile("loaded.c", &to, flags);
    to
}

/// The program, linked as most are.
fn loaded() -> &'static Path {
    static LOADED: OnceLock<PathBuf> = OnceLock::new();
    LOADED.get_or_init(|| compile("loaded", &[]))
}

/// Serves the folder, with the program in it.
fn server() -> Server {
    loaded();
    let speed = Speed {
        latency: Duration::from_millis(1),
        ..Speed::default()
    };
    Server::start(dir(), speed).unwrap()
}

fn farpage(options: &[&str], address: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
    command.args(["exec", "--quiet", "--ram", "64M", "--spill", "/tmp"]);
    command.args(options).arg(address).args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn said(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{} {}",
        output.status,
        text(&output.stderr)
    );
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout)
}

fn run(options: &[&str], address: &str, arguments: &[&str]) -> Output {
    farpage(options, address, arguments).output().unwrap()
}

/// Runs it and reads what `--stats` says of its files: bytes read, and how many were ahead of need.
fn counted(options: &[&str], address: &str, arguments: &[&str]) -> (String, u64, u64) {
    let stats = tempfile::NamedTempFile::new().unwrap();
    let path = stats.path().to_str().unwrap();
    let output = run(&[options, &["--stats", path]].concat(), address, arguments);
    let told = said(&output);
    let json: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let sum = |key: &str| {
        let maps = json["maps"].as_array().unwrap().iter();
        maps.map(|map| map[key].as_u64().unwrap()).sum()
    };
    (told, sum("read_bytes"), sum("ahead_bytes"))
}

#[test]
fn every_kind_of_program_runs_as_it_does_from_a_file() {
    let server = server();
    let kinds: [(&str, &[&str]); 4] = [
        ("pie", &["-pie", "-fPIE"]),
        ("fixed", &["-no-pie"]),
        ("static", &["-static"]),
        ("static-pie", &["-static-pie", "-fPIE"]),
    ];
    for (name, flags) in kinds {
        let program = compile(name, flags);
        let want = text(&Command::new(&program).output().unwrap().stdout);
        assert!(want.contains("second child 9"), "{want}");
        let near = said(&run(&[], program.to_str().unwrap(), &[]));
        assert_eq!(near, want, "{name}, from a file");
        let far = said(&run(&[], &server.url(&format!("/{name}")), &[]));
        let elsewhere = want.replace(program.to_str().unwrap(), &format!("/farpage/{name}"));
        assert_eq!(far, elsewhere, "{name}, by HTTP");
    }
}

#[test]
fn where_linux_does_not_wait_for_pages_programs_run_as_well() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root, to be another user");
    }
    let server = server();
    let program = compile("unprivileged", &[]);
    let want = text(&Command::new(&program).output().unwrap().stdout);
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = Command::new("setpriv");
    command.args(user).arg(dir().join("farpage"));
    command.args(["exec", "--quiet", "--ram", "64M", "--spill", "/tmp"]);
    command.arg(server.url("/unprivileged")).current_dir("/");
    let told = said(&command.output().unwrap());
    let elsewhere = want.replace(program.to_str().unwrap(), "/farpage/unprivileged");
    assert_eq!(told, elsewhere);
}

#[test]
fn only_what_is_touched_is_fetched() {
    let server = server();
    let size = fs::metadata(loaded()).unwrap().len();
    let lazy = ["--ahead", "0"];
    let (_, touched, _) = counted(&lazy, &server.url("/loaded"), &["exit", "0"]);
    assert!(touched < size / 4, "{touched} of {size}");
    let (sum, all, _) = counted(&lazy, &server.url("/loaded"), &["sum"]);
    let bare = Command::new(loaded()).arg("sum").output().unwrap();
    assert_eq!(sum, text(&bare.stdout));
    assert!(all >= 8 * MIB, "{all}");
}

#[test]
fn small_programs_come_whole_and_larger_ones_do_not() {
    let server = server();
    let size = fs::metadata(loaded()).unwrap().len();
    let bare = Command::new(loaded()).arg("sum").output().unwrap();
    // Nobody waits at the end for what comes of itself.
    until("all of it has come before the program ended", || {
        let (sum, all, _) = counted(&[], &server.url("/loaded"), &["sum"]);
        assert_eq!(sum, text(&bare.stdout));
        assert!(all < 2 * size, "{all} of {size}");
        all >= size
    });
    let larger = (size - 1).to_string();
    let (_, touched, _) = counted(
        &["--ahead", &larger],
        &server.url("/loaded"),
        &["exit", "0"],
    );
    assert!(touched < size / 4, "{touched} of {size}");
    let refused = run(&["--ahead", "a bit"], &server.url("/loaded"), &[]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(
        text(&refused.stderr).contains("--ahead"),
        "{}",
        text(&refused.stderr)
    );
}

#[test]
fn a_program_that_executes_itself_is_fetched_once() {
    let server = server();
    let own = ["again", "5", "/farpage/loaded"];
    let size = fs::metadata(loaded()).unwrap().len();
    let (again, five, _) = counted(&[], &server.url("/loaded"), &own);
    assert_eq!(again, "9\n".repeat(5));
    assert!(five < size * 2, "{five} of {size}");
    let by_link = ["again", "2", "/proc/self/exe"];
    assert_eq!(said(&run(&[], &server.url("/loaded"), &by_link)), "9\n9\n");
}

#[test]
fn tasks_share_text_and_constants() {
    let server = server();
    let told = said(&run(&[], &server.url("/loaded"), &["smaps"]));
    let words: Vec<&str> = told.split_whitespace().collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    let (rss, pss) = (number(1), number(3));
    assert!(rss >= 8 * 1024, "{told}");
    // The parent, the child and the supervisor have it mapped.
    assert!(pss * 2 <= rss, "{told}");
}

#[test]
fn libraries_come_from_the_root_and_by_map() {
    let root = dir().join("root");
    let library = root.join("usr/lib/libloaded.so");
    fs::create_dir_all(library.parent().unwrap()).unwrap();
    let source = dir().join("library.c");
    let code = "int library_data = 3; int library_answer(void) { return library_data++ + 39; }";
    fs::write(&source, code).unwrap();
    let flags = ["-shared", "-fPIC", "-Wl,-soname,libloaded.so"];
    support::compile(source.to_str().unwrap(), &library, &flags);
    let folder = format!("-L{}", library.parent().unwrap().display());
    let with = ["-DWITH_LIBRARY", &folder, "-lloaded"];
    compile("root/usr/bin/linked", &with);
    let server = server();
    let url = server.url("/root");
    let told = said(&run(&["--root", &url], "/usr/bin/linked", &[]));
    assert!(told.contains("exe /usr/bin/linked\n"), "{told}");
    assert!(told.contains("library 42 4\n"), "{told}");
    let asked = |path: &str| server.log().iter().any(|request| request.path == path);
    assert!(asked("/root/usr/lib/libloaded.so"));
    assert!(
        !asked("/root/usr/lib/libc.so.6"),
        "the C library is this machine's"
    );
    // Without a root it is missing, and the dynamic linker says so.
    let program = server.url("/root/usr/bin/linked");
    let missing = run(&[], &program, &[]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(
        text(&missing.stderr).contains("libloaded.so"),
        "{}",
        text(&missing.stderr)
    );
    let map = format!(
        "/usr/lib/libloaded.so={}",
        server.url("/root/usr/lib/libloaded.so")
    );
    let told = said(&run(&["--map", &map], &program, &[]));
    assert!(told.contains("library 42 4\n"), "{told}");
}

#[test]
fn programs_execute_others_of_the_root_and_of_this_machine() {
    let server = server();
    compile("also/usr/bin/other", &[]);
    let url = server.url("/also");
    let root = ["--root", &url, "--also", "/usr/bin/other"];
    let first = server.url("/loaded");
    let told = said(&run(
        &root,
        &first,
        &["execute", "/usr/bin/other", "again", "2", "/usr/bin/other"],
    ));
    assert_eq!(told, "9\n9\n");
    let here = said(&run(&[], &first, &["execute", "/bin/echo", "hello"]));
    assert_eq!(here, "hello\n");
    let data = dir().join("data");
    fs::write(&data, "no program").unwrap();
    let map = format!("/data={}", data.display());
    let refused = run(&["--map", &map], &first, &["execute", "/data"]);
    assert_eq!(text(&refused.stdout), "Permission denied\n");
    assert!(text(&refused.stderr).contains("is no program of this machine"));
}

#[test]
fn what_follows_the_address_is_the_programs() {
    let here = said(&run(
        &[],
        "/bin/echo",
        &["--plan", "-q", "--help", "--root", "/"],
    ));
    assert_eq!(here, "--plan -q --help --root /\n");
    let mistyped = run(&[], "--plna", &[]);
    let why = text(&mistyped.stderr);
    assert_eq!(mistyped.status.code(), Some(2));
    assert!(
        why.contains("unknown option '--plna'; did you mean '--plan'?"),
        "{why}"
    );
}

#[test]
fn who_is_not_read_ends_without_a_word_and_a_full_disk_is_told() {
    let farpage = dir().join("farpage");
    let to = |stdout: Stdio| {
        let mut command = Command::new(&farpage);
        command.args(["exec", "--plan", "/bin/ls"]).stdout(stdout);
        let ended = command.stderr(Stdio::piped()).output().unwrap();
        (ended.status.code().unwrap(), text(&ended.stderr))
    };
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(to(writer.into()), (141, String::new()));
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let (code, why) = to(full.into());
    assert_eq!(code, 1);
    assert!(
        why.starts_with("farpage: cannot write to standard output: No space"),
        "{why}"
    );
    let line = "\"$0\" run -- sh -c 'exit 7' 2> /dev/full";
    let ended = Command::new("sh").args(["-c", line]).arg(&farpage).status();
    assert_eq!(ended.unwrap().code(), Some(7), "its status is not lost");
}

#[test]
fn its_end_is_the_end_of_the_command() {
    let server = server();
    let url = server.url("/loaded");
    assert_eq!(run(&[], &url, &["exit", "7"]).status.code(), Some(7));
    assert_eq!(run(&[], &url, &["die"]).status.signal(), Some(15));
}

#[test]
fn what_cannot_be_run_is_refused_with_the_status_of_shells() {
    let server = server();
    let refused = |options: &[&str], address: &str| {
        let output = run(options, address, &[]);
        assert_eq!(text(&output.stdout), "");
        (output.status.code().unwrap(), text(&output.stderr))
    };
    let (code, why) = refused(&[], &server.url("/nothing"));
    assert!(code == 127 && why.contains("cannot find"), "{code} {why}");
    assert_eq!(refused(&[], "/no/such/file").0, 127);
    let write = |name: &str, bytes: &[u8]| {
        fs::write(dir().join(name), bytes).unwrap();
        server.url(&format!("/{name}"))
    };
    let (code, why) = refused(&[], &write("script", b"#!/bin/sh\necho no\n"));
    assert!(
        code == 126 && why.contains("start '/bin/sh' and give the script"),
        "{code} {why}"
    );
    let good = fs::read(loaded()).unwrap();
    let (code, why) = refused(&[], &write("cut", &good[..20000]));
    assert!(code == 126 && why.contains("cut off"), "{code} {why}");
    let mut narrow = good.clone();
    narrow[4] = 1;
    let (code, why) = refused(&[], &write("narrow", &narrow));
    assert!(code == 126 && why.contains("32-bit"), "{code} {why}");
    let plan = refused(&["--plan"], &server.url("/narrow"));
    assert!(plan.0 == 126 && plan.1.contains("32-bit"), "{plan:?}");
    let (code, why) = refused(&["--as", "name"], &server.url("/loaded"));
    assert!(
        code == 125 && why.contains("takes an absolute path"),
        "{code} {why}"
    );
    server.always("/loaded", Answer::Status(403, vec![]));
    let (code, why) = refused(&[], &server.url("/loaded"));
    assert!(
        code == 125 && why.contains("may not access"),
        "{code} {why}"
    );
}

/// Starts the program, which is ready then, and goes on at a line of input.
fn start(url: &str) -> (Started, BufReader<ChildStdout>) {
    let mut command = farpage(&["--deadline", "10", "--ahead", "0"], url, &["late"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = Started::new(command.stderr(Stdio::piped()));
    let mut out = BufReader::new(run.stdout.take().unwrap());
    let mut ready = String::new();
    out.read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    (run, out)
}

/// Lets it go on; it must end without having read anything. What was said.
fn ends((mut run, mut out): (Started, BufReader<ChildStdout>)) -> String {
    run.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let mut read = String::new();
    std::io::Read::read_to_string(&mut out, &mut read).unwrap();
    assert_eq!(read, "", "nothing was read, zeros least of all");
    let ended = run.output();
    assert_eq!(ended.status.signal(), Some(9));
    text(&ended.stderr)
}

#[test]
fn a_server_that_goes_away_ends_the_program_with_a_message() {
    let server = server();
    let running = start(&server.url("/loaded"));
    drop(server);
    let why = ends(running);
    assert!(why.contains("it uses '/farpage/loaded' at byte"), "{why}");
    assert!(why.contains("which cannot be had"), "{why}");
}

#[test]
fn a_program_that_has_changed_ends_with_a_message() {
    let server = server();
    let running = start(&server.url("/loaded"));
    server.always("/loaded", Answer::Tagged("\"another\"".into()));
    let why = ends(running);
    assert!(why.contains("has changed since it was opened"), "{why}");
}

#[test]
fn what_was_recorded_is_brought_in_ahead_of_need() {
    let server = server();
    let trace = dir().join("trace");
    let trace = trace.to_str().unwrap();
    let both = ["--record", trace, "--replay", trace];
    let (want, _, ahead) = counted(&both, &server.url("/loaded"), &["all"]);
    assert_eq!(ahead, 0, "there was nothing to replay");
    let size = fs::metadata(loaded()).unwrap().len();
    // A program that is quick enough needs none of it ahead.
    until("something is brought in ahead", || {
        let (again, read, ahead) = counted(&["--replay", trace], &server.url("/loaded"), &["all"]);
        assert_eq!(again, want);
        ahead > 0 && read < size
    });
}

#[test]
fn a_cache_on_the_disk_serves_the_next_start() {
    let server = server();
    let cache = tempfile::tempdir().unwrap();
    let start = || {
        let mut command = farpage(&[], &server.url("/loaded"), &["all"]);
        let before = server.log().len();
        let told = said(&command.env("FARPAGE_CACHE", cache.path()).output().unwrap());
        let log = server.log();
        let gets = log[before..]
            .iter()
            .filter(|request| request.method == "GET");
        (told, gets.count())
    };
    let (first, cold) = start();
    let (second, warm) = start();
    assert_eq!(first, second);
    assert!(warm < cold, "{warm} requests, and {cold} at first");
}

#[test]
fn a_program_in_shared_memory_of_the_host_runs_from_there() {
    let up = up::Up::start(&["--ram", "64M"]);
    let program = fs::read(loaded()).unwrap();
    let host = up.host();
    let bytes = (program.len() as u64).next_multiple_of(4096);
    let shared = host.create("tool", bytes).unwrap();
    let words = program.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    });
    for (to, word) in shared.words().iter().zip(words) {
        to.store(word, std::sync::atomic::Ordering::Relaxed);
    }
    let with = |address: &str| {
        let mut command = farpage(&[], address, &["all"]);
        command.env("FARPAGE_HOST", up.socket()).output().unwrap()
    };
    let told = said(&with("shared:tool"));
    assert!(
        told.contains("exe /farpage/tool\n") && told.contains("second child 9\n"),
        "{told}"
    );
    let missing = with("shared:other");
    assert_eq!(missing.status.code(), Some(125));
    assert!(text(&missing.stderr).contains("cannot run 'shared:other'"));
}

#[test]
fn python_runs_a_script_as_it_does_from_here() {
    let script = "import json, zlib, threading, subprocess, sys\n\
        print(json.dumps({'a': [1, 2]}), zlib.crc32(b'x' * 1000))\n\
        t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n\
        print(subprocess.run(['echo', 'child'], capture_output=True).stdout, sys.executable)\n";
    let Some(python) = ["/usr/bin/python3", "/usr/local/bin/python3"]
        .iter()
        .find_map(|path| fs::canonicalize(path).ok())
    else {
        return println!("skipped: no Python of the system here");
    };
    let python = python.to_str().unwrap();
    let want = Command::new(python).args(["-c", script]).output().unwrap();
    assert!(want.status.success(), "{}", text(&want.stderr));
    let everything = Server::start(Path::new("/"), Speed::default()).unwrap();
    let root = everything.url("");
    let got = run(&["--root", &root], python, &["-c", script]);
    assert_eq!(said(&got), text(&want.stdout));
    let asked = |path: &str| everything.log().iter().any(|request| request.path == path);
    assert!(asked(python));
}

#[test]
fn the_plan_is_a_table_and_json() {
    let server = server();
    let url = server.url("/loaded");
    let table = said(&run(&["--plan"], &url, &[]));
    for command in [
        "READ_ONLY",
        "WRITEABLE",
        "ZEROFILL",
        "REGISTER",
        "LOADFILE",
        "RELOCATE",
        "END_LOAD",
    ] {
        assert!(
            table.contains(&format!("\n{command}")),
            "{command}: {table}"
        );
    }
    let json = said(&run(&["--plan", "--json"], &url, &[]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["kind"], "dynamic-pie");
    assert_eq!(json["bytes"], fs::metadata(loaded()).unwrap().len());
    let names: Vec<&str> = json["commands"]
        .as_array()
        .unwrap()
        .iter()
        .map(|command| command["command"].as_str().unwrap())
        .collect();
    assert_eq!(names.last(), Some(&"END_LOAD"));
    assert!(
        names.contains(&"ZEROFILL") && names.contains(&"LOADFILE"),
        "{names:?}"
    );
    let read = json["read_bytes"].as_u64().unwrap();
    assert!(read < 64 << 10, "{read}");
}
