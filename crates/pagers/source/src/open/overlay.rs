//! What is written on top of a source goes to unnamed files, and not to the source.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use crate::{Reach, Source, SourceError};

const PAGE: u64 = 4096;
/// Each is an open file. When a fork or a flush would make more, they become one.
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

    fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    fn has(&self, page: u64) -> bool {
        self.written[(page / 64) as usize].load(Ordering::Acquire) >> (page % 64) & 1 == 1
    }

    fn note(&self, page: u64) {
        self.used.store(true, Ordering::Release);
        self.written[(page / 64) as usize].fetch_or(1 << (page % 64), Ordering::Release);
    }
}

/// A source and what was written on top of it, as it was at one time.
#[derive(Clone)]
pub struct Layered {
    inner: Arc<dyn Source>,
    /// The newest last.
    layers: Vec<Arc<Layer>>,
}

impl Layered {
    /// What it lies on.
    pub fn inner(&self) -> &Arc<dyn Source> {
        &self.inner
    }

    /// The same on top of what `to` makes of its source.
    pub fn moved(self, to: impl FnOnce(&Arc<dyn Source>) -> Arc<dyn Source>) -> Self {
        Self {
            inner: to(&self.inner),
            layers: self.layers,
        }
    }

    /// True when something was written.
    pub fn is_written(&self) -> bool {
        self.layers.iter().any(|layer| layer.is_used())
    }

    fn holder(&self, page: u64) -> Option<&Layer> {
        let newest = self.layers.iter().rfind(|layer| layer.has(page));
        newest.map(|layer| &**layer)
    }

    /// The pages from the first to the last that only the source has, of those asked for.
    fn missing(&self, offset: u64, bytes: u64) -> Option<Range<u64>> {
        let mut pages = offset / PAGE..(offset + bytes).div_ceil(PAGE);
        let missing = |page: &u64| self.holder(*page).is_none();
        let first = pages.clone().find(missing)?;
        let last = pages.rfind(missing)?;
        Some(first..last + 1)
    }

    fn is_at_hand(&self, offset: u64, bytes: u64) -> bool {
        self.missing(offset, bytes).is_none() || self.inner.is_at_hand(offset, bytes)
    }

    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// As [`Source::read_at`].
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let end = offset + buffer.len() as u64;
        // Far away a request costs more than the bytes between that are read in vain.
        let far = self.inner.reach() == Reach::Far;
        if let Some(pages) = self.missing(offset, end - offset).filter(|_| far) {
            let (from, to) = (
                (pages.start * PAGE).max(offset),
                (pages.end * PAGE).min(end),
            );
            let part = &mut buffer[(from - offset) as usize..(to - offset) as usize];
            self.inner.read_at(from, part)?;
        }
        let holder = |at: u64| self.holder(at / PAGE);
        let same = |a: Option<&Layer>, b: Option<&Layer>| match (a, b) {
            (Some(a), Some(b)) => std::ptr::eq(a, b),
            (None, None) => true,
            _ => false,
        };
        let mut at = offset;
        while at < end {
            let from = holder(at);
            let mut to = (at / PAGE + 1) * PAGE;
            while to < end && same(holder(to), from) {
                to += PAGE;
            }
            let to = to.min(end);
            let part = &mut buffer[(at - offset) as usize..(to - offset) as usize];
            match from {
                None if far => {}
                None => self.inner.read_at(at, part)?,
                Some(layer) => {
                    let read = layer.file.read_exact_at(part, at);
                    read.map_err(|error| failed(&*self.inner, at, &error))?;
                }
            }
            at = to;
        }
        Ok(())
    }
}

/// A source, and on top of it what was written, which the source does not see.
pub struct Overlay {
    name: String,
    size: u64,
    reach: Reach,
    /// Only the newest layer is written to.
    now: RwLock<Layered>,
}

impl Overlay {
    /// Nothing was written yet on top of `inner`.
    ///
    /// # Errors
    /// When there is no room for a file.
    pub fn new(inner: Arc<dyn Source>) -> Result<Self, SourceError> {
        let layers = Vec::new();
        Self::over(Layered { inner, layers })
    }

