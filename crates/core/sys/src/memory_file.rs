//! Memory files that go from one process to another, and what their seals promise.
//!
//! A mapping of somebody else's file is only made once Linux says that the file cannot shrink:
//! an access to it never raises SIGBUS for want of a page of the file.

use core::ffi::CStr;
use core::ops::{Deref, DerefMut, Range};
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use linux_raw_sys::general as g;

use crate::file::{self, Fd};
use crate::raw::{Errno, Result};
use crate::{mem, syscall};

/// `F_SEAL_SEAL`, `F_SEAL_SHRINK` and `F_SEAL_GROW`: the size and the seals stay as they are.
pub const FIXED: u32 = 0x1 | 0x2 | 0x4;
/// `F_SEAL_WRITE`: the contents stay as they are.
pub const WRITE: u32 = 0x8;
/// `F_SEAL_FUTURE_WRITE`: only those who map it for writing now can change the contents.
pub const FUTURE_WRITE: u32 = 0x10;

/// Makes a memory file of `bytes` bytes, closed on exec, that can be sealed.
///
/// # Errors
/// As `memfd_create(2)` and `ftruncate(2)`.
pub fn create(name: &CStr, bytes: usize) -> Result<OwnedFd> {
    let fd = file::memfd(name, g::MFD_CLOEXEC | g::MFD_ALLOW_SEALING)?;
    // SAFETY: made just now, and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd.0) };
    file::set_size(number(fd.as_fd()), bytes as u64)?;
    Ok(fd)
}

/// Adds seals.
///
/// # Errors
/// As `fcntl(2)`; `EBUSY` for [`WRITE`] while the file is mapped for writing.
pub fn seal(fd: BorrowedFd<'_>, seals: u32) -> Result<()> {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_fcntl, fd.as_raw_fd(), g::F_ADD_SEALS, seals) }.map(drop)
}

/// The size of a file of ordinary shared memory that has all of `seals`.
///
/// Asks for the seals first: on a file of another kind, which the process that handed it over may
/// have to answer for, nothing else is tried.
///
/// # Errors
/// `EINVAL` when it is no such file, `EPERM` when a seal is missing.
pub fn sealed_bytes(fd: BorrowedFd<'_>, seals: u32) -> Result<u64> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const SIZE_WORD: usize = 6;
    let raw = fd.as_raw_fd();
    // SAFETY: takes no pointer.
    let has = unsafe { syscall!(g::__NR_fcntl, raw, g::F_GET_SEALS) }.map_err(|_| Errno::EINVAL)?;
    if has as u32 & seals != seals {
        return Err(Errno::EPERM);
    }
    // Huge pages may be missing when they are touched, which raises SIGBUS.
    if file::system_of(Fd(raw))? != TMPFS_MAGIC {
        return Err(Errno::EINVAL);
    }
    let mut status = [0u64; 18];
    // SAFETY: the kernel's `struct stat` has 144 bytes.
    unsafe { syscall!(g::__NR_fstat, raw, status.as_mut_ptr()) }?;
    Ok(status[SIZE_WORD])
}

fn number(fd: BorrowedFd<'_>) -> Fd {
    Fd(fd.as_raw_fd())
}

/// A mapping, undone when it is dropped.
struct Map {
    address: usize,
    bytes: usize,
}

impl Map {
    fn new(fd: BorrowedFd<'_>, bytes: usize, prot: u32, flags: u32) -> Result<Self> {
        // SAFETY: without MAP_FIXED nothing existing is touched.
        let address = unsafe { mem::map(0, bytes, prot, flags, number(fd), 0) }?;
        Ok(Self { address, bytes })
    }

    fn pointer(&self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.address)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: what was lent of it is bound by the lifetime of its owner.
        let _ = unsafe { mem::unmap(self.address, self.bytes) };
    }
}

const READ_WRITE: u32 = mem::PROT_READ | mem::PROT_WRITE;

/// Words that several processes read and write.
pub struct Words(Map);

impl Words {
    /// Maps the first `bytes` bytes of a memory file whose size is fixed.
    ///
    /// # Errors
    /// As [`sealed_bytes`]; `EFBIG` when it does not have just `bytes` bytes; as `mmap(2)`.
    pub fn map(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        Self::map_with(fd, bytes, g::MAP_POPULATE)
    }

    /// As [`Words::map`], of a file of which little may be touched: Linux maps pages as they are.
    ///
    /// # Errors
    /// As [`Words::map`].
    pub fn map_as_touched(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        Self::map_with(fd, bytes, 0)
    }

