//! A private copy: what is written goes to unnamed files and never to the source.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use farpage_source::{Reach, Source, SourceError};

const PAGE: u64 = 4096;
/// Each is an open file. When a fork would make more, they become one.
const LAYERS_MAX: usize = 8;

/// Pages that were written, in an unnamed file at their own offsets.
struct Layer {
    file: File,
    /// One bit for each page: it is here.
    written: Vec<AtomicU64>,
    /// Some page is.
    used: AtomicBool,
}

impl Layer {
    fn new(inner: &dyn Source) -> Result<Arc<Self>, SourceError> {
        let file = tempfile::tempfile().map_err(|error| failed(inner, 0, &error))?;
        let words = inner.size().div_ceil(PAGE).div_ceil(64);
        let written = (0..words).map(|_| AtomicU64::new(0)).collect();
        let used = AtomicBool::new(false);
        Ok(Arc::new(Self {
            file,
            written,
            used,
        }))
    }

    /// All that `layers` hold, in one.
    fn merged(inner: &dyn Source, layers: &[Arc<Self>]) -> Result<Arc<Self>, SourceError> {
        let whole = Self::new(inner)?;
        let mut bytes = [0; PAGE as usize];
        for word in 0..whole.written.len() as u64 {
            let of = |layer: &Arc<Self>| layer.written[word as usize].load(Ordering::Acquire);
            let mut pages = layers.iter().map(of).fold(0, |all, some| all | some);
            while pages != 0 {
                let page = word * 64 + u64::from(pages.trailing_zeros());
                pages &= pages - 1;
                let Some(holder) = layers.iter().rfind(|layer| layer.has(page)) else {
                    continue;
                };
                let (at, bytes) = (page * PAGE, &mut bytes[..]);
                let bytes = &mut bytes[..PAGE.min(inner.size() - at) as usize];
                let copied = holder.file.read_exact_at(bytes, at);
                let copied = copied.and_then(|()| whole.file.write_all_at(bytes, at));
                copied.map_err(|error| failed(inner, at, &error))?;
                whole.note(page);
            }
        }
        Ok(whole)
    }

    fn has(&self, page: u64) -> bool {
        self.written[(page / 64) as usize].load(Ordering::Acquire) >> (page % 64) & 1 == 1
    }

    fn note(&self, page: u64) {
        self.used.store(true, Ordering::Release);
        self.written[(page / 64) as usize].fetch_or(1 << (page % 64), Ordering::Release);
    }
}

/// A source, and on top of it what was written. A fork splits it: what was written before belongs
/// to both processes, what is written after to one.
pub(crate) struct Private {
    inner: Arc<dyn Source>,
    /// The newest last; only that one is written to.
    layers: RwLock<Vec<Arc<Layer>>>,
}

impl Private {
    pub(crate) fn new(inner: Arc<dyn Source>) -> Result<Self, SourceError> {
        let layers = RwLock::new(vec![Layer::new(&*inner)?]);
        Ok(Self { inner, layers })
    }

    fn layers(&self) -> Vec<Arc<Layer>> {
        self.reading().clone()
    }

    fn reading(&self) -> RwLockReadGuard<'_, Vec<Arc<Layer>>> {
        self.layers.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on what was written so far does not change any more, and is in no layer that
    /// [`Private::split`] leaves out.
    pub(crate) fn freeze(&self) -> Result<(), SourceError> {
        let mut layers = self.layers.write().unwrap_or_else(PoisonError::into_inner);
        let written = |layer: &Arc<Layer>| layer.used.load(Ordering::Acquire);
        if !layers.last().is_some_and(written) {
            return Ok(());
        }
        let top = Layer::new(&*self.inner)?;
        if layers.len() >= LAYERS_MAX {
            *layers = vec![Layer::merged(&*self.inner, &layers)?];
        }
        layers.push(top);
        Ok(())
    }

    /// A copy over `inner`, another handle of the same source, that shares what was frozen.
    pub(crate) fn split(&self, inner: Arc<dyn Source>) -> Result<Self, SourceError> {
        let mut layers = self.layers();
        layers.pop();
        layers.push(Layer::new(&*inner)?);
        let layers = RwLock::new(layers);
        Ok(Self { inner, layers })
    }
}

fn failed(inner: &dyn Source, offset: u64, error: &std::io::Error) -> SourceError {
    SourceError::Io {
        name: format!("private copy of {}", inner.name()),
        what: "write",
        offset,
        cause: error.to_string(),
        remedy: "free disk space, or set TMPDIR to a larger disk",
    }
}

