//! Calls that name a file by its path.
//!
//! A path means a mapped file when it is the one given with `--map`, or that with the links of its
//! folder followed, after `.`, `..` and doubled slashes are taken out of it by their names. Links
//! elsewhere in it are not followed: what they lead to is not asked for.

use farpage_object::fds;
use farpage_object::maps::{Maps, PATH_MAX};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, file, syscall};

use super::executed::{is_executable, own_name};
use super::{by_identity, keep};
use crate::program::{self, HERE, Reader};
use crate::start;

const ENODATA: Errno = Errno(61);
const WRITE_OK: usize = 2;
const EXECUTE_OK: usize = 1;

/// # Safety
/// As the call that the program made.
pub(super) unsafe fn call(maps: &Maps, number: u32, args: [usize; 6]) -> Option<Result<usize>> {
    let [a, b, c, d, e, _] = args;
    let at = |dir, path| named(maps, dir, path);
    let opened = |dir, path| opened(maps, dir, path);
    match number {
        g::__NR_open => Some(open(opened(HERE, a)?, b)),
        g::__NR_creat => {
            opened(HERE, a)?;
            Some(Err(Errno::EROFS))
        }
        g::__NR_openat => Some(open(opened(a, b)?, c)),
        g::__NR_openat2 => {
            let file = opened(a, b)?;
            Some(program::read::<u64>(c).and_then(|flags| open(file, flags as usize)))
        }
        g::__NR_stat | g::__NR_lstat => Some(stat(at(HERE, a)?, b)),
        g::__NR_newfstatat => Some(stat(at(a, b)?, c)),
        g::__NR_statx => Some(statx(at(a, b)?, c, d, e)),
        g::__NR_access => {
            let file = at(HERE, a)?;
            Some(access(b, is_executable(maps, file)))
        }
        g::__NR_faccessat | g::__NR_faccessat2 => {
            let file = at(a, b)?;
            Some(access(c, is_executable(maps, file)))
        }
        // It is no link.
        g::__NR_readlink => at(HERE, a)
            .map(|_| Err(Errno::EINVAL))
            .or_else(|| own_name(maps, a, b, c)),
        g::__NR_readlinkat => at(a, b)
            .map(|_| Err(Errno::EINVAL))
            .or_else(|| own_name(maps, b, c, d)),
        g::__NR_getxattr | g::__NR_lgetxattr => at(HERE, a).map(|_| Err(ENODATA)),
        g::__NR_listxattr | g::__NR_llistxattr => at(HERE, a).map(|_| Ok(0)),
        g::__NR_truncate | g::__NR_unlink | g::__NR_chmod => refused(at(HERE, a)),
        g::__NR_unlinkat | g::__NR_fchmodat | g::__NR_fchmodat2 => refused(at(a, b)),
        g::__NR_rename | g::__NR_link => refused(at(HERE, a).or_else(|| at(HERE, b))),
        g::__NR_renameat | g::__NR_renameat2 | g::__NR_linkat => {
            refused(at(a, b).or_else(|| at(c, d)))
        }
        _ => None,
    }
}

/// What would change a mapped file, or its name.
fn refused(file: Option<usize>) -> Option<Result<usize>> {
    file.map(|_| Err(Errno::EROFS))
}

/// The descriptor to read and write of a file.
pub(super) fn mapped(file: usize) -> file::Fd {
    start::descriptor(fds::MAPPED + file as u32)
}

fn open(file: usize, flags: usize) -> Result<usize> {
    let flags = flags as u32;
    if flags & g::O_CREAT != 0 && flags & g::O_EXCL != 0 {
        return Err(Errno::EEXIST);
    }
    if flags & g::O_DIRECTORY != 0 {
        return Err(Errno::ENOTDIR);
    }
    if flags & g::O_ACCMODE != g::O_RDONLY || flags & g::O_TRUNC != 0 {
        return Err(Errno::EROFS);
    }
    // Opened anew, for a position of its own.
    let how = flags & (g::O_NONBLOCK | g::O_PATH);
    let opened = file::open_again(mapped(file), how).inspect_err(|errno| {
        if *errno == Errno::ENOENT {
            super::say("mapped files cannot be opened without /proc; mount it");
        }
    })?;
    keep(opened, 0, flags & g::O_CLOEXEC != 0)
}

