//! A real etcd, a proxy that stops forwarding, and what tests wait for.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farpage_membership::{
    Config, Consistency, Control, Description, Durability, Endpoint, Event, Home, Scheduler, View,
};

/// What must happen happens by then.
pub const SOON: Duration = Duration::from_secs(120);
/// For tests that are not about leases: a busy machine does not end one of these.
pub const LONG: Duration = Duration::from_secs(120);
/// For tests that wait until one is over; those who should go on do so on a busy machine, too.
pub const SHORT: Duration = Duration::from_secs(6);

/// An etcd of one server. It is killed when the test ends, also by a panic.
pub struct Etcd {
    folder: tempfile::TempDir,
    pub port: u16,
    peer_port: u16,
    arguments: Vec<String>,
    child: Child,
}

impl Etcd {
    /// `None`, and a word about it, where there is no etcd.
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// With more arguments; [`Etcd::by_hand`] speaks without TLS.
    pub fn start_with(arguments: &[&str]) -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there = |name| std::env::split_paths(&path).any(|folder| folder.join(name).exists());
        if !is_there("etcd") || !is_there("etcdctl") {
            println!(
                "skipped: etcd or etcdctl is not on the PATH; cargo xtask setup installs both"
            );
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        // Both are bound at once, so that they differ.
        let ports = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"));
        let ports = ports.map(|port| port.local_addr().expect("bound").port());
        let arguments: Vec<String> = arguments.iter().map(|&one| one.into()).collect();
        let child = serve(folder.path(), ports[0], ports[1], &arguments);
        Some(Self {
            folder,
            port: ports[0],
            peer_port: ports[1],
            arguments,
            child,
        })
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    pub fn restart(&mut self) {
        self.kill();
        self.child = serve(
            self.folder.path(),
            self.port,
            self.peer_port,
            &self.arguments,
        );
    }

    pub fn endpoint(&self) -> String {
        format!("etcd://127.0.0.1:{}/test", self.port)
    }

    /// What an operator types, and what is printed.
    pub fn by_hand(&self, arguments: &[&str]) -> String {
        let mut etcdctl = Command::new("etcdctl");
        let etcdctl = etcdctl
            .env("ETCDCTL_API", "3")
            .env("ETCDCTL_ENDPOINTS", format!("127.0.0.1:{}", self.port))
            .args(arguments);
        let output = etcdctl.output().expect("etcdctl starts");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "etcdctl {arguments:?}: {told}");
        String::from_utf8(output.stdout).expect("text")
    }

    pub fn put(&self, key: &str, value: &str) {
        self.by_hand(&["put", key, value]);
    }

    /// The keys that begin so.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let keys = self.by_hand(&["get", "--prefix", "--keys-only", prefix]);
        let keys = keys.lines().filter(|key| !key.is_empty());
        keys.map(String::from).collect()
    }

    /// Forgets what was changed so far.
    pub fn compact(&self) {
        let read = self.by_hand(&["get", "x", "--write-out", "json"]);
        let read: serde_json::Value = serde_json::from_str(&read).expect("JSON");
        let now = read["header"]["revision"].to_string();
        self.by_hand(&["compaction", &now]);
    }

    /// From now on the user root has to say its password.
    pub fn ask_for_passwords(&self) {
        self.by_hand(&["user", "add", "root:hush"]);
        self.by_hand(&["user", "grant-role", "root", "root"]);
        self.by_hand(&["auth", "enable"]);
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts etcd and waits until it serves.
fn serve(folder: &Path, port: u16, peer_port: u16, arguments: &[String]) -> Child {
    let is_tls = arguments.iter().any(|one| one == "--cert-file");
    let scheme = if is_tls { "https" } else { "http" };
    let client = format!("{scheme}://127.0.0.1:{port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    let mut child = Command::new("etcd")
        .arg("--data-dir")
        .arg(folder)
        .args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ])
        .args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ])
        .args(["--initial-cluster", &format!("default={peer}")])
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("etcd starts");
    let mut said = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let mut log = String::new();
    loop {
        match said.next() {
            Some(Ok(line)) if line.contains("ready to serve client requests") => break,
            Some(Ok(line)) => log.push_str(&line),
            Some(Err(_)) | None => panic!("etcd ended: {log}"),
        }
    }
    thread::spawn(move || said.for_each(drop));
    wait_until("etcd listens", || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    child
}

pub fn wait_until(what: &str, mut happened: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !happened() {
        assert!(Instant::now() < end, "not within {SOON:?}: {what}");
        thread::park_timeout(Duration::from_millis(5));
    }
}

