//! A source, mapped.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

use farpage_kernel::embed::{Mapping, Object};
use farpage_object::{PAGE_BYTES, PageRange};
use farpage_source::open::{Layered, Overlay};
use farpage_source::{
    Counts, OnFailure, Options, Recorder, Source, SourceError, SourcePager, Traced,
};
use farpage_sys::pthread;

use crate::cover::{Cover, Extent};
use crate::fork::{self, Reopen};
use crate::kernels::{self, Lease};
use crate::load::Plan;
use crate::{Error, Mode, OpenOptions, Places, Trace};

/// The part of a budget that may be taken, beside it, by what is read ahead.
const AHEAD_PART: u64 = 8;
/// Bounds of that, bytes.
const AHEAD: (u64, u64) = (4 << 20, 64 << 20);

/// The bytes of a source in memory, read when they are touched. Clones are the same memory, which
/// is unmapped when the last is gone; what was written and not flushed is written back then.
#[derive(Clone)]
pub struct Memory(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) name: String,
    size: u64,
    options: OpenOptions,
    source: Arc<dyn Source>,
    reopen: Reopen,
    address: usize,
    /// Exchanged in a child of fork, where no lock may be waited for.
    mapped: ArcSwap<Mapped>,
}

/// What belongs to one process. Dropped from the first to the last.
pub(crate) struct Mapped {
    mapping: Arc<Mapping>,
    /// What shows the file itself in its place.
    cover: Option<Arc<Cover>>,
    _object: Object,
    pager: Arc<SourcePager>,
    /// What was written and is in no source, so that a fork leaves it to both.
    overlay: Option<Arc<Overlay>>,
    recorder: Mutex<Option<Arc<Recorder>>>,
    closing: Arc<AtomicBool>,
    writable: bool,
    process: u32,
    lease: Lease,
}

/// What a [`Memory`] takes, and what it has cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes of the source.
    pub bytes: u64,
    /// Bytes that are in memory.
    pub resident_bytes: u64,
    /// Reads of the source, and what they brought.
    pub reads: u64,
    /// Bytes.
    pub read_bytes: u64,
    /// Bytes written back to the source.
    pub written_bytes: u64,
    /// Reads and writes that failed for good.
    pub failures: u64,
}

impl Memory {
    /// Maps what is at an address: a path or an URL, or what [`Places`] name. Nothing is read but
    /// what it takes to open it.
    ///
    /// # Errors
    /// Those of [`crate::open_source`]; [`Error::Kernel`] when it cannot be mapped.
    pub fn open(places: impl Into<Places>, options: &OpenOptions) -> Result<Self, Error> {
        let places = places.into();
        let opened = places.open(options)?;
        let reopen = Reopen::of(&places, &opened, Plan::default());
        Self::map(opened.into_source(), options, reopen, Vec::new())
    }

    /// Maps a source of the caller's own. Of `options` those count that say how it is mapped and
    /// read; it can be written to when it can ([`Source::is_writable`]) and the mode allows it. Only
    /// [`Memory::flush`] calls [`Source::sync`].
    ///
    /// # Errors
    /// [`Error::Kernel`] when it cannot be mapped.
    pub fn of_source(source: Arc<dyn Source>, options: &OpenOptions) -> Result<Self, Error> {
        Self::map(source, options, Reopen::Same, Vec::new())
    }

