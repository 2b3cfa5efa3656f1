//! Replacing whole objects.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use farpage_sys::pthread;
use http::header::{IF_MATCH, IF_NONE_MATCH};
use http::{HeaderName, HeaderValue};
use object_store::multipart::PartId;
use object_store::{MultipartId, PutMode, PutOptions, PutPayload, PutResult, UpdateVersion};

use crate::SourceError;
use crate::remote::Options;
use crate::remote::check::Version;
use crate::remote::connector::{self, NoAnswer};
use crate::remote::object_source::{self, ObjectSource, look};
use crate::remote::store::Store;

/// A smaller object goes in one request; a larger one in parts of at least so many bytes.
const PART_BYTES: u64 = 8 << 20;
/// Stores take 10,000 at most.
const PARTS_MAX: u64 = 9_000;
/// Parts under way at a time.
const THREADS: usize = 4;

/// What helps when somebody else was faster.
const CHANGED: &str = "what is there was not replaced: copy out what you wrote, open it again, \
                       and write it there";

/// Fills a buffer with the bytes of the new object from an offset on.
pub type ReadAt<'a> = dyn Fn(u64, &mut [u8]) -> Result<(), SourceError> + Sync + 'a;

/// Replaces an object as a whole: stores have no way to replace a part of one.
///
/// What is replaced must be the version that the writer knows: the one that was opened, nothing
/// when it creates, or the last that it wrote. S3 checks that in the same step; of objects in
/// several parts, Google's and Microsoft's stores are asked just before it.
pub struct ObjectWriter {
    name: String,
    url: String,
    options: Options,
    known: Mutex<Known>,
}

/// What a writer knows of what is there.
struct Known {
    /// `None`: nothing is.
    version: Option<Version>,
    /// What may be there instead: it was sent, and no answer came.
    doubt: Option<Sent>,
}

/// What was sent: the sums of its parts, to tell it from others' objects.
struct Sent {
    keys: RandomState,
    size: u64,
    part_bytes: u64,
    sums: Vec<u64>,
}

