//! `map_fd`: bytes of a file in memory, as a Python object with the buffer protocol.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, RawFd};

use farpage::{Kept, MappedBytes};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{argument, raised};
use crate::memory::Memory;
use crate::options::Options;
use crate::{Entry, answer, buffer, number};

/// Bytes in memory, unmapped when nobody has a view of them.
#[pyclass(frozen, module = "farpage._farpage")]
pub(crate) struct Mapping(MappedBytes);

#[pymethods]
impl Mapping {
    /// How its bytes are kept: 'copied', 'unchanging', 'leased', 'fetched' or 'shared'.
    #[getter]
    fn kept(&self) -> &'static str {
        match self.0.kept() {
            Kept::Copied => "copied",
            Kept::Unchanging => "unchanging",
            Kept::Leased => "leased",
            Kept::Fetched => "fetched",
            Kept::Shared => "shared",
            _ => "otherwise",
        }
    }

    /// # Safety
    /// Called by Python with a view to fill.
    unsafe fn __getbuffer__(
        this: PyRef<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let place = (this.0.as_ptr() as usize, this.0.bytes() as u64);
        let read_only = !this.0.is_writable();
        // SAFETY: `view` is Python's; it holds a reference to this object, which stays mapped.
        unsafe { buffer::fill(view, &this, place, read_only, flags) }
    }
}

/// The descriptor, during a call.
pub(crate) fn borrowed<'a>(py: Python<'_>, fd: RawFd) -> PyResult<BorrowedFd<'a>> {
    if fd < 0 {
        let why = format!("{fd} is no descriptor");
        return Err(argument(py, &why, "give one that is open"));
    }
    // SAFETY: used during a call, in which the caller keeps it open.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Maps `bytes` bytes of the file of `fd` from `offset` on: a private copy, or themselves.
#[pyfunction]
pub(crate) fn map_fd(
    py: Python<'_>,
    fd: RawFd,
    offset: u64,
    bytes: u64,
    shared: bool,
) -> PyResult<Mapping> {
    let fd = borrowed(py, fd)?;
    let mapped = py.detach(|| match shared {
        true => farpage::map_fd_shared(fd, offset, bytes, None),
        false => farpage::map_fd(fd, offset, bytes, None),
    });
    mapped.map(Mapping).map_err(|error| raised(py, &error))
}

/// Maps numbers that are translated, as they are in the file now.
#[pyfunction]
pub(crate) fn map_fd_numbers(
    py: Python<'_>,
    fd: RawFd,
    part: (u64, u64),
    dtype: &str,
    options: &Bound<'_, PyDict>,
) -> PyResult<(Memory, String, Vec<Entry>)> {
    let options = Options::read(options)?;
    let (fd, number) = (borrowed(py, fd)?, number(py, dtype)?);
    let (offset, bytes) = part;
    let loaded = py.detach(|| {
        let source = farpage::snapshot_of_fd(fd, offset, bytes)?;
        farpage::raw_of_source(source, number, &[-1], &options.load)
    });
    answer(py, loaded, &options)
}

/// Maps `bytes` bytes of what is at an address from `offset` on, or all.
#[pyfunction]
pub(crate) fn map_url(
    py: Python<'_>,
    address: &str,
    offset: u64,
    bytes: Option<u64>,
    options: &Bound<'_, PyDict>,
) -> PyResult<Mapping> {
    let options = Options::read(options)?;
    let open = &options.load.open;
    let mapped = py.detach(|| farpage::map_url(address, offset, bytes, None, open));
    mapped.map(Mapping).map_err(|error| raised(py, &error))
}
