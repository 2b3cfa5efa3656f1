//! One Python exception for each error; the classes are in `farpage/errors.py`.

use farpage::{Error, SourceError};
use pyo3::prelude::*;

/// The exception for an error.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let class = match error {
        Error::Source(error) | Error::NotRead { why: error } => of_source(error),
        Error::Format { .. } => "FormatError",
        Error::Kernel(_) => "KernelError",
        Error::Argument { .. } => "ArgumentError",
        Error::NotWritten { .. } => "NotWritten",
        _ => "Error",
    };
    made(py, class, error.to_string())
}

/// For an argument that makes no sense.
pub(crate) fn argument(py: Python<'_>, why: &str, remedy: &str) -> PyErr {
    made(py, "ArgumentError", format!("{why}; {remedy}"))
}

fn of_source(error: &SourceError) -> &'static str {
    match error {
        SourceError::NotFound { .. } => "NotFound",
        SourceError::Denied { .. } => "Denied",
        SourceError::Changed { .. } => "Changed",
        SourceError::Short { .. } => "Truncated",
        SourceError::WrongRange { .. } => "WrongRange",
        SourceError::Unreachable { .. } => "Unreachable",
        SourceError::TimedOut { .. } => "TimedOut",
        SourceError::Io { .. } => "InputOutputError",
        SourceError::Corrupt { .. } => "Corrupt",
        SourceError::Unsupported { .. } => "Unsupported",
        SourceError::ReadOnly { .. } => "ReadOnly",
        SourceError::NotExact { .. } => "NotExact",
        SourceError::Callback { .. } => "CallbackError",
        _ => "Error",
    }
}

pub(crate) fn made(py: Python<'_>, class: &str, message: String) -> PyErr {
    let exception = || {
        py.import("farpage.errors")?
            .getattr(class)?
            .call1((message,))
    };
    match exception() {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}