impl Source for Private {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn version(&self) -> Option<String> {
        self.inner.version()
    }

    fn reach(&self) -> Reach {
        self.inner.reach()
    }

    fn is_at_hand(&self, offset: u64, bytes: u64) -> bool {
        let pages = offset / PAGE..(offset + bytes).div_ceil(PAGE);
        let layers = self.layers();
        let written = |page| layers.iter().any(|layer| layer.has(page));
        let missing = pages.clone().find(|page| !written(*page));
        missing.is_none() || self.inner.is_at_hand(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let layers = self.layers();
        let end = offset + buffer.len() as u64;
        let holder = |page: u64| layers.iter().rposition(|layer| layer.has(page));
        let mut at = offset;
        while at < end {
            let from = holder(at / PAGE);
            let mut to = (at / PAGE + 1) * PAGE;
            while to < end && holder(to / PAGE) == from {
                to += PAGE;
            }
            let to = to.min(end);
            let part = &mut buffer[(at - offset) as usize..(to - offset) as usize];
            match from {
                None => self.inner.read_at(at, part)?,
                Some(layer) => {
                    let read = layers[layer].file.read_exact_at(part, at);
                    read.map_err(|error| failed(&*self.inner, at, &error))?;
                }
            }
            at = to;
        }
        Ok(())
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), SourceError> {
        assert!(offset.is_multiple_of(PAGE), "written page by page");
        // Held while it writes: a fork in the meantime waits.
        let layers = self.reading();
        let Some(top) = layers.last() else {
            return Ok(());
        };
        let written = top.file.write_all_at(bytes, offset);
        written.map_err(|error| failed(&*self.inner, offset, &error))?;
        let end = (offset + bytes.len() as u64).div_ceil(PAGE);
        (offset / PAGE..end).for_each(|page| top.note(page));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sevens;

    impl Source for Sevens {
        fn name(&self) -> &str {
            "sevens"
        }

        fn size(&self) -> u64 {
            10 * PAGE + 100
        }

        fn read_at(&self, _: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
            buffer.fill(7);
            Ok(())
        }
    }

    fn read(source: &Private, offset: u64, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0; bytes];
        source.read_at(offset, &mut buffer).unwrap();
        buffer
    }

    #[test]
    fn what_is_written_is_read_and_the_rest_is_the_source() {
        let private = Private::new(Arc::new(Sevens)).unwrap();
        private.write_at(2 * PAGE, &[1; 2 * PAGE as usize]).unwrap();
        private.write_at(10 * PAGE, &[2; 100]).unwrap();
        let all = read(&private, 0, 10 * PAGE as usize + 100);
        for (at, byte) in all.iter().enumerate() {
            let wanted = match at as u64 / PAGE {
                2 | 3 => 1,
                10 => 2,
                _ => 7,
            };
            assert_eq!(*byte, wanted, "at {at}");
        }
        assert_eq!(read(&private, 3 * PAGE + 4000, 200)[95..97], [1, 7]);
    }

    #[test]
    fn many_forks_keep_few_files_and_every_write() {
        let private = Private::new(Arc::new(Sevens)).unwrap();
        for round in 0..100u64 {
            let page = round % 11;
            let bytes = (PAGE.min(private.size() - page * PAGE)) as usize;
            private
                .write_at(page * PAGE, &vec![round as u8; bytes])
                .unwrap();
            private.freeze().unwrap();
            assert!(private.layers().len() <= LAYERS_MAX, "round {round}");
            private.freeze().unwrap();
        }
        for page in 0..11 {
            let last = (0..100u8)
                .rev()
                .find(|round| u64::from(*round) % 11 == page);
            assert_eq!(read(&private, page * PAGE, 100), vec![last.unwrap(); 100]);
        }
        let before = private.layers().len();
        private.freeze().unwrap();
        assert_eq!(private.layers().len(), before);
    }

    #[test]
    fn after_a_split_each_sees_its_own_writes() {
        let parent = Private::new(Arc::new(Sevens)).unwrap();
        parent.write_at(0, &[1; PAGE as usize]).unwrap();
        parent.freeze().unwrap();
        let child = parent.split(Arc::new(Sevens)).unwrap();
        parent.write_at(0, &[2; PAGE as usize]).unwrap();
        child.write_at(PAGE, &[3; PAGE as usize]).unwrap();
        assert_eq!(
            (read(&parent, 0, 1), read(&parent, PAGE, 1)),
            (vec![2], vec![7])
        );
        assert_eq!(
            (read(&child, 0, 1), read(&child, PAGE, 1)),
            (vec![1], vec![3])
        );
    }
}
