//! Swap space of the kernel's own kind: a file, a file by a loop device, or a zram device. All go away
//! again, whatever happens to this process.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};

use crate::guard::Guard;
use crate::output;

/// Active swap space.
pub struct Swap {
    path: PathBuf,
    /// The number of the zram device; a swap file has none.
    zram: Option<String>,
    _guard: Guard,
}

// Who was killed may have left a swapon behind that has yet to begin: what is swapped to cannot be removed, and
// what is removed cannot be swapped to.
const REMOVE_FILE: &str = r#"
for i in $(seq 50); do
    /usr/sbin/swapoff "$1" 2>/dev/null
    rm -f "$1" 2>/dev/null && exit
    sleep 0.2
done
echo "cannot remove $1" >&2"#;
const REMOVE_LOOP: &str = r#"
for i in $(seq 50); do
    device=$(/usr/sbin/losetup -n -O NAME -j "$1")
    if [ -z "$device" ]; then
        rm "$1"
        exit
    fi
    /usr/sbin/swapoff "$device" 2>/dev/null
    /usr/sbin/losetup -d "$device"
    sleep 0.2
done
echo "cannot remove $1" >&2"#;
const REMOVE_ZRAM: &str = r#"
for i in $(seq 50); do
    /usr/sbin/swapoff "$1" 2>/dev/null
    echo "$2" 2>/dev/null > /sys/class/zram-control/hot_remove && exit
    sleep 0.2
done
echo "cannot remove $1" >&2"#;

impl Swap {
    /// What can be had here: a swap file in `dir`, that file by a loop device, or a zram device.
    ///
    /// # Errors
    /// They say why none of them can be had.
    pub fn any(dir: &Path, bytes: u64) -> Result<Self> {
        Self::file(dir, bytes).or_else(|file| {
            Self::of_loop(dir, bytes).or_else(|device| {
                Self::zram(bytes, bytes).map_err(|zram| {
                    anyhow!("no swap file ({file:#}), loop device ({device:#}) or zram ({zram:#})")
                })
            })
        })
    }

    /// A file of `bytes` in `dir`, by a loop device: also where the file system takes no swap files.
    ///
    /// # Errors
    /// They say which step failed.
    pub fn of_loop(dir: &Path, bytes: u64) -> Result<Self> {
        let (file, guard) = made(dir, bytes, REMOVE_LOOP)?;
        let mut losetup = Command::new("/usr/sbin/losetup");
        let device = output(losetup.args(["--find", "--show"]).arg(&file))?;
        let path = PathBuf::from(device);
        start(&path)?;
        Ok(Self {
            path,
            zram: None,
            _guard: guard,
        })
    }

    /// A swap file of `bytes` in `dir`.
    ///
    /// # Errors
    /// They say which step failed.
    pub fn file(dir: &Path, bytes: u64) -> Result<Self> {
        let (path, guard) = made(dir, bytes, REMOVE_FILE)?;
        start(&path)?;
        Ok(Self {
            path,
            zram: None,
            _guard: guard,
        })
    }

    /// A compressed device that shows `bytes` and takes at most `limit_bytes` of memory.
    ///
    /// # Errors
    /// They say which step failed.
    pub fn zram(bytes: u64, limit_bytes: u64) -> Result<Self> {
        let number = fs::read_to_string("/sys/class/zram-control/hot_add")
            .context("no zram here (modprobe zram, as root)")?;
        let number = number.trim().to_owned();
        let path = PathBuf::from(format!("/dev/zram{number}"));
        let guard = Guard::new(REMOVE_ZRAM, &[&path.display().to_string(), &number])?;
        let swap = Self {
            path,
            zram: Some(number),
            _guard: guard,
        };
        let _ = swap.set("comp_algorithm", "lz4"); // as farpage's fast tier; else the default
        swap.set("disksize", &bytes.to_string())?;
        swap.set("mem_limit", &limit_bytes.to_string())?;
        if !swap.path.exists() {
            swap.make_node()?;
        }
        start(&swap.path)?;
        Ok(swap)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The memory that a zram device took at most.
    #[must_use]
    pub fn zram_most_bytes(&self) -> Option<u64> {
        let path = format!("/sys/block/zram{}/mm_stat", self.zram.as_ref()?);
        fs::read_to_string(path)
            .ok()?
            .split_whitespace()
            .nth(4)?
            .parse()
            .ok()
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        let number = self.zram.as_ref().context("not a zram device")?;
        let path = format!("/sys/block/zram{number}/{name}");
        fs::write(&path, value).with_context(|| format!("cannot write {path}"))
    }

    /// Where no udev makes device nodes.
    fn make_node(&self) -> Result<()> {
        let number = self.zram.as_ref().context("not a zram device")?;
        let device = fs::read_to_string(format!("/sys/block/zram{number}/dev"))?;
        let (major, minor) = device.trim().split_once(':').context("no device number")?;
        let mut mknod = Command::new("mknod");
        output(mknod.arg(&self.path).args(["b", major, minor])).map(drop)
    }
}

/// A file of so many bytes, and what removes it.
fn made(dir: &Path, bytes: u64, remove: &str) -> Result<(PathBuf, Guard)> {
    let path = dir.join(format!("swap-{}", std::process::id()));
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("cannot make {}", path.display()))?;
    let guard = Guard::new(remove, &[&path.display().to_string()])?;
    let mut allocate = Command::new("fallocate");
    output(allocate.args(["-l", &bytes.to_string()]).arg(&path))?;
    Ok((path, guard))
}

fn start(path: &Path) -> Result<()> {
    output(Command::new("/usr/sbin/mkswap").arg(path))?;
    let mut swapon = Command::new("/usr/sbin/swapon");
    output(swapon.args(["-p", "100"]).arg(path)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const BYTES: u64 = 16 << 20;

    fn is_on(path: &Path) -> bool {
        let all = fs::read_to_string("/proc/swaps").unwrap();
        let name = format!("{} ", path.display());
        all.lines().any(|line| line.starts_with(&name))
    }

    #[test]
    fn what_is_swapped_to_is_gone_afterwards() {
        let uid = fs::metadata("/proc/self").unwrap().uid();
        if uid != 0 {
            return println!("skipped: only root may swap");
        }
        let dir = std::env::temp_dir().join(format!("test-machine-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        for make in [Swap::file, Swap::of_loop, Swap::any] {
            let swap = match make(&dir, BYTES) {
                Ok(swap) => swap,
                Err(why) => {
                    println!("skipped: {why:#}");
                    continue;
                }
            };
            let path = swap.path().to_owned();
            assert!(is_on(&path));
            drop(swap);
            assert!(!is_on(&path));
            assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        }
        fs::remove_dir(&dir).unwrap();
    }
}
