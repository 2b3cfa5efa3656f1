//! The default pager of a host kernel as a process of its own: exchanged, ended, killed.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farpage_client::Shared;
use farpage_default_pager::manager::paging::PagingSpace;
use farpage_testkit::Started;

use crate::support::up::{Up, farpage, until};

const READER: &str = "FARPAGE_TEST_READS";
const READY: &str = "all is read";
const MIB: usize = 1 << 20;
const PAGE_WORDS: usize = 512;

/// `farpage pager default`.
struct Process {
    child: Started,
    output: BufReader<ChildStdout>,
    errors: BufReader<ChildStderr>,
}

impl Process {
    /// Starts one that is the default pager now.
    fn start(up: &Up, more: &[&str]) -> Self {
        let mut command = farpage(&["pager", "default"], &up.socket());
        command.arg("--spill").arg(up.folder.path()).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Started::new(&mut command);
        let output = BufReader::new(child.stdout.take().unwrap());
        let errors = BufReader::new(child.stderr.take().unwrap());
        let mut process = Self {
            child,
            output,
            errors,
        };
        let line = process.line();
        let said = format!("process {} is the default pager", process.child.id());
        assert!(line.contains(&said), "{line}");
        process
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    /// Waits until it has all pages.
    fn arrives(&mut self) {
        let line = self.line();
        assert!(line.contains("from the previous default pager"), "{line}");
    }

    /// Waits until it complains of this.
    fn complains(&mut self, of: &str) {
        let mut lines = self.errors.by_ref().lines();
        assert!(
            lines.any(|line| line.unwrap().contains(of)),
            "not a word of: {of}"
        );
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// It ends well, and says that another has its pages.
    fn ends_replaced(mut self) {
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        assert!(said.contains("has taken over"), "{said}");
        assert!(self.child.wait().unwrap().success());
    }
}

/// Contents of a page that was written so often: some compress, some do not.
fn word(page: usize, version: u64, index: usize) -> u64 {
    let seed = (page as u64) << 20 | version;
    match page % 3 {
        0 => seed.wrapping_add(index as u64 / 64),
        _ => (seed << 9 | index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

fn page(shared: &Shared, page: usize) -> &[AtomicU64] {
    &shared.words()[page * PAGE_WORDS..][..PAGE_WORDS]
}

fn write(shared: &Shared, number: usize, version: u64) {
    for (index, into) in page(shared, number).iter().enumerate() {
        into.store(word(number, version, index), Ordering::Relaxed);
    }
}

fn check(shared: &Shared, number: usize, version: u64) {
    for (index, found) in page(shared, number).iter().enumerate() {
        let found = found.load(Ordering::Relaxed);
        assert_eq!(found, word(number, version, index), "page {number}");
    }
}

/// Tells who uses the pages to end, also when the test fails before.
struct Until<'a>(&'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads and writes pages at random until it is told to end; then looks at all of them.
fn use_it(shared: &Shared, ends: &AtomicBool) {
    let pages = shared.words().len() / PAGE_WORDS;
    let mut versions = vec![0u64; pages];
    (0..pages).for_each(|number| write(shared, number, 0));
    let mut seed = 7u64;
    while !ends.load(Ordering::Relaxed) {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let number = (seed >> 33) as usize % pages;
        check(shared, number, versions[number]);
        if seed >> 60 < 8 {
            versions[number] += 1;
            write(shared, number, versions[number]);
        }
    }
    (0..pages).for_each(|number| check(shared, number, versions[number]));
}

fn space(up: &Up) -> PagingSpace {
    up.host().figures().unwrap().paging_space.unwrap()
}

#[test]
fn pages_move_to_a_process_to_another_and_back_while_they_are_used() {
    let up = Up::start(&[]);
    let shared = up.host().create("grid", 48 * MIB as u64).unwrap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let until_now = Until(&ends);
        let user = scope.spawn(|| use_it(&shared, &ends));
        until("pages are out", || space(&up).files[0].used_bytes > 8 << 20);
        let mut first = Process::start(&up, &["--compressed", "4M"]);
        first.arrives();
        let now = space(&up);
        assert_eq!(now.process.unwrap().pid, first.child.id());
        assert!(now.files[0].used_bytes > 8 << 20, "{:?}", now.files);
        let said = up.says(&["stats"]);
        let line = format!("default pager process {}, ", first.child.id());
        assert!(said.contains(&line), "{said}");
        let mut second = Process::start(&up, &["--compressed", "0"]);
        second.arrives();
        first.ends_replaced();
        second.signal("-TERM");
        second.ends_replaced();
        let now = space(&up);
        assert_eq!((now.process, now.is_moving), (None, false));
        assert!(now.files[0].used_bytes > 8 << 20, "{:?}", now.files);
        assert!(now.died.is_empty() && now.unreadable_pages == 0);
        drop(until_now);
        user.join().unwrap();
    });
}

#[test]
fn one_without_room_leaves_the_rest_where_it_is() {
    let up = Up::start(&["--compressed", "0"]);
    let shared = up.host().create("grid", 48 * MIB as u64).unwrap();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let until_now = Until(&ends);
        let user = scope.spawn(|| use_it(&shared, &ends));
        until("pages are out", || {
            space(&up).files[0].used_bytes > 16 << 20
        });
        let mut small = Process::start(&up, &["--compressed", "0", "--spill-limit", "8M"]);
        small.complains("the paging files take no more");
        let now = space(&up);
        assert!(
            now.is_moving && now.files[0].used_bytes >= 7 << 20,
            "{now:?}"
        );
        small.signal("-INT");
        small.ends_replaced();
        drop(until_now);
        user.join().unwrap();
    });
}

/// Reads all of an object, waits, and reads one page again; nothing when it is run as a test.
#[test]
fn the_reader() {
    let Ok(number) = std::env::var(READER) else {
        return;
    };
    let host = farpage_client::Host::connect(&farpage_client::default_socket()).unwrap();
    let shared = host.open("grid").unwrap();
    (0..shared.words().len() / PAGE_WORDS).for_each(|number| check(&shared, number, 1));
    println!("{READY}");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    check(&shared, number.parse().unwrap(), 1);
}

fn reads_again(up: &Up, number: usize) -> (Started, BufReader<ChildStdout>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["default_pager::the_reader", "--exact", "--nocapture"]);
    command.env(READER, number.to_string());
    command.env("FARPAGE_HOST", up.socket());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Started::new(&mut command);
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let is_ready = |line: std::io::Result<String>| line.unwrap().contains(READY);
    assert!(output.by_ref().lines().any(is_ready));
    (child, output)
}

