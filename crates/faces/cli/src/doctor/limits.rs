//! Limits on this process and settings of the machine that bound what `farpage run` can do.

use std::fs;

use farpage_default_pager::manager::paging::RAM_MIN_BYTES;
use farpage_sys::memory_limit::MemoryLimit;
use farpage_text::size::human;
use rustix::process::{Resource, Rlimit, getrlimit};

use super::kernel::number;
use super::{Check, State};

const LIMITS: &str = "limits";
/// Descriptors below which a program with Farpage's own would run short.
const FILES_MIN: u64 = 1024;
/// What Linux has as default; each granted chunk of memory may cost a mapping.
const MAPS_MIN: u64 = 65_530;

/// Every limit.
pub(super) fn all(limit: &MemoryLimit) -> Vec<Check> {
    let huge = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let overcommit = number("/proc/sys/vm/overcommit_memory");
    let maps = number("/proc/sys/vm/max_map_count");
    let files = getrlimit(Resource::Nofile);
    let mut checks = vec![
        memory(limit),
        open_files(files.current, files.maximum),
        address_space(getrlimit(Resource::As)),
    ];
    checks.extend(maps.map(mappings));
    checks.extend(overcommit.map(overcommitment));
    checks.push(huge_pages(&huge.unwrap_or_default()));
    checks
}

fn memory(limit: &MemoryLimit) -> Check {
    let default = limit.bytes() / 5 * 4;
    let (state, then) = if default < RAM_MIN_BYTES {
        (
            State::Fail,
            format!("less than the minimum, {}", human(RAM_MIN_BYTES)),
        )
    } else {
        (
            State::Ok,
            format!("--ram is {} without being given", human(default)),
        )
    };
    let bound = match &limit.cgroup {
        Some(cgroup) if cgroup.bytes <= limit.available => {
            format!("{} by {}", human(cgroup.bytes), cgroup.file.display())
        }
        _ => format!(
            "{} available of {}",
            human(limit.available),
            human(limit.total)
        ),
    };
    Check::new(LIMITS, "memory", state, format!("{bound}: {then}"))
}

fn open_files(current: Option<u64>, maximum: Option<u64>) -> Check {
    let check = |state, text: String| Check::new(LIMITS, "open files", state, text);
    match current {
        None => check(State::Ok, "no limit".to_string()),
        Some(files) if files >= FILES_MIN => check(State::Ok, files.to_string()),
        Some(files) => {
            let reachable = maximum.is_none_or(|most| most >= FILES_MIN);
            let line = if reachable {
                "ulimit -n 4096"
            } else {
                "sudo prlimit --nofile=4096:4096 --pid $$"
            };
            let text = format!("{files}: Farpage takes 32 of them from each process");
            check(State::Warn, text).improve(line)
        }
    }
}

fn address_space(limit: Rlimit) -> Check {
    let raise = match limit.maximum {
        None => "ulimit -v unlimited",
        Some(_) => "sudo prlimit --as=unlimited --pid $$",
    };
    let check = |state, text: String| Check::new(LIMITS, "address space", state, text);
    match limit.current {
        None => check(State::Ok, "no limit".to_string()),
        Some(bytes) => check(
            State::Warn,
            format!(
                "{}: managed memory takes twice its size of address space, and 1 GiB more",
                human(bytes)
            ),
        )
        .improve(raise),
    }
}

fn mappings(count: u64) -> Check {
    let check = |state, text: String| Check::new(LIMITS, "mappings", state, text);
    if count >= MAPS_MIN {
        return check(State::Ok, format!("{count} a process"));
    }
    let text = format!("{count} a process: large programs will run out of them");
    check(State::Warn, text).improve("sudo sysctl vm.max_map_count=262144")
}

fn overcommitment(mode: u64) -> Check {
    let check = |state, text: &str| Check::new(LIMITS, "overcommit", state, text);
    match mode {
        0 => check(State::Ok, "heuristic (0)"),
        1 => check(State::Ok, "always (1)"),
        mode => check(
            State::Warn,
            &format!(
                "strict ({mode}): Linux refuses a program more memory than it has, \
                 before Farpage can help"
            ),
        )
        .improve("sudo sysctl vm.overcommit_memory=0"),
    }
}

fn huge_pages(setting: &str) -> Check {
    let chosen = setting
        .split(['[', ']'])
        .nth(1)
        .unwrap_or("not in this kernel");
    let check = |state, text: String| Check::new(LIMITS, "huge pages", state, text);
    match chosen {
        "always" | "madvise" => check(State::Ok, chosen.to_string()),
        _ => check(
            State::Info,
            format!("{chosen}: programs that fit into their budget run a little slower"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farpage_sys::memory_limit::CgroupLimit;

    #[test]
    fn each_limit_that_is_too_low_names_its_line() {
        assert_eq!(open_files(Some(1024), None).state, State::Ok);
        assert_eq!(open_files(None, None).state, State::Ok);
        let few = open_files(Some(256), Some(256));
        assert!(few.improve[0].starts_with("sudo prlimit"));
        let few = open_files(Some(256), Some(8192));
        assert_eq!(few.improve, ["ulimit -n 4096"]);
        let space = |current, maximum| address_space(Rlimit { current, maximum });
        assert_eq!(space(None, None).state, State::Ok);
        assert_eq!(space(Some(1), None).improve, ["ulimit -v unlimited"]);
        assert!(space(Some(1), Some(1)).improve[0].starts_with("sudo prlimit"));
        assert_eq!(mappings(65_530).state, State::Ok);
        assert_eq!(mappings(1000).state, State::Warn);
        assert_eq!(overcommitment(0).state, State::Ok);
        let strict = overcommitment(2);
        assert_eq!(strict.improve, ["sudo sysctl vm.overcommit_memory=0"]);
        assert_eq!(huge_pages("always [madvise] never\n").state, State::Ok);
        assert_eq!(huge_pages("always madvise [never]\n").state, State::Info);
    }

    #[test]
    fn the_tighter_bound_of_memory_is_shown() {
        let mut limit = MemoryLimit {
            cgroup: None,
            available: 10 << 30,
            total: 12 << 30,
        };
        let text = "10.0 GiB available of 12.0 GiB: --ram is 8.00 GiB without being given";
        assert_eq!(memory(&limit).found, text);
        limit.cgroup = Some(CgroupLimit {
            bytes: 1 << 20,
            file: "/sys/fs/cgroup/memory.max".into(),
        });
        let tight = memory(&limit);
        assert_eq!(tight.state, State::Fail);
        assert!(
            tight
                .found
                .starts_with("1.00 MiB by /sys/fs/cgroup/memory.max")
        );
    }
}
