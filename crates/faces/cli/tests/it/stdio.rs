//! `farpage run --stdio`: programs that know nothing of it, with the library of streams.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// What each program does, in a folder with `lines`, `table.csv` and `code.c`.
const PROGRAMS: [(&str, &str); 7] = [
    ("wc", "wc lines"),
    ("sort", "LC_ALL=C sort -S 4M -k2 lines"),
    (
        "gawk",
        "gawk '{ sum += NF; last = $0 } END { print sum, last }' lines",
    ),
    ("the preprocessor", "gcc -E -P code.c"),
    (
        "sqlite3",
        "sqlite3 :memory: '.mode csv' '.import table.csv t' 'select count(*), sum(b), max(c) from t'",
    ),
    (
        "Python's csv",
        "python3 -c 'import csv, zlib; print(zlib.crc32(repr(list(csv.reader(open(\"table.csv\")))).encode()))'",
    ),
    (
        "children",
        "sh -c 'grep -c 7 lines; tail -n 3 lines | sed s/1/x/'",
    ),
];

fn files(folder: &Path) {
    let (mut lines, mut table, mut code) = (String::new(), String::from("a,b,c\n"), String::new());
    let mut number = 12_345_u64;
    for line in 0..60_000 {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let random = number >> 40;
        writeln!(lines, "{line} {random} and {:x}", random * 7).unwrap();
        writeln!(table, "{line},{random},\"text, {random}\"").unwrap();
        if line % 10 == 0 {
            writeln!(code, "#define N{line} {random}\nint n{line} = N{line};").unwrap();
        }
    }
    fs::write(folder.join("lines"), lines).unwrap();
    fs::write(folder.join("table.csv"), table).unwrap();
    fs::write(folder.join("code.c"), code).unwrap();
}

fn sh(folder: &Path, before: &[&str], script: &str) -> Output {
    let mut command = Command::new("timeout");
    command.arg("1500").args(before).args(["sh", "-c", script]);
    command.current_dir(folder).output().unwrap()
}

#[test]
fn programs_print_the_same_with_the_library_of_streams() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path());
    let farpage = [
        env!("CARGO_BIN_EXE_farpage"),
        "run",
        "--quiet",
        "--ram",
        "64M",
    ];
    let with = [&farpage[..], &["--stdio", "--"]].concat();
    for (name, script) in PROGRAMS {
        let bare = sh(folder.path(), &[], script);
        let ours = sh(folder.path(), &with, script);
        let said = String::from_utf8_lossy(&ours.stderr);
        assert!(bare.status.success(), "{name}: {bare:?}");
        assert_eq!(ours.status, bare.status, "{name}: {said}");
        assert!(ours.stdout == bare.stdout, "{name} prints something else");
        assert_eq!(said, String::from_utf8_lossy(&bare.stderr), "{name}");
    }
    // The library is in there.
    let mapped = sh(folder.path(), &with, "cat /proc/self/maps");
    let mapped = String::from_utf8_lossy(&mapped.stdout).into_owned();
    assert!(mapped.contains("farpage-stdio"), "{mapped}");
}

#[test]
fn pages_of_a_program_that_has_both_libraries_leave_memory() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path());
    let script =
        "python3 -c 'lines = open(\"lines\").read().split() * 60; print(len(lines), lines[-1])'";
    let bare = sh(folder.path(), &[], script);
    let farpage = [
        env!("CARGO_BIN_EXE_farpage"),
        "run",
        "--ram",
        "64M",
        "--stdio",
        "--",
    ];
    let ours = sh(folder.path(), &farpage, script);
    assert_eq!(ours.stdout, bare.stdout);
    let said = String::from_utf8_lossy(&ours.stderr);
    assert!(said.contains("paged out"), "{said}");
}