pub fn config(endpoint: &str, name: &str, lease: Duration) -> Config {
    let endpoint = Endpoint::parse(endpoint).expect("an endpoint");
    let mut config = Config::new(endpoint, ([127, 0, 0, 1], 7000).into(), name);
    config.lease = lease;
    config.wait = SOON;
    config
}

pub fn join(endpoint: &str, name: &str, lease: Duration) -> Control {
    Control::join(config(endpoint, name, lease)).expect("it joins")
}

/// The next event that is wanted; others before it are dropped.
pub fn wait_for<T>(control: &Control, what: &str, wanted: impl Fn(&Event) -> Option<T>) -> T {
    let end = Instant::now() + SOON;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let Some(event) = control.next_event(left) else {
            panic!("not within {SOON:?}: {what}");
        };
        if let Some(found) = wanted(&event) {
            return found;
        }
        assert!(!matches!(event, Event::Fenced(_)), "{what}: {event:?}");
    }
}

pub fn wait_for_members(control: &Control, count: usize) -> View {
    wait_for(
        control,
        &format!("a view of {count}"),
        |event| match event {
            Event::View(view) if view.members.len() == count => Some(view.clone()),
            _ => None,
        },
    )
}

pub fn description(of: &Control) -> Description {
    Description {
        bytes: 8192,
        page_bytes: 4096,
        scheduler: Scheduler::Simple,
        hold_us: None,
        stale_us: None,
        consistency: Consistency::Strict,
        is_sealed: false,
        replicas: 1,
        durability: Durability::Volatile,
        uid: 0,
        stays: true,
        note: String::new(),
        home: Home {
            slot: of.slot(),
            incarnation: of.incarnation(),
        },
    }
}

/// Carries pings between hosts of this process until the work is done; those of `cut` are lost.
pub fn pinging<T>(hosts: &[&Control], cut: &[usize], work: impl FnOnce() -> T) -> T {
    let done = Arc::new(Mutex::new(false));
    struct Done(Arc<Mutex<bool>>);
    impl Drop for Done {
        fn drop(&mut self) {
            *self.0.lock().unwrap_or_else(|e| e.into_inner()) = true;
        }
    }
    thread::scope(|scope| {
        let ends = Done(done.clone());
        scope.spawn(move || {
            while !*done.lock().unwrap_or_else(|e| e.into_inner()) {
                carry(hosts, cut);
                thread::park_timeout(Duration::from_millis(100));
            }
        });
        let result = work();
        drop(ends);
        result
    })
}

fn carry(hosts: &[&Control], cut: &[usize]) {
    for (number, from) in hosts.iter().enumerate() {
        for ping in from.pings() {
            let to = hosts.iter().position(|host| host.incarnation() == ping.to);
            if let Some(to) = to
                && !cut.contains(&number)
                && !cut.contains(&to)
                && let Some(pong) = hosts[to].answer(&ping)
            {
                from.answered(&pong);
            }
        }
    }
}

/// Forwards to a port until it is told not to, on each way alone.
pub struct Proxy {
    pub port: u16,
    ways: Arc<Ways>,
}

#[derive(Default)]
struct Ways {
    shut: Mutex<[bool; 2]>,
    changed: Condvar,
}

impl Proxy {
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let own = listener.local_addr().expect("bound").port();
        let ways = Arc::new(Ways::default());
        let shared = ways.clone();
        thread::spawn(move || {
            for near in listener.incoming() {
                let far = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)));
                let (Ok(near), Ok(far)) = (near, far) else {
                    continue;
                };
                let copies = (near.try_clone(), far.try_clone());
                let (Ok(near_too), Ok(far_too)) = copies else {
                    continue;
                };
                let (there, back) = (shared.clone(), shared.clone());
                thread::spawn(move || there.forward(0, near, far));
                thread::spawn(move || back.forward(1, far_too, near_too));
            }
        });
        Self { port: own, ways }
    }

    pub fn endpoint(&self) -> String {
        format!("etcd://127.0.0.1:{}/test", self.port)
    }

    /// Nothing passes to the server, or back, or either.
    pub fn shut(&self, there: bool, back: bool) {
        *self.ways.shut.lock().expect("no panics") = [there, back];
        self.ways.changed.notify_all();
    }
}

impl Ways {
    fn forward(&self, way: usize, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = [0; 1 << 16];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let mut shut = self.shut.lock().expect("no panics");
            while shut[way] {
                shut = self.changed.wait(shut).expect("no panics");
            }
            drop(shut);
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    }
}
