//! Ranges of a file, read when they are needed and not twice.

use alloc::string::ToString;
use alloc::vec::Vec;

use crate::error::{FormatError, OpenError};

/// Bytes that are read at once where more may follow.
pub(crate) const HEAD: usize = 4096;

/// A file that is read by ranges.
pub(crate) struct Source<'a, E> {
    pub(crate) size: u64,
    read: &'a mut dyn FnMut(u64, usize) -> Result<Vec<u8>, E>,
    /// The range that was read ahead last.
    ahead: (u64, Vec<u8>),
}

impl<'a, E> Source<'a, E> {
    pub(crate) fn new(
        size: u64,
        read: &'a mut dyn FnMut(u64, usize) -> Result<Vec<u8>, E>,
    ) -> Self {
        let ahead = (0, Vec::new());
        Self { size, read, ahead }
    }

    /// Reads `bytes` at `offset`, fewer where the file ends, and keeps them for what follows.
    pub(crate) fn ahead(&mut self, offset: u64, bytes: usize) -> Result<Vec<u8>, OpenError<E>> {
        let left = self.size.saturating_sub(offset);
        let bytes = usize::try_from(left).map_or(bytes, |left| left.min(bytes));
        let range = self.bytes("the file", offset, bytes)?;
        if self.held(offset, bytes).is_none() {
            self.ahead = (offset, range.clone());
        }
        Ok(range)
    }

    /// Reads the `bytes` at `offset` that `what` occupies; no more than were read ahead are copied.
    pub(crate) fn bytes(
        &mut self,
        what: &str,
        offset: u64,
        bytes: usize,
    ) -> Result<Vec<u8>, OpenError<E>> {
        let end = offset.saturating_add(bytes as u64);
        if end > self.size {
            return Err(FormatError::Outside {
                what: what.to_string(),
                begin: offset,
                end,
                size: self.size,
            }
            .into());
        }
        if let Some(held) = self.held(offset, bytes) {
            return Ok(held.to_vec());
        }
        if bytes == 0 {
            return Ok(Vec::new());
        }
        let mut range = self.begun(offset);
        let (at, asked) = (offset + range.len() as u64, bytes - range.len());
        let rest = (self.read)(at, asked).map_err(|error| OpenError::Read {
            offset: at,
            bytes: asked,
            error,
        })?;
        if rest.len() != asked {
            let (offset, got) = (at, rest.len());
            return Err(FormatError::ShortRead { offset, asked, got }.into());
        }
        range.extend(rest);
        Ok(range)
    }

    fn held(&self, offset: u64, bytes: usize) -> Option<&[u8]> {
        let from = usize::try_from(offset.checked_sub(self.ahead.0)?).ok()?;
        self.ahead.1.get(from..from.checked_add(bytes)?)
    }

    /// What was read ahead from `offset` on.
    fn begun(&self, offset: u64) -> Vec<u8> {
        let from = offset.checked_sub(self.ahead.0);
        let from = from.and_then(|from| usize::try_from(from).ok());
        let held = from.and_then(|from| self.ahead.1.get(from..));
        held.map_or_else(Vec::new, <[u8]>::to_vec)
    }
}

/// The little-endian number of `N` bytes at `at`. `None`: it is not all there.
pub(crate) fn little<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let found = bytes.get(at..at.checked_add(N)?)?;
    let number = |number, (place, &byte): (usize, &u8)| number | u64::from(byte) << (8 * place);
    Some(found.iter().enumerate().fold(0, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_ahead_is_not_read_again() {
        let file: Vec<u8> = (0..100).collect();
        let mut asked = Vec::new();
        let mut read = |offset: u64, bytes: usize| {
            asked.push((offset, bytes));
            Ok::<_, ()>(file[offset as usize..][..bytes].to_vec())
        };
        let mut source = Source::new(100, &mut read);
        assert_eq!(source.ahead(0, 40).unwrap(), &file[..40]);
        assert_eq!(source.bytes("x", 10, 30).unwrap(), &file[10..40]);
        assert_eq!(source.bytes("x", 30, 20).unwrap(), &file[30..50]);
        assert_eq!(source.ahead(90, 40).unwrap(), &file[90..]);
        assert_eq!(source.bytes("x", 95, 5).unwrap(), &file[95..]);
        assert_eq!(asked, [(0, 40), (40, 10), (90, 10)]);
    }

    #[test]
    fn ranges_outside_and_short_reads_are_refused() {
        let mut read = |_: u64, bytes: usize| Ok::<_, ()>(alloc::vec![0; bytes.min(3)]);
        let mut source = Source::new(10, &mut read);
        let outside = |result: Result<_, OpenError<()>>| match result {
            Err(OpenError::Format(FormatError::Outside { end, .. })) => end,
            other => panic!("{other:?}"),
        };
        assert_eq!(outside(source.bytes("x", 8, 3)), 11);
        assert_eq!(outside(source.bytes("x", u64::MAX, 3)), u64::MAX);
        assert!(matches!(
            source.bytes("x", 0, 4),
            Err(OpenError::Format(FormatError::ShortRead { got: 3, .. }))
        ));
    }
}