    pub(crate) fn map(
        source: Arc<dyn Source>,
        options: &OpenOptions,
        reopen: Reopen,
        extents: Vec<Range<u64>>,
    ) -> Result<Self, Error> {
        fork::watch();
        let (top, overlay): (Arc<dyn Source>, _) = match options.mode {
            Mode::Copy => {
                let private = Arc::new(Overlay::new(Arc::clone(&source))?);
                (Arc::clone(&private) as _, Some(private))
            }
            Mode::Read | Mode::Write | Mode::Create => {
                let staged = reopen.staged();
                (Arc::clone(&source), staged.map(|s| Arc::clone(s.overlay())))
            }
        };
        let writable = options.mode != Mode::Read && top.is_writable();
        let mut mapped = Mapped::new((top, overlay), options, extents, writable, None)?;
        if mapped.may_be_covered(options) {
            let extent = match mapped.fits() {
                true => Extent::Whole,
                false => Extent::Windows,
            };
            mapped.cover = Cover::over(&mapped.mapping, &*source, extent);
        }
        let inner = Arc::new(Inner {
            address: mapped.mapping.as_ptr() as usize,
            name: source.name().to_owned(),
            size: source.size(),
            mapped: ArcSwap::from_pointee(mapped),
            options: options.clone(),
            source,
            reopen,
        });
        fork::register(&inner);
        let memory = Self(inner);
        if let Some(trace) = &options.replay {
            memory.replay(Arc::clone(trace))?;
        }
        Ok(memory)
    }

