//! Memory that goes to the peer: donated for good, or lent for a while.

use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farpage_sys::memory_file::{self, Draft, Foreign};
use farpage_sys::{Errno, Result};

use super::error::Violation;

/// Regions that one side of a Link may lend from.
pub const REGIONS_MAX: usize = 16;
/// Loans that may be out at a time, one way.
pub const LOANS_MAX: usize = 1024;

/// Memory that nobody can change any more, to be sent as often as one likes.
pub struct Sealed {
    fd: OwnedFd,
    bytes: u64,
}

impl Sealed {
    /// Seals what was filled. Not in constant time: the pages are unmapped one by one.
    ///
    /// # Errors
    /// As [`Draft::seal`].
    pub fn new(draft: Draft) -> Result<Self> {
        let bytes = draft.len() as u64;
        Ok(Self {
            fd: draft.seal()?,
            bytes,
        })
    }

    /// A sealed copy.
    pub(super) fn copy(bytes: &[u8]) -> Result<Self> {
        let fd = memory_file::create(c"farpage-body", 0)?;
        farpage_sys::file::pwrite_all(number(fd.as_fd()), bytes, 0)?;
        memory_file::seal(fd.as_fd(), memory_file::FIXED | memory_file::WRITE)?;
        Ok(Self {
            fd,
            bytes: bytes.len() as u64,
        })
    }

    /// How many bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The memory file alone.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

fn number(fd: BorrowedFd<'_>) -> farpage_sys::file::Fd {
    use std::os::fd::AsRawFd;
    farpage_sys::file::Fd(fd.as_raw_fd())
}

/// Memory of this process whose ranges can be lent. The owner may write to it at any time, the
/// borrowers only read: see [`Link::lend`](super::Link::lend).
pub struct Region {
    memory: memory_file::Region,
    handle: RegionHandle,
}

/// What lending takes of a region, which its owner keeps.
#[derive(Clone)]
pub(crate) struct RegionHandle {
    fd: Arc<OwnedFd>,
    id: u64,
    pub(crate) bytes: usize,
}

impl RegionHandle {
    /// Among the regions of this process.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Maps it for reading, as a borrower does.
    pub(crate) fn map(&self) -> Result<Foreign> {
        Foreign::map(self.fd.as_fd(), self.bytes)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Region {
    /// `bytes` bytes of zeros.
    ///
    /// # Errors
    /// `EINVAL` for none, and before Linux 5.1; as `memfd_create(2)` and `mmap(2)`.
    pub fn create(bytes: usize) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let memory = memory_file::Region::create(c"farpage-region", bytes)?;
        let fd = memory.fd().try_clone_to_owned();
        let fd = fd.map_err(|error| Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)))?;
        let handle = RegionHandle {
            fd: Arc::new(fd),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            bytes,
        };
        Ok(Self { memory, handle })
    }

    pub(crate) fn handle(&self) -> &RegionHandle {
        &self.handle
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

/// Names a loan among those of its lender on one Link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoanId(pub u64);

/// A range of the peer's memory, to look at. Its owner may change it meanwhile.
pub struct Loan {
    /// The Link that it came by.
    pub(super) link: u64,
    pub(super) id: u64,
    memory: Arc<Foreign>,
    range: Range<usize>,
}

impl Loan {
    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.range.len()
    }

    /// Copies bytes from `offset` on, as they are now.
    ///
    /// # Panics
    /// When they do not all lie in the loan.
    pub fn copy_to(&self, offset: usize, into: &mut [u8]) {
        let end = offset.checked_add(into.len()).expect("a range");
        assert!(
            end <= self.bytes(),
            "beyond a loan of {} bytes",
            self.bytes()
        );
        let start = self.range.start;
        self.memory.copy_to(start + offset..start + end, into);
    }

    /// Where it lies, while the Link that it came by or this value lives: for consumers that cope
    /// with contents that change.
    pub fn pointer(&self) -> *const u8 {
        self.memory.pointer().wrapping_add(self.range.start)
    }
}

impl std::fmt::Debug for Loan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Loan({}: {} bytes)", self.id, self.bytes())
    }
}

