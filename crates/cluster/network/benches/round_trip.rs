//! Round trips between two processes: over the network, with TLS, beside a bare TCP socket with the
//! same bytes, by turns, on one processor and on two, each waiting for the other.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use farpage_network::{ClusterKey, Config, Incarnation, Network, Priority, Receiver};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

const SERVER: &str = "FARPAGE_BENCH_SERVER";
const RUNS: usize = 5;
const WARM_UP: u64 = 2_000;
const ROUNDS: u64 = 10_000;
const REQUEST: [u8; 64] = [1; 64];
const REPLIES: [usize; 2] = [64, 4096];

/// Answers each message with as many bytes as its first two say.
struct Answers(OnceLock<Weak<Network>>);

impl Receiver for Answers {
    fn received(&self, from: Incarnation, priority: Priority, message: &[u8]) {
        let bytes = usize::from(u16::from_le_bytes([message[0], message[1]]));
        let network = self.0.get().and_then(Weak::upgrade).expect("it is running");
        let reply = [7; 4096];
        network
            .send(from, priority, &[&reply[..bytes]])
            .expect("it was met");
    }
}

struct Counts(AtomicU64);

impl Receiver for Counts {
    fn received(&self, _: Incarnation, _: Priority, message: &[u8]) {
        assert!(REPLIES.contains(&message.len()));
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn run_on(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("the processor is there");
}

fn config(folder: &str, number: u64) -> Config {
    let key = ClusterKey::load(folder.as_ref()).expect("a key");
    let any = "127.0.0.1:0".parse().expect("an address");
    let mut config = Config::new(any, key, Incarnation(number));
    config.own_thread = false;
    config
}

/// The other process: answers over a bare socket in one thread and over the network in another.
fn serve(folder: &str) -> ExitCode {
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .expect("where to run, and the peer");
    let (cpu, peer) = line.trim().split_once(' ').expect("two words");
    run_on(cpu.parse().expect("a number"));
    let bare = TcpListener::bind("127.0.0.1:0").expect("a port");
    let answers = Arc::new(Answers(OnceLock::new()));
    let network = Arc::new(Network::start(config(folder, 2), answers.clone()).expect("a network"));
    answers.0.set(Arc::downgrade(&network)).expect("once");
    network
        .meet(Incarnation(1), peer.parse().expect("an address"))
        .expect("it is another");
    let (bare_address, address) = (bare.local_addr(), network.local_address());
    println!("{} {address}", bare_address.expect("an address"));
    std::thread::spawn(move || {
        let (mut socket, _) = bare.accept().expect("the peer");
        socket.set_nodelay(true).expect("a socket");
        let (mut request, reply) = ([0; 64], [7; 4096]);
        while socket.read_exact(&mut request).is_ok() {
            let bytes = usize::from(u16::from_le_bytes([request[0], request[1]]));
            socket.write_all(&reply[..bytes]).expect("it is read");
        }
        std::process::exit(0);
    });
    loop {
        network.turn_within(Duration::from_secs(1));
    }
}

struct Pair {
    server: Child,
    bare: TcpStream,
    network: Network,
    counts: Arc<Counts>,
}

impl Pair {
    fn start(folder: &str, server_cpu: usize) -> Self {
        let counts = Arc::new(Counts(AtomicU64::new(0)));
        let network = Network::start(config(folder, 1), counts.clone()).expect("a network");
        let mut server = Command::new(std::env::current_exe().expect("a path"))
            .env(SERVER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut says = server.stdin.take().expect("piped");
        writeln!(says, "{server_cpu} {}", network.local_address()).expect("it listens");
        let mut line = String::new();
        let answers = server.stdout.take().expect("piped");
        BufReader::new(answers)
            .read_line(&mut line)
            .expect("a line");
        let (bare, address) = line.trim().split_once(' ').expect("two addresses");
        let bare = TcpStream::connect(bare.parse::<SocketAddr>().expect("an address"));
        let bare = bare.expect("it listens");
        bare.set_nodelay(true).expect("a socket");
        let address = address.parse().expect("an address");
        network
            .meet(Incarnation(2), address)
            .expect("it is another");
        Self {
            server,
            bare,
            network,
            counts,
        }
    }

    fn bare(&mut self, request: &[u8], reply: usize) {
        let mut bytes = [0; 4096];
        self.bare.write_all(request).expect("it is read");
        self.bare
            .read_exact(&mut bytes[..reply])
            .expect("it answers");
    }

    fn ours(&mut self, request: &[u8]) {
        let before = self.counts.0.load(Ordering::Relaxed);
        let urgent = Priority::Urgent;
        self.network
            .send(Incarnation(2), urgent, &[request])
            .expect("it was met");
        while self.counts.0.load(Ordering::Relaxed) == before {
            self.network.turn_within(Duration::from_secs(1));
        }
    }
}

/// What round trips took, in nanoseconds for one.
#[derive(Default)]
struct Times {
    wall: Vec<u64>,
    /// Of this process's processor: other programs that run meanwhile do not count.
    processor: Vec<u64>,
}

impl Times {
    fn run(&mut self, mut round: impl FnMut()) {
        (0..WARM_UP).for_each(|_| round());
        let (began, used) = (Instant::now(), processor_ns());
        (0..ROUNDS).for_each(|_| round());
        self.processor.push((processor_ns() - used) / ROUNDS);
        self.wall.push(began.elapsed().as_nanos() as u64 / ROUNDS);
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let us = |ns: u64| ns as f64 / 1e3;
        let sorted = |all: &[u64]| {
            let mut all = all.to_vec();
            all.sort_unstable();
            [all[all.len() / 2], all[0], all[all.len() - 1]].map(us)
        };
        let ([wall, least, most], [processor, ..]) = (sorted(&self.wall), sorted(&self.processor));
        write!(
            f,
            "{wall:.2} us ({least:.2} to {most:.2}; processor here {processor:.2})"
        )
    }
}

fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn main() -> ExitCode {
    if let Ok(folder) = std::env::var(SERVER) {
        return serve(&folder);
    }
    let about = rustix::system::uname();
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name\t: "));
    println!(
        "Linux {}, {}",
        about.release().to_string_lossy(),
        model.unwrap_or("?")
    );
    let folder = tempfile::tempdir().expect("a folder");
    ClusterKey::create(folder.path()).expect("a key");
    let folder = folder.path().to_str().expect("a path");
    let allowed = sched_getaffinity(None).expect("some");
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect();
    run_on(cpus[0]);
    for (what, cpu) in [
        ("one processor", Some(&cpus[0])),
        ("two processors", cpus.get(1)),
    ] {
        let Some(cpu) = cpu else {
            println!("{what}: there is only one here");
            continue;
        };
        let mut pair = Pair::start(folder, *cpu);
        for reply in REPLIES {
            let mut request = REQUEST;
            request[..2].copy_from_slice(&(reply as u16).to_le_bytes());
            let (mut bare, mut ours) = (Times::default(), Times::default());
            for _ in 0..RUNS {
                bare.run(|| pair.bare(&request, reply));
                ours.run(|| pair.ours(&request));
            }
            println!("{what}, 64 bytes and {reply} back: bare TCP {bare}, ours {ours}");
        }
        pair.server.kill().expect("it runs");
        pair.server.wait().expect("it was killed");
    }
    ExitCode::SUCCESS
}