    /// What messages call it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.0.size
    }

    /// What tells its version from others of the same name, if anything does. That of an object in
    /// a store changes when what was written is flushed.
    pub fn version(&self) -> Option<String> {
        self.0.live().ok()?.pager.source().version()
    }

    /// True when it can be written to. In a child of fork only private copies ([`Mode::Copy`])
    /// can.
    pub fn is_writable(&self) -> bool {
        self.0.mapped.load().writable
    }

    /// The first byte; the mapping ends with the page of the last. Reading through it reads the
    /// source. A page that cannot be had raises SIGBUS, and a message says which and why. Writing
    /// to what is not writable raises SIGSEGV.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.address as *mut u8
    }

    /// Brings bytes in before they are touched, and waits until they are there. `progress` is
    /// called with the number of bytes that have come. At most half of the budget is filled.
    ///
    /// Returns how many bytes of the range are in memory afterwards.
    ///
    /// # Errors
    /// [`Error::NotRead`] with the failure of the source when pages could not be had;
    /// [`Error::Argument`] for a range that is not inside.
    pub fn prefetch(&self, bytes: Range<u64>, mut progress: impl FnMut(u64)) -> Result<u64, Error> {
        let pages = self.pages(&bytes)?;
        let mapped = self.0.live()?;
        if let Some(cover) = mapped.cover() {
            return cover.prefetch(&mapped.mapping, &bytes, progress);
        }
        let failures = mapped.pager.counts().failures;
        let page = PAGE_BYTES as u64;
        let came = mapped
            .mapping
            .prefetch([pages], |pages| progress(pages * page))?;
        let failed = mapped.pager.counts().failures > failures;
        match mapped
            .pager
            .last_failure()
            .filter(|_| failed && came < pages.pages())
        {
            Some(why) => Err(Error::NotRead { why }),
            None => Ok((came * page).min(bytes.end - bytes.start)),
        }
    }

    /// Lets bytes go from memory; what was written is written back before.
    ///
    /// # Errors
    /// [`Error::NotWritten`]; [`Error::Argument`] for a range that is not inside.
    pub fn discard(&self, bytes: Range<u64>) -> Result<(), Error> {
        let pages = self.pages(&bytes)?;
        let mapped = self.0.live()?;
        if let Some(cover) = mapped.cover() {
            cover.discard(&mapped.mapping, pages);
            return Ok(());
        }
        mapped.mapping.drop_covered(pages);
        let flushed = mapped.mapping.flush(pages);
        flushed.map_err(|error| self.0.not_written(&mapped, &error))
    }

    /// Writes back what was written, and returns when it is durable. Objects in stores are replaced
    /// as a whole, if anything was written; what other threads write meanwhile may have to wait for
    /// the next flush.
    ///
    /// # Errors
    /// [`Error::NotWritten`]: what the source did not take stays here, and can be flushed again.
    /// [`SourceError::Changed`] in [`Error::Source`] when somebody else has replaced the object in
    /// the store: what is there is not overwritten, and what was written stays here.
    pub fn flush(&self) -> Result<(), Error> {
        let mapped = self.0.live()?;
        if let Some(recorder) = &*mapped.recorder() {
            // A trace that is not whole only saves less.
            let _ = recorder.flush();
        }
        if !mapped.writable {
            return Ok(());
        }
        let cleaned = mapped.mapping.clean(PageRange::new(0, u64::MAX));
        cleaned.map_err(|error| self.0.not_written(&mapped, &error))?;
        self.0.sync(&mapped)
    }

    /// Brings bytes in and keeps them there until [`Memory::unpin`]. No more than half of the
    /// budget can be pinned.
    ///
    /// # Errors
    /// As [`Memory::prefetch`]; [`Error::Kernel`] when the budget does not allow it.
    pub fn pin(&self, bytes: Range<u64>) -> Result<(), Error> {
        let pages = self.pages(&bytes)?;
        let mapped = self.0.live()?;
        mapped.uncover();
        mapped.mapping.wire(pages)?;
        let came = self.prefetch(bytes.clone(), |_| ());
        match came {
            Ok(there) if there >= bytes.end - bytes.start => Ok(()),
            other => {
                mapped.mapping.unwire(pages);
                Err(other.err().unwrap_or(Error::Argument {
                    what: "range",
                    why: format!("{} bytes have no room", bytes.end - bytes.start),
                    remedy: "pin less, or raise the budget",
                }))
            }
        }
    }

    /// Lets what is pinned of the range leave again.
    ///
    /// # Errors
    /// [`Error::Argument`] for a range that is not inside.
    pub fn unpin(&self, bytes: Range<u64>) -> Result<(), Error> {
        let pages = self.pages(&bytes)?;
        self.0.live()?.mapping.unwire(pages);
        Ok(())
    }

    /// What it takes, and has cost.
    pub fn stats(&self) -> Stats {
        let Ok(mapped) = self.0.live() else {
            return Stats {
                bytes: self.0.size,
                ..Stats::default()
            };
        };
        let Counts {
            reads,
            read_bytes,
            written_bytes,
            failures,
            ..
        } = mapped.pager.counts();
        let resident = match mapped.cover() {
            Some(cover) => cover.resident_pages(&mapped.mapping),
            None => mapped.mapping.stats().resident_pages,
        } * PAGE_BYTES as u64;
        Stats {
            bytes: self.0.size,
            resident_bytes: resident.min(self.0.size),
            reads,
            read_bytes,
            written_bytes,
            failures,
        }
    }

    /// Which bytes are in memory, in order.
    pub fn residency(&self) -> Vec<Range<u64>> {
        let page = PAGE_BYTES as u64;
        let Ok(mapped) = self.0.live() else {
            return Vec::new();
        };
        let runs = match mapped.cover() {
            Some(cover) => cover.residency(&mapped.mapping),
            None => mapped.mapping.residency(),
        };
        let bytes = |run: PageRange| run.start.0 * page..(run.end.0 * page).min(self.0.size);
        runs.into_iter().map(bytes).collect()
    }

    /// Records which pages are asked for from now on, in order, in the file at `path`, for
    /// [`OpenOptions::replay`].
    ///
    /// # Errors
    /// [`Error::Argument`] when the file cannot be made.
    pub fn record(&self, path: &std::path::Path) -> Result<(), Error> {
        let mapped = self.0.live()?;
        mapped.uncover();
        let source = Traced {
            name: None,
            size: self.0.size,
            version: mapped.pager.source().version(),
        };
        let recorder = Arc::new(Recorder::new(path, &[source])?);
        let noted = Arc::clone(&recorder);
        let watcher = move |pages| noted.note(0, pages);
        mapped.pager.watch_requests(watcher);
        *mapped.recorder() = Some(recorder);
        Ok(())
    }

    /// Brings in what `trace` says, in its order, in the background. Says so when it is of another
    /// version.
    fn replay(&self, trace: Arc<Trace>) -> Result<(), Error> {
        if let Some(change) = trace.source.change(self.name(), &self.0.source) {
            farpage_sys::say!("farpage: {change}");
        }
        let pages = self.size().div_ceil(PAGE_BYTES as u64);
        let mapped = self.0.live()?;
        // Without a thread, too, it is asked for when it is touched.
        let _ = pthread::start(c"farpage-replay", move || {
            let closing = Arc::clone(&mapped.closing);
            let open = |_: &PageRange| !closing.load(Ordering::Relaxed);
            let runs = trace.runs.iter().copied().take_while(open);
            let there = |run: PageRange| {
                let end = run.end.0.min(pages);
                (run.start.0 < end).then(|| PageRange::new(run.start.0, end))
            };
            let runs = runs.filter_map(there);
            // What cannot be brought in now is asked for when it is touched.
            let _ = mapped.mapping.prefetch(runs, |_| ());
        });
        Ok(())
    }

    pub(crate) fn pages(&self, bytes: &Range<u64>) -> Result<PageRange, Error> {
        if bytes.start > bytes.end || bytes.end > self.0.size {
            let range = (bytes.start, bytes.end);
            return Err(Error::outside(&self.0.name, range, self.0.size));
        }
        let page = PAGE_BYTES as u64;
        Ok(PageRange::new(bytes.start / page, bytes.end.div_ceil(page)))
    }
}

