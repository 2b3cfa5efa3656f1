//! A memory cgroup at its limit, a full budget, several threads: page-out must not need what it is
//! there to give.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use farpage_client::Host;
use farpage_testkit::{Cgroup, Started, pass};

use crate::support::compile;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 88 * MIB;

#[test]
fn a_program_finishes_where_no_memory_is_left() {
    let Ok(cgroup) = Cgroup::new("pressure", LIMIT, false) else {
        println!("skipped: this user may not make a memory cgroup");
        return;
    };
    let folder = tempfile::tempdir().expect("a directory");
    let dir = folder.path();
    let (program, cache) = (dir.join("full"), dir.join("cache"));
    compile("full.c", &program, &[]);
    let line = format!(
        "dd if=/dev/zero of={} bs=1M count=128 conv=fsync 2>/dev/null && \
         exec {} run --quiet --ram 64M --spill {} -- {} {}",
        cache.display(),
        env!("CARGO_BIN_EXE_farpage"),
        dir.display(),
        program.display(),
        cache.display(),
    );
    // Written in the cgroup, the file's cache counts there.
    let mut shell = cgroup.command(Path::new("sh"));
    let output = shell.args(["-c", &line]).output().expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let most = cgroup.most_bytes().unwrap();
    assert!(most > LIMIT - MIB, "only {most} bytes were used");
}

/// Pages that are checked at least, however long that takes.
const CHECKED: u64 = 1001;
/// Seconds that memory is used while none is left: 10, or more to look for what is rare.
const SECONDS: &str = "FARPAGE_TEST_SECONDS";
const OBJECT_BYTES: u64 = 128 * MIB;

/// Writes and reads pages of an object at random, and checks each; nothing when it is run as a test.
#[test]
fn the_program() {
    let Ok(seconds) = std::env::var(USES) else {
        return;
    };
    let host = Host::connect(&farpage_client::default_socket()).expect("a host kernel");
    let shared = host.create("", OBJECT_BYTES).expect("memory");
    let pages = shared.words().len() / 512;
    let threads = 3;
    let until = Instant::now() + Duration::from_secs(seconds.parse().expect("a number"));
    let checked = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..threads {
            let (shared, checked) = (&shared, &checked);
            scope.spawn(move || {
                let mut versions = vec![0u64; pages];
                let mut seed = thread as u64 + 1;
                while Instant::now() < until || checked.load(Relaxed) < CHECKED {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let page = (seed >> 33) as usize % (pages / threads) * threads + thread;
                    let words = &shared.words()[page * 512..][..512];
                    for (index, word) in words.iter().enumerate().step_by(7) {
                        let found = word.swap(value(page, versions[page] + 1, index), Relaxed);
                        let wanted = match versions[page] {
                            0 => 0,
                            version => value(page, version, index),
                        };
                        assert_eq!(found, wanted, "page {page}");
                    }
                    versions[page] += 1;
                    checked.fetch_add(1, Relaxed);
                }
            });
        }
    });
    println!("checked {}", checked.load(Relaxed));
}

fn value(page: usize, version: u64, index: usize) -> u64 {
    let seed = (page as u64) << 32 ^ version << 9 ^ index as u64;
    match page % 2 {
        0 => seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        _ => seed,
    }
}

const USES: &str = "FARPAGE_TEST_USES";

