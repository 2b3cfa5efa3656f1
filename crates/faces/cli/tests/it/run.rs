//! Runs of real programs: exit status, signals, statistics, plots, paging files.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Output, Stdio};
use std::time::Duration;

use farpage_testkit::{Started, pass, until};

fn farpage(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
    command.args(args).env("FARPAGE_SPILL", "/var/tmp");
    command
}

fn output(args: &[&str]) -> Output {
    farpage(args).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A directory that goes away with it.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn dir(&self) -> String {
        self.0.path().display().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

/// Runs `script` under a shell, which reads lines then, and waits until both the program and the passing
/// on of signals have started. Returns the run, the shell's process id and its input.
fn start(script: &str) -> (Started, u32, ChildStdin) {
    let script = format!("{script}; echo $$; while read _; do :; done");
    let mut command = farpage(&["run", "--quiet", "--ram", "64M", "--", "sh", "-c", &script]);
    let mut child = Started::new(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let input = child.stdin.take().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    let tasks = format!("/proc/{}/task", child.id());
    let forwards = |task: std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm"));
        name.is_ok_and(|name| name.trim() == "signals")
    };
    until("signals are passed on", || {
        std::fs::read_dir(&tasks).unwrap().flatten().any(forwards)
    });
    (child, line.trim().parse().unwrap(), input)
}

fn kill(pid: u32, signal: &str) {
    let sent = Command::new("kill")
        .args([signal, &pid.to_string()])
        .status();
    assert!(sent.unwrap().success());
}

#[test]
fn a_program_that_dies_by_a_signal_takes_the_run_with_it() {
    let died = output(&["run", "--quiet", "--", "sh", "-c", "kill -SEGV $$"]);
    assert_eq!(died.status.signal(), Some(11));
    let ended = output(&["run", "--quiet", "--", "sh", "-c", "exit 11"]);
    assert_eq!(ended.status.code(), Some(11));
}

#[test]
fn signals_are_passed_on_and_the_program_decides() {
    let (mut handles, _, mut input) = start("trap 'exit 5' USR1");
    kill(handles.id(), "-USR1");
    until("the shell has handled it", || {
        // It looks between two lines: a signal that comes just before it reads does not end the reading.
        let _ = input.write_all(b"\n");
        handles.try_wait().unwrap().is_some()
    });
    assert_eq!(handles.wait().unwrap().code(), Some(5));
    let (mut dies, program, _input) = start(":");
    kill(dies.id(), "-TERM");
    assert_eq!(dies.wait().unwrap().signal(), Some(15));
    let left = Path::new(&format!("/proc/{program}")).exists();
    assert!(!left, "the run outlives its program");
}

#[test]
fn signals_of_real_time_come_with_their_value() {
    let program = "import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH, signal.SIGRTMIN + 3])
print('ready', flush=True)
for _ in range(2):
    info = signal.sigwaitinfo([signal.SIGWINCH, signal.SIGRTMIN + 3])
    print(info.si_signo - signal.SIGRTMIN if info.si_signo > 31 else 'window', info.si_code, flush=True)";
    let mut command = farpage(&["run", "--quiet", "--", "python3", "-c", program]);
    let mut child = Started::new(command.stdout(Stdio::piped()));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut line = || lines.next().unwrap().unwrap();
    assert_eq!(line(), "ready");
    kill(child.id(), "-WINCH");
    assert_eq!(line(), "window 0");
    let queue = format!(
        "import ctypes; exit(ctypes.CDLL(None).sigqueue({}, 34 + 3, ctypes.c_void_p(77)))",
        child.id()
    );
    let queued = Command::new("python3").args(["-c", &queue]).status();
    assert!(queued.unwrap().success());
    // SI_QUEUE
    assert_eq!(line(), "3 -1");
    assert!(child.wait().unwrap().success());
}

/// Sockets and a watchdog are for the process whose number systemd knows.
#[test]
fn what_systemd_gives_the_run_is_the_programs() {
    let shell = "LISTEN_PID=$$ SYSTEMD_EXEC_PID=$$ LISTEN_PIDFDID=1 WATCHDOG_PID=7 LISTEN_FDS=1 exec \"$1\" run --quiet -- \
                 sh -c 'echo $$ $LISTEN_PID $SYSTEMD_EXEC_PID $WATCHDOG_PID $LISTEN_PIDFDID; readlink /proc/self/fd/3' \
                 3< /dev/zero";
    let ran = Command::new("sh")
        .args(["-c", shell, "sh", env!("CARGO_BIN_EXE_farpage")])
        .output()
        .unwrap();
    let said = String::from_utf8(ran.stdout).unwrap();
    let pid = said.split(' ').next().unwrap();
    assert_eq!(said, format!("{pid} {pid} {pid} 7\n/dev/zero\n"));
}

#[test]
fn statistics_tell_how_the_run_went_and_can_be_plotted_when_traced() {
    let scratch = Scratch::new();
    let (plain, traced) = (scratch.path("plain.json"), scratch.path("traced.json"));
    let page = scratch.path("page.html");
    let ran = output(&[
        "run", "--quiet", "--ram", "64M", "--stats", &plain, "sh", "-c", "exit 3",
    ]);
    assert_eq!(ran.status.code(), Some(3));
    let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(&plain).unwrap()).unwrap();
    assert_eq!(stats["exit"]["code"], 3);
    assert_eq!(stats["settings"]["ram_bytes"], 64 << 20);
    assert_eq!(stats["program"][0], "sh");
    assert!(stats["counters"]["faults"].is_u64());
    assert!(stats["trace"].is_null());
    let refused = output(&["plot", &plain, "-o", &page]);
    assert_eq!(refused.status.code(), Some(1));
    let message = stderr(&refused);
    assert!(
        message.contains("run the program again with --trace --stats FILE"),
        "{message}"
    );
    assert!(!Path::new(&page).exists());

    let line = [
        "run", "--quiet", "--ram", "64M", "--stats", &traced, "--trace", "sleep", "0.2",
    ];
    assert!(output(&line).status.success());
    assert!(output(&["plot", &traced, "-o", &page]).status.success());
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.starts_with("<!doctype html>"));
}

