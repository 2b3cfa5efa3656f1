//! Who is in the cluster, with a real etcd.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use farpage_membership::{Config, Control, ControlError, Endpoint, Event, Slot, View};

use crate::support;
use crate::support::{Etcd, LONG, SHORT, config, join, wait_for_members};

#[test]
fn hosts_that_race_get_a_slot_each_and_see_the_same_views() {
    let Some(etcd) = Etcd::start() else { return };
    let endpoint = etcd.endpoint();
    let hosts: Vec<Control> = thread::scope(|scope| {
        let joins: Vec<_> = (0..12)
            .map(|n| {
                scope.spawn({
                    let endpoint = &endpoint;
                    move || join(endpoint, &format!("host {n}"), LONG)
                })
            })
            .collect();
        joins
            .into_iter()
            .map(|join| join.join().expect("joins"))
            .collect()
    });
    let slots: BTreeSet<Slot> = hosts.iter().map(Control::slot).collect();
    assert_eq!(slots, (0..12).map(Slot).collect());
    let numbers: BTreeSet<_> = hosts.iter().map(Control::incarnation).collect();
    assert_eq!(numbers.len(), 12);
    let seen: Vec<Vec<View>> = hosts.iter().map(|host| views(host, 12)).collect();
    let all = seen.iter().max_by_key(|views| views.len()).expect("some");
    assert!(all.is_sorted_by_key(|view| view.generation));
    for views in &seen {
        assert!(all.ends_with(views));
    }
    let mut hosts = hosts;
    let leaves = hosts.swap_remove(4);
    let free = leaves.slot();
    leaves.leave().expect("it leaves");
    let view = wait_for_members(&hosts[0], 11);
    assert!(!view.members.contains_key(&free));
    let again = join(&endpoint, "again", LONG);
    assert_eq!(again.slot(), free);
    assert!(!numbers.contains(&again.incarnation()));
    let view = wait_for_members(&hosts[0], 12);
    assert_eq!(view.members[&free].name, "again");
    assert_eq!(
        view.member(again.incarnation()).map(|(slot, _)| slot),
        Some(free)
    );
}

/// All views up to the one of so many.
fn views(host: &Control, count: usize) -> Vec<View> {
    let mut views = Vec::new();
    loop {
        match host.next_event(support::SOON).expect("a view comes") {
            Event::View(view) => views.push(view),
            other => panic!("{other:?}"),
        }
        if views.last().is_some_and(|view| view.members.len() == count) {
            return views;
        }
    }
}

#[test]
fn a_cluster_has_64_hosts_and_no_more() {
    let mut config = Config::new(
        Endpoint::parse("embedded:").expect("it is one"),
        ([127, 0, 0, 1], 1).into(),
        "many",
    );
    config.lease = Duration::from_secs(10);
    config.wait = support::SOON;
    let mut hosts: Vec<Control> = (0..64)
        .map(|_| Control::join(config.clone()).expect("room"))
        .collect();
    assert_eq!(hosts[63].slot(), Slot(63));
    let refused = Control::join(config.clone()).err().expect("full");
    assert!(matches!(refused, ControlError::Full), "{refused}");
    // It has seen 63 before, on the way up.
    wait_for_members(&hosts[0], 64);
    // One dies: the others notice without being told.
    drop(hosts.remove(10));
    wait_for_members(&hosts[0], 63);
    assert_eq!(Control::join(config).expect("room").slot(), Slot(10));
}

#[test]
fn what_cannot_be_joined_is_refused_with_words() {
    let Some(etcd) = Etcd::start() else { return };
    let refused = |config: Config| Control::join(config).err().expect("refused").to_string();
    etcd.put(
        "newer/format",
        r#"{"version":2,"value":"farpage-membership"}"#,
    );
    etcd.put("other/format", "hello");
    etcd.put("broken/now/view", "{}");
    for (cluster, word) in [
        ("newer", "version 2"),
        ("other", "no record of Farpage"),
        ("broken", "broken/now/view"),
    ] {
        let endpoint = format!("etcd://127.0.0.1:{}/{cluster}", etcd.port);
        let said = refused(config(&endpoint, "a", LONG));
        assert!(said.contains(word), "{said}");
    }
    type Change = fn(&mut Config);
    let changes: [(Change, &str); 5] = [
        (|c| c.lease = Duration::from_millis(1500), "whole seconds"),
        (|c| c.lease = Duration::ZERO, "whole seconds"),
        (|c| c.name = "a/b".into(), "name a host"),
        (|c| c.page_bytes = 5000, "power of two"),
        (|c| c.going_on = Duration::MAX, "a week"),
    ];
    for (change, word) in changes {
        let mut bad = config(&etcd.endpoint(), "a", LONG);
        change(&mut bad);
        let said = refused(bad);
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn a_store_that_is_not_there_is_named() {
    let mut config = config("etcd://127.0.0.1:1/none", "a", SHORT);
    config.wait = Duration::from_millis(300);
    let began = Instant::now();
    let said = Control::join(config).err().expect("refused").to_string();
    assert!(
        said.contains("etcd://127.0.0.1:1/none did not answer in"),
        "{said}"
    );
    assert!(began.elapsed() >= Duration::from_millis(300));
}

#[test]
fn another_server_is_asked_when_one_is_dead_and_passwords_are_checked() {
    let Some(etcd) = Etcd::start() else { return };
    etcd.ask_for_passwords();
    let two = format!("127.0.0.1:1,127.0.0.1:{}/test", etcd.port);
    let host = join(&format!("etcd://root:hush@{two}"), "a", LONG);
    host.make(None, support::description(&host))
        .expect("it writes");
    for login in ["", "root:wrong@"] {
        let endpoint = format!("etcd://{login}127.0.0.1:{}/test", etcd.port);
        let mut config = config(&endpoint, "b", LONG);
        config.wait = Duration::from_secs(1);
        let said = Control::join(config).err().expect("refused").to_string();
        assert!(
            said.contains("refuses") && !said.contains("wrong"),
            "{said}"
        );
    }
}

#[test]
fn a_token_that_is_not_taken_any_more_is_replaced() {
    let Some(etcd) = Etcd::start() else { return };
    etcd.ask_for_passwords();
    let host = join(
        &format!("etcd://root:hush@127.0.0.1:{}/test", etcd.port),
        "a",
        LONG,
    );
    // All tokens are forgotten.
    etcd.by_hand(&["--user", "root:hush", "auth", "disable"]);
    etcd.by_hand(&["auth", "enable"]);
    host.make(None, support::description(&host))
        .expect("it writes");
}

#[test]
fn what_is_no_etcd_or_has_no_gateway_is_told_so() {
    let Some(etcd) = Etcd::start_with(&["--enable-grpc-gateway=false"]) else {
        return;
    };
    let mut config = config(&etcd.endpoint(), "a", LONG);
    config.wait = Duration::ZERO;
    let said = Control::join(config).err().expect("refused").to_string();
    assert!(said.contains("--enable-grpc-gateway"), "{said}");
}
