//! Locked areas, of what has the buffer protocol.

use std::sync::{Mutex, PoisonError};

use farpage::{Hold, LockError, Locked};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;

use crate::errors::made;

/// Memory that stays where it is until this is given back.
#[pyclass(frozen, module = "farpage._farpage")]
pub(crate) struct Area {
    locked: Mutex<Option<Locked>>,
    /// The memory stays mapped as long as there is a view of it.
    view: Mutex<Option<PyUntypedBuffer>>,
    /// Of a child of fork nothing is locked.
    process: u32,
}

#[pymethods]
impl Area {
    /// Locks the pages of a buffer.
    #[new]
    fn new(py: Python<'_>, buffer: &Bound<'_, PyAny>, pinned: bool) -> PyResult<Self> {
        let why = "cannot lock this: it is not in one piece; give the array that it is a part of";
        let (view, (at, bytes)) = view(py, buffer, why)?;
        let hold = match pinned {
            true => Hold::Pinned,
            false => Hold::Resident,
        };
        let locked = py.detach(|| farpage::lock_area(at, bytes, hold));
        let locked = locked.map_err(|error| raised(py, &error))?;
        Ok(Self {
            locked: Mutex::new(Some(locked)),
            view: Mutex::new(Some(view)),
            process: std::process::id(),
        })
    }

    /// Addresses of the first page and behind the last.
    fn range(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        self.with(py, |locked| Ok((locked.range().start, locked.range().end)))
    }

    /// Whether it still is what was locked.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Locked::check)
    }

    fn frames(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        self.with(py, Locked::frames)
    }

    fn blocks(&self, py: Python<'_>, most: u64) -> PyResult<Vec<(u64, u64)>> {
        let blocks = self.with(py, |locked| locked.blocks(most))?;
        Ok(blocks
            .iter()
            .map(|block| (block.first, block.frames))
            .collect())
    }

    /// Gives it back; again is nothing.
    fn unlock(&self, py: Python<'_>) {
        py.detach(|| drop(self.lock().take()));
        drop(
            self.view
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
    }

    #[getter]
    fn is_locked(&self) -> bool {
        self.process == std::process::id() && self.lock().is_some()
    }
}

impl Area {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Locked>> {
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        look: impl FnOnce(&Locked) -> Result<T, LockError> + Send,
    ) -> PyResult<T> {
        if self.process != std::process::id() {
            let why = "this lock is the parent's: a child of fork has nothing locked; lock the area again";
            return Err(made(py, "LockError", why.to_owned()));
        }
        let seen = py.detach(|| self.lock().as_ref().map(look));
        match seen {
            Some(seen) => seen.map_err(|error| raised(py, &error)),
            None => {
                let why = "cannot look at a lock that was given back; lock the area again";
                Err(made(py, "LockError", why.to_owned()))
            }
        }
    }
}

/// A view of what has the buffer protocol, its address, and its size; `why` not, when it is not in one piece.
pub(crate) fn view(
    py: Python<'_>,
    buffer: &Bound<'_, PyAny>,
    why: &str,
) -> PyResult<(PyUntypedBuffer, (usize, usize))> {
    let view = PyUntypedBuffer::get(buffer)?;
    if !view.is_c_contiguous() && !view.is_fortran_contiguous() {
        return Err(made(py, "ArgumentError", why.to_owned()));
    }
    let place = (view.buf_ptr() as usize, view.len_bytes());
    Ok((view, place))
}

pub(crate) fn raised(py: Python<'_>, error: &LockError) -> PyErr {
    let class = match error {
        LockError::Area(_) | LockError::Beyond { .. } | LockError::Unusable { .. } => {
            "ArgumentError"
        }
        LockError::NoFrames => "Denied",
        LockError::NoRing { .. } => "Unsupported",
        LockError::Stale { .. } => "Stale",
        _ => "KernelError",
    };
    made(py, class, error.to_string())
}
