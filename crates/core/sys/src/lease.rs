//! Leases: while one is held, Linux lets nobody open the file for writing, nor truncate it, before
//! its holder has been told and has given it up, or has not done so for `lease-break-time` seconds.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use linux_raw_sys::general as g;

use crate::file::{self, Fd};
use crate::raw::{Errno, Result};
use crate::{process, signal, syscall};

const F_SETLEASE: u32 = 1024;
/// What the holder is told by. Unlike a signal that queues it is not lost when there are many.
const SIGIO: u32 = 29;

/// Opens the file of `fd` anew and takes a lease on it against writing, of which the thread
/// `told` is told.
///
/// # Errors
/// `EAGAIN` while somebody has it open for writing; `EACCES` of another user's file; `EOPNOTSUPP`
/// where a lease does not hold back all who can change the file: on file systems that other
/// machines change too, say. As `open(2)`.
pub fn take(fd: BorrowedFd<'_>, told: u32) -> Result<OwnedFd> {
    // Who could write to it by this descriptor is one that has it open for writing. And to close another one
    // takes the process's locks (`fcntl`) of the file away.
    if file::flags(Fd(fd.as_raw_fd()))? & g::O_ACCMODE != g::O_RDONLY {
        return Err(Errno::EAGAIN);
    }
    let again = file::own_again(Fd(fd.as_raw_fd()), g::O_RDONLY | g::O_NONBLOCK)?;
    if !is_held_by_this_machine(Fd(again.as_raw_fd()))? {
        return Err(Errno::EOPNOTSUPP);
    }
    tell(&again, told)?;
    let raw = again.as_raw_fd();
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_fcntl, raw, F_SETLEASE, g::F_RDLCK) }?;
    Ok(again)
}

/// Has the thread `told` told when the lease of a descriptor is to be given up.
///
/// # Errors
/// As `fcntl(2)` with `F_SETOWN_EX`.
pub fn tell(lease: &OwnedFd, told: u32) -> Result<()> {
    let owner = [g::F_OWNER_TID, told];
    let raw = lease.as_raw_fd();
    // SAFETY: `owner` is a `struct f_owner_ex`.
    unsafe { syscall!(g::__NR_fcntl, raw, g::F_SETOWN_EX, owner.as_ptr()) }.map(drop)
}

/// True while the lease is held and nobody waits for its end: nothing of the file has changed.
pub fn is_undisturbed(lease: &OwnedFd) -> bool {
    // SAFETY: takes no pointer.
    let kind = unsafe { syscall!(g::__NR_fcntl, lease.as_raw_fd(), g::F_GETLEASE) };
    kind == Ok(g::F_RDLCK as usize)
}

/// Gives the lease up. True when it was held until then: nothing of the file has changed.
pub fn give_up(lease: &OwnedFd) -> bool {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_fcntl, lease.as_raw_fd(), F_SETLEASE, g::F_UNLCK) }.is_ok()
}

/// What the thread that is told reads from. Made in that thread, in which SIGIO is blocked then.
pub struct Told(OwnedFd);

impl Told {
    /// Of the calling thread.
    ///
    /// # Errors
    /// As `signalfd4(2)`.
    pub fn new() -> Result<Self> {
        let mask = 1u64 << (SIGIO - 1);
        let before = process::set_signal_mask(mask);
        process::set_signal_mask(before | mask);
        let fd = signal::watch(mask)?;
        // SAFETY: made just now, and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd.0) }))
    }

    /// Waits until some lease is to be given up.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn wait(&self) -> Result<()> {
        signal::next(Fd(self.0.as_raw_fd())).map(drop)
    }
}

/// True of the file systems whose files only this machine changes, and only by way of Linux.
fn is_held_by_this_machine(fd: Fd) -> Result<bool> {
    // ext2 to ext4, XFS, Btrfs, F2FS, tmpfs; overlayfs, below which nobody may change anything.
    const LOCAL: [u64; 6] = [
        0xEF53,
        0x5846_5342,
        0x9123_683E,
        0xF2F5_2010,
        0x0102_1994,
        file::OVERLAYFS,
    ];
    file::system_of(fd).map(|system| LOCAL.contains(&system))
}

/// True of the file systems that make clones of files.
pub fn can_clone(fd: Fd) -> bool {
    // XFS, Btrfs, bcachefs.
    const CLONING: [u64; 3] = [0x5846_5342, 0x9123_683E, 0xCA45_1A4E];
    file::system_of(fd).is_ok_and(|system| CLONING.contains(&system))
}

/// Makes all contents of `from` those of `to`, an empty file of the same file system, which has
/// them in common until one is written to.
///
/// # Errors
/// As `ioctl(2)` with `FICLONE`: `EOPNOTSUPP` where the file system cannot.
pub fn clone_file(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<()> {
    const FICLONE: u32 = 0x4004_9409;
    let (from, to) = (from.as_raw_fd(), to.as_raw_fd());
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_ioctl, to, FICLONE, from) }.map(drop)
}
