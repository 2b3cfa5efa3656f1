//! `malloc` in memory of several hosts that are real.

use std::time::Duration;

use farpage_testkit::pass;

use super::support::{Client, Kernel, Net};

use crate::support::up::until;

/// Bytes of the heap.
const BYTES: u64 = 16 << 20;

/// Hosts, and two programs of each that have a heap.
fn hosts(net: &mut Net, count: usize) -> (Vec<Kernel>, Vec<Client>) {
    let kernels: Vec<Kernel> = (0..count).map(|_| net.host()).collect();
    let mut clients: Vec<Client> = Vec::new();
    for kernel in kernels.iter().cycle().take(2 * count) {
        clients.push(has_heap(kernel));
    }
    (kernels, clients)
}

fn has_heap(kernel: &Kernel) -> Client {
    let mut client = kernel.client();
    let shares = format!("share heap {BYTES} 4096 mirrored");
    assert_eq!(client.does(&shares), "done");
    assert_eq!(client.does("heap"), "done");
    client
}

/// All of it is free, when the last of those that had it is known to be dead.
fn is_whole(kernel: &Kernel) {
    let mut last = has_heap(kernel);
    let mut usage = String::new();
    until("nobody else has the heap", || {
        last.does("recovers");
        usage = last.does("usage");
        usage.contains(" 1 processes")
    });
    assert_eq!(usage, "0 blocks, 0 bytes not free, 1 processes, sound");
}

fn churn(clients: &mut [Client], times: u64, how: &str) -> u64 {
    for (at, client) in clients.iter_mut().enumerate() {
        client.send(&format!("churn {times} {} {how}", 77 + at));
    }
    let us = clients
        .iter_mut()
        .map(|client| client.line().parse::<u64>());
    us.map(Result::unwrap).max().unwrap()
}

#[test]
fn programs_of_two_hosts_allocate_and_free_and_what_each_does_alone_costs_no_messages() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (kernels, mut clients) = hosts(&mut net, 2);
    let mut sent = 0;
    let mut since = || {
        let now = super::locks::sent(&kernels);
        now - std::mem::replace(&mut sent, now)
    };
    // Until each has the pages that it works with.
    churn(&mut clients, 2000, "alone");
    since();
    let times = 5000;
    let us = churn(&mut clients, times, "alone");
    let alone = since();
    let of_all = times * clients.len() as u64;
    println!("alone: {us} us, {alone} messages in {of_all} calls");
    assert!(alone * 50 < of_all, "{alone} messages in {of_all} calls");
    let us = churn(&mut clients, 500, "together");
    println!(
        "one of eight handed over: {us} us, {} messages in 2000 calls",
        since()
    );
    for client in &mut clients {
        assert_ne!(client.does("free"), "0");
    }
    let usage = clients[1].does("usage");
    assert!(usage.contains(" 4 processes, sound"), "{usage}");
    assert_eq!(clients[3].does("free-all"), "done");
    drop(clients);
    // Of what is released nothing is kept.
    is_whole(&kernels[0]);
}

#[test]
fn a_heap_is_whole_when_programs_and_a_host_are_killed_in_the_middle() {
    let Some(mut net) = Net::new() else {
        return;
    };
    // One of each of the hosts that stay.
    const LEFT: [usize; 2] = [1, 3];
    let (mut kernels, mut clients) = hosts(&mut net, 3);
    churn(&mut clients, 300, "together");
    // One program of each of two hosts, in the middle of it; then all of the third.
    for (at, client) in clients.iter_mut().enumerate() {
        let times = if LEFT.contains(&at) { 1500 } else { u64::MAX };
        client.send(&format!("churn {times} {} together", 7 * at + 1));
    }
    // At any time: also what has not begun may be killed.
    pass(Duration::from_millis(60));
    clients[0].kill();
    clients[4].kill();
    pass(Duration::from_millis(60));
    kernels[2].kill();
    for at in LEFT {
        assert!(clients[at].line().parse::<u64>().is_ok());
    }
    let mut left: Vec<Client> = Vec::new();
    for (at, client) in clients.into_iter().enumerate() {
        if LEFT.contains(&at) {
            left.push(client);
        }
    }
    // Who was killed has what it had allocated, and nothing else: no slab, no place in the heap.
    let mut usage = String::new();
    until("only those that live have the heap", || {
        left[0].does("recovers");
        usage = left[1].does("usage");
        usage.contains(" 2 processes")
    });
    assert!(usage.ends_with(", sound"), "{usage}");
    churn(&mut left, 300, "together");
    assert_eq!(left[0].does("free-all"), "done");
    drop(left);
    is_whole(&kernels[1]);
}