    fn map_with(fd: BorrowedFd<'_>, bytes: usize, flags: u32) -> Result<Self> {
        if sealed_bytes(fd, FIXED)? != bytes as u64 {
            return Err(Errno::EFBIG);
        }
        Map::new(fd, bytes, READ_WRITE, mem::MAP_SHARED | flags).map(Self)
    }

    /// All of it, by four bytes.
    #[inline]
    pub fn u32s(&self) -> &[AtomicU32] {
        // SAFETY: mapped, page-aligned and valid for any contents; others only race on atomics.
        unsafe { core::slice::from_raw_parts(self.0.pointer().cast(), self.0.bytes / 4) }
    }

    /// All of it, by eight bytes.
    #[inline]
    pub fn u64s(&self) -> &[AtomicU64] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts(self.0.pointer().cast(), self.0.bytes / 8) }
    }

    /// Copies the bytes from `at` on, as they are at this moment, one after another.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn copy_to(&self, at: usize, into: &mut [u8]) {
        let from = self.part(at, into.len()).cast_const();
        // SAFETY: inside the mapping. Nothing is derived from the bytes but bytes, so one that
        // changes meanwhile is one or the other.
        unsafe { core::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies bytes to where `at` is.
    ///
    /// # Panics
    /// When there is no room for them.
    pub fn copy_from(&self, at: usize, bytes: &[u8]) {
        let into = self.part(at, bytes.len());
        // SAFETY: inside the mapping, of which no references to other than atomics are given; who
        // reads or writes there meanwhile has one byte or the other.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), into, bytes.len()) };
    }

    fn part(&self, at: usize, bytes: usize) -> *mut u8 {
        let end = at.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.0.bytes), "outside of it");
        self.0.pointer().wrapping_add(at)
    }
}

/// Memory that only this process has, to be filled and then sealed.
pub struct Draft {
    fd: OwnedFd,
    map: Map,
}

impl Draft {
    /// `bytes` bytes of zeros.
    ///
    /// # Errors
    /// As `memfd_create(2)`, `ftruncate(2)` and `mmap(2)`: `EINVAL` for none.
    pub fn create(name: &CStr, bytes: usize) -> Result<Self> {
        let fd = create(name, bytes)?;
        seal(fd.as_fd(), FIXED & !0x1)?;
        let map = Map::new(fd.as_fd(), bytes, READ_WRITE, mem::MAP_SHARED)?;
        Ok(Self { fd, map })
    }

    /// Unmaps it and forbids every change, to everybody and for ever. Takes time that grows with
    /// the size.
    ///
    /// # Errors
    /// `EBUSY` when a device still writes to it; as `fcntl(2)`.
    pub fn seal(self) -> Result<OwnedFd> {
        drop(self.map);
        seal(self.fd.as_fd(), FIXED | WRITE)?;
        Ok(self.fd)
    }
}

impl Deref for Draft {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: nobody else has the file, so nobody shrinks or changes it.
        unsafe { core::slice::from_raw_parts(self.map.pointer(), self.map.bytes) }
    }
}

impl DerefMut for Draft {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed for writing.
        unsafe { core::slice::from_raw_parts_mut(self.map.pointer(), self.map.bytes) }
    }
}

/// A private view of a file that nobody can change any more. Writing to it copies pages.
pub struct Frozen(Map);

impl Frozen {
    /// Maps all of `fd`, from whomever it came.
    ///
    /// # Errors
    /// As [`sealed_bytes`], of all seals; as `mmap(2)`, `EINVAL` for an empty file.
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self> {
        let bytes = sealed_bytes(fd, FIXED | WRITE)?;
        let bytes = usize::try_from(bytes).map_err(|_| Errno::EFBIG)?;
        let flags = mem::MAP_PRIVATE | mem::MAP_NORESERVE;
        Map::new(fd, bytes, READ_WRITE, flags).map(Self)
    }
}

impl Deref for Frozen {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a private mapping of a file whose size and contents are sealed.
        unsafe { core::slice::from_raw_parts(self.0.pointer(), self.0.bytes) }
    }
}

impl DerefMut for Frozen {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; what is written stays in this mapping, which is borrowed for writing.
        unsafe { core::slice::from_raw_parts_mut(self.0.pointer(), self.0.bytes) }
    }
}

/// Memory that this process writes and others may read at the same time.
pub struct Region {
    fd: OwnedFd,
    map: Map,
}

