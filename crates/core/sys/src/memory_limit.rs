//! How much memory this process may use: its cgroup's limit and what the machine has left.

use std::fs;
use std::path::{Path, PathBuf};
use std::vec::Vec;

/// Limits at and above this many bytes mean "none" (cgroup v1 writes 2^63 less a page).
const NO_LIMIT: u64 = 1 << 60;

/// What bounds the memory of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The tightest limit among this process's memory cgroup and its ancestors.
    pub cgroup: Option<CgroupLimit>,
    /// `MemAvailable`: what Linux could give out without swapping, bytes.
    pub available: u64,
    /// `MemTotal`, bytes.
    pub total: u64,
}

/// A memory cgroup with a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupLimit {
    /// The limit, bytes.
    pub bytes: u64,
    /// The file that sets it.
    pub file: PathBuf,
}

impl MemoryLimit {
    /// Reads the limits of the calling process.
    pub fn read() -> Self {
        Self::read_under(Path::new("/"))
    }

    /// As `read`, with every path under `root`: for tests.
    pub fn read_under(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let meminfo = text("proc/meminfo");
        let total = kilobytes(&meminfo, "MemTotal:").unwrap_or(0);
        let files = limit_files(&text("proc/self/cgroup"), &text("proc/self/mountinfo"));
        let cgroup = files
            .into_iter()
            .filter_map(|file| {
                let inside = file.strip_prefix("/").unwrap_or(&file);
                let value = fs::read_to_string(root.join(inside)).ok()?;
                let bytes: u64 = value.trim().parse().ok()?;
                (bytes < NO_LIMIT).then_some(CgroupLimit { bytes, file })
            })
            .min_by_key(|limit| limit.bytes);
        Self {
            cgroup,
            available: kilobytes(&meminfo, "MemAvailable:").unwrap_or(total),
            total,
        }
    }

    /// The memory that this process can count on, bytes.
    pub fn bytes(&self) -> u64 {
        let cgroup = self.cgroup.as_ref().map_or(u64::MAX, |limit| limit.bytes);
        cgroup.min(self.available)
    }
}

/// The memory cgroups of this process that have a limit, to be looked at again and again.
#[derive(Debug)]
pub struct MemoryCgroups {
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    limit: PathBuf,
    usage: PathBuf,
    stat: PathBuf,
    names: Names,
}

/// How `memory.stat` names things, in version 1 and 2 of cgroups.
#[derive(Clone, Copy, Debug)]
struct Names {
    files: [&'static str; 2],
    unwritten: [&'static str; 2],
    mapped: &'static str,
    shared: &'static str,
    slab: &'static str,
    faults: &'static str,
}

const V1: Names = Names {
    files: ["total_inactive_file", "total_active_file"],
    unwritten: ["total_dirty", "total_writeback"],
    mapped: "total_mapped_file",
    shared: "total_shmem",
    // Not told: all of it counts.
    slab: "",
    faults: "total_pgmajfault",
};

const V2: Names = Names {
    files: ["inactive_file", "active_file"],
    unwritten: ["file_dirty", "file_writeback"],
    mapped: "file_mapped",
    shared: "shmem",
    slab: "slab_reclaimable",
    faults: "pgmajfault",
};

/// What a cgroup may have, and what of that Linux cannot take back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The limit, bytes.
    pub limit: u64,
    /// Memory that cannot be taken back without paging, bytes. A part of the page cache counts as
    /// such: programs that are mapped, as much as [`MemoryCgroups::tightest`] is told, for without them nothing
    /// runs; and files that are being read, up to a sixteenth of the limit.
    pub taken: u64,
    /// Faults so far for which Linux read from a disk.
    pub major_faults: u64,
}

impl Taken {
    fn left(self) -> u64 {
        self.limit.saturating_sub(self.taken)
    }
}

impl MemoryCgroups {
    /// Those of the calling process; `None` when none has a limit.
    pub fn own() -> Option<Self> {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let files = limit_files(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"));
        let levels: Vec<Level> = files
            .into_iter()
            .filter(|file| file.exists())
            .map(Level::new)
            .collect();
        let own = Self { levels };
        own.tightest(1).map(|_| own)
    }

    /// The one that has least left, where programs that are mapped keep at most one in `programs` bytes of the limit. Limits
    /// come and go: `None` when there is none now.
    pub fn tightest(&self, programs: u64) -> Option<Taken> {
        let all = self.levels.iter().filter_map(|level| level.read(programs));
        all.min_by_key(|taken| taken.left())
    }
}

impl Level {
    fn new(limit: PathBuf) -> Self {
        let is_v2 = limit.ends_with("memory.max");
        let (usage, names) = match is_v2 {
            true => ("memory.current", V2),
            false => ("memory.usage_in_bytes", V1),
        };
        Self {
            usage: limit.with_file_name(usage),
            stat: limit.with_file_name("memory.stat"),
            names,
            limit,
        }
    }

