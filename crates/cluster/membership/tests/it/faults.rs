//! Hosts that die or stop, an etcd that dies or cannot be reached.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use farpage_membership::{Control, Event, Incarnation, Moment};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{
    Etcd, LONG, Proxy, SHORT, SOON, config, description, join, pinging, wait_for, wait_for_members,
    wait_until,
};

/// A host in a process of its own.
struct Member {
    child: Child,
    said: Receiver<String>,
    incarnation: Incarnation,
}

impl Member {
    fn start(endpoint: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args([
                "--exact",
                "faults::member_process",
                "--nocapture",
                "--test-threads=1",
            ])
            .env("FARPAGE_MEMBER", endpoint)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let (tell, said) = channel();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| tell.send(line))
        });
        let mut member = Self {
            child,
            said,
            incarnation: Incarnation(0),
        };
        member.incarnation = Incarnation(member.number("joined "));
        member
    }

    /// The number after a word that it says.
    fn number(&self, word: &str) -> u64 {
        loop {
            let line = self.said.recv_timeout(SOON).expect("it says so");
            if let Some((_, number)) = line.split_once(word) {
                return number.trim().parse().expect("a number");
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it is ours");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test by itself: the process of a [`Member`].
#[test]
fn member_process() {
    let Some(endpoint) = std::env::var("FARPAGE_MEMBER").ok() else {
        return;
    };
    let control = join(&endpoint, "member", SHORT);
    control
        .make(None, description(&control))
        .expect("an object that it holds");
    println!("joined {}", control.incarnation());
    let mut until = control.acts_until();
    while !control.is_fenced() {
        until = until.max(control.acts_until());
        std::thread::park_timeout(Duration::from_millis(1));
    }
    println!("fenced {}", until.as_ns());
    while !matches!(control.next_event(SOON), Some(Event::Fenced(_))) {}
    println!("told 1");
    let again = control
        .rejoin(config(&endpoint, "member", SHORT))
        .expect("it joins anew");
    println!("again {}", again.incarnation());
    let _ = std::io::stdout().flush();
    while again.next_event(SOON).is_some() {}
}

fn at_risk(host: &Control, who: Incarnation) -> Moment {
    wait_for(host, "a host is at risk", |event| match event {
        Event::AtRisk { incarnation, .. } if *incarnation == who => Some(Moment::now()),
        _ => None,
    })
}

#[test]
fn of_a_process_that_is_killed_nothing_is_left() {
    let Some(etcd) = Etcd::start() else { return };
    let began = Instant::now();
    let host = join(&etcd.endpoint(), "host", LONG);
    println!("joined in {:?}", began.elapsed());
    // While it is alone it has all promises that there are, and it asks for them rarely.
    wait_until("it counts on promises", || host.counts_on_promises());
    let mut member = Member::start(&etcd.endpoint());
    wait_for_members(&host, 2);
    let made = wait_for(&host, "its object is seen", |event| match event {
        Event::Made(id, _) => Some(*id),
        _ => None,
    });
    let began = Instant::now();
    member.child.kill().expect("it is ours");
    at_risk(&host, member.incarnation);
    println!("at risk {:?} after kill -9", began.elapsed());
    wait_for_members(&host, 1);
    println!("out of the view {:?} after kill -9", began.elapsed());
    wait_for(&host, "its object is removed", |event| match event {
        Event::Removed(id) if *id == made => Some(()),
        _ => None,
    });
    let left = etcd.keys("test/now/");
    let own = format!("test/now/alive/{}", host.incarnation());
    let goes_on = format!("test/now/goes-on/{}", host.incarnation());
    assert_eq!(left, [own, goes_on, "test/now/view".into()]);
}

#[test]
fn a_process_that_was_stopped_finds_itself_fenced_and_joins_anew() {
    let Some(etcd) = Etcd::start() else { return };
    let host = join(&etcd.endpoint(), "host", LONG);
    let member = Member::start(&etcd.endpoint());
    wait_for_members(&host, 2);
    member.signal(Signal::STOP);
    let believed_dead = at_risk(&host, member.incarnation);
    wait_for_members(&host, 1);
    member.signal(Signal::CONT);
    let acted_until = Moment::from_ns(member.number("fenced "));
    assert!(
        acted_until < believed_dead,
        "{acted_until:?} {believed_dead:?}"
    );
    assert_eq!(member.number("told "), 1);
    let again = Incarnation(member.number("again "));
    let view = wait_for_members(&host, 2);
    assert!(again > member.incarnation && view.member(again).is_some());
}

#[test]
fn a_host_that_etcd_does_not_reach_is_fenced_before_it_is_believed_dead() {
    let Some(etcd) = Etcd::start() else { return };
    let host = join(&etcd.endpoint(), "host", LONG);
    for (there, back) in [(true, true), (true, false), (false, true)] {
        let proxy = Proxy::to(etcd.port);
        let cut = join(&proxy.endpoint(), "cut", SHORT);
        wait_for_members(&host, 2);
        proxy.shut(there, back);
        let mut until = cut.acts_until();
        wait_until("it is fenced", || {
            until = until.max(cut.acts_until());
            cut.is_fenced()
        });
        let believed_dead = at_risk(&host, cut.incarnation());
        assert!(until < believed_dead, "cut there: {there}, back: {back}");
        wait_for_members(&host, 1);
        let lost = |event: &Event| matches!(event, Event::StoreLost(_));
        let mut events = std::iter::from_fn(|| cut.next_event(SOON));
        assert!(events.any(|event| lost(&event)));
        let why = events.find_map(|event| match event {
            Event::Fenced(why) => Some(why),
            _ => None,
        });
        let why = why.expect("it is told");
        assert!(
            why.contains("has not kept its lease") && why.contains("host"),
            "{why}"
        );
        // It ends without the store.
        drop(cut);
    }
}

#[test]
fn while_etcd_is_dead_hosts_that_reach_each_other_go_on_and_keep_their_place() {
    let Some(mut etcd) = Etcd::start() else {
        return;
    };
    let endpoint = etcd.endpoint();
    let (a, b) = (join(&endpoint, "a", SHORT), join(&endpoint, "b", SHORT));
    wait_for_members(&a, 2);
    wait_for_members(&b, 2);
    pinging(&[&a, &b], &[], || {
        going_on(&a);
        going_on(&b);
        let before = a.make(Some("before"), description(&a)).expect("made");
        etcd.kill();
        for host in [&a, &b] {
            wait_for(host, "the store is lost", |event| {
                matches!(event, Event::StoreLost(_)).then_some(())
            });
        }
        let later = Moment::now().plus(SHORT * 2);
        for host in [&a, &b] {
            wait_until("it goes on", || host.acts_until() > later);
            assert!(!host.is_fenced());
        }
        etcd.restart();
        for host in [&a, &b] {
            wait_for(host, "the store is back", |event| {
                matches!(event, Event::StoreBack).then_some(())
            });
        }
        assert_eq!(b.find("before").expect("it is there").0, before);
        b.make(Some("after"), description(&b)).expect("made");
        assert!(a.find("after").is_ok());
        assert_eq!(a.view().expect("a view").members.len(), 2);
    });
}

#[test]
fn while_etcd_is_dead_hosts_that_do_not_reach_each_other_stop() {
    let Some(mut etcd) = Etcd::start() else {
        return;
    };
    let endpoint = etcd.endpoint();
    let hosts = ["a", "b", "c"].map(|name| join(&endpoint, name, SHORT));
    let all: Vec<&Control> = hosts.iter().collect();
    for host in &all {
        wait_for_members(host, 3);
    }
    pinging(&all, &[], || all.iter().for_each(|host| going_on(host)));
    etcd.kill();
    pinging(&all, &[2], || {
        for host in &all {
            wait_until("it is fenced", || host.is_fenced());
            while !matches!(host.next_event(SOON), Some(Event::Fenced(_))) {}
        }
    });
}

#[test]
fn a_host_whose_lease_ran_out_while_all_promised_comes_back_after_a_compaction() {
    let Some(etcd) = Etcd::start() else { return };
    let a = join(&etcd.endpoint(), "a", LONG);
    let proxy = Proxy::to(etcd.port);
    let b = join(&proxy.endpoint(), "b", SHORT);
    wait_for_members(&a, 2);
    let known = a.make(None, description(&a)).expect("made");
    wait_for(&b, "it is seen", |event| {
        matches!(event, Event::Made(id, _) if *id == known).then_some(())
    });
    pinging(&[&a, &b], &[], || {
        going_on(&b);
        proxy.shut(true, true);
        at_risk(&a, b.incarnation());
        // What happens meanwhile, and what of it is forgotten.
        a.release(known).expect("released");
        let new = a.make(Some("meanwhile"), description(&a)).expect("made");
        wait_for(&a, "it is removed", |event| {
            matches!(event, Event::Removed(_)).then_some(())
        });
        etcd.compact();
        proxy.shut(false, false);
        // After a gap, what was deleted meanwhile comes last.
        let (mut removed, mut made) = (false, false);
        while !(removed && made) {
            match b.next_event(SOON).expect("both are told") {
                Event::Removed(id) => removed |= id == known,
                Event::Made(id, _) => made |= id == new,
                Event::Fenced(why) => panic!("{why}"),
                _ => {}
            }
        }
        wait_until("it holds what is new", || b.hold(new).is_ok());
        assert_eq!(a.view().expect("a view").members.len(), 2);
        assert!(!b.is_fenced());
    });
}

/// Waits until the host counts on promises. That the store has the key is not enough: its answer may be lost.
fn going_on(host: &Control) {
    wait_until("it counts on promises", || host.counts_on_promises());
}
