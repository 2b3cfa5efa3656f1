//! The parallel programs of `examples/c/parallel` on two hosts: they come to what one process comes to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::across::{nothing_is_left, said, start};
use super::support::Net;

use crate::support::compile;

/// In pages of which size. Small enough for a test; what comes out does not depend on the parts.
const PROGRAMS: [(&str, &[&str], &str); 5] = [
    ("matmul", &["--size", "129"], "4K"),
    ("matmul", &["--size", "129"], "64K"),
    ("paths", &["--side", "40", "--batch", "16"], "4K"),
    ("particles", &["--particles", "4000", "--steps", "3"], "4K"),
    ("router", &["--wires", "200", "--columns", "256"], "4K"),
];

fn compiled(net: &Net, program: &str) -> PathBuf {
    let to = net.folder.path().join(program);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/c/parallel");
    let flags = ["-O2", "-Wextra"];
    compile(&format!("{folder}/{program}.c"), &to, &flags);
    to
}

/// The value of `name=` in a line of a part.
fn value<'a>(line: &'a str, name: &str) -> &'a str {
    let words = line.split_whitespace();
    words
        .filter_map(|word| word.split_once('='))
        .find_map(|(of, value)| (of == name).then_some(value))
        .unwrap_or_else(|| panic!("no {name} in: {line}"))
}

/// The statistics of a run have what it says of the cluster, and more.
fn is_counted(stats: &Path, unit: &str, told: &str) {
    let stats: serde_json::Value = serde_json::from_slice(&fs::read(stats).unwrap()).unwrap();
    let of = |name: &str| stats["cluster"][name].as_u64().unwrap();
    let (reads, writes) = (of("read_misses"), of("write_misses") + of("upgrades"));
    let waited = format!("waited for other hosts {reads} times to read, {writes} to write");
    assert!(told.contains(&waited), "{stats}: {told}");
    assert!(reads + writes > 0 && of("objects") == 1, "{stats}");
    assert!(of("messages_sent") >= reads + writes, "{stats}");
    let unit_bytes = if unit == "4K" { 4096 } else { 65536 };
    let sent = of("sent_bytes");
    assert!(sent > 0 && sent % unit_bytes == 0, "{stats}");
    assert!(stats["supervisor_cpu_s"].as_f64().unwrap() > 0.0, "{stats}");
}

fn line(output: std::process::Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn parallel_programs_of_two_hosts_come_to_what_one_process_does() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let hosts = [net.bare_host(), net.bare_host()];
    for (program, sizes, unit) in PROGRAMS {
        let program = compiled(&net, program);
        let mut bare = Command::new(&program);
        let name = format!("/farpage-parallel-{}", std::process::id());
        let bare = line(bare.args(sizes).args(["--name", &name]).output().unwrap());
        let stats = |host: u8| net.folder.path().join(format!("stats{host}"));
        let runs = hosts.map(|host| {
            let part = host.to_string();
            let program = program.to_str().unwrap();
            let words = [&[program, "--of", "2", "--part", &part], sizes].concat();
            let stats = stats(host);
            let more = ["--page-size", unit, "--stats", stats.to_str().unwrap()];
            start(net.run(host, &more, &words))
        });
        for (run, host) in runs.into_iter().zip(hosts) {
            let (out, told) = said(run);
            assert_eq!(value(&out, "part"), host.to_string());
            assert_eq!(value(&out, "check"), "right", "{out}{told}");
            assert_eq!(value(&out, "result"), value(&bare, "result"), "{out}{told}");
            is_counted(&stats(host), unit, &told);
        }
        nothing_is_left(&net);
    }
}

#[test]
fn parallel_programs_refuse_what_they_cannot_do() {
    let Some(net) = Net::new() else {
        return;
    };
    let program = compiled(&net, "matmul");
    for (words, why) in [
        (&["--size", "0"][..], "--size is 0: give a number from 1"),
        (&["--size", "4x"], "--size is 4x"),
        (&["--part", "2", "--of", "2"], "--part is 2"),
        (&["--sise", "4"], "an option is unknown"),
        (&["--size"], "without a number"),
        (
            &["--name", "/no/such"],
            "cannot make shared memory /no/such",
        ),
    ] {
        let output = Command::new(&program).args(words).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains(why), "{words:?}: {said}");
    }
}
