//! Locks and their conditions.

use std::time::{Duration, Instant};

use farpage_rules::sync::{
    Await, CONDITION, Cell, Give, Ground, Held, Kind, Notify, STATE, THREAD, Take, Taken,
};
use farpage_sys::process;

use super::ground::Stands;
use super::{Place, SyncError, until};
use crate::{Host, Shared, passes};

/// What came of taking a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The caller has it.
    Taken,
    /// The caller has it; a process died that had it, and what it guards may be half changed. So it is
    /// for whoever takes it, until [`Mutex::is_right_again`].
    HolderDied,
    /// Another has it, and the time is over.
    TimedOut,
}

/// A lock: one thread at a time has it, of all processes of all hosts.
#[derive(Clone)]
pub struct Mutex(Place);

impl Mutex {
    /// What it takes.
    pub const BYTES: u64 = 64;

    /// The lock at a byte of shared memory, a multiple of 64. Zeros are a free one.
    ///
    /// # Errors
    /// [`SyncError`].
    pub fn at(shared: &Shared, offset: u64) -> Result<Self, SyncError> {
        Place::at(shared, offset, Kind::Mutex).map(Self)
    }

    /// The lock of a name, in memory of its own: of the cluster, or of the host where there is none.
    /// It is there as long as some process has it. `replicas`: of its page, 1 or 2.
    ///
    /// # Errors
    /// [`SyncError`].
    pub fn named(host: &Host, name: &str, replicas: u8) -> Result<Self, SyncError> {
        Place::named(host, name, replicas, Kind::Mutex).map(Self)
    }

    /// The memory that it lies in.
    #[must_use]
    pub fn shared(&self) -> &Shared {
        &self.0.shared
    }

    /// Waits for it.
    ///
    /// # Errors
    /// [`SyncError::Deadlock`], [`SyncError::Lost`], [`SyncError::Host`].
    pub fn lock(&self) -> Result<Guard<'_>, SyncError> {
        loop {
            let acquired = self.acquire(None)?;
            if acquired != Acquired::TimedOut {
                return Ok(Guard {
                    mutex: self,
                    holder_died: acquired == Acquired::HolderDied,
                });
            }
        }
    }

    /// Waits for it so long at most; not at all for no time, and `None` for ever. It is the caller's
    /// until [`Mutex::release`].
    ///
    /// # Errors
    /// As [`Mutex::lock`].
    pub fn acquire(&self, limit: Option<Duration>) -> Result<Acquired, SyncError> {
        if self.is_own()? {
            return Err(SyncError::Deadlock);
        }
        self.takes(limit != Some(Duration::ZERO), until(limit))
    }

    fn takes(&self, waits: bool, until: Option<Instant>) -> Result<Acquired, SyncError> {
        let take = Take::new(self.0.own()?, self.0.layout.cells(), waits);
        match self.0.runs(take, 0, until)? {
            Taken::Busy => Ok(Acquired::TimedOut),
            Taken::Taken { is_marked } => {
                Stands::new(&self.0, 0, None)?.store(THREAD, process::thread_id().into())?;
                if let Err(error) = passes::acquired() {
                    self.gives_back()?;
                    return Err(error.into());
                }
                Ok(match is_marked {
                    true => Acquired::HolderDied,
                    false => Acquired::Taken,
                })
            }
        }
    }

    /// Gives it back.
    ///
    /// # Errors
    /// [`SyncError::NotHeld`] when it is not this thread's; [`SyncError::Lost`].
    pub fn release(&self) -> Result<(), SyncError> {
        self.must_be_own()?;
        self.gives()
    }

    /// Others see what this thread did, and may take it; also where some of that is lost, which is told.
    fn gives(&self) -> Result<(), SyncError> {
        let released = passes::released();
        self.gives_back()?;
        Ok(released?)
    }

    fn gives_back(&self) -> Result<(), SyncError> {
        Stands::new(&self.0, 0, None)?.store(THREAD, 0)?;
        let give = Give::new(self.0.own()?, self.0.layout.cells(), true);
        match self.0.runs(give, 0, None)? {
            true => Ok(()),
            false => Err(SyncError::NotHeld(Kind::Mutex)),
        }
    }

    /// What a holder that died left half done is put right: whoever takes it next is told nothing.
    ///
    /// # Errors
    /// [`SyncError::NotHeld`] when it is not this thread's; [`SyncError::Lost`].
    pub fn is_right_again(&self) -> Result<(), SyncError> {
        self.must_be_own()?;
        Stands::new(&self.0, 0, None)?.clear(STATE, Cell::MARK)?;
        Ok(())
    }

    /// True when some process has it. It may be otherwise when this returns.
    ///
    /// # Errors
    /// [`SyncError::Lost`].
    pub fn is_held(&self) -> Result<bool, SyncError> {
        let word = Stands::new(&self.0, 0, None)?.load(STATE)?;
        Ok(match Cell::from_word(word).held {
            Held::By(_) => true,
            Held::Free | Held::For(_) => false,
        })
    }

    /// True when it is this thread's.
    ///
    /// # Errors
    /// [`SyncError::Lost`].
    pub fn is_own(&self) -> Result<bool, SyncError> {
        let own = self.0.own()?;
        let mut stands = Stands::new(&self.0, 0, None)?;
        // Another thread of this process that takes it says so only after that.
        let thread = stands.load(THREAD)?;
        let held = Cell::from_word(stands.load(STATE)?).held;
        Ok(held == Held::By(own) && thread == u64::from(process::thread_id()))
    }

    fn must_be_own(&self) -> Result<(), SyncError> {
        match self.is_own()? {
            true => Ok(()),
            false => Err(SyncError::NotHeld(Kind::Mutex)),
        }
    }
}

