//! Programs for another machine, which an interpreter that is registered with Linux runs (`binfmt_misc`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support;

/// The machine of the program: Linux knows none of this number, so nobody's programs are meant by it. Others who run
/// this test have another entry address.
const MACHINE: u16 = 0xf0f0;

/// The head of a program for that machine.
fn foreign(to: &Path) {
    let mut head = vec![0; 128];
    head[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    head[16] = 2;
    head[18..20].copy_from_slice(&MACHINE.to_le_bytes());
    head[20] = 1;
    head[24..28].copy_from_slice(&std::process::id().to_le_bytes());
    fs::write(to, head).unwrap();
    let mut mode = Command::new("chmod");
    assert!(mode.arg("+x").arg(to).status().unwrap().success());
}

/// An interpreter of them, until this is dropped.
struct Registered {
    table: tempfile::TempDir,
    name: String,
}

impl Registered {
    fn new(interpreter: &Path) -> Self {
        let table = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "binfmt_misc", "farpage-test"]);
        assert!(mount.arg(table.path()).status().unwrap().success());
        let name = format!("farpage-test-{}", std::process::id());
        let mut head = MACHINE.to_le_bytes().to_vec();
        head.extend([1, 0, 0, 0]);
        head.extend(std::process::id().to_le_bytes());
        let magic: String = head.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        let line = format!(":{name}:M:18:{magic}::{}:", interpreter.display());
        fs::write(table.path().join("register"), line).unwrap();
        Self { table, name }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _ = fs::write(self.table.path().join(&self.name), "-1");
        let _ = Command::new("umount").arg(self.table.path()).status();
    }
}

fn run(words: &[&str]) -> Output {
    let mut run = Command::new(env!("CARGO_BIN_EXE_farpage"));
    run.args(["run", "--quiet", "--ram", "16M", "--"]);
    run.args(words).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn a_program_for_another_machine_is_managed_by_way_of_its_interpreter() {
    let folder = support::folder_of_this_process();
    let program = folder.join("foreign");
    foreign(&program);
    let path = program.to_str().unwrap();
    // A child, for which a shell waits, so that it executes it itself.
    let in_shell = ["sh", "-c", "\"$0\" 7; exit $?", path];
    let alone = run(&[path, "7"]);
    assert_eq!(alone.status.code(), Some(126), "{}", said(&alone));
    let in_vain = run(&in_shell);
    assert!(said(&in_vain).contains("Exec format error"), "{in_vain:?}");
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root may register an interpreter");
    }
    for flags in [&["-static"][..], &[]] {
        let interpreter: PathBuf = folder.join(format!("interpreter{}", flags.len()));
        support::compile("interpreter.c", &interpreter, flags);
        let registered = Registered::new(&interpreter);
        for words in [&[path, "7"][..], &in_shell] {
            let ran = run(words);
            assert_eq!(said(&ran), "/foreign 7\n", "{words:?} {flags:?}");
            assert!(ran.status.success());
        }
        drop(registered);
    }
}
