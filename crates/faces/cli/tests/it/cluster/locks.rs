//! Locks, semaphores and barriers between hosts that are real: network namespaces, etcd, host kernels.

use super::support::{Client, Kernel, Net};

/// Hosts, and a program of each that shares a page.
fn hosts(net: &mut Net, count: usize, how: &str) -> (Vec<Kernel>, Vec<Client>) {
    let kernels: Vec<Kernel> = (0..count).map(|_| net.host()).collect();
    let mut clients: Vec<Client> = kernels.iter().map(Kernel::client).collect();
    for client in &mut clients {
        assert_eq!(client.does(&format!("share locks 8192 4096{how}")), "done");
    }
    (kernels, clients)
}

/// Messages of all hosts so far.
pub fn sent(kernels: &[Kernel]) -> u64 {
    let of = |kernel: &Kernel| {
        let host = farpage_client::Host::connect(&kernel.socket).unwrap();
        let listed = host.cluster().unwrap();
        listed
            .objects
            .iter()
            .map(|one| one.figures.sent)
            .sum::<u64>()
    };
    kernels.iter().map(of).sum()
}

#[test]
fn counts_under_a_lock_are_exact_on_two_and_three_hosts() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let times = 300;
    let (kernels, mut clients) = hosts(&mut net, 3, "");
    let mut others = vec![kernels[0].client(), kernels[1].client()];
    for other in &mut others {
        assert_eq!(other.does("share locks"), "done");
    }
    let mut all = 0;
    for count in [2, 3] {
        let before = sent(&kernels);
        let of_two = clients.iter_mut().take(count);
        let mut takers: Vec<&mut Client> = of_two.chain(&mut others).collect();
        let (parties, at) = (takers.len(), 1024 * count);
        for taker in &mut takers {
            taker.send(&format!("arrives {at} {parties} 1"));
            taker.send(&format!("counts 0 128 {times}"));
        }
        let mut us = Vec::new();
        for taker in &mut takers {
            assert_eq!(taker.line(), "done");
            us.push(taker.line().parse::<u64>().unwrap());
        }
        let turns = times * takers.len() as u64;
        all += turns;
        println!(
            "{count} hosts, {} programs: {} turns a second, {:.1} messages for pages a turn",
            us.len(),
            turns * 1_000_000 / us.iter().max().unwrap(),
            (sent(&kernels) - before) as f64 / turns as f64,
        );
    }
    assert_eq!(clients[0].does("at 128"), all.to_string());
    for (at, client) in clients.iter_mut().enumerate() {
        client.send(&format!("arrives 1024 3 {}", 50 + at / 4));
    }
    for client in &mut clients {
        assert_eq!(client.line(), "done");
    }
}

#[test]
fn who_waits_has_the_lock_when_its_holder_or_the_holders_host_is_killed() {
    let Some(mut net) = Net::new() else {
        return;
    };
    // One that dies takes nothing with it.
    let (mut kernels, mut clients) = hosts(&mut net, 3, " mirrored");
    let mut dies = kernels[1].client();
    assert_eq!(dies.does("share locks"), "done");
    assert_eq!(dies.does("take 0"), "Taken");
    assert_eq!(dies.does("place 1024 1"), "true");
    assert_eq!(clients[0].does("try 0 700"), "TimedOut", "it lives");
    clients[0].send("take 0");
    clients[2].send("place 1024 1");
    dies.kill();
    assert_eq!(clients[0].line(), "HolderDied");
    assert_eq!(clients[2].line(), "true");
    assert_eq!(clients[0].does("right 0"), "done");
    assert_eq!(clients[0].does("give 0"), "done");
    assert_eq!(clients[2].does("unplace 1024 1"), "done");
    // All of a host.
    assert_eq!(clients[1].does("take 0"), "Taken");
    assert_eq!(clients[1].does("place 1024 1"), "true");
    // What nobody has seen may not have been.
    assert_eq!(clients[0].does("try 0 0"), "TimedOut");
    clients[0].send("take 0");
    clients[2].send("place 1024 1");
    kernels[1].kill();
    assert_eq!(clients[0].line(), "HolderDied");
    assert_eq!(clients[2].line(), "true");
    assert_eq!(clients[0].does("give 0"), "done");
    assert_eq!(clients[2].does("take 0"), "HolderDied");
    assert!(
        clients[0]
            .does("give 0")
            .contains("a lock is not this caller's")
    );
    assert!(
        clients[0]
            .does("place 0 2")
            .contains("lies a lock, and not a semaphore of 2")
    );
}

#[test]
fn a_lock_whose_page_is_lost_is_an_error_and_keeps_nobody_waiting() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (mut kernels, mut clients) = hosts(&mut net, 2, "");
    assert_eq!(clients[1].does("take 64"), "Taken");
    // Of another page, for which somebody waits: who had it last may be either.
    assert_eq!(clients[1].does("take 4096"), "Taken");
    let mut waits = kernels[0].client();
    assert_eq!(waits.does("share locks"), "done");
    waits.send("take 4096");
    assert!(clients[1].does("counts 4160 4224 1").parse::<u64>().is_ok());
    kernels[1].kill();
    let said = clients[0].does("take 64");
    assert!(
        said.contains("the page of 'locks' at byte 64 is lost"),
        "{said}"
    );
    let said = waits.line();
    assert!(said.contains("is lost") || said == "HolderDied", "{said}");
    assert!(
        clients[0].does("try 64 0").contains("is lost"),
        "it goes on"
    );
}
