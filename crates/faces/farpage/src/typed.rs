//! Arrays of other number formats, presented as the processor's own.

use std::sync::Arc;

use farpage_source::{Reach, Source, SourceError};
use farpage_translate::Translation;

/// A run of bytes of another source, translated or as it is.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// What messages call it.
    pub(crate) name: String,
    /// Where it is presented.
    pub(crate) start: u64,
    /// Bytes, as presented.
    pub(crate) bytes: u64,
    /// Where it lies in the other source.
    pub(crate) from: u64,
    /// `None`: as it is.
    pub(crate) translation: Option<Translation>,
}

/// Parts of another source. Between them are zeros, which cannot be written to.
pub(crate) struct Typed {
    inner: Arc<dyn Source>,
    size: u64,
    parts: Vec<Part>,
}

/// A stretch of a part.
struct Stretch<'a> {
    part: &'a Part,
    /// Where it begins in the buffer.
    at: usize,
    /// Where it begins in the part, and its length, as presented.
    from: u64,
    bytes: usize,
}

impl Typed {
    /// `parts`, which lie in order and apart.
    pub(crate) fn new(inner: Arc<dyn Source>, parts: Vec<Part>) -> Self {
        let size = parts.last().map_or(0, |part| part.start + part.bytes);
        Self { inner, size, parts }
    }

    /// The stretches of `bytes` bytes from `offset` on.
    fn stretches(&self, offset: u64, bytes: usize) -> impl Iterator<Item = Stretch<'_>> {
        let end = offset + bytes as u64;
        let first = self
            .parts
            .partition_point(|part| part.start + part.bytes <= offset);
        let parts = self.parts[first..]
            .iter()
            .take_while(move |part| part.start < end);
        parts.filter(|part| part.bytes > 0).map(move |part| {
            let from = offset.max(part.start);
            let to = end.min(part.start + part.bytes);
            Stretch {
                part,
                at: (from - offset) as usize,
                from: from - part.start,
                bytes: (to - from) as usize,
            }
        })
    }

    fn read(&self, stretch: &Stretch<'_>, buffer: &mut [u8]) -> Result<(), SourceError> {
        let part = stretch.part;
        let Some(translation) = part.translation else {
            return self.inner.read_at(part.from + stretch.from, buffer);
        };
        let (file, memory) = (translation.from_size(), translation.to_size());
        let first = stretch.from / memory as u64;
        let skipped = (stretch.from % memory as u64) as usize;
        let count = (skipped + stretch.bytes).div_ceil(memory);
        let mut stored = vec![0; count * file];
        self.inner
            .read_at(part.from + first * file as u64, &mut stored)?;
        if skipped == 0 && buffer.len() == count * memory {
            translation.translate_in(&stored, buffer);
        } else {
            let mut whole = vec![0; count * memory];
            translation.translate_in(&stored, &mut whole);
            buffer.copy_from_slice(&whole[skipped..][..stretch.bytes]);
        }
        Ok(())
    }

    fn write(&self, stretch: &Stretch<'_>, bytes: &[u8]) -> Result<(), SourceError> {
        let part = stretch.part;
        let Some(translation) = part.translation else {
            return self.inner.write_at(part.from + stretch.from, bytes);
        };
        let (file, memory) = (translation.from_size(), translation.to_size());
        let first = stretch.from / memory as u64;
        assert!(
            stretch.from.is_multiple_of(memory as u64) && bytes.len().is_multiple_of(memory),
            "written page by page"
        );
        let offset = part.from + first * file as u64;
        let mut stored = vec![0; bytes.len() / memory * file];
        self.inner.read_at(offset, &mut stored)?;
        let mut before = vec![0; bytes.len()];
        let lossless = translation.translate_in(&stored, &mut before);
        let elements = bytes.chunks_exact(memory).zip(before.chunks_exact(memory));
        let changed = elements.map(|(new, old)| new != old);
        if lossless {
            drop(changed);
            let done = translation.translate_out(bytes, &mut stored);
            return match done {
                Ok(()) => self.inner.write_at(offset, &stored),
                Err(error) => Err(self.not_exact(part, first, stretch, error)),
            };
        }
        // Numbers that are only close in memory, and that nobody has written to, stay as they were.
        for (at, _) in changed.enumerate().filter(|(_, changed)| *changed) {
            let (new, old) = (
                &bytes[at * memory..][..memory],
                &mut stored[at * file..][..file],
            );
            if let Err(error) = translation.translate_out(new, old) {
                return Err(self.not_exact(part, first + at as u64, stretch, error));
            }
        }
        self.inner.write_at(offset, &stored)
    }

    fn not_exact(
        &self,
        part: &Part,
        first: u64,
        stretch: &Stretch<'_>,
        error: farpage_translate::NotExact,
    ) -> SourceError {
        let element = first + error.element;
        SourceError::NotExact {
            name: self.inner.name().into(),
            offset: part.from + stretch.from,
            cause: format!(
                "{} of '{}', element {element}, has no exact counterpart in {}",
                error.value, part.name, error.dtype
            ),
        }
    }
}

impl Source for Typed {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn version(&self) -> Option<String> {
        self.inner.version()
    }