    /// Over what does not change any more.
    pub fn over(mut frozen: Layered) -> Result<Self, SourceError> {
        let inner = &*frozen.inner;
        frozen.layers.push(Layer::new(inner)?);
        Ok(Self {
            name: inner.name().to_owned(),
            size: inner.size(),
            reach: inner.reach(),
            now: RwLock::new(frozen),
        })
    }

    /// As it is now; its newest layer goes on changing.
    pub fn now(&self) -> Layered {
        self.reading().clone()
    }

    fn reading(&self) -> RwLockReadGuard<'_, Layered> {
        self.now.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was written so far, which does not change any more: what is written from now on is in
    /// a layer that is left out.
    pub fn freeze(&self) -> Result<Layered, SourceError> {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        if now.layers.last().is_some_and(|layer| layer.is_used()) {
            let top = Layer::new(&*now.inner)?;
            if now.layers.len() >= LAYERS_MAX {
                now.layers = vec![Layer::merged(&*now.inner, &now.layers)?];
            }
            now.layers.push(top);
        }
        let mut frozen = now.clone();
        frozen.layers.pop();
        Ok(frozen)
    }

    /// `inner` has all that is in `frozen`.
    pub fn settle(&self, frozen: &Layered, inner: Arc<dyn Source>) {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        now.inner = inner;
        // A fork may have made one of them and newer ones. It has what `inner` has, or newer.
        let settled = |layer: &Arc<Layer>| frozen.layers.iter().any(|old| Arc::ptr_eq(old, layer));
        now.layers.retain(|layer| !settled(layer));
    }
}

fn failed(inner: &dyn Source, offset: u64, error: &std::io::Error) -> SourceError {
    SourceError::Io {
        name: format!("what was written to {}", inner.name()),
        what: "keep",
        offset,
        cause: error.to_string(),
        remedy: "free disk space, or set TMPDIR to a larger disk",
    }
}

impl Source for Overlay {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn version(&self) -> Option<String> {
        self.reading().inner.version()
    }

    fn reach(&self) -> Reach {
        self.reach
    }

