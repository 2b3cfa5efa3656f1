//! Hosts that are killed and stopped, as processes.

use std::sync::{Arc, OnceLock, Weak};

use farpage_network::{ClusterKey, Config, Incarnation, Network, Priority, Receiver};
use rustix::process::{Pid, Signal, kill_process};

use Priority::Urgent;

use crate::support::{Host, Task, number};

/// Where the key is, the number of the child, and the address of the test.
const KEY: &str = "FARPAGE_NETWORK_KEY";
const NUMBER: &str = "FARPAGE_NETWORK_NUMBER";
const PARENT: &str = "FARPAGE_NETWORK_PARENT";

/// Sends back what comes.
struct Echo(OnceLock<Weak<Network>>);

impl Receiver for Echo {
    fn received(&self, from: Incarnation, priority: Priority, message: &[u8]) {
        let network = self.0.get().and_then(Weak::upgrade).unwrap();
        network.send(from, priority, &[message]).unwrap();
    }
}

#[test]
#[ignore = "not a test: the other process of the tests below"]
fn child() {
    let variable = |name| std::env::var(name).unwrap();
    let key = ClusterKey::load(variable(KEY).as_ref()).unwrap();
    let echo = Arc::new(Echo(OnceLock::new()));
    let number = Incarnation(variable(NUMBER).parse().unwrap());
    let config = Config::new("127.0.0.1:0".parse().unwrap(), key, number);
    let network = Arc::new(Network::start(config, echo.clone()).unwrap());
    echo.0.set(Arc::downgrade(&network)).unwrap();
    network
        .meet(Incarnation(1), variable(PARENT).parse().unwrap())
        .unwrap();
    println!("listens {}", network.local_address());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

fn start(host: &Host, folder: &tempfile::TempDir, number: u64) -> Task {
    let parent = host.network.local_address().to_string();
    let folder = folder.path().to_str().unwrap();
    let number_text = number.to_string();
    let mut task = Task::start(&[(KEY, folder), (NUMBER, &number_text), (PARENT, &parent)]);
    let address = task.wait_for_word("listens ").parse().unwrap();
    host.network.meet(Incarnation(number), address).unwrap();
    task
}

fn host() -> (Host, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let key = ClusterKey::create(folder.path()).unwrap();
    (Host::start(&key, 1), folder)
}

#[test]
fn a_host_that_is_killed_is_told_and_its_next_incarnation_starts_anew() {
    let (host, folder) = host();
    let mut task = start(&host, &folder, 2);
    host.send(2, Urgent, b"one");
    host.notes.messages(Urgent, 1);
    task.kill();
    host.notes.wait_for_link(false, "");
    host.send(2, Urgent, b"never");
    host.network.part(Incarnation(2));
    host.notes.forget();
    let _task = start(&host, &folder, 3);
    host.send(3, Urgent, b"two");
    assert_eq!(host.notes.messages(Urgent, 1), [b"two"]);
}

#[test]
fn a_host_that_is_stopped_for_a_while_loses_nothing() {
    let (host, folder) = host();
    let task = start(&host, &folder, 2);
    let pid = Pid::from_raw(i32::try_from(task.id()).unwrap()).unwrap();
    (0..100).for_each(|n| host.send(2, Urgent, &number(n)));
    host.notes.messages(Urgent, 10);
    kill_process(pid, Signal::STOP).unwrap();
    (100..200).for_each(|n| host.send(2, Urgent, &number(n)));
    host.notes
        .wait_for_link(false, "nothing was heard of the peer for too long");
    (200..300).for_each(|n| host.send(2, Urgent, &number(n)));
    kill_process(pid, Signal::CONT).unwrap();
    let all: Vec<_> = (0..300).map(number).collect();
    assert_eq!(host.notes.messages(Urgent, 300), all);
}
