//! Locks that programs put on parts of files. Bytes that no file has are locked by Farpage, so locks of
//! whole files end before those.

use farpage_abi::shm::{LOCKED_FROM, Shm};
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, syscall};

use super::status_of;
use crate::program;
use crate::trap::{self, Outcome};

const F_GETLK: u32 = 5;
const F_SETLK: u32 = 6;
const F_SETLKW: u32 = 7;
const F_OFD_GETLK: u32 = 36;
const F_OFD_SETLK: u32 = 37;
const F_OFD_SETLKW: u32 = 38;

/// `struct flock`: kind, whence, start, length, process.
#[derive(Clone, Copy)]
#[repr(C)]
struct Lock {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    process: i32,
}

impl Lock {
    /// The same lock, if it reaches what Farpage locks, without that.
    fn cut(self, fd: Fd) -> Option<Self> {
        let from = match self.whence as u32 {
            g::SEEK_SET => 0,
            // SAFETY: takes no pointer.
            g::SEEK_CUR => unsafe { syscall!(g::__NR_lseek, fd.0, 0, g::SEEK_CUR) }.ok()? as i64,
            g::SEEK_END => file::status(fd).ok()?.bytes as i64,
            _ => return None,
        };
        let start = from.checked_add(self.start).filter(|start| *start >= 0)?;
        let end = match self.length {
            0 => i64::MAX,
            length => start.checked_add(length)?,
        };
        let most = LOCKED_FROM as i64;
        (start < most && end > most).then_some(Self {
            whence: g::SEEK_SET as i16,
            start,
            length: most - start,
            ..self
        })
    }

    /// As the program knows it: to the end of the file, wherever that is.
    fn whole(self) -> Self {
        let is_cut = self.start.checked_add(self.length) == Some(LOCKED_FROM as i64);
        Self {
            length: if is_cut { 0 } else { self.length },
            ..self
        }
    }
}

/// `fcntl` with a lock of a whole file whose pages may be kept here.
pub(super) fn call(shm: &Shm, [fd, command, at, ..]: [usize; 6]) -> Option<Outcome> {
    let command = command as u32;
    let at_once = match command {
        F_SETLKW => F_SETLK,
        F_OFD_SETLKW => F_OFD_SETLK,
        F_GETLK | F_SETLK | F_OFD_GETLK | F_OFD_SETLK => command,
        _ => return None,
    };
    let file = Fd(fd as i32);
    status_of(shm, file)?;
    let asked = program::read::<Lock>(at).ok()?;
    let cut = asked.cut(file)?;
    let mut lock = cut;
    let pointer = (&raw mut lock).expose_provenance();
    // SAFETY: the program's own call, with a lock of ours that it may write to.
    let done = unsafe { trap::pass(g::__NR_fcntl, [fd, at_once as usize, pointer, 0, 0, 0]) };
    if matches!(command, F_GETLK | F_OFD_GETLK) && done.is_ok() {
        let answer = match lock.kind as u32 {
            g::F_UNLCK => Lock {
                kind: lock.kind,
                ..asked
            },
            _ => lock.whole(),
        };
        return Some(Outcome::Done(program::write(at, &answer).map(|()| 0)));
    }
    let must_wait = at_once != command && matches!(done, Err(Errno::EAGAIN | Errno::EACCES));
    // Linux reads the lock again after signals: it has to be where the program has it.
    if must_wait && program::write(at, &cut).is_ok() {
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
