//! Hosts as network namespaces, a switch between them, and a real etcd in a namespace of its own.
//!
//! Hosts reach etcd through a proxy at the switch, which may be slow. Whoever is cut from another sends
//! to an address of the network that nobody has: packets go nowhere, and nobody is told.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Where hosts reach etcd: the proxy.
const STORE: &str = "10.80.0.1";
const ETCD: &str = "10.80.0.250";
/// Of no network card.
const NOBODY: &str = "02:00:00:00:00:99";

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
    etcd: Option<Child>,
    proxy: Proxy,
}

pub fn ip(words: &str) -> bool {
    let done = Command::new("ip").args(words.split(' ')).output();
    done.is_ok_and(|done| done.status.success())
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
    pub fn new(hosts: u8) -> Option<Self> {
        let name = format!("farpage-chaos-{}", std::process::id());
        if !ip(&format!("netns add {name}-sw")) {
            println!("skipped: making network namespaces needs root and `ip`");
            return None;
        }
        let mut net = Self {
            name,
            folder: tempfile::tempdir().unwrap(),
            hosts: 0,
            etcd: None,
            proxy: Proxy::default(),
        };
        let switch = format!("-n {}-sw", net.name);
        for step in [
            "link set lo up".into(),
            "link add br0 type bridge".into(),
            format!("addr add {STORE}/24 dev br0"),
            "link set br0 up".into(),
        ] {
            if !ip(&format!("{switch} {step}")) {
                println!("skipped: this Linux has no bridges of network devices");
                return None;
            }
        }
        net.space("etcd", &format!("{ETCD}/24"), "vetcd");
        for number in 0..hosts {
            let address = format!("{}/24", End::Host(number).address());
            net.space(&number.to_string(), &address, &format!("v{number}"));
            net.hosts += 1;
        }
        net.start_etcd();
        net.proxy.start(&net.name);
        let mut init = Command::new(env!("CARGO_BIN_EXE_farpage"));
        let made = init.args(["cluster", "init"]).arg(net.key()).output();
        assert!(made.unwrap().status.success());
        Some(net)
    }

    fn space(&self, space: &str, address: &str, plug: &str) {
        let (name, space) = (&self.name, format!("{}-{space}", self.name));
        for step in [
            format!("netns add {space}"),
            format!("-n {space} link set lo up"),
            format!("link add {plug} netns {name}-sw type veth peer name e0 netns {space}"),
            format!("-n {name}-sw link set {plug} master br0 up"),
            format!("-n {space} addr add {address} dev e0"),
            format!("-n {space} link set e0 up"),
        ] {
            assert!(ip(&step), "ip {step}");
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
        let mut command = self.within(&number.to_string(), env!("CARGO_BIN_EXE_farpage"));
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
        command.stdin(Stdio::null()).spawn().unwrap()
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

    /// Nothing goes from one end to the other any more, or it does again.
    pub fn cut(&self, from: End, to: End, is_cut: bool) {
        let (space, device) = match from {
            End::Host(number) => (number.to_string(), "e0"),
            End::Store => ("sw".into(), "br0"),
        };
        let (own, to) = (format!("-n {}-{space} neigh", self.name), to.address());
        if is_cut {
            let step = format!("{own} replace {to} lladdr {NOBODY} nud permanent dev {device}");
            assert!(ip(&step), "ip {step}");
        } else {
            // It may have been mended before.
            ip(&format!("{own} del {to} dev {device}"));
        }
    }

    /// Plugs a host in, or out.
    pub fn plug(&self, number: u8, is_in: bool) {
        let state = if is_in { "up" } else { "down" };
        let step = format!("-n {}-sw link set v{number} {state}", self.name);
        assert!(ip(&step), "ip {step}");
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
        self.proxy.is_over.store(true, Ordering::Relaxed);
        self.kill_etcd();
        for number in 0..self.hosts {
            ip(&format!("netns del {}-{number}", self.name));
        }
        self.hosts = 0;
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
    is_over: Arc<AtomicBool>,
}

impl Proxy {
    fn start(&self, name: &str) {
        let (delay_us, is_over) = (Arc::clone(&self.delay_us), Arc::clone(&self.is_over));
        let space = File::open(format!("/run/netns/{name}-sw")).unwrap();
        thread::spawn(move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(space.as_fd(), kind).unwrap();
            let listener = TcpListener::bind((STORE, 2379)).unwrap();
            listener.set_nonblocking(true).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let Ok((host, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                };
                let Ok(etcd) = TcpStream::connect((ETCD, 2379)) else {
                    continue;
                };
                host.set_nonblocking(false).unwrap();
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
