//! `farpage run --map`: programs that are not changed use files that are not where they look.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use farpage_testkit::server::{Answer, Server, Speed};
use farpage_testkit::{Started, until};

use crate::support;

/// Where the program finds the file: not even the folder exists.
const PATH: &str = "/nowhere/at/all";
const MIB: usize = 1 << 20;

/// A folder that every user can read, with the programs and files of these tests.
fn dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(support::folder_of_this_process)
}

fn in_dir(name: &str) -> String {
    dir().join(name).display().to_string()
}

/// A file of `bytes` bytes, of which each part of 8 KiB starts with its number.
fn file(name: &str, bytes: usize) -> String {
    let mut contents = Vec::with_capacity(bytes + 8192);
    let mut seed = 1u64;
    for number in 0..bytes.div_ceil(8192) as u32 {
        contents.extend(number.to_le_bytes());
        for _ in 0..1023 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            contents.extend(seed.to_le_bytes());
        }
        contents.extend([0; 4]);
    }
    contents.truncate(bytes);
    let path = in_dir(name);
    fs::write(&path, contents).unwrap();
    path
}

fn compile(name: &str, flags: &[&str]) -> String {
    let to = in_dir(name);
    support::compile("mapped.c", Path::new(&to), flags);
    to
}

/// This user and, when it may choose, one without privileges: then Linux does not wait for pages.
fn users() -> &'static [&'static [&'static str]] {
    const OTHER: &[&str] = &[
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    if rustix::process::geteuid().is_root() {
        &[&[], OTHER]
    } else {
        &[&[]]
    }
}

fn farpage(user: &[&str], ram: &str, map: &str, program: &[&str]) -> Command {
    let farpage = in_dir("farpage");
    let run = [
        "run", "--quiet", "--ram", ram, "--spill", "/tmp", "--map", map, "--",
    ];
    let line = [user, &[&farpage[..]], &run, program].concat();
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).current_dir(dir());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn run(user: &[&str], ram: &str, source: &str, program: &[&str]) -> Output {
    let map = format!("{PATH}={source}");
    farpage(user, ram, &map, program).output().unwrap()
}

/// Who reads a file of the test's folder, and from where: each user by its path, the first also by
/// HTTP.
fn places(source: &str) -> Vec<(&'static [&'static str], String)> {
    static SERVER: OnceLock<Server> = OnceLock::new();
    let speed = Speed {
        latency: Duration::from_millis(1),
        ..Speed::default()
    };
    let server = SERVER.get_or_init(|| Server::start(dir(), speed).unwrap());
    let users = users().iter();
    let mut places: Vec<_> = users.map(|user| (*user, source.to_string())).collect();
    let name = source.strip_prefix(&dir().display().to_string());
    places.push((&[], server.url(name.expect("a file of the folder"))));
    places
}

/// Runs a shell script in which `$F` is the file, bare and with `--map`, as each user: it must say
/// the same.
fn same_with_and_without(ram: &str, source: &str, script: &str) {
    let named = |path: &str| format!("F={path}; {script}");
    let mut bare = Command::new("bash");
    let bare = bare.args(["-c", &named(source)]).current_dir(dir());
    let want = bare.output().unwrap();
    assert!(want.status.success(), "{script}: {}", text(&want.stderr));
    for (user, place) in places(source) {
        let got = run(user, ram, &place, &["bash", "-c", &named(PATH)]);
        let said = text(&got.stderr);
        assert!(
            got.status.success(),
            "{script} as {user:?}: {} {said}",
            got.status
        );
        assert_eq!(
            text(&got.stdout),
            text(&want.stdout),
            "{script} as {user:?}: {said}"
        );
    }
}

#[test]
fn plain_programs_read_a_file_that_is_not_there() {
    let source = file("plain", 6 * MIB + 777);
    for script in [
        "cat $F | sha256sum",
        "wc < $F; wc -c < $F",
        "sha256sum < $F",
        "dd if=$F bs=64k skip=80 count=10 2>&- | sha256sum; head -c 70000 $F | sha256sum",
        "tail -c 70001 $F | sha256sum; tail -c +6000000 $F | sha256sum",
        "d=$(mktemp -d); cp $F $d/copy && sha256sum < $d/copy; rm -r $d",
        "d=$(mktemp -d); cp --sparse=always $F $d/copy && sha256sum < $d/copy; rm -r $d",
        "grep -c a $F; grep -ac ab $F",
        "cmp $F $F && cat $F $F | sha256sum; stat -c %s $F; test -r $F && ! test -w $F && test -f $F",
        "while read -r line; do :; done < $F; (cat; cat) < $F | sha256sum",
        "cat < /dev/stdin < $F | sha256sum; sort $F | sha256sum",
    ] {
        // The bare file can be written to, and root may write everywhere.
        let script = script.replace("! test -w $F && ", "");
        same_with_and_without("64M", &source, &script);
    }
}

