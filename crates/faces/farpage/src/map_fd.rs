//! `map_fd`: a private copy of any bytes of a file, or the bytes themselves, in memory.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

use farpage_object::PAGE_BYTES;
use farpage_source::{FileSource, OpenMode, Retry, Source, SourceError};
use farpage_sys::file::{self, Fd};
use farpage_sys::part::{Part, Writes};
use farpage_sys::{Errno, lease, linux::general, memory_file};

use crate::fork::Reopen;
use crate::load::Plan;
use crate::snapshot::{self, Snapshot};
use crate::{Error, Memory, Mode, OpenOptions, Place, Places};

/// What costs less to copy than to hold a lease for: bytes.
const COPIED_AT_ONCE: u64 = 1 << 20;
/// What is copied to memory and not to a file, where there is no other way: bytes.
const COPIED_TO_MEMORY: u64 = 64 << 20;
/// How often a copy is begun anew because the file changed meanwhile.
const TRIES: u32 = 8;

/// How a mapping keeps its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kept {
    /// They were copied.
    Copied,
    /// Nobody can change the file: a sealed memory file, or a clone made by the file system.
    Unchanging,
    /// They come when they are touched. Before somebody may write to the file they are copied.
    Leased,
    /// They come from a server when they are touched.
    Fetched,
    /// They are those of the file, for all who have it.
    Shared,
}

/// Bytes in memory. Unmapped when it is dropped.
pub struct MappedBytes {
    bytes: usize,
    held: Held,
    kept: Kept,
    writable: bool,
}

enum Held {
    Part(Part),
    Memory(Memory),
}

impl MappedBytes {
    /// The first byte; inside a page perhaps. A page that cannot be had raises SIGBUS.
    pub fn as_ptr(&self) -> *mut u8 {
        match &self.held {
            Held::Part(part) => part.as_ptr(),
            Held::Memory(memory) => memory.as_ptr(),
        }
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How they are kept.
    pub fn kept(&self) -> Kept {
        self.kept
    }

    /// True unless it is shared, of a descriptor that only reads.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    fn new(held: Held, bytes: u64, kept: Kept) -> Self {
        Self {
            bytes: bytes as usize,
            held,
            kept,
            writable: true,
        }
    }
}

/// Maps a private copy of `bytes` bytes of the file of `fd`, from byte `offset` on, as they are
/// now: what others write to the file later is not seen, and what is written to the copy stays in
/// this process. Neither has to be a multiple of anything.
///
/// `at`: where the first byte is to lie, the beginning of a page; `None`: Linux finds the space.
///
/// A sealed memory file, and a file whose file system makes clones (XFS, Btrfs), is mapped as it
/// is. Of another file up to a MiB is copied at once. Of more a lease is held, while nobody has the
/// file open for writing: bytes come when they are touched, and whoever opens it for writing waits
/// until they are copied to an unnamed file in the folder for temporary files. Where no lease is to
/// be had, or a place is given, all is copied at once, to memory or, beyond 64 MiB, to such a file.
///
/// # Errors
/// [`Error::Argument`] for a range that is not inside the file, none, or a place that is taken or
/// no page's; [`SourceError::Unsupported`] for what is no file; [`SourceError::Denied`] for a
/// descriptor that does not read; [`SourceError::Changed`] when others do not stop writing to the
/// file; [`SourceError::Io`].
pub fn map_fd(
    fd: BorrowedFd<'_>,
    offset: u64,
    bytes: u64,
    at: Option<usize>,
) -> Result<MappedBytes, Error> {
    let range = Wanted::new(fd, (offset, bytes), at)?;
    let by_pages = at.is_none() || offset.is_multiple_of(PAGE_BYTES as u64);
    if range.is_sealed() && by_pages {
        return range.mapped(fd, Writes::Private, Kept::Unchanging);
    }
    if bytes <= COPIED_AT_ONCE {
        return range.copied_to_memory();
    }
    if by_pages && let Some(clone) = range.cloned() {
        return range.mapped(clone.as_fd(), Writes::Private, Kept::Unchanging);
    }
    // A pager answers for addresses of its own choice alone.
    if at.is_none()
        && let Some(leased) = range.leased()?
    {
        match range.paged(leased) {
            // Where there is no userfaultfd there still is memory.
            Err(Error::Kernel(_)) => {}
            other => return other,
        }
    }
    if bytes <= COPIED_TO_MEMORY {
        return range.copied_to_memory();
    }
    let copy = range.unchanged(|| range.copied_to_file())?;
    let first = Wanted { offset: 0, ..range };
    first.mapped(copy.as_fd(), Writes::Private, Kept::Copied)
}

