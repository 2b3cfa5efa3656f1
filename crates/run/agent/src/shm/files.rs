//! Opening files of shared memory.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use farpage_object::shm::{Ask, Kind, Shm};
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result};

use super::connection::{STATE, State};
use super::descriptors::Pages;
use super::{descriptors, is_one, status_of};
use crate::program::{self, HERE, Reader};
use crate::{maps, trap};

pub(super) fn call(shm: &Shm, number: u32, args: [usize; 6], mask: u64) -> Option<Result<usize>> {
    let [a, b, c, d, ..] = args;
    let (dir, path, flags) = match number {
        g::__NR_open => (HERE, a, b as u32),
        g::__NR_creat => (HERE, a, g::O_CREAT | g::O_WRONLY | g::O_TRUNC),
        g::__NR_openat => (a, b, c as u32),
        g::__NR_openat2 => (a, b, program::read::<u64>(c).ok()? as u32),
        _ => return truncate(shm, a, b, mask),
    };
    if flags & g::O_PATH != 0 {
        return None;
    }
    let before = candidate(shm, dir, path, flags)?;
    // A process that ends between making a file and telling of it leaves no name.
    let mut state = STATE.lock();
    let is_new = before == Before::Nothing && flags & g::O_TMPFILE != g::O_TMPFILE;
    let told = is_new.then(|| tell_of_making(&mut state, dir, path));
    if let (Some(Err(errno)), true) = (told, shm.is_cluster()) {
        return Some(Err(errno));
    }
    let is_told = told == Some(Ok(()));
    // What others are writing to just now is emptied when they are done.
    let is_emptied =
        flags & g::O_TRUNC != 0 && flags & g::O_ACCMODE != g::O_RDONLY && number != g::__NR_openat2;
    let (number, args, flags) = match is_emptied {
        true => {
            let flags = flags & !g::O_TRUNC;
            let mode = match number {
                g::__NR_creat => b,
                g::__NR_open => c,
                _ => d,
            };
            let args = [dir, path, flags as usize, mode, 0, 0];
            (g::__NR_openat, args, flags)
        }
        false => (number, args, flags),
    };
    // Nothing of it waits: it is a regular file, or will be one.
    // SAFETY: the program's own call.
    let opened = unsafe { trap::pass(number, args) };
    let made = opened.map(|fd| tell(shm, &mut state, Fd(fd as i32), flags, &before));
    if is_told && made != Ok(true) {
        state.made_nothing();
    }
    drop(state);
    let fd = match opened {
        Ok(fd) => Fd(fd as i32),
        Err(errno) => return Some(Err(errno)),
    };
    let has_bytes = || file::status(fd).is_ok_and(|status| status.bytes > 0);
    if is_emptied
        && (before != Before::Nothing || has_bytes())
        && let Err(errno) = descriptors::set_size(shm, fd, 0, mask)
    {
        file::close(fd);
        return Some(Err(errno));
    }
    if let (Before::Bytes(bytes), true) = (before, shm.is_cluster())
        && flags & g::O_TRUNC != 0
        && let Ok(Pages::Kept(object)) = descriptors::pages_of(fd)
    {
        descriptors::were_cut(&object, 0, bytes as usize);
    }
    Some(Ok(keep(shm, fd, flags)))
}

/// The supervisor is told which file is about to be made.
fn tell_of_making(state: &mut State, dir: usize, path: usize) -> Result<()> {
    let path = Reader::new().string(path)?;
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let folder = folder_of(path);
    let flags = (g::O_PATH | g::O_CLOEXEC) as usize;
    let at = folder.as_ptr().expose_provenance();
    // SAFETY: a string of ours.
    let open = || unsafe { trap::pass(g::__NR_openat, [dir, at, flags, 0, 0, 0]) };
    let folder = Fd(file::with_room(open)? as i32);
    let told = state.ask_named(Ask::new(Kind::Making), Some(folder), name);
    file::close(folder);
    told.map(drop)
}

/// The path of the folder that `path` is in, and a zero.
fn folder_of(path: &[u8]) -> Vec<u8> {
    let mut folder = match path.iter().rposition(|byte| *byte == b'/') {
        Some(end) => path[..=end].to_vec(),
        None => b".".to_vec(),
    };
    folder.push(0);
    folder
}

/// What there was before.
#[derive(PartialEq, Eq)]
enum Before {
    Nothing,
    Empty,
    Bytes(u64),
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
        Ok(status) => Some(Before::Bytes(status.bytes)),
        Err(Errno::ENOENT) if flags & g::O_CREAT != 0 => {
            let folder = folder_of(Reader::new().string(path).ok()?);
            let at = folder.as_ptr().expose_provenance();
            let status = file::status_at(dir, at, 0).ok()?;
            (status.device == device).then_some(Before::Nothing)
        }
        Err(_) => None,
    }
}

/// Tells the supervisor what it must know. True when that is what was made; what it does not know
/// stays Linux's.
fn tell(shm: &Shm, state: &mut State, fd: Fd, flags: u32, before: &Before) -> bool {
    let kind = match before {
        Before::Nothing => Kind::Made,
        Before::Bytes(_) if flags & g::O_TRUNC != 0 => Kind::Size,
        Before::Empty | Before::Bytes(_) => return false,
    };
    status_of(shm, fd).is_some() && state.ask(Ask::new(kind), Some(fd)).is_ok()
}

/// Gives a descriptor a number that the filter knows.
pub(super) fn keep(shm: &Shm, fd: Fd, flags: u32) -> usize {
    let number = fd.0 as usize;
    if status_of(shm, fd).is_none() {
        return number;
    }
    match maps::duplicate(fd, 0, flags & g::O_CLOEXEC != 0) {
        Ok(kept) => {
            file::close(fd);
            kept
        }
        // There are no such numbers left.
        Err(_) => {
            descriptors::see(fd);
            number
        }
    }
}

fn truncate(shm: &Shm, path: usize, bytes: usize, mask: u64) -> Option<Result<usize>> {
    let status = file::status_at(HERE, path, 0).ok()?;
    if !is_one(shm, &status) {
        return None;
    }
    let flags = (g::O_WRONLY | g::O_CLOEXEC) as usize;
    // SAFETY: the program's own string.
    let opened = unsafe { trap::pass(g::__NR_openat, [HERE, path, flags, 0, 0, 0]) };
    Some(opened.and_then(|fd| {
        let fd = Fd(fd as i32);
        let done = descriptors::set_size(shm, fd, bytes, mask);
        file::close(fd);
        done
    }))
}
