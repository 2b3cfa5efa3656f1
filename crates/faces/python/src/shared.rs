//! Shared memory of the host kernel.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farpage_client::Access;
use farpage_client::cluster::{Consistency, Scheduler, Wanted};
use farpage_client::locks::LockRefusal;
use farpage_client::{Error, Host, Refusal};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::errors::made;
use crate::{buffer, sync};

/// The host kernel of this process, found when it is first needed.
static HOST: Mutex<Option<Host>> = Mutex::new(None);

pub(crate) fn with_host<T: Send>(
    py: Python<'_>,
    act: impl FnOnce(&Host) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let result = py.detach(|| {
        let mut host = lock(&HOST);
        let host = match &mut *host {
            Some(host) => host,
            none => none.insert(Host::connect(&farpage_client::default_socket())?),
        };
        act(host)
    });
    result.map_err(|error| raised(py, &error))
}

pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error {
        Error::Absent(_) | Error::Connect { .. } | Error::Call(_) | Error::Unlocked => {
            "Unreachable"
        }
        Error::Refused(
            Refusal::Exists(_) | Refusal::Answered(..) | Refusal::Differs(..) | Refusal::Over(_),
        ) => "Exists",
        Error::Refused(Refusal::NotFound(_) | Refusal::NotShared(_)) => "NotFound",
        Error::Refused(
            Refusal::Name(_)
            | Refusal::Size(_)
            | Refusal::Ram(_)
            | Refusal::Outside(_)
            | Refusal::Unfit(_),
        ) => "ArgumentError",
        Error::File { .. } | Error::Parents(_) => "ArgumentError",
        Error::Late(_) => "TimedOut",
        Error::Refused(Refusal::Unkept) => "Stale",
        Error::Refused(Refusal::Lock(refusal)) => not_locked(refusal),
        Error::Refused(Refusal::NotYours(_)) | Error::NotOurs(..) | Error::Denied(..) => "Denied",
        _ => "KernelError",
    };
    made(py, class, error.to_string())
}

fn not_locked(refusal: &LockRefusal) -> &'static str {
    match refusal {
        LockRefusal::Empty
        | LockRefusal::Beyond { .. }
        | LockRefusal::NoMemory
        | LockRefusal::Own(_)
        | LockRefusal::ReadOnly(_)
        | LockRefusal::NoSegment(_)
        | LockRefusal::Name(_) => "ArgumentError",
        LockRefusal::Denied { .. }
        | LockRefusal::FramesDenied { .. }
        | LockRefusal::FramesUnknown => "Denied",
        LockRefusal::Lent(_) | LockRefusal::LentAs(_) => "Exists",
        LockRefusal::Parents => "LockError",
        LockRefusal::NotLent(_) => "NotFound",
        LockRefusal::Gone { .. } => "Stale",
        _ => "KernelError",
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The host kernel is looked for anew.
#[pyfunction]
pub(crate) fn shared_forget_host(py: Python<'_>) {
    let taken = lock(&HOST).take();
    py.detach(|| drop(taken));
}

/// Makes shared memory.
#[pyfunction]
pub(crate) fn shared_create(py: Python<'_>, name: &str, bytes: u64) -> PyResult<Shared> {
    with_host(py, |host| host.create(name, bytes)).map(Shared::new)
}

/// Finds shared memory.
#[pyfunction]
pub(crate) fn shared_open(py: Python<'_>, name: &str) -> PyResult<Shared> {
    with_host(py, |host| host.open(name)).map(Shared::new)
}

/// Takes a name away.
#[pyfunction]
pub(crate) fn shared_unlink(py: Python<'_>, name: &str) -> PyResult<()> {
    with_host(py, |host| host.unlink(name))
}

/// How memory of the cluster is to be, where there is none of its name.
#[derive(FromPyObject)]
pub(crate) struct Made {
    #[pyo3(item)]
    bytes: u64,
    #[pyo3(item)]
    unit_bytes: u64,
    /// Its home decides.
    #[pyo3(item)]
    simple: bool,
    #[pyo3(item)]
    replicas: u8,
    #[pyo3(item)]
    hold_us: Option<u32>,
    #[pyo3(item)]
    stale_us: Option<u32>,
    /// What hosts write is seen after locks.
    #[pyo3(item)]
    release: bool,
    #[pyo3(item)]
    stays: bool,
    #[pyo3(item)]
    note: String,
}

/// Memory of the cluster, and what was said of it; made as `wanted` when there is none.
#[pyfunction]
#[pyo3(signature = (name, wanted=None, file=None))]
pub(crate) fn shared_of_cluster(
    py: Python<'_>,
    name: &str,
    wanted: Option<Made>,
    file: Option<PathBuf>,
) -> PyResult<(Shared, String)> {
    let wanted = wanted.map(|made| Wanted {
        bytes: made.bytes,
        unit_bytes: made.unit_bytes,
        scheduler: match made.simple {
            true => Scheduler::Simple,
            false => Scheduler::Distributed,
        },
        replicas: made.replicas,
        hold_us: made.hold_us,
        stale_us: made.stale_us,
        consistency: match made.release {
            true => Consistency::Release,
            false => Consistency::Strict,
        },
        stays: made.stays,
        note: made.note,
    });
    let (shared, note) = with_host(py, |host| match (wanted, &file) {
        (Some(wanted), Some(file)) => host.shared_with_file(name, wanted, file),
        (wanted, _) => host.shared(name, wanted),
    })?;
    Ok((Shared::new(shared), note))
}

/// Takes the name of memory of the cluster away.
#[pyfunction]
pub(crate) fn unlink_of_cluster(py: Python<'_>, name: &str) -> PyResult<()> {
    with_host(py, |host| host.unlink_shared(name))
}

/// Nobody writes to memory of the cluster any more.
#[pyfunction]
pub(crate) fn seal_of_cluster(py: Python<'_>, name: &str) -> PyResult<()> {
    with_host(py, |host| host.seal_shared(name))
}

/// What was written to memory of the cluster is in its file: how many bytes went there.
#[pyfunction]
pub(crate) fn flush_of_cluster(py: Python<'_>, name: &str) -> PyResult<u64> {
    with_host(py, |host| host.flush_shared(name))
}

/// Mapped shared memory, with the buffer protocol.
#[pyclass(module = "farpage._farpage", frozen, weakref)]
pub(crate) struct Shared {
    shared: Mutex<Option<farpage_client::Shared>>,
    views: AtomicUsize,
}

/// Shared memory that lives as long as this.
#[pyclass(module = "farpage._farpage", frozen)]
struct Hold(#[expect(dead_code, reason = "it is held")] farpage_client::Hold);

/// Bytes of shared memory that stay in memory as long as this lives.
#[pyclass(module = "farpage._farpage", frozen)]
struct Wire(farpage_client::Wire);

#[pymethods]
impl Wire {
    /// Whether they still do.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let checked = py.detach(|| self.0.check());
        checked.map_err(|error| raised(py, &error))
    }
}

impl Shared {
    pub(crate) fn new(shared: farpage_client::Shared) -> Self {
        Self {
            shared: Mutex::new(Some(shared)),
            views: AtomicUsize::new(0),
        }
    }

    /// What it is, for who keeps it.
    pub(crate) fn own(&self, py: Python<'_>) -> PyResult<farpage_client::Shared> {
        self.with(py, farpage_client::Shared::clone)
    }

    fn with<T>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&farpage_client::Shared) -> T,
    ) -> PyResult<T> {
        match &*lock(&self.shared) {
            Some(shared) => Ok(act(shared)),
            None => Err(made(
                py,
                "ArgumentError",
                "it is closed; open it again".into(),
            )),
        }
    }
}

