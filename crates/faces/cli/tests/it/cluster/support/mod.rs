//! Hosts of a cluster: network namespaces with addresses of their own, a switch between them, a real
//! etcd, a host kernel in each, and programs that use it.

mod heap;
pub mod history;
mod locks;
mod release;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use farpage_client::Host;
use farpage_client::cluster::{Consistency, Scheduler, Wanted};
use farpage_sys::copy;
use farpage_testkit::Started;

use crate::support::up::{farpage, until};

/// What a program of a host is told where its host kernel listens.
pub const CLIENT: &str = "FARPAGE_TEST_CLIENT";

/// A program of a host, when this test is run as one: does what it is told, a line each.
pub fn run_client() {
    let Ok(socket) = std::env::var(CLIENT) else {
        return;
    };
    let host = Host::connect(Path::new(&socket)).unwrap();
    let mut shared = None;
    let mut heaps = heap::Heaps::default();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        if words[0] == "share" {
            let kind = words.get(4).copied().unwrap_or("distributed");
            let wanted = (words.len() > 2).then(|| Wanted {
                bytes: number(2),
                unit_bytes: number(3),
                scheduler: match kind {
                    "simple" => Scheduler::Simple,
                    _ => Scheduler::Distributed,
                },
                hold_us: None,
                stale_us: None,
                consistency: match kind {
                    "release" => Consistency::Release,
                    _ => Consistency::Strict,
                },
                replicas: if kind == "mirrored" { 2 } else { 1 },
                stays: false,
                note: String::new(),
            });
            match host.shared(words[1], wanted) {
                Ok((found, _)) => {
                    shared = Some(found);
                    println!("done");
                }
                Err(error) => println!("{error}"),
            }
            continue;
        }
        if words[0] == "drop" {
            shared = None;
            println!("done");
            continue;
        }
        let memory = shared.as_ref().expect("it shares something");
        if let Some(answer) = locks::act(&words, memory) {
            println!("{answer}");
            continue;
        }
        if let Some(answer) = release::act(&words, &host, memory) {
            println!("{answer}");
            continue;
        }
        if let Some(answer) = heaps.act(&words, memory) {
            println!("{answer}");
            continue;
        }
        let words_of = memory.words();
        let word = |page: u64| &words_of[page as usize * 512];
        match words[0] {
            "set" => word(number(1)).store(number(2), Ordering::Relaxed),
            // A word, by its number.
            "put" => put_word(&words_of[number(1) as usize], number(2)),
            // Each of so many pages from the first, in turn, so many times.
            "add" => {
                for at in 0..number(3) {
                    word(number(1) + at % number(2)).fetch_add(1, Ordering::Relaxed);
                }
            }
            "at" => {
                println!(
                    "{}",
                    words_of[number(1) as usize / 8].load(Ordering::Relaxed)
                );
                continue;
            }
            "get" => {
                println!("{}", word(number(1)).load(Ordering::Relaxed));
                continue;
            }
            // Writes its number to each page, and one more.
            "fill" => {
                for page in number(1)..number(2) {
                    word(page).store(page + 1, Ordering::Relaxed);
                }
            }
            // Each of these pages has the same word.
            "all" => {
                for page in number(1)..number(2) {
                    word(page).store(number(3), Ordering::Relaxed);
                }
            }
            // How many pages have that, how many are lost, and how many have something else.
            "check" => {
                let mut found = [0; 3];
                for page in number(1)..number(2) {
                    let mut bytes = [0; 8];
                    let address = std::ptr::from_ref(word(page)).addr();
                    let read = copy::from(address, &mut bytes).map(|_| bytes);
                    found[match read.map(u64::from_le_bytes) {
                        Ok(word) if word == page + 1 => 0,
                        Err(_) => 1,
                        Ok(_) => 2,
                    }] += 1;
                }
                println!("{found:?}");
                continue;
            }
            "history" => {
                let all = history::work(words_of, number(1), number(2), number(3), number(4));
                println!("{}", history::put(&all));
                continue;
            }
            "sum" => {
                let all = (number(1)..number(2)).map(|page| word(page).load(Ordering::Relaxed));
                println!("{}", all.sum::<u64>());
                continue;
            }
            other => panic!("{other}?"),
        }
        println!("done");
    }
}

