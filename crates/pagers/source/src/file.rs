//! Local files.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use farpage_object::PAGE_BYTES;
use farpage_sys::file::{self, Fd};
use farpage_sys::{Errno, linux};

use crate::{Source, SourceError, within};

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Reading, of a file that is there.
    Read,
    /// Reading and writing, of a file that is there.
    Write,
    /// Reading and writing, of a new file; what a file of that name held is lost.
    Create,
}

/// A local file. What the page cache has is read from there; the rest is read, and all is written,
/// past it (`O_DIRECT`), so that it does not take memory twice.
pub struct FileSource {
    name: String,
    path: PathBuf,
    file: File,
    /// The same file, past the page cache. `None` where the file system does not offer it.
    direct: Option<File>,
    size: u64,
    /// What a file that is only read looked like when it was opened.
    pinned: Option<Stamp>,
    writable: bool,
}

/// What tells one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    size: u64,
    modified_ns: i128,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            size: metadata.len(),
            modified_ns: i128::from(metadata.mtime()) * 1_000_000_000
                + i128::from(metadata.mtime_nsec()),
        }
    }

    fn text(self) -> String {
        const SECOND: i128 = 1_000_000_000;
        let seconds = self.modified_ns.div_euclid(SECOND);
        let rest = self.modified_ns.rem_euclid(SECOND);
        format!(
            "{} bytes changed {seconds}.{rest:09} s after 1970",
            self.size
        )
    }
}

