//! Replacing whole objects.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use farpage_source::SourceError;
use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::{HeaderName, HeaderValue};
use object_store::multipart::PartId;
use object_store::{MultipartId, PutMode, PutOptions, PutPayload, PutResult, UpdateVersion};

use crate::Options;
use crate::check::Version;
use crate::connector::{self, NoAnswer};
use crate::object_source::look;
use crate::store::Store;

/// A smaller object goes in one request; a larger one in parts of at least so many bytes.
const PART_BYTES: u64 = 8 << 20;
/// Stores take 10,000 at most.
const PARTS_MAX: u64 = 9_000;
/// Parts under way at a time.
const THREADS: usize = 4;

/// Fills a buffer with the bytes of the new object from an offset on.
pub type ReadAt<'a> = dyn Fn(u64, &mut [u8]) -> Result<(), SourceError> + Sync + 'a;

/// Replaces an object as a whole: stores have no way to replace a part of one.
///
/// What is replaced must be the version that the writer knows: the one that was opened, nothing
/// when it creates, or the last that it wrote. S3 checks that in the same step; of objects in
/// several parts, Google's and Microsoft's stores are asked just before it.
pub struct ObjectWriter {
    url: String,
    options: Options,
    /// What is there as far as this writer knows. `None`: nothing.
    known: Mutex<Option<Version>>,
}

impl ObjectWriter {
    /// Makes the object at `url`, which must not exist.
    ///
    /// # Errors
    /// [`SourceError::Unsupported`] for wrong settings. Nothing is sent yet.
    pub fn create(url: &str, options: &Options) -> Result<Self, SourceError> {
        Store::new(url, options, None)?;
        Ok(Self {
            url: url.into(),
            options: options.clone(),
            known: Mutex::new(None),
        })
    }

    pub(crate) fn of(url: &str, options: &Options, known: Version) -> Result<Self, SourceError> {
        let writer = Self::create(url, options)?;
        if known.strong_tag().is_none() {
            let store = Store::new(url, options, None)?;
            return Err(SourceError::Unsupported {
                name: store.name,
                cause: "the store has no entity tag for it, so others' changes would be lost"
                    .into(),
                remedy: "write to another object".into(),
            });
        }
        *writer.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
        Ok(writer)
    }

    /// Puts `size` bytes there, which `read` is asked for once, several parts at a time. When this
    /// returns the object is durable; its new version is returned. When it fails, what was there
    /// before still is, and nothing is left behind.
    ///
    /// # Errors
    /// [`SourceError::Changed`] when another version is there; those of `read`;
    /// [`SourceError::Denied`], [`SourceError::TimedOut`] and so on. [`SourceError::Io`] when the
    /// last answer did not come: then either version may be there.
    pub fn upload(&self, size: u64, read: &ReadAt) -> Result<String, SourceError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let condition = match known.as_ref().and_then(Version::strong_tag) {
            Some(tag) => (IF_MATCH, tag.to_owned()),
            None => (IF_NONE_MATCH, "*".to_owned()),
        };
        let value = HeaderValue::try_from(&condition.1).ok();
        let completion: Option<(HeaderName, HeaderValue)> = value.map(|v| (condition.0, v));
        let store = Store::new(&self.url, &self.options, completion)?;
        let upload = Upload {
            store: &store,
            options: &self.options,
            known: known.as_ref(),
        };
        let written = if size <= PART_BYTES {
            upload.whole(size, read)?
        } else {
            upload.in_parts(size, read)?
        };
        // Looking what is there now could find what somebody else wrote since.
        let version = match Version::written(&written, size) {
            Some(version) => version,
            None => self.options.retry.run(|| look(&store))?,
        };
        let text = version.text().unwrap_or_default();
        *known = Some(version);
        Ok(text)
    }
}

struct Upload<'a> {
    store: &'a Store,
    options: &'a Options,
    known: Option<&'a Version>,
}