/// Maps the bytes themselves: what is written is in the file, and what others write is seen. They
/// can be written to when the descriptor can. Bytes that the file loses raise SIGBUS.
///
/// # Errors
/// As [`map_fd`], and [`Error::Argument`] with an `at` for an offset that is no multiple of 4096.
pub fn map_fd_shared(
    fd: BorrowedFd<'_>,
    offset: u64,
    bytes: u64,
    at: Option<usize>,
) -> Result<MappedBytes, Error> {
    let range = Wanted::new(fd, (offset, bytes), at)?;
    if at.is_some() && !offset.is_multiple_of(PAGE_BYTES as u64) {
        return Err(Error::Argument {
            what: "offset",
            why: format!("byte {offset} of '{}' begins no page", range.name),
            remedy: "give a multiple of 4096, let Linux find the space, or map a private copy",
        });
    }
    let is_read_only =
        file::flags(range.fd()).unwrap_or(0) & general::O_ACCMODE == general::O_RDONLY;
    let writes = match is_read_only || range.is_sealed() {
        true => Writes::Forbidden,
        false => Writes::Shared,
    };
    let mut mapped = range.mapped(fd, writes, Kept::Shared)?;
    mapped.writable = writes == Writes::Shared;
    Ok(mapped)
}

/// Maps a private copy of `bytes` bytes of what is at an address (a path or an URL) from `offset`
/// on; without `bytes` of all there are. Bytes come when they are touched, of one version; with
/// `at` all are fetched at once, to an unnamed file.
///
/// # Errors
/// As [`map_fd`] of paths and [`Memory::open`] of addresses.
pub fn map_url(
    address: &str,
    offset: u64,
    bytes: Option<u64>,
    at: Option<usize>,
    options: &OpenOptions,
) -> Result<MappedBytes, Error> {
    check_place(at)?;
    if let crate::Address::Path(path) = crate::Address::parse(address) {
        let file = opened(&path)?;
        let bytes = bytes.map_or_else(|| rest(&file, &path, offset), Ok)?;
        return map_fd(file.as_fd(), offset, bytes, at);
    }
    if bytes == Some(0) {
        return Err(no_bytes());
    }
    let places = Places(vec![Place {
        offset: Some(offset),
        size: bytes,
        ..address.into()
    }]);
    let options = OpenOptions {
        mode: Mode::Copy,
        size: None,
        ..options.clone()
    };
    let opened = places.open(&options)?;
    if at.is_some() {
        return fetched(&*opened.into_source(), options.retry(), at);
    }
    let reopen = Reopen::of(&places, &opened, Plan::default());
    let memory = Memory::map(opened.into_source(), &options, reopen, Vec::new())?;
    let bytes = memory.size();
    Ok(MappedBytes::new(Held::Memory(memory), bytes, Kept::Fetched))
}

/// All of a source, in a file of its own, mapped there.
fn fetched(source: &dyn Source, retry: Retry, at: Option<usize>) -> Result<MappedBytes, Error> {
    let (name, bytes) = (source.name().to_owned(), source.size());
    let copied = snapshot::copied(bytes, |offset, part| {
        retry.run(|| source.read_at(offset, part))
    });
    let copied = copied?;
    let all = Wanted {
        file: copied.as_fd(),
        name,
        offset: 0,
        bytes,
        at,
    };
    all.mapped(copied.as_fd(), Writes::Private, Kept::Fetched)
}

/// The bytes that [`map_fd`] would map, to be read.
///
/// # Errors
/// As there.
pub fn snapshot_of_fd(
    fd: BorrowedFd<'_>,
    offset: u64,
    bytes: u64,
) -> Result<Arc<dyn Source>, Error> {
    let range = Wanted::new(fd, (offset, bytes), None)?;
    if range.is_sealed() {
        return Ok(range.sealed()?);
    }
    if let Some(leased) = range.leased()? {
        return Ok(leased);
    }
    let copy = range.unchanged(|| range.copied_to_file())?;
    Ok(Snapshot::of_unchanging(copy.into(), range.name, (0, bytes)))
}

