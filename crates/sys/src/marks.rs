//! Marks on files: read locks of bytes that no file has. One that is put by an open file lasts as
//! long as that, wherever its descriptors are, on their way between processes too, and as long as a
//! mapping of it.

use linux_raw_sys::general as g;

use crate::file::Fd;
use crate::raw::Result;
use crate::syscall;

const F_OFD_GETLK: u32 = 36;
const F_OFD_SETLK: u32 = 37;

/// `struct flock`: kind, whence, start, length, process.
#[repr(C)]
struct Lock {
    kind: i16,
    whence: i16,
    start: u64,
    length: i64,
    process: i32,
}

impl Lock {
    fn of(kind: u32, byte: u64) -> Self {
        Self {
            kind: kind as i16,
            whence: 0,
            start: byte,
            length: 1,
            process: 0,
        }
    }
}

/// Puts the mark `byte` on the file, by this open file, which can be read by.
///
/// # Errors
/// As `fcntl(2)` with `F_OFD_SETLK`.
pub fn put(fd: Fd, byte: u64) -> Result<()> {
    let lock = Lock::of(g::F_RDLCK, byte);
    // SAFETY: `lock` is valid for reads of a `struct flock`.
    unsafe { syscall!(g::__NR_fcntl, fd.0, F_OFD_SETLK, &raw const lock) }.map(drop)
}

/// True when another open file than this one has put the mark `byte` on the file.
pub fn are_there(fd: Fd, byte: u64) -> bool {
    let mut lock = Lock::of(g::F_WRLCK, byte);
    // SAFETY: `lock` is valid for writes of a `struct flock`.
    let asked = unsafe { syscall!(g::__NR_fcntl, fd.0, F_OFD_GETLK, &raw mut lock) };
    asked.is_ok() && lock.kind != g::F_UNLCK as i16
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
}