#[test]
fn a_relative_path_is_seen_from_the_folder_of_the_start() {
    let source = file("relative-source", 5000);
    let program = [
        "sh",
        "-c",
        "mkdir -p sub; cd sub; cat ../given | cksum; cat $PWD/../given | cksum",
    ];
    let got = farpage(&[], "64M", &format!("given={source}"), &program)
        .output()
        .unwrap();
    let sum = Command::new("cksum")
        .stdin(fs::File::open(&source).unwrap())
        .output();
    let sum = text(&sum.unwrap().stdout);
    assert_eq!(
        text(&got.stdout),
        format!("{sum}{sum}"),
        "{}",
        text(&got.stderr)
    );
}

#[test]
fn every_call_means_what_it_means_for_a_file_that_is_only_read() {
    let source = file("calls", 12 * MIB - 3000);
    for program in [
        compile("mapped", &[]),
        compile("mapped-static", &["-static"]),
    ] {
        for user in users() {
            for ram in ["256M", "16M"] {
                let got = run(user, ram, &source, &[&program, PATH, &source]);
                let said = text(&got.stderr);
                assert!(
                    got.status.success(),
                    "{program} {ram} as {user:?}: {} {said}",
                    got.status
                );
                assert_eq!(text(&got.stdout), "as it should be\n");
                assert!(said.contains("to another process: mapped"), "{said}");
            }
        }
    }
}

#[test]
fn a_file_of_four_times_the_budget_is_read_right_by_many_and_stays_within_it() {
    let source = file("large", 128 * MIB);
    let sum = Command::new("sha256sum").arg(&source).output().unwrap();
    let sum = text(&sum.stdout)[..64].to_string();
    let script = format!("for i in 1 2 3 4; do sha256sum {PATH} & done; wait");
    let map = format!("{PATH}={source}");
    let line = [
        "run", "--ram", "32M", "--spill", "/tmp", "--map", &map, "sh", "-c", &script,
    ];
    let got = Command::new(in_dir("farpage")).args(line).output().unwrap();
    let said = text(&got.stderr);
    assert!(got.status.success(), "{} {said}", got.status);
    let lines: Vec<String> = text(&got.stdout).lines().map(str::to_string).collect();
    assert_eq!(lines, vec![format!("{sum}  {PATH}"); 4]);
    let (_, resident) = said.split_once("page-ins, ").expect("a line for the file");
    let resident = resident
        .split_once(" MiB in RAM at most")
        .expect("its largest size")
        .0;
    assert!(resident.parse::<f64>().unwrap() <= 32.0, "{said}");
}

/// Python with packages if there is one, else any.
fn python() -> String {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../.venv/bin/python");
    match std::env::var("FARPAGE_TEST_PYTHON") {
        Ok(told) => told,
        Err(_) if own.exists() => own.display().to_string(),
        Err(_) => "python3".to_string(),
    }
}

fn has_module(name: &str) -> bool {
    let import = format!("import {name}");
    let tried = Command::new(python())
        .args(["-c", &import])
        .stderr(Stdio::null())
        .status();
    let found = tried.is_ok_and(|status| status.success());
    if !found {
        println!("skipped: python has no {name}");
    }
    found
}

fn expect_python(ram: &str, source: &str, program: &str) {
    for (user, place) in places(source) {
        // Packages lie where other users may not look.
        if !user.is_empty() && program.contains("import sys, ") {
            continue;
        }
        let python = if user.is_empty() {
            python()
        } else {
            "python3".to_string()
        };
        let got = run(user, ram, &place, &[&python, "-c", program, PATH, source]);
        let said = text(&got.stderr);
        assert!(got.status.success(), "as {user:?}: {} {said}", got.status);
        assert_eq!(text(&got.stdout), "same\n", "as {user:?}: {said}");
    }
}

#[test]
fn python_reads_maps_and_forks() {
    let source = file("python", 30 * MIB + 5);
    expect_python(
        "64M",
        &source,
        "\
import mmap, multiprocessing, os, sys
path, source = sys.argv[1:]
want = open(source, 'rb').read()
with open(path, 'rb') as f:
    assert f.read() == want and os.fstat(f.fileno()).st_size == len(want)
    f.seek(12345)
    assert f.read(1000) == want[12345:13345]
    shared = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
    own = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
assert os.path.isfile(path) and os.path.getsize(path) == len(want)
assert shared[:] == want
own[5000] = want[5000] ^ 1
assert shared[5000] == want[5000] != own[5000]
def part(n):
    at = n << 20
    return shared[at:at + (1 << 20)] == want[at:at + (1 << 20)] and own[5000] != want[5000]
with multiprocessing.get_context('fork').Pool(3) as pool:
    assert all(pool.map(part, range(30)))
for mode in 'r+b', 'wb', 'ab':
    try:
        open(path, mode)
        print('opened for writing')
    except OSError as error:
        assert error.errno == 30
print('same')
",
    );
}

