//! `farpage run --cluster`: one run after another, and who is let in.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::across::{compiled, nothing_is_left, said, start};
use super::support::Net;

#[test]
fn the_next_run_of_a_machine_takes_the_place_of_one_that_was_killed_at_once() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let program = compiled(&net, "across");
    let host = net.bare_host();
    let names = "import signal
from multiprocessing import shared_memory
shared_memory.SharedMemory(name='stale', create=True, size=4096)
print('made', flush=True)
signal.pause()";
    let mut first = start(net.run(host, &[], &["python3", "-c", names]));
    let mut output = BufReader::new(first.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "made\n");
    net.until_on_their_own(1);
    first.kill().unwrap();
    first.wait().unwrap();
    // It may go on without etcd, for all that others know.
    let words = [program.as_str(), "makes", "0", "1", "10"];
    let (out, told) = said(start(net.run(host, &[], &words)));
    assert_eq!(out, "made\n");
    assert!(!told.contains("goes on without"), "{told}");
    nothing_is_left(&net);
}

#[test]
fn who_has_another_key_is_told_so_and_not_let_in() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let hosts = [net.bare_host(), net.bare_host()];
    let mut there = net.run(hosts[0], &[], &["cat"]);
    there.stdin(Stdio::piped());
    let there = start(there);
    net.until_members(1);
    let other = net.folder.path().join("other");
    let mut init = Command::new(env!("CARGO_BIN_EXE_farpage"));
    init.args(["cluster", "init"]).arg(&other);
    assert!(init.output().unwrap().status.success());
    let joins = format!(
        "{} run --cluster etcd://10.79.0.1:2379/test --cluster-key {} -- true",
        env!("CARGO_BIN_EXE_farpage"),
        other.display()
    );
    let refused = net.shell(hosts[1], &joins).output().unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(125), "{told}");
    assert!(told.contains("copy the key that they have"), "{told}");
    drop(there);
}

#[test]
fn that_etcd_cannot_be_reached_is_said_once_and_plainly() {
    if !farpage_sys::uffd::serves_system_calls() {
        return println!("skipped: this user's userfaultfd does not serve system calls");
    }
    let folder = tempfile::tempdir().unwrap();
    let farpage = || Command::new(env!("CARGO_BIN_EXE_farpage"));
    let key = folder.path().join("key");
    let mut init = farpage();
    assert!(
        init.args(["cluster", "init"])
            .arg(&key)
            .output()
            .unwrap()
            .status
            .success()
    );
    let mut run = farpage();
    run.args(["run", "--cluster", "etcd://127.0.0.1:1/x", "--cluster-key"]);
    let output = run.arg(&key).args(["--", "true"]).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    let expected = "(127.0.0.1:1: Connection refused); see that etcd runs there and can be reached, \
                    and try again\n";
    assert!(
        told.starts_with("farpage: cannot join the cluster: etcd://127.0.0.1:1/x did"),
        "{told}"
    );
    assert!(
        told.ends_with(expected) && told.matches("refused").count() == 1,
        "{told}"
    );
}
