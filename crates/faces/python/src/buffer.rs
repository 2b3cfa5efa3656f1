//! The buffer protocol.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use pyo3::PyClass;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Fills `view` with the `bytes` bytes at `address`, which are `owner`'s: the view refers to it.
///
/// # Safety
/// `view` is one that Python gave to `__getbuffer__`; the memory stays mapped while a view of it
/// exists.
pub(crate) unsafe fn fill<T: PyClass>(
    view: *mut ffi::Py_buffer,
    owner: &PyRef<'_, T>,
    (address, bytes): (usize, u64),
    read_only: bool,
    flags: c_int,
) -> PyResult<()> {
    let Ok(length) = isize::try_from(bytes) else {
        return Err(PyBufferError::new_err("too large for a buffer"));
    };
    let at = address as *mut c_void;
    // SAFETY: as the caller promises.
    let failed = unsafe {
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), at, length, read_only.into(), flags)
    };
    match failed {
        0 => Ok(()),
        _ => Err(PyErr::fetch(owner.py())),
    }
}