fn stat(file: usize, to: usize) -> Result<usize> {
    // SAFETY: Linux checks the program's pointer.
    unsafe { syscall!(g::__NR_fstat, mapped(file).0, to) }
}

fn statx(file: usize, flags: usize, mask: usize, to: usize) -> Result<usize> {
    let flags = flags | g::AT_EMPTY_PATH as usize;
    let fd = mapped(file).0;
    // SAFETY: Linux checks the program's pointer; the path is a string of ours.
    unsafe { syscall!(g::__NR_statx, fd, c"".as_ptr(), flags, mask, to) }
}

fn access(mode: usize, is_executable: bool) -> Result<usize> {
    match mode {
        _ if mode & WRITE_OK != 0 => Err(Errno::EROFS),
        _ if mode & EXECUTE_OK != 0 && !is_executable => Err(Errno::EACCES),
        _ => Ok(0),
    }
}

/// The mapped file that `path`, seen from `dir`, names. Whatever is wrong with it is left to Linux
/// to tell.
fn named(maps: &Maps, dir: usize, path: usize) -> Option<usize> {
    let path = Reader::new().string(path).ok()?;
    let name = path.rsplit(|byte| *byte == b'/').next()?;
    let has_name = |path: &farpage_object::maps::Path| !name.is_empty() && path.ends_with(name);
    let mut files = maps.files().iter();
    if files.any(|file| file.paths.iter().any(has_name)) {
        let mut absolute = [0; 2 * PATH_MAX];
        let length = absolute_path(dir as i32, path, &mut absolute)?;
        let is_it = |file: &farpage_object::maps::MappedFile| {
            file.paths.iter().any(|path| path.is(&absolute[..length]))
        };
        return maps.files().iter().position(is_it);
    }
    None
}

/// As [`named`], for a path that is opened: it may also lead to an open descriptor of one.
pub(super) fn opened(maps: &Maps, dir: usize, path: usize) -> Option<usize> {
    named(maps, dir, path).or_else(|| by_identity(maps, file::identity_at(dir, path).ok()?))
}

/// Writes `path`, seen from `dir`, without `.`, `..` and doubled slashes. Returns its length.
fn absolute_path(dir: i32, path: &[u8], to: &mut [u8; 2 * PATH_MAX]) -> Option<usize> {
    let mut length = 0;
    if path.first() != Some(&b'/') {
        length = folder(dir, to)?;
    }
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                length = to[..length]
                    .iter()
                    .rposition(|byte| *byte == b'/')
                    .unwrap_or(0)
            }
            name => {
                to.get_mut(length..length + 1 + name.len())?[0] = b'/';
                to[length + 1..length + 1 + name.len()].copy_from_slice(name);
                length += 1 + name.len();
            }
        }
    }
    Some(length)
}

/// The path of the folder that `dir` is, with nothing for the root.
fn folder(dir: i32, to: &mut [u8; 2 * PATH_MAX]) -> Option<usize> {
    let at = to.as_mut_ptr();
    let length = if dir == g::AT_FDCWD {
        // SAFETY: the buffer has that many bytes.
        unsafe { syscall!(g::__NR_getcwd, at, PATH_MAX) }.ok()? - 1
    } else {
        let name = file::path_of(file::Fd(dir));
        // SAFETY: a string of ours, and a buffer of that many bytes.
        unsafe { syscall!(g::__NR_readlink, name.as_ptr(), at, PATH_MAX) }.ok()?
    };
    Some(if to[..length] == *b"/" { 0 } else { length })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absolute(path: &[u8]) -> alloc::vec::Vec<u8> {
        let mut to = [0; 2 * PATH_MAX];
        let length = absolute_path(g::AT_FDCWD, path, &mut to).unwrap();
        to[..length].to_vec()
    }

    #[test]
    fn names_are_taken_as_they_are_written() {
        assert_eq!(absolute(b"//data/./x/../set.npy"), b"/data/set.npy");
        assert_eq!(absolute(b"/../a"), b"/a");
        let here = absolute(b".");
        assert!(here.starts_with(b"/") && absolute(b"f").starts_with(&here));
        assert_eq!(absolute(b"f").len(), here.len() + 2);
    }
}