#[test]
fn numpy_maps_arrays() {
    if !has_module("numpy") {
        return;
    }
    let source = in_dir("array.npy");
    let make = "import sys, numpy; numpy.save(sys.argv[1], numpy.arange(3000000.0))";
    let made = Command::new(python()).args(["-c", make, &source]).status();
    assert!(made.unwrap().success());
    expect_python(
        "64M",
        &source,
        "\
import sys, numpy
path, source = sys.argv[1:]
want = numpy.arange(3000000.0)
a = numpy.load(path, mmap_mode='r')
assert (a[::-1] == want[::-1]).all() and a.sum() == want.sum()
b = numpy.memmap(path, mode='c', dtype='u1')
b[1000] ^= 1
assert (numpy.load(path) == want).all() and not a.flags.writeable
print('same')
",
    );
}

#[test]
fn lmdb_reads_a_database() {
    if !has_module("lmdb") {
        return;
    }
    let source = in_dir("data.mdb");
    let make = "\
import sys, lmdb
env = lmdb.open(sys.argv[1], subdir=False, map_size=1 << 28)
with env.begin(write=True) as t:
    for i in range(20000):
        t.put(b'%08d' % i, bytes([i % 251]) * (i % 3000))
env.close()
";
    let made = Command::new(python()).args(["-c", make, &source]).status();
    assert!(made.unwrap().success());
    expect_python(
        "64M",
        &source,
        "\
import sys, lmdb
env = lmdb.open(sys.argv[1], subdir=False, readonly=True, lock=False)
with env.begin() as t:
    assert t.stat()['entries'] == 20000
    for i, (key, value) in enumerate(t.cursor()):
        assert key == b'%08d' % i and value == bytes([i % 251]) * (i % 3000)
    assert t.get(b'00012345') == bytes([12345 % 251]) * (12345 % 3000)
print('same')
",
    );
}

#[test]
fn sqlite_reads_a_database() {
    let source = in_dir("data.db");
    let fill = "\
CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
INSERT INTO t SELECT i, hex(i * 7919) || printf('%.*c', i % 97, 'x') FROM n;
CREATE INDEX tb ON t(b);";
    match Command::new("sqlite3").args([&source, fill]).status() {
        Ok(made) => assert!(made.success()),
        Err(_) => return println!("skipped: no sqlite3 here"),
    }
    for query in [
        "SELECT count(*), sum(length(b)) FROM t; PRAGMA integrity_check;",
        "SELECT a, b FROM t WHERE b > hex(500) ORDER BY b LIMIT 100;",
        "PRAGMA mmap_size=100000000; SELECT sum(a * length(b)) FROM t;",
    ] {
        same_with_and_without("64M", &source, &format!("sqlite3 $F \"{query}\""));
        let immutable = format!("sqlite3 \"file:$F?immutable=1\" \"{query}\"");
        same_with_and_without("64M", &source, &immutable);
    }
    let got = run(&[], "64M", &source, &["sqlite3", PATH, "DELETE FROM t"]);
    assert!(
        text(&got.stderr).contains("readonly database"),
        "{}",
        text(&got.stderr)
    );
}

/// Starts a program that says when it is ready and goes on at a line of input.
fn start(
    user: &[&str],
    source: &str,
    program: &str,
) -> (Started, BufReader<std::process::ChildStdout>) {
    let map = format!("{PATH}={source}");
    let mut command = farpage(user, "64M", &map, &["python3", "-c", program, PATH]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut run = Started::new(command.stderr(Stdio::piped()));
    let mut out = BufReader::new(run.stdout.take().unwrap());
    let mut ready = String::new();
    out.read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    (run, out)
}

const READER: &str = "\
import mmap, os, sys
f = open(sys.argv[1], 'rb', buffering=0)
m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
print('ready', flush=True)
sys.stdin.readline()
";

#[test]
fn a_source_that_is_cut_fails_reads_and_ends_who_has_it_mapped() {
    if !farpage_sys::uffd::serves_system_calls() {
        return println!("skipped: this user's userfaultfd does not serve system calls");
    }
    let source = file("cut-read", 8 * MIB);
    let program = format!(
        "{READER}
for i in range(2):
    try:
        os.pread(f.fileno(), 100, 6 << 20)
        print('read')
    except OSError as error:
        print(error.errno)
sys.stdout.flush()
print(m[6 << 20])
"
    );
    let (mut run, mut out) = start(&[], &source, &program);
    let cut = fs::OpenOptions::new().write(true).open(&source).unwrap();
    cut.set_len(MIB as u64).unwrap();
    run.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut out, &mut said).unwrap();
    assert_eq!(said, "5\n5\n", "EIO, and then the end");
    let ended = run.output();
    assert_eq!(ended.status.signal(), Some(9));
    let said = text(&ended.stderr);
    let read = format!("farpage: cannot page in '{PATH}' at byte 6291456: '{source}'");
    // Two reads fail: it is said once for both, unless a second passes between them.
    let count = said.matches(&read).count();
    assert!((1..=2).contains(&count), "{said}");
    let killed =
        format!("is killed: it uses '{PATH}' at byte 6291456, which cannot be had: '{source}'");
    assert!(said.contains(&killed), "{said}");
}

