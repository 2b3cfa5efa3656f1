//! Calls on descriptors of mapped files, but for `mmap`.

use farpage_object::maps::Maps;
use farpage_sys::file::Fd;
use farpage_sys::linux::general as g;
use farpage_sys::seccomp::later::{self, Unseen};
use farpage_sys::{Errno, Result, syscall};

use super::{duplicate, file_of, read, say, size_of_file};
use crate::transfer::{IOV_MAX, Transfer, Way};
use crate::{program, sandbox};

const EXDEV: Errno = Errno(18);

pub(super) fn call(maps: &Maps, number: u32, args: [usize; 6]) -> Option<Result<usize>> {
    let [fd, b, c, ..] = args;
    let file = match number {
        g::__NR_sendmsg => return sends(maps, b).then_some(Err(Errno::EBADF)),
        g::__NR_sendmmsg => return sends_several(maps, b, c).then_some(Err(Errno::EBADF)),
        _ => file_of(maps, fd)?,
    };
    match number {
        g::__NR_copy_file_range => Some(Err(EXDEV)),
        g::__NR_lseek => Some(seek(maps, file, fd, b, c as u32)),
        g::__NR_dup => Some(duplicate(Fd(fd as i32), 0, false)),
        g::__NR_dup2 => Some(duplicate_to(maps, fd, b, 0)),
        g::__NR_dup3 if fd as u32 == b as u32 => Some(Err(Errno::EINVAL)),
        g::__NR_dup3 => Some(duplicate_to(maps, fd, b, c)),
        g::__NR_fcntl => match b as u32 {
            g::F_DUPFD => Some(duplicate(Fd(fd as i32), c, false)),
            g::F_DUPFD_CLOEXEC => Some(duplicate(Fd(fd as i32), c, true)),
            _ => None,
        },
        _ => match Transfer::meant(number, args)? {
            Ok(meant) if meant.way == Way::Out => Some(match meant.at {
                Some(at) => read::read_at(maps, file, at, &meant.pieces),
                None => read::read(maps, file, fd, &meant.pieces),
            }),
            Ok(_) => None,
            Err(errno) => Some(Err(errno)),
        },
    }
}

/// Data everywhere, and one hole at the end: pages that are not there are none.
fn seek(maps: &Maps, file: usize, fd: usize, offset: usize, whence: u32) -> Result<usize> {
    let size = size_of_file(maps, file) as usize;
    let to = match whence {
        _ if offset >= size => return Err(Errno::ENXIO),
        g::SEEK_DATA => offset,
        g::SEEK_HOLE => size,
        _ => return Err(Errno::EINVAL),
    };
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_lseek, fd, to, g::SEEK_SET) }
}

/// `dup2` and `dup3`. A number that the filter does not know it is told of, unless a program's own filter may forbid
/// that.
fn duplicate_to(maps: &Maps, fd: usize, to: usize, flags: usize) -> Result<usize> {
    if fd as u32 == to as u32 {
        return Ok(to);
    }
    let is_told = || !sandbox::is_on() && later::see(Unseen::Descriptor(to as u32)).is_ok();
    if to > 2 && !super::is_kept(to) && !is_told() {
        let first = super::kept().start;
        let path = super::path_of(maps, fd);
        say(&alloc::format!(
            "cannot make '{path}' descriptor {to} of a program with a filter of its own: there mapped files \
             can be 0, 1, 2, and from {first} on; let the system choose the number"
        ));
        return Err(Errno::EBADF);
    }
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_dup3, fd, to, flags) }
}

/// `struct msghdr`, as far as it is looked at.
type Message = [usize; 7];

/// The message at `at` carries a descriptor of a mapped file: where it arrives nobody would know
/// it.
fn sends(maps: &Maps, at: usize) -> bool {
    const SOL_SOCKET: i32 = 1;
    const SCM_RIGHTS: i32 = 1;
    let Ok([_, _, _, _, control, bytes, _]) = program::read::<Message>(at) else {
        return false;
    };
    let end = control.saturating_add(bytes);
    let mut at = control;
    while at + 16 <= end {
        let (Ok(length), Ok([level, kind])) = (
            program::read::<usize>(at),
            program::read::<[i32; 2]>(at + 8),
        ) else {
            return false;
        };
        let fds = (level, kind) == (SOL_SOCKET, SCM_RIGHTS);
        let mut fd = at + 16;
        while fds && fd + 4 <= at.saturating_add(length).min(end) {
            let number = program::read::<u32>(fd).unwrap_or(u32::MAX);
            if file_of(maps, number as usize).is_some() {
                let path = super::path_of(maps, number as usize);
                say(&alloc::format!(
                    "cannot send '{path}' to another process: mapped files are opened by their \
                     path; send the path"
                ));
                return true;
            }
            fd += 4;
        }
        if length < 16 {
            return false;
        }
        at = at.saturating_add(length.next_multiple_of(8));
    }
    false
}

fn sends_several(maps: &Maps, at: usize, count: usize) -> bool {
    const EACH: usize = size_of::<Message>() + 8;
    (0..count.min(IOV_MAX)).any(|i| sends(maps, at + i * EACH))
}
