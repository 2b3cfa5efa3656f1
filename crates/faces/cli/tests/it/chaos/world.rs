//! Hosts, their programs, and what befalls them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farpage_testkit::{HANGS, pass};

use super::dice::Dice;
use super::laws::{self, About, Act};
use super::net::{Net, appended};
use super::program::{NOT_YET, PROGRAM};

/// Time between two looks at how hosts and programs do.
const LOOK: Duration = Duration::from_millis(20);
/// Events that are told with an error.
const EVENTS: usize = 60;
const SIGBUS: i32 = 7;
const SIGKILL: i32 = 9;

/// What an object is, in the words of `farpage create`.
pub struct Kind {
    pub name: &'static str,
    pub options: &'static [&'static str],
    pub unit: usize,
    pub is_mirrored: bool,
}

pub const KINDS: [Kind; 5] = [
    Kind {
        name: "mirrored",
        options: &["--replicas", "2"],
        unit: 4096,
        is_mirrored: true,
    },
    Kind {
        name: "mirrored64",
        options: &["--replicas", "2", "--page-size", "64K"],
        unit: 65536,
        is_mirrored: true,
    },
    Kind {
        name: "plain",
        options: &[],
        unit: 4096,
        is_mirrored: false,
    },
    Kind {
        name: "plain64",
        options: &["--page-size", "64K"],
        unit: 65536,
        is_mirrored: false,
    },
    Kind {
        name: "simple",
        options: &["--scheduler", "simple"],
        unit: 4096,
        is_mirrored: false,
    },
];

/// A program from its start to its end.
struct Session {
    number: u64,
    host: u8,
    kind: usize,
    child: Child,
    /// It was looked at after it ended.
    is_over: bool,
}

pub struct World {
    pub net: Net,
    pub dice: Dice,
    seed: u64,
    hosts: u8,
    began: Instant,
    round: u32,
    events: VecDeque<String>,
    kernels: Vec<Option<Child>>,
    /// Host kernels that were ended by a fault in this round.
    killed: u32,
    /// How much of what each host said was looked at before this round.
    heard: Vec<usize>,
    sessions: Vec<Session>,
    last_session: u64,
    /// Objects of this round of which something is lost.
    lost: BTreeSet<usize>,
    /// Hosts whose kernels were stopped in this round.
    stopped: BTreeSet<u8>,
    pub figures: Figures,
}

/// What was done in all.
#[derive(Debug, Default)]
pub struct Figures {
    pub faults: BTreeMap<&'static str, u32>,
    pub acts: usize,
    pub of_others: usize,
    pub stays_ended: usize,
    pub damages_seen: u32,
    /// Programs that got SIGBUS and did not say why: only their host kernel did.
    pub untold: u32,
    pub healed_max: Duration,
}

impl World {
    pub fn new(seed: u64, hosts: u8) -> Option<Self> {
        let net = Net::new(seed, hosts)?;
        let kernels = (0..hosts).map(|number| Some(net.start(number))).collect();
        Some(Self {
            net,
            dice: Dice::new(seed),
            seed,
            hosts,
            began: Instant::now(),
            round: 0,
            events: VecDeque::new(),
            kernels,
            killed: 0,
            heard: vec![0; hosts.into()],
            sessions: Vec::new(),
            last_session: 0,
            lost: BTreeSet::new(),
            stopped: BTreeSet::new(),
            figures: Figures::default(),
        })
    }

    pub fn event(&mut self, what: String) {
        let at = self.began.elapsed().as_secs_f32();
        self.events.push_back(format!("{at:8.3} {what}"));
        if self.events.len() > EVENTS {
            self.events.pop_front();
        }
    }

    /// Ends the test: with the seed, what befell the hosts last, and what they said.
    pub fn fails(&self, why: &str) -> ! {
        let events: Vec<&str> = self.events.iter().map(String::as_str).collect();
        let mut said = String::new();
        for host in 0..self.hosts {
            let all = fs::read_to_string(self.net.said(host)).unwrap_or_default();
            let mut from = all.len().saturating_sub(2000);
            while !all.is_char_boundary(from) {
                from += 1;
            }
            said += &format!("host{host}:\n{}\n", &all[from..]);
        }
        let (seed, round, hosts) = (self.seed, self.round, self.hosts);
        panic!(
            "{why}\nround {round}, what happened last:\n{}\n{said}\nreplay: cargo xtask chaos --seed {seed} \
             --hosts {hosts}",
            events.join("\n")
        );
    }

