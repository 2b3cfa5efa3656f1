//! Bytes of a file as they are at one moment, whoever writes to the file afterwards.
//!
//! What nobody can change is read where it lies. Of another file a lease is held: before somebody
//! may write to it the bytes are copied to an unnamed file, and are read there from then on.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use farpage_source::{Source, SourceError};
use farpage_sys::file::{self, Fd};
use farpage_sys::{Errno, lease};

use crate::leases::{self, Leased};

/// Bytes that are copied at a time.
const STEP: usize = 1 << 20;

/// Some bytes of a file, which stay as they are.
pub(crate) struct Snapshot {
    name: String,
    size: u64,
    file: OwnedFd,
    /// Where its bytes begin in `file`.
    from: u64,
    is_leased: bool,
    /// What came of it when the lease had to be given up: all bytes, or why not.
    moved: OnceLock<Result<File, String>>,
}

impl Snapshot {
    /// Of a file that nobody can change.
    pub(crate) fn of_unchanging(
        file: OwnedFd,
        name: String,
        (from, size): (u64, u64),
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            size,
            file,
            from,
            is_leased: false,
            moved: OnceLock::new(),
        })
    }

    /// Of a file on which a lease can be had.
    ///
    /// # Errors
    /// As [`lease::take`].
    pub(crate) fn leased(
        file: BorrowedFd<'_>,
        name: String,
        (from, size): (u64, u64),
    ) -> Result<Arc<Self>, Errno> {
        leases::take(file, |lease| Self {
            name,
            size,
            file: lease,
            from,
            is_leased: true,
            moved: OnceLock::new(),
        })
    }

    /// The size of the file now.
    pub(crate) fn file_bytes(&self) -> Result<u64, Errno> {
        file::status(self.fd()).map(|status| status.bytes)
    }

    fn fd(&self) -> Fd {
        Fd(self.file.as_raw_fd())
    }
}

impl Leased for Snapshot {
    fn lease(&self) -> &OwnedFd {
        &self.file
    }

    fn is_over(&self) -> bool {
        self.moved.get().is_some()
    }

    /// Copies all of it, then lets the others have the file.
    fn give_way(&self) {
        if self.is_over() {
            return;
        }
        let read = |offset: u64, part: &mut [u8]| {
            read_whole(self.fd(), &self.name, self.from + offset, part)
        };
        let copied = copied(self.size, read);
        // Until then whoever reads waits for what is said last.
        let was_held = lease::give_up(&self.file);
        let moved = match copied {
            Ok(_) if !was_held => Err("others waited to write for longer than Linux lets them \
                                       (fs.lease-break-time)"
                .to_owned()),
            Ok(copy) => Ok(copy),
            Err(error) => Err(error.to_string()),
        };
        if let Err(why) = &moved {
            farpage_sys::say!("farpage: no copy of '{}' could be kept: {why}", self.name);
        }
        let _ = self.moved.set(moved);
    }
}

/// An unnamed file with `bytes` bytes that `read` reads; parts that are all zeros are holes.
pub(crate) fn copied(
    bytes: u64,
    read: impl Fn(u64, &mut [u8]) -> Result<(), SourceError>,
) -> Result<File, SourceError> {
    let fails = |offset: u64| {
        move |error: std::io::Error| SourceError::Io {
            name: std::env::temp_dir().display().to_string(),
            what: "keep a copy in",
            offset,
            cause: error.to_string(),
            remedy: "name a folder with room for it: TMPDIR",
        }
    };
    let copy = tempfile::tempfile().map_err(fails(0))?;
    copy.set_len(bytes).map_err(fails(bytes))?;
    let mut buffer = vec![0; STEP.min(bytes as usize)];
    let mut done = 0;
    while done < bytes {
        let part = (bytes - done).min(STEP as u64) as usize;
        let part = &mut buffer[..part];
        read(done, part)?;
        if part.iter().any(|byte| *byte != 0) {
            copy.write_all_at(part, done).map_err(fails(done))?;
        }
        done += part.len() as u64;
    }
    Ok(copy)
}

/// Reads all of `buffer` at `offset` of a file.
pub(crate) fn read_whole(
    fd: Fd,
    name: &str,
    offset: u64,
    buffer: &mut [u8],
) -> Result<(), SourceError> {
    let (name, bytes) = (name.to_owned(), buffer.len() as u64);
    match file::pread(fd, buffer, offset) {
        Ok(got) if got as u64 == bytes => Ok(()),
        Ok(got) => Err(SourceError::Short {
            name,
            offset,
            bytes,
            end: offset + got as u64,
        }),
        Err(errno) => Err(SourceError::Io {
            name,
            what: "read",
            offset,
            cause: std::io::Error::from_raw_os_error(errno.0).to_string(),
            remedy: "check the disk under it",
        }),
    }
}

impl Source for Snapshot {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn is_in_memory(&self, offset: u64, bytes: u64) -> bool {
        let moved = self.moved.get().and_then(|moved| moved.as_ref().ok());
        let (fd, at) = match moved {
            Some(copy) => (Fd(copy.as_raw_fd()), offset),
            None => (self.fd(), self.from + offset),
        };
        let pages = (at + bytes).div_ceil(4096) - at / 4096;
        file::cached_pages(fd, at, bytes) == Ok(pages)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        farpage_source::within(self, offset, buffer.len() as u64)?;
        if self.moved.get().is_none() {
            let read = read_whole(self.fd(), &self.name, self.from + offset, buffer);
            // After reading: what came is then known to be as it was.
            if !self.is_leased || lease::is_undisturbed(&self.file) {
                return read;
            }
        }
        match self.moved.wait() {
            Ok(copy) => read_whole(Fd(copy.as_raw_fd()), &self.name, offset, buffer),
            Err(why) => Err(SourceError::Changed {
                name: self.name.clone(),
                was: "as it was mapped".into(),
                is: format!("written to, and no copy could be kept ({why})"),
                remedy: "map it again",
            }),
        }
    }
}