#[test]
fn memory_that_is_not_used_gives_way_to_what_is_whosever_it_is() {
    if !farpage_sys::uffd::serves_system_calls() {
        return println!("skipped: this user's userfaultfd does not serve system calls");
    }
    let scratch = Scratch::new();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/idle.py");
    for idle in ["task", "shared"] {
        let file = scratch.path(idle);
        let line = [
            "run", "--quiet", "--shm", "--ram", "64M", "--stats", &file, "python3", program, idle,
        ];
        let ran = output(&line);
        let touched: u64 = String::from_utf8_lossy(&ran.stdout).trim().parse().unwrap();
        let stats = std::fs::read(&file).unwrap();
        let stats: serde_json::Value = serde_json::from_slice(&stats).unwrap();
        let pages = |name: &str| stats["counters"][name].as_u64().unwrap();
        let came = pages("page_ins_compressed") + pages("page_ins_spilled");
        assert!(came < touched / 4, "{idle}: {came} of {touched} pages");
    }
}

#[test]
fn paging_files_come_and_go_while_a_run_goes_on() {
    let scratch = Scratch::new();
    let dir = scratch.path("more");
    std::fs::create_dir(&dir).unwrap();
    let (mut run, _, _input) = start(":");
    let pid = run.id().to_string();
    let spill = |what: &[&str]| {
        let mut line = vec!["spill"];
        line.extend(what);
        line.extend(["--pid", &pid]);
        output(&line)
    };
    let added = spill(&["add", &dir]);
    assert!(added.status.success(), "{}", stderr(&added));
    assert_eq!(
        spill(&["add", &dir]).status.code(),
        Some(1),
        "it is there already"
    );
    let list = String::from_utf8(spill(&["ls"]).stdout).unwrap();
    assert!(list.contains(&dir) && list.contains("/var/tmp"), "{list}");
    assert_eq!(
        std::fs::read_dir(&dir).unwrap().count(),
        0,
        "the file has no name"
    );
    assert!(spill(&["rm", &dir]).status.success());
    assert_eq!(
        spill(&["rm", &dir]).status.code(),
        Some(1),
        "it is gone already"
    );
    kill(run.id(), "-TERM");
    run.wait().unwrap();
    assert_eq!(spill(&["ls"]).status.code(), Some(1), "the run has ended");
}