    pub fn hosts(&self) -> u8 {
        self.hosts
    }

    fn path(&self, session: u64, what: &str) -> PathBuf {
        self.net
            .folder
            .path()
            .join(format!("program{session}.{what}"))
    }

    fn object(&self, kind: usize) -> String {
        format!("{}-{}", KINDS[kind].name, self.round)
    }

    fn stop(&self) -> PathBuf {
        self.net.folder.path().join(format!("stop{}", self.round))
    }

    /// Asks a host kernel, as a user does; what it says.
    fn asks(&self, host: u8, what: &[&str]) -> String {
        let mut command = Command::new("timeout");
        command
            .args(["120", env!("CARGO_BIN_EXE_farpage")])
            .args(what);
        let done = command
            .env("FARPAGE_HOST", self.net.socket(host))
            .output()
            .unwrap();
        String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
    }

    /// Has a host kernel do something, also if it is just joining again. It `is_done` when it says so: it
    /// was done by an attempt that was not answered.
    fn does(&mut self, host: u8, what: &[&str], is_done: &str) {
        self.until(&format!("{what:?} cannot be done at host{host}"), |world| {
            let said = world.asks(host, what);
            let done = said.is_empty() || said.contains(is_done);
            if !done {
                world.event(format!("{what:?} at host{host}: {}", said.trim_end()));
            }
            done
        });
    }

