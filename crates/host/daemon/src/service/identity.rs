//! Which process calls, and which memory file it names.

use std::os::fd::OwnedFd;

use farpage_port::Sender;

/// Device and inode number of a memory file. `None` for other files, which are not asked: some of
/// them are answered for by processes, and may never answer.
pub(super) fn identity_of(file: &OwnedFd) -> Option<(u64, u64)> {
    rustix::fs::fcntl_get_seals(file).ok()?;
    let stat = rustix::fs::fstat(file).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

/// User and process of a caller.
pub(crate) fn identity(caller: Sender) -> (u32, u32) {
    match caller {
        Sender::Peer { uid, pid, .. } => (uid, pid),
        Sender::Own | Sender::Notice => (rustix::process::geteuid().as_raw(), std::process::id()),
    }
}