impl Mapped {
    fn new(
        (source, overlay): (Arc<dyn Source>, Option<Arc<Overlay>>),
        options: &OpenOptions,
        extents: Vec<Range<u64>>,
        writable: bool,
        at: Option<usize>,
    ) -> Result<Self, Error> {
        let lease = kernels::lease(options.ram)?;
        let ahead = lease.kernel.ram_bytes() / AHEAD_PART;
        let how = Options {
            on_failure: options.on_failure,
            deadline: options.deadline.unwrap_or(Options::default().deadline),
            ahead_bytes: ahead.clamp(AHEAD.0, AHEAD.1),
            extents,
        };
        let size = usize::try_from(source.size()).unwrap_or(usize::MAX);
        let pager = Arc::new(SourcePager::new(source, &how));
        let object = lease.kernel.object(pager.clone(), size)?;
        let mapping = match at {
            Some(at) => object.map_at(at)?,
            None => object.map()?,
        };
        if !writable {
            mapping.forbid_writing()?;
        }
        Ok(Self {
            mapping: Arc::new(mapping),
            cover: None,
            _object: object,
            pager,
            overlay,
            recorder: Mutex::new(None),
            closing: Arc::new(AtomicBool::new(false)),
            writable,
            process: std::process::id(),
            lease,
        })
    }

    /// True where nobody would miss what only a pager can do: take what is written, supply zeros for
    /// what cannot be read, replay.
    fn may_be_covered(&self, options: &OpenOptions) -> bool {
        let reads = options.mode == Mode::Read && options.on_failure == OnFailure::Error;
        reads && options.replay.is_none()
    }

    /// True when all of it can be in memory.
    fn fits(&self) -> bool {
        self.mapping.size() as u64 <= self.lease.kernel.ram_bytes()
    }

    /// What shows all of it now, so that its pager is never asked.
    fn cover(&self) -> Option<&Arc<Cover>> {
        self.cover.as_ref().filter(|cover| cover.is_whole())
    }

    /// From now on its pager is asked for every page that is touched.
    fn uncover(&self) {
        if let Some(cover) = self.cover.as_ref().filter(|cover| cover.is_shown()) {
            cover.end();
        }
    }

