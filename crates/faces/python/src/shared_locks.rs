//! Shared memory that processes lock through the host kernel.

use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farpage_client::Error;
use farpage_client::locks::{Hold, SegmentLock};
use pyo3::prelude::*;

use crate::errors::made;
use crate::map_fd::borrowed;
use crate::shared::{raised, with_host};

/// A part of shared memory that stays where it is until this is given back.
#[pyclass(frozen, module = "farpage._farpage")]
pub(crate) struct SharedLock {
    lock: Mutex<Option<SegmentLock>>,
    /// A child of fork has nothing of it.
    process: u32,
}

fn hold(pinned: bool) -> Hold {
    match pinned {
        true => Hold::Pinned,
        false => Hold::Resident,
    }
}

/// Locks bytes of the shared memory of a descriptor.
#[pyfunction]
pub(crate) fn lock_file(
    py: Python<'_>,
    fd: RawFd,
    start: u64,
    stop: u64,
    pinned: bool,
) -> PyResult<SharedLock> {
    let fd = borrowed(py, fd)?;
    with_host(py, |host| host.lock_file(fd, start..stop, hold(pinned))).map(SharedLock::new)
}

/// Locks bytes of a System V segment.
#[pyfunction]
pub(crate) fn lock_segment(
    py: Python<'_>,
    number: u32,
    start: u64,
    stop: u64,
    pinned: bool,
) -> PyResult<SharedLock> {
    with_host(py, |host| {
        host.lock_segment(number, start..stop, hold(pinned))
    })
    .map(SharedLock::new)
}

/// A share of a lock that another process lends.
#[pyfunction]
pub(crate) fn borrow_lock(py: Python<'_>, name: &str) -> PyResult<SharedLock> {
    with_host(py, |host| host.borrow_lock(name)).map(SharedLock::new)
}

#[pymethods]
impl SharedLock {
    /// Its first byte, and that behind its last.
    fn range(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.with(py, |lock| Ok((lock.range().start, lock.range().end)))
    }

    fn lend(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.with(py, |lock| lock.lend(name))
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, SegmentLock::check)
    }

    fn frames(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        self.with(py, SegmentLock::frames)
    }

    fn blocks(&self, py: Python<'_>, most: u64) -> PyResult<Vec<(u64, u64)>> {
        let blocks = self.with(py, |lock| lock.blocks(most))?;
        let pairs = blocks.iter().map(|block| (block.first, block.frames));
        Ok(pairs.collect())
    }

    /// Gives it back; again is nothing.
    fn unlock(&self, py: Python<'_>) {
        py.detach(|| drop(self.lock().take()));
    }

    #[getter]
    fn is_locked(&self) -> bool {
        self.process == std::process::id() && self.lock().is_some()
    }
}

impl SharedLock {
    fn new(lock: SegmentLock) -> Self {
        Self {
            lock: Mutex::new(Some(lock)),
            process: std::process::id(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<SegmentLock>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        look: impl FnOnce(&SegmentLock) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        // A child of fork is told by what is asked.
        let seen = py.detach(|| self.lock().as_ref().map(look));
        match seen {
            Some(seen) => seen.map_err(|error| raised(py, &error)),
            None => {
                let why = "cannot use a lock that was given back; lock the memory again";
                Err(made(py, "LockError", why.to_owned()))
            }
        }
    }
}