#[test]
fn one_that_is_killed_takes_what_it_had_and_nothing_else() {
    let up = Up::start(&["--compressed", "0"]);
    let host = up.host();
    let shared = host.create("grid", 32 * MIB as u64).unwrap();
    let pages = shared.words().len() / PAGE_WORDS;
    let mut process = Process::start(&up, &["--compressed", "0"]);
    process.arrives();
    (0..pages).for_each(|number| write(&shared, number, 1));
    let [mut lost, mut there] = [0, pages - 1].map(|number| reads_again(&up, number));
    // The last that was used.
    check(&shared, pages - 1, 1);
    process.signal("-KILL");
    process.child.wait().unwrap();
    let pid = process.child.id();
    until("it is seen", || space(&up).died == [pid]);
    // Their input ends.
    drop((lost.0.stdin.take(), there.0.stdin.take()));
    assert_eq!(lost.0.wait().unwrap().signal(), Some(7), "SIGBUS");
    assert!(there.0.wait().unwrap().success(), "it was in memory");
    let said = up.says(&["stats"]);
    assert!(
        said.contains(&format!("process {pid} died, and what it had is lost")),
        "{said}"
    );
    // What is made from now on is kept by the host kernel, or by the next one.
    let again = host.create("again", 32 * MIB as u64).unwrap();
    let mut next = Process::start(&up, &[]);
    (0..pages).for_each(|number| write(&again, number, 1));
    next.arrives();
    (0..pages).for_each(|number| check(&again, number, 1));
    drop((shared, again));
    let said = up.ends();
    for part in [
        format!("the default pager (process {pid}) died: pages that it had are lost"),
        "cannot page in 'grid' at byte 0".to_owned(),
    ] {
        assert!(said.contains(&part), "{said}");
    }
}

#[test]
fn one_that_is_killed_without_pages_takes_nothing() {
    let up = Up::start(&["--compressed", "0"]);
    let is_gone = || space(&up).process.is_none();
    let mut pids = Vec::new();
    for has_had_some in [false, true] {
        let mut process = Process::start(&up, &["--compressed", "0"]);
        process.arrives();
        if has_had_some {
            let shared = up.host().create("grid", 32 * MIB as u64).unwrap();
            let pages = shared.words().len() / PAGE_WORDS;
            (0..pages).for_each(|number| write(&shared, number, 1));
            until("pages are out", || space(&up).files[0].used_bytes > 0);
            drop(shared);
            until("none are", || space(&up).files[0].used_bytes == 0);
        }
        process.signal("-KILL");
        process.child.wait().unwrap();
        until("it is seen", is_gone);
        pids.push(process.child.id());
    }
    assert_eq!(space(&up).died, [0_u32; 0]);
    let said = up.ends();
    for pid in pids {
        let line = format!("the default pager (process {pid}) died: it had no pages");
        assert!(said.contains(&line), "{said}");
    }
}

#[test]
fn one_whose_host_kernel_is_gone_says_so_and_ends() {
    let mut up = Up::start(&[]);
    let mut process = Process::start(&up, &[]);
    up.child.kill().unwrap();
    up.child.wait().unwrap();
    assert_eq!(process.child.wait().unwrap().code(), Some(1));
}

#[test]
fn one_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root may be another user");
    }
    let up = Up::start(&[]);
    let open = |path| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(path, mode).unwrap();
    };
    open(up.folder.path());
    open(&up.socket());
    // Where that user finds it.
    let command = up.folder.path().join("farpage");
    farpage_testkit::name_program(env!("CARGO_BIN_EXE_farpage"), &command).unwrap();
    let refused = Command::new(command)
        .args(["pager", "default", "--compressed", "1M", "--spill"])
        .arg(up.folder.path())
        .env("FARPAGE_HOST", up.socket())
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("only its owner and root may"), "{said}");
    assert_eq!(space(&up).process, None);
}
