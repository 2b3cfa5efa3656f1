//! Memory of each kind, where large pages may begin.

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, syscall};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{self, MapFlags, ProtFlags};

use super::Backing;

pub(super) const PAGE: usize = 4096;
/// A large page, which all of it is.
pub(super) const BYTES: usize = 2 << 20;

/// 2 MiB of memory, each page with bytes of its own. It is never unmapped: what is locked in it may be.
pub struct Memory {
    at: usize,
    pub(super) backing: Backing,
    /// What others know it by.
    pub(super) file: Option<OwnedFd>,
}

impl Memory {
    /// Maps and fills it. It is of pages of 4096 bytes, but for what is called huge.
    ///
    /// # Errors
    /// They say what is missing here.
    pub fn new(backing: Backing) -> Result<Self> {
        let at = aligned().context("no addresses")?;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let private = |flags: MapFlags| {
            let flags = flags | MapFlags::PRIVATE | MapFlags::FIXED;
            // SAFETY: in place of a reservation of its own.
            unsafe { mm::mmap_anonymous(at as *mut c_void, BYTES, both, flags) }.map(drop)
        };
        let shared = |file: &OwnedFd| {
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            ftruncate(file, BYTES as u64)?;
            // SAFETY: as above.
            unsafe { mm::mmap(at as *mut c_void, BYTES, both, flags, file, 0) }.map(drop)
        };
        let mut file = None;
        match backing {
            Backing::Private => private(MapFlags::empty())?,
            Backing::Huge => {
                private(MapFlags::HUGETLB | MapFlags::HUGE_2MB).context("no huge page is free")?
            }
            Backing::Memfd => {
                let new = file.insert(memfd_create("truth", MemfdFlags::CLOEXEC)?);
                shared(new)?;
            }
            Backing::HugeMemfd => {
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
                let new = memfd_create("truth", flags).context("no huge pages here")?;
                shared(file.insert(new)).context("no huge page is free")?;
            }
            Backing::Secret => shared(file.insert(secret()?))?,
            Backing::SystemV => attach(at).context("no segment of System V")?,
        }
        let memory = Self { at, backing, file };
        if matches!(backing, Backing::Private) {
            let advised = advise(memory.range(), g::MADV_NOHUGEPAGE);
            advised.map_err(|errno| std::io::Error::from_raw_os_error(errno.0))?;
        }
        memory.fill();
        Ok(memory)
    }

    /// Its addresses.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.at..self.at + BYTES
    }

    /// Those that an event is to have a part of, as large as its pages allow.
    pub(super) fn part(&self) -> Range<usize> {
        match self.backing {
            Backing::Huge | Backing::HugeMemfd => self.range(),
            _ => self.at + 128 * PAGE..self.at + 256 * PAGE,
        }
    }

    /// Writes to each page what it had from the beginning.
    pub fn fill(&self) {
        write(self.range(), contents);
    }

    /// Whether each page has that still. All of it must be there.
    pub(super) fn is_filled(&self) -> bool {
        (0..BYTES / PAGE).all(|page| {
            let at = (self.at + page * PAGE) as *const u64;
            // SAFETY: the caller has seen that it is there, and nobody takes it away meanwhile.
            unsafe { at.read_volatile() == contents(page) }
        })
    }

    /// The number of its file, for a child of fork.
    pub(super) fn file_number(&self) -> Option<i32> {
        self.file.as_ref().map(AsRawFd::as_raw_fd)
    }
}

/// `madvise(2)`, of memory that is for tests only.
pub(super) fn advise(range: Range<usize>, advice: u32) -> Result<(), Errno> {
    // SAFETY: nothing else uses the memory.
    unsafe { syscall!(g::__NR_madvise, range.start, range.len(), advice) }.map(drop)
}

/// `munmap(2)`, likewise.
pub(super) fn unmap(range: Range<usize>) -> Result<(), Errno> {
    // SAFETY: nobody looks at it any more, but where it is.
    unsafe { syscall!(g::__NR_munmap, range.start, range.len()) }.map(drop)
}

