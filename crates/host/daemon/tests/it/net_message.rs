//! Network message servers of two hosts in one process, joined by threads that carry packets; and what a
//! host does with what it should not have been sent.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use farpage_client::{Error, Host, PortListed, Refusal};
use farpage_daemon::Service;
use farpage_daemon::net_message::{Found, Names, NetMessages, Wire};
use farpage_host::Objects;
use farpage_object::{DataRequest, ObjectId, PageOut, Pager, PagerError, Supplied};
use farpage_port::{CallError, Message, ReceiveRight, Right};

const LONG: Option<Duration> = Some(Duration::from_secs(120));

struct Nothing;

impl Pager for Nothing {
    fn data_request(&self, request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        Ok(Supplied::clean(request.pages().pages()))
    }

    fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
        Ok(())
    }

    fn terminate(&self, _: ObjectId) {}
}

/// The store of all hosts.
type Known = Arc<Mutex<HashMap<String, Found>>>;

struct Stored(u64, Known, Silent, Lost);

/// The store does not answer the next time that a name is given or taken away.
type Silent = Arc<AtomicBool>;
/// It is known not to answer.
type Lost = Arc<AtomicBool>;

impl Stored {
    fn known(&self) -> MutexGuard<'_, HashMap<String, Found>> {
        self.1.lock().unwrap()
    }

    fn answers(&self) -> Result<(), Refusal> {
        match self.2.swap(false, SeqCst) {
            true => Err(Refusal::Cluster("the store is silent".into())),
            false => Ok(()),
        }
    }
}

impl Names for Stored {
    fn check_in(&self, name: &str, number: u64, uid: u32) -> Result<(), Refusal> {
        let home = self.0;
        if name == "unlucky" {
            return Err(Refusal::PortExists(name.into()));
        }
        self.known()
            .insert(name.into(), Found { home, number, uid });
        // It has done it, and nobody hears that.
        self.answers()
    }

    fn look_up(&self, name: &str) -> Result<Found, Refusal> {
        let found = self.known().get(name).copied();
        found.ok_or_else(|| Refusal::NoPort(name.into()))
    }

    fn check_out(&self, name: &str, _: u64) -> Result<(), Refusal> {
        self.answers()?;
        self.known().remove(name);
        Ok(())
    }

    fn list(&self) -> Result<Vec<PortListed>, Refusal> {
        Ok(Vec::new())
    }

    fn lost(&self) -> Option<Refusal> {
        let is_lost = self.3.load(SeqCst);
        is_lost.then(|| Refusal::Cluster("the store is lost".into()))
    }
}

/// Packets of one host, in order.
struct Ferry(Mutex<Sender<(u64, Vec<u8>)>>, Arc<AtomicUsize>);

impl Wire for Ferry {
    fn send(&self, to: u64, parts: &[&[u8]]) {
        let _ = self.0.lock().unwrap().send((to, parts.concat()));
    }

    fn owed_bytes(&self, _: u64) -> usize {
        self.1.load(SeqCst)
    }
}

struct Hosts {
    servers: Vec<NetMessages>,
    hosts: Vec<Host>,
    known: Known,
    silent: Silent,
    lost: Lost,
    /// What is said to be on its way from any.
    owed: Arc<AtomicUsize>,
    _folder: tempfile::TempDir,
}

