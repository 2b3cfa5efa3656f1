//! The files that say how much memory there is, and what they say instead.

use alloc::string::String;
use alloc::vec::Vec;

const PROC: u64 = 0x9fa0;
const CGROUP: u64 = 0x0027_e0eb;
const CGROUP_2: u64 = 0x6367_7270;
/// In containers, what LXCFS has in their place.
const FUSE: u64 = 0x6573_5546;

/// The memory that there is said to be.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) total: u64,
    pub(super) used: u64,
}

impl Memory {
    pub(super) fn free(self) -> u64 {
        self.total.saturating_sub(self.used)
    }

    fn taken(self) -> u64 {
        self.total - self.free()
    }
}

/// What a file has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    /// A line for each kind of memory, in KiB.
    Meminfo,
    /// A line for each figure of a cgroup of version 1.
    Stat,
    /// A number of bytes: all.
    Total,
    /// Those that are used.
    Used,
    /// Of swap.
    None,
    /// That there is no such limit.
    NoLimit,
}

const FILES: &[(&[u8], Text)] = &[
    (b"meminfo", Text::Meminfo),
    (b"memory.max", Text::Total),
    (b"memory.high", Text::NoLimit),
    (b"memory.current", Text::Used),
    (b"memory.swap.max", Text::None),
    (b"memory.swap.current", Text::None),
    (b"memory.limit_in_bytes", Text::Total),
    (b"memory.memsw.limit_in_bytes", Text::Total),
    (b"memory.usage_in_bytes", Text::Used),
    (b"memory.memsw.usage_in_bytes", Text::Used),
    (b"memory.stat", Text::Stat),
];

/// Lines of `meminfo` about memory that is used otherwise than by programs: none of it is said to be.
const USED_OTHERWISE: &[&[u8]] = &[
    b"Buffers",
    b"Cached",
    b"SwapCached",
    b"Inactive",
    b"Inactive(anon)",
    b"Active(file)",
    b"Inactive(file)",
    b"Unevictable",
    b"Mlocked",
    b"SwapTotal",
    b"SwapFree",
    b"Zswap",
    b"Zswapped",
    b"Dirty",
    b"Writeback",
    b"Mapped",
    b"Shmem",
    b"KReclaimable",
    b"Slab",
    b"SReclaimable",
    b"SUnreclaim",
    b"KernelStack",
    b"PageTables",
    b"SecPageTables",
    b"AnonHugePages",
    b"ShmemHugePages",
    b"ShmemPmdMapped",
    b"FileHugePages",
    b"FilePmdMapped",
];

impl Text {
    /// What the file at `path` has in it; `None` of files that say nothing about memory.
    pub(super) fn named(path: &[u8]) -> Option<Self> {
        let name = path.rsplit(|byte| *byte == b'/').next()?;
        let file = FILES.iter().find(|(known, _)| *known == name)?;
        Some(file.1)
    }

    /// True when the file at `path` is what its name says, by the kind of its file system. Files elsewhere have
    /// the name by chance.
    pub(super) fn is_at(self, path: &[u8], system: u64) -> bool {
        let (systems, folder) = match self {
            Self::Meminfo => ([PROC, PROC], "/proc/"),
            _ => ([CGROUP, CGROUP_2], "/sys/fs/cgroup/"),
        };
        systems.contains(&system) || system == FUSE && path.starts_with(folder.as_bytes())
    }

    /// What it says instead of `before`.
    pub(super) fn rewritten(self, before: &[u8], memory: Memory) -> Vec<u8> {
        let number = |bytes: u64| alloc::format!("{bytes}\n").into_bytes();
        match self {
            Self::Meminfo => by_lines(before, |line| meminfo(line, memory)),
            Self::Stat => by_lines(before, |line| stat(line, memory)),
            Self::Total => number(memory.total),
            Self::Used => number(memory.taken()),
            Self::None => number(0),
            Self::NoLimit => b"max\n".to_vec(),
        }
    }
}

/// Puts another line in the place of each for which there is one.
fn by_lines(before: &[u8], other: impl Fn(&[u8]) -> Option<String>) -> Vec<u8> {
    let mut after = Vec::with_capacity(before.len());
    for line in before.split_inclusive(|byte| *byte == b'\n') {
        match other(line) {
            Some(other) => after.extend_from_slice(other.as_bytes()),
            None => after.extend_from_slice(line),
        }
    }
    after
}