    fn read(&self, programs: u64) -> Option<Taken> {
        let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let limit = number(&self.limit).filter(|bytes| *bytes < NO_LIMIT)?;
        let usage = number(&self.usage)?;
        let stat = fs::read_to_string(&self.stat).ok()?;
        Some(Taken {
            limit,
            taken: usage.saturating_sub(self.names.reclaimable(&stat, limit, programs)),
            major_faults: value_of(&stat, self.names.faults),
        })
    }
}

impl Names {
    /// Bytes that Linux can take back, by the text of `memory.stat`.
    fn reclaimable(&self, stat: &str, limit: u64, programs: u64) -> u64 {
        let of = |name: &'static str| value_of(stat, name);
        let sum = |names: [&'static str; 2]| names.into_iter().map(of).sum::<u64>();
        let files = sum(self.files);
        let mapped = of(self.mapped).saturating_sub(of(self.shared));
        let kept = mapped.min(limit / programs).max(files.min(limit / 16));
        files.saturating_sub(sum(self.unwritten) + kept) + of(self.slab)
    }
}

/// A line of `memory.stat`.
fn value_of(stat: &str, name: &str) -> u64 {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
    stat.lines().find_map(value).unwrap_or(0)
}

fn kilobytes(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with(key))?;
    let value: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(value << 10)
}

/// The limit files of the process's cgroup and of each ancestor that can be seen, in version 1
/// and version 2, from the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn limit_files(cgroups: &str, mounts: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let v2 = controllers.is_empty();
        if !v2 && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let name = if v2 {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        for (mount_root, mount_point) in mounts_of(mounts, v2) {
            // Inside a container the path may be the host's: then only the mount itself is ours.
            let inside = Path::new(path).strip_prefix(&mount_root);
            let mut at = mount_point.join(inside.unwrap_or(Path::new("")));
            while at.starts_with(&mount_point) {
                files.push(at.join(name));
                if !at.pop() {
                    break;
                }
            }
        }
    }
    files
}

/// Root and mount point of each mounted cgroup file system of the wanted version.
fn mounts_of(mounts: &str, v2: bool) -> Vec<(PathBuf, PathBuf)> {
    let wanted = |line: &str| -> Option<(PathBuf, PathBuf)> {
        let (head, tail) = line.split_once(" - ")?;
        let mut tail = tail.split(' ');
        let kind = tail.next()?;
        let options = tail.nth(1)?;
        let ours = if v2 {
            kind == "cgroup2"
        } else {
            kind == "cgroup" && options.split(',').any(|option| option == "memory")
        };
        let mut head = head.split(' ').skip(3);
        let root = PathBuf::from(head.next()?);
        let point = PathBuf::from(head.next()?);
        ours.then_some((root, point))
    };
    mounts.lines().filter_map(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNT_V2: &str = "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
    const MOUNT_V1: &str = "33 23 0:30 / /cg/memory rw,nosuid - cgroup cgroup rw,memory\n\
                      34 23 0:31 / /cg/cpu rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n";

    #[test]
    fn a_cgroup_and_its_ancestors_are_looked_at() {
        let files = limit_files("0::/user.slice/job\n", MOUNT_V2);
        let expected = [
            "/sys/fs/cgroup/user.slice/job/memory.max",
            "/sys/fs/cgroup/user.slice/memory.max",
            "/sys/fs/cgroup/memory.max",
        ];
        assert_eq!(files, expected.map(PathBuf::from));
        let files = limit_files("4:memory:/a\n2:cpu,cpuacct:/b\n", MOUNT_V1);
        let expected = [
            "/cg/memory/a/memory.limit_in_bytes",
            "/cg/memory/memory.limit_in_bytes",
        ];
        assert_eq!(files, expected.map(PathBuf::from));
    }

    #[test]
    fn a_container_sees_its_own_mount_only() {
        let mounts = "29 23 0:26 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let files = limit_files("0::/docker/x\n", mounts);
        assert_eq!(files, [PathBuf::from("/sys/fs/cgroup/memory.max")]);
        let files = limit_files("0::/elsewhere\n", mounts);
        assert_eq!(files, [PathBuf::from("/sys/fs/cgroup/memory.max")]);
    }

    #[test]
    fn the_tightest_limit_counts() {
        let root = std::env::temp_dir().join(std::format!("farpage-limits-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/cgroup", "0::/job\n");
        write("proc/self/mountinfo", MOUNT_V2);
        write(
            "proc/meminfo",
            "MemTotal: 8000 kB\nMemFree: 1 kB\nMemAvailable: 6000 kB\n",
        );
        assert_eq!(MemoryLimit::read_under(&root).bytes(), 6000 << 10);
        write("sys/fs/cgroup/memory.max", "max\n");
        write("sys/fs/cgroup/job/memory.max", "1048576\n");
        let limit = MemoryLimit::read_under(&root);
        assert_eq!(limit.bytes(), 1 << 20);
        assert_eq!(
            limit.cgroup.unwrap().file,
            Path::new("/sys/fs/cgroup/job/memory.max")
        );
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn page_cache_can_be_taken_back_but_for_what_is_needed_or_not_written() {
        let stat = "anon 500\nfile 900\nshmem 100\nfile_mapped 150\nfile_dirty 20\n\
                    file_writeback 10\nslab_reclaimable 7\ninactive_file 600\nactive_file 200\n";
        assert_eq!(V2.reclaimable(stat, 1_600, 8), 800 - 30 - 100 + 7);
        assert_eq!(V2.reclaimable(stat, 80, 8), 800 - 30 - 10 + 7);
        assert_eq!(V2.reclaimable(stat, 640, 8), 800 - 30 - 50 + 7);
        assert_eq!(V2.reclaimable(stat, 640, 16), 800 - 30 - 40 + 7);
        let stat = "mapped_file 1\ntotal_shmem 100\ntotal_mapped_file 150\ntotal_dirty 20\n\
                    total_writeback 10\ntotal_inactive_file 600\ntotal_active_file 200\n";
        assert_eq!(V1.reclaimable(stat, 1_600, 8), 800 - 30 - 100);
        assert_eq!(V1.reclaimable("", 1, 8), 0);
        assert_eq!(
            value_of("pgmajfault 9\ntotal_pgmajfault 12\n", V1.faults),
            12
        );
    }
}