#[test]
fn the_same_program_finishes_with_room() {
    let job = "import os; kept = [os.urandom(1000000) for _ in range(150)]; print(len(kept))";
    let run = output(&["run", "--ram", "64M", "--", "python3", "-c", job]);
    assert!(run.status.success(), "{}", stderr(&run));
    assert_eq!(run.stdout, b"150\n");
}

/// Keeps more than may stay in memory; checks it and says so when it is told to.
const KEEPER: &str = "\
import os, sys
kept = [os.urandom(1 << 20) for _ in range(150)]
sums = [hash(part) for part in kept]
print(os.getpid(), flush=True)
sys.stdin.readline()
print('same' if sums == [hash(bytes(memoryview(part))) for part in kept] else 'other', flush=True)
";

/// Starts it, with pages on the disk in `dir`. Returns the run, its output and the program's id.
fn keeper(dir: &str) -> (Started, BufReader<std::process::ChildStdout>, u32) {
    let limits = ["run", "--quiet", "--ram", "64M", "--compressed", "0"];
    let line = ["--spill", dir, "--", "python3", "-c", KEEPER];
    let mut command = farpage(&[&limits[..], &line].concat());
    let mut run = Started::new(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut out = BufReader::new(run.stdout.take().unwrap());
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    let held = open_in(dir);
    assert!(
        held.iter().any(|file| blocks(file) > 0),
        "nothing is on the disk"
    );
    (run, out, first.trim().parse().unwrap())
}

/// The open files of all processes that lie in `dir`.
fn open_in(dir: &str) -> Vec<PathBuf> {
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let lies_there =
        |file: &PathBuf| std::fs::read_link(file).is_ok_and(|name| name.starts_with(dir));
    entries(Path::new("/proc"))
        .flat_map(|process| entries(&process.path().join("fd")).collect::<Vec<_>>())
        .map(|fd| fd.path())
        .filter(lies_there)
        .collect()
}

fn blocks(file: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(file).map_or(0, |status| status.blocks())
}

/// Waits until nobody has a file in `dir` open; none has a name there.
fn is_left_empty(dir: &str) {
    until("nobody has the files", || open_in(dir).is_empty());
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
}

#[test]
fn nothing_is_left_on_the_disk_when_the_program_is_killed() {
    let scratch = Scratch::new();
    let dir = scratch.dir();
    let (mut run, _out, program) = keeper(&dir);
    kill(program, "-KILL");
    assert_eq!(run.wait().unwrap().signal(), Some(9));
    is_left_empty(&dir);
}

#[test]
fn the_program_goes_on_and_leaves_nothing_when_farpage_is_killed() {
    let scratch = Scratch::new();
    let dir = scratch.dir();
    let (mut run, mut out, _) = keeper(&dir);
    let mut stdin = run.stdin.take().unwrap();
    kill(run.id(), "-KILL");
    assert_eq!(run.wait().unwrap().signal(), Some(9));
    stdin.write_all(b"go on\n").unwrap();
    let mut answer = String::new();
    out.read_line(&mut answer).unwrap();
    assert_eq!(answer, "same\n");
    drop(stdin);
    is_left_empty(&dir);
}

#[test]
fn a_directory_that_is_not_ours_to_write_is_refused() {
    if rustix::process::geteuid().is_root() {
        println!("skipped: root may write everywhere");
        return;
    }
    let refused = output(&["run", "--quiet", "--spill", "/etc", "--", "true"]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(stderr(&refused).contains("you may not make files there"));
}

#[test]
fn a_read_only_file_system_is_refused() {
    let scratch = Scratch::new();
    let dir = scratch.dir();
    let mount = format!("mount -t tmpfs -o ro none '{dir}' || exit 77; exec \"$@\"");
    let run = |options: &[&str]| {
        let mut command = Command::new("unshare");
        command.args([
            "-m",
            "sh",
            "-c",
            &mount,
            "sh",
            env!("CARGO_BIN_EXE_farpage"),
        ]);
        command
            .args(["run", "--quiet", "--ram", "64M"])
            .args(options);
        command.args(["--", "true"]).output()
    };
    match run(&["--spill", "/var/tmp"]) {
        Ok(accepted) if accepted.status.success() => {}
        _ => {
            println!("skipped: this user may not mount");
            return;
        }
    }
    let refused = run(&["--spill", &dir]).unwrap();
    assert_eq!(refused.status.code(), Some(125));
    let message = stderr(&refused);
    assert!(
        message.contains("its file system is mounted read-only"),
        "{message}"
    );
}

/// A run on a terminal, of a program that goes on until it has read a byte.
struct OnTerminal {
    run: Started,
    input: std::fs::File,
    shown: Vec<u8>,
    _scratch: Scratch,
}

impl OnTerminal {
    fn start(options: &str) -> Self {
        let scratch = Scratch::new();
        let fifo = scratch.path("input");
        assert!(
            Command::new("mkfifo")
                .arg(&fifo)
                .status()
                .unwrap()
                .success()
        );
        // To write and to read: it does not wait for the other side.
        let both = std::fs::File::options().read(true).write(true).open(&fifo);
        let farpage = env!("CARGO_BIN_EXE_farpage");
        let waits = format!("dd if='{fifo}' of=/dev/null bs=1 count=1 status=none");
        let line = format!("stty cols 120; {farpage} run {options} --ram 64M -- {waits}");
        let mut script = Command::new("script");
        script
            .args(["-qec", &line, "/dev/null"])
            .env("TERM", "xterm");
        Self {
            run: Started::new(script.stdin(Stdio::null()).stdout(Stdio::piped())),
            input: both.unwrap(),
            shown: Vec::new(),
            _scratch: scratch,
        }
    }

    /// Waits until it shows this, or has ended.
    fn shows(&mut self, what: &str) {
        let mut part = [0; 4096];
        while !String::from_utf8_lossy(&self.shown).contains(what) {
            match self.run.stdout.as_mut().unwrap().read(&mut part).unwrap() {
                0 => return,
                bytes => self.shown.extend_from_slice(&part[..bytes]),
            }
        }
    }

    /// Ends it; all that it has shown.
    fn ends(mut self) -> String {
        // It stays open: the program may not have opened it yet.
        self.input.write_all(b"x").unwrap();
        self.shown.extend(self.run.output().stdout);
        String::from_utf8_lossy(&self.shown).into_owned()
    }
}

#[test]
fn a_terminal_shows_a_line_and_gets_it_cleared() {
    let Ok(_) = Command::new("script").arg("--version").output() else {
        println!("skipped: no script(1) here");
        return;
    };
    let mut shows = OnTerminal::start("");
    shows.shows("page-ins/s");
    let text = shows.ends();
    assert!(text.contains("farpage  resident "), "{text}");
    assert!(text.contains("page-ins/s"), "{text}");
    let (_, after) = text.rsplit_once("\x1b[K\x1b8").unwrap();
    assert!(
        after.starts_with("farpage: nothing had to be paged"),
        "{text}"
    );
    let quiet = OnTerminal::start("--quiet");
    // As long as the other would need for a line.
    pass(Duration::from_millis(500));
    assert_eq!(quiet.ends(), "");
}

#[test]
fn doctor_judges_this_machine_as_run_does() {
    let doctor = output(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    assert_eq!(report["works"], doctor.status.success());
    let run = output(&["run", "--quiet", "--ram", "64M", "--", "true"]);
    assert_eq!(run.status.success(), doctor.status.success());
    let bad = output(&["doctor", "--spill", "/no/such/dir"]);
    assert_eq!(bad.status.code(), Some(1));
    let text = String::from_utf8(bad.stdout).unwrap();
    assert!(text.contains("farpage run cannot work here"), "{text}");
    assert!(!text.contains('\x1b'), "no colour into a pipe");
}

#[test]
fn manual_pages_and_completions_are_made() {
    let scratch = Scratch::new();
    let dir = scratch.dir();
    assert!(output(&["man", &dir]).status.success());
    for page in ["farpage.1", "farpage-run.1", "farpage-spill-add.1"] {
        assert!(scratch.0.path().join(page).exists(), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = output(&["completions", shell]).stdout;
        assert!(
            String::from_utf8(script).unwrap().contains("doctor"),
            "{shell}"
        );
    }
}