impl Region {
    /// `bytes` bytes of zeros, which nobody else will ever be able to write to.
    ///
    /// # Errors
    /// As for [`Draft::create`]; `EINVAL` also before Linux 5.1.
    pub fn create(name: &CStr, bytes: usize) -> Result<Self> {
        let fd = create(name, bytes)?;
        let map = Map::new(fd.as_fd(), bytes, READ_WRITE, mem::MAP_SHARED)?;
        seal(fd.as_fd(), FIXED | FUTURE_WRITE)?;
        Ok(Self { fd, map })
    }

    /// The file, for whoever is to read.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: sealed against shrinking, and nobody else can write.
        unsafe { core::slice::from_raw_parts(self.map.pointer(), self.map.bytes) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed for writing.
        unsafe { core::slice::from_raw_parts_mut(self.map.pointer(), self.map.bytes) }
    }
}

/// Memory that another process may be writing: bytes can only be copied out.
pub struct Foreign(Map);

impl Foreign {
    /// Maps all of `fd` to read.
    ///
    /// # Errors
    /// As [`sealed_bytes`]; `EFBIG` when it does not have just `bytes` bytes; as `mmap(2)`.
    pub fn map(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        if sealed_bytes(fd, FIXED | FUTURE_WRITE)? != bytes as u64 {
            return Err(Errno::EFBIG);
        }
        Map::new(fd, bytes, mem::PROT_READ, mem::MAP_SHARED).map(Self)
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Where it lies: for consumers that cope with contents that change.
    pub fn pointer(&self) -> *const u8 {
        self.0.pointer()
    }

    /// Copies the bytes of `range`, as they are at this moment, one after another.
    ///
    /// # Panics
    /// When the range lies outside, or `into` has another length.
    pub fn copy_to(&self, range: Range<usize>, into: &mut [u8]) {
        assert!(range.start <= range.end && range.end <= self.0.bytes);
        assert_eq!(range.len(), into.len());
        // SAFETY: inside a mapping of a file that cannot shrink. Nothing is derived from the bytes
        // but bytes, so one that changes meanwhile is one or the other.
        unsafe {
            let from = self.0.pointer().cast_const().add(range.start);
            core::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_can_be_written_until_it_is_sealed_and_by_nobody_after() {
        let mut draft = Draft::create(c"draft", 10_000).unwrap();
        draft.fill(7);
        let fd = draft.seal().unwrap();
        assert_eq!(
            file::pwrite_all(number(fd.as_fd()), &[1], 0),
            Err(Errno::EPERM)
        );
        assert_eq!(file::punch(number(fd.as_fd()), 0, 4096), Err(Errno::EPERM));
        let (mut one, other) = (
            Frozen::map(fd.as_fd()).unwrap(),
            Frozen::map(fd.as_fd()).unwrap(),
        );
        one[9_999] = 8;
        assert_eq!(
            (one.len(), one[0], one[9_999], other[9_999]),
            (10_000, 7, 8, 7)
        );
    }

    #[test]
    fn what_may_still_change_is_not_frozen() {
        let fd = create(c"open", 4096).unwrap();
        assert_eq!(Frozen::map(fd.as_fd()).err(), Some(Errno::EPERM));
        seal(fd.as_fd(), FIXED & !0x1).unwrap();
        assert_eq!(Frozen::map(fd.as_fd()).err(), Some(Errno::EPERM));
        assert!(Words::map(fd.as_fd(), 4096).is_err(), "seals may be added");
        seal(fd.as_fd(), FIXED).unwrap();
        assert!(Words::map(fd.as_fd(), 4096).is_ok());
        assert_eq!(Words::map(fd.as_fd(), 8192).err(), Some(Errno::EFBIG));
    }

    #[test]
    fn files_of_other_kinds_are_refused() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(Frozen::map(null.as_fd()).err(), Some(Errno::EINVAL));
        let own = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(Words::map(own.as_fd(), 4096).err(), Some(Errno::EINVAL));
    }

    #[test]
    fn a_region_is_written_by_its_owner_alone() {
        let mut region = Region::create(c"region", 8192).unwrap();
        let foreign = Foreign::map(region.fd(), 8192).unwrap();
        region[5000] = 9;
        let mut seen = [0; 2];
        foreign.copy_to(5000..5002, &mut seen);
        assert_eq!(seen, [9, 0]);
        assert!(Map::new(region.fd(), 8192, READ_WRITE, mem::MAP_SHARED).is_err());
        assert_eq!(file::punch(number(region.fd()), 0, 4096), Err(Errno::EPERM));
        assert_eq!(Foreign::map(region.fd(), 4096).err(), Some(Errno::EFBIG));
    }
}
