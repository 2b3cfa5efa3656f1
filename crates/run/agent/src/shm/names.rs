//! Names of a cluster's memory: what is done to one is done at all hosts.

use farpage_object::shm::{Ask, Kind, Shm};
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result};

use super::connection::STATE;
use super::{is_one, say};
use crate::program::{HERE, Reader};
use crate::trap;

const IPC_RMID: u32 = 0;
/// What libraries add to commands of System V.
const IPC_64: u32 = 0x100;

/// # Safety
/// As the call that the program made.
pub(super) unsafe fn call(shm: &Shm, number: u32, args: [usize; 6]) -> Option<Result<usize>> {
    let [a, b, c, d, e, _] = args;
    match number {
        g::__NR_unlink => is_file(shm, HERE, a, 0)?,
        g::__NR_unlinkat if c as u32 & g::AT_REMOVEDIR == 0 => is_file(shm, a, b, 0)?,
        g::__NR_shmctl if b as u32 & !IPC_64 == IPC_RMID => {}
        g::__NR_link => return link(shm, number, args, (HERE, a, 0), b),
        g::__NR_linkat => return link(shm, number, args, (a, b, e as u32), d),
        g::__NR_rename => return renames(shm, HERE, a),
        g::__NR_renameat | g::__NR_renameat2 => return renames(shm, a, b),
        _ => return None,
    }
    // SAFETY: forwarded.
    let done = unsafe { trap::pass(number, args) };
    if done.is_ok() {
        // What could not be told is removed when the run ends.
        let _ = STATE.lock().ask(Ask::new(Kind::Removed), None);
    }
    Some(done)
}

/// `None` where the path does not lead to a file of shared memory.
fn is_file(shm: &Shm, dir: usize, path: usize, flags: u32) -> Option<()> {
    let how = match flags & g::AT_SYMLINK_FOLLOW {
        0 => g::AT_SYMLINK_NOFOLLOW,
        _ => 0,
    };
    let status = file::status_at(dir, path, how).ok()?;
    is_one(shm, &status).then_some(())
}

fn link(
    shm: &Shm,
    number: u32,
    args: [usize; 6],
    (dir, path, flags): (usize, usize, u32),
    to: usize,
) -> Option<Result<usize>> {
    is_file(shm, dir, path, flags)?;
    let open = (g::O_RDONLY | g::O_CLOEXEC) as usize;
    // SAFETY: the program's own string.
    let opened = unsafe { trap::pass(g::__NR_openat, [dir, path, open, 0, 0, 0]) };
    let from = Fd(opened.ok()? as i32);
    let told = Reader::new().string(to).and_then(|to| {
        let ask = Ask::new(Kind::Link);
        STATE.lock().ask_named(ask, Some(from), to)
    });
    file::close(from);
    match told {
        // It is this run's alone, or leads elsewhere.
        // SAFETY: forwarded.
        Err(Errno::ENOENT) => Some(unsafe { trap::pass(number, args) }),
        told => Some(told.map(|_| 0)),
    }
}

fn renames(shm: &Shm, dir: usize, path: usize) -> Option<Result<usize>> {
    is_file(shm, dir, path, 0)?;
    say(
        "a file of /dev/shm is renamed at this host only, and stays what it was at others: give it its \
         name when it is made",
    );
    None
}
