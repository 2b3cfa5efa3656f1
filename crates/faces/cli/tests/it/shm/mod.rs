//! `farpage run --shm`: shared memory of programs that are not changed pages out, may be larger than
//! `/dev/shm`, and is gone with its last user.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use farpage_testkit::{Started, pass};

use crate::support;

mod files;
mod memory_files;
mod programs;
mod writers;

/// Size of `/dev/shm` in these tests, each of which has one of its own.
const LIMIT: &str = "64m";

fn dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(support::folder_of_this_process)
}

fn compile(source: &str, name: &str, flags: &[&str]) -> String {
    compile_by("cc", source, name, flags)
}

fn compile_by(compiler: &str, source: &str, name: &str, flags: &[&str]) -> String {
    let to = dir().join(name);
    support::compile_by(compiler, source, &to, flags);
    to.display().to_string()
}

/// Where a program of the tests lies.
fn program(source: &str) -> String {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    sources.join(source).display().to_string()
}

/// False, and it says so, where this user may not have a `/dev/shm` of its own.
fn may_mount() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: only root may mount a /dev/shm of its own");
    }
    root
}

/// A command with a `/dev/shm` of [`LIMIT`] and numbers of System V of its own, in which `script` is
/// run by a shell with `$FARPAGE` and arguments.
fn small(script: &str, words: &[&str]) -> Command {
    let functions = support::SHELL;
    let mount = format!("{functions}mount -t tmpfs -o size={LIMIT} tmpfs /dev/shm && {script}");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--ipc", "sh", "-c", &mount, "sh"]);
    command.args(words).env("FARPAGE", dir().join("farpage"));
    // What a program that is killed leaves among temporary files goes with this folder.
    command.current_dir(dir()).env("TMPDIR", dir());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What is left in the end, after `program`.
///
/// What a task that is being killed has attached is there until it is gone.
const LEFT: &str = "; code=$?; ls /dev/shm; until_so no_keys; ipcs | grep '^0x'; exit $code";

/// Runs a program with `--shm` within `ram`; it must succeed, and leave nothing.
fn run(ram: &str, program: &[&str]) -> Output {
    let script = format!("$FARPAGE run --ram {ram} --spill /var/tmp --shm -- \"$@\" {LEFT}");
    let got = small(&script, program).output().unwrap();
    let said = text(&got.stderr);
    assert!(got.status.success(), "{program:?}: {} {said}", got.status);
    got
}

/// In RAM of 32 MiB at most.
const MOST_MIB: f64 = 32.0;

/// What the summary says of objects in RAM.
fn most_mib(said: &str) -> f64 {
    let (_, line) = said.split_once("shared memory: ").expect("a line for it");
    let (_, most) = line.split_once(", ").expect("how many there were");
    let (most, _) = most.split_once(" MiB in RAM").expect("their size");
    most.parse().unwrap()
}

fn expect(ram: &str, program: &[&str]) -> String {
    let got = run(ram, program);
    let said = text(&got.stderr);
    assert_eq!(text(&got.stdout), "as it should be\n", "{program:?} {said}");
    said
}

#[test]
fn every_call_means_what_it_means_without() {
    let program = compile("shm.c", "shm", &[]);
    let bare = Command::new(&program).arg("calls").output().unwrap();
    assert_eq!(text(&bare.stdout), "as it should be\n", "{bare:?}");
    if !may_mount() {
        return;
    }
    let fixed = compile("shm.c", "shm-static", &["-static"]);
    for program in [&program, &fixed] {
        for ram in ["256M", "16M"] {
            expect(ram, &[program, "calls"]);
        }
    }
}

#[test]
fn any_number_and_any_address_will_do() {
    let program = compile("redirected.c", "redirected", &["-lrt"]);
    let bare = Command::new(&program).output().unwrap();
    assert!(bare.status.success(), "{bare:?}");
    if !may_mount() {
        return;
    }
    let fixed = compile("redirected.c", "redirected-static", &["-static", "-lrt"]);
    for program in [&program, &fixed] {
        for ram in ["256M", "16M"] {
            let got = run(ram, &[program]);
            assert_eq!(text(&got.stdout), text(&bare.stdout), "{program} {ram}");
        }
    }
}

#[test]
fn shared_memory_larger_than_ram_keeps_every_byte() {
    if !may_mount() {
        return;
    }
    let program = compile("shm.c", "shm-large", &[]);
    let said = expect("32M", &[&program, "large", "200"]);
    assert!(most_mib(&said) <= MOST_MIB, "{said}");
    let stalled = said.split("stalled").nth(1).expect("a line for it");
    assert!(!stalled.contains(" in 0 faults"), "{said}");
    // Linux would have ended it: it does not fit into /dev/shm.
    let bare = small("exec \"$@\"", &[&program, "large", "200"]).output();
    assert!(!bare.unwrap().status.success());
}

#[test]
fn shared_memory_that_fits_nowhere_ends_its_program_and_says_why() {
    if !may_mount() {
        return;
    }
    let program = compile("shm.c", "shm-nowhere", &[]);
    let script = "$FARPAGE run --ram 32M --compressed 0 --spill /var/tmp --spill-limit 32M --shm \
                  --when-full kill -- \"$@\"";
    let got = small(script, &[&program, "large", "200"]).output().unwrap();
    let said = text(&got.stderr);
    assert_eq!(got.status.code(), Some(128 + 7), "{said}");
    assert!(
        said.contains("paging space is full") && said.contains("farpage spill add"),
        "{said}"
    );
    assert!(said.contains("memory and paging space are full"), "{said}");
    // Who has waited two seconds for room that is nowhere has pages all the same, until all are told.
    assert!(most_mib(&said) <= MOST_MIB + 4.0, "{said}");
}

#[test]
fn a_file_that_is_written_before_it_is_mapped_may_be_larger_than_dev_shm() {
    if may_mount() {
        let program = compile("shm.c", "shm-written", &[]);
        expect("32M", &[&program, "written", "150"]);
        expect("32M", &[&program, "written", "1"]);
    }
}

#[test]
fn files_that_are_used_while_they_are_first_mapped_lose_nothing() {
    let program = compile("first_mapped.c", "first-mapped", &[]);
    let bare = Command::new(&program).output().unwrap();
    assert_eq!(text(&bare.stdout), "as it should be\n", "{bare:?}");
    if may_mount() {
        expect("16M", &[&program]);
    }
}

#[test]
fn locks_of_whole_files_are_locks_of_whole_files() {
    let program = compile("file_locks.c", "file-locks", &[]);
    let bare = Command::new(&program).output().unwrap();
    assert_eq!(text(&bare.stdout), "as it should be\n", "{bare:?}");
    if may_mount() {
        expect("16M", &[&program]);
    }
}

#[test]
fn locks_work_in_memory_that_leaves_meanwhile() {
    if may_mount() {
        let program = compile("shm.c", "shm-locks", &[]);
        expect("16M", &[&program, "locks", "60"]);
    }
}

#[test]
fn segments_of_system_v_are_linuxs_but_for_their_pages() {
    let program = compile("sysv.c", "sysv", &[]);
    let bare = Command::new("unshare").args(["--ipc", &program]).output();
    if !may_mount() {
        return;
    }
    let bare = bare.unwrap();
    assert_eq!(text(&bare.stdout), "as it should be\n", "{bare:?}");
    let fixed = compile("sysv.c", "sysv-static", &["-static"]);
    for program in [&program, &fixed] {
        for ram in ["256M", "16M"] {
            expect(ram, &[program]);
        }
    }
}

#[test]
fn python_shares_memory_among_processes() {
    if !may_mount() {
        return;
    }
    let program = "\
from multiprocessing import shared_memory, Process
import os, sys
size = 100 << 20
def child(name):
    shm = shared_memory.SharedMemory(name=name)
    good = all(shm.buf[at] == at >> 12 & 255 for at in range(0, size, 4096))
    shm.buf[1] = 77
    shm.close()
    sys.exit(0 if good else 1)
shm = shared_memory.SharedMemory(create=True, size=size)
for at in range(0, size, 4096):
    shm.buf[at] = at >> 12 & 255
process = Process(target=child, args=(shm.name,))
process.start()
process.join()
assert process.exitcode == 0 and shm.buf[1] == 77
assert os.stat('/dev/shm/' + shm.name).st_size == size
assert os.listdir('/dev/shm') == [shm.name]
shm.close()
shm.unlink()
print('as it should be')
";
    expect("48M", &["python3", "-c", program]);
}

#[test]
fn statistics_say_what_the_summary_says() {
    if !may_mount() {
        return;
    }
    let program = compile("leave.c", "leave-counted", &[]);
    let file = dir().join("stats.json").display().to_string();
    let script = "$FARPAGE run --ram 64M --spill /var/tmp --shm --stats \"$@\"";
    let got = small(script, &[&file, "--", &program]).output().unwrap();
    let said = text(&got.stderr);
    let stats = std::fs::read(&file).unwrap();
    let stats: serde_json::Value = serde_json::from_slice(&stats).unwrap();
    let shm = &stats["shm"];
    assert_eq!((&shm["removed"], &shm["left"]), (&6.into(), &0.into()));
    let objects = shm["objects"].as_u64().unwrap();
    assert!(
        objects > 0 && said.contains(&format!("{objects} objects mapped,")),
        "{shm} {said}"
    );
    assert!(shm["resident_max_bytes"].as_u64().unwrap() > 0, "{shm}");
    assert!(shm["faults"].as_u64().unwrap() > 0, "{shm}");
}

#[test]
fn programs_that_ask_how_much_fits_are_told_what_does() {
    if !may_mount() {
        return;
    }
    let program = "\
import os
def mib(about):
    return about.f_bavail * about.f_bsize >> 20, about.f_blocks * about.f_bsize >> 20
fd = os.open('/dev/shm', os.O_RDONLY)
for about in (os.statvfs('/dev/shm'), os.fstatvfs(fd)):
    free, all = mib(about)
    assert 100 < free <= 32 + 100 and free <= all, (free, all)
assert os.statvfs('/').f_blocks != os.statvfs('/dev/shm').f_blocks
print('as it should be')
";
    let script = "$FARPAGE run --ram 32M --spill /var/tmp --spill-limit 100M --shm -- \"$@\"";
    let got = small(script, &["python3", "-c", program]).output();
    let got = got.unwrap();
    assert_eq!(text(&got.stdout), "as it should be\n", "{got:?}");
    let bare = small("exec \"$@\"", &["python3", "-c", program]).output();
    assert!(!bare.unwrap().status.success());
}

#[test]
fn names_that_nobody_removed_are_gone_and_said() {
    if !may_mount() {
        return;
    }
    let program = compile("leave.c", "leave", &[]);
    let got = run("64M", &[&program]);
    assert_eq!(text(&got.stdout), "made\n", "nothing is left");
    let said = text(&got.stderr);
    // A file, a semaphore, a queue, and three of System V.
    assert!(
        said.contains("removed shared memory that nobody unlinked: 6 names"),
        "{said}"
    );
    // What others have made stays.
    let script = format!("echo theirs > /dev/shm/theirs; $FARPAGE run --shm -- \"$@\" {LEFT}");
    let runtime = tempfile::tempdir().unwrap();
    let mut command = small(&script, &["cat", "/dev/shm/theirs"]);
    command.env("XDG_RUNTIME_DIR", runtime.path());
    let got = command.output().unwrap();
    assert_eq!(text(&got.stdout), "theirs\ntheirs\n", "{got:?}");
    let notes = std::fs::read_dir(runtime.path().join("farpage")).unwrap();
    assert_eq!(notes.count(), 0, "what was noted is not needed any more");
}

/// The processes of a run that was started in the background.
fn start(script: &str, words: &[&str]) -> (Started, BufReader<impl std::io::Read + use<>>) {
    let mut command = small(script, words);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = Started::new(&mut command);
    let output = BufReader::new(child.stdout.take().unwrap());
    (child, output)
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line
}

#[test]
fn kill_9_of_every_task_leaves_no_name() {
    if !may_mount() {
        return;
    }
    let program = compile("leave.c", "leave-killed", &[]);
    let script = format!("$FARPAGE run --ram 64M --spill /var/tmp --shm -- \"$@\"; echo $?{LEFT}");
    let got = small(&script, &[&program, "killed"]).output().unwrap();
    let lines = text(&got.stdout);
    assert_eq!(
        lines,
        "made\nmade\n137\n",
        "{} {}",
        lines,
        text(&got.stderr)
    );
}

#[test]
fn processes_killed_at_random_leave_nothing() {
    if may_mount() {
        let program = compile("leave.c", "leave-random", &[]);
        let got = run("32M", &[&program, "random", "100"]);
        assert_eq!(text(&got.stdout), "", "nothing is left");
        let said = text(&got.stderr);
        assert!(said.contains("that nobody unlinked"), "{said}");
    }
}

#[test]
fn what_a_killed_supervisor_left_the_next_run_removes() {
    if !may_mount() {
        return;
    }
    let program = compile("leave.c", "leave-alone", &[]);
    let script = "$FARPAGE run --ram 64M --spill /var/tmp --shm -- \"$1\" wait & echo $!; wait; \
                  ls /dev/shm | wc -l; $FARPAGE run --quiet --shm -- true; ls /dev/shm; \
                  until_so no_keys; ipcs | grep '^0x'; $FARPAGE gc";
    let (mut child, mut output) = start(script, &[&program]);
    let supervisor = line(&mut output);
    assert_eq!(line(&mut output), "made\n");
    let kill = Command::new("kill")
        .args(["-9", supervisor.trim()])
        .status();
    assert!(kill.unwrap().success());
    assert_eq!(
        line(&mut output).trim(),
        "2",
        "a file and a semaphore are left"
    );
    assert_eq!(
        line(&mut output),
        "killed runs have left no shared memory\n"
    );
    let ended = child.wait_with_output_of_stderr();
    assert!(
        ended.contains("which were killed, left: 6 names"),
        "{ended}"
    );
    assert!(
        ended.contains("it uses shared memory that farpage run --shm keeps"),
        "{ended}"
    );
}

#[test]
fn the_end_of_the_last_user_is_waited_for_or_a_signal() {
    if !may_mount() {
        return;
    }
    let program = compile("leave.c", "leave-behind", &[]);
    let shell = "(\"$0\" wait &) | { read made; echo \"$made\"; }; exit 1";
    let run = format!("$FARPAGE run --ram 64M --spill /var/tmp --shm -- sh -c '{shell}' \"$1\"");
    let script = format!("{run} & echo $!; wait $!; echo $?{LEFT}");
    let (mut child, mut output) = start(&script, &[&program]);
    let farpage = line(&mut output);
    // The shell ends, and what it started goes on.
    assert_eq!(line(&mut output), "made\n");
    pass(Duration::from_millis(500));
    assert_eq!(child.try_wait().unwrap(), None, "it waits");
    let kill = Command::new("kill").arg(farpage.trim()).status();
    assert!(kill.unwrap().success());
    assert_eq!(line(&mut output), "1\n");
    assert_eq!(line(&mut output), "", "nothing is left");
    let said = child.wait_with_output_of_stderr();
    assert!(said.contains("unlinked: 6 names"), "{said}");
}

trait Ended {
    fn wait_with_output_of_stderr(&mut self) -> String;
}

impl Ended for Started {
    fn wait_with_output_of_stderr(&mut self) -> String {
        let mut said = String::new();
        let stderr = self.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut BufReader::new(stderr), &mut said).unwrap();
        self.wait().unwrap();
        said
    }
}

