//! `farpage run --cluster`: programs that know nothing of hosts, on several. Hosts are network namespaces
//! with a /dev/shm and keys of System V of their own; etcd is real.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use farpage_testkit::Started;

use super::support::Net;

use crate::support::{PYTHON, compile, up};

/// Compiles the program of these tests.
fn across(net: &Net) -> String {
    compiled(net, "across")
}

/// Compiles a program.
pub fn compiled(net: &Net, name: &str) -> String {
    let to = net.folder.path().join(name);
    compile(&format!("{name}.c"), &to, &[]);
    to.to_str().unwrap().to_owned()
}

pub fn start(mut command: Command) -> Started {
    Started::new(&mut command)
}

/// What a run that is to succeed said.
pub fn said(run: Started) -> (String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = run.output();
    let (out, told) = (
        String::from_utf8(stdout).unwrap(),
        String::from_utf8(stderr).unwrap(),
    );
    assert!(status.success(), "{status}: {out}{told}");
    (out, told)
}

/// Runs a program at all hosts at a time: `PROGRAM WHAT HOST HOSTS TIMES`.
pub fn everywhere(
    net: &Net,
    hosts: &[u8],
    more: &[&str],
    program: &str,
    what: &str,
) -> Vec<String> {
    let count = hosts.len().to_string();
    let runs: Vec<Started> = hosts
        .iter()
        .map(|host| {
            let words = [program, what, &host.to_string(), &count, "100"];
            Started::new(&mut net.run(*host, more, &words))
        })
        .collect();
    runs.into_iter().map(|run| said(run).0).collect()
}

pub fn nothing_is_left(net: &Net) {
    up::until("nothing is left in the store", || net.objects() == 0);
}

#[test]
fn programs_of_three_hosts_lock_wait_and_share_segments_as_those_of_one() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let program = across(&net);
    let hosts = [net.bare_host(), net.bare_host(), net.bare_host()];
    for (what, expected) in [
        ("locks", "300 300\n"),
        ("semaphores", "100\n"),
        ("segment", "300 of 1048576\ngone\n"),
    ] {
        for said in everywhere(&net, &hosts, &[], &program, what) {
            assert_eq!(said, expected, "{what}");
        }
        nothing_is_left(&net);
    }
    let mirrored = ["--replicas", "2"];
    for said in everywhere(&net, &hosts[..2], &mirrored, &program, "locks") {
        assert_eq!(said, "200 200\n");
    }
}

#[test]
fn what_is_done_to_a_name_is_done_at_all_hosts_when_it_returns() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let program = across(&net);
    let hosts = [net.bare_host(), net.bare_host()];
    for _ in 0..5 {
        for said in everywhere(&net, &hosts, &[], &program, "names") {
            assert_eq!(said, "as one\n");
        }
        nothing_is_left(&net);
    }
}

#[test]
fn python_finds_shared_memory_of_another_host_by_its_name() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let hosts = [net.bare_host(), net.bare_host()];
    let makes = "
from multiprocessing import shared_memory
shared = shared_memory.SharedMemory(name='grid', create=True, size=8 << 20)
shared.buf[:5] = b'hello'
until('the other has written', lambda: bytes(shared.buf[-5:]) == b'world')
shared.close(); shared.unlink()
";
    let finds = "
import os
from multiprocessing import shared_memory, resource_tracker
resource_tracker.register = lambda *_: None  # It would remove what it did not make.
grid = '/dev/shm/grid'
until('it is made', lambda: os.path.exists(grid) and os.path.getsize(grid))
shared = shared_memory.SharedMemory(name='grid')
until('the other has written', lambda: bytes(shared.buf[:5]) == b'hello')
print(shared.size)
shared.buf[-5:] = b'world'
until('it is gone', lambda: not os.path.exists(grid))
shared.close()
";
    let start = |host, code| {
        let code = [PYTHON, code].concat();
        Started::new(&mut net.run(host, &[], &["python3", "-c", &code]))
    };
    let (one, two) = (start(hosts[0], makes), start(hosts[1], finds));
    let (found, told) = said(two);
    assert_eq!(found, "8388608\n");
    assert!(told.contains("farpage: cluster "), "{told}");
    assert!(
        told.contains("1 object mapped; waited for other hosts"),
        "{told}"
    );
    assert_eq!(said(one).0, "");
    nothing_is_left(&net);
}

