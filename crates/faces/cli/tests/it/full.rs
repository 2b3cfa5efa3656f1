//! Paging space that is full: who needs room waits, the others go on, and nothing is lost.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use farpage_sys::time::now_ns;
use farpage_testkit::{Started, until};

use crate::support;

/// A program of the tests.
fn compiled(source: &str) -> PathBuf {
    let to = support::folder_of_this_process().join(source.trim_end_matches(".c"));
    support::compile(source, &to, &[]);
    to
}

/// One that needs 100 MiB.
fn room() -> &'static Path {
    static ROOM: OnceLock<PathBuf> = OnceLock::new();
    ROOM.get_or_init(|| compiled("room.c"))
}

/// A run of it with room for half.
struct Run {
    run: Started,
    folder: tempfile::TempDir,
}

impl Run {
    fn start(more: &[&str]) -> Self {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let spill = folder.path().to_owned();
        Self::start_in(folder, &spill, &[&["--spill-limit", "16M"], more].concat())
    }

    fn start_in(folder: tempfile::TempDir, spill: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
        command.args(["run", "--ram", "32M", "--compressed", "0"]);
        command.arg("--spill").arg(spill).args(more);
        command.arg("--stats").arg(folder.path().join("stats"));
        command.arg("--").arg(room()).arg("100");
        let said = std::fs::File::create(folder.path().join("said")).unwrap();
        command.stdout(Stdio::piped()).stderr(said);
        Self {
            run: Started::new(&mut command),
            folder,
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("said")).unwrap()
    }

    /// Waits until the program waits, and looks that its other thread goes on.
    fn waits(&mut self) {
        until("it waits", || self.said().contains("paging space is full"));
        let mut out = BufReader::new(self.run.stdout.as_mut().unwrap());
        let (waits_ms, mut on_ms) = (now_ns() / 1_000_000, 0);
        let mut line = String::new();
        while on_ms < waits_ms + 100 {
            line.clear();
            out.read_line(&mut line).unwrap();
            on_ms = line.trim().parse().unwrap();
        }
    }

    fn spill(&self, what: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
        command.arg("spill").args(what);
        command.arg("--pid").arg(self.run.id().to_string());
        command.output().unwrap()
    }

    /// It ends with the right result.
    fn finishes(self) -> serde_json::Value {
        let got = self.run.output();
        let said = std::fs::read_to_string(self.folder.path().join("said")).unwrap();
        assert!(got.status.success(), "{said}");
        assert!(got.stdout.ends_with(b"right\n"), "{said}");
        let stats = std::fs::read(self.folder.path().join("stats")).unwrap();
        let stats: serde_json::Value = serde_json::from_slice(&stats).unwrap();
        // Each time it is said once.
        let times = said.matches("paging space is full").count();
        assert!(times > 0 && stats["full_times"] == times, "{said}{stats}");
        stats
    }
}

#[test]
fn who_needs_room_goes_on_when_there_is_another_paging_file() {
    let mut run = Run::start(&["--when-full", "wait"]);
    run.waits();
    let more = run.folder.path().join("more");
    std::fs::create_dir(&more).unwrap();
    let added = run.spill(&["add", more.to_str().unwrap()]);
    assert!(added.status.success(), "{added:?}");
    let stats = run.finishes();
    assert!(stats["full_s"].as_f64().unwrap() > 0.1, "{stats}");
}

#[test]
fn or_when_a_paging_file_may_be_larger() {
    let mut run = Run::start(&[]);
    run.waits();
    assert!(
        run.said().contains("after 1 h 00 min a process is killed"),
        "{}",
        run.said()
    );
    let folder = run.folder.path().canonicalize().unwrap();
    let folder = folder.to_str().unwrap();
    let refused = run.spill(&["add", folder]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("--limit"),
        "{said}"
    );
    let raised = run.spill(&["add", folder, "--limit", "200M"]);
    assert!(raised.status.success(), "{raised:?}");
    run.finishes();
}

#[test]
fn or_when_the_disk_has_room_again() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root may mount a disk that is full");
    }
    let disk = Mounted::new();
    let ballast = disk.0.path().join("ballast");
    std::fs::write(&ballast, vec![7; 180 << 20]).unwrap();
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut run = Run::start_in(folder, disk.0.path(), &[]);
    run.waits();
    std::fs::remove_file(&ballast).unwrap();
    run.finishes();
}

/// A file system of 200 MiB, as long as it lives.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new() -> Self {
        let at = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=200M", "farpage-test"]);
        assert!(mount.arg(at.path()).status().unwrap().success());
        Self(at)
    }

    /// One that lies in `file`.
    fn disk(file: &Path) -> Self {
        let disk = std::fs::File::create(file).unwrap();
        disk.set_len(200 << 20).unwrap();
        let mut make = Command::new("/usr/sbin/mkfs.ext4");
        assert!(make.arg("-q").arg(file).status().unwrap().success());
        let at = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).arg(file).arg(at.path());
        assert!(mount.status().unwrap().success());
        Self(at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A run that a failing test has left may have its paging file open yet.
        let mut umount = Command::new("umount");
        let _ = umount.arg("--lazy").arg(self.0.path()).status();
    }
}