#[test]
fn a_file_of_another_run_is_refused() {
    if !may_mount() {
        return;
    }
    let program = compile("leave.c", "leave-shared", &[]);
    let script = "$FARPAGE run --ram 64M --spill /var/tmp --shm -- \"$1\" wait & echo $!; \
                  read go; $FARPAGE run --quiet --shm -- \"$1\" map; echo $?; kill $!; wait";
    let (mut child, mut output) = start(script, &[&program]);
    line(&mut output);
    assert_eq!(line(&mut output), "made\n");
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
    assert_eq!(line(&mut output), "refused\n");
    assert_eq!(line(&mut output), "0\n");
    let said = child.wait_with_output_of_stderr();
    assert!(
        said.contains("another farpage run --shm keeps it"),
        "{said}"
    );
}

/// A budget that is full of objects nobody has is empty again.
#[test]
fn memory_of_the_dead_is_given_back_while_the_run_goes_on() {
    if !may_mount() {
        return;
    }
    let program = compile("leave.c", "leave-often", &[]);
    let script = format!(
        "$FARPAGE run --ram 32M --compressed 0 --spill /var/tmp --spill-limit 64M --shm -- \"$@\" {LEFT}"
    );
    // Random bytes, left by processes that are killed after they have unlinked the name, or unlinked
    // and unmapped by one that goes on: they would not fit into RAM and paging file together.
    for words in [[&program[..], "often", "20"], [&program, "alone", "100"]] {
        let got = small(&script, &words).output().unwrap();
        let said = text(&got.stderr);
        assert!(got.status.success(), "{said}");
        assert!(most_mib(&said) <= MOST_MIB, "{said}");
    }
}

#[test]
fn a_user_without_a_userfaultfd_that_serves_calls_is_told() {
    if !may_mount() {
        return;
    }
    let farpage = dir().join("farpage").display().to_string();
    let line = ["--reuid=65534", "--regid=65534", "--clear-groups", &farpage];
    let got = Command::new("setpriv")
        .args(line)
        .args(["run", "--shm", "--", "true"])
        .current_dir("/")
        .output()
        .unwrap();
    assert_eq!(got.status.code(), Some(125));
    assert!(
        text(&got.stderr).contains("needs a userfaultfd that serves system calls"),
        "{got:?}"
    );
}
