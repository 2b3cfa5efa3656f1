//! `farpage pager`: a program that answers for memory, and that is killed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farpage_client::pager::{About, MemoryObject, PageRequest};
use farpage_client::{Host, default_socket};
use farpage_testkit::{Started, until};
use rustix::process::{Pid, Signal, kill_process};

const PAGER: &str = "FARPAGE_TEST_PAGER";
const FARPAGE: &str = env!("CARGO_BIN_EXE_farpage");

/// Every byte is the number of its page.
struct Numbers;

impl MemoryObject for Numbers {
    fn about(&self) -> About {
        About {
            name: "numbers".into(),
            bytes: 1 << 20,
            writable: false,
            cluster_pages: 1,
        }
    }

    fn data_request(&self, request: PageRequest) {
        let pages = request.pages().iter();
        request.supply(pages.flat_map(|page| [page.0 as u8; 4096]).collect());
    }
}

/// What a pager program does; nothing when it is run as a test.
#[test]
fn the_program() {
    if std::env::var_os(PAGER).is_some() {
        let host = Host::connect(&default_socket()).unwrap();
        let offered = host.offer(Arc::new(Numbers), None).unwrap();
        let _ = offered.wait(None);
        std::process::exit(1);
    }
}

fn farpage(socket: &Path, args: &[&str]) -> Started {
    let mut command = Command::new(FARPAGE);
    command.args(args).env("FARPAGE_HOST", socket);
    Started::new(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
}

fn line(started: &mut Started) -> String {
    let mut line = String::new();
    let says = started.stdout.as_mut().unwrap();
    BufReader::with_capacity(1, says)
        .read_line(&mut line)
        .unwrap();
    line
}

/// Tells it to end, and waits until it has.
fn end(mut started: Started) {
    kill_process(Pid::from_child(&started), Signal::TERM).unwrap();
    started.wait().unwrap();
}

fn says(socket: &Path, args: &[&str]) -> String {
    let output = Command::new(FARPAGE)
        .args(args)
        .env("FARPAGE_HOST", socket)
        .output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// Stops a process and waits until all its threads stand: they go on for a while after the signal.
fn stop(process: Pid) {
    kill_process(process, Signal::STOP).unwrap();
    let threads = format!("/proc/{}/task", process.as_raw_nonzero());
    let stands = |thread: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('T')
    };
    until("all threads stand", || {
        std::fs::read_dir(&threads).unwrap().all(stands)
    });
}

#[test]
fn a_pager_program_that_is_killed_runs_again_and_its_memory_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let socket: PathBuf = folder.path().join("host");
    let spill = folder.path().to_str().unwrap();
    let mut up = farpage(&socket, &["up", "--ram", "64M", "--spill", spill]);
    assert!(line(&mut up).contains("answers at"));
    let own = std::env::current_exe().unwrap();
    let own = own.to_str().unwrap();
    let run = [
        "pager",
        "serve",
        "env",
        "FARPAGE_TEST_PAGER=1",
        own,
        "pager::the_program",
        "--exact",
    ];
    let mut serve = farpage(&socket, &run);
    let pid_of = |line: &str| {
        let pid = line
            .split("process ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        Pid::from_raw(pid.unwrap().parse().unwrap()).unwrap()
    };
    let next = |serve: &mut Started| loop {
        let line = line(serve);
        assert!(!line.is_empty(), "it has ended");
        if line.contains("answers for 'numbers', 1.00 MiB") {
            return pid_of(&line);
        }
    };
    let first = next(&mut serve);
    let host = Host::connect(&socket).unwrap();
    let numbers = host.open("numbers").unwrap();
    let byte = |page: usize| numbers.words()[page * 512].load(Ordering::Relaxed) as u8;
    assert_eq!((byte(5), numbers.is_writable()), (5, false));
    assert!(says(&socket, &["pager", "ls"]).contains("answers"));
    kill_process(first, Signal::KILL).unwrap();
    // Waits for the next.
    assert_eq!(byte(77), 77);
    let second = next(&mut serve);
    assert_ne!(second, first);
    stop(second);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| byte(99));
        until("it is seen that it is stopped", || {
            says(&socket, &["pager", "ls"]).contains("is silent")
        });
        kill_process(second, Signal::CONT).unwrap();
        assert_eq!(waits.join().unwrap(), 99);
    });
    let listed = says(&socket, &["pager", "ls", "--json"]);
    assert!(
        listed.contains("\"name\": \"numbers\"") && listed.contains("\"is_up\": true"),
        "{listed}"
    );
    end(serve);
    until("the program has ended", || {
        says(&socket, &["pager", "ls"]).contains("is gone")
    });
    drop((numbers, host));
}

#[test]
fn a_pager_program_hears_the_signal_that_ends_it() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("host");
    let mut up = farpage(&socket, &["up", "--ram", "16M"]);
    assert!(line(&mut up).contains("answers at"));
    // The signal is not lost when it comes before the program waits for it: a shell's would be.
    let program = "import signal; term = [signal.SIGTERM]; signal.pthread_sigmask(signal.SIG_BLOCK, term); \
                   print('ready', flush=True); signal.sigwait(term); print('heard', flush=True)";
    let mut serve = farpage(&socket, &["pager", "serve", "python3", "-c", program]);
    assert_eq!(line(&mut serve), "ready\n");
    kill_process(Pid::from_child(&serve), Signal::TERM).unwrap();
    assert_eq!(line(&mut serve), "heard\n", "and not only SIGKILL");
    assert!(serve.wait().unwrap().success());
}

#[test]
fn what_cannot_be_served_is_refused_and_what_fails_again_and_again_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("host");
    let serve = |program: &[&str]| {
        let mut command = Command::new(FARPAGE);
        command.args(["pager", "serve"]).args(program);
        command.env("FARPAGE_HOST", &socket).stderr(Stdio::piped());
        Started::new(&mut command)
    };
    let refused = |program: &[&str], why: &str| {
        let output = serve(program).output();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(why), "{error}");
        assert_eq!(output.status.code(), Some(1));
    };
    refused(&["true"], "start one: farpage up");
    let mut up = farpage(&socket, &["up", "--ram", "16M"]);
    line(&mut up);
    refused(&["/no/such/program"], "cannot start '/no/such/program'");

    let mut fails = serve(&["false"]);
    let says = BufReader::new(fails.stderr.take().unwrap());
    let often = says.lines().map(Result::unwrap);
    let often = often.take(5).last().unwrap();
    assert!(
        often.contains("5 times in a row; end this command"),
        "{often}"
    );
    end(fails);
}
