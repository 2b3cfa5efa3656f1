//! What can go wrong.

use farpage_object::PagerError;
use farpage_object::maps::{MAPPED_MAX, PATH_MAX};
use farpage_sys::Errno;

/// Why there can be no object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More files than can be.
    #[error("cannot map more than {MAPPED_MAX} files at a time; leave some --map out")]
    TooMany,
    /// A path that is too long.
    #[error("cannot map '{0}': the path is longer than {PATH_MAX} bytes; use a shorter one")]
    Path(String),
    /// An object without pages.
    #[error("cannot make the object '{0}' of no pages; give it one at least")]
    Empty(String),
    /// Linux refuses something.
    #[error("cannot map '{path}': Linux refuses to {what} ({errno}); see farpage doctor")]
    System {
        /// Of the file.
        path: String,
        /// Which step.
        what: &'static str,
        /// Why.
        errno: Errno,
    },
    /// The source does not want to be used.
    #[error("cannot map '{path}': {error}")]
    Refused {
        /// Of the file.
        path: String,
        /// What its pager says.
        error: PagerError,
    },
    /// No thread or descriptor.
    #[error("cannot answer for mapped files: {0}; raise the limits on processes and open files")]
    Start(std::io::Error),
}

/// Why something cannot be mapped.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The process is not known, or not any more.
    #[error("the process has handed no userfaultfd over; do so before mapping")]
    NoSpace,
    /// The object has no such pages, or none are meant.
    #[error("the object has {pages} pages, and {start} to {end} are not among them; map less")]
    Outside {
        /// Pages of the object.
        pages: u64,
        /// The first that was meant.
        start: u64,
        /// One past the last.
        end: u64,
    },
    /// Another mapping of the process lies there, or the address is none.
    #[error(
        "another mapping is at {address:#x} already, or it is no page's address; unmap it first"
    )]
    Address {
        /// Where it was to be.
        address: usize,
    },
}
