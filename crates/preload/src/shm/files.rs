//! Opening files of shared memory.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use farpage_abi::shm::{Ask, Kind, Shm};
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result};

use super::connection::STATE;
use super::{descriptors, is_one, status_of};
use crate::program::{self, Reader};
use crate::{maps, trap};

const HERE: usize = g::AT_FDCWD as isize as usize;

pub(super) fn call(shm: &Shm, number: u32, args: [usize; 6]) -> Option<Result<usize>> {
    let [a, b, c, ..] = args;
    let (dir, path, flags) = match number {
        g::__NR_open => (HERE, a, b as u32),
        g::__NR_creat => (HERE, a, g::O_CREAT | g::O_WRONLY | g::O_TRUNC),
        g::__NR_openat => (a, b, c as u32),
        g::__NR_openat2 => (a, b, program::read::<u64>(c).ok()? as u32),
        _ => return truncate(shm, a, b),
    };
    if flags & g::O_PATH != 0 {
        return None;
    }
    let before = candidate(shm, dir, path, flags)?;
    // Nothing of it waits: it is a regular file, or will be one.
    // SAFETY: the program's own call.
    Some(unsafe { trap::pass(number, args) }.map(|fd| opened(shm, fd, flags, before)))
}

/// What there was before.
#[derive(PartialEq, Eq)]
enum Before {
    Nothing,
    Empty,
    Bytes,
}

/// What the path leads to, if it can be a file of shared memory.
fn candidate(shm: &Shm, dir: usize, path: usize, flags: u32) -> Option<Before> {
    let how = match flags & g::O_NOFOLLOW {
        0 => 0,
        _ => g::AT_SYMLINK_NOFOLLOW,
    };
    let device = shm.device.load(Ordering::Relaxed);
    match file::status_at(dir, path, how) {
        Ok(status) if flags & g::O_TMPFILE == g::O_TMPFILE => {
            (status.device == device && status.is_folder()).then_some(Before::Nothing)
        }
        Ok(status) if !is_one(shm, &status) => None,
        Ok(status) if status.bytes == 0 => Some(Before::Empty),
        Ok(_) => Some(Before::Bytes),
        Err(Errno::ENOENT) if flags & g::O_CREAT != 0 => {
            let path = Reader::new().string(path).ok()?;
            let mut folder: Vec<u8> = match path.iter().rposition(|byte| *byte == b'/') {
                Some(end) => path[..=end].to_vec(),
                None => b".".to_vec(),
            };
            folder.push(0);
            let at = folder.as_ptr().expose_provenance();
            let status = file::status_at(dir, at, 0).ok()?;
            (status.device == device).then_some(Before::Nothing)
        }
        Err(_) => None,
    }
}

/// Tells the supervisor what it must know, and gives the descriptor a number that the filter knows.
fn opened(shm: &Shm, number: usize, flags: u32, before: Before) -> usize {
    let fd = Fd(number as i32);
    if status_of(shm, fd).is_none() {
        return number;
    }
    let kind = match before {
        Before::Nothing => Some(Kind::Made),
        Before::Bytes if flags & g::O_TRUNC != 0 => Some(Kind::Size),
        Before::Empty | Before::Bytes => None,
    };
    if let Some(kind) = kind {
        // What the supervisor does not know stays Linux's.
        let _ = STATE.lock().ask(Ask::new(kind), Some(fd));
    }
    match maps::duplicate(fd, 0, flags & g::O_CLOEXEC != 0) {
        Ok(kept) => {
            file::close(fd);
            kept
        }
        // There are no such numbers left: this one can be mapped, and read until then.
        Err(_) => number,
    }
}

fn truncate(shm: &Shm, path: usize, bytes: usize) -> Option<Result<usize>> {
    let status = file::status_at(HERE, path, 0).ok()?;
    if !is_one(shm, &status) {
        return None;
    }
    let flags = (g::O_WRONLY | g::O_CLOEXEC) as usize;
    // SAFETY: the program's own string.
    let opened = unsafe { trap::pass(g::__NR_openat, [HERE, path, flags, 0, 0, 0]) };
    Some(opened.and_then(|fd| {
        let fd = Fd(fd as i32);
        let done = descriptors::set_size(fd, &status, bytes);
        file::close(fd);
        done
    }))
}
