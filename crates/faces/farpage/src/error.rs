//! What can go wrong.

use farpage_format::{FormatError, OpenError};
use farpage_kernel::embed;
use farpage_source::open::OpenSourceError;
use farpage_source::{SourceError, TraceError};

/// Why something could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The source.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// What the source holds.
    #[error("cannot load '{name}': {error}")]
    Format {
        /// Of the source.
        name: String,
        /// What is wrong.
        error: FormatError,
    },
    /// The kernel.
    #[error(transparent)]
    Kernel(#[from] embed::Error),
    /// An argument that makes no sense.
    #[error("{what}: {why}; {remedy}")]
    Argument {
        /// Which.
        what: &'static str,
        /// What is wrong with it.
        why: String,
        /// What to give.
        remedy: &'static str,
    },
    /// Pages could not be written back.
    #[error("cannot write '{name}' back: {why}")]
    NotWritten {
        /// Of the source.
        name: String,
        /// Its failure, or that of the kernel.
        why: String,
    },
    /// Pages that were asked for could not be had.
    #[error("{why}")]
    NotRead {
        /// The failure of the source.
        why: SourceError,
    },
}

impl From<TraceError> for Error {
    fn from(error: TraceError) -> Self {
        Self::Argument {
            what: "trace",
            why: error.why,
            remedy: error.remedy,
        }
    }
}

impl From<OpenSourceError> for Error {
    fn from(error: OpenSourceError) -> Self {
        match error {
            OpenSourceError::Source(error) => Self::Source(error),
            OpenSourceError::Argument { what, why, remedy } => Self::Argument { what, why, remedy },
        }
    }
}

impl Error {
    /// Bytes `start` to `end` were named of what has `size`.
    pub(crate) fn outside(name: &str, (start, end): (u64, u64), size: u64) -> Self {
        Self::Argument {
            what: "range",
            why: format!("bytes {start} to {end} are not inside '{name}', which has {size}"),
            remedy: "give a range inside",
        }
    }

    pub(crate) fn format(name: &str, error: FormatError) -> Self {
        let name = name.into();
        Self::Format { name, error }
    }

    pub(crate) fn open(name: &str, error: OpenError<SourceError>) -> Self {
        match error {
            OpenError::Read { error, .. } => Self::Source(error),
            OpenError::Format(error) => Self::format(name, error),
        }
    }
}