/// What this side has lent, of which regions.
#[derive(Default)]
pub(super) struct Lent {
    regions: HashMap<u64, u64>,
    next: u64,
    out: HashSet<u64>,
}

impl Lent {
    /// The region's number on this Link, if it was announced.
    pub(super) fn number(&self, region: &RegionHandle) -> Option<u64> {
        self.regions.get(&region.id).copied()
    }

    /// The number for one more region.
    pub(super) fn next_number(&self) -> Option<u64> {
        let number = self.regions.len();
        (number < REGIONS_MAX).then_some(number as u64)
    }

    pub(super) fn announced(&mut self, region: &RegionHandle, number: u64) {
        self.regions.insert(region.id, number);
    }

    /// The number of the next loan, unless too many are out.
    pub(super) fn next_loan(&self) -> Option<u64> {
        (self.out.len() < LOANS_MAX).then_some(self.next)
    }

    pub(super) fn lent(&mut self, id: u64) {
        self.out.insert(id);
        self.next = id + 1;
    }

    pub(super) fn returned(&mut self, id: u64) -> std::result::Result<LoanId, Violation> {
        let was_out = self.out.remove(&id);
        was_out.then_some(LoanId(id)).ok_or(Violation::Loan(id))
    }
}

/// The peer's regions, which stay mapped.
#[derive(Default)]
pub(super) struct Borrowed(Vec<Arc<Foreign>>);

impl Borrowed {
    /// Keeps region `number`.
    pub(super) fn add(
        &mut self,
        fd: BorrowedFd<'_>,
        number: u64,
        bytes: u64,
    ) -> std::result::Result<(), Violation> {
        let wrong = Violation::Region {
            region: number,
            offset: 0,
            bytes,
        };
        if number != self.0.len() as u64 || self.0.len() == REGIONS_MAX {
            return Err(wrong);
        }
        let bytes = usize::try_from(bytes).map_err(|_| wrong)?;
        let memory = Foreign::map(fd, bytes).map_err(Violation::Memory)?;
        self.0.push(Arc::new(memory));
        Ok(())
    }

    /// A range of a region.
    pub(super) fn loan(
        &self,
        link: u64,
        [id, region, offset, bytes]: [u64; 4],
    ) -> std::result::Result<Loan, Violation> {
        let find = || {
            let memory = self.0.get(usize::try_from(region).ok()?)?;
            let start = usize::try_from(offset).ok()?;
            let end = start.checked_add(usize::try_from(bytes).ok()?)?;
            (end <= memory.bytes()).then(|| Loan {
                link,
                id,
                memory: Arc::clone(memory),
                range: start..end,
            })
        };
        find().ok_or(Violation::Region {
            region,
            offset,
            bytes,
        })
    }
}

/// Copies the body that donated memory is, when it is short: mapping it would take longer.
pub(super) fn copy_donated(
    fd: BorrowedFd<'_>,
    bytes: u64,
) -> std::result::Result<Option<Vec<u8>>, Violation> {
    const SHORT: u64 = 64 << 10;
    if bytes > SHORT {
        return Ok(None);
    }
    let sealed = memory_file::sealed_bytes(fd, memory_file::FIXED | memory_file::WRITE);
    if sealed.map_err(Violation::Memory)? != bytes {
        return Err(Violation::Memory(Errno::EFBIG));
    }
    let mut body = vec![0; bytes as usize];
    let read = farpage_sys::file::pread(number(fd), &mut body, 0);
    match read.map_err(Violation::Memory)? {
        read if read == body.len() => Ok(Some(body)),
        _ => Err(Violation::Memory(Errno::EIO)),
    }
}

/// Maps donated memory that is said to have `bytes` bytes.
pub(super) fn map_donated(
    fd: BorrowedFd<'_>,
    bytes: u64,
) -> std::result::Result<memory_file::Frozen, Violation> {
    let mapped = memory_file::Frozen::map(fd).map_err(Violation::Memory)?;
    if mapped.len() as u64 != bytes {
        return Err(Violation::Memory(Errno::EFBIG));
    }
    Ok(mapped)
}
