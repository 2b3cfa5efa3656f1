//! Locks, semaphores, barriers and conditions in shared memory: between processes of a host, and of
//! all hosts of a cluster.
//!
//! They lie in [`Shared`] memory at any multiple of 64 bytes, beside the data that they guard if that
//! is wished: whoever takes a lock gets the page that it lies in, and so the data with it. Or they
//! have memory of their own, by name. Zeros are a free lock, an empty semaphore or barrier; nothing has
//! to be made, and nothing is left behind.
//!
//! Of memory with release consistency ([`Consistency::Release`]) they carry what was written: whoever gives
//! a lock back or comes to a barrier releases before that all such memory that its process has open, and
//! whoever has taken a lock or passed a barrier acquires it. They cannot lie in such memory themselves.
//!
//! What a process had when it died is free again, and whoever has it next is told.
//!
//! ```no_run
//! use farpage_client::{Host, default_socket, sync::{Acquired, Mutex}};
//!
//! let host = Host::connect(&default_socket())?;
//! let shared = host.create("table", 1 << 20)?;
//! let mutex = Mutex::at(&shared, 0)?;
//! let guard = mutex.lock()?;
//! if guard.holder_died() {
//!     // Put right what it may have left half done. Then:
//!     mutex.is_right_again()?;
//! }
//! drop(guard);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod barrier;
mod ground;
mod mutex;
mod semaphore;

pub use barrier::Barrier;
pub use farpage_rules::sync::Kind;
pub use ground::interrupts;
pub(crate) use ground::is_interrupted;
pub use mutex::{Acquired, Condition, Guard, Mutex, Waited};
pub use semaphore::Semaphore;

use std::time::{Duration, Instant};

use farpage_object::PAGE_BYTES;
use farpage_rules::sync::{KIND, Layout, Process, Steps};

use crate::cluster::{Consistency, Scheduler, Wanted};
use crate::{Error, Host, Refusal, Shared};
use ground::Stands;

/// Why a call for a lock, a semaphore, a barrier or a condition failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// It cannot lie there.
    #[error(
        "{kind} cannot lie at byte {offset} of {bytes}: give a multiple of 64 after which there is \
         room for {needs} bytes"
    )]
    Place {
        /// What was wanted.
        kind: Kind,
        /// Where.
        offset: u64,
        /// How much memory there is.
        bytes: u64,
        /// What it takes.
        needs: u64,
    },
    /// What one host writes there others see too late.
    #[error(
        "nothing can be locked in '{0}', which has consistency release: what one host writes there others \
         see only after a lock; give the lock a name of its own, or put it in other memory"
    )]
    Apart(String),
    /// The memory is only read.
    #[error(
        "'{0}' can only be read, and who takes a lock writes to it; use memory that is written to"
    )]
    ReadOnly(String),
    /// Something else lies there.
    #[error(
        "at byte {offset} lies {there}, and not {wanted}; use it as what it is, or give another \
         place or name"
    )]
    Differs {
        /// Where.
        offset: u64,
        /// What was wanted.
        wanted: Kind,
        /// What is there.
        there: String,
    },
    /// It cannot be for so many.
    #[error("{0} cannot be; give a number from 1 to 4096")]
    Count(Kind),
    /// Who gives back must have it.
    #[error(
        "{0} is not this caller's, and only who took it gives it back; take it first (a lock is a \
         thread's, a place of a semaphore a process's)"
    )]
    NotHeld(Kind),
    /// It would wait for itself.
    #[error("this thread has the lock already, and would wait for itself; give it back first")]
    Deadlock,
    /// The page is lost.
    #[error(
        "the page of '{name}' at byte {offset} is lost: the host that had it has died, or the host kernel \
         has; make another, with replicas=2 if that should lose nothing"
    )]
    Lost {
        /// The memory.
        name: String,
        /// Where in it.
        offset: u64,
    },
    /// A barrier cannot be passed.
    #[error(
        "the barrier is broken: a party of it died, did not wait any longer, or somebody has broken \
         it; reset it when all are there again"
    )]
    Broken,
    /// The host kernel does not answer as it should.
    #[error(transparent)]
    Host(#[from] Error),
}

