//! Memory that several tasks may have.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use farpage_sys::file::{self, Fd};
use farpage_sys::{Errno, Result, memory_file};

use crate::ObjectName;

/// Files that are open for what `vm_allocate` made: who works on this task from elsewhere cannot take
/// all of its descriptors.
const FILES_MAX: usize = 256;

static FILES: AtomicUsize = AtomicUsize::new(0);

/// One of [`FILES_MAX`].
#[derive(Debug)]
struct Counted(());

impl Counted {
    fn new() -> Result<Self> {
        let count = Self(());
        if FILES.fetch_add(1, Ordering::Relaxed) >= FILES_MAX {
            // Dropping it takes it back.
            return Err(Errno::EMFILE);
        }
        Ok(count)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        FILES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A memory file that nobody can change.
#[derive(Debug)]
pub(crate) struct FrozenFile {
    file: OwnedFd,
    _counted: Counted,
}

impl FrozenFile {
    /// Of one that is, or will be, sealed.
    pub(crate) fn new(file: OwnedFd) -> Result<Self> {
        Ok(Self {
            file,
            _counted: Counted::new()?,
        })
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A memory file whose size nobody can change. It stays open over exec.
#[derive(Debug)]
pub(crate) struct Object {
    _counted: Counted,
    file: OwnedFd,
    name: ObjectName,
    bytes: u64,
}

/// Nobody makes it larger or smaller.
const SIZED: u32 = 0x2 | 0x4;

impl Object {
    /// Zeros.
    pub(crate) fn new(bytes: u64) -> Result<Self> {
        let file = memory_file::create(c"farpage-shared", bytes as usize)?;
        memory_file::seal(file.as_fd(), SIZED)?;
        Self::of(file, bytes)
    }

    fn of(file: OwnedFd, bytes: u64) -> Result<Self> {
        let (device, inode) = file::identity(Fd(file.as_raw_fd()))?;
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty())
            .map_err(|errno| Errno(errno.raw_os_error()))?;
        Ok(Self {
            _counted: Counted::new()?,
            file,
            name: ObjectName { device, inode },
            bytes,
        })
    }

    /// What came over exec: `None` when it is not the object of this name, or has another size.
    pub(crate) fn inherited(number: i32, name: ObjectName, bytes: u64) -> Option<Self> {
        if file::identity(Fd(number)) != Ok((name.device, name.inode)) {
            return None;
        }
        let file = farpage_sys::process::inherited(number).ok()?;
        let is_it = memory_file::sealed_bytes(file.as_fd(), SIZED) == Ok(bytes);
        is_it.then(|| Self::of(file, bytes).ok()).flatten()
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies what it has from `offset` on to the start of a file that has nothing.
    pub(crate) fn copy_to(&self, offset: u64, bytes: u64, to: &OwnedFd) -> Result<()> {
        const CHUNK: u64 = 1 << 20;
        let (from, to) = (Fd(self.file.as_raw_fd()), Fd(to.as_raw_fd()));
        let (mut at, end) = (offset, offset + bytes);
        let mut buffer = vec![0; bytes.min(CHUNK) as usize];
        while let Some(data) = file::data_from(from, at)?.filter(|data| data.start < end) {
            at = data.start;
            while at < data.end.min(end) {
                let part = (data.end.min(end) - at).min(CHUNK) as usize;
                let got = file::pread(from, &mut buffer[..part], at)?;
                file::pwrite_all(to, &buffer[..got], at - offset)?;
                at += part as u64;
            }
        }
        Ok(())
    }

    pub(crate) fn name(&self) -> ObjectName {
        self.name
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}
