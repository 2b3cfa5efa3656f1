//! A memory cgroup at its limit, a full budget, several threads: page-out must not need what it is
//! there to give.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 88 * MIB;

/// A memory cgroup, removed when dropped.
struct Cgroup {
    dir: PathBuf,
    most: &'static str,
}

impl Cgroup {
    /// `None` where this user may not make one.
    fn new() -> Option<Self> {
        let name = format!("farpage-pressure-{}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (mount, limit, most) = if v1.is_dir() {
            (v1, "memory.limit_in_bytes", "memory.max_usage_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max", "memory.peak")
        };
        let dir = mount.join(name);
        fs::create_dir(&dir).ok()?;
        let cgroup = Self { dir, most };
        fs::write(cgroup.dir.join(limit), LIMIT.to_string()).ok()?;
        Some(cgroup)
    }

    fn most_bytes(&self) -> u64 {
        let text = fs::read_to_string(self.dir.join(self.most)).expect("a counter");
        text.trim().parse().expect("a number")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Linux lets go of a process some time after it has ended.
        for _ in 0..50 {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn a_program_finishes_where_no_memory_is_left() {
    let Some(cgroup) = Cgroup::new() else {
        println!("skipped: this user may not make a memory cgroup");
        return;
    };
    let dir = std::env::temp_dir().join(format!("farpage-pressure-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a directory");
    let (program, cache) = (dir.join("full"), dir.join("cache"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/full.c");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-pthread"]).arg(source);
    assert!(
        cc.arg("-o")
            .arg(&program)
            .status()
            .expect("cc is there")
            .success()
    );
    let line = format!(
        "echo $$ > {}/cgroup.procs && dd if=/dev/zero of={} bs=1M count=128 conv=fsync 2>/dev/null && \
         exec {} run --quiet --ram 64M --spill {} -- {} {}",
        cgroup.dir.display(),
        cache.display(),
        env!("CARGO_BIN_EXE_farpage"),
        dir.display(),
        program.display(),
        cache.display(),
    );
    // Written in the cgroup, the file's cache counts there.
    let output = Command::new("sh")
        .args(["-c", &line])
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let most = cgroup.most_bytes();
    assert!(most > LIMIT - MIB, "only {most} bytes were used");
    fs::remove_dir_all(&dir).expect("removed");
}
