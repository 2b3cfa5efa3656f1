//! The pager that makes memory of a source.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use farpage_object::{
    DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageOut, PageRange, Pager, PagerError, Supplied,
    errno,
};

use crate::aligned::Aligned;
use crate::fetch::Fetch;
use crate::{Reach, Source, SourceError};

/// Failures that are remembered, for messages.
const FAILURES_MAX: usize = 256;
/// Of a near source, as many pages and more are read by threads of their own: a run that goes on.
/// Fewer are read on the spot, where that takes no longer than another thread's waking up.
const RUN_PAGES: u64 = 16;
/// Pages that are written to the source at a time at most.
const WRITE_PAGES: usize = 256;

/// What happens when bytes cannot be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// The access fails, after [`Options::deadline`] where the failure may pass.
    #[default]
    Error,
    /// The access waits as long as the failure may pass; what cannot pass fails.
    Wait,
    /// The access reads zeros. For those who know that this is harmless.
    Zero,
}

/// How a source is read.
#[derive(Clone, Debug)]
pub struct Options {
    /// What happens when bytes cannot be had.
    pub on_failure: OnFailure,
    /// How long a read of a far source is tried again.
    pub deadline: Duration,
    /// Bytes that may be read ahead and kept until they are asked for, of a far source. They come
    /// on top of the kernel's budget.
    pub ahead_bytes: u64,
    /// Ranges of bytes that are wanted whole as soon as a part of one is: arrays, say.
    pub extents: Vec<Range<u64>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            on_failure: OnFailure::default(),
            deadline: Duration::from_secs(60),
            ahead_bytes: 64 << 20,
            extents: Vec::new(),
        }
    }
}

