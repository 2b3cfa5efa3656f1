//! `farpage run --cluster`: semaphores and message queues of System V, which all hosts have, and which do
//! what Linux's do.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::across::{compiled, everywhere, said, start};
use super::support::Net;

#[test]
fn calls_of_system_v_do_in_a_cluster_what_they_do_in_linux() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let program = compiled(&net, "across_sysv");
    let (first, second) = (net.bare_host(), net.bare_host());
    // Those of the second host are done by the first, which leads.
    let leads = start({
        let mut command = net.run(first, &[], &["cat"]);
        command.stdin(Stdio::piped());
        command
    });
    net.until_members(1);
    for what in ["sets", "queues"] {
        let words = [program.as_str(), what, "0", "1", "1"];
        let mut linux = Command::new("unshare");
        let linux = linux.arg("--ipc").args(words).output().unwrap();
        assert!(linux.status.success());
        let linux = String::from_utf8(linux.stdout).unwrap();
        let (ours, _) = said(start(net.run(second, &[], &words)));
        assert_eq!(ours, linux, "{what}");
    }
    drop(leads);
}

#[test]
fn programs_of_three_hosts_use_semaphores_and_queues_of_system_v_as_those_of_one() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let program = compiled(&net, "across_sysv");
    let hosts = [net.bare_host(), net.bare_host(), net.bare_host()];
    for said in everywhere(&net, &hosts, &[], &program, "together") {
        assert_eq!(said, "300\naround\n");
    }
}

#[test]
fn who_dies_with_a_semaphore_gives_it_back_and_so_does_its_host() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let program = compiled(&net, "across_sysv");
    let hosts = [net.bare_host(), net.bare_host()];
    let start = |host: u8, part: &str| {
        start(net.run(host, &[], &[program.as_str(), "dies", part, "2", "1"]))
    };
    // The first leads, and dies.
    let mut dies = start(hosts[0], "0");
    net.until_members(1);
    let mut stays = start(hosts[1], "1");
    let mut output = BufReader::new(stays.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(line(), "one\n");
    assert_eq!(line(), "kill\n");
    dies.kill().unwrap();
    dies.wait().unwrap();
    assert_eq!(line(), "two\n");
    said(stays);
}
