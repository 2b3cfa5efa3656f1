//! Mapped memory as a Python object with the buffer protocol.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::buffer;
use crate::errors::{argument, raised};
use crate::options::Options;

/// Mapped memory.
#[pyclass(frozen, subclass, module = "farpage._farpage")]
pub(crate) struct Memory {
    memory: std::sync::Mutex<Option<farpage::Memory>>,
    /// Views that point into it.
    views: AtomicU64,
}

impl Memory {
    pub(crate) fn new(
        py: Python<'_>,
        opened: Result<farpage::Memory, farpage::Error>,
        options: &Options,
    ) -> PyResult<Self> {
        let memory = opened.map_err(|error| raised(py, &error))?;
        if let Some(path) = &options.record {
            memory.record(path).map_err(|error| raised(py, &error))?;
        }
        Ok(Self {
            memory: std::sync::Mutex::new(Some(memory)),
            views: AtomicU64::new(0),
        })
    }

    fn get(&self, py: Python<'_>) -> PyResult<farpage::Memory> {
        let memory = self
            .memory
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        memory
            .clone()
            .ok_or_else(|| argument(py, "this object is closed", "open it again"))
    }

    /// Calls `act` without the interpreter lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&farpage::Memory) -> Result<T, farpage::Error> + Send,
    ) -> PyResult<T> {
        let memory = self.get(py)?;
        py.detach(|| act(&memory))
            .map_err(|error| raised(py, &error))
    }
}

#[pymethods]
impl Memory {
    /// Takes over what `other` maps, which is closed afterwards.
    #[new]
    fn take_over(py: Python<'_>, other: &Self) -> PyResult<Self> {
        if other.views.load(Ordering::Acquire) > 0 {
            return Err(argument(py, "views of it exist", "delete them first"));
        }
        let mut memory = other
            .memory
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(Self {
            memory: std::sync::Mutex::new(memory.take()),
            views: AtomicU64::new(0),
        })
    }

    /// What messages call it; never with credentials.
    #[getter]
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.get(py)?.name().to_owned())
    }

    /// Its size in bytes.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.get(py)?.size())
    }

    /// True when it can be written to.
    #[getter]
    fn writable(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.get(py)?.is_writable())
    }

    /// What tells its version from others of the same name; None when nothing does.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.get(py)?.version())
    }

    /// True after `close`.
    #[getter]
    fn closed(&self) -> bool {
        let memory = self
            .memory
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        memory.is_none()
    }

    /// `progress(bytes)` is called some ten times a second; an exception of its ends the call.
    #[pyo3(signature = (start, stop, progress=None))]
    fn prefetch(
        &self,
        py: Python<'_>,
        start: u64,
        stop: u64,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let mut failed = None;
        let came = self.with(py, |memory| {
            memory.prefetch(start..stop, |bytes| {
                // A program that ends hears nothing more.
                let told = Python::try_attach(|py| {
                    py.check_signals()?;
                    progress
                        .as_ref()
                        .map_or(Ok(()), |f| f.call1(py, (bytes,)).map(drop))
                });
                failed = failed.take().or(told.and_then(Result::err));
            })
        })?;
        failed.map_or(Ok(came), Err)
    }

    fn drop(&self, py: Python<'_>, start: u64, stop: u64) -> PyResult<()> {
        self.with(py, |memory| memory.discard(start..stop))
    }

    /// Writes back what was written; it is durable when this returns. Raises `NotWritten`: what the
    /// source does not take stays here; and `Changed` when somebody else has replaced the object in
    /// the store, which is not overwritten.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, farpage::Memory::flush)
    }

    fn pin(&self, py: Python<'_>, start: u64, stop: u64) -> PyResult<()> {
        self.with(py, |memory| memory.pin(start..stop))
    }

    fn unpin(&self, py: Python<'_>, start: u64, stop: u64) -> PyResult<()> {
        self.with(py, |memory| memory.unpin(start..stop))
    }

    /// What it takes and has cost: `bytes` of the source, `resident_bytes` of them in memory,
    /// `reads` of the source and the `read_bytes` that they brought, `written_bytes`, `failures`.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.get(py)?.stats();
        let dict = PyDict::new(py);
        dict.set_item("bytes", stats.bytes)?;
        dict.set_item("resident_bytes", stats.resident_bytes)?;
        dict.set_item("reads", stats.reads)?;
        dict.set_item("read_bytes", stats.read_bytes)?;
        dict.set_item("written_bytes", stats.written_bytes)?;
        dict.set_item("failures", stats.failures)?;
        Ok(dict)
    }

    /// Which bytes are in memory: pairs (start, stop) of byte offsets, in order.
    fn residency(&self, py: Python<'_>) -> PyResult<Vec<(u64, u64)>> {
        let runs = self.get(py)?.residency();
        Ok(runs.into_iter().map(|run| (run.start, run.end)).collect())
    }

    /// Copies the bytes from `start` to `stop` out; a failure is an exception.
    fn read<'py>(&self, py: Python<'py>, start: u64, stop: u64) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.with(py, |memory| {
            let mut copy = vec![0; stop.saturating_sub(start) as usize];
            memory.read_at(start, &mut copy).map(|()| copy)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn record(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |memory| memory.record(&path))
    }

    /// Unmaps it. Refused while views exist.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let views = self.views.load(Ordering::Acquire);
        if views > 0 {
            let why = format!("{views} arrays or views of it exist");
            return Err(argument(py, &why, "delete them first"));
        }
        let mut memory = self
            .memory
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let taken = memory.take();
        drop(memory);
        py.detach(|| drop(taken));
        Ok(())
    }

    /// # Safety
    /// Called by Python with a view to fill.
    unsafe fn __getbuffer__(
        this: PyRef<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let memory = this.get(this.py())?;
        let place = (memory.as_ptr() as usize, memory.size());
        // SAFETY: `view` is Python's; `close` is refused while there are views, and each holds a
        // reference to this object.
        unsafe { buffer::fill(view, &this, place, !memory.is_writable(), flags)? };
        this.views.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// # Safety
    /// Called by Python with a view that was filled.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.views.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let memory = self
            .memory
            .get_mut()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let taken = memory.take();
        // Writing back takes time, and may need what holds the interpreter lock.
        Python::try_attach(|py| py.detach(|| drop(taken)));
    }
}