impl Sent {
    /// Whether it is what is there.
    fn is_there(
        &self,
        store: &Store,
        options: &Options,
        there: &Version,
    ) -> Result<bool, SourceError> {
        if there.size != self.size {
            return Ok(false);
        }
        let mut found = Vec::new();
        for (start, sum) in (0..self.size)
            .step_by(self.part_bytes as usize)
            .zip(&self.sums)
        {
            found.resize(self.part_bytes.min(self.size - start) as usize, 0);
            let fetch = || object_source::read(store, there, start, &mut found);
            options.retry.run(fetch)?;
            if self.keys.hash_one(&found[..]) != *sum {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl ObjectWriter {
    /// Makes the object at `url`, which must not exist.
    ///
    /// # Errors
    /// [`SourceError::Unsupported`] for wrong settings. Nothing is sent yet.
    pub fn create(url: &str, options: &Options) -> Result<Self, SourceError> {
        Ok(Self {
            name: Store::new(url, options, None)?.name,
            url: url.into(),
            options: options.clone(),
            known: Mutex::new(Known {
                version: None,
                doubt: None,
            }),
        })
    }

    pub(crate) fn of(url: &str, options: &Options, known: Version) -> Result<Self, SourceError> {
        let writer = Self::create(url, options)?;
        if known.strong_tag().is_none() {
            return Err(SourceError::Unsupported {
                name: writer.name,
                cause: "the store has no entity tag for it, so others' changes would be lost"
                    .into(),
                remedy: "write to another object".into(),
            });
        }
        writer.known().version = Some(known);
        Ok(writer)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What messages call the object.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Puts `size` bytes there, which `read` is asked for once, several parts at a time. When this
    /// returns the object is durable; its new version is returned, to be read. When it fails, what
    /// was there before still is, and nothing is left behind.
    ///
    /// # Errors
    /// [`SourceError::Changed`] when another version is there; those of `read`;
    /// [`SourceError::Denied`], [`SourceError::TimedOut`] and so on. [`SourceError::Io`] when the
    /// last answer did not come and the old version is there, or the store cannot be asked which:
    /// then [`ObjectWriter::late`] says, before the next upload.
    pub fn upload(&self, size: u64, read: &ReadAt) -> Result<ObjectSource, SourceError> {
        let mut known = self.known();
        let condition = match known.version.as_ref().and_then(Version::strong_tag) {
            Some(tag) => (IF_MATCH, tag.to_owned()),
            None => (IF_NONE_MATCH, "*".to_owned()),
        };
        let value = HeaderValue::try_from(&condition.1).ok();
        let completion: Option<(HeaderName, HeaderValue)> = value.map(|v| (condition.0, v));
        let store = Store::new(&self.url, &self.options, completion)?;
        let upload = Upload {
            store: &store,
            options: &self.options,
            known: known.version.as_ref(),
            keys: RandomState::new(),
            doubt: OnceLock::new(),
        };
        let version = if size <= PART_BYTES {
            upload.whole(size, read)
        } else {
            upload.in_parts(size, read)
        };
        let doubt = upload.doubt.into_inner();
        if version.is_err() && doubt.is_some() {
            known.doubt = doubt;
        }
        let version = version.map_err(|error| match error {
            // `read` may have been the first to see it.
            SourceError::Changed { name, was, is, .. } => SourceError::Changed {
                name,
                was,
                is,
                remedy: CHANGED,
            },
            other => other,
        })?;
        Ok(self.is(&mut known, store, version))
    }

    /// What an upload put there after all that has failed because no answer came. `None` when all
    /// uploads that failed have failed.
    ///
    /// # Errors
    /// As of [`ObjectSource::open`].
    pub fn late(&self) -> Result<Option<ObjectSource>, SourceError> {
        let mut known = self.known();
        let Some(sent) = known.doubt.take() else {
            return Ok(None);
        };
        let store = Store::new(&self.url, &self.options, None)?;
        let there = match self.options.retry.run(|| look(&store)) {
            Err(SourceError::NotFound { .. }) => None,
            there => Some(there),
        };
        let there = match there.transpose() {
            Ok(there) => there.filter(|there| !known.version.as_ref().is_some_and(|v| v.is(there))),
            Err(error) => {
                known.doubt = Some(sent);
                return Err(error);
            }
        };
        let Some(there) = there else {
            // It may still be on its way.
            known.doubt = Some(sent);
            return Ok(None);
        };
        match sent.is_there(&store, &self.options, &there) {
            Ok(true) => Ok(Some(self.is(&mut known, store, there))),
            Ok(false) => Ok(None),
            Err(error) => {
                known.doubt = Some(sent);
                Err(error)
            }
        }
    }

    /// `version` is there now.
    fn is(&self, known: &mut Known, store: Store, version: Version) -> ObjectSource {
        *known = Known {
            version: Some(version.clone()),
            doubt: None,
        };
        let (url, options) = (self.url.clone(), self.options.clone());
        ObjectSource::of(store, version, url, options)
    }
}

struct Upload<'a> {
    store: &'a Store,
    options: &'a Options,
    known: Option<&'a Version>,
    /// Of the sums of what was sent.
    keys: RandomState,
    doubt: OnceLock<Sent>,
}

impl Upload<'_> {
    fn whole(&self, size: u64, read: &ReadAt) -> Result<Version, SourceError> {
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
        let written = self.last(|| {
            let options = PutOptions::from(mode.clone());
            let payload = PutPayload::from(bytes.clone());
            let objects = &self.store.objects;
            pollster::block_on(objects.put_opts(&self.store.path, payload, options))
        })?;
        let sums = vec![self.keys.hash_one(&bytes[..])];
        self.version(written, size, PART_BYTES, sums)
    }

    fn in_parts(&self, size: u64, read: &ReadAt) -> Result<Version, SourceError> {
        self.check()?;
        let (parts, path) = (&self.store.parts, &self.store.path);
        let id = self.options.retry.run(|| {
            let id = pollster::block_on(parts.create_multipart(path));
            id.map_err(|error| self.explain(&error))
        })?;
        let part_bytes = PART_BYTES.max(size.div_ceil(PARTS_MAX).next_multiple_of(1 << 20));
        let done = self.parts(&id, size, part_bytes, read).and_then(|sent| {
            self.check()?;
            let (all, sums): (Vec<PartId>, Vec<u64>) = sent.into_iter().unzip();
            let complete = || parts.complete_multipart(path, &id, all.clone());
            let written = self.last(|| pollster::block_on(complete()))?;
            self.version(written, size, part_bytes, sums)
        });
        if done.is_err() {
            // What is left behind costs its owner money; the error of the upload is what counts.
            let _ = pollster::block_on(parts.abort_multipart(path, &id));
        }
        done
    }

    /// Sends all parts, several at a time, until one fails for good. Returns them in order, with
    /// their sums.
    fn parts(
        &self,
        id: &MultipartId,
        size: u64,
        part_bytes: u64,
        read: &ReadAt,
    ) -> Result<Vec<(PartId, u64)>, SourceError> {
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
        // All are waited for, also after a failure: an upload is aborted when it is quiet.
        let ended = match pthread::several(c"farpage-upload", THREADS, work) {
            Ok(ended) => ended,
            // There is no thread for it but this one.
            Err(_) => vec![Ok(work())],
        };
        let sent = ended
            .into_iter()
            .map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        let sent: Result<Vec<_>, SourceError> = sent.collect();
        let mut sent: Vec<(u64, (PartId, u64))> = sent?.into_iter().flatten().collect();
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
    ) -> Result<(PartId, u64), SourceError> {
        let mut buffer = vec![0; bytes as usize];
        read(start, &mut buffer)?;
        let bytes = Bytes::from(buffer);
        let sent = self.options.retry.run(|| {
            let payload = PutPayload::from(bytes.clone());
            let (parts, path) = (&self.store.parts, &self.store.path);
            let sent = pollster::block_on(parts.put_part(path, id, index as usize, payload));
            sent.map_err(|error| self.explain(&error))
        });
        Ok((sent?, self.keys.hash_one(&bytes[..])))
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
            remedy: CHANGED,
        }
    }

    /// The version that was put there; `written` is `None` when no answer came.
    fn version(
        &self,
        written: Option<PutResult>,
        size: u64,
        part_bytes: u64,
        sums: Vec<u64>,
    ) -> Result<Version, SourceError> {
        if let Some(written) = written {
            // Looking what is there now could find what somebody else wrote since.
            return match Version::written(&written, size) {
                Some(version) => Ok(version),
                None => self.options.retry.run(|| look(self.store)),
            };
        }
        let sent = Sent {
            keys: self.keys.clone(),
            size,
            part_bytes,
            sums,
        };
        let there = self.options.retry.run(|| look(self.store)).ok();
        if let Some(there) = there.filter(|there| !self.known.is_some_and(|v| v.is(there)))
            && let Ok(is_ours) = sent.is_there(self.store, self.options, &there)
        {
            return match is_ours {
                true => Ok(there),
                false => Err(self.changed(Some(&there))),
            };
        }
        // Nothing else is sent by this upload.
        let _ = self.doubt.set(sent);
        Err(SourceError::Io {
            name: self.store.name.clone(),
            what: "write",
            offset: 0,
            cause: "the store was told to take the new version and did not answer".into(),
            remedy: "check the network and the store, and write again",
        })
    }

    /// Makes the request that puts the new object in place. It is made again when the store says
    /// that it did nothing, but not when no answer came: it may have been heard, and a second one
    /// would find its own object and take it for another's.
    fn last(
        &self,
        mut act: impl FnMut() -> object_store::Result<PutResult>,
    ) -> Result<Option<PutResult>, SourceError> {
        self.options.retry.run(|| {
            let error = match act() {
                Ok(written) => return Ok(Some(written)),
                Err(error) => error,
            };
            let status = connector::find::<connector::Refused>(&error).map(|r| r.status.as_u16());
            if status == Some(412) {
                return Err(self.changed(look(self.store).ok().as_ref()));
            }
            if connector::find::<NoAnswer>(&error).is_some() {
                return Ok(None);
            }
            Err(self.explain(&error))
        })
    }

    fn explain(&self, error: &object_store::Error) -> SourceError {
        connector::explain(&self.store.name, self.store.anonymous, error)
    }
}
