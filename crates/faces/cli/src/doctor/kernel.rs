//! What the kernel offers this user: userfaultfd, its features, and the other calls that
//! `farpage run` makes. Everything is tried, not looked up by version.

use std::fs;
use std::process::{Command, Stdio};

use farpage_object::Tier;
use farpage_sys::uffd::features as bits;
use farpage_sys::userfaultfd::{DeviceFile, Userfaultfd};
use farpage_sys::{Errno, probe};

use super::{Check, State};

const USERFAULTFD: &str = "userfaultfd";
const KERNEL: &str = "kernel";

/// Who asks, from where.
pub(super) struct Caller {
    /// Name of the group, or its number, for `chgrp`.
    pub(super) group: String,
    /// Inside a container, where the device must come from outside.
    pub(super) container: bool,
}

impl Caller {
    pub(super) fn read() -> Self {
        let container = ["/.dockerenv", "/run/.containerenv"]
            .iter()
            .any(|file| fs::exists(file).unwrap_or(false));
        Self {
            group: group_name(rustix::process::getgid().as_raw()),
            container,
        }
    }
}

/// As `/etc/group` has it; the number where it has none.
fn group_name(id: u32) -> String {
    let groups = fs::read_to_string("/etc/group").unwrap_or_default();
    let named = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == id.to_string()).then(|| name.to_string())
    });
    named.unwrap_or_else(|| id.to_string())
}

/// How userfaultfd can be had.
pub(super) fn userfaultfd(found: &Userfaultfd, caller: &Caller) -> Vec<Check> {
    let check = |state, text: &str| Check::new(USERFAULTFD, "tier", state, text);
    let tier = match found.tier {
        Tier::Device => check(
            State::Ok,
            "device: /dev/userfaultfd opens, everything works",
        ),
        Tier::Syscall => check(
            State::Ok,
            "syscall: this user is privileged, everything works",
        ),
        Tier::UserModeOnly => better_tier(
            check(
                State::Warn,
                "user-mode-only: system calls that touch paged-out memory take a detour, \
                 programs that use io_uring on it are refused, and run --shm does not work",
            ),
            found.device,
            caller,
        ),
        Tier::None => {
            let why = match found.error {
                Some(Errno::ENOSYS) => "the kernel was built without it, or a sandbox hides it",
                _ => "a sandbox forbids it (container run-times do by default)",
            };
            let text = format!("none: {why}, and nothing can be paged without it");
            let none = check(State::Fail, &text);
            if found.device == DeviceFile::Denied {
                better_tier(none, found.device, caller)
            } else {
                none.improve(
                    "docker run --device /dev/userfaultfd --security-opt seccomp=unconfined ...",
                )
            }
        }
    };
    vec![tier]
}

/// Adds the lines that give this user a better tier.
fn better_tier(check: Check, device: DeviceFile, caller: &Caller) -> Check {
    let group = &caller.group;
    match device {
        DeviceFile::Missing if caller.container => check
            .improve("docker run --device /dev/userfaultfd ...    # when starting the container"),
        DeviceFile::Missing => check.improve("sudo sysctl vm.unprivileged_userfaultfd=1"),
        DeviceFile::Denied | DeviceFile::Usable | DeviceFile::Broken => check
            .improve(format!(
                "sudo chgrp {group} /dev/userfaultfd && sudo chmod 660 /dev/userfaultfd"
            ))
            .improve(format!(
                "echo 'KERNEL==\"userfaultfd\", GROUP=\"{group}\", MODE=\"0660\"' | \
                 sudo tee /etc/udev/rules.d/70-userfaultfd.rules    # at every start"
            )),
    }
}