#[pymethods]
impl Shared {
    /// Size in bytes.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, farpage_client::Shared::bytes)
    }

    /// True when what other hosts write is seen after locks.
    #[getter]
    fn is_released(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |shared| shared.consistency() == Consistency::Release)
    }

    /// What was written is seen by who acquires it from now on.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.with(py, farpage_client::Shared::clone)?;
        let released = py.detach(|| shared.release());
        released.map_err(|error| raised(py, &error))
    }

    /// What was released is seen from now on.
    fn acquire(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.with(py, farpage_client::Shared::clone)?;
        let acquired = py.detach(|| shared.acquire());
        acquired.map_err(|error| raised(py, &error))
    }

    /// Keeps the memory after `close`.
    fn hold(&self, py: Python<'_>) -> PyResult<Option<Hold>> {
        self.with(py, |shared| shared.hold().map(Hold))
    }

    /// Unmaps it; refused while there are views.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.views.load(Ordering::Acquire) > 0 {
            return Err(PyBufferError::new_err(
                "cannot close exported pointers exist",
            ));
        }
        let taken = lock(&self.shared).take();
        py.detach(|| drop(taken));
        Ok(())
    }

    /// Keeps bytes of it in memory.
    fn wire(&self, py: Python<'_>, start: u64, bytes: u64) -> PyResult<Wire> {
        let shared = self.with(py, farpage_client::Shared::clone)?;
        let wired = py.detach(|| shared.wire(start, bytes));
        wired.map(Wire).map_err(|error| raised(py, &error))
    }

    /// The same, and at this host. Without a limit for ever.
    #[pyo3(signature = (start, bytes, write, seconds))]
    fn lock(
        &self,
        py: Python<'_>,
        start: u64,
        bytes: u64,
        write: bool,
        seconds: Option<f64>,
    ) -> PyResult<Wire> {
        let shared = self.with(py, farpage_client::Shared::clone)?;
        let access = if write { Access::Write } else { Access::Read };
        let limit = sync::limit(seconds);
        sync::does(py, || Ok(shared.lock(start, bytes, access, limit)?)).map(Wire)
    }

    /// Keeps it within so many bytes of RAM.
    fn set_ram(&self, py: Python<'_>, bytes: u64) -> PyResult<()> {
        let set = self.with(py, |shared| shared.set_ram(bytes))?;
        set.map_err(|error| raised(py, &error))
    }

    /// Before a fork, whose child will have it too.
    fn before_fork(&self, py: Python<'_>) -> PyResult<()> {
        let announced = self.with(py, farpage_client::Shared::before_fork)?;
        announced.map_err(|error| raised(py, &error))
    }

    /// In a child of fork, before it touches the memory.
    fn after_fork(&self, py: Python<'_>) -> PyResult<()> {
        // The lock is not taken: a thread of the parent may have had it.
        let Ok(shared) = self.shared.try_lock() else {
            return Ok(());
        };
        let Some(shared) = &*shared else {
            return Ok(());
        };
        shared.after_fork().map_err(|error| raised(py, &error))
    }

    /// # Safety
    /// Called by Python with a view to fill.
    unsafe fn __getbuffer__(
        this: PyRef<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let of = |shared: &farpage_client::Shared| {
            let place = (shared.address(), shared.bytes());
            (place, !shared.is_writable())
        };
        let (place, readonly) = this.with(this.py(), of)?;
        // SAFETY: `view` is Python's; `close` is refused while there are views, and each holds a
        // reference to this object.
        unsafe { buffer::fill(view, &this, place, readonly, flags)? };
        this.views.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// # Safety
    /// Called by Python with a view that was filled.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.views.fetch_sub(1, Ordering::AcqRel);
    }
}