/// A function by whose name the place of a fault is known.
#[inline(never)]
fn put_word(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

/// A program of a host.
pub struct Client {
    child: Started,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Drop for Client {
    fn drop(&mut self) {
        // Its input ends, and so does it.
        if !std::thread::panicking() {
            self.child.leave();
        }
    }
}

impl Client {
    pub fn new(socket: &Path) -> Self {
        Self::running("cluster::the_client", CLIENT, socket)
    }

    /// A program that a test is, when it is told a socket so.
    pub fn running(test: &str, told: &str, socket: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]);
        command.env(told, socket).stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Started::new(&mut command);
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut client = Self {
            child,
            input,
            output,
        };
        // What a test says when it begins.
        while !client.line().starts_with("running 1 test") {}
        client
    }

    pub fn send(&mut self, what: &str) {
        writeln!(self.input.as_mut().unwrap(), "{what}").unwrap();
    }

    /// What it answers; empty when it has died.
    pub fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            self.output.read_line(&mut line).unwrap();
            // What a test says that goes on for long is no answer.
            if !line.contains("has been running for over") {
                return line.trim_end().rsplit(" ... ").next().unwrap().to_owned();
            }
        }
    }

    pub fn does(&mut self, what: &str) -> String {
        self.send(what);
        self.line()
    }

    /// How it ended, and what it said.
    pub fn ends(mut self) -> (std::process::ExitStatus, String) {
        self.input = None;
        let mut said = String::new();
        let mut errors = self.child.stderr.take().unwrap();
        errors.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }

    /// Its number.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }
}

/// Where a cluster lives.
pub struct Net {
    name: String,
    pub folder: tempfile::TempDir,
    etcd: Option<Started>,
    hosts: u8,
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

fn ip(words: &str) -> bool {
    let done = Command::new("ip").args(words.split(' ')).output();
    done.is_ok_and(|done| done.status.success())
}

impl Net {
    /// Nothing without the privilege.
    pub fn new() -> Option<Self> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("farpage-{}-{number}", std::process::id());
        if !ip(&format!("netns add {name}-sw")) {
            println!("skipped: making network namespaces needs root and `ip`");
            return None;
        }
        let mut net = Self {
            name,
            folder: tempfile::tempdir().unwrap(),
            etcd: None,
            hosts: 0,
        };
        let switch = format!("-n {}-sw", net.name);
        for step in [
            "link set lo up",
            "link add br0 type bridge",
            "addr add 10.79.0.1/24 dev br0",
            "link set br0 up",
        ] {
            if !ip(&format!("{switch} {step}")) {
                println!("skipped: this Linux has no bridges of network devices");
                return None;
            }
        }
        net.start_etcd();
        Some(net)
    }

