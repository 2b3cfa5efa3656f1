//! Ranges of a file, read when they are needed, by whole pages and not twice.

use alloc::vec::Vec;
use core::cell::Cell;
use core::ops::Range;

use object::ReadRef;

use crate::{LoadError, PAGE_BYTES, PlanError};

/// Most that is read for one part of a header: more is not there in any program.
const PART_MAX: u64 = 1 << 20;

/// What is known of a file.
pub(crate) struct Known {
    size: u64,
    /// Ranges that were read, in the order in which they were.
    parts: Vec<(u64, Vec<u8>)>,
    /// What was asked for and is not known.
    wanted: Cell<Option<(u64, u64)>>,
}

impl Known {
    pub(crate) fn new(size: u64) -> Self {
        Self {
            size,
            parts: Vec::new(),
            wanted: Cell::new(None),
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// What the last attempt lacked, as whole pages; `None` when it lacked nothing.
    pub(crate) fn take_wanted(&self) -> Option<Range<u64>> {
        let (offset, bytes) = self.wanted.take()?;
        let start = offset / PAGE_BYTES * PAGE_BYTES;
        let end = (offset + bytes).next_multiple_of(PAGE_BYTES).min(self.size);
        Some(start..end)
    }

    /// Reads a range.
    pub(crate) fn read<E>(
        &mut self,
        range: Range<u64>,
        read: &mut dyn FnMut(u64, usize) -> Result<Vec<u8>, E>,
    ) -> Result<(), PlanError<E>> {
        let (offset, bytes) = (range.start, (range.end - range.start) as usize);
        let part = read(offset, bytes).map_err(|error| PlanError::Read {
            offset,
            bytes,
            error,
        })?;
        if part.len() != bytes {
            return Err(PlanError::ShortRead {
                offset,
                asked: bytes,
                got: part.len(),
            });
        }
        self.parts.push((offset, part));
        Ok(())
    }

    /// The bytes that `what` occupies. An error means that they are outside, or wanted first.
    pub(crate) fn bytes(
        &self,
        what: &'static str,
        begin: u64,
        bytes: u64,
    ) -> Result<&[u8], LoadError> {
        let outside = LoadError::Outside {
            what,
            begin,
            end: begin.saturating_add(bytes),
            size: self.size,
        };
        self.read_bytes_at(begin, bytes).map_err(|()| outside)
    }
}

impl<'a> ReadRef<'a> for &'a Known {
    fn len(self) -> Result<u64, ()> {
        Ok(self.size)
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        let end = offset.checked_add(size).ok_or(())?;
        if end > self.size || size > PART_MAX {
            return Err(());
        }
        if size == 0 {
            return Ok(&[]);
        }
        for (start, part) in &self.parts {
            let from = offset.checked_sub(*start);
            let found = from.and_then(|from| part.get(from as usize..(from + size) as usize));
            if let Some(found) = found {
                return Ok(found);
            }
        }
        self.wanted.set(Some((offset, size)));
        Err(())
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let bytes = range.end.checked_sub(range.start).ok_or(())?;
        let bytes = self.read_bytes_at(range.start, bytes)?;
        let end = bytes.iter().position(|byte| *byte == delimiter);
        Ok(&bytes[..end.ok_or(())?])
    }
}