#[test]
fn a_run_that_is_killed_takes_nothing_along_that_is_on_two_hosts() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let program = across(&net);
    let (one, two) = (net.bare_host(), net.bare_host());
    let start = |host: u8, number: &str| {
        let run = [program.as_str(), "dies", number, "2", "1"];
        let mut command = net.run(host, &["--replicas", "2"], &run);
        command.stdin(Stdio::piped());
        Started::new(&mut command)
    };
    let (mut dies, mut stays) = (start(one, "0"), start(two, "1"));
    let mut output = BufReader::new(stays.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(line(), "828\n");
    // `ip`, `unshare` and the shell have become the run.
    dies.kill().unwrap();
    dies.wait().unwrap();
    writeln!(stays.stdin.take().unwrap()).unwrap();
    assert_eq!(line(), "goes on\n");
    said(stays);
    nothing_is_left(&net);
}

#[test]
fn names_of_programs_that_are_killed_while_they_make_them_can_be_made_again() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let program = across(&net);
    let host = net.bare_host();
    // Each is killed at another time; nothing waits for it.
    let kills = "for at in 1 2 3 4 5 6 7 8 9 10 11 12; do \"$@\" 100000 & sleep 0.0$at; \
                 kill -9 $!; wait $!; done; exec \"$@\" 10";
    let words = ["bash", "-c", kills, "bash", &program, "makes", "0", "1"];
    let (out, told) = said(start(net.run(host, &[], &words)));
    assert!(out.ends_with("made\n"), "{out}{told}");
    nothing_is_left(&net);
}

#[test]
fn a_host_has_one_run_of_a_cluster_at_a_time() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let host = net.bare_host();
    let command = concat!(
        env!("CARGO_BIN_EXE_farpage"),
        " run --cluster etcd://10.79.0.1:2379/test"
    );
    let key = net.key();
    let key = key.display();
    // It goes on while the other reads what it says.
    let first = format!("{command} --cluster-key {key} -- yes");
    let second = format!("{command} --cluster-key {key} -- true; echo $?");
    let output = net
        .shell(host, &format!("{first} | {{ read _; {second}; }}"))
        .output()
        .unwrap();
    let (out, told) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(out, "125\n", "{told}");
    assert!(told.contains("another farpage run --cluster"), "{told}");
}

#[test]
fn what_cannot_be_run_in_a_cluster_is_said() {
    if !farpage_sys::uffd::serves_system_calls() {
        return println!("skipped: this user's userfaultfd does not serve system calls");
    }
    let farpage = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
        let output = command
            .arg("run")
            .args(args)
            .args(["--", "true"])
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let cluster = ["--cluster", "etcd://127.0.0.1:1/x"];
    let with = |more: &[&str]| farpage(&[&cluster, more].concat());
    assert!(with(&[]).contains("--cluster-key"));
    assert!(with(&["--cluster-key", "/nowhere"]).contains("/nowhere"));
    assert!(with(&["--cluster-key", "/nowhere", "--replicas", "3"]).contains("--replicas"));
    assert!(farpage(&["--replicas", "2"]).contains("--cluster"));
    assert!(farpage(&["--page-size", "64K"]).contains("--cluster"));
    let odd = with(&["--cluster-key", "/nowhere", "--page-size", "3K"]);
    assert!(odd.contains("give a power of two from 4K to 2M"), "{odd}");
    // A key in the environment is for those who join.
    let mut plain = Command::new(env!("CARGO_BIN_EXE_farpage"));
    plain.env("FARPAGE_CLUSTER_KEY", "/nowhere");
    assert!(
        plain
            .args(["run", "--", "true"])
            .output()
            .unwrap()
            .status
            .success()
    );
    let mapped = ["--cluster-key", "/nowhere", "--map", "x=/etc/passwd"];
    assert!(with(&mapped).contains("--cluster and --map"));
}
