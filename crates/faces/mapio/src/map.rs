//! A file as memory: what `fmap` returns.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;

use farpage_sys::file::{self, Fd};
use farpage_sys::guarded::{Guarded, OnLoss};
use farpage_sys::linux::general as g;

const PAGE: usize = 4096;
/// Size of a new file when none is given.
const NEW_BYTES: u64 = 64 << 10;

/// A file, mapped shared from its start: its bytes are Linux's own pages of it.
///
/// What others do to the file is seen at once, and what is written here is seen by others. A part
/// that others cut off reads as zeros, and [`Map::is_lost`] says so.
pub struct Map {
    area: Guarded,
    bytes: usize,
    is_writable: bool,
}

impl Map {
    /// Maps the file behind `fd`. To be read: `bytes` at most, all of it when that is 0. To be
    /// written: `bytes`, what it has when that is more, and something suitable when there is
    /// neither; a shorter file becomes so long, with room on the disk for each byte.
    ///
    /// # Errors
    /// As `mmap(2)`, `ftruncate(2)` and `fallocate(2)`, `ENOSPC` among them; `InvalidInput` for what
    /// is no regular file, `UnexpectedEof` when a file that is only read is empty.
    pub fn new(fd: Fd, bytes: usize, is_writable: bool) -> Result<Self> {
        let status = file::status(fd).map_err(error)?;
        if !status.is_regular() {
            let why = "cannot map what is no regular file: read it, or write to it";
            return Err(Error::new(ErrorKind::InvalidInput, why));
        }
        let wanted = bytes as u64;
        let bytes = match (is_writable, wanted) {
            (false, 0) => status.bytes,
            (false, _) => wanted.min(status.bytes),
            (true, 0) if status.bytes == 0 => NEW_BYTES,
            (true, _) => wanted.max(status.bytes),
        };
        if bytes == 0 {
            let why = "cannot map an empty file to be read: open it for writing too";
            return Err(Error::new(ErrorKind::UnexpectedEof, why));
        }
        // A descriptor that is only written cannot be mapped. No other is opened again: to close it takes the
        // process's locks (`fcntl`) of the file away.
        let is_write_only = file::flags(fd).map_err(error)? & g::O_ACCMODE == g::O_WRONLY;
        let again = is_write_only
            .then(|| file::open_again(fd, g::O_RDWR))
            .transpose();
        let own = Own(again.map_err(error)?);
        let (before, grown) = (status.bytes, bytes);
        let bytes = usize::try_from(bytes).map_err(|_| ErrorKind::FileTooLarge)?;
        let reserved = bytes.next_multiple_of(PAGE);
        let mut area = Guarded::reserve(reserved, PAGE).map_err(error)?;
        if grown > before {
            grow(fd, before, grown)?;
        }
        let from = own.0.unwrap_or(fd);
        area.map(from, 0, bytes, is_writable).map_err(|errno| {
            // Nobody wrote what it grew by, unless it has grown further meanwhile.
            if grown > before && file::status(fd).is_ok_and(|status| status.bytes == grown) {
                let _ = file::set_size(fd, before);
            }
            error(errno)
        })?;
        Ok(Self {
            area,
            bytes,
            is_writable,
        })
    }

    /// What to ask [`Map::new`] for when `bytes` are wanted of what is `mapped` already, perhaps: a map never
    /// has less than before, and 0 stays the whole file.
    pub fn again(mapped: Option<&Self>, bytes: usize) -> usize {
        let known = mapped.map_or(0, Self::bytes);
        if bytes == 0 { 0 } else { bytes.max(known) }
    }

    /// [`Map::new`] of a file of Rust's.
    ///
    /// # Errors
    /// As [`Map::new`].
    pub fn of_file(file: &File, bytes: usize, is_writable: bool) -> Result<Self> {
        Self::new(Fd(file.as_raw_fd()), bytes, is_writable)
    }

    /// Has `call` told at once when the file is cut off.
    ///
    /// # Safety
    /// As for [`Guarded::tell`].
    #[allow(unsafe_code)]
    pub unsafe fn tell(&self, owner: usize, call: OnLoss) {
        // SAFETY: forwarded to the caller.
        unsafe { self.area.tell(owner, call) };
    }

    /// Address of its first byte, for programs that read and write through pointers.
    pub fn address(&self) -> usize {
        self.area.address()
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// True when it may be written.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// True when an access found that the file has been cut off.
    pub fn is_lost(&self) -> bool {
        self.area.lost().is_some()
    }

    /// Copies from the file.
    ///
    /// # Panics
    /// When it is shorter.
    pub fn copy_to(&self, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.bytes, "beyond a map");
        self.area.copy_to(self.address() + offset, into);
    }

    /// Copies to the file.
    ///
    /// # Panics
    /// When it is shorter, or only to be read.
    pub fn copy_from(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.bytes, "beyond a map");
        self.area.copy_from(self.address() + offset, bytes);
    }
}

/// A descriptor of our own, closed when it is no longer needed.
struct Own(Option<Fd>);

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(fd) = self.0 {
            file::close(fd);
        }
    }
}

/// Room first: who writes to a hole of a full disk is killed. Where there is no such call, the file
/// becomes longer all the same.
fn grow(fd: Fd, from: u64, to: u64) -> Result<()> {
    use farpage_sys::Errno;
    match file::allocate(fd, from, to - from) {
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => file::set_size(fd, to).map_err(error),
        done => done.map_err(|errno| {
            if file::status(fd).is_ok_and(|status| status.bytes < to) {
                let _ = file::set_size(fd, from);
            }
            error(errno)
        }),
    }
}

pub(crate) fn error(errno: farpage_sys::Errno) -> Error {
    Error::from_raw_os_error(errno.0)
}