/// `fallocate(2)` of a hole in a file, at the bytes that are mapped there, or `ftruncate(2)`.
pub(super) fn cut(file: i32, offset: usize, bytes: Option<usize>) -> Result<(), Errno> {
    const HOLE: u32 = g::FALLOC_FL_PUNCH_HOLE | g::FALLOC_FL_KEEP_SIZE;
    match bytes {
        // SAFETY: takes no pointer.
        Some(bytes) => unsafe { syscall!(g::__NR_fallocate, file, HOLE, offset, bytes) },
        // SAFETY: as above.
        None => unsafe { syscall!(g::__NR_ftruncate, file, offset) },
    }
    .map(drop)
}

/// Reads a byte of each page, and returns what they have in common: so nobody leaves it out.
pub(super) fn read(range: Range<usize>) -> u8 {
    let byte = |at: usize| {
        // SAFETY: the caller says that it is mapped, and nobody cuts it off meanwhile.
        unsafe { (at as *const u8).read_volatile() }
    };
    range
        .step_by(PAGE)
        .map(byte)
        .fold(u8::MAX, |all, one| all & one)
}

/// Memory without contents, at an address of its own or in place of something.
pub(super) fn anonymous(at: Option<usize>, bytes: usize) -> rustix::io::Result<Range<usize>> {
    let fixed = at.map_or(MapFlags::empty(), |_| MapFlags::FIXED);
    let at = at.map_or(std::ptr::null_mut(), |at| at as *mut c_void);
    let (both, flags) = (
        ProtFlags::READ | ProtFlags::WRITE,
        MapFlags::PRIVATE | fixed,
    );
    // SAFETY: what it takes the place of is for tests only.
    let at = unsafe { mm::mmap_anonymous(at, bytes, both, flags) }? as usize;
    Ok(at..at + bytes)
}

/// Writes to the first bytes of each page what `contents` says.
pub(super) fn write(range: Range<usize>, contents: impl Fn(usize) -> u64) {
    for (page, at) in range.step_by(PAGE).enumerate() {
        // SAFETY: mapped, writable, and used by nobody else while this is written.
        unsafe { (at as *mut u64).write_volatile(contents(page)) };
    }
}

/// Moves pages to another node, each on its own.
pub(super) fn move_pages(range: Range<usize>, node: i32) -> Result<(), Errno> {
    let pages: Vec<usize> = range.step_by(PAGE).collect();
    let (nodes, mut moved) = (vec![node; pages.len()], vec![0_i32; pages.len()]);
    const MOVE: u32 = 1 << 1;
    let (at, to, how) = (pages.as_ptr(), nodes.as_ptr(), moved.as_mut_ptr());
    // SAFETY: three lists of so many, of which the last is written to.
    unsafe { syscall!(g::__NR_move_pages, 0, pages.len(), at, to, how, MOVE) }.map(drop)
}

/// What the first bytes of a page are.
pub(super) fn contents(page: usize) -> u64 {
    0x6c6f_636b_0000_0000 | page as u64
}

/// Addresses of a large page that are nobody's.
fn aligned() -> rustix::io::Result<usize> {
    let null = std::ptr::null_mut();
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: new memory.
    let at = unsafe { mm::mmap_anonymous(null, 2 * BYTES, ProtFlags::empty(), flags) }?;
    Ok((at as usize).next_multiple_of(BYTES))
}

fn secret() -> Result<OwnedFd> {
    // SAFETY: takes no pointer.
    let fd = unsafe { syscall!(g::__NR_memfd_secret, g::O_CLOEXEC) };
    let fd = fd.map_err(|errno| std::io::Error::from_raw_os_error(errno.0));
    let fd = fd.context("no secret memory (memfd_secret) here")?;
    // SAFETY: new.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Attaches a new segment, which goes with its last process.
fn attach(at: usize) -> std::io::Result<()> {
    /// Who may use it.
    const MODE: u32 = 0o600;
    /// In place of what is there.
    const REMAP: usize = 0o40000;
    const REMOVE: usize = 0;
    let failed = |errno: farpage_sys::Errno| std::io::Error::from_raw_os_error(errno.0);
    // SAFETY: takes no pointer.
    let number = unsafe { syscall!(g::__NR_shmget, 0, BYTES, MODE) }.map_err(failed)?;
    // SAFETY: in place of a reservation of its own.
    let attached = unsafe { syscall!(g::__NR_shmat, number, at, REMAP) };
    // SAFETY: takes no pointer with this command.
    let removed = unsafe { syscall!(g::__NR_shmctl, number, REMOVE, 0) };
    attached.and(removed).map_err(failed).map(drop)
}