    fn recorder(&self) -> MutexGuard<'_, Option<Arc<Recorder>>> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn mapped(&self) -> Arc<Mapped> {
        self.mapped.load_full()
    }

    /// What this process has. A child of fork that could not map it anew has nothing that answers.
    fn live(&self) -> Result<Arc<Mapped>, Error> {
        let mapped = self.mapped();
        if mapped.process == std::process::id() {
            return Ok(mapped);
        }
        Err(Error::Argument {
            what: "memory",
            why: format!("'{}' is not mapped in this child of fork", self.name),
            remedy: "open it again in the child",
        })
    }

    /// Has no file be seen in its place, if some of `addresses` are its own.
    pub(crate) fn uncover_within(&self, addresses: &Range<usize>) {
        let end = self.address + self.size as usize;
        if addresses.start < end && self.address < addresses.end {
            self.mapped().uncover();
        }
    }

    /// Before a fork: what was written is in the source, where the child finds it, or is returned.
    pub(crate) fn before_fork(&self) -> Result<Option<Layered>, Error> {
        let mapped = self.live()?;
        if mapped.writable {
            let cleaned = mapped.mapping.clean(PageRange::new(0, u64::MAX));
            cleaned.map_err(|error| self.not_written(&mapped, &error))?;
        }
        let frozen = mapped.overlay.as_ref().map(|overlay| overlay.freeze());
        Ok(frozen.transpose()?)
    }

    /// In a child of fork: maps it anew, at the same address, with what was `frozen` before. A
    /// private copy can be written to, and all else cannot: two processes would overwrite each
    /// other's pages.
    pub(crate) fn after_fork(&self, frozen: Option<Layered>) -> Result<(), Error> {
        let in_child = |source: &Arc<dyn Source>| self.reopen.in_child(source, &self.options);
        let options = OpenOptions {
            replay: None,
            ..self.options.clone()
        };
        let (top, overlay) = match frozen {
            Some(frozen) => {
                let overlay = Arc::new(Overlay::over(frozen.moved(in_child))?);
                (self.reopen.mapped(Arc::clone(&overlay)), Some(overlay))
            }
            None => (in_child(&self.source), None),
        };
        let (writable, at) = (self.options.mode == Mode::Copy, Some(self.address));
        let old = self.mapped();
        old.mapping.leave_in_child();
        let mut new = Mapped::new((top, overlay), &options, Vec::new(), writable, at)?;
        let cover = old.cover.clone();
        new.cover = cover.filter(|cover| cover.show(&new.mapping, &*self.source));
        // Its threads are the parent's: letting go would wait for them.
        std::mem::forget(self.mapped.swap(Arc::new(new)));
        Ok(())
    }

    fn sync(&self, mapped: &Mapped) -> Result<(), Error> {
        mapped.pager.source().sync().map_err(|error| match error {
            SourceError::Changed { .. } => Error::Source(error),
            _ => Error::NotWritten {
                name: self.name.clone(),
                why: error.to_string(),
            },
        })
    }

    fn not_written(&self, mapped: &Mapped, error: &dyn std::fmt::Display) -> Error {
        let why = mapped
            .pager
            .last_failure()
            .map(|failure| failure.to_string());
        Error::NotWritten {
            name: self.name.clone(),
            why: why.unwrap_or_else(|| error.to_string()),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mapped = self.mapped();
        mapped.closing.store(true, Ordering::Relaxed);
        if mapped.process != std::process::id() {
            // A child that could not map it anew: as in `after_fork`.
            std::mem::forget(mapped);
            return;
        }
        if let Some(recorder) = &*mapped.recorder() {
            // A trace that is not whole only saves less.
            let _ = recorder.flush();
        }
        if !mapped.writable {
            return;
        }
        let cleaned = mapped.mapping.clean(PageRange::new(0, u64::MAX));
        let cleaned = cleaned.map_err(|_| mapped.pager.last_failure());
        let written = cleaned.and_then(|()| match self.reopen.staged() {
            Some(staged) => staged.sync().map_err(Some),
            None => Ok(()),
        });
        if let Err(why) = written
            && self.options.mode != Mode::Copy
        {
            let why = why.map_or(String::new(), |why| format!(": {why}"));
            farpage_sys::say!("farpage: what was written to '{}' is lost{why}", self.name);
        }
    }
}

/// A failure of a source, for those who hold one.
impl Memory {
    /// The failure that its source reported last, if there was one.
    pub fn last_failure(&self) -> Option<SourceError> {
        self.0.mapped().pager.last_failure()
    }
}
