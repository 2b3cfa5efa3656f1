//! Two hosts in network namespaces of their own, with a wire between them that is unplugged.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

use farpage_network::{ClusterKey, Priority};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use Priority::{Bulk, Urgent};

use crate::support::{Host, new_key, number};

/// Two namespaces with a pair of devices; gone when it is dropped.
struct Wire([String; 2]);

fn ip(words: &str) -> bool {
    let done = Command::new("ip").args(words.split(' ')).output();
    done.is_ok_and(|done| done.status.success())
}

impl Wire {
    /// Nothing without the privilege.
    fn new(name: &str) -> Option<Self> {
        let id = std::process::id();
        let names = [0, 1].map(|side| format!("farpage-{name}-{id}-{side}"));
        let [a, b] = &names;
        if !ip(&format!("netns add {a}")) {
            println!("skipped: making network namespaces needs root and `ip`");
            return None;
        }
        let wire = Self(names.clone());
        let devices = format!("link add eth0 netns {a} type veth peer name eth0 netns {b}");
        let made = ip(&format!("netns add {b}")) && ip(&devices);
        let is_up = names.iter().zip(1..).all(|(name, side)| {
            ip(&format!("-n {name} addr add 10.77.0.{side}/24 dev eth0"))
                && ip(&format!("-n {name} link set eth0 up"))
        });
        if !(made && is_up) {
            println!("skipped: this Linux has no veth devices");
            return None;
        }
        Some(wire)
    }

    /// A host on one side: all its threads are in that namespace.
    fn host(&self, side: u8, key: &ClusterKey) -> Host {
        let space = File::open(format!("/run/netns/{}", self.0[usize::from(side)])).unwrap();
        std::thread::scope(|scope| {
            let start = || {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(space.as_fd(), kind).unwrap();
                let listen = format!("10.77.0.{}:7070", side + 1).parse().unwrap();
                Host::start_at(key, u64::from(side) + 1, listen)
            };
            scope.spawn(start).join().unwrap()
        })
    }

    fn set(&self, state: &str) {
        assert!(ip(&format!("-n {} link set eth0 {state}", self.0[0])));
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for name in &self.0 {
            ip(&format!("netns del {name}"));
        }
    }
}

#[test]
fn a_wire_that_is_unplugged_in_the_midst_of_messages_loses_none() {
    let Some(wire) = Wire::new("unplug") else {
        return;
    };
    let key = new_key();
    let (one, two) = (wire.host(0, &key), wire.host(1, &key));
    two.meet(&one);
    one.meet(&two);
    let page = |n: u32| [number(n), vec![n as u8; 4092]].concat();
    let mut sent = 0;
    let mut send = |count| {
        for n in sent..sent + count {
            one.send(2, Urgent, &number(n));
            two.send(1, Urgent, &number(n));
            one.send(2, Bulk, &page(n));
        }
        sent += count;
        sent as usize
    };
    for _ in 0..2 {
        // All that was sent before has come: each connection is there, and will be lost.
        let count = send(500);
        two.notes.messages(Urgent, count);
        two.notes.messages(Bulk, count);
        one.notes.messages(Urgent, count);
        one.notes.forget_links();
        two.notes.forget_links();
        send(500);
        wire.set("down");
        send(500);
        one.notes.wait_for_link(false, "");
        two.notes.wait_for_link(false, "");
        send(500);
        wire.set("up");
    }
    send(500);
    let count = sent as usize;
    let all: Vec<_> = (0..sent).map(number).collect();
    assert_eq!(two.notes.messages(Urgent, count), all);
    assert_eq!(one.notes.messages(Urgent, count), all);
    let pages = two.notes.messages(Bulk, count);
    assert!(pages == (0..sent).map(page).collect::<Vec<_>>());
}
