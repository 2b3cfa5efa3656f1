//! Memory that several tasks may have.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use farpage_client::{Created, Host, Shared};
use farpage_sys::area::Area;
use farpage_sys::file::{self, Fd};
use farpage_sys::{Errno, Result, memory_file};

use crate::space::addresses;
use crate::types::Shortage;
use crate::{ObjectName, VmError};

/// Files that are open for what `vm_allocate` made: who works on this task from elsewhere cannot
/// take all of its descriptors.
const FILES_MAX: usize = 256;

static FILES: AtomicUsize = AtomicUsize::new(0);

fn refused(error: farpage_client::Error) -> VmError {
    // Its words are for people.
    farpage_sys::say!("farpage: no shared memory of the host kernel: {error}");
    VmError::ResourceShortage(Shortage::HostKernel)
}

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
pub(crate) struct Object {
    _counted: Counted,
    view: Option<View>,
    file: OwnedFd,
    name: ObjectName,
    bytes: u64,
}

/// Of an object of the host kernel's: all of it, mapped, until the object is dropped.
pub(crate) struct View {
    pub(crate) shared: Shared,
    pub(crate) range: Range<u64>,
    /// Where the host kernel listens.
    pub(crate) path: PathBuf,
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.name)
    }
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

    /// Zeros in place of what nobody has touched, which the host kernel answers for unless somebody
    /// touches them just then.
    pub(crate) fn of_host(
        host: &Host,
        area: &Area,
        range: &Range<u64>,
    ) -> std::result::Result<Self, VmError> {
        let bytes = range.end - range.start;
        let made = host.create_in(area, &addresses(range)).map_err(refused)?;
        match made {
            Created::File(file) => Ok(Self::of(file, bytes)?),
            Created::Shared(shared) => Ok(Self::viewed(shared, host, range)?),
        }
    }

    fn viewed(shared: Shared, host: &Host, range: &Range<u64>) -> Result<Self> {
        let file = shared.file().try_clone_to_owned();
        let file = file.map_err(|error| Errno(error.raw_os_error().unwrap_or(0)))?;
        let mut object = Self::of(file, range.end - range.start)?;
        object.view = Some(View {
            shared,
            range: range.clone(),
            path: host.path().into(),
        });
        Ok(object)
    }

    fn of(file: OwnedFd, bytes: u64) -> Result<Self> {
        let (device, inode) = file::identity(Fd(file.as_raw_fd()))?;
        rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty())
            .map_err(|errno| Errno(errno.raw_os_error()))?;
        Ok(Self {
            _counted: Counted::new()?,
            view: None,
            file,
            name: ObjectName { device, inode },
            bytes,
        })
    }

    /// What came over exec: `None` when it is not the object of this name, or has another size.
    pub(crate) fn inherited(number: i32, name: ObjectName, bytes: u64) -> Option<Self> {
        let file = Self::inherited_file(number, name, bytes)?;
        Self::of(file, bytes).ok()
    }

    /// The same of an object of a host kernel's, mapped.
    pub(crate) fn inherited_of_host(
        host: &Host,
        area: &Area,
        range: &Range<u64>,
        file: OwnedFd,
    ) -> std::result::Result<Self, String> {
        let shared = host.adopt_in(area, &addresses(range), file);
        let shared = shared.map_err(|error| error.to_string())?;
        Self::viewed(shared, host, range).map_err(|errno| errno.to_string())
    }

    pub(crate) fn inherited_file(number: i32, name: ObjectName, bytes: u64) -> Option<OwnedFd> {
        if file::identity(Fd(number)) != Ok((name.device, name.inode)) {
            return None;
        }
        let file = farpage_sys::process::inherited(number).ok()?;
        let is_it = memory_file::sealed_bytes(file.as_fd(), SIZED) == Ok(bytes);
        is_it.then_some(file)
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// How it is mapped, where the host kernel answers for it.
    pub(crate) fn view(&self) -> Option<&View> {
        self.view.as_ref()
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