/// What userfaultfd can do here.
pub(super) fn features(found: &Userfaultfd) -> Vec<Check> {
    if found.tier == Tier::None {
        return Vec::new();
    }
    let has = |bit: u64| found.features & bit != 0;
    let feature = |name: &str, bit, without, missing: &str| {
        let (state, text) = if has(bit) {
            (State::Ok, "yes")
        } else {
            (without, missing)
        };
        Check::new(USERFAULTFD, name, state, text)
    };
    vec![
        feature(
            "write protection",
            bits::FAULT_FLAG_WP,
            State::Fail,
            "no: pages can't leave safely while threads write; run Linux 5.7 or newer on x86-64",
        ),
        feature(
            "moving pages",
            bits::MOVE,
            State::Warn,
            "no: pages are copied instead, which is slower; Linux 6.8 or newer moves them",
        ),
        feature(
            "poisoned pages",
            bits::POISON,
            State::Warn,
            "no: a page that is lost ends the whole program; Linux 6.6 or newer has them",
        ),
        feature(
            "thread ids",
            bits::THREAD_ID,
            State::Warn,
            "no: faults are answered on another processor, which is slower; Linux 4.14 has them",
        ),
        feature(
            "async protection",
            bits::WP_ASYNC,
            State::Info,
            "no: Linux 6.7 or newer has it; farpage run does without",
        ),
    ]
}

/// Other calls.
pub(super) fn calls() -> Vec<Check> {
    let scope = number("/proc/sys/kernel/yama/ptrace_scope");
    let mut checks = vec![
        seccomp(probe::seccomp_trap(), sandboxed()),
        pagemap_scan(probe::pagemap_scan()),
        io_uring(
            probe::io_uring(),
            number("/proc/sys/kernel/io_uring_disabled"),
        ),
    ];
    checks.extend(try_ptrace().map(|result| ptrace(result, scope)));
    checks
}

fn seccomp(result: Result<(), Errno>, sandboxed: bool) -> Check {
    let check = |state, text: &str| Check::new(KERNEL, "seccomp filters", state, text);
    match result {
        Ok(()) if sandboxed => check(
            State::Info,
            "yes; this process is in a sandbox already, whose rules go before Farpage's",
        ),
        Ok(()) => check(State::Ok, "yes"),
        Err(errno) => check(
            State::Fail,
            &format!(
                "no ({}): memory calls of the program can't be seen; run a kernel with \
                 CONFIG_SECCOMP_FILTER, outside of sandboxes that forbid seccomp(2)",
                errno.name()
            ),
        ),
    }
}

fn pagemap_scan(result: Result<(), Errno>) -> Check {
    let check = |state, text: &str| Check::new(KERNEL, "pagemap scan", state, text);
    match result {
        Ok(()) => check(State::Ok, "yes"),
        Err(errno) if probe::is_missing(errno) => check(
            State::Warn,
            "no: page tables are read entry by entry, which is slower; Linux 6.7 scans them",
        ),
        Err(errno) => check(
            State::Fail,
            &format!(
                "/proc/self/pagemap can't be used ({}): what is in memory can't be seen; \
                 mount /proc without hidepid, outside of sandboxes",
                errno.name()
            ),
        ),
    }
}

fn io_uring(result: Result<(), Errno>, disabled: Option<u64>) -> Check {
    let check = |state, text: &str| Check::new(KERNEL, "io_uring", state, text);
    match result {
        Ok(()) => check(
            State::Ok,
            "yes: paging files are read and written several transfers at a time",
        ),
        Err(errno) => {
            let text = format!(
                "no ({}): paging files are read and written one transfer after another",
                errno.name()
            );
            let found = check(State::Info, &text);
            if disabled.is_some_and(|level| level > 0) {
                found.improve("sudo sysctl kernel.io_uring_disabled=0")
            } else {
                found
            }
        }
    }
}

fn ptrace(result: Result<(), Errno>, yama_scope: Option<u64>) -> Check {
    let check = |state, text: &str| Check::new(KERNEL, "ptrace", state, text);
    let unmanaged = "static programs (Go, for one) cannot be executed under farpage";
    match (result, yama_scope) {
        (Ok(()), _) => check(State::Ok, "permitted, so static programs are managed too"),
        (Err(_), Some(3)) => check(
            State::Warn,
            &format!("forbidden until the next start (ptrace_scope is 3): {unmanaged}"),
        )
        .improve("sudo sysctl kernel.yama.ptrace_scope=1    # after the next start"),
        (Err(_), Some(scope)) if scope > 0 => {
            check(State::Warn, &format!("forbidden: {unmanaged}"))
                .improve("sudo sysctl kernel.yama.ptrace_scope=1")
        }
        (Err(errno), _) => check(
            State::Warn,
            &format!("forbidden ({}), by a sandbox: {unmanaged}", errno.name()),
        )
        .improve("docker run --cap-add SYS_PTRACE ...    # in containers"),
    }
}

