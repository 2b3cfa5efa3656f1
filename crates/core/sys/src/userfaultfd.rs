//! Which way to userfaultfd this user has here, by trying each.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;

use farpage_object::Tier;

use crate::file::{self, Fd};
use crate::{Errno, uffd};

/// What trying found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Userfaultfd {
    /// The best way that works.
    pub tier: Tier,
    /// Feature bits that the kernel offers this user, see [`uffd::features`].
    pub features: u64,
    /// What became of `/dev/userfaultfd`.
    pub device: DeviceFile,
    /// Why nothing worked, when nothing did.
    pub error: Option<Errno>,
}

/// The state of `/dev/userfaultfd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFile {
    /// Linux older than 6.1, or a container without it.
    Missing,
    /// This user may not open it.
    Denied,
    /// It can be opened and used.
    Usable,
    /// It can be opened, but makes no userfaultfd.
    Broken,
}

/// Tries the device, the system call and the user-mode-only variant of it.
pub fn probe() -> Userfaultfd {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/userfaultfd");
    let mut device = match &opened {
        Ok(_) => DeviceFile::Usable,
        Err(error) if error.kind() == io::ErrorKind::NotFound => DeviceFile::Missing,
        Err(_) => DeviceFile::Denied,
    };
    let fd = opened.as_ref().ok().map(|device| Fd(device.as_raw_fd()));
    let (tier, error) = match uffd::open(fd) {
        Ok((uffd, tier)) => {
            file::close(uffd.0);
            (tier, None)
        }
        Err(errno) => (Tier::None, Some(errno)),
    };
    if device == DeviceFile::Usable && tier != Tier::Device {
        device = DeviceFile::Broken;
    }
    Userfaultfd {
        tier,
        features: uffd::offered(fd).unwrap_or(0),
        device,
        error,
    }
}

/// The name of a tier in output and statistics.
pub fn tier_name(tier: Tier) -> &'static str {
    match tier {
        Tier::None => "none",
        Tier::Device => "device",
        Tier::Syscall => "syscall",
        Tier::UserModeOnly => "user-mode-only",
    }
}