/// A lock that this thread has, until this is dropped.
#[must_use = "it is given back when this is dropped"]
pub struct Guard<'a> {
    mutex: &'a Mutex,
    holder_died: bool,
}

impl Guard<'_> {
    /// A process died that had it, and nobody has put right since what it left.
    #[must_use]
    pub fn holder_died(&self) -> bool {
        self.holder_died
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // It was given back by hand, or is lost, which whoever wants it next is told.
        let _ = self.mutex.release();
    }
}

/// How a wait for a condition ended. The caller has the lock again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// Somebody said that something has changed; else the time was over.
    pub is_notified: bool,
    /// As [`Acquired::HolderDied`].
    pub holder_died: bool,
}

/// What threads wait for that have a lock: that somebody says that something has changed. It lies
/// beside the lock, which has one.
#[derive(Clone)]
pub struct Condition(Mutex);

impl Condition {
    /// That of a lock.
    #[must_use]
    pub fn of(mutex: &Mutex) -> Self {
        Self(mutex.clone())
    }

    /// Gives the lock back, waits for [`Condition::notify`], so long at most, and takes the lock again,
    /// however long that takes. Whoever waits looks again whether it is what it waited for.
    ///
    /// # Errors
    /// [`SyncError::NotHeld`] without the lock; as [`Mutex::lock`], and it is not the caller's then.
    pub fn wait(&self, limit: Option<Duration>) -> Result<Waited, SyncError> {
        let mutex = &self.0;
        mutex.must_be_own()?;
        let turn = Stands::new(&mutex.0, CONDITION, None)?.load(STATE)?;
        mutex.gives()?;
        let is_notified = mutex.0.runs(Await::new(turn), CONDITION, until(limit))?;
        loop {
            let acquired = mutex.takes(true, None)?;
            if acquired != Acquired::TimedOut {
                return Ok(Waited {
                    is_notified,
                    holder_died: acquired == Acquired::HolderDied,
                });
            }
        }
    }

    /// Lets all go on that wait, and look.
    ///
    /// # Errors
    /// [`SyncError::NotHeld`] without the lock; [`SyncError::Lost`].
    pub fn notify(&self) -> Result<(), SyncError> {
        self.0.must_be_own()?;
        self.0.0.runs(Notify::default(), CONDITION, None)
    }
}
