//! `malloc` in memory that processes of a host share, or of all hosts of a cluster.

use std::sync::Arc;

use farpage_rules::sync::Process;

use crate::client::{Error, Member, Shared};
use crate::cluster::Consistency;
use crate::heap::{Heap, OpenError, Processes};

/// Why memory is no heap.
#[derive(Debug, thiserror::Error)]
pub enum HeapError {
    /// What the host kernel says.
    #[error(transparent)]
    Host(#[from] Error),
    /// What lies there.
    #[error(transparent)]
    Heap(#[from] OpenError),
    /// Who opens a heap writes to it.
    #[error(
        "'{0}' can only be read, and who opens a heap writes to it; use memory that is written to"
    )]
    ReadOnly(String),
    /// What one host writes there others see too late.
    #[error(
        "'{0}' has consistency release, and hosts see what another allocated in a heap at once; make the \
         memory of the heap with strict consistency"
    )]
    Apart(String),
}

/// Processes as their host kernels know them.
struct OfHosts {
    shared: Shared,
    /// Kept: this process has its number as long as it has the heap.
    member: Arc<Member>,
}

/// Numbers that host kernels give; no number of a namespace.
const WAY: u64 = u64::MAX;

impl Processes for OfHosts {
    fn own(&self) -> u64 {
        self.member.process.number()
    }

    fn way(&self) -> u64 {
        WAY
    }

    fn is_dead(&self, process: u64) -> bool {
        if process == self.own() {
            return false;
        }
        let lives = Process::from_number(process).map(|process| self.shared.lives(process));
        // Of one whose host does not answer nobody knows.
        matches!(lives, Some(Ok(false)))
    }

    fn is_near(&self, process: u64) -> bool {
        Process::from_number(process).is_none_or(|other| other.host() == self.member.process.host())
    }
}

impl Shared {
    /// Opens the heap in it, and makes one there if all of it is zero. Processes of all hosts that
    /// have the memory allocate and free there. What processes of any host had in hand when they died
    /// is found again. Pages that are lost with a host are lost to the heap, too, and whoever meets one
    /// gets SIGBUS: `replicas: 2` keeps it whole when a host dies.
    ///
    /// # Errors
    /// [`HeapError`].
    pub fn heap(&self) -> Result<Heap<Self>, HeapError> {
        Ok(Heap::open_among(self.clone(), self.processes()?)?)
    }

    /// Who the processes are that have it.
    ///
    /// # Errors
    /// [`HeapError::ReadOnly`], and when the host kernel does not answer.
    pub fn processes(&self) -> Result<Box<dyn Processes>, HeapError> {
        if !self.is_writable() {
            return Err(HeapError::ReadOnly(self.name().into()));
        }
        if self.consistency() == Consistency::Release {
            return Err(HeapError::Apart(self.name().into()));
        }
        Ok(Box::new(OfHosts {
            shared: self.clone(),
            member: self.member()?,
        }))
    }
}
