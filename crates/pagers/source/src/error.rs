//! What can go wrong with a source.

use std::time::Duration;

/// Why bytes could not be read or written. Each says what, why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// There is nothing of that name.
    #[error("cannot find '{name}': {cause}; {remedy}")]
    NotFound {
        /// Of the source.
        name: String,
        /// What was answered.
        cause: String,
        /// What helps.
        remedy: &'static str,
    },
    /// Access is not allowed.
    #[error("may not access '{name}': {cause}; {remedy}")]
    Denied {
        /// Of the source.
        name: String,
        /// What was answered.
        cause: String,
        /// Where permission comes from.
        remedy: &'static str,
    },
    /// It is not the version that was opened.
    #[error("'{name}' has changed since it was opened: it was {was} and is {is}; {remedy}")]
    Changed {
        /// Of the source.
        name: String,
        /// The version opened.
        was: String,
        /// The version found.
        is: String,
        /// What helps.
        remedy: &'static str,
    },
    /// It ends before it should.
    #[error(
        "'{name}' ends at byte {end}, but bytes {offset} to {} were wanted; it was cut, or is \
         still being written: open it again when it is whole", offset + bytes
    )]
    Short {
        /// Of the source.
        name: String,
        /// First byte wanted.
        offset: u64,
        /// Number of bytes wanted.
        bytes: u64,
        /// Where it ends.
        end: u64,
    },
    /// A server answered with other bytes than those asked for.
    #[error(
        "the server of '{name}' was asked for bytes {offset} to {} and answered with {answer}; it, \
         or a proxy before it, does not serve ranges right: use another, or download the file",
        offset + bytes
    )]
    WrongRange {
        /// Of the source.
        name: String,
        /// First byte wanted.
        offset: u64,
        /// Number of bytes wanted.
        bytes: u64,
        /// What was answered.
        answer: String,
    },
    /// It could not be reached, or the connection broke. Worth another try.
    #[error("cannot reach '{name}': {cause}; check the network and the server")]
    Unreachable {
        /// Of the source.
        name: String,
        /// What happened.
        cause: String,
        /// How long the server asked to be left alone, where it did.
        retry_after: Option<Duration>,
    },
    /// It was tried again until the deadline.
    #[error("'{name}' did not answer within {seconds} s: {cause}; {remedy}")]
    TimedOut {
        /// Of the source.
        name: String,
        /// The deadline.
        seconds: u64,
        /// What the last try came to.
        cause: String,
        /// What helps.
        remedy: &'static str,
    },
    /// Reading or writing failed.
    #[error("cannot {what} '{name}' at byte {offset}: {cause}; {remedy}")]
    Io {
        /// Of the source.
        name: String,
        /// `read` or `write`.
        what: &'static str,
        /// Where.
        offset: u64,
        /// What the system said.
        cause: String,
        /// What helps.
        remedy: &'static str,
    },
    /// The bytes are not what they must be.
    #[error("'{name}' is damaged at byte {offset}: {cause}; get a fresh copy")]
    Corrupt {
        /// Of the source.
        name: String,
        /// Where.
        offset: u64,
        /// What is wrong.
        cause: String,
    },
    /// It is of a kind that cannot be opened.
    #[error("cannot open '{name}': {cause}; {remedy}")]
    Unsupported {
        /// Of the source.
        name: String,
        /// What it is.
        cause: String,
        /// What helps.
        remedy: String,
    },
    /// It cannot be written to.
    #[error("'{name}' cannot be written to; open it for writing, or write to a copy")]
    ReadOnly {
        /// Of the source.
        name: String,
    },
    /// A value has no exact counterpart in the type that the source holds.
    #[error("cannot write to '{name}' at byte {offset}: {cause}; write a value that it can hold")]
    NotExact {
        /// Of the source.
        name: String,
        /// Where.
        offset: u64,
        /// Which value and which type.
        cause: String,
    },
    /// Code that answers for the bytes failed.
    #[error("the callback of '{name}' failed at byte {offset}: {cause}")]
    Callback {
        /// Of the source.
        name: String,
        /// Where.
        offset: u64,
        /// What it said.
        cause: String,
    },
}

impl SourceError {
    /// There is nothing called `name`.
    pub fn not_found(name: String, cause: String) -> Self {
        Self::NotFound {
            name,
            cause,
            remedy: "check the name",
        }
    }

    /// True when the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::NotFound { .. }
            | Self::Denied { .. }
            | Self::Changed { .. }
            | Self::Short { .. }
            | Self::WrongRange { .. }
            | Self::TimedOut { .. }
            | Self::Io { .. }
            | Self::Corrupt { .. }
            | Self::Unsupported { .. }
            | Self::ReadOnly { .. }
            | Self::NotExact { .. }
            | Self::Callback { .. } => false,
        }
    }

    /// How long the server asked to be left alone before the next try.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unreachable { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The same failure after it was tried again for `deadline`.
    pub fn timed_out(self, deadline: Duration) -> Self {
        match self {
            Self::Unreachable { name, cause, .. } => Self::TimedOut {
                name,
                // Half a second is not zero.
                seconds: deadline.as_secs_f64().ceil() as u64,
                cause,
                remedy: "check the address, the network and the server, or allow more time",
            },
            other => other,
        }
    }
}
