//! Hosts as network namespaces, a switch between them, and a real etcd in a namespace of its own.
//!
//! Hosts reach etcd through a proxy at the switch, which may be slow.

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use farpage_testkit::until;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::switch::{self, Switch, Way};

/// Where hosts reach etcd: the proxy.
const STORE: &str = "10.80.0.1";
const ETCD: &str = "10.81.0.2";
/// Has calls that ask for the time answered as a file says.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// One end of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Host(u8),
    Store,
}

/// Where a cluster lives.
pub struct Net {
    name: String,
    pub folder: tempfile::TempDir,
    hosts: u8,
    /// Processes whose clocks were set: one that is killed leaves what libfaketime had in `/dev/shm`.
    clocked: RefCell<Vec<u32>>,
    etcd: Option<Child>,
    proxy: Proxy,
    /// Its last port is the store's.
    switch: Option<Switch>,
}

pub fn ip(words: &str) -> bool {
    let done = Command::new("ip").args(words.split(' ')).output();
    done.is_ok_and(|done| done.status.success())
}

fn must(step: &str) {
    assert!(ip(step), "ip {step}");
}

impl End {
    fn address(self) -> String {
        match self {
            Self::Host(number) => format!("10.80.0.{}", number + 2),
            Self::Store => STORE.into(),
        }
    }
}

impl Net {
    /// With so many hosts; nothing without the privilege.
    pub fn new(seed: u64, hosts: u8) -> Option<Self> {
        let name = format!("farpage-chaos-{}", std::process::id());
        if !ip(&format!("netns add {name}-sw")) {
            println!("skipped: making network namespaces needs root and `ip`");
            return None;
        }
        let mut net = Self {
            name,
            folder: tempfile::tempdir().unwrap(),
            hosts: 0,
            clocked: RefCell::default(),
            etcd: None,
            proxy: Proxy::default(),
            switch: None,
        };
        net.space_of_etcd();
        for number in 0..hosts {
            must(&format!("netns add {}", net.space(End::Host(number))));
            net.hosts += 1;
        }
        let ends: Vec<End> = (0..hosts).map(End::Host).chain([End::Store]).collect();
        let spaces: Vec<String> = ends.iter().map(|end| net.space(*end)).collect();
        net.switch = Some(Switch::new(seed, &spaces));
        for (port, end) in ends.iter().enumerate() {
            let space = format!("-n {}", net.space(*end));
            must(&format!("{space} link set lo up"));
            must(&format!(
                "{space} link set e0 address {}",
                switch::mac(port)
            ));
            must(&format!("{space} link set e0 mtu 9000 up"));
            must(&format!("{space} addr add {}/24 dev e0", end.address()));
        }
        net.start_etcd();
        net.proxy.start(&net.name);
        let mut init = Command::new(env!("CARGO_BIN_EXE_farpage"));
        let made = init.args(["cluster", "init"]).arg(net.key()).output();
        assert!(made.unwrap().status.success());
        Some(net)
    }

    fn space(&self, end: End) -> String {
        match end {
            End::Host(number) => format!("{}-{number}", self.name),
            End::Store => format!("{}-sw", self.name),
        }
    }

    /// etcd, behind the proxy.
    fn space_of_etcd(&self) {
        let (name, space) = (&self.name, format!("{}-etcd", self.name));
        for step in [
            format!("netns add {space}"),
            format!("-n {space} link set lo up"),
            format!("link add etcd netns {name}-sw type veth peer name e0 netns {space}"),
            format!("-n {name}-sw addr add 10.81.0.1/24 dev etcd"),
            format!("-n {name}-sw link set etcd up"),
            format!("-n {space} addr add {ETCD}/24 dev e0"),
            format!("-n {space} link set e0 up"),
        ] {
            must(&step);
        }
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("key")
    }

    /// Where the host kernel of a host listens.
    pub fn socket(&self, number: u8) -> PathBuf {
        self.folder.path().join(format!("host{number}"))
    }

    /// What the host kernel of a host has said.
    pub fn said(&self, number: u8) -> PathBuf {
        self.folder.path().join(format!("host{number}.said"))
    }

    fn within(&self, space: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{}-{space}", self.name), program]);
        command
    }

    /// The host kernel of a host, which may not be able to join.
    pub fn start(&self, number: u8) -> Child {
        let mut command = self.within(&number.to_string(), "env");
        assert!(
            Path::new(FAKETIME).exists(),
            "{FAKETIME}: cargo xtask setup"
        );
        if !self.clock(number).exists() {
            self.sets_clock(number, 0);
        }
        let clock = self.clock(number).display().to_string();
        command.arg(format!("LD_PRELOAD={FAKETIME}"));
        command.arg(format!("FAKETIME_TIMESTAMP_FILE={clock}"));
        // Looked at once a second. Clocks that tell how long something takes never jump.
        command.args([
            "FAKETIME_CACHE_DURATION=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
        ]);
        command.args(["FAKETIME_DISABLE_SHM=1", env!("CARGO_BIN_EXE_farpage")]);
        command.args(["up", "--ram", "64M", "--socket"]);
        command
            .arg(self.socket(number))
            .arg("--spill")
            .arg(self.folder.path());
        command.args([
            "--cluster",
            &format!("etcd://{STORE}:2379/chaos"),
            "--cluster-key",
        ]);
        command
            .arg(self.key())
            .args(["--host-name", &format!("host{number}")]);
        let said = appended(&self.said(number));
        command.stdout(said.try_clone().unwrap()).stderr(said);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        self.clocked.borrow_mut().push(child.id());
        child
    }

