//! Swap space of the kernel's own kind, for comparison: a swap file or a zram device. Both go away
//! again, whatever happens to this process.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::guard::Guard;
use crate::proc::{must, output};

/// Active swap space.
pub(crate) struct Swap {
    path: PathBuf,
    /// The number of the zram device; a swap file has none.
    zram: Option<String>,
    _guard: Guard,
}

const REMOVE_FILE: &str = r#"/usr/sbin/swapoff "$1" 2>/dev/null; rm "$1""#;
const REMOVE_ZRAM: &str = r#"/usr/sbin/swapoff "$1" 2>/dev/null
echo "$2" > /sys/class/zram-control/hot_remove"#;

impl Swap {
    /// A swap file of `bytes` in `dir`.
    pub(crate) fn file(dir: &Path, bytes: u64) -> Result<Self> {
        let path = dir.join(format!("swap-{}", std::process::id()));
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        let guard = Guard::new(REMOVE_FILE, &[&path.display().to_string()])?;
        let mut allocate = Command::new("fallocate");
        must(
            allocate.args(["-l", &bytes.to_string()]).arg(&path),
            "fallocate",
        )?;
        start(&path)?;
        Ok(Self {
            path,
            zram: None,
            _guard: guard,
        })
    }

    /// A compressed device that shows `bytes` and takes at most `limit_bytes` of memory.
    pub(crate) fn zram(bytes: u64, limit_bytes: u64) -> Result<Self> {
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

    /// The memory that a zram device took at most.
    pub(crate) fn zram_most_bytes(&self) -> Option<u64> {
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
        must(
            Command::new("mknod")
                .arg(&self.path)
                .args(["b", major, minor]),
            "mknod",
        )
    }
}

fn start(path: &Path) -> Result<()> {
    output(Command::new("/usr/sbin/mkswap").arg(path), "mkswap")?;
    output(
        Command::new("/usr/sbin/swapon")
            .args(["-p", "100"])
            .arg(path),
        "swapon",
    )
    .map(drop)
}
