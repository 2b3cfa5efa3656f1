//! Parts of sources, and several of them one after another.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::{Reach, Source, SourceError, within};

/// Bytes `start .. start + size` of another source.
pub struct Slice {
    whole: Arc<dyn Source>,
    name: String,
    start: u64,
    size: u64,
}

impl Slice {
    /// The `size` bytes of `whole` from `start` on.
    ///
    /// # Errors
    /// [`SourceError::Short`] when `whole` ends before.
    pub fn new(whole: Arc<dyn Source>, start: u64, size: u64) -> Result<Self, SourceError> {
        within(&*whole, start, size)?;
        Ok(Self {
            name: format!("{}[{start}..{}]", whole.name(), start + size),
            whole,
            start,
            size,
        })
    }

    fn at(&self, offset: u64, bytes: usize) -> Result<u64, SourceError> {
        within(self, offset, bytes as u64)?;
        Ok(self.start + offset)
    }
}

impl Source for Slice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn version(&self) -> Option<String> {
        let version = self.whole.version()?;
        Some(format!("{version}, from byte {}", self.start))
    }

    fn reach(&self) -> Reach {
        self.whole.reach()
    }

    fn is_at_hand(&self, offset: u64, bytes: u64) -> bool {
        self.whole.is_at_hand(self.start + offset, bytes)
    }

    fn is_in_memory(&self, offset: u64, bytes: u64) -> bool {
        self.whole.is_in_memory(self.start + offset, bytes)
    }

    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        let (file, from) = self.whole.file()?;
        Some((file, from + self.start))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        self.whole.read_at(self.at(offset, buffer.len())?, buffer)
    }

    fn is_writable(&self) -> bool {
        self.whole.is_writable()
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), SourceError> {
        self.whole.write_at(self.at(offset, bytes.len())?, bytes)
    }

    fn sync(&self) -> Result<(), SourceError> {
        self.whole.sync()
    }
}

/// Several sources, one after another.
pub struct Concat {
    name: String,
    parts: Vec<Arc<dyn Source>>,
    /// Where each ends.
    ends: Vec<u64>,
}

impl Concat {
    /// All of `parts`, in order.
    ///
    /// # Errors
    /// [`SourceError::Unsupported`] without parts, or when together they have 2^64 bytes or more.
    pub fn new(parts: Vec<Arc<dyn Source>>) -> Result<Self, SourceError> {
        let names: Vec<&str> = parts.iter().map(|part| part.name()).collect();
        let name = match names.as_slice() {
            [first, .., last] => format!("{first} .. {last} ({} parts)", names.len()),
            _ => names.join(""),
        };
        let refused = |cause: &str, remedy: &str| SourceError::Unsupported {
            name: name.clone(),
            cause: cause.into(),
            remedy: remedy.into(),
        };
        if parts.is_empty() {
            return Err(refused("it has no parts", "name at least one"));
        }
        let mut ends = Vec::with_capacity(parts.len());
        let mut end = 0u64;
        for part in &parts {
            let next = end.checked_add(part.size());
            end = next.ok_or_else(|| refused("its parts are too large together", "take fewer"))?;
            ends.push(end);
        }
        Ok(Self { name, parts, ends })
    }

    /// Calls `act` with each part that holds some of the bytes: the part, the offset in it, and
    /// which of the bytes.
    fn each(
        &self,
        offset: u64,
        bytes: usize,
        mut act: impl FnMut(&dyn Source, u64, std::ops::Range<usize>) -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        within(self, offset, bytes as u64)?;
        let mut at = self.ends.partition_point(|end| *end <= offset);
        let mut done = 0;
        while done < bytes {
            let start = if at == 0 { 0 } else { self.ends[at - 1] };
            let from = offset + done as u64;
            let here = (self.ends[at] - from).min((bytes - done) as u64) as usize;
            if here > 0 {
                act(&*self.parts[at], from - start, done..done + here)?;
            }
            done += here;
            at += 1;
        }
        Ok(())
    }