#[test]
fn where_linux_does_not_wait_a_source_that_is_cut_ends_who_reads_it() {
    let Some(user) = users().get(1) else {
        return println!("skipped: needs root, to be another user");
    };
    let source = file("cut-other", 8 * MIB);
    let program = format!("{READER}print(os.pread(f.fileno(), 100, 6 << 20))");
    let (mut run, _out) = start(user, &source, &program);
    let cut = fs::OpenOptions::new().write(true).open(&source).unwrap();
    cut.set_len(MIB as u64).unwrap();
    run.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let ended = run.output();
    assert_eq!(ended.status.signal(), Some(9));
    let said = text(&ended.stderr);
    assert!(said.contains("which cannot be had"), "{said}");
}

#[test]
fn who_waits_for_a_page_is_ended_when_farpage_is_killed() {
    let source = file("killed", 8 * MIB);
    let reader = format!("{READER}print(os.getpid(), flush=True)\nprint(m[5 << 20])");
    let (mut run, mut out) = start(&[], &source, &reader);
    let farpage = run.id().to_string();
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &farpage]).status();
        assert!(sent.unwrap().success());
    };
    signal("-STOP");
    let mut stdin = run.stdin.take().unwrap();
    stdin.write_all(b"go on\n").unwrap();
    drop(stdin);
    let mut process = String::new();
    out.read_line(&mut process).unwrap();
    let waits_for = || fs::read_to_string(format!("/proc/{}/wchan", process.trim()));
    // Where this user may not look it says 0.
    until("the program waits for a page", || {
        waits_for().map_or(true, |what| what == "0" || what.contains("userfault"))
    });
    signal("-KILL");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut out, &mut said).unwrap();
    assert_eq!(said, "", "nothing was read");
    let said = text(&run.output().stderr);
    assert!(
        said.contains("farpage run, which brings its pages, has ended"),
        "{said}"
    );
}

#[test]
fn while_a_source_is_silent_others_go_on_and_the_process_can_be_looked_at_and_ended() {
    file("silent", 32 * MIB);
    let program = in_dir("silent-reader");
    support::compile("silent.c", Path::new(&program), &[]);
    for user in users() {
        let server = Server::start(dir(), Speed::default()).unwrap();
        let map = format!("{PATH}={}", server.url("/silent"));
        let mut command = farpage(user, "64M", &map, &[&program, PATH]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut run = Started::new(command.stderr(Stdio::piped()));
        let mut out = BufReader::new(run.stdout.take().unwrap());
        let mut stdin = run.stdin.take().unwrap();
        let mut line = || {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            line.trim().to_string()
        };
        let process = line();
        server.always("/silent", Answer::Silence);
        for _ in 0..2 {
            stdin.write_all(b"go on\n").unwrap();
            assert_eq!(line(), "mapped", "as {user:?}");
            let look = |name: &str| fs::read(format!("/proc/{process}/{name}")).unwrap();
            assert!(look("cmdline").starts_with(program.as_bytes()));
            assert!(text(&look("maps")).contains("[stack]"));
            assert!(text(&look("environ")).contains("PATH="));
            assert!(text(&look("smaps")).contains("Rss:"));
        }
        let killed = Command::new("kill").args(["-KILL", &process]).status();
        assert!(killed.unwrap().success());
        let ended = run.output();
        assert_eq!(ended.status.signal(), Some(9), "as {user:?}");
        assert_eq!(text(&ended.stderr), "", "as {user:?}");
    }
}

#[test]
fn what_cannot_be_opened_is_said_before_the_program_starts() {
    let refused = |map: &str| {
        let got = farpage(&[], "64M", map, &["echo", "started"])
            .output()
            .unwrap();
        assert_eq!(
            (got.status.code(), text(&got.stdout)),
            (Some(125), String::new())
        );
        text(&got.stderr)
    };
    assert!(refused("a=/no/such/file").contains("cannot find '/no/such/file'"));
    assert!(refused("a=/tmp").contains("it is a directory"));
    assert!(refused("a").contains("write PATH=URL"));
    let map = format!("a={}", file("accepted", 100));
    let got = farpage(&[], "64M", &map, &["echo", "started"])
        .output()
        .unwrap();
    assert_eq!(text(&got.stdout), "started\n");
}
