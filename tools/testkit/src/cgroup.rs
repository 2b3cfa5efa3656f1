//! Memory cgroups, version 1 or 2, for the limits of demo and benches.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::guard::Guard;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A memory cgroup of our own, removed when dropped, with what runs in it.
pub struct Cgroup {
    dir: PathBuf,
    version: Version,
    _guard: Guard,
}

/// Kills what is left in the cgroup `$1` and removes it; the kernel needs a moment for both.
const REMOVE: &str = r#"
for i in $(seq 600); do
    kill -KILL $(cat "$1/cgroup.procs") 2>/dev/null
    rmdir "$1" 2>/dev/null && exit
    sleep 0.2
done
echo "cannot remove $1" >&2"#;

impl Cgroup {
    /// Makes one with `bytes` of memory; it may swap only if `swap`.
    ///
    /// # Errors
    /// They say what is missing here.
    pub fn new(name: &str, bytes: u64, swap: bool) -> Result<Self> {
        let (mount, version) = find()?;
        let dir = mount.join(format!("farpage-{name}-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| {
            format!(
                "cannot make the memory cgroup {}; it takes root",
                dir.display()
            )
        })?;
        let guard = Guard::new(REMOVE, &[&dir.display().to_string()])?;
        let cgroup = Self {
            dir,
            version,
            _guard: guard,
        };
        match version {
            Version::V1 => {
                cgroup.set("memory.limit_in_bytes", &bytes.to_string())?;
                if !swap && cgroup.dir.join("memory.memsw.limit_in_bytes").exists() {
                    cgroup.set("memory.memsw.limit_in_bytes", &bytes.to_string())?;
                }
            }
            Version::V2 => {
                cgroup.set("memory.max", &bytes.to_string())?;
                if cgroup.dir.join("memory.swap.max").exists() {
                    cgroup.set("memory.swap.max", if swap { "max" } else { "0" })?;
                }
            }
        }
        Ok(cgroup)
    }

    /// A command that enters the cgroup and becomes `program`.
    pub fn command(&self, program: &Path) -> Command {
        let mut sh = Command::new("/bin/sh");
        sh.args(["-c", r#"echo $$ > "$0" && exec "$@""#]);
        sh.arg(self.dir.join("cgroup.procs")).arg(program);
        sh
    }

    /// How often the kernel killed for want of memory here.
    ///
    /// # Errors
    /// Linux before 4.13 does not tell.
    pub fn kills(&self) -> Result<u64> {
        let (text, path) = self.read(match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        })?;
        let line = text.lines().find_map(|l| l.strip_prefix("oom_kill "));
        let count = line.with_context(|| format!("{} has no count", path.display()))?;
        Ok(count.trim().parse()?)
    }

    /// The most memory that it has had.
    ///
    /// # Errors
    /// Linux before 5.19 does not tell with version 2.
    pub fn most_bytes(&self) -> Result<u64> {
        let (text, _) = self.read(match self.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        })?;
        Ok(text.trim().parse()?)
    }

    fn read(&self, file: &str) -> Result<(String, PathBuf)> {
        let path = self.dir.join(file);
        let text = fs::read_to_string(&path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        Ok((text, path))
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, value).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Where memory cgroups can be made.
fn find() -> Result<(PathBuf, Version)> {
    let mounts = fs::read_to_string("/proc/mounts").context("cannot read /proc/mounts")?;
    let mut second = None;
    for line in mounts.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, at, kind, options, ..] = words.as_slice() else {
            continue;
        };
        let at = PathBuf::from(at);
        if *kind == "cgroup" && options.split(',').any(|o| o == "memory") {
            return Ok((at, Version::V1));
        }
        let controllers = fs::read_to_string(at.join("cgroup.controllers")).unwrap_or_default();
        if *kind == "cgroup2" && controllers.split_whitespace().any(|c| c == "memory") {
            let _ = fs::write(at.join("cgroup.subtree_control"), "+memory");
            second = Some((at, Version::V2));
        }
    }
    match second {
        Some(found) => Ok(found),
        None => bail!("no memory cgroup (version 1 or 2) is mounted here"),
    }
}