    /// True when `holds` is so of each part that holds some of the bytes, and they exist.
    fn all(&self, offset: u64, bytes: u64, holds: impl Fn(&dyn Source, u64, u64) -> bool) -> bool {
        let mut all = true;
        let asked = self.each(offset, bytes as usize, |part, from, which| {
            all &= holds(part, from, which.len() as u64);
            Ok(())
        });
        asked.is_ok() && all
    }
}

impl Source for Concat {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn version(&self) -> Option<String> {
        let all: Vec<Option<String>> = self.parts.iter().map(|part| part.version()).collect();
        // What has none does not hide that another has changed.
        let any = all.iter().any(Option::is_some);
        let shown = all.into_iter().map(|one| one.unwrap_or_else(|| "-".into()));
        any.then(|| shown.collect::<Vec<_>>().join(" "))
    }

    fn reach(&self) -> Reach {
        if self.parts.iter().all(|part| part.reach() == Reach::Near) {
            Reach::Near
        } else {
            Reach::Far
        }
    }

    fn is_at_hand(&self, offset: u64, bytes: u64) -> bool {
        self.all(offset, bytes, |part, from, bytes| {
            part.is_at_hand(from, bytes)
        })
    }

    fn is_in_memory(&self, offset: u64, bytes: u64) -> bool {
        self.all(offset, bytes, |part, from, bytes| {
            part.is_in_memory(from, bytes)
        })
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        self.each(offset, buffer.len(), |part, from, which| {
            part.read_at(from, &mut buffer[which])
        })
    }

    fn is_writable(&self) -> bool {
        self.parts.iter().all(|part| part.is_writable())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), SourceError> {
        self.each(offset, bytes.len(), |part, from, which| {
            part.write_at(from, &bytes[which])
        })
    }

    fn sync(&self) -> Result<(), SourceError> {
        self.parts.iter().try_for_each(|part| part.sync())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes(Vec<u8>);

    impl Source for Bytes {
        fn name(&self) -> &str {
            "bytes"
        }

        fn size(&self) -> u64 {
            self.0.len() as u64
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
            let from = offset as usize;
            buffer.copy_from_slice(&self.0[from..from + buffer.len()]);
            Ok(())
        }
    }

    fn bytes(range: std::ops::Range<u8>) -> Arc<dyn Source> {
        Arc::new(Bytes(range.collect()))
    }

    #[test]
    fn every_range_of_a_concatenation_reads_as_the_parts_do() {
        let parts = vec![bytes(0..5), bytes(5..5), bytes(5..6), bytes(6..20)];
        let all = Concat::new(parts).unwrap();
        assert_eq!(all.size(), 20);
        for start in 0..20u64 {
            for end in start..=20 {
                let mut read = vec![0; (end - start) as usize];
                all.read_at(start, &mut read).unwrap();
                assert_eq!(read, (start as u8..end as u8).collect::<Vec<_>>());
            }
        }
        let beyond = all.read_at(19, &mut [0; 2]).unwrap_err();
        assert!(
            matches!(beyond, SourceError::Short { end: 20, .. }),
            "{beyond}"
        );
    }

    #[test]
    fn a_slice_ends_where_it_ends() {
        let slice = Slice::new(bytes(0..20), 5, 10).unwrap();
        let mut read = [0; 10];
        slice.read_at(0, &mut read).unwrap();
        assert_eq!(read, core::array::from_fn(|i| i as u8 + 5));
        assert!(slice.read_at(1, &mut read).is_err());
        assert!(slice.read_at(u64::MAX, &mut read).is_err());
        assert!(slice.write_at(0, &[1]).is_err());
        assert!(Slice::new(bytes(0..20), 15, 6).is_err());
        assert!(Slice::new(bytes(0..20), 2, u64::MAX).is_err());
    }

    #[test]
    fn a_concatenation_of_nothing_is_refused() {
        let error = Concat::new(Vec::new()).err().expect("refused");
        assert!(matches!(error, SourceError::Unsupported { .. }));
    }
}
