//! Zstandard: frames that can be decoded each for itself.

use std::path::Path;
use std::sync::Arc;

use zstd_safe::{DCtx, InBuffer, OutBuffer, get_error_name};

use super::chunks::{CHUNK_BYTES_MAX, Chunks, Decode};
use super::corrupt;
use super::frames::{self, FOOTER_BYTES, Frame, HEADER_BYTES_MAX, Header};
use super::input::Input;
use super::spill::Spill;
use crate::{Source, SourceError};

/// The frames of a file, all of which say how long they are.
struct Frames {
    inner: Arc<dyn Source>,
    frames: Vec<Frame>,
}

pub(super) fn open(
    inner: Arc<dyn Source>,
    folder: Option<&Path>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Arc<dyn Source>, SourceError> {
    let frames = match table(&*inner)? {
        Some(frames) => Some(frames),
        None => walk(&*inner, progress)?,
    };
    let Some(frames) = frames else {
        return spill(&*inner, folder, progress);
    };
    let mut starts = vec![0];
    starts.extend(frames.iter().scan(0, |end, frame| {
        *end += frame.bytes;
        Some(*end)
    }));
    Ok(Arc::new(Chunks::new(Frames { inner, frames }, starts)))
}

/// A frame is decoded in memory.
fn fits(frame: &Frame) -> bool {
    let packed_max = zstd_safe::compress_bound(CHUNK_BYTES_MAX as usize) as u64;
    frame.bytes <= CHUNK_BYTES_MAX && frame.packed <= packed_max
}

/// The frames by the table at the end. `None` without one that can be used.
fn table(inner: &dyn Source) -> Result<Option<Vec<Frame>>, SourceError> {
    let size = inner.size();
    let mut footer = [0; FOOTER_BYTES];
    let Some(at) = size.checked_sub(FOOTER_BYTES as u64) else {
        return Ok(None);
    };
    inner.read_at(at, &mut footer)?;
    let Some(bytes) = frames::table_bytes(&footer).filter(|bytes| *bytes <= size) else {
        return Ok(None);
    };
    let mut table = vec![0; bytes as usize];
    inner.read_at(size - bytes, &mut table)?;
    let frames = frames::seek_table(&table, size);
    Ok(frames.filter(|frames| frames.iter().all(fits)))
}

/// The frames by going from one block to the next. `None` when one does not say how long it is, or
/// is too long.
fn walk(
    inner: &dyn Source,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Option<Vec<Frame>>, SourceError> {
    let (size, mut found) = (inner.size(), Vec::new());
    let mut input = Input::new(inner, 0, None);
    let mut at = 0;
    while at < size {
        progress(at, size);
        let mut first = [0; HEADER_BYTES_MAX];
        let first = &mut first[..(size - at).min(HEADER_BYTES_MAX as u64) as usize];
        inner.read_at(at, first)?;
        let cause = "no zstd frame begins here";
        match frames::header(first).ok_or_else(|| corrupt(inner, at, cause))? {
            Header::Skippable(length) => input.skip(length),
            Header::Data { bytes: None, .. } => return Ok(None),
            Header::Data {
                header,
                bytes: Some(bytes),
                has_sum,
            } => {
                if bytes > CHUNK_BYTES_MAX {
                    return Ok(None);
                }
                input.skip(header);
                let ending = if has_sum { 4 } else { 0 };
                skip_blocks(&mut input, inner, ending)?;
                let packed = input.position() - at;
                let sum = None;
                found.push(Frame {
                    at,
                    packed,
                    bytes,
                    sum,
                });
            }
        }
        at = input.position();
    }
    if at > size {
        let (bytes, end) = (at - size, size);
        let name = inner.name().into();
        return Err(SourceError::Short {
            name,
            offset: size,
            bytes,
            end,
        });
    }
    Ok(Some(found).filter(|found| found.iter().all(fits)))
}

/// Goes to the end of a frame whose first block is next.
fn skip_blocks(input: &mut Input<'_>, inner: &dyn Source, ending: u64) -> Result<(), SourceError> {
    loop {
        let at = input.position();
        let block = frames::block(input.array()?);
        let (bytes, last) =
            block.ok_or_else(|| corrupt(inner, at, "no zstd block is like this"))?;
        input.skip(bytes);
        if last {
            input.skip(ending);
            return Ok(());
        }
    }
}

/// Decodes all of it into a file.
fn spill(
    inner: &dyn Source,
    folder: Option<&Path>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Arc<dyn Source>, SourceError> {
    let mut spill = Spill::new(inner, folder)?;
    let mut input = Input::new(inner, 0, None);
    let mut decoder = DCtx::create();
    let mut space = vec![0; 1 << 20];
    let (mut is_whole, mut is_full) = (true, false);
    loop {
        let position = input.position();
        progress(position, inner.size());
        let piece = match input.some()? {
            Some(piece) => piece,
            // There may still be something in the decoder.
            None if is_full => &[],
            None if is_whole => break,
            None => input.more()?,
        };
        let (mut from, mut to) = (InBuffer::around(piece), OutBuffer::around(&mut space[..]));
        let left = decoder.decompress_stream(&mut to, &mut from);
        let left = left.map_err(|code| corrupt(inner, position, get_error_name(code)))?;
        let (taken, given) = (from.pos(), to.pos());
        (is_whole, is_full) = (left == 0, left != 0 && given == space.len());
        spill.append(&space[..given])?;
        input.take(taken);
    }
    Ok(Arc::new(spill))
}

impl Decode for Frames {
    fn inner(&self) -> &dyn Source {
        &*self.inner
    }

    fn decode(&self, chunk: usize, bytes: usize) -> Result<Vec<u8>, SourceError> {
        let frame = self.frames[chunk];
        let mut packed = vec![0; frame.packed as usize];
        self.inner.read_at(frame.at, &mut packed)?;
        let mut decoded = vec![0; bytes];
        let result = DCtx::create().decompress(&mut decoded[..], &packed);
        let wrong = |cause: &str| corrupt(&*self.inner, frame.at, cause);
        if result.map_err(|code| wrong(get_error_name(code)))? != bytes {
            return Err(wrong("the frame has not as many bytes as is said of it"));
        }
        let sum = xxhash_rust::xxh64::xxh64(&decoded, 0) as u32;
        if frame.sum.is_some_and(|right| right != sum) {
            return Err(wrong("the frame does not match its checksum"));
        }
        Ok(decoded)
    }

    fn is_at_hand(&self, chunk: usize) -> bool {
        let frame = self.frames[chunk];
        self.inner.is_at_hand(frame.at, frame.packed)
    }
}
