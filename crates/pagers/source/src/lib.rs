//! Where the contents of memory objects come from.
//!
//! A [`Source`] is bytes at offsets: a local file, a part of another source, several one after
//! another, something compressed or far away. [`SourcePager`] is the pager that makes memory of
//! one.

use std::os::fd::BorrowedFd;

mod aligned;
mod cache;
mod compressed;
mod error;
mod fetch;
mod file;
mod link;
#[cfg(feature = "remote")]
pub mod open;
mod pager;
mod parts;
mod plan;
mod pool;
#[cfg(feature = "remote")]
pub mod remote;
mod retry;
mod trace;

pub use cache::{Cache, CacheUsage};
#[doc(hidden)]
pub use compressed::parse;
pub use compressed::{Compression, decompress, is_compressed};
pub use error::SourceError;
pub use file::{FileSource, OpenMode};
pub use pager::{Counts, OnFailure, Options, SourcePager};
pub use parts::{Concat, Slice};
pub use retry::{Patient, Retry};
pub use trace::{Recorder, Trace, TraceError, Traced, Traces, yet_to_be_recorded};

/// How far away the bytes of a source are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// In this machine: memory, a disk, a computation. Read in the thread that asks.
    Near,
    /// Behind a network. Several reads at a time are worth while, and they are retried.
    Far,
}

/// Bytes at offsets, somewhere.
///
/// What was opened is one version: a source whose contents are exchanged, or end earlier than when
/// it was opened, reports that ([`SourceError::Changed`], [`SourceError::Short`]) and never mixes
/// two versions. Several threads read at a time.
pub trait Source: Send + Sync {
    /// What messages call it. Never holds credentials.
    fn name(&self) -> &str;

    /// What tells it from everything else that is kept of sources: its name, and what of its address the name
    /// does not show. Only its hash is kept.
    fn identity(&self) -> String {
        self.name().into()
    }

    /// Its size in bytes.
    fn size(&self) -> u64;

    /// What tells this version from others of the same name: an entity tag, say. `None` when
    /// nothing does.
    fn version(&self) -> Option<String> {
        None
    }

    /// How far away it is.
    fn reach(&self) -> Reach {
        Reach::Near
    }

    /// True when these bytes can be read without waiting for anything far away. For sources that
    /// are [`Reach::Far`] and keep copies nearby.
    fn is_at_hand(&self, offset: u64, bytes: u64) -> bool {
        let _ = (offset, bytes);
        self.reach() == Reach::Near
    }

    /// True when these bytes are in memory: reading them now would wait for no disk either.
    fn is_in_memory(&self, offset: u64, bytes: u64) -> bool {
        let _ = (offset, bytes);
        false
    }

    /// The local file that has these bytes, as they are, from an offset on. `None`: there is none,
    /// it can be written to by way of this source, or it is no longer what was opened.
    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        None
    }

    /// Fills `buffer` with the bytes from `offset` on, all of it.
    ///
    /// # Errors
    /// Why not; what `buffer` holds then is unspecified. [`SourceError::Short`] beyond the end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError>;

    /// True when [`Source::write_at`] can work.
    fn is_writable(&self) -> bool {
        false
    }

    /// Replaces the bytes from `offset` on, within its size. They are durable after
    /// [`Source::sync`].
    ///
    /// # Errors
    /// Why not; how much was written is unspecified. [`SourceError::ReadOnly`] without this method.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), SourceError> {
        let _ = (offset, bytes);
        Err(SourceError::ReadOnly {
            name: self.name().into(),
        })
    }

    /// Returns when all that was written is durable.
    ///
    /// # Errors
    /// Why it may not be.
    fn sync(&self) -> Result<(), SourceError> {
        Ok(())
    }
}

/// That `source` has `bytes` bytes from `offset` on.
///
/// # Errors
/// [`SourceError::Short`] when it has not.
pub fn within(source: &dyn Source, offset: u64, bytes: u64) -> Result<(), SourceError> {
    let size = source.size();
    match offset.checked_add(bytes) {
        Some(end) if end <= size => Ok(()),
        _ => Err(SourceError::Short {
            name: source.name().into(),
            offset,
            bytes: bytes.min(u64::MAX - offset),
            end: size,
        }),
    }
}

impl<S: Source + ?Sized> Source for std::sync::Arc<S> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn identity(&self) -> String {
        (**self).identity()
    }

    fn size(&self) -> u64 {
        (**self).size()
    }

    fn version(&self) -> Option<String> {
        (**self).version()
    }

    fn reach(&self) -> Reach {
        (**self).reach()
    }

    fn is_at_hand(&self, offset: u64, bytes: u64) -> bool {
        (**self).is_at_hand(offset, bytes)
    }

    fn is_in_memory(&self, offset: u64, bytes: u64) -> bool {
        (**self).is_in_memory(offset, bytes)
    }

    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        (**self).file()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        (**self).read_at(offset, buffer)
    }

    fn is_writable(&self) -> bool {
        (**self).is_writable()
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), SourceError> {
        (**self).write_at(offset, bytes)
    }

    fn sync(&self) -> Result<(), SourceError> {
        (**self).sync()
    }
}
