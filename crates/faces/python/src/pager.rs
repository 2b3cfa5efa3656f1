//! Python code that answers for memory of other processes.
//!
//! It may run here: this process does not map what it answers for, so no thread that waits for a
//! page holds its interpreter lock.

use std::sync::Arc;
use std::time::Duration;

use farpage::{Source, SourceError};
use farpage_client::pager::SourceObject;
use farpage_client::{Host, default_socket};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::shared::raised;

/// Time between two looks for a signal.
const LOOK: Duration = Duration::from_millis(200);

/// An object with `read(offset, length)`, and `write(offset, data)` if it can be written to.
struct Code {
    name: String,
    size: u64,
    writable: bool,
    object: Py<PyAny>,
}

impl Code {
    /// Runs Python code, unless its program ends.
    fn run(
        &self,
        offset: u64,
        code: impl FnOnce(Python<'_>) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let ends = || Err(self.wrong(offset, "the program of the pager ends".into()));
        Python::try_attach(code).unwrap_or_else(ends)
    }

    fn failed(&self, py: Python<'_>, offset: u64, error: &PyErr) -> SourceError {
        // What it was is seen where it runs.
        error.print(py);
        self.wrong(offset, error.to_string())
    }

    fn wrong(&self, offset: u64, cause: String) -> SourceError {
        SourceError::Callback {
            name: self.name.clone(),
            offset,
            cause,
        }
    }
}

impl Source for Code {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        self.run(offset, |py| {
            let length = buffer.len();
            let read = self.object.call_method1(py, "read", (offset, length));
            let bytes = read.and_then(|bytes| Ok(bytes.extract::<PyBackedBytes>(py)?));
            let bytes = bytes.map_err(|error| self.failed(py, offset, &error))?;
            if bytes.len() != length {
                let cause = format!("read returned {} bytes, not {length}", bytes.len());
                return Err(self.wrong(offset, cause));
            }
            buffer.copy_from_slice(&bytes);
            Ok(())
        })
    }

    fn is_writable(&self) -> bool {
        self.writable
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), SourceError> {
        self.run(offset, |py| {
            let data = PyBytes::new(py, bytes);
            let written = self.object.call_method1(py, "write", (offset, data));
            written.map_err(|error| self.failed(py, offset, &error))?;
            Ok(())
        })
    }
}

/// Answers until the host kernel ends, or a signal handler raises.
#[pyfunction]
pub(crate) fn serve_pager(
    py: Python<'_>,
    name: &str,
    object: Py<PyAny>,
    size: u64,
    writable: bool,
    patience: Option<f64>,
) -> PyResult<()> {
    let code = Code {
        name: name.to_owned(),
        size,
        writable,
        object,
    };
    let object = Arc::new(SourceObject::new(name, Arc::new(code), 16));
    let patience = patience.map(Duration::from_secs_f64);
    let offered = py.detach(|| {
        let host = Host::connect(&default_socket())?;
        Ok((host.offer(object, patience)?, host))
    });
    let (offered, host) = offered.map_err(|error| raised(py, &error))?;
    let ended = loop {
        if py.detach(|| offered.wait(Some(LOOK))) {
            break Ok(());
        }
        if let Err(raised) = py.check_signals() {
            break Err(raised);
        }
    };
    // Its threads may wait for the interpreter lock.
    py.detach(|| drop((offered, host)));
    ended
}