    /// Looks until it is so, or ends the test: then something hangs.
    fn until(&mut self, or_else: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            if began.elapsed() > HANGS * 2 {
                self.fails(&format!("{or_else}, after {:?}", HANGS * 2));
            }
            pass(LOOK);
        }
    }

    /// Starts host kernels that do not run.
    pub fn starts_missing(&mut self) {
        for host in 0..self.hosts {
            let kernel = &mut self.kernels[usize::from(host)];
            if let Some(child) = kernel
                && child.try_wait().unwrap().is_some()
            {
                *kernel = None;
            }
            if kernel.is_none() {
                *kernel = Some(self.net.start(host));
            }
        }
    }

    pub fn kills(&mut self, host: u8) {
        if let Some(mut kernel) = self.kernels[usize::from(host)].take() {
            let _ = kernel.kill();
            let _ = kernel.wait();
            self.killed += 1;
        }
    }

    pub fn kernel(&self, host: u8) -> Option<u32> {
        self.kernels[usize::from(host)].as_ref().map(Child::id)
    }

    /// Stops a host's kernel, and none of its programs; its process.
    pub fn stops(&mut self, host: u8) -> Option<u32> {
        let pid = self.kernel(host)?;
        self.stopped.insert(host);
        signal(pid, "-STOP");
        Some(pid)
    }

    /// Waits until each host says that all are members.
    pub fn until_members(&mut self) {
        let began = Instant::now();
        let names: Vec<String> = (0..self.hosts).map(|host| format!("host{host} ")).collect();
        let mut last = String::new();
        for host in 0..self.hosts {
            self.until(&format!("host{host} does not see all hosts"), |world| {
                let said = world.asks(host, &["ls", "--hosts"]);
                let all = names.iter().all(|name| said.contains(name.as_str()));
                if all && !said.contains("not connected") {
                    return true;
                }
                if said != last {
                    world.event(format!("host{host} says: {}", said.trim_end()));
                    last = said;
                }
                world.starts_missing();
                false
            });
        }
        self.figures.healed_max = self.figures.healed_max.max(began.elapsed());
        self.event(format!("all are members after {:?}", began.elapsed()));
    }

    /// A round begins: objects of each kind, and programs of them.
    pub fn begins_round(&mut self) {
        self.round += 1;
        self.killed = 0;
        self.lost.clear();
        self.stopped.clear();
        for host in 0..self.hosts {
            self.heard[usize::from(host)] = self.said(host).len();
        }
        for (number, kind) in KINDS.iter().enumerate() {
            let host = self.dice.below(self.hosts.into()) as u8;
            let name = self.object(number);
            let bytes = (kind.unit * 2).to_string();
            let what = [&["create"], kind.options, &[name.as_str(), bytes.as_str()]].concat();
            self.does(host, &what, "there is a shared memory object");
            let programs = self.hosts.min(3);
            for program in 0..programs {
                self.starts_program((host + program) % self.hosts, number, "works");
            }
        }
    }

    fn starts_program(&mut self, host: u8, kind: usize, rounds: &str) {
        self.last_session += 1;
        let number = self.last_session;
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let told = [
            text(self.net.socket(host)),
            self.object(kind),
            number.to_string(),
            KINDS[kind].unit.to_string(),
            rounds.into(),
            text(self.path(number, "record")),
            text(self.stop()),
        ];
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["chaos::the_program", "--exact", "--nocapture"]);
        command
            .env(PROGRAM, told.join("|"))
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command.stderr(appended(&self.path(number, "said")));
        let child = command.spawn().unwrap();
        self.sessions.push(Session {
            number,
            host,
            kind,
            child,
            is_over: false,
        });
    }

    /// A program that runs, at random.
    pub fn program(&mut self) -> Option<(u64, u32)> {
        let running: Vec<(u64, u32)> = self
            .sessions
            .iter()
            .filter(|one| !one.is_over)
            .map(|one| (one.number, one.child.id()))
            .collect();
        match running.len() as u64 {
            0 => None,
            some => Some(running[self.dice.below(some) as usize]),
        }
    }

    /// Looks after programs: one that has ended had a reason, and another takes its place.
    pub fn tends(&mut self, starts_others: bool) {
        let mut ended = Vec::new();
        for (at, session) in self.sessions.iter_mut().enumerate() {
            if !session.is_over
                && let Some(status) = session.child.try_wait().unwrap()
            {
                session.is_over = true;
                ended.push((at, status));
            }
        }
        for (at, status) in ended {
            let Session {
                number, host, kind, ..
            } = self.sessions[at];
            let said = fs::read_to_string(self.path(number, "said")).unwrap_or_default();
            let how = format!("program {number} of host{host} ({})", KINDS[kind].name);
            self.event(format!("{how} has ended: {status}; {}", said.trim_end()));
            match (status.signal(), status.code()) {
                (Some(SIGBUS), _) if !said.contains("farpage") => {
                    // Its host kernel has said why: it is counted.
                    self.figures.untold += 1;
                    if !KINDS[kind].is_mirrored {
                        self.lost.insert(kind);
                    }
                }
                (Some(SIGBUS), _)
                    if said.contains("a host that died") || said.contains("hosts that died") =>
                {
                    self.lost.insert(kind);
                }
                (Some(SIGBUS | SIGKILL), _) | (_, Some(0 | NOT_YET)) => {}
                (_, _) => self.fails(&format!("{how} ended with {status}: {said}")),
            }
            if starts_others && !self.lost.contains(&kind) && !self.stop().exists() {
                let other = self.dice.below(self.hosts.into()) as u8;
                self.starts_program(other, kind, "works");
            }
        }
    }

    /// All faults are over: everybody is answered, and what was done is that of one memory.
    pub fn judges(&mut self) {
        self.until_members();
        for kind in 0..KINDS.len() {
            for host in 0..self.hosts {
                self.starts_program(host, kind, "looks");
            }
        }
        // Whoever works does something more.
        let length = |world: &Self, number| {
            fs::metadata(world.path(number, "record")).map_or(0, |m| m.len())
        };
        let running = self.sessions.iter().filter(|one| !one.is_over);
        let mut waiting: BTreeMap<u64, u64> = running
            .map(|one| (one.number, length(self, one.number)))
            .collect();
        self.until("programs wait for an answer", |world| {
            world.tends(false);
            let over = world.sessions.iter().filter(|one| one.is_over);
            let over: BTreeSet<u64> = over.map(|one| one.number).collect();
            let before = waiting.len();
            waiting.retain(|number, before| {
                !over.contains(number) && length(world, *number) == *before
            });
            if waiting.len() < before.min(4) {
                world.event(format!("programs {:?} wait", waiting.keys()));
            }
            waiting.is_empty()
        });
        fs::write(self.stop(), "").unwrap();
        self.until("programs do not end that were told to", |world| {
            world.tends(false);
            world.sessions.iter().all(|one| one.is_over)
        });
        let before = self.figures.stays_ended;
        let out = self.out();
        self.holds(&out, self.figures.stays_ended - before);
        for kind in 0..KINDS.len() {
            let name = self.object(kind);
            self.does(
                0,
                &["rm", "--cluster", &name],
                "there is no shared memory object",
            );
        }
        self.sessions.clear();
    }

    fn said(&self, host: u8) -> String {
        fs::read_to_string(self.net.said(host)).unwrap_or_default()
    }

    /// Hosts of which a stay has ended in this round.
    fn out(&mut self) -> BTreeSet<u8> {
        let mut out = BTreeSet::new();
        let mut ended = 0;
        for host in 0..self.hosts {
            let said = self.said(host);
            let new = &said[self.heard[usize::from(host)]..];
            let fenced = new
                .matches("farpage: this host is out of the cluster: ")
                .count();
            // Each start but those of fences.
            let started = new.matches("the host kernel answers at").count();
            if fenced + started > 0 {
                out.insert(host);
                ended += fenced + started;
            }
        }
        self.figures.stays_ended += ended;
        out
    }

    fn holds(&mut self, out: &BTreeSet<u8>, ended: usize) {
        let hosts: BTreeMap<u64, u8> = self
            .sessions
            .iter()
            .map(|one| (one.number, one.host))
            .collect();
        for (number, kind) in KINDS.iter().enumerate() {
            let acts: Vec<Act> = self
                .sessions
                .iter()
                .filter(|one| one.kind == number)
                .flat_map(|one| {
                    let record = fs::read_to_string(self.path(one.number, "record"));
                    laws::acts(one.number, &record.unwrap_or_default())
                })
                .collect();
            let about = About {
                hosts: &hosts,
                out,
                stopped: &self.stopped,
                is_mirrored: kind.is_mirrored,
            };
            match laws::check(&acts, &about) {
                Ok(of_others) => self.figures.of_others += of_others,
                Err(why) => self.fails(&format!("{}: {why}", self.object(number))),
            }
            match laws::sees_damage(&acts, &about) {
                Some(true) => self.figures.damages_seen += 1,
                Some(false) => self.fails("the checker did not see a damaged history"),
                None => {}
            }
            self.figures.acts += acts.len();
            if kind.is_mirrored && ended < 2 && self.lost.contains(&number) {
                self.fails(&format!(
                    "something of {} is lost, and hosts that ended a stay are {out:?} alone",
                    self.object(number)
                ));
            }
        }
    }

    /// Everything ends, in good order; what is left nevertheless.
    pub fn ends(&mut self) -> Vec<String> {
        for kernel in self.kernels.iter().flatten() {
            signal(kernel.id(), "-TERM");
        }
        self.until("a host kernel does not end that was told to", |world| {
            let kernels = world.kernels.iter_mut().flatten();
            kernels
                .map(|kernel| kernel.try_wait().unwrap())
                .all(|ended| ended.is_some())
        });
        self.kernels.clear();
        let sockets = (0..self.hosts).filter(|host| self.net.socket(*host).exists());
        let mut left: Vec<String> = sockets
            .map(|host| format!("the socket of host{host}"))
            .collect();
        left.extend(self.net.ends());
        left
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let programs = self.sessions.iter_mut().map(|one| &mut one.child);
        for child in programs.chain(self.kernels.iter_mut().flatten()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn signal(pid: u32, which: &str) {
    // It may have ended.
    let _ = Command::new("kill")
        .args([which, &pid.to_string()])
        .stderr(Stdio::null())
        .status();
}
