//! `farpage run --memory`: what programs see as the memory of the machine.

use std::fs;
use std::process::Command;

use rustix::process::geteuid;

use crate::programs::{build_dir, compile, users};

const TOLD: u64 = 3 << 30;

/// Cgroups of this process whose limit can be seen, as the program counts them.
fn cgroups() -> usize {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let is_seen = |line: &&str| {
        let of = |name| format!("{}/{}", name, line.rsplit(':').next().unwrap());
        let (folder, file) = match line.split(':').nth(1) {
            Some("memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            Some("") => ("/sys/fs/cgroup", "memory.max"),
            _ => return false,
        };
        let own = format!("{}/{file}", of(folder));
        fs::exists(own).unwrap() || fs::exists(format!("{folder}/{file}")).unwrap()
    };
    own.lines().filter(is_seen).count()
}

#[test]
fn programs_see_the_memory_that_they_are_told_of_in_every_way() {
    let file = build_dir().join("machine-mapped");
    fs::write(&file, [7; 8192]).unwrap();
    let map = format!("--map=/nowhere/at/all={}", file.display());
    let farpage = build_dir().join("farpage").display().to_string();
    let told = format!("--memory={TOLD}");
    let bytes = TOLD.to_string();
    let programs = [
        compile("machine.c", "machine", &[]),
        compile("machine.c", "machine-static", &["-static"]),
    ];
    for (number, user) in users().iter().enumerate() {
        for program in &programs {
            for more in [None, Some("--shm"), Some(&*map)] {
                // An ordinary user gets a userfaultfd with which that is refused.
                if more == Some("--shm") && (number > 0 || !geteuid().is_root()) {
                    continue;
                }
                let run = [
                    &*farpage, "run", "--quiet", "--ram", "48M", "--spill", "/tmp", &*told,
                ];
                let ends = ["--", &**program, &*bytes];
                let line: Vec<&str> = [*user, &run, more.as_slice(), &ends].concat();
                let ran = Command::new(line[0]).args(&line[1..]).output().unwrap();
                let said = format!("{line:?}: {ran:?}");
                assert!(ran.status.success(), "{said}");
                assert!(ran.stderr.is_empty(), "{said}");
                let seen = String::from_utf8_lossy(&ran.stdout).into_owned();
                assert_eq!(seen, format!("{} cgroups\n", cgroups()), "{said}");
            }
        }
    }
}

#[test]
fn without_the_option_programs_see_what_there_is() {
    let ask = ["grep", "MemTotal", "/proc/meminfo"];
    let bare = Command::new(ask[0]).args(&ask[1..]).output().unwrap();
    let mut run = Command::new(build_dir().join("farpage"));
    run.args(["run", "--quiet", "--ram", "48M", "--"]).args(ask);
    assert_eq!(run.output().unwrap().stdout, bare.stdout);
}
