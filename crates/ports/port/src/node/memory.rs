//! Out-of-line memory of messages: donated for good, or lent until it comes back.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farpage_sys::{Result, memory_file};

use super::Node;
use crate::link::{Frozen, Loan, Region, RegionHandle, Sealed};

/// Memory of a message.
#[derive(Debug)]
pub enum Memory {
    /// The receiver's from now on; nobody can change it any more.
    Donated(Donated),
    /// The sender's: the receiver looks at it until it drops it.
    Lent(Lent),
}

const SEALS: u32 = memory_file::FIXED | memory_file::WRITE;

/// A sealed memory file. It can be mapped, or sent on as it is.
#[derive(Debug)]
pub struct Donated {
    pub(super) fd: OwnedFd,
    pub(super) bytes: u64,
}

impl From<Donated> for Memory {
    fn from(donated: Donated) -> Self {
        Self::Donated(donated)
    }
}

impl From<Sealed> for Donated {
    fn from(sealed: Sealed) -> Self {
        let bytes = sealed.bytes();
        let fd = sealed.into_fd();
        Self { fd, bytes }
    }
}

impl Donated {
    /// A sealed memory file that is there already.
    ///
    /// # Errors
    /// `EINVAL` when it is no memory file, `EPERM` when somebody could still change it.
    pub fn new(fd: OwnedFd) -> Result<Self> {
        let bytes = memory_file::sealed_bytes(fd.as_fd(), SEALS)?;
        Ok(Self { fd, bytes })
    }

    /// The memory file.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// How many bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps all of it, in a time that hardly depends on the size. What is written to it stays in
    /// this mapping.
    ///
    /// # Errors
    /// As `mmap(2)`.
    pub fn map(&self) -> Result<Frozen> {
        Frozen::map(self.fd.as_fd())
    }

    /// Believes a descriptor that came, once Linux confirms what was said of it.
    pub(super) fn check(fd: &OwnedFd, bytes: u64) -> bool {
        memory_file::sealed_bytes(fd.as_fd(), SEALS) == Ok(bytes)
    }
}

/// Memory that is lent.
#[derive(Debug)]
pub struct Lent(pub(super) LentState);

pub(super) enum LentState {
    /// To be sent, or from another thread of the same task.
    Own(RegionHandle, Range<usize>, Half),
    /// Received from a peer; it goes back when this is dropped.
    Came(Option<Loan>, u32, Node),
}

impl std::fmt::Debug for LentState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.bytes())
    }
}

impl LentState {
    fn bytes(&self) -> usize {
        match self {
            Self::Own(_, range, _) => range.len(),
            Self::Came(loan, _, _) => loan.as_ref().map_or(0, Loan::bytes),
        }
    }
}

impl Lent {
    /// Lends bytes of a region, which its owner may go on writing; the ticket says when the
    /// borrower has let go of them, for whatever reason. The region must outlive the loan only for
    /// its owner's sake: the borrower keeps its own mapping.
    ///
    /// # Panics
    /// When the range is empty, or lies outside of the region.
    #[must_use]
    pub fn new(region: &Region, range: Range<usize>) -> (Self, Ticket) {
        assert!(range.start < range.end && range.end <= region.len());
        let shared = Arc::new((Mutex::new(false), Condvar::new()));
        let half = Half(Arc::clone(&shared));
        let own = LentState::Own(region.handle().clone(), range, half);
        (Self(own), Ticket(shared))
    }

    /// How many bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Copies bytes from `offset` on, as they are now.
    ///
    /// # Errors
    /// As `mmap(2)`, for memory of this task's own.
    ///
    /// # Panics
    /// When they do not all lie in the loan.
    pub fn copy_to(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(into.len()).expect("a range");
        assert!(end <= self.bytes(), "beyond {} lent bytes", self.bytes());
        match &self.0 {
            LentState::Own(region, range, _) => {
                let start = range.start;
                region.map()?.copy_to(start + offset..start + end, into);
            }
            LentState::Came(loan, _, _) => {
                let loan = loan.as_ref().expect("there until it is dropped");
                loan.copy_to(offset, into);
            }
        }
        Ok(())
    }
}

impl Drop for LentState {
    fn drop(&mut self) {
        if let Self::Came(loan, link, node) = self
            && let Some(loan) = loan.take()
        {
            let mut state = node.lock();
            state.give_back(*link, loan);
            node.pump(&mut state);
        }
    }
}

type Shared = Arc<(Mutex<bool>, Condvar)>;

/// Says that a loan is over when it is dropped.
pub(super) struct Half(Shared);

impl Half {
    /// Of a loan that is no more: nobody waits for it.
    pub(super) fn over() -> Self {
        Self(Arc::default())
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        let (is_back, condvar) = &*self.0;
        *is_back.lock().unwrap_or_else(PoisonError::into_inner) = true;
        condvar.notify_all();
    }
}

/// Says when memory that was lent is its owner's alone again: given back, refused, or lost with
/// its borrower.
pub struct Ticket(Shared);

impl Ticket {
    /// Whether it is.
    #[must_use]
    pub fn is_back(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is, at most for `timeout`. Returns whether it is.
    #[must_use]
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let (is_back, condvar) = &*self.0;
        let mut is_back = is_back.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_back {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.unwrap_or(Duration::from_secs(3600));
            if left.is_zero() {
                return false;
            }
            let waited = condvar.wait_timeout(is_back, left);
            is_back = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Memory {
    /// How many bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Donated(donated) => donated.bytes(),
            Self::Lent(lent) => lent.bytes() as u64,
        }
    }
}

/// Memory of messages that are queued here, or about to be sent.
pub(super) enum Held {
    Own(RegionHandle, Range<usize>, Half),
    /// A loan, and the Link that it goes back by.
    Loan(Loan, u32),
}

impl Held {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Own(_, range, _) => range.len(),
            Self::Loan(loan, _) => loan.bytes(),
        }
    }

    /// A sealed copy, for somebody who cannot borrow it.
    pub(super) fn copy(&self) -> Result<Sealed> {
        let name = c"farpage-copy";
        let mut draft = memory_file::Draft::create(name, self.bytes())?;
        match self {
            Self::Own(region, range, _) => region.map()?.copy_to(range.clone(), &mut draft),
            Self::Loan(loan, _) => loan.copy_to(0, &mut draft),
        }
        Sealed::new(draft)
    }

    /// What the receiver gets.
    pub(super) fn received(self, node: &Node) -> Lent {
        Lent(match self {
            Self::Own(region, range, half) => LentState::Own(region, range, half),
            Self::Loan(loan, link) => LentState::Came(Some(loan), link, node.clone()),
        })
    }
}