impl Upload<'_> {
    fn whole(&self, size: u64, read: &ReadAt) -> Result<PutResult, SourceError> {
        let mut buffer = vec![0; size as usize];
        read(0, &mut buffer)?;
        let bytes = Bytes::from(buffer);
        self.check()?;
        let mode = match self.known {
            Some(version) => PutMode::Update(UpdateVersion {
                e_tag: version.strong_tag().map(str::to_owned),
                version: version.generation.clone(),
            }),
            None => PutMode::Create,
        };
        self.last(|| {
            let options = PutOptions::from(mode.clone());
            let payload = PutPayload::from(bytes.clone());
            let objects = &self.store.objects;
            pollster::block_on(objects.put_opts(&self.store.path, payload, options))
        })
    }

    fn in_parts(&self, size: u64, read: &ReadAt) -> Result<PutResult, SourceError> {
        self.check()?;
        let (parts, path) = (&self.store.parts, &self.store.path);
        let id = self.options.retry.run(|| {
            let id = pollster::block_on(parts.create_multipart(path));
            id.map_err(|error| self.explain(&error))
        })?;
        let done = self.parts(&id, size, read).and_then(|all| {
            self.check()?;
            self.last(|| pollster::block_on(parts.complete_multipart(path, &id, all.clone())))
        });
        if done.is_err() {
            // What is left behind costs its owner money; the error of the upload is what counts.
            let _ = pollster::block_on(parts.abort_multipart(path, &id));
        }
        done
    }

    /// Sends all parts, several at a time, until one fails for good.
    fn parts(
        &self,
        id: &MultipartId,
        size: u64,
        read: &ReadAt,
    ) -> Result<Vec<PartId>, SourceError> {
        let part_bytes = PART_BYTES.max(size.div_ceil(PARTS_MAX).next_multiple_of(1 << 20));
        let count = size.div_ceil(part_bytes);
        let next = AtomicU64::new(0);
        let failed = AtomicBool::new(false);
        let work = || {
            let mut sent = Vec::new();
            while !failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    break;
                }
                let start = index * part_bytes;
                let part = self.part(id, index, start, part_bytes.min(size - start), read);
                failed.fetch_or(part.is_err(), Ordering::Relaxed);
                sent.push((index, part?));
            }
            Ok(sent)
        };
        let sent: Result<Vec<_>, SourceError> = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
            // All are waited for, also after a failure: an upload is aborted when it is quiet.
            let results: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
            results
                .into_iter()
                .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let mut sent: Vec<(u64, PartId)> = sent?.into_iter().flatten().collect();
        sent.sort_by_key(|(index, _)| *index);
        Ok(sent.into_iter().map(|(_, part)| part).collect())
    }

    fn part(
        &self,
        id: &MultipartId,
        index: u64,
        start: u64,
        bytes: u64,
        read: &ReadAt,
    ) -> Result<PartId, SourceError> {
        let mut buffer = vec![0; bytes as usize];
        read(start, &mut buffer)?;
        let bytes = Bytes::from(buffer);
        self.options.retry.run(|| {
            let payload = PutPayload::from(bytes.clone());
            let (parts, path) = (&self.store.parts, &self.store.path);
            let sent = pollster::block_on(parts.put_part(path, id, index as usize, payload));
            sent.map_err(|error| self.explain(&error))
        })
    }

    /// That what is there is what this writer knows.
    fn check(&self) -> Result<(), SourceError> {
        let there = match self.options.retry.run(|| look(self.store)) {
            Ok(version) => Some(version),
            Err(SourceError::NotFound { .. }) => None,
            Err(other) => return Err(other),
        };
        let same = match (self.known, &there) {
            (Some(known), Some(there)) => known.is(there),
            (None, None) => true,
            _ => false,
        };
        match same {
            true => Ok(()),
            false => Err(self.changed(there.as_ref())),
        }
    }

    fn changed(&self, there: Option<&Version>) -> SourceError {
        let shown = |version: Option<&Version>| version.map_or("missing".into(), Version::shown);
        SourceError::Changed {
            name: self.store.name.clone(),
            was: shown(self.known),
            is: shown(there),
        }
    }

    /// Makes the request that puts the new object in place. It is made again when the store says
    /// that it did nothing, but not when no answer came: it may have been heard, and a second one
    /// would find its own object and take it for another's.
    fn last(
        &self,
        mut act: impl FnMut() -> object_store::Result<PutResult>,
    ) -> Result<PutResult, SourceError> {
        self.options.retry.run(|| {
            let error = match act() {
                Ok(written) => return Ok(written),
                Err(error) => error,
            };
            let status = connector::find::<connector::Refused>(&error).map(|r| r.status.as_u16());
            if status == Some(412) {
                return Err(self.changed(look(self.store).ok().as_ref()));
            }
            if connector::find::<NoAnswer>(&error).is_some() {
                return Err(SourceError::Io {
                    name: self.store.name.clone(),
                    what: "write",
                    offset: 0,
                    cause: "the store was told to take the new version and did not answer".into(),
                    remedy: "open it again to see which version is there",
                });
            }
            Err(self.explain(&error))
        })
    }

    fn explain(&self, error: &object_store::Error) -> SourceError {
        connector::explain(&self.store.name, self.store.anonymous, error)
    }
}
