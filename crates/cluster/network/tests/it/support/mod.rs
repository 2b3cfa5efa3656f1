//! Hosts that write down what they are told, and wait for it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use farpage_network::{ClusterKey, Config, Incarnation, Network, Priority, Receiver};

/// What never takes so long unless something is wrong.
const LIMIT: Duration = Duration::from_secs(120);

/// What a host was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Message(u64, Priority, Vec<u8>),
    Link(u64, Priority, bool, String),
    Refused(String),
}

#[derive(Default)]
pub struct Notes {
    told: Mutex<Vec<Told>>,
    came: Condvar,
}

impl Notes {
    fn add(&self, told: Told) {
        self.told.lock().unwrap().push(told);
        self.came.notify_all();
    }

    /// Waits until what was told makes `look` find something.
    pub fn wait_for<T>(&self, what: &str, mut look: impl FnMut(&[Told]) -> Option<T>) -> T {
        let mut told = self.told.lock().unwrap();
        loop {
            if let Some(found) = look(&told) {
                return found;
            }
            let (next, late) = self.came.wait_timeout(told, LIMIT).unwrap();
            told = next;
            let links: Vec<_> = told
                .iter()
                .filter(|told| !matches!(told, Told::Message(..)))
                .collect();
            assert!(!late.timed_out(), "no {what}; links: {links:?}");
        }
    }

    pub fn messages(&self, priority: Priority, count: usize) -> Vec<Vec<u8>> {
        self.wait_for(&format!("{count} messages"), |told| {
            let all = of(told, priority);
            (all.len() >= count).then_some(all)
        })
    }

    pub fn wait_for_link(&self, up: bool, words: &str) {
        self.wait_for(words, |told| {
            told.iter().rev().find(|told| match told {
                Told::Link(_, _, is_up, why) => *is_up == up && why.contains(words),
                Told::Message(..) | Told::Refused(_) => false,
            })?;
            Some(())
        });
    }

    pub fn wait_for_refused(&self, words: &str) {
        self.wait_for(words, |told| {
            told.iter().find(|told| match told {
                Told::Refused(why) => why.contains(words),
                Told::Message(..) | Told::Link(..) => false,
            })?;
            Some(())
        });
    }

    pub fn forget(&self) {
        self.told.lock().unwrap().clear();
    }

    /// Forgets what it was told of connections.
    pub fn forget_links(&self) {
        let mut told = self.told.lock().unwrap();
        told.retain(|told| matches!(told, Told::Message(..)));
    }

    pub fn told(&self) -> Vec<Told> {
        self.told.lock().unwrap().clone()
    }
}

fn of(told: &[Told], wanted: Priority) -> Vec<Vec<u8>> {
    told.iter()
        .filter_map(|told| match told {
            Told::Message(_, priority, bytes) if *priority == wanted => Some(bytes.clone()),
            Told::Message(..) | Told::Link(..) | Told::Refused(_) => None,
        })
        .collect()
}

impl Receiver for Notes {
    fn received(&self, from: Incarnation, priority: Priority, message: &[u8]) {
        self.add(Told::Message(from.0, priority, message.to_vec()));
    }

    fn link_changed(&self, peer: Incarnation, priority: Priority, up: bool, why: &str) {
        self.add(Told::Link(peer.0, priority, up, why.into()));
    }

    fn refused(&self, _from: SocketAddr, why: &str) {
        self.add(Told::Refused(why.into()));
    }
}

pub fn new_key() -> ClusterKey {
    let folder = tempfile::tempdir().unwrap();
    ClusterKey::create(folder.path()).unwrap()
}

pub struct Host {
    pub network: Network,
    pub notes: Arc<Notes>,
    pub number: u64,
}

impl Host {
    pub fn start(key: &ClusterKey, number: u64) -> Self {
        Self::start_at(key, number, "127.0.0.1:0".parse().unwrap())
    }

    pub fn start_at(key: &ClusterKey, number: u64, listen: SocketAddr) -> Self {
        let notes = Arc::new(Notes::default());
        let config = Config::new(listen, key.clone(), Incarnation(number));
        let network = Network::start(config, notes.clone()).unwrap();
        Self {
            network,
            notes,
            number,
        }
    }

    pub fn meet(&self, other: &Self) {
        let address = other.network.local_address();
        self.network
            .meet(Incarnation(other.number), address)
            .unwrap();
    }

    pub fn send(&self, to: u64, priority: Priority, bytes: &[u8]) {
        self.network
            .send(Incarnation(to), priority, &[bytes])
            .unwrap();
    }

    pub fn owed(&self, to: u64, priority: Priority) -> usize {
        self.network.owed_bytes(Incarnation(to), priority).unwrap()
    }
}

pub fn pair() -> (Host, Host) {
    let key = new_key();
    let (one, two) = (Host::start(&key, 1), Host::start(&key, 2));
    one.meet(&two);
    two.meet(&one);
    (one, two)
}

pub fn number(n: u32) -> Vec<u8> {
    n.to_le_bytes().to_vec()
}

/// A child of this test program, dead at the latest when the test is over.
pub struct Task {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Task {
    /// Runs the test `child` with these environment variables.
    pub fn start(variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::child", "--nocapture", "--ignored"])
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Self { child, says }
    }

    /// What it says behind `word`.
    pub fn wait_for_word(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.says.read_line(&mut line).unwrap() > 0 {
            if let Some((_, after)) = line.split_once(word) {
                return after.trim().to_owned();
            }
            line.clear();
        }
        panic!("the child ended without saying {word}");
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
