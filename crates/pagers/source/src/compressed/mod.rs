//! Sources that are compressed, read as what they hold.

mod chunks;
mod frames;
mod gzip;
mod index;
mod inflate;
mod input;
mod spill;
mod zstd;

use std::path::Path;
use std::sync::Arc;

use crate::{Source, SourceError};

/// Parsers of bytes from outside, for those who test them.
#[doc(hidden)]
pub mod parse {
    pub use super::frames::{FOOTER_BYTES, Frame, Header, block, header, seek_table, table_bytes};
    pub use super::index::{Table as Index, table_bytes as index_bytes};
}

/// How a source is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// gzip, also of several members, also bgzf.
    Gzip,
    /// Zstandard, also of several frames, also with a table of them ("seekable").
    Zstd,
}

/// Tells by its first bytes whether a source is compressed.
///
/// # Errors
/// Those of reading it.
pub fn is_compressed(source: &dyn Source) -> Result<Option<Compression>, SourceError> {
    let mut bytes = [0; frames::HEADER_BYTES_MAX];
    let mut at = 0u64;
    // Some writers put a frame for themselves before the first that counts; other formats have
    // such frames as well.
    for _ in 0..16 {
        let there = source.size().saturating_sub(at).min(bytes.len() as u64) as usize;
        source.read_at(at, &mut bytes[..there])?;
        if at == 0 && bytes[..there].starts_with(&[0x1f, 0x8b, 8]) {
            return Ok(Some(Compression::Gzip));
        }
        match frames::header(&bytes[..there]) {
            Some(frames::Header::Data { .. }) => return Ok(Some(Compression::Zstd)),
            Some(frames::Header::Skippable(length)) => at = at.saturating_add(length),
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// What a compressed source holds, as a source: any range of it can be read.
///
/// It begins with what has to be known about where the pieces are. For zstd with a table of frames
/// that is a read of the table. For gzip, all of it is decoded once, and where decoding can begin
/// (about every MiB) is noted in a file in `folder`; whoever opens the same version later finds it
/// there. For zstd without a table, the frames are looked for; when one of them does not say how
/// long it is, or is longer than 64 MiB, all of it is decoded into an unlinked file in `folder`,
/// because decoding cannot begin inside a frame: it takes as much disk as it has bytes, until it is
/// closed. Without `folder`, the system's folder for temporary files is used, and nothing stays.
///
/// Pieces that were used last, 16 MiB of them, are kept decoded. What is decoded is checked: gzip
/// against sums that were taken when it was decoded whole (and then against its own), zstd frames
/// against their checksums where they have them. A zstd file made without (`--no-check`) may be
/// damaged unnoticed, and one of several frames that was cut between two of them, or a gzip file
/// between two members, looks like a shorter one.
///
/// `progress` is called with how many bytes of the compressed source are done, and its size.
///
/// # Errors
/// [`SourceError::Unsupported`] when it is not compressed, or in a way that cannot be read in
/// pieces; [`SourceError::Corrupt`], [`SourceError::Short`] when it is damaged; those of reading
/// it, and of writing to `folder`.
pub fn decompress(
    inner: Arc<dyn Source>,
    folder: Option<&Path>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Arc<dyn Source>, SourceError> {
    match is_compressed(&*inner)? {
        Some(Compression::Zstd) => zstd::open(inner, folder, progress),
        Some(Compression::Gzip) => gzip::open(inner, folder, progress),
        None => Err(SourceError::Unsupported {
            name: inner.name().into(),
            cause: "it is neither gzip nor zstd".into(),
            remedy: "open it as it is".into(),
        }),
    }
}

fn corrupt(source: &dyn Source, offset: u64, cause: impl Into<String>) -> SourceError {
    SourceError::Corrupt {
        name: source.name().into(),
        offset,
        cause: cause.into(),
    }
}