impl FileSource {
    /// Opens `path`. `size`: with [`OpenMode::Create`] the size of the file, in bytes; with
    /// [`OpenMode::Write`] what it must have at least: a shorter one grows, by a hole.
    ///
    /// # Errors
    /// [`SourceError::NotFound`], [`SourceError::Denied`], [`SourceError::Io`];
    /// [`SourceError::Unsupported`] for what is no file (a pipe, a directory), and for a new file
    /// without a size.
    pub fn open(path: &Path, mode: OpenMode, size: Option<u64>) -> Result<Self, SourceError> {
        let name = path.display().to_string();
        let fails = |error: io::Error| opening(&name, &error);
        if mode == OpenMode::Create && size.is_none() {
            return Err(unsupported(&name, "a new file needs a size", "give one"));
        }
        if mode == OpenMode::Read && size.is_some() {
            let cause = "a size is for files that are written";
            return Err(unsupported(
                &name,
                cause,
                "leave it out, or open for writing",
            ));
        }
        let writable = mode != OpenMode::Read;
        // Without O_NONBLOCK a pipe would be waited for.
        let file = OpenOptions::new()
            .read(true)
            .write(writable)
            .create(mode == OpenMode::Create)
            .truncate(mode == OpenMode::Create)
            .custom_flags(linux::general::O_NONBLOCK as i32)
            .open(path)
            .map_err(fails)?;
        let metadata = file.metadata().map_err(fails)?;
        let length = length_of(&file, &metadata, &name)?;
        if let Some(size) = size.filter(|size| *size > length) {
            file.set_len(size)
                .map_err(|e| io_error(&name, "grow", length, &e))?;
        }
        if mode == OpenMode::Create {
            // Its name is durable before its contents can be.
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
            let folder = File::open(folder.unwrap_or(Path::new(".")));
            let synced = folder.and_then(|folder| folder.sync_all());
            // There are folders that may only be written to, and file systems that sync none.
            let is_impossible = |error: &io::Error| {
                matches!(error.kind(), PermissionDenied | InvalidInput | Unsupported)
            };
            match synced {
                Err(error) if !is_impossible(&error) => return Err(fails(error)),
                Ok(()) | Err(_) => {}
            }
        }
        let direct = OpenOptions::new()
            .read(true)
            .write(writable)
            .custom_flags(linux::general::O_DIRECT as i32)
            .open(path)
            .ok()
            .filter(|other| is_same(other, &metadata));
        let metadata = file.metadata().map_err(fails)?;
        Ok(Self {
            path: path.into(),
            direct,
            size: size.map_or(length, |size| size.max(length)),
            pinned: (!writable).then(|| Stamp::of(&metadata)),
            writable,
            name,
            file,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// That the file is still what was opened.
    fn check(&self, offset: u64, bytes: usize) -> Result<(), SourceError> {
        let Some(pinned) = self.pinned else {
            return Ok(());
        };
        let now = self.file.metadata();
        let now = now.map_err(|error| io_error(&self.name, "read", offset, &error))?;
        let is = Stamp::of(&now);
        if is == pinned {
            return Ok(());
        }
        if is.size < offset + bytes as u64 {
            return Err(self.short(offset, bytes, is.size));
        }
        Err(SourceError::Changed {
            name: self.name.clone(),
            was: pinned.text(),
            is: is.text(),
            remedy: "open it again",
        })
    }

    fn short(&self, offset: u64, bytes: usize, end: u64) -> SourceError {
        SourceError::Short {
            name: self.name.clone(),
            offset,
            bytes: bytes as u64,
            end,
        }
    }

    /// Writes a run of pages that are all zeros (a hole, where the file system has holes) or not.
    fn write_run(&self, offset: u64, bytes: &[u8], zeros: bool) -> io::Result<()> {
        if zeros && file::punch(Fd(self.file.as_raw_fd()), offset, bytes.len() as u64).is_ok() {
            return Ok(());
        }
        let whole = past_the_cache(bytes, offset);
        match &self.direct {
            // What cannot be written so is written the other way.
            Some(direct) if whole > 0 && direct.write_all_at(&bytes[..whole], offset).is_ok() => {
                let rest = offset + whole as u64;
                self.file.write_all_at(&bytes[whole..], rest)
            }
            _ => self.file.write_all_at(bytes, offset),
        }
    }
}

impl Source for FileSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn version(&self) -> Option<String> {
        self.pinned.map(Stamp::text)
    }

    fn is_in_memory(&self, offset: u64, bytes: u64) -> bool {
        let pages = (offset + bytes).div_ceil(PAGE_BYTES as u64) - offset / PAGE_BYTES as u64;
        file::cached_pages(Fd(self.file.as_raw_fd()), offset, bytes) == Ok(pages)
    }

    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        let is_same = self.pinned.is_some() && self.check(0, 0).is_ok();
        is_same.then(|| (self.file.as_fd(), 0))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let got =
            read_sparing(&self.file, self.direct.as_ref(), offset, buffer).map_err(|errno| {
                let error = io::Error::from_raw_os_error(errno.0);
                io_error(&self.name, "read", offset, &error)
            })?;
        // After reading: what came is then known to be of this version.
        self.check(offset, buffer.len())?;
        if got < buffer.len() {
            return Err(self.short(offset, buffer.len(), offset + got as u64));
        }
        Ok(())
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), SourceError> {
        if !self.writable {
            return Err(SourceError::ReadOnly {
                name: self.name.clone(),
            });
        }
        within(self, offset, bytes.len() as u64)?;
        let aligned = offset.is_multiple_of(PAGE_BYTES as u64);
        let is_zero =
            |page: &[u8]| aligned && page.len() == PAGE_BYTES && page.iter().all(|byte| *byte == 0);
        let mut done = 0;
        let runs = bytes
            .chunks(PAGE_BYTES)
            .map(|page| (is_zero(page), page.len()));
        let mut runs = runs.peekable();
        while let Some((zeros, mut length)) = runs.next() {
            while let Some((_, more)) = runs.next_if(|(next, _)| *next == zeros) {
                length += more;
            }
            let (at, run) = (offset + done as u64, &bytes[done..done + length]);
            let written = self.write_run(at, run, zeros);
            written.map_err(|error| io_error(&self.name, "write", at, &error))?;
            done += length;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), SourceError> {
        let synced = self.file.sync_data();
        synced.map_err(|error| io_error(&self.name, "write", 0, &error))
    }
}

/// Reads what the page cache has from there, and other things past it. Returns how much.
pub(crate) fn read_sparing(
    file: &File,
    direct: Option<&File>,
    offset: u64,
    buffer: &mut [u8],
) -> Result<usize, Errno> {
    let fd = Fd(file.as_raw_fd());
    let bytes = buffer.len() as u64;
    let whole = past_the_cache(buffer, offset);
    let (Some(direct), true) = (direct, whole > 0) else {
        return file::pread(fd, buffer, offset);
    };
    match file::cached_pages(fd, offset, bytes) {
        Ok(cached) if cached < bytes.div_ceil(PAGE_BYTES as u64) => {
            let direct = Fd(direct.as_raw_fd());
            let done = file::pread(direct, &mut buffer[..whole], offset).unwrap_or(0);
            Ok(done + file::pread(fd, &mut buffer[done..], offset + done as u64)?)
        }
        Ok(_) => file::pread(fd, buffer, offset),
        Err(_) => read_and_forget(fd, offset, buffer),
    }
}

/// How many bytes of `memory`, from the first, can go to or come from `offset` of a file past the page
/// cache: whole pages, where both begin with one.
fn past_the_cache(memory: &[u8], offset: u64) -> usize {
    let aligned = memory.as_ptr().addr().is_multiple_of(PAGE_BYTES)
        && offset.is_multiple_of(PAGE_BYTES as u64);
    match aligned {
        true => memory.len() / PAGE_BYTES * PAGE_BYTES,
        false => 0,
    }
}

/// Where nobody says what the page cache has: to ask is to have it read. What it did not have does
/// not stay there, unless nobody can be asked at all (overlayfs): others may use it, then.
fn read_and_forget(fd: Fd, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let cached = match file::pread_cached(fd, buffer, offset) {
        Err(Errno::EOPNOTSUPP) => return file::pread(fd, buffer, offset),
        cached => cached.unwrap_or(0) / PAGE_BYTES * PAGE_BYTES,
    };
    let rest = &mut buffer[cached..];
    if rest.is_empty() {
        return Ok(cached);
    }
    let (at, bytes) = (offset + cached as u64, rest.len() as u64);
    let got = file::pread(fd, rest, at)?;
    file::forget_cached(fd, at, bytes);
    Ok(cached + got)
}

/// The same file once more, for reading past the page cache. `None` where that cannot be had.
pub(crate) fn direct_of(file: &File) -> Option<File> {
    let mut how = OpenOptions::new();
    how.read(true).custom_flags(linux::general::O_DIRECT as i32);
    how.open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

fn is_same(file: &File, as_this: &Metadata) -> bool {
    let other = file.metadata();
    other.is_ok_and(|m| (m.dev(), m.ino()) == (as_this.dev(), as_this.ino()))
}

/// The length of a file or a block device.
fn length_of(file: &File, metadata: &Metadata, name: &str) -> Result<u64, SourceError> {
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(metadata.len());
    }
    if kind.is_block_device() {
        let mut seek = file;
        let end = io::Seek::seek(&mut seek, io::SeekFrom::End(0));
        return end.map_err(|error| opening(name, &error));
    }
    let cause = match () {
        () if kind.is_dir() => "it is a directory",
        () if kind.is_fifo() => "it is a pipe",
        () => "it is a device or a socket",
    };
    Err(unsupported(name, cause, "name a file"))
}

fn unsupported(name: &str, cause: &str, remedy: &str) -> SourceError {
    SourceError::Unsupported {
        name: name.into(),
        cause: cause.into(),
        remedy: remedy.into(),
    }
}

pub(crate) fn opening(name: &str, error: &io::Error) -> SourceError {
    let (name, cause) = (name.to_owned(), error.to_string());
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            SourceError::not_found(name, cause)
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            SourceError::Denied {
                name,
                cause,
                remedy: "ask its owner for permission; reading alone needs less than writing",
            }
        }
        io::ErrorKind::IsADirectory => unsupported(&name, "it is a directory", "name a file"),
        _ => io_error(&name, "open", 0, error),
    }
}

pub(crate) fn io_error(
    name: &str,
    what: &'static str,
    offset: u64,
    error: &io::Error,
) -> SourceError {
    let remedy = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free disk space",
        io::ErrorKind::FileTooLarge => "the file system takes no larger files: use another",
        _ => "check the disk under it",
    };
    SourceError::Io {
        name: name.into(),
        what,
        offset,
        cause: error.to_string(),
        remedy,
    }
}