    pub fn start_etcd(&mut self) {
        let mut command = self.within("etcd", "etcd");
        let url = format!("http://{ETCD}:2379");
        command.args([
            "--listen-client-urls",
            &url,
            "--advertise-client-urls",
            &url,
        ]);
        command.args([
            "--listen-peer-urls",
            "http://127.0.0.1:2380",
            "--log-level",
            "error",
        ]);
        command.args(["--unsafe-no-fsync", "--data-dir"]);
        command.arg(self.folder.path().join("etcd"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let etcd = command.spawn();
        self.etcd = Some(etcd.expect("etcd is installed (cargo xtask setup)"));
        until("etcd serves", || {
            let mut command = self.within("etcd", "etcdctl");
            command.env("ETCDCTL_API", "3").args(["--endpoints", &url]);
            let asked = command.args(["get", "a key"]).output();
            let asked = asked.expect("etcdctl is installed (cargo xtask setup)");
            asked.status.success()
        });
    }

    pub fn kill_etcd(&mut self) {
        if let Some(mut etcd) = self.etcd.take() {
            let _ = etcd.kill();
            let _ = etcd.wait();
        }
    }

    /// Its process.
    pub fn etcd(&self) -> Option<u32> {
        self.etcd.as_ref().map(Child::id)
    }

    /// What goes to etcd and comes from it takes so long on each way.
    pub fn delays_etcd(&self, by: Duration) {
        self.proxy
            .delay_us
            .store(by.as_micros() as u64, Ordering::Relaxed);
    }

    fn port(&self, end: End) -> usize {
        match end {
            End::Host(number) => number.into(),
            End::Store => self.hosts.into(),
        }
    }

    /// Changes how frames go from one end to the other.
    pub fn way(&self, from: End, to: End, change: impl FnOnce(&mut Way)) {
        if let Some(switch) = &self.switch {
            switch.way(self.port(from), self.port(to), change);
        }
    }

    /// Nothing goes from one end to the other any more, or it does again.
    pub fn cut(&self, from: End, to: End, is_cut: bool) {
        self.way(from, to, |way| way.is_cut = is_cut);
    }

    /// Plugs a host in, or out.
    pub fn plug(&self, number: u8, is_in: bool) {
        if let Some(switch) = &self.switch {
            switch.plug(number.into(), is_in);
        }
    }

    /// The clock that tells the date is so many seconds ahead at a host, or behind.
    pub fn sets_clock(&self, number: u8, seconds: i64) {
        fs::write(self.clock(number), format!("{seconds:+}\n")).unwrap();
    }

    fn clock(&self, number: u8) -> PathBuf {
        self.folder.path().join(format!("host{number}.clock"))
    }

    /// Ends everything; what is left of it nevertheless.
    pub fn ends(&mut self) -> Vec<String> {
        self.tidies();
        let spaces = Command::new("ip").args(["netns", "list"]).output().unwrap();
        let spaces = String::from_utf8_lossy(&spaces.stdout).into_owned();
        let left = spaces.lines().filter(|line| line.starts_with(&self.name));
        left.map(|line| format!("the network namespace {line}"))
            .collect()
    }

    fn tidies(&mut self) {
        self.proxy.lives = None;
        self.switch = None;
        self.kill_etcd();
        for number in 0..self.hosts {
            ip(&format!("netns del {}-{number}", self.name));
        }
        self.hosts = 0;
        for process in self.clocked.take() {
            for name in ["faketime_shm_", "sem.faketime_sem_"] {
                // A process that ended by itself has removed it.
                let _ = fs::remove_file(format!("/dev/shm/{name}{process}"));
            }
        }
        for space in ["etcd", "sw"] {
            ip(&format!("netns del {}-{space}", self.name));
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.tidies();
    }
}

pub fn appended(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.create(true).append(true).open(path).unwrap()
}

/// Between the hosts and etcd.
#[derive(Default)]
struct Proxy {
    delay_us: Arc<AtomicU64>,
    /// It ends when this does.
    lives: Option<PipeWriter>,
}

impl Proxy {
    fn start(&mut self, name: &str) {
        let delay_us = Arc::clone(&self.delay_us);
        let (over, lives) = std::io::pipe().unwrap();
        self.lives = Some(lives);
        let space = File::open(format!("/run/netns/{name}-sw")).unwrap();
        thread::spawn(move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(space.as_fd(), kind).unwrap();
            let listener = TcpListener::bind((STORE, 2379)).unwrap();
            while comes(&listener, &over) {
                let Ok((host, _)) = listener.accept() else {
                    continue;
                };
                let Ok(etcd) = TcpStream::connect((ETCD, 2379)) else {
                    continue;
                };
                for (from, to) in [(&host, &etcd), (&etcd, &host)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let delay_us = Arc::clone(&delay_us);
                    let _ = from.set_nodelay(true);
                    thread::spawn(move || carries(from, to, &delay_us));
                }
            }
        });
    }
}

/// Waits for a host; false when it is over.
fn comes(listener: &TcpListener, over: &PipeReader) -> bool {
    let mut both = [
        PollFd::new(listener, PollFlags::IN),
        PollFd::new(over, PollFlags::IN),
    ];
    while poll(&mut both, None).is_err() {}
    both[1].revents().is_empty()
}

fn carries(mut from: TcpStream, mut to: TcpStream, delay_us: &AtomicU64) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        thread::sleep(Duration::from_micros(delay_us.load(Ordering::Relaxed)));
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
