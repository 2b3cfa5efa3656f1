//! Locks, semaphores, barriers and conditions in shared memory.

use std::cell::RefCell;
use std::sync::Once;
use std::time::Duration;

use farpage_client::sync::{self, Acquired, SyncError};
use pyo3::prelude::*;

use crate::errors::made;
use crate::shared::{self, Shared, with_host};

thread_local! {
    /// What a signal handler has raised while this thread waited.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Whether a signal handler, Ctrl-C's among them, has something raised in a thread that waits.
fn is_interrupted() -> bool {
    Python::attach(|py| match py.check_signals() {
        Ok(()) => false,
        Err(raised) => {
            RAISED.set(Some(raised));
            true
        }
    })
}

fn raised(py: Python<'_>, error: &SyncError) -> PyErr {
    let class = match error {
        SyncError::Place { .. }
        | SyncError::Apart(_)
        | SyncError::ReadOnly(_)
        | SyncError::Count(_) => "ArgumentError",
        SyncError::Differs { .. } => "Exists",
        SyncError::NotHeld(_) | SyncError::Deadlock => "LockError",
        SyncError::Lost { .. } => "Lost",
        SyncError::Broken => "BrokenBarrier",
        SyncError::Host(error) => return shared::raised(py, error),
        _ => "Error",
    };
    made(py, class, error.to_string())
}

/// Does what may take long.
pub(crate) fn does<T: Send>(
    py: Python<'_>,
    act: impl FnOnce() -> Result<T, SyncError> + Send,
) -> PyResult<T> {
    static HEARS: Once = Once::new();
    HEARS.call_once(|| sync::interrupts(is_interrupted));
    let done = py.detach(act);
    match RAISED.take() {
        Some(raised) => Err(raised),
        None => done.map_err(|error| raised(py, &error)),
    }
}

pub(crate) fn limit(seconds: Option<f64>) -> Option<Duration> {
    // More than can be said is for ever.
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok())
}

/// A lock, and its condition.
#[pyclass(module = "farpage._farpage", frozen)]
pub(crate) struct Mutex(sync::Mutex);

#[pymethods]
impl Mutex {
    #[staticmethod]
    fn at(py: Python<'_>, shared: &Shared, offset: u64) -> PyResult<Self> {
        let shared = shared.own(py)?;
        does(py, || sync::Mutex::at(&shared, offset)).map(Self)
    }

    /// And the memory that it lies in.
    #[staticmethod]
    fn named(py: Python<'_>, name: &str, replicas: u8) -> PyResult<(Self, Shared)> {
        let made = with_host(py, |host| Ok(sync::Mutex::named(host, name, replicas)))?;
        let made = made.map_err(|error| raised(py, &error))?;
        let shared = Shared::new(made.shared().clone());
        Ok((Self(made), shared))
    }

    /// Whether a holder died; None: the time was over. Without a limit for ever.
    #[pyo3(signature = (seconds))]
    fn acquire(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<bool>> {
        match does(py, || self.0.acquire(limit(seconds))) {
            Ok(Acquired::Taken) => Ok(Some(false)),
            Ok(Acquired::HolderDied) => Ok(Some(true)),
            Ok(Acquired::TimedOut) => Ok(None),
            Err(raised) => Err(raised),
        }
    }

    fn release(&self, py: Python<'_>) -> PyResult<()> {
        does(py, || self.0.release())
    }

    fn is_right_again(&self, py: Python<'_>) -> PyResult<()> {
        does(py, || self.0.is_right_again())
    }

    fn is_held(&self, py: Python<'_>) -> PyResult<bool> {
        does(py, || self.0.is_held())
    }

    /// Whether it was notified, and whether a holder died.
    #[pyo3(signature = (seconds))]
    fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<(bool, bool)> {
        let condition = sync::Condition::of(&self.0);
        let waited = does(py, || condition.wait(limit(seconds)))?;
        Ok((waited.is_notified, waited.holder_died))
    }

    fn notify(&self, py: Python<'_>) -> PyResult<()> {
        let condition = sync::Condition::of(&self.0);
        does(py, || condition.notify())
    }
}

/// So many places.
#[pyclass(module = "farpage._farpage", frozen)]
pub(crate) struct Semaphore(sync::Semaphore);

#[pymethods]
impl Semaphore {
    #[staticmethod]
    fn named(py: Python<'_>, name: &str, places: u32, replicas: u8) -> PyResult<(Self, Shared)> {
        let made = with_host(py, |host| {
            Ok(sync::Semaphore::named(host, name, places, replicas))
        })?;
        let made = made.map_err(|error| raised(py, &error))?;
        let shared = Shared::new(made.shared().clone());
        Ok((Self(made), shared))
    }

    /// False: the time was over. Without a limit for ever.
    #[pyo3(signature = (seconds))]
    fn acquire(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<bool> {
        does(py, || self.0.acquire(limit(seconds)))
    }

    fn release(&self, py: Python<'_>) -> PyResult<()> {
        does(py, || self.0.release())
    }
}

/// For so many parties.
#[pyclass(module = "farpage._farpage", frozen)]
pub(crate) struct Barrier(sync::Barrier);

#[pymethods]
impl Barrier {
    #[staticmethod]
    fn named(py: Python<'_>, name: &str, parties: u32, replicas: u8) -> PyResult<(Self, Shared)> {
        let made = with_host(py, |host| {
            Ok(sync::Barrier::named(host, name, parties, replicas))
        })?;
        let made = made.map_err(|error| raised(py, &error))?;
        let shared = Shared::new(made.shared().clone());
        Ok((Self(made), shared))
    }

    /// The caller's number among all.
    #[pyo3(signature = (seconds))]
    fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<u32> {
        does(py, || self.0.wait(limit(seconds)))
    }

    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        does(py, || self.0.abort())
    }

    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        does(py, || self.0.reset())
    }
}