/// A disk that fails once the run has begun. Nothing was written there before.
struct Failing {
    disk: Mounted,
    run: Run,
}

impl Failing {
    /// `limit`: an option of `ulimit` for the program.
    fn start(when: &str, limit: &str) -> Self {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let disk = Mounted::disk(&folder.path().join("disk"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
        command.args(["run", "--ram", "32M", "--compressed", "0"]);
        command.args(["--when-full", when]);
        command.arg("--spill").arg(disk.0.path());
        command.arg("--stats").arg(folder.path().join("stats"));
        let script = format!("ulimit {limit}; echo 0; read go; exec \"$0\" 100");
        command.args(["--", "sh", "-c", &script]);
        command.arg(room()).stdin(Stdio::piped());
        let said = std::fs::File::create(folder.path().join("said")).unwrap();
        let mut run = Started::new(command.stdout(Stdio::piped()).stderr(said));
        let mut begun = [0; 2];
        let out = run.stdout.as_mut().unwrap();
        out.read_exact(&mut begun).unwrap();
        let mut fail = Command::new("/usr/sbin/xfs_io");
        fail.args(["-x", "-c", "shutdown -f"]).arg(disk.0.path());
        let failed = fail.output().unwrap();
        assert!(failed.status.success(), "{failed:?}");
        run.stdin.take().unwrap().write_all(b"go\n").unwrap();
        Self {
            disk,
            run: Run { run, folder },
        }
    }
}

#[test]
fn or_when_there_is_another_disk_than_the_one_that_fails() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root may have a disk fail");
    }
    let Failing { disk, mut run } = Failing::start("wait", "-f unlimited");
    run.waits();
    let said = run.said();
    let fails = "writing fails: Input/output error (os error 5)";
    assert!(said.contains(fails), "{said}");
    let listed = String::from_utf8(run.spill(&["ls"]).stdout).unwrap();
    assert!(listed.contains(&format!("active, {fails}")), "{listed}");
    let more = run.folder.path().join("more");
    std::fs::create_dir(&more).unwrap();
    let added = run.spill(&["add", more.to_str().unwrap()]);
    assert!(added.status.success(), "{added:?}");
    run.finishes();
    drop(disk);
}

#[test]
fn who_does_not_wait_is_told_of_the_disk_that_fails() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root may have a disk fail");
    }
    // With a limit on its files a program's pages are written in another way.
    for limit in ["-f unlimited", "-f 100"] {
        let Failing { disk, run } = Failing::start("kill", limit);
        let said = run.folder.path().join("said");
        let got = run.run.output();
        let said = std::fs::read_to_string(said).unwrap();
        assert_eq!(got.status.code(), Some(122), "{limit}: {said}");
        let why = "cannot page out: writing failed with system error 5";
        assert!(
            said.contains(why) && said.contains("--spill DIR"),
            "{limit}: {said}"
        );
        drop(disk);
    }
}

#[test]
fn who_waits_for_too_long_is_killed_with_a_status_of_its_own() {
    for (when, why) in [
        (
            "wait=1s",
            "cannot page out, and has waited for 1 s: no room is left for pages",
        ),
        ("kill", "cannot page out: no room is left for pages"),
    ] {
        let run = Run::start(&["--when-full", when]);
        let (said, got) = (run.folder.path().join("said"), run.run.output());
        let said = std::fs::read_to_string(said).unwrap();
        assert_eq!(got.status.code(), Some(122), "{said}");
        assert!(
            said.contains(why) && said.contains("--spill-limit"),
            "{said}"
        );
    }
}

#[test]
fn who_waits_can_be_interrupted() {
    let mut run = Run::start(&["--when-full", "wait"]);
    run.waits();
    let run_id = run.run.id().to_string();
    let kill = Command::new("kill").args(["-TERM", &run_id]).status();
    assert!(kill.unwrap().success());
    assert_eq!(run.run.wait().unwrap().signal(), Some(15), "{}", run.said());
}

#[test]
fn so_it_is_with_shared_memory() {
    if !farpage_sys::uffd::serves_system_calls() {
        return println!("skipped: this user's userfaultfd does not serve system calls");
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let program = compiled("shm.c");
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
    command.args([
        "run",
        "--shm",
        "--ram",
        "32M",
        "--compressed",
        "0",
        "--spill-limit",
        "16M",
    ]);
    command
        .arg("--spill")
        .arg(folder.path())
        .arg("--")
        .arg(program)
        .args(["large", "100"]);
    let said = std::fs::File::create(folder.path().join("said")).unwrap();
    let run = Run {
        run: Started::new(command.stdout(Stdio::piped()).stderr(said)),
        folder,
    };
    until("it waits", || run.said().contains("paging space is full"));
    let more = run.folder.path().join("more");
    std::fs::create_dir(&more).unwrap();
    assert!(run.spill(&["add", more.to_str().unwrap()]).status.success());
    let (folder, got) = (run.folder, run.run.output());
    let said = std::fs::read_to_string(folder.path().join("said")).unwrap();
    assert!(got.status.success(), "{said}");
    assert!(said.contains("wait for room"), "{said}");
    assert!(said.contains("there is room again"), "{said}");
}
