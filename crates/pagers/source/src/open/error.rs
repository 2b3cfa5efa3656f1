//! Why an address cannot be opened.

use crate::SourceError;

/// Why [`open_source`](super::open_source) opened nothing.
#[derive(Debug, thiserror::Error)]
pub enum OpenSourceError {
    /// The source failed, or is not there.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// An argument makes no sense for this source.
    #[error("{what}: {why}; {remedy}")]
    Argument {
        /// The argument.
        what: &'static str,
        /// What is wrong with it.
        why: String,
        /// What to give instead.
        remedy: &'static str,
    },
}