/// Two hosts, of the stays 1 and 2.
fn two() -> Hosts {
    let folder = tempfile::tempdir().unwrap();
    let known = Known::default();
    let (silent, lost) = (Silent::default(), Lost::default());
    let start = |stay| {
        let stored = Stored(
            stay,
            Arc::clone(&known),
            Arc::clone(&silent),
            Arc::clone(&lost),
        );
        NetMessages::start(Arc::new(stored)).unwrap()
    };
    let servers = vec![start(1), start(2)];
    let hosts = servers.iter().enumerate().map(|(at, server)| {
        let path = folder.path().join(at.to_string());
        listens(path.clone(), Some(server));
        Host::connect(&path).unwrap()
    });
    let hosts = hosts.collect();
    let owed = Arc::<AtomicUsize>::default();
    for (own, server) in (1..).zip(&servers) {
        let (send, sent) = channel::<(u64, Vec<u8>)>();
        server.begins(own, Arc::new(Ferry(Mutex::new(send), Arc::clone(&owed))));
        let all = servers.clone();
        std::thread::spawn(move || {
            for (to, packet) in sent {
                all[to as usize - 1].packet(own, &packet);
            }
        });
    }
    servers[0].sees(1, &BTreeSet::from([2]));
    servers[1].sees(1, &BTreeSet::from([1]));
    Hosts {
        servers,
        hosts,
        known,
        silent,
        lost,
        owed,
        _folder: folder,
    }
}

fn listens(path: PathBuf, server: Option<&NetMessages>) {
    let objects = Objects::start(4 << 20).unwrap();
    let service = Service::new(objects, 4 << 20, Arc::new(Nothing)).unwrap();
    let service = match server {
        Some(server) => service.with_net_messages(server).unwrap(),
        None => service,
    };
    std::mem::forget(service.listen(&path).unwrap());
    std::thread::spawn(move || service.run());
}

impl Hosts {
    fn port(&self, at: usize, name: &str) -> ReceiveRight {
        let port = self.hosts[at].node().unwrap().port();
        self.hosts[at].check_in(name, &port.make_send()).unwrap();
        port
    }

    /// Waits until hosts hold so many rights of one another.
    fn until_held(&self, counts: [(u64, u64); 2]) {
        let began = Instant::now();
        loop {
            let held = |host: &Host| {
                let listed = host.ports().unwrap();
                (listed.held_by_others, listed.held_of_others)
            };
            let now = [held(&self.hosts[0]), held(&self.hosts[1])];
            if now == counts {
                return;
            }
            assert!(began.elapsed() < LONG.unwrap(), "{now:?}");
        }
    }
}

fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> Refusal {
    match result {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn calls_go_to_the_other_host_and_nothing_is_left_of_them() {
    let it = two();
    let port = it.port(0, "clock");
    let right = it.hosts[1].look_up("clock").unwrap();
    let serving = std::thread::spawn(move || {
        for _ in 0..100 {
            let mut call = port.receive(LONG).unwrap();
            let id = call.id;
            call.answer(Message::new(id + 1)).unwrap();
        }
        // One that is not answered, and one that nobody receives.
        drop(port.receive(LONG).unwrap());
        port
    });
    for id in 0..100 {
        assert_eq!(right.call(Message::new(id), LONG).unwrap().id, id + 1);
    }
    let unanswered = right.call(Message::new(1), LONG);
    assert!(
        matches!(unanswered, Err(CallError::Unanswered)),
        "{unanswered:?}"
    );
    it.until_held([(1, 0), (0, 1)]);
    let port = serving.join().unwrap();
    drop(right);
    it.until_held([(0, 0), (0, 0)]);
    let again = it.hosts[1].look_up("clock").unwrap();
    drop(port);
    let dead = again.call(Message::new(1), LONG);
    assert!(dead.is_err(), "{dead:?}");
    // Its name goes with it.
    let began = Instant::now();
    while !it.known.lock().unwrap().is_empty() {
        assert!(began.elapsed() < LONG.unwrap());
    }
    it.until_held([(0, 0), (0, 0)]);
}

#[test]
fn names_are_refused_that_cannot_be() {
    let it = two();
    let port = it.port(0, "clock");
    let of = |at: usize, name: &str, right| refusal(it.hosts[at].check_in(name, right));
    let own = port.make_send();
    assert_eq!(of(0, "clock", &own), Refusal::PortExists("clock".into()));
    assert_eq!(
        of(0, "unlucky", &own),
        Refusal::PortExists("unlucky".into())
    );
    assert_eq!(of(0, "a/b", &own), Refusal::PortName("a/b".into()));
    let theirs = it.hosts[1].look_up("clock").unwrap();
    assert_eq!(
        of(1, "mine", &theirs),
        Refusal::PortElsewhere("mine".into())
    );
    let none = refusal(it.hosts[1].look_up("clocks"));
    assert_eq!(none, Refusal::NoPort("clocks".into()));
    let out = refusal(it.hosts[1].check_out("clock"));
    assert_eq!(out, Refusal::PortNotHere("clock".into()));
    it.hosts[0].check_out("clock").unwrap();
    assert!(it.hosts[1].look_up("clock").is_err());
    // Who has the right keeps it.
    theirs.send(Message::new(5), LONG).unwrap();
    assert_eq!(port.receive(LONG).unwrap().id, 5);
    // A port that another user has checked in.
    let of_root = Found {
        home: 1,
        number: 1,
        uid: rustix::process::geteuid().as_raw() + 1,
    };
    it.known.lock().unwrap().insert("theirs".into(), of_root);
    let found = refusal(it.hosts[1].look_up("theirs"));
    match rustix::process::geteuid().is_root() {
        // It may, and there is no such port.
        true => assert_eq!(found, Refusal::NoPort("theirs".into())),
        false => assert_eq!(found, Refusal::NotYours("theirs".into())),
    }
    let alone = it._folder.path().join("alone");
    listens(alone.clone(), None);
    let alone = Host::connect(&alone).unwrap();
    assert_eq!(refusal(alone.look_up("clock")), Refusal::Alone);
}

#[test]
fn a_host_that_breaks_the_protocol_is_heard_no_more_and_others_are() {
    let it = two();
    let port = it.port(0, "clock");
    let right = it.hosts[1].look_up("clock").unwrap();
    let back = it.port(1, "back");
    let to_back = it.hosts[0].look_up("back").unwrap();
    right.send(Message::new(1), LONG).unwrap();
    assert_eq!(port.receive(LONG).unwrap().id, 1);
    // What nobody has said who is heard; then what is no packet.
    it.servers[0].packet(7, b"\xff\xff");
    to_back.send(Message::new(2), LONG).unwrap();
    assert_eq!(back.receive(LONG).unwrap().id, 2);
    it.servers[0].packet(2, b"\xff\xff");
    for (right, at) in [(&right, 1), (&to_back, 0)] {
        let began = Instant::now();
        while !right.is_dead() {
            assert!(began.elapsed() < LONG.unwrap(), "of host {at}");
        }
    }
    assert_eq!(
        refusal(it.hosts[1].look_up("clock")),
        Refusal::NoPort("clock".into())
    );
    // It is another one when it joins anew.
    it.servers[0].sees(2, &BTreeSet::from([3]));
    let own = port.make_send();
    assert!(own.send(Message::new(3), LONG).is_ok());
    assert_eq!(port.receive(LONG).unwrap().id, 3);
}

#[test]
fn a_stay_that_is_over_takes_its_ports_along() {
    let it = two();
    let port = it.port(0, "clock");
    let right = it.hosts[1].look_up("clock").unwrap();
    let holder = it.hosts[1].node().unwrap().port();
    right.notify_dead(&holder);
    it.servers[1].ends();
    let notice = holder.receive(LONG).unwrap().notice();
    assert!(
        matches!(notice, Some(farpage_port::Notice::Dead(_))),
        "{notice:?}"
    );
    let out = refusal(it.hosts[1].check_in("x", &holder.make_send()));
    assert!(matches!(out, Refusal::Cluster(_)), "{out}");
    // The other hears of it by the next view.
    let once = Right::SendOnce(port.make_send_once());
    drop(once);
    it.servers[0].sees(2, &BTreeSet::new());
    it.until_held_by_nobody();
}

impl Hosts {
    fn until_held_by_nobody(&self) {
        let listed = self.hosts[0].ports().unwrap();
        assert_eq!((listed.held_by_others, listed.held_of_others), (0, 0));
    }
}

#[test]
fn a_name_that_the_store_did_not_take_away_can_be_taken_away_again() {
    let it = two();
    let _port = it.port(0, "kept");
    it.silent.store(true, SeqCst);
    let silent = refusal(it.hosts[0].check_out("kept"));
    assert!(matches!(silent, Refusal::Cluster(_)), "{silent}");
    it.hosts[0].check_out("kept").unwrap();
    assert!(it.known.lock().unwrap().is_empty());
}

#[test]
fn the_name_of_a_port_that_died_while_the_store_was_silent_goes_when_it_answers() {
    let it = two();
    let port = it.port(0, "kept");
    it.silent.store(true, SeqCst);
    drop(port);
    let began = Instant::now();
    while !it.known.lock().unwrap().is_empty() {
        assert!(began.elapsed() < LONG.unwrap(), "it stays");
    }
}

#[test]
fn a_name_that_was_given_unheard_is_taken_away_or_given_again() {
    let it = two();
    let port = it.hosts[0].node().unwrap().port();
    let right = port.make_send();
    it.silent.store(true, SeqCst);
    let silent = refusal(it.hosts[0].check_in("clock", &right));
    assert!(matches!(silent, Refusal::Cluster(_)), "{silent}");
    it.hosts[0].check_in("clock", &right).unwrap();
    it.hosts[1].look_up("clock").unwrap();
    it.hosts[0].check_out("clock").unwrap();
    it.silent.store(true, SeqCst);
    refusal(it.hosts[0].check_in("clock", &right));
    let began = Instant::now();
    while !it.known.lock().unwrap().is_empty() {
        assert!(began.elapsed() < LONG.unwrap(), "it stays");
    }
}

#[test]
fn what_is_owed_to_a_host_holds_up_all_its_ports_and_those_of_no_other() {
    let it = two();
    let [first, second] = ["first", "second"].map(|name| it.port(0, name));
    let [to_first, to_second] = ["first", "second"].map(|n| it.hosts[1].look_up(n).unwrap());
    let back = it.port(1, "back");
    let to_back = it.hosts[0].look_up("back").unwrap();
    it.owed.store(usize::MAX, SeqCst);
    to_first.send(Message::new(1), LONG).unwrap();
    assert_eq!(first.receive(LONG).unwrap().id, 1);
    to_second.send(Message::new(2), LONG).unwrap();
    // What its server is asked after that has been answered, and more than once.
    for _ in 0..100 {
        it.hosts[1].ports().unwrap();
    }
    let held = second.receive(Some(Duration::ZERO));
    assert!(held.is_err(), "{held:?}");
    to_back.send(Message::new(3), LONG).unwrap();
    assert_eq!(back.receive(LONG).unwrap().id, 3);
    it.owed.store(0, SeqCst);
    assert_eq!(second.receive(LONG).unwrap().id, 2);
}

#[test]
fn a_store_that_is_known_to_be_lost_is_not_asked() {
    let it = two();
    let port = it.port(0, "clock");
    let right = port.make_send();
    it.lost.store(true, SeqCst);
    // They would be answered by the store otherwise.
    let [given, found, taken] = [
        refusal(it.hosts[0].check_in("other", &right)),
        refusal(it.hosts[1].look_up("clock")),
        refusal(it.hosts[0].check_out("clock")),
    ];
    for refused in [given, found, taken] {
        assert_eq!(refused, Refusal::Cluster("the store is lost".into()));
    }
    // What needs no store goes on.
    it.hosts[0].look_up("clock").unwrap();
    it.hosts[0].ports().unwrap();
    drop(port);
    assert!(right.send(Message::new(1), LONG).is_err());
    it.lost.store(false, SeqCst);
    let began = Instant::now();
    while !it.known.lock().unwrap().is_empty() {
        assert!(began.elapsed() < LONG.unwrap(), "it stays");
    }
}
