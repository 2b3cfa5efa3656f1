//! Locks that programs put on parts of files. Bytes that no file has are locked by Farpage, so locks of
//! whole files end before those.

use farpage_object::shm::{LOCKED_FROM, Shm};
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, syscall};

use super::status_of;
use crate::program;
use crate::trap::{self, Outcome};

/// A lock that reaches what Farpage locks, without that. `None`: it does not.
fn cut(asked: g::flock, fd: Fd) -> Option<g::flock> {
    let from = match asked.l_whence as u32 {
        g::SEEK_SET => 0,
        // SAFETY: takes no pointer.
        g::SEEK_CUR => unsafe { syscall!(g::__NR_lseek, fd.0, 0, g::SEEK_CUR) }.ok()? as i64,
        g::SEEK_END => file::status(fd).ok()?.bytes as i64,
        _ => return None,
    };
    let start = from
        .checked_add(asked.l_start)
        .filter(|start| *start >= 0)?;
    let end = match asked.l_len {
        0 => i64::MAX,
        length => start.checked_add(length)?,
    };
    let most = LOCKED_FROM as i64;
    (start < most && end > most).then_some(g::flock {
        l_whence: g::SEEK_SET as i16,
        l_start: start,
        l_len: most - start,
        ..asked
    })
}

/// A lock as programs know it: to the end of the file, wherever that is.
fn whole(lock: g::flock) -> g::flock {
    let is_cut = lock.l_start.checked_add(lock.l_len) == Some(LOCKED_FROM as i64);
    g::flock {
        l_len: if is_cut { 0 } else { lock.l_len },
        ..lock
    }
}

/// `fcntl` with a lock of a whole file whose pages may be kept here.
pub(super) fn call(shm: &Shm, [fd, command, at, ..]: [usize; 6]) -> Option<Outcome> {
    let command = command as u32;
    let at_once = match command {
        g::F_SETLKW => g::F_SETLK,
        g::F_OFD_SETLKW => g::F_OFD_SETLK,
        g::F_GETLK | g::F_SETLK | g::F_OFD_GETLK | g::F_OFD_SETLK => command,
        _ => return None,
    };
    let file = Fd(fd as i32);
    status_of(shm, file)?;
    let asked = program::read::<g::flock>(at).ok()?;
    let shorter = cut(asked, file)?;
    let mut lock = shorter;
    let pointer = (&raw mut lock).expose_provenance();
    // SAFETY: the program's own call, with a lock of ours that it may write to.
    let done = unsafe { trap::pass(g::__NR_fcntl, [fd, at_once as usize, pointer, 0, 0, 0]) };
    if matches!(command, g::F_GETLK | g::F_OFD_GETLK) && done.is_ok() {
        let answer = match lock.l_type as u32 {
            g::F_UNLCK => g::flock {
                l_type: lock.l_type,
                ..asked
            },
            _ => whole(lock),
        };
        return Some(Outcome::Done(program::write(at, &answer).map(|()| 0)));
    }
    let must_wait = at_once != command && matches!(done, Err(Errno::EAGAIN | Errno::EACCES));
    // Linux reads the lock again after signals: it has to be where the program has it.
    if must_wait && program::write(at, &shorter).is_ok() {
        return Some(Outcome::WaitIn(g::__NR_fcntl, [fd, command as usize, at]));
    }
    // One that cannot be written to is waited for with signals held up.
    if must_wait {
        // SAFETY: as above.
        let done = unsafe { trap::pass(g::__NR_fcntl, [fd, command as usize, pointer, 0, 0, 0]) };
        return Some(Outcome::Done(done));
    }
    Some(Outcome::Done(done))
}