    fn reach(&self) -> Reach {
        self.inner.reach()
    }

    fn is_at_hand(&self, offset: u64, bytes: u64) -> bool {
        self.stretches(offset, bytes as usize).all(|stretch| {
            let part = stretch.part;
            let (file, memory) = part.translation.map_or((1, 1), |translation| {
                (translation.from_size() as u64, translation.to_size() as u64)
            });
            let first = stretch.from / memory * file;
            let last = (stretch.from + stretch.bytes as u64).div_ceil(memory) * file;
            self.inner.is_at_hand(part.from + first, last - first)
        })
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let bytes = buffer.len();
        buffer.fill(0);
        self.stretches(offset, bytes)
            .try_for_each(|stretch| self.read(&stretch, &mut buffer[stretch.at..][..stretch.bytes]))
    }

    fn is_writable(&self) -> bool {
        self.inner.is_writable()
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), SourceError> {
        self.stretches(offset, bytes.len())
            .try_for_each(|stretch| self.write(&stretch, &bytes[stretch.at..][..stretch.bytes]))
    }

    fn sync(&self) -> Result<(), SourceError> {
        self.inner.sync()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use farpage_format::{Dtype, Order};

    use super::*;

    struct Bytes(Mutex<Vec<u8>>);

    impl Source for Bytes {
        fn name(&self) -> &str {
            "bytes"
        }

        fn size(&self) -> u64 {
            self.0.lock().unwrap().len() as u64
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
            let bytes = self.0.lock().unwrap();
            buffer.copy_from_slice(&bytes[offset as usize..][..buffer.len()]);
            Ok(())
        }

        fn is_writable(&self) -> bool {
            true
        }

        fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), SourceError> {
            self.0.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            Ok(())
        }
    }

    fn part(start: u64, bytes: u64, from: u64, translation: Option<Translation>) -> Part {
        Part {
            name: "w".into(),
            start,
            bytes,
            from,
            translation,
        }
    }

    #[test]
    fn any_range_reads_as_the_whole_does() {
        let numbers: Vec<u16> = (0..500u16).map(|n| n.wrapping_mul(131)).collect();
        let mut file = vec![9, 9, 9];
        file.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
        file.extend([5; 100]);
        let inner = Arc::new(Bytes(Mutex::new(file)));
        let little = |dtype| (dtype, Order::Little);
        let translation = Translation::new(little(Dtype::Bf16), little(Dtype::F32)).unwrap();
        let parts = vec![
            part(0, 2000, 3, Some(translation)),
            part(2048, 100, 1003, None),
        ];
        let typed = Typed::new(inner, parts);
        assert_eq!(typed.size(), 2148);
        let mut wanted: Vec<u8> = numbers
            .iter()
            .flat_map(|n| (u32::from(*n) << 16).to_le_bytes())
            .collect();
        wanted.resize(2048, 0);
        wanted.extend([5; 100]);
        for start in (0..2148).step_by(7) {
            for end in (start..=2148).step_by(31) {
                let mut read = vec![1; end - start];
                typed.read_at(start as u64, &mut read).unwrap();
                assert_eq!(read, wanted[start..end], "{start}..{end}");
            }
        }
    }

    #[test]
    fn what_can_be_represented_is_written_and_what_cannot_is_refused() {
        let inner = Arc::new(Bytes(Mutex::new(vec![0; 4096])));
        let little = |dtype| (dtype, Order::Little);
        let translation = Translation::new(little(Dtype::F16), little(Dtype::F32)).unwrap();
        let typed = Typed::new(inner.clone(), vec![part(0, 8192, 0, Some(translation))]);
        typed
            .write_at(4096, &1.5f32.to_le_bytes().repeat(1024))
            .unwrap();
        assert_eq!(inner.0.lock().unwrap()[2048..2050], 0x3e00u16.to_le_bytes());
        let error = typed
            .write_at(4096, &1e30f32.to_le_bytes().repeat(1024))
            .unwrap_err();
        assert!(matches!(error, SourceError::NotExact { .. }));
        assert!(error.to_string().contains("element 1024"), "{error}");
    }

    /// VAX D has more digits than binary64 holds: page-in rounds.
    #[test]
    fn numbers_that_nobody_wrote_to_keep_all_their_digits() {
        let odd = [0x80, 0x40, 0, 0, 0, 0, 1, 0];
        let inner = Arc::new(Bytes(Mutex::new(odd.repeat(512))));
        let from = (Dtype::VaxD, Order::Little);
        let translation = Translation::new(from, (Dtype::F64, Order::Little)).unwrap();
        let typed = Typed::new(inner.clone(), vec![part(0, 4096, 0, Some(translation))]);
        let mut page = vec![0; 4096];
        typed.read_at(0, &mut page).unwrap();
        page[80..88].copy_from_slice(&2.0f64.to_le_bytes());
        typed.write_at(0, &page).unwrap();
        let after = inner.0.lock().unwrap().clone();
        for (at, number) in after.chunks_exact(8).enumerate() {
            assert_eq!(number == odd, at != 10, "element {at}");
        }
    }
}