    pub fn start_etcd(&mut self) {
        let mut command = self.within("sw", "etcd");
        let url = "http://10.79.0.1:2379";
        command.args(["--listen-client-urls", url, "--advertise-client-urls", url]);
        command.args([
            "--listen-peer-urls",
            "http://127.0.0.1:2380",
            "--log-level",
            "error",
        ]);
        command
            .args(["--unsafe-no-fsync", "--data-dir"])
            .arg(self.folder.path().join("etcd"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        // It is installed: cargo xtask setup.
        self.etcd = Some(Started::new(&mut command));
        until("etcd serves", || {
            self.etcdctl(&["get", "a key"]).status.success()
        });
    }

    fn etcdctl(&self, what: &[&str]) -> Output {
        let mut command = self.within("sw", "etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", "http://10.79.0.1:2379"]);
        let done = command.args(what).output();
        done.expect("etcdctl is installed (cargo xtask setup)")
    }

    /// Waits until etcd has of so many hosts that they go on without it.
    pub fn until_on_their_own(&self, hosts: usize) {
        until("hosts count on promises", || {
            self.keys("test/now/goes-on/") == hosts
        });
    }

    /// Waits until so many hosts are in the cluster.
    pub fn until_members(&self, hosts: usize) {
        until("hosts have joined", || {
            self.keys("test/now/alive/") == hosts
        });
    }

    /// How many keys etcd has that begin so.
    fn keys(&self, prefix: &str) -> usize {
        let keys = self.etcdctl(&["get", "--prefix", "--keys-only", prefix]);
        let lines = keys.stdout.split(|byte| *byte == b'\n');
        lines.filter(|line| !line.is_empty()).count()
    }

    pub fn kill_etcd(&mut self) {
        if let Some(mut etcd) = self.etcd.take() {
            let _ = etcd.kill();
            let _ = etcd.wait();
        }
    }

    /// A program of a host, or of the switch: `sw`.
    pub fn within(&self, space: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{}-{space}", self.name), program]);
        command
    }

    pub fn key(&self) -> PathBuf {
        let key = self.folder.path().join("key");
        if !key.exists() {
            let mut init = Command::new(env!("CARGO_BIN_EXE_farpage"));
            init.args(["cluster", "init"]).arg(&key);
            assert!(init.output().unwrap().status.success());
        }
        key
    }

    /// One more host, with its host kernel.
    pub fn host(&mut self) -> Kernel {
        let number = self.bare_host();
        self.start(number)
    }

    /// One more host; its number.
    pub fn bare_host(&mut self) -> u8 {
        let number = self.hosts;
        self.hosts += 1;
        let (name, space) = (&self.name, format!("{}-{number}", self.name));
        let last = number + 2;
        for step in [
            format!("netns add {space}"),
            format!("-n {space} link set lo up"),
            format!("link add v{number} netns {name}-sw type veth peer name e0 netns {space}"),
            format!("-n {name}-sw link set v{number} master br0 up"),
            format!("-n {space} addr add 10.79.0.{last}/24 dev e0"),
            format!("-n {space} link set e0 up"),
        ] {
            assert!(ip(&step), "ip {step}");
        }
        number
    }

    /// Which cluster a host joins. A host that stands still on a busy machine stays in it.
    fn cluster(&self) -> [OsString; 6] {
        [
            "--cluster".into(),
            "etcd://10.79.0.1:2379/test".into(),
            "--cluster-key".into(),
            self.key().into(),
            "--lease".into(),
            "6".into(),
        ]
    }

    /// `farpage run --cluster` of a program at a host, which has its own /dev/shm, of next to nothing,
    /// and its own keys of System V.
    pub fn run(&self, number: u8, more: &[&str], program: &[&str]) -> Command {
        let mut command = self.within(&number.to_string(), "unshare");
        let own = "mount -t tmpfs -o size=64k tmpfs /dev/shm && exec \"$@\"";
        command.args(["--ipc", "--mount", "sh", "-c", own, "sh"]);
        command.args([env!("CARGO_BIN_EXE_farpage"), "run", "--ram", "64M"]);
        command.arg("--spill").arg(self.folder.path());
        command
            .args(self.cluster())
            .args(more)
            .arg("--")
            .args(program);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A program at a host, which runs nothing of Farpage for it.
    pub fn at(&self, number: u8, program: &Path) -> Command {
        let program = program.to_str().expect("a path in UTF-8");
        self.within(&number.to_string(), program)
    }

    /// Commands of a shell at a host, as [`Net::run`] has it.
    pub fn shell(&self, number: u8, commands: &str) -> Command {
        let mut command = self.within(&number.to_string(), "unshare");
        let own = format!("mount -t tmpfs -o size=64k tmpfs /dev/shm && {{ {commands}; }}");
        command.args(["--ipc", "--mount", "sh", "-c", &own]);
        command
    }

    /// What etcd has of the cluster's objects.
    pub fn objects(&self) -> usize {
        self.keys("test/now/object/")
    }

    /// The host kernel of a host, started anew.
    pub fn start(&self, number: u8) -> Kernel {
        let socket = self.folder.path().join(format!("host{number}"));
        let mut command = self.within(&number.to_string(), env!("CARGO_BIN_EXE_farpage"));
        command
            .args(["up", "--ram", "64M", "--socket"])
            .arg(&socket);
        command.arg("--spill").arg(self.folder.path());
        command
            .args(self.cluster())
            .args(["--host-name", &format!("host{number}")]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Started::new(&mut command);
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        if !line.contains("the host kernel answers at") {
            let mut said = String::new();
            child
                .stderr
                .take()
                .unwrap()
                .read_to_string(&mut said)
                .unwrap();
            panic!("{line}{said}");
        }
        Kernel {
            child,
            _output: output,
            socket,
        }
    }

    /// Nothing goes between two hosts any more, or it does again; both reach all others.
    pub fn cut(&self, one: u8, other: u8, is_cut: bool) {
        for (from, to) in [(one, other), (other, one)] {
            let (own, to) = (format!("-n {}-{from} neigh", self.name), to + 2);
            let nobody = "lladdr 02:00:00:00:00:99 nud permanent";
            let step = match is_cut {
                true => format!("{own} replace 10.79.0.{to} {nobody} dev e0"),
                false => format!("{own} del 10.79.0.{to} dev e0"),
            };
            assert!(ip(&step), "ip {step}");
        }
    }

    /// Plugs a host in, or out.
    pub fn plug(&self, number: u8, is_in: bool) {
        let state = if is_in { "up" } else { "down" };
        assert!(ip(&format!(
            "-n {}-sw link set v{number} {state}",
            self.name
        )));
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.kill_etcd();
        for number in 0..self.hosts {
            ip(&format!("netns del {}-{number}", self.name));
        }
        ip(&format!("netns del {}-sw", self.name));
    }
}

/// A host kernel.
pub struct Kernel {
    pub child: Started,
    _output: BufReader<ChildStdout>,
    pub socket: PathBuf,
}

impl Kernel {
    pub fn client(&self) -> Client {
        Client::new(&self.socket)
    }

    pub fn says(&self, what: &[&str]) -> String {
        let output = farpage(what, &self.socket).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        without_progress(&(said + &String::from_utf8(output.stderr).unwrap()))
    }

    /// Waits until what it says has all of these.
    pub fn until(&self, what: &[&str], has: &[&str]) -> String {
        let mut said = String::new();
        until(&format!("{what:?} says {has:?}"), || {
            said = self.says(what);
            has.iter().all(|part| said.contains(part))
        });
        said
    }

    /// Waits until it needs no etcd for what is shared already.
    pub fn goes_on_without_etcd(&self) {
        self.until(&["ls", "--hosts"], &["not needed for what is shared"]);
    }

    /// The number of the view that it has.
    pub fn view(&self) -> u64 {
        let said = self.says(&["ls", "--hosts"]);
        let view = said.rsplit_once(", view ").expect(&said).1;
        let view = view.split(|c: char| !c.is_ascii_digit()).next();
        view.expect(&said).parse().expect(&said)
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    /// Ends it; what it said.
    pub fn ends(self) -> String {
        self.signal("-TERM");
        self.ended()
    }

    /// It was told to end; what it said.
    pub fn ended(mut self) -> String {
        let mut said = String::new();
        let mut errors = self.child.stderr.take().unwrap();
        errors.read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        let is_said = |line: &&str| !line.starts_with("farpage: the cluster's store ");
        let said = without_progress(&said);
        // That it did not answer for a while.
        said.split_inclusive('\n').filter(is_said).collect()
    }
}

/// What was said, less the lines that only a busy machine makes a command say.
fn without_progress(said: &str) -> String {
    const PROGRESS: [&str; 2] = [
        "still waiting (interrupt to give up)\n",
        "are yet to be handed over; a second signal ends it\n",
    ];
    let is_said = |line: &&str| !PROGRESS.iter().any(|end| line.ends_with(end));
    said.split_inclusive('\n').filter(is_said).collect()
}
