//! The compressed bytes, from one place on.

use crate::{Source, SourceError};

/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// Reads a source from one place on.
pub(super) struct Input<'a> {
    source: &'a dyn Source,
    /// What was read and not taken yet: `piece[taken..]`.
    piece: Vec<u8>,
    taken: usize,
    /// Where the piece ends in the source.
    at: u64,
    /// Nothing beyond is read ahead. It is read when it is asked for.
    end: u64,
}

impl<'a> Input<'a> {
    /// Reads from `start` on, up to `end` when that is known.
    pub(super) fn new(source: &'a dyn Source, start: u64, end: Option<u64>) -> Self {
        let end = end.unwrap_or(source.size()).min(source.size());
        Self {
            source,
            piece: Vec::new(),
            taken: 0,
            at: start,
            end,
        }
    }

    /// Where the next byte is in the source.
    pub(super) fn position(&self) -> u64 {
        self.at - (self.piece.len() - self.taken) as u64
    }

    /// What is there, at least one byte. `None` at the end.
    pub(super) fn some(&mut self) -> Result<Option<&[u8]>, SourceError> {
        if self.taken == self.piece.len() {
            let end = if self.at < self.end {
                self.end
            } else {
                self.source.size()
            };
            let bytes = end.saturating_sub(self.at).min(PIECE as u64);
            if bytes == 0 {
                return Ok(None);
            }
            self.piece.resize(bytes as usize, 0);
            self.taken = self.piece.len();
            self.source.read_at(self.at, &mut self.piece)?;
            self.taken = 0;
            self.at += bytes;
        }
        Ok(Some(&self.piece[self.taken..]))
    }

    /// As [`Self::some`], where there must be something.
    pub(super) fn more(&mut self) -> Result<&[u8], SourceError> {
        if self.some()?.is_none() {
            return Err(SourceError::Short {
                name: self.source.name().into(),
                offset: self.position(),
                bytes: 1,
                end: self.source.size(),
            });
        }
        Ok(&self.piece[self.taken..])
    }

    /// The next `bytes` bytes of what [`Self::some`] returned were used.
    pub(super) fn take(&mut self, bytes: usize) {
        self.taken += bytes;
        assert!(self.taken <= self.piece.len());
    }

    pub(super) fn byte(&mut self) -> Result<u8, SourceError> {
        let byte = self.more()?[0];
        self.take(1);
        Ok(byte)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], SourceError> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.byte()?;
        }
        Ok(bytes)
    }

    /// Leaves out `bytes` bytes, which need not be there.
    pub(super) fn skip(&mut self, bytes: u64) {
        let here = (self.piece.len() - self.taken) as u64;
        self.take(bytes.min(here) as usize);
        self.at = self.at.saturating_add(bytes - bytes.min(here));
    }
}
