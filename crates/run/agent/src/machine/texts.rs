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
    /// Perhaps more than all.
    pub(super) taken: u64,
}

impl Memory {
    pub(super) fn free(self) -> u64 {
        self.total.saturating_sub(self.taken)
    }

    fn used(self) -> u64 {
        self.total - self.free()
    }

    /// The figure of that name, if there is another than Linux's.
    fn figure(self, known: &[(Figure, &[&str])], name: &str) -> Option<u64> {
        let mut known = known.iter();
        let (figure, _) = known.find(|(_, names)| names.contains(&name))?;
        Some(match figure {
            Figure::Total => self.total,
            Figure::Free => self.free(),
            Figure::Used => self.used(),
            Figure::Otherwise => 0,
        })
    }
}

/// What a file has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    /// A line for each kind of memory, in KiB.
    Meminfo,
    /// A line for each figure of a cgroup.
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
    (b"memory.stat", Text::Stat),
    (b"memory.max", Text::Total),
    (b"memory.high", Text::NoLimit),
    (b"memory.current", Text::Used),
    (b"memory.peak", Text::Used),
    (b"memory.swap.max", Text::None),
    (b"memory.swap.high", Text::NoLimit),
    (b"memory.swap.current", Text::None),
    (b"memory.limit_in_bytes", Text::Total),
    (b"memory.usage_in_bytes", Text::Used),
    (b"memory.max_usage_in_bytes", Text::Used),
    (b"memory.memsw.limit_in_bytes", Text::Total),
    (b"memory.memsw.usage_in_bytes", Text::Used),
    (b"memory.memsw.max_usage_in_bytes", Text::Used),
];

/// What a figure is of.
#[derive(Clone, Copy)]
enum Figure {
    Total,
    Free,
    /// What programs use: it is all that is used.
    Used,
    /// What is used otherwise: nothing is said to be.
    Otherwise,
}

const OF_MEMINFO: &[(Figure, &[&str])] = &[
    (Figure::Total, &["MemTotal", "CommitLimit"]),
    (Figure::Free, &["MemFree", "MemAvailable"]),
    (
        Figure::Used,
        &["Active", "Active(anon)", "AnonPages", "Committed_AS"],
    ),
    (
        Figure::Otherwise,
        &[
            "Buffers",
            "Cached",
            "SwapCached",
            "Inactive",
            "Inactive(anon)",
            "Active(file)",
            "Inactive(file)",
            "Unevictable",
            "Mlocked",
            "SwapTotal",
            "SwapFree",
            "Zswap",
            "Zswapped",
            "Dirty",
            "Writeback",
            "Mapped",
            "Shmem",
            "KReclaimable",
            "Slab",
            "SReclaimable",
            "SUnreclaim",
            "KernelStack",
            "PageTables",
            "SecPageTables",
            "AnonHugePages",
            "ShmemHugePages",
            "ShmemPmdMapped",
            "FileHugePages",
            "FilePmdMapped",
        ],
    ),
];

/// Of both versions. In version 1 some have `total_` before them.
const OF_STAT: &[(Figure, &[&str])] = &[
    (
        Figure::Total,
        &["hierarchical_memory_limit", "hierarchical_memsw_limit"],
    ),
    (Figure::Used, &["anon", "rss", "active_anon"]),
    (
        Figure::Otherwise,
        &[
            "cache",
            "rss_huge",
            "mapped_file",
            "dirty",
            "writeback",
            "swap",
            "file",
            "kernel",
            "kernel_stack",
            "pagetables",
            "sec_pagetables",
            "percpu",
            "sock",
            "vmalloc",
            "shmem",
            "zswap",
            "zswapped",
            "file_mapped",
            "file_dirty",
            "file_writeback",
            "swapcached",
            "anon_thp",
            "file_thp",
            "shmem_thp",
            "inactive_anon",
            "inactive_file",
            "active_file",
            "unevictable",
            "slab_reclaimable",
            "slab_unreclaimable",
            "slab",
            "hugetlb",
        ],
    ),
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
            Self::Used => number(memory.used()),
            Self::None => number(0),
            Self::NoLimit => b"max\n".to_vec(),
        }
    }
}

/// Puts another line in the place of each for which there is one.
fn by_lines(before: &[u8], other: impl Fn(&str) -> Option<String>) -> Vec<u8> {
    let mut after = Vec::with_capacity(before.len());
    for line in before.split_inclusive(|byte| *byte == b'\n') {
        match core::str::from_utf8(line).ok().and_then(&other) {
            Some(other) => after.extend_from_slice(other.as_bytes()),
            None => after.extend_from_slice(line),
        }
    }
    after
}

fn meminfo(line: &str, memory: Memory) -> Option<String> {
    let (name, _) = line.split_once(':')?;
    let bytes = memory.figure(OF_MEMINFO, name)?;
    let name = alloc::format!("{name}:");
    Some(alloc::format!("{name:<16}{:>8} kB\n", bytes >> 10))
}

fn stat(line: &str, memory: Memory) -> Option<String> {
    let (name, _) = line.split_once(' ')?;
    let figure = name.strip_prefix("total_").unwrap_or(name);
    let bytes = memory.figure(OF_STAT, figure)?;
    Some(alloc::format!("{name} {bytes}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Memory = Memory {
        total: 8 << 30,
        taken: 3 << 20,
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
        for used in ["memory.current", "memory.peak", "memory.usage_in_bytes"] {
            assert_eq!(after(used, "12345678901\n"), "3145728\n");
        }
        for swap in ["memory.swap.max", "memory.swap.current"] {
            assert_eq!(after(swap, "max\n"), "0\n");
        }
        assert_eq!(after("memory.high", "1048576\n"), "max\n");
        let stat = "cache 1\nrss 2\npgfault 9\nhierarchical_memory_limit 9223372036854771712\ntotal_rss 5\n\
                    total_inactive_file 6\n";
        let wanted = "cache 0\nrss 3145728\npgfault 9\nhierarchical_memory_limit 8589934592\n\
                      total_rss 3145728\ntotal_inactive_file 0\n";
        assert_eq!(after("/sys/fs/cgroup/memory/a/memory.stat", stat), wanted);
        let stat =
            "anon 77\nfile 12345678901\ninactive_file 12345678901\nworkingset_refault_anon 7\n";
        let wanted = "anon 3145728\nfile 0\ninactive_file 0\nworkingset_refault_anon 7\n";
        assert_eq!(after("/sys/fs/cgroup/a/memory.stat", stat), wanted);
    }

    #[test]
    fn more_than_there_is_leaves_nothing() {
        let memory = Memory {
            taken: 9 << 30,
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
