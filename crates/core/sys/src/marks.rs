//! Marks on files: locks of bytes that no file has. One that is put by an open file lasts as
//! long as that, wherever its descriptors are, on their way between processes too, and as long as a
//! mapping of it.

use farpage_object::shm::LOCKED_FROM;
use linux_raw_sys::general as g;

use crate::file::Fd;
use crate::raw::{Errno, Result};
use crate::syscall;

/// A lock of one byte, by this open file.
fn of(kind: u32, byte: u64) -> g::flock {
    g::flock {
        l_type: kind as i16,
        l_whence: 0,
        l_start: byte as i64,
        l_len: 1,
        l_pid: 0,
    }
}

fn set(fd: Fd, kind: u32, byte: u64) -> Result<()> {
    let lock = of(kind, byte);
    // SAFETY: `lock` is valid for reads of a `struct flock`.
    unsafe { syscall!(g::__NR_fcntl, fd.0, g::F_OFD_SETLK, &raw const lock) }.map(drop)
}

/// Takes the byte [`LOCKED_FROM`] of the file for this open file, which can be read by: no other has it.
///
/// # Errors
/// As `fcntl(2)` with `F_OFD_SETLK`: `EAGAIN` when another has it, or takes it just now.
pub fn claim(fd: Fd) -> Result<()> {
    put(fd, LOCKED_FROM)?;
    if is_claimed(fd) {
        release(fd, LOCKED_FROM);
        return Err(Errno::EAGAIN);
    }
    Ok(())
}

/// True when another open file than this one has claimed the file.
pub fn is_claimed(fd: Fd) -> bool {
    are_there(fd, LOCKED_FROM)
}

/// Puts the mark `byte` on the file, by this open file, which can be read by.
///
/// # Errors
/// As `fcntl(2)` with `F_OFD_SETLK`.
pub fn put(fd: Fd, byte: u64) -> Result<()> {
    set(fd, g::F_RDLCK, byte)
}

/// True when another open file than this one has put the mark `byte` on the file.
pub fn are_there(fd: Fd, byte: u64) -> bool {
    let mut lock = of(g::F_WRLCK, byte);
    // SAFETY: `lock` is valid for writes of a `struct flock`.
    let asked = unsafe { syscall!(g::__NR_fcntl, fd.0, g::F_OFD_GETLK, &raw mut lock) };
    asked.is_ok() && lock.l_type != g::F_UNLCK as i16
}

/// Takes the byte `byte` of the file for this open file: `alone`, which must be one to write by, or
/// together with others that do not want it alone. False when another open file has it.
///
/// # Errors
/// As `fcntl(2)` with `F_OFD_SETLK`.
pub fn take(fd: Fd, byte: u64, alone: bool) -> Result<bool> {
    match set(fd, if alone { g::F_WRLCK } else { g::F_RDLCK }, byte) {
        Ok(()) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// This open file has the byte `byte` no longer, also where a child has a copy of its descriptor.
pub fn release(fd: Fd, byte: u64) {
    // Without it the byte is released when the last descriptor is closed.
    let _ = set(fd, g::F_UNLCK, byte);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{file, mem};

    #[test]
    fn a_mark_lasts_as_long_as_the_open_file_that_put_it() {
        let fd = file::memfd(c"marked", 0).unwrap();
        file::set_size(fd, 4096).unwrap();
        let other = file::open_again(fd, g::O_RDONLY).unwrap();
        assert!(!are_there(other, 7 << 40));
        put(fd, 7 << 40).unwrap();
        assert!(are_there(other, 7 << 40) && !are_there(other, (7 << 40) + 1));
        assert!(!are_there(fd, 7 << 40), "it is its own");
        let at = mem::map_shared(fd, 4096).unwrap();
        file::close(fd);
        assert!(are_there(other, 7 << 40), "it is mapped");
        // SAFETY: mapped above, and not used.
        unsafe { mem::unmap(at, 4096) }.unwrap();
        assert!(!are_there(other, 7 << 40));
        file::close(other);
    }

    #[test]
    fn a_byte_is_had_by_one_alone_or_by_several_together() {
        let fd = file::memfd(c"taken", 0).unwrap();
        let other = file::open_again(fd, g::O_RDWR).unwrap();
        assert_eq!(take(fd, 0, false), Ok(true));
        assert_eq!(
            [take(other, 0, true), take(other, 0, false)],
            [Ok(false), Ok(true)]
        );
        release(fd, 0);
        assert_eq!(
            [take(other, 0, true), take(fd, 0, false)],
            [Ok(true), Ok(false)]
        );
        file::close(other);
        assert_eq!(take(fd, 0, true), Ok(true), "it ends with the open file");
        file::close(fd);
    }
}