fn meminfo(line: &[u8], memory: Memory) -> Option<String> {
    let end = line.iter().position(|byte| *byte == b':')?;
    let name = &line[..end];
    let bytes = match name {
        b"MemTotal" | b"CommitLimit" => memory.total,
        b"MemFree" | b"MemAvailable" => memory.free(),
        b"Active" | b"Active(anon)" | b"AnonPages" | b"Committed_AS" => memory.taken(),
        _ if USED_OTHERWISE.contains(&name) => 0,
        _ => return None,
    };
    let name = String::from_utf8_lossy(&line[..=end]);
    Some(alloc::format!("{name:<16}{:>8} kB\n", bytes >> 10))
}

fn stat(line: &[u8], memory: Memory) -> Option<String> {
    let name = line.split(|byte| *byte == b' ').next()?;
    let name = core::str::from_utf8(name).ok()?;
    let is_limit = matches!(
        name,
        "hierarchical_memory_limit" | "hierarchical_memsw_limit"
    );
    is_limit.then(|| alloc::format!("{name} {}\n", memory.total))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Memory = Memory {
        total: 8 << 30,
        used: 3 << 20,
    };

    fn after(path: &str, before: &str) -> String {
        let text = Text::named(path.as_bytes()).unwrap();
        String::from_utf8(text.rewritten(before.as_bytes(), MEMORY)).unwrap()
    }

    #[test]
    fn meminfo_says_what_it_is_told_and_the_rest_as_before() {
        let before = "MemTotal:       24683836 kB\nMemFree:        21764096 kB\nMemAvailable:   24243364 kB\n\
                      Cached:          2508792 kB\nSwapTotal:       1048576 kB\nActive(anon):      12544 kB\n\
                      ShmemPmdMapped:        4 kB\nVmallocTotal:   34359738367 kB\nHugePages_Total:       7\n";
        let wanted = "MemTotal:        8388608 kB\nMemFree:         8385536 kB\nMemAvailable:    8385536 kB\n\
                      Cached:                0 kB\nSwapTotal:             0 kB\nActive(anon):       3072 kB\n\
                      ShmemPmdMapped:        0 kB\nVmallocTotal:   34359738367 kB\nHugePages_Total:       7\n";
        assert_eq!(after("/proc/meminfo", before), wanted);
        assert_eq!(after("meminfo", ""), "");
        assert_eq!(after("meminfo", "no colon\n"), "no colon\n");
    }

    #[test]
    fn cgroups_of_both_versions_say_the_same() {
        for total in [
            "memory.max",
            "memory.limit_in_bytes",
            "memory.memsw.limit_in_bytes",
        ] {
            assert_eq!(after(total, "max\n"), "8589934592\n");
        }
        for used in ["memory.current", "memory.usage_in_bytes"] {
            assert_eq!(after(used, "12345678901\n"), "3145728\n");
        }
        for swap in ["memory.swap.max", "memory.swap.current"] {
            assert_eq!(after(swap, "max\n"), "0\n");
        }
        assert_eq!(after("memory.high", "1048576\n"), "max\n");
        let stat = "cache 1\nhierarchical_memory_limit 9223372036854771712\ntotal_rss 5\n";
        let wanted = "cache 1\nhierarchical_memory_limit 8589934592\ntotal_rss 5\n";
        assert_eq!(after("/sys/fs/cgroup/memory/a/memory.stat", stat), wanted);
    }

    #[test]
    fn more_than_there_is_leaves_nothing() {
        let memory = Memory {
            used: 9 << 30,
            ..MEMORY
        };
        assert_eq!(memory.free(), 0);
        assert_eq!(Text::Used.rewritten(b"", memory), b"8589934592\n");
    }

    #[test]
    fn other_files_are_left_alone() {
        for path in [
            "",
            "/",
            "meminfo/",
            "/proc/meminfo2",
            "memory.min",
            "/proc/vmstat",
        ] {
            assert_eq!(Text::named(path.as_bytes()), None, "{path}");
        }
        const TMPFS: u64 = 0x0102_1994;
        let is_at = |text: Text, path: &str, system| text.is_at(path.as_bytes(), system);
        assert!(
            is_at(Text::Meminfo, "meminfo", PROC) && !is_at(Text::Meminfo, "/proc/meminfo", TMPFS)
        );
        assert!(
            is_at(Text::Total, "memory.max", CGROUP_2)
                && !is_at(Text::Meminfo, "meminfo", CGROUP_2)
        );
        assert!(
            is_at(Text::Stat, "memory.stat", CGROUP) && !is_at(Text::Total, "memory.max", PROC)
        );
        assert!(
            is_at(Text::Meminfo, "/proc/meminfo", FUSE)
                && !is_at(Text::Meminfo, "/home/meminfo", FUSE)
        );
    }
}