/// Where something lies.
#[derive(Clone)]
struct Place {
    shared: Shared,
    offset: u64,
    layout: Layout,
}

impl Place {
    /// What lies at a byte of shared memory, or is to lie there, where nothing does.
    fn at(shared: &Shared, offset: u64, kind: Kind) -> Result<Self, SyncError> {
        let layout = checked(kind)?;
        let needs = u64::from(layout.words()) * 8;
        let end = offset.checked_add(needs);
        if !offset.is_multiple_of(64) || end.is_none_or(|end| end > shared.bytes()) {
            return Err(SyncError::Place {
                kind,
                offset,
                bytes: shared.bytes(),
                needs,
            });
        }
        if shared.consistency() == Consistency::Release {
            return Err(SyncError::Apart(shared.name().into()));
        }
        if !shared.is_writable() {
            return Err(SyncError::ReadOnly(shared.name().into()));
        }
        let place = Self {
            shared: shared.clone(),
            offset,
            layout,
        };
        let there = Stands::new(&place, 0, None)?.becomes(KIND, layout.word())?;
        match there == layout.word() {
            true => Ok(place),
            false => Err(SyncError::Differs {
                offset,
                wanted: kind,
                there: Layout::from_word(there)
                    .map_or("something else".into(), |there| there.0.to_string()),
            }),
        }
    }

    /// What has a name of its own: in the cluster, if the host kernel belongs to one.
    fn named(host: &Host, name: &str, replicas: u8, kind: Kind) -> Result<Self, SyncError> {
        let bytes = (u64::from(checked(kind)?.words()) * 8).next_multiple_of(PAGE_BYTES as u64);
        let what = match kind {
            Kind::Mutex => "lock",
            Kind::Semaphore(_) => "semaphore",
            Kind::Barrier(_) => "barrier",
        };
        let name = format!("{what}.{name}");
        let wanted = Wanted {
            bytes,
            unit_bytes: PAGE_BYTES as u64,
            scheduler: Scheduler::Distributed,
            replicas,
            hold_us: None,
            stale_us: None,
            consistency: Consistency::Strict,
            stays: false,
            note: String::new(),
        };
        let shared = match host.shared(&name, Some(wanted)) {
            Ok((shared, _)) => shared,
            Err(Error::Refused(Refusal::Alone)) => alone(host, &name, bytes)?,
            Err(error) => return Err(error.into()),
        };
        Self::at(&shared, 0, kind)
    }

    fn kind(&self) -> Kind {
        self.layout.0
    }

    fn own(&self) -> Result<Process, SyncError> {
        Ok(self.shared.member()?.process)
    }

    fn runs<S: Steps>(
        &self,
        steps: S,
        further: u32,
        until: Option<Instant>,
    ) -> Result<S::Outcome, SyncError> {
        steps.run(&mut Stands::new(self, further, until)?)
    }
}

fn checked(kind: Kind) -> Result<Layout, SyncError> {
    match kind {
        Kind::Mutex | Kind::Semaphore(1..=Layout::CELLS_MAX) => Ok(Layout(kind)),
        Kind::Barrier(1..=Layout::CELLS_MAX) => Ok(Layout(kind)),
        Kind::Semaphore(_) | Kind::Barrier(_) => Err(SyncError::Count(kind)),
    }
}

/// Memory of this host alone, found by its name or made.
fn alone(host: &Host, name: &str, bytes: u64) -> Result<Shared, Error> {
    loop {
        match host.open(name) {
            Err(Error::Refused(Refusal::NotFound(_))) => {}
            found => return found,
        }
        match host.create(name, bytes) {
            Err(Error::Refused(Refusal::Exists(_))) => {}
            made => return made,
        }
    }
}

/// Until when to wait; `None`: for ever.
fn until(limit: Option<Duration>) -> Option<Instant> {
    limit.and_then(|limit| Instant::now().checked_add(limit))
}