/// What is done with pages that are about to be written to the source: see
/// [`SourcePager::with_barrier`].
type Barrier = Box<dyn Fn(&[PageOut<'_>]) -> Result<(), SourceError> + Send + Sync>;

/// Makes memory of a [`Source`].
pub struct SourcePager {
    source: Arc<dyn Source>,
    fetch: Arc<Fetch>,
    zeros: bool,
    failures: Failures,
    barrier: Option<Barrier>,
    watcher: OnceLock<Watcher>,
    written_bytes: AtomicU64,
    /// For the next write.
    spare: Mutex<Aligned>,
}

/// Told of every request.
type Watcher = Box<dyn Fn(PageRange) + Send + Sync>;

/// What a pager has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Reads of the source that succeeded.
    pub reads: u64,
    /// Bytes that they brought.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Reads and writes that failed for good.
    pub failures: u64,
}

impl SourcePager {
    /// A pager of `source`.
    pub fn new(source: Arc<dyn Source>, options: &Options) -> Self {
        let failures = Failures::default();
        Self {
            fetch: Fetch::new(Arc::clone(&source), options, failures.clone()),
            zeros: options.on_failure == OnFailure::Zero,
            source,
            failures,
            barrier: None,
            watcher: OnceLock::new(),
            written_bytes: AtomicU64::new(0),
            spare: Mutex::default(),
        }
    }

    /// Has `barrier` called with the pages that are about to leave memory, before any of them is
    /// written to the source. They are written when it returns `Ok`, and stay in memory otherwise.
    /// That is what a write-ahead log needs: the barrier forces the log as far as these pages
    /// depend on it. It must not touch memory that this pager serves.
    #[must_use]
    pub fn with_barrier(
        mut self,
        barrier: impl Fn(&[PageOut<'_>]) -> Result<(), SourceError> + Send + Sync + 'static,
    ) -> Self {
        self.barrier = Some(Box::new(barrier));
        self
    }

    /// The source.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    /// Has `watcher` told of the pages of every request from now on, prefetches too. The first
    /// watcher stays.
    pub fn watch_requests(&self, watcher: impl Fn(PageRange) + Send + Sync + 'static) {
        // A second one is nobody's: traces are recorded once.
        let _ = self.watcher.set(Box::new(watcher));
    }

    /// What it has done.
    pub fn counts(&self) -> Counts {
        let (reads, read_bytes) = self.fetch.counts();
        Counts {
            reads,
            read_bytes,
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            failures: self.failures.count(),
        }
    }

    /// The failure that was noted last.
    pub fn last_failure(&self) -> Option<SourceError> {
        self.failures.last()
    }

    fn read(&self, request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let mut request = request;
        let (pages, needed) = (request.pages(), request.needed());
        let offset = pages.start.0 * PAGE_BYTES as u64;
        let rest = self.source.size().saturating_sub(offset);
        let buffer = request.buffer();
        let bytes = buffer
            .len()
            .min(usize::try_from(rest).unwrap_or(usize::MAX));
        buffer[bytes..].fill(0);
        let Err(error) = self.source.read_at(offset, &mut buffer[..bytes]) else {
            self.fetch.count(bytes as u64);
            return Ok(Supplied::clean(pages.pages()));
        };
        // What is needed of it may be had all the same.
        let least = bytes.min(needed as usize * PAGE_BYTES);
        let alone = least < bytes && !pager_error(&error).is_of_the_object();
        if alone && self.source.read_at(offset, &mut buffer[..least]).is_ok() {
            return Ok(Supplied::clean(needed));
        }
        if self.zeros {
            self.failures.zeros_supplied(&error);
            buffer.fill(0);
            return Ok(Supplied::clean(needed));
        }
        self.failures.note(pages, &error);
        Err(pager_error(&error))
    }

    fn write_run(&self, run: &[PageOut<'_>]) -> Result<(), SourceError> {
        let offset = run[0].page.0 * PAGE_BYTES as u64;
        let rest = self.source.size().saturating_sub(offset) as usize;
        let mut spare = std::mem::take(&mut *self.spare());
        let room = spare.room_for(run.len() * PAGE_BYTES);
        for (to, page) in room.chunks_exact_mut(PAGE_BYTES).zip(run) {
            to.copy_from_slice(page.bytes);
        }
        let bytes = &spare[..spare.len().min(rest)];
        self.source.write_at(offset, bytes)?;
        let written = bytes.len() as u64;
        self.written_bytes.fetch_add(written, Ordering::Relaxed);
        *self.spare() = spare;
        Ok(())
    }

    /// Where a page is in the source: its offset, and its bytes, fewer of the last.
    fn bytes_of(&self, page: PageIndex) -> (u64, u64) {
        let offset = page.0 * PAGE_BYTES as u64;
        let rest = self.source.size().saturating_sub(offset);
        (offset, rest.min(PAGE_BYTES as u64))
    }

    fn spare(&self) -> MutexGuard<'_, Aligned> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, pages: &[PageOut<'_>]) -> Result<(), SourceError> {
        if let Some(barrier) = &self.barrier {
            barrier(pages)?;
        }
        let follows = |a: &PageOut<'_>, b: &PageOut<'_>| b.page.0 == a.page.0 + 1;
        for run in pages
            .chunk_by(follows)
            .flat_map(|run| run.chunks(WRITE_PAGES))
        {
            let range = PageRange::new(run[0].page.0, run[0].page.0 + run.len() as u64);
            // Before: reads under way may have the old bytes. After: those begun meanwhile.
            self.fetch.written(range);
            let written = self.write_run(run);
            self.fetch.written(range);
            written?;
        }
        Ok(())
    }
}

impl Pager for SourcePager {
    fn init(&self, _: ObjectId, _: u64) -> Result<(), PagerError> {
        self.fetch.open();
        Ok(())
    }

    fn data_request(&self, request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let pages = request.pages();
        if let Some(watcher) = self.watcher.get() {
            watcher(pages);
        }
        let offset = pages.start.0 * PAGE_BYTES as u64;
        let bytes = request.needed() * PAGE_BYTES as u64;
        let bytes = bytes.min(self.source.size().saturating_sub(offset));
        let ahead = request.is_ahead_of_need();
        match self.source.reach() {
            Reach::Near => {
                if !(ahead || pages.pages() >= RUN_PAGES || self.fetch.has(pages.start)) {
                    return self.read(request);
                }
            }
            Reach::Far => {
                if self.source.is_at_hand(offset, bytes) {
                    return self.read_at_hand(request);
                }
            }
        }
        Ok(request.later(|ticket| self.fetch.request(ticket, ahead)))
    }

    fn hasten(&self, _: ObjectId, page: PageIndex) {
        self.fetch.hasten(page);
    }

    fn is_at_hand(&self, _: ObjectId, page: PageIndex) -> bool {
        // Keeping a ticket takes no time, and neither does what is kept nearby.
        self.source.reach() == Reach::Far || self.fetch.has(page)
    }

    fn is_quick(&self, object: ObjectId, page: PageIndex) -> bool {
        let (offset, bytes) = self.bytes_of(page);
        self.is_at_hand(object, page) || self.source.is_in_memory(offset, bytes)
    }

    fn cluster_pages(&self, _: ObjectId, page: PageIndex) -> u64 {
        let (offset, bytes) = self.bytes_of(page);
        match self.source.reach() {
            Reach::Near => 1,
            // What is kept nearby can be had page by page.
            Reach::Far if self.source.is_at_hand(offset, bytes) => 1,
            Reach::Far => self.fetch.cluster_pages(),
        }
    }

    fn explain(&self, _: ObjectId, page: PageIndex, into: &mut dyn fmt::Write) -> bool {
        let error = self.failures.of(page);
        error.is_some_and(|error| write!(into, "{error}").is_ok())
    }

    fn data_write(&self, _: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        self.write(pages).map_err(|error| {
            self.failures.note(PageRange::one(pages[0].page), &error);
            match pager_error(&error) {
                PagerError::Read(errno) => PagerError::Write(errno),
                other => other,
            }
        })
    }

    fn terminate(&self, _: ObjectId) {
        self.fetch.close();
    }
}

impl SourcePager {
    /// Reads what is near of a far source, as far as it is near.
    fn read_at_hand(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let pages = request.pages();
        let offset = pages.start.0 * PAGE_BYTES as u64;
        let rest = self.source.size().saturating_sub(offset);
        let mut near = pages.pages();
        while near > request.needed()
            && !self
                .source
                .is_at_hand(offset, rest.min(near * PAGE_BYTES as u64))
        {
            near = (near / 2).max(request.needed());
        }
        let bytes = rest.min(near * PAGE_BYTES as u64) as usize;
        let buffer = request.buffer();
        buffer[bytes..].fill(0);
        match self.source.read_at(offset, &mut buffer[..bytes]) {
            Ok(()) => {
                self.fetch.count(bytes as u64);
                Ok(Supplied::clean(near))
            }
            // It went away meanwhile, or never was right.
            Err(_) => {
                let ahead = request.is_ahead_of_need();
                Ok(request.later(|ticket| self.fetch.request(ticket, ahead)))
            }
        }
    }
}

/// What failed lately, and where.
#[derive(Clone, Default)]
pub(crate) struct Failures(Arc<Noted>);

#[derive(Default)]
struct Noted {
    /// The pages that were asked for together, and why they could not be had.
    all: Mutex<VecDeque<(PageRange, SourceError)>>,
    count: AtomicU64,
}

impl Failures {
    pub(crate) fn note(&self, pages: PageRange, error: &SourceError) {
        let mut all = self.0.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(other, _)| *other != pages);
        if all.len() == FAILURES_MAX {
            all.pop_front();
        }
        all.push_back((pages, error.clone()));
        self.0.count.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.count.load(Ordering::Relaxed)
    }

    fn of(&self, page: PageIndex) -> Option<SourceError> {
        let all = self.0.all.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().rev().find(|(pages, _)| pages.contains(page));
        found.map(|(_, error)| error.clone())
    }

    fn last(&self) -> Option<SourceError> {
        let all = self.0.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.back().map(|(_, error)| error.clone())
    }

    /// Says once that zeros were supplied, as was asked for.
    pub(crate) fn zeros_supplied(&self, error: &SourceError) {
        if self.last().is_none() {
            farpage_sys::say!("farpage: {error}; zeros are read instead, as was asked for");
        }
        // Of no page: all can be had.
        self.note(PageRange::new(0, 0), error);
    }
}

/// The number that stands for an error in the protocol.
pub(crate) fn pager_error(error: &SourceError) -> PagerError {
    match error {
        SourceError::Corrupt { .. } => PagerError::Corrupt,
        SourceError::Short { .. } | SourceError::NotFound { .. } => PagerError::Unavailable,
        SourceError::Denied { .. } => PagerError::Read(errno::EACCES),
        SourceError::TimedOut { .. } => PagerError::Read(errno::ETIMEDOUT),
        SourceError::Unreachable { .. } => PagerError::Read(errno::EHOSTUNREACH),
        SourceError::Changed { .. } => PagerError::Read(errno::ESTALE),
        SourceError::ReadOnly { .. } => PagerError::Write(errno::EROFS),
        SourceError::WrongRange { .. }
        | SourceError::Io { .. }
        | SourceError::Unsupported { .. }
        | SourceError::NotExact { .. }
        | SourceError::Callback { .. } => PagerError::Read(errno::EIO),
    }
}