/// What is to be mapped, checked.
struct Wanted<'a> {
    file: BorrowedFd<'a>,
    name: String,
    offset: u64,
    bytes: u64,
    at: Option<usize>,
}

impl<'a> Wanted<'a> {
    fn new(
        file: BorrowedFd<'a>,
        (offset, bytes): (u64, u64),
        at: Option<usize>,
    ) -> Result<Self, Error> {
        check_place(at)?;
        if bytes == 0 {
            return Err(no_bytes());
        }
        let name = name_of(file);
        let refused = |cause: &str, remedy: &str| SourceError::Unsupported {
            name: name.clone(),
            cause: cause.into(),
            remedy: remedy.into(),
        };
        let fd = Fd(file.as_raw_fd());
        let status = file::status(fd)
            .map_err(|errno| refused(&io(errno).to_string(), "give a descriptor that is open"))?;
        if !status.is_regular() {
            let cause = match status.is_folder() {
                true => "it is a directory",
                false => "it is a pipe, a socket or a device",
            };
            return Err(refused(cause, "give a file, or read it and map nothing").into());
        }
        let flags = file::flags(fd).unwrap_or(0);
        if flags & general::O_PATH != 0 || flags & general::O_ACCMODE == general::O_WRONLY {
            return Err(Error::Source(SourceError::Denied {
                name,
                cause: "the descriptor does not read".into(),
                remedy: "open the file for reading too",
            }));
        }
        let end = offset.saturating_add(bytes);
        if end > status.bytes {
            return Err(Error::outside(&name, (offset, end), status.bytes));
        }
        Ok(Self {
            file,
            name,
            offset,
            bytes,
            at,
        })
    }

    fn fd(&self) -> Fd {
        Fd(self.file.as_raw_fd())
    }

    fn is_sealed(&self) -> bool {
        const SHRINK: u32 = 0x2;
        let wanted = SHRINK | memory_file::WRITE;
        file::seals(self.fd()) & wanted == wanted
    }

    fn sealed(&self) -> Result<Arc<Snapshot>, Error> {
        let own = self.file.try_clone_to_owned();
        let own = own.map_err(|error| self.failed("map", &error))?;
        let range = (self.offset, self.bytes);
        Ok(Snapshot::of_unchanging(own, self.name.clone(), range))
    }

    /// A clone of the whole file, if its file system makes them; as it is at one moment.
    fn cloned(&self) -> Option<File> {
        if !lease::can_clone(self.fd()) {
            return None;
        }
        let path = PathBuf::from(&self.name);
        let clone = tempfile::tempfile_in(path.parent()?).ok()?;
        lease::clone_file(self.file, clone.as_fd()).ok()?;
        let whole = clone.metadata().ok()?.len() >= self.offset + self.bytes;
        whole.then_some(clone)
    }

    /// `None` when no lease is to be had.
    fn leased(&self) -> Result<Option<Arc<Snapshot>>, Error> {
        let range = (self.offset, self.bytes);
        let Ok(leased) = Snapshot::leased(self.file, self.name.clone(), range) else {
            return Ok(None);
        };
        // It may have been cut before.
        match leased.file_bytes() {
            Ok(now) if now >= self.offset + self.bytes => Ok(Some(leased)),
            now => Err(Error::outside(
                &self.name,
                (self.offset, self.offset + self.bytes),
                now.unwrap_or(0),
            )),
        }
    }

    fn mapped(&self, fd: BorrowedFd<'_>, writes: Writes, kept: Kept) -> Result<MappedBytes, Error> {
        let part = Part::of_file(fd, (self.offset, self.bytes as usize), self.at, writes);
        let part = part.map_err(|errno| self.not_mapped(errno))?;
        Ok(MappedBytes::new(Held::Part(part), self.bytes, kept))
    }

    fn paged(&self, source: Arc<Snapshot>) -> Result<MappedBytes, Error> {
        let options = OpenOptions {
            mode: Mode::Copy,
            ..OpenOptions::default()
        };
        let memory = Memory::of_source(source, &options)?;
        Ok(MappedBytes::new(
            Held::Memory(memory),
            self.bytes,
            Kept::Leased,
        ))
    }

