//! Objects in stores, open for writing.

use farpage_sys::lock;
use std::sync::{Arc, Mutex};

use crate::remote::{ObjectSource, ObjectWriter};
use crate::{Cache, Reach, Retry, Source, SourceError, within};

use super::{Layered, Mode, OpenOptions, OpenSourceError, Overlay};

const PAGE: u64 = 4096;

/// An object in a store, open for writing. Stores replace objects whole, so what is written is kept
/// in unnamed files on this machine until [`Source::sync`] sends all of it.
///
/// What is sent is what was written before it began to be sent: that is frozen, and does not change
/// while it is on its way. What is written meanwhile lies above it, and stays to be sent the next
/// time. When sending fails all of it stays.
///
/// Parts that nobody wrote to are fetched and sent as well: `object_store` has no call for the
/// store's own copying of parts.
pub struct Staged {
    overlay: Arc<Overlay>,
    writer: ObjectWriter,
    /// Where to keep what is fetched.
    cache: Option<Cache>,
    /// How long a read that writing needs is tried again.
    retry: Retry,
    /// Held while the object is sent: what was in the first of the tries that failed since.
    sending: Mutex<Option<Layered>>,
    /// Held while pages are written of which only a part is given: two may share one.
    parts: Mutex<()>,
}

impl Staged {
    /// Opens the object at `url`, or is to make it.
    pub fn open(
        url: &str,
        remote: &crate::remote::Options,
        options: &OpenOptions,
    ) -> Result<Self, OpenSourceError> {
        let (inner, writer): (Arc<dyn Source>, _) = match options.mode {
            Mode::Create => {
                let writer = ObjectWriter::create(url, remote)?;
                (missing(url, remote, writer.name(), options.size)?, writer)
            }
            Mode::Read | Mode::Write | Mode::Copy => {
                let source = ObjectSource::open(url, remote)?;
                let writer = source.writer()?;
                fits(&source, options.size)?;
                (keep(options.cache.as_ref(), source), writer)
            }
        };
        Ok(Self {
            overlay: Arc::new(Overlay::new(inner)?),
            writer,
            cache: options.cache.clone(),
            retry: remote.retry,
            sending: Mutex::new(None),
            parts: Mutex::new(()),
        })
    }

    /// What was written and not sent yet.
    pub fn overlay(&self) -> &Arc<Overlay> {
        &self.overlay
    }

    /// Looks whether what was sent without an answer is there after all.
    fn settle_late(&self, sent: &mut Option<Layered>) -> Result<(), SourceError> {
        if let Some(frozen) = &*sent
            && let Some(late) = self.writer.late()?
        {
            self.overlay.settle(frozen, keep(self.cache.as_ref(), late));
            *sent = None;
        }
        Ok(())
    }
}

fn keep(cache: Option<&Cache>, source: ObjectSource) -> Arc<dyn Source> {
    match cache {
        Some(cache) => cache.keep(Arc::new(source)),
        None => Arc::new(source),
    }
}

/// What stands for an object that is to be made.
fn missing(
    url: &str,
    remote: &crate::remote::Options,
    name: &str,
    size: Option<u64>,
) -> Result<Arc<dyn Source>, SourceError> {
    let refused = |cause: &str, remedy: &str| SourceError::Unsupported {
        name: name.into(),
        cause: cause.into(),
        remedy: remedy.into(),
    };
    let size = size.ok_or_else(|| refused("a new object needs a size", "give one"))?;
    match ObjectSource::open(url, remote) {
        Err(SourceError::NotFound { .. }) => {}
        Err(error) => return Err(error),
        Ok(_) => {
            let cause = "there is an object of that name, which would be lost";
            return Err(refused(
                cause,
                "open it for writing, or delete it, or take another name",
            ));
        }
    }
    let name = name.into();
    Ok(Arc::new(Zeros { name, size }))
}

/// That an object need not grow.
fn fits(source: &ObjectSource, size: Option<u64>) -> Result<(), SourceError> {
    match size {
        Some(size) if size > source.size() => Err(SourceError::Unsupported {
            name: source.name().into(),
            cause: format!(
                "it has {} bytes, not {size}, and cannot grow",
                source.size()
            ),
            remedy: "make a new object of that size".into(),
        }),
        Some(_) | None => Ok(()),
    }
}

impl Source for Staged {
    fn name(&self) -> &str {
        self.writer.name()
    }

    fn size(&self) -> u64 {
        self.overlay.size()
    }

    fn version(&self) -> Option<String> {
        self.overlay.version()
    }

    fn reach(&self) -> Reach {
        Reach::Far
    }

    fn is_at_hand(&self, offset: u64, bytes: u64) -> bool {
        self.overlay.is_at_hand(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        within(self, offset, buffer.len() as u64)?;
        loop {
            let seen = self.overlay.now();
            let read = seen.read_at(offset, buffer);
            if !matches!(read, Err(SourceError::Changed { .. })) {
                return read;
            }
            // It may be this program that has replaced it, and has not heard of its success yet.
            self.settle_late(&mut lock(&self.sending))?;
            if Arc::ptr_eq(self.overlay.now().inner(), seen.inner()) {
                return read;
            }
        }
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), SourceError> {
        within(self, offset, bytes.len() as u64)?;
        let end = offset + bytes.len() as u64;
        let first = offset / PAGE * PAGE;
        let last = end.next_multiple_of(PAGE).min(self.size());
        if (first, last) == (offset, end) {
            return self.overlay.write_at(offset, bytes);
        }
        // Pages are kept whole, and arrays do not begin where pages do.
        let _one = lock(&self.parts);
        let mut pages = vec![0; (last - first) as usize];
        let mut fill = |from: u64, to: u64| {
            let part = &mut pages[(from - first) as usize..(to - first) as usize];
            self.retry.run(|| self.read_at(from, part))
        };
        fill(first, offset)?;
        fill(end, last)?;
        pages[(offset - first) as usize..(end - first) as usize].copy_from_slice(bytes);
        self.overlay.write_at(first, &pages)
    }

    fn sync(&self) -> Result<(), SourceError> {
        let mut sent = lock(&self.sending);
        self.settle_late(&mut sent)?;
        let frozen = self.overlay.freeze()?;
        let is_there = frozen.inner().version().is_some();
        if is_there && !frozen.is_written() {
            return Ok(());
        }
        let read =
            |offset: u64, buffer: &mut [u8]| self.retry.run(|| frozen.read_at(offset, buffer));
        match self.writer.upload(self.size(), &read) {
            Ok(written) => {
                let inner = keep(self.cache.as_ref(), written);
                self.overlay.settle(&frozen, inner);
                *sent = None;
                Ok(())
            }
            Err(error) => {
                // Whatever arrives late has at least what was in the first try.
                sent.get_or_insert(frozen);
                Err(error)
            }
        }
    }
}

/// So many zeros, of no version.
struct Zeros {
    name: String,
    size: u64,
}

impl Source for Zeros {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, _: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        buffer.fill(0);
        Ok(())
    }
}