#[test]
fn without_ram_a_run_takes_what_its_cgroup_leaves_and_no_more() {
    const LIMIT: u64 = 256 * MIB;
    let Ok(cgroup) = Cgroup::new("follow", LIMIT, false) else {
        println!("skipped: this user may not make a memory cgroup");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let stats = folder.path().join("stats");
    let program = "import os\n\
                   blocks = [bytearray(os.urandom(1 << 20)) for _ in range(360)]\n\
                   for turn in range(3):\n    \
                       for block in blocks: block[turn::4096] = bytes(256)\n\
                   print(sum(block[4096 * 7 + 2] for block in blocks))";
    let mut run = cgroup.command(Path::new(env!("CARGO_BIN_EXE_farpage")));
    run.args(["run", "--quiet", "--spill", "/var/tmp", "--stats"]);
    run.arg(&stats).args(["--", "python3", "-c", program]);
    let ran = run.output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(ran.stdout, b"0\n");
    assert_eq!(cgroup.kills().unwrap(), 0);
    let stats: serde_json::Value = serde_json::from_slice(&fs::read(stats).unwrap()).unwrap();
    let used = stats["peaks"]["used_bytes"].as_u64().unwrap();
    // Python itself has 10 MiB, and a fortieth stays free; at 80% from the start it would be 205.
    assert!(used > 215 * MIB, "{} MiB of 256", used / MIB);
}

#[test]
fn in_a_cgroup_buffers_give_back_what_large_page_ins_and_page_outs_took() {
    let Ok(cgroup) = Cgroup::new("besides", LIMIT, false) else {
        println!("skipped: this user may not make a memory cgroup");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("besides");
    compile("besides.c", &program, &[]);
    let mut run = cgroup.command(Path::new(env!("CARGO_BIN_EXE_farpage")));
    run.args(["run", "--quiet", "--spill", "/var/tmp", "--compressed"]);
    let ran = run.args(["1M", "--"]).arg(program).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let kib: u64 = String::from_utf8(ran.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    // A MiB of these are the compressed tier; with full buffers it would be 5800.
    assert!(
        kib < 4000,
        "{kib} KiB are besides what the program asked for"
    );
}

/// The host kernel, its default pager and the program in one cgroup, which is full of a file's cache that
/// is read again and again; a second default pager takes the place of the first, by turns.
#[test]
fn a_default_pager_outside_pages_where_no_memory_is_left() {
    let Ok(cgroup) = Cgroup::new("outside", LIMIT, false) else {
        println!("skipped: this user may not make a memory cgroup");
        return;
    };
    let seconds = std::env::var(SECONDS).unwrap_or_else(|_| "10".into());
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let (socket, cache) = (folder.path().join("host"), folder.path().join("cache"));
    let file = fs::File::create(&cache).expect("a file");
    file.set_len(128 * MIB).expect("room");
    let farpage = Path::new(env!("CARGO_BIN_EXE_farpage"));
    let start = |arguments: &[&str]| {
        let mut command = cgroup.command(farpage);
        command.args(arguments).arg("--spill").arg(folder.path());
        command.env("FARPAGE_HOST", &socket).stdout(Stdio::piped());
        let mut child = Started::new(&mut command);
        let output = child.stdout.take().expect("piped");
        let mut line = String::new();
        let mut output = BufReader::new(output);
        output.read_line(&mut line).expect("a line");
        assert!(line.contains("host kernel"), "{line}");
        (child, output)
    };
    let (up, _says) = start(&["up", "--ram", "32M", "--compressed", "0"]);
    let reads = format!("while :; do cat {} > /dev/null; done", cache.display());
    let mut reader = cgroup.command(Path::new("sh"));
    let _reader = Started::new(reader.args(["-c", &reads]));
    let pager = ["pager", "default", "--compressed", "8M"];
    let mut now = start(&pager);
    let mut program = cgroup.command(&std::env::current_exe().expect("a path"));
    program.args(["pressure::the_program", "--exact", "--nocapture"]);
    program.env(USES, &seconds).env("FARPAGE_HOST", &socket);
    let mut program = Started::new(program.stdout(Stdio::piped()));
    let mut exchanges = 0;
    while program.try_wait().expect("it is ours").is_none() {
        // They are used for a while.
        pass(Duration::from_secs(2));
        let mut before = std::mem::replace(&mut now, start(&pager));
        let mut said = String::new();
        before.1.read_to_string(&mut said).expect("it ends");
        assert!(said.contains("has taken over"), "{said}");
        assert!(before.0.wait().expect("it is ours").success());
        exchanges += 1;
    }
    let output = program.output();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {said}", output.status);
    let checked = said.lines().find_map(|line| line.split("checked ").nth(1));
    let checked: u64 = checked.expect("a count").trim().parse().expect("a number");
    println!("{checked} pages checked, {exchanges} exchanges");
    assert!(checked >= CHECKED && exchanges > 0, "{checked} {exchanges}");
    let most = cgroup.most_bytes().unwrap();
    assert!(most > LIMIT - MIB, "only {most} bytes were used");
    assert_eq!(
        cgroup.kills().unwrap(),
        0,
        "processes were ended for want of memory"
    );
    drop(up);
}