    fn copied_to_memory(&self) -> Result<MappedBytes, Error> {
        let range = (self.offset, self.bytes as usize);
        let part = self.unchanged(|| {
            let part = Part::copied(self.file, range, self.at);
            part.map_err(|errno| self.not_mapped(errno))
        })?;
        Ok(MappedBytes::new(Held::Part(part), self.bytes, Kept::Copied))
    }

    fn copied_to_file(&self) -> Result<File, Error> {
        let read = |offset: u64, part: &mut [u8]| {
            snapshot::read_whole(self.fd(), &self.name, self.offset + offset, part)
        };
        Ok(snapshot::copied(self.bytes, read)?)
    }

    /// What `copy` makes of a file that nobody has written to meanwhile.
    fn unchanged<T>(&self, mut copy: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        let stamp = || file::stamp(self.fd()).map_err(|errno| self.failed("read", &io(errno)));
        let mut before = stamp()?;
        for _ in 0..TRIES {
            let copied = copy();
            let after = stamp()?;
            if before == after {
                return copied;
            }
            drop(copied);
            before = after;
        }
        Err(Error::Source(SourceError::Changed {
            name: self.name.clone(),
            was: "as it was when a copy was begun".into(),
            is: "being written to".into(),
            remedy: "map it when its writers have stopped, or map it shared",
        }))
    }

    fn not_mapped(&self, errno: Errno) -> Error {
        match (errno, self.at) {
            (Errno::EEXIST, Some(at)) => taken(at),
            (Errno::ENXIO, _) => {
                let end = self.offset + self.bytes;
                let now = file::status(self.fd()).map_or(0, |status| status.bytes);
                Error::outside(&self.name, (self.offset, end), now)
            }
            (Errno::ENOMEM, _) => Error::Argument {
                what: "bytes",
                why: format!(
                    "there is no memory for {} bytes of '{}'",
                    self.bytes, self.name
                ),
                remedy: "map less at a time",
            },
            _ => self.failed("map", &io(errno)),
        }
    }

    fn failed(&self, what: &'static str, error: &std::io::Error) -> Error {
        Error::Source(SourceError::Io {
            name: self.name.clone(),
            what,
            offset: self.offset,
            cause: error.to_string(),
            remedy: "check the disk under it, and the room for temporary files (TMPDIR)",
        })
    }
}

fn io(errno: Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno.0)
}

/// The path of a descriptor, or what Linux calls it.
fn name_of(fd: BorrowedFd<'_>) -> String {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let path = std::fs::read_link(&link);
    path.map_or(link, |path| path.display().to_string())
}

fn check_place(at: Option<usize>) -> Result<(), Error> {
    match at {
        Some(at) if at == 0 || !at.is_multiple_of(PAGE_BYTES) => Err(Error::Argument {
            what: "address",
            why: format!("{at:#x} begins no page that can be had"),
            remedy: "give a multiple of 4096, or let Linux find the space",
        }),
        _ => Ok(()),
    }
}

fn no_bytes() -> Error {
    Error::Argument {
        what: "bytes",
        why: "none are asked for".into(),
        remedy: "ask for one at least",
    }
}

fn taken(at: usize) -> Error {
    Error::Argument {
        what: "address",
        why: format!("something lies at {at:#x} already, or nothing may lie there"),
        remedy: "unmap it before, give another, or let Linux find the space",
    }
}

fn opened(path: &std::path::Path) -> Result<File, Error> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut how = std::fs::OpenOptions::new();
    // Without O_NONBLOCK a pipe would be waited for.
    how.read(true).custom_flags(general::O_NONBLOCK as i32);
    let opened = how.open(path);
    opened.map_err(|error| {
        // Which says it as of all files that are opened.
        let why = FileSource::open(path, OpenMode::Read, None).err();
        let name = path.display().to_string();
        Error::Source(why.unwrap_or_else(|| SourceError::not_found(name, error.to_string())))
    })
}

/// How many bytes there are from `offset` on.
fn rest(file: &File, path: &std::path::Path, offset: u64) -> Result<u64, Error> {
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    let name = path.display().to_string();
    let rest = size.checked_sub(offset).filter(|rest| *rest > 0);
    rest.ok_or_else(|| Error::outside(&name, (offset, offset.saturating_add(1)), size))
}