/// Traces a child of our own. `None` when there can be no child.
fn try_ptrace() -> Option<Result<(), Errno>> {
    let mut child = Command::new("/proc/self/exe")
        .arg("wait")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let result = probe::seize(child.id());
    let _ = child.kill();
    let _ = child.wait();
    Some(result)
}

/// True when a seccomp filter is at work on this process.
fn sandboxed() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mode = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == "2")
}

/// The number in a file.
pub(super) fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Caller {
        Caller {
            group: "users".to_string(),
            container: false,
        }
    }

    fn found(tier: Tier, device: DeviceFile, features: u64) -> Userfaultfd {
        Userfaultfd {
            tier,
            features,
            device,
            error: (tier == Tier::None).then_some(Errno::EPERM),
        }
    }

    fn state(checks: &[Check], name: &str) -> State {
        let found = checks.iter().find(|check| check.name == name);
        found.expect("the check is there").state
    }

    #[test]
    fn a_lesser_tier_names_the_line_that_gives_a_better_one() {
        let best = userfaultfd(&found(Tier::Device, DeviceFile::Usable, 0), &here());
        assert_eq!(best[0].state, State::Ok);
        let denied = userfaultfd(&found(Tier::UserModeOnly, DeviceFile::Denied, 0), &here());
        assert_eq!(denied[0].state, State::Warn);
        assert!(denied[0].improve[0].starts_with("sudo chgrp users /dev/userfaultfd"));
        let old = userfaultfd(&found(Tier::UserModeOnly, DeviceFile::Missing, 0), &here());
        assert_eq!(
            old[0].improve,
            ["sudo sysctl vm.unprivileged_userfaultfd=1"]
        );
        let none = userfaultfd(&found(Tier::None, DeviceFile::Missing, 0), &here());
        assert_eq!(none[0].state, State::Fail);
        assert!(features(&found(Tier::None, DeviceFile::Missing, 0)).is_empty());
    }

    #[test]
    fn features_are_asked_for_and_not_assumed() {
        let old = features(&found(Tier::Syscall, DeviceFile::Missing, 0));
        assert_eq!(state(&old, "write protection"), State::Fail);
        assert_eq!(state(&old, "moving pages"), State::Warn);
        assert_eq!(state(&old, "async protection"), State::Info);
        let new = features(&found(Tier::Syscall, DeviceFile::Missing, u64::MAX));
        assert!(new.iter().all(|check| check.state == State::Ok));
    }

    #[test]
    fn calls_that_are_refused_say_what_that_costs() {
        assert_eq!(seccomp(Ok(()), false).state, State::Ok);
        assert_eq!(seccomp(Err(Errno::ENOSYS), false).state, State::Fail);
        assert_eq!(pagemap_scan(Err(Errno::ENOTTY)).state, State::Warn);
        assert_eq!(pagemap_scan(Err(Errno::EACCES)).state, State::Fail);
        assert_eq!(io_uring(Ok(()), Some(2)).state, State::Ok);
        let refused = io_uring(Err(Errno::EPERM), Some(2));
        assert_eq!(refused.state, State::Info);
        assert_eq!(refused.improve.len(), 1);
        assert!(io_uring(Err(Errno::ENOSYS), None).improve.is_empty());
        let yama = ptrace(Err(Errno::EPERM), Some(2));
        assert_eq!(yama.improve, ["sudo sysctl kernel.yama.ptrace_scope=1"]);
        assert_eq!(ptrace(Ok(()), Some(1)).state, State::Ok);
    }
}