    fn is_at_hand(&self, offset: u64, bytes: u64) -> bool {
        self.now().is_at_hand(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        self.now().read_at(offset, buffer)
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), SourceError> {
        let end = offset + bytes.len() as u64;
        let whole = end.is_multiple_of(PAGE) || end == self.size;
        assert!(offset.is_multiple_of(PAGE) && whole, "written page by page");
        // Held while it writes: it is in what is frozen as a whole, or not at all.
        let now = self.reading();
        let Some(top) = now.layers.last() else {
            return Ok(());
        };
        let written = top.file.write_all_at(bytes, offset);
        written.map_err(|error| failed(&*now.inner, offset, &error))?;
        (offset / PAGE..end.div_ceil(PAGE)).for_each(|page| top.note(page));
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

    fn read(source: &Overlay, offset: u64, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0; bytes];
        source.read_at(offset, &mut buffer).unwrap();
        buffer
    }

    #[test]
    fn what_is_written_is_read_and_the_rest_is_the_source() {
        let overlay = Overlay::new(Arc::new(Sevens)).unwrap();
        overlay.write_at(2 * PAGE, &[1; 2 * PAGE as usize]).unwrap();
        overlay.write_at(10 * PAGE, &[2; 100]).unwrap();
        let all = read(&overlay, 0, 10 * PAGE as usize + 100);
        for (at, byte) in all.iter().enumerate() {
            let wanted = match at as u64 / PAGE {
                2 | 3 => 1,
                10 => 2,
                _ => 7,
            };
            assert_eq!(*byte, wanted, "at {at}");
        }
        assert_eq!(read(&overlay, 3 * PAGE + 4000, 200)[95..97], [1, 7]);
    }

    #[test]
    fn many_forks_keep_few_files_and_every_write() {
        let overlay = Overlay::new(Arc::new(Sevens)).unwrap();
        for round in 0..100u64 {
            let page = round % 11;
            let bytes = (PAGE.min(overlay.size() - page * PAGE)) as usize;
            overlay
                .write_at(page * PAGE, &vec![round as u8; bytes])
                .unwrap();
            drop(overlay.freeze().unwrap());
            assert!(overlay.now().layers.len() <= LAYERS_MAX, "round {round}");
            drop(overlay.freeze().unwrap());
        }
        for page in 0..11 {
            let last = (0..100u8)
                .rev()
                .find(|round| u64::from(*round) % 11 == page);
            assert_eq!(read(&overlay, page * PAGE, 100), vec![last.unwrap(); 100]);
        }
        let before = overlay.now().layers.len();
        drop(overlay.freeze().unwrap());
        assert_eq!(overlay.now().layers.len(), before);
    }

    /// Counts its reads.
    struct Far(AtomicU64);

    impl Source for Far {
        fn name(&self) -> &str {
            "far"
        }

        fn size(&self) -> u64 {
            100 * PAGE
        }

        fn reach(&self) -> Reach {
            Reach::Far
        }

        fn read_at(&self, _: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            buffer.fill(7);
            Ok(())
        }
    }

    #[test]
    fn what_is_missing_between_written_pages_is_one_request() {
        let far = Arc::new(Far(AtomicU64::new(0)));
        let overlay = Overlay::new(Arc::clone(&far) as _).unwrap();
        for page in (0..100).step_by(2) {
            overlay.write_at(page * PAGE, &[1; PAGE as usize]).unwrap();
        }
        let all = read(&overlay, 50, 100 * PAGE as usize - 50);
        for (at, byte) in (50..).zip(&all) {
            let wanted = [1, 7][(at / PAGE % 2) as usize];
            assert_eq!(*byte, wanted, "at {at}");
        }
        assert_eq!(far.0.load(Ordering::Relaxed), 1);
        assert_eq!(read(&overlay, 4 * PAGE, 100), [1; 100]);
        assert_eq!(far.0.load(Ordering::Relaxed), 1, "all of it was written");
    }

    #[test]
    fn what_is_written_after_the_freeze_outlives_the_settling() {
        let overlay = Overlay::new(Arc::new(Sevens)).unwrap();
        let page = |byte| [byte; PAGE as usize];
        overlay.write_at(0, &page(1)).unwrap();
        overlay.write_at(PAGE, &page(1)).unwrap();
        let frozen = overlay.freeze().unwrap();
        overlay.write_at(PAGE, &page(2)).unwrap();
        let mut sent = [0; 2 * PAGE as usize];
        frozen.read_at(0, &mut sent).unwrap();
        assert_eq!(sent, [1; 2 * PAGE as usize], "it does not change any more");
        overlay.settle(&frozen, Arc::new(Sevens));
        assert_eq!(read(&overlay, 0, 1), [7], "read from the source again");
        assert_eq!(read(&overlay, PAGE, 1), [2]);
        let next = overlay.freeze().unwrap();
        assert!(next.is_written());
        overlay.settle(&next, Arc::new(Sevens));
        assert!(!overlay.freeze().unwrap().is_written());
        assert_eq!(overlay.now().layers.len(), 1, "files that nobody needs");
    }

    #[test]
    fn forks_while_it_is_sent_lose_nothing() {
        let overlay = Overlay::new(Arc::new(Sevens)).unwrap();
        overlay.write_at(0, &[100; PAGE as usize]).unwrap();
        let frozen = overlay.freeze().unwrap();
        for page in 1..10 {
            let bytes = [page as u8; PAGE as usize];
            overlay.write_at(page * PAGE, &bytes).unwrap();
            drop(overlay.freeze().unwrap());
        }
        overlay.settle(&frozen, Arc::new(Sevens));
        for page in 1..10 {
            assert_eq!(read(&overlay, page * PAGE, 1), [page as u8]);
        }
        assert!(overlay.freeze().unwrap().is_written());
    }

    #[test]
    fn over_what_was_frozen_each_sees_its_own_writes() {
        let parent = Overlay::new(Arc::new(Sevens)).unwrap();
        parent.write_at(0, &[1; PAGE as usize]).unwrap();
        let child = Overlay::over(parent.freeze().unwrap()).unwrap();
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
